"""Live Jupyter widgets that show why a language model wrote what it wrote.

The public names load on first use, so that importing the package costs almost nothing beyond torch itself.

The examples in the docstrings of the public names run as they are printed after these lines (the demo models are small:
other models give other numbers):

    >>> import numpy as np
    >>> from interp_widgets import *
    >>> pair = load_demo_pair()
    >>> base, tuned = pair.base, pair.tuned
    >>> model = base
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Model": "models",
    "ModelPair": "models",
    "load_model": "models",
    "load_pair": "models",
    "load_demo_pair": "models",
    "prompt_saliency": "analysis.saliency",
    "normalise_importance": "analysis.saliency",
    "importance_density": "analysis.saliency",
    "instruction_score": "analysis.saliency",
    "position_profile": "analysis.saliency",
    "saliency_dataset": "analysis.saliency",
    "faithfulness": "analysis.saliency",
    "SaliencyResult": "analysis.saliency",
    "SaliencyDatasetResult": "analysis.saliency",
    "FaithfulnessResult": "analysis.saliency",
    "logit_lens": "analysis.logit_lens",
    "LogitLensResult": "analysis.logit_lens",
    "load_translators": "analysis.logit_lens",
    "save_translators": "analysis.logit_lens",
    "Ablation": "analysis.ablation",
    "ablation": "analysis.ablation",
    "ablated_prediction": "analysis.ablation",
    "mean_ablation": "analysis.ablation",
    "resample_ablation": "analysis.ablation",
    "ablate_modules": "analysis.ablation",
    "ablate_heads": "analysis.ablation",
    "ablate_neurons": "analysis.ablation",
    "causal_trace": "analysis.ablation",
    "AblationResult": "analysis.ablation",
    "CausalTraceResult": "analysis.ablation",
    "decompose_tokens": "analysis.token_decomposition",
    "decompose_logit": "analysis.token_decomposition",
    "TokenDecompositionResult": "analysis.token_decomposition",
    "LogitShareResult": "analysis.token_decomposition",
    "head_word_pairs": "analysis.head_words",
    "compare_heads": "analysis.head_words",
    "HeadWordResult": "analysis.head_words",
    "HeadComparison": "analysis.head_words",
    "ffn_concepts": "analysis.ffn_concepts",
    "neuron_tokens": "analysis.ffn_concepts",
    "neuron_effects": "analysis.ffn_concepts",
    "compare_concepts": "analysis.ffn_concepts",
    "subspace_angles": "analysis.ffn_concepts",
    "FFNConceptResult": "analysis.ffn_concepts",
    "NeuronTokenResult": "analysis.ffn_concepts",
    "NeuronEffectResult": "analysis.ffn_concepts",
    "ConceptComparison": "analysis.ffn_concepts",
    "concept_directions": "analysis.concepts",
    "concept_map": "analysis.concepts",
    "neighbours": "analysis.concepts",
    "read_prompt_concepts": "analysis.concepts",
    "decompose_state": "analysis.concepts",
    "decompose_prompt": "analysis.concepts",
    "dispersion": "analysis.concepts",
    "steer": "analysis.concepts",
    "erase": "analysis.concepts",
    "ConceptSet": "analysis.concepts",
    "ConceptMap": "analysis.concepts",
    "ConceptReading": "analysis.concepts",
    "last_states": "analysis.hidden_states",
    "Concept": "data.concepts",
    "demo_concepts": "data.concepts",
    "read_concepts": "data.concepts",
    "WordVectors": "data.word_vectors",
    "demo_word_vectors": "data.word_vectors",
    "read_word_vectors": "data.word_vectors",
    "verb_table": "analysis.head_words",
    "annotate_concepts": "analysis.ffn_concepts",
    "ConceptAnnotations": "analysis.ffn_concepts",
    "scenario_table": "analysis.ffn_concepts",
    "level_table": "analysis.ffn_concepts",
    "add_to_map": "analysis.concepts",
    "Annotation": "data.annotators",
    "Annotator": "data.annotators",
    "EndpointAnnotator": "data.annotators",
    "RuleAnnotator": "data.annotators",
    "UserAnnotator": "data.annotators",
    "tune_mod": "tuning.mixture_of_depths",
    "ModReport": "tuning.mixture_of_depths",
    "HeadWordBrowser": "widgets.head_words",
    "FFNConceptBrowser": "widgets.ffn_concepts",
    "ConceptBrowser": "widgets.concepts",
    "compare_annotations": "analysis.ffn_concepts",
    "AnnotationComparison": "analysis.ffn_concepts",
    "ModModel": "models.mixture_of_depths.model",
    "routing": "analysis.mod",
    "routing_speed": "analysis.mod",
    "solve": "analysis.mod",
    "RoutingResult": "analysis.mod",
    "mod_grid": "tuning.mixture_of_depths",
    "mod_ablations": "tuning.mixture_of_depths",
    "late_layer_losses": "tuning.mixture_of_depths",
    "demo_problems": "data.problems",
    "read_problems": "data.problems",
    "untrained_mod": "tuning.mixture_of_depths.untrained",
    "MoDRoutingViewer": "widgets.mod",
    "KeptStates": "analysis.concepts",
    "compare_steering": "analysis.concepts",
    "SaliencyCase": "data.cases",
    "demo_cases": "data.cases",
    "AblationPanel": "widgets.ablation",
    "LogitLensExplorer": "widgets.logit_lens",
    "TokenDecompositionExplorer": "widgets.token_decomposition",
    "SaliencyExplorer": "widgets.saliency",
    "Workbench": "widgets.workbench",
}

__all__ = [
    "__version__",
    "Ablation",
    "AblationPanel",
    "AblationResult",
    "Annotation",
    "AnnotationComparison",
    "Annotator",
    "CausalTraceResult",
    "Concept",
    "ConceptAnnotations",
    "ConceptBrowser",
    "ConceptComparison",
    "ConceptMap",
    "ConceptReading",
    "ConceptSet",
    "EndpointAnnotator",
    "FFNConceptBrowser",
    "FFNConceptResult",
    "FaithfulnessResult",
    "HeadComparison",
    "HeadWordBrowser",
    "HeadWordResult",
    "KeptStates",
    "LogitLensExplorer",
    "LogitLensResult",
    "LogitShareResult",
    "MoDRoutingViewer",
    "ModModel",
    "ModReport",
    "Model",
    "ModelPair",
    "NeuronEffectResult",
    "NeuronTokenResult",
    "RoutingResult",
    "RuleAnnotator",
    "SaliencyCase",
    "SaliencyDatasetResult",
    "SaliencyExplorer",
    "SaliencyResult",
    "TokenDecompositionExplorer",
    "TokenDecompositionResult",
    "UserAnnotator",
    "WordVectors",
    "Workbench",
    "ablate_heads",
    "ablate_modules",
    "ablate_neurons",
    "ablated_prediction",
    "ablation",
    "add_to_map",
    "annotate_concepts",
    "causal_trace",
    "compare_annotations",
    "compare_concepts",
    "compare_heads",
    "compare_steering",
    "concept_directions",
    "concept_map",
    "decompose_logit",
    "decompose_prompt",
    "decompose_state",
    "decompose_tokens",
    "demo_cases",
    "demo_concepts",
    "demo_problems",
    "demo_word_vectors",
    "dispersion",
    "erase",
    "faithfulness",
    "ffn_concepts",
    "head_word_pairs",
    "importance_density",
    "instruction_score",
    "last_states",
    "late_layer_losses",
    "level_table",
    "load_demo_pair",
    "load_model",
    "load_pair",
    "load_translators",
    "logit_lens",
    "mean_ablation",
    "mod_ablations",
    "mod_grid",
    "neighbours",
    "neuron_effects",
    "neuron_tokens",
    "normalise_importance",
    "position_profile",
    "prompt_saliency",
    "read_concepts",
    "read_problems",
    "read_prompt_concepts",
    "read_word_vectors",
    "resample_ablation",
    "routing",
    "routing_speed",
    "saliency_dataset",
    "save_translators",
    "scenario_table",
    "solve",
    "steer",
    "subspace_angles",
    "tune_mod",
    "untrained_mod",
    "verb_table",
]

if TYPE_CHECKING:
    from interp_widgets.analysis.ablation import (
        Ablation,
        AblationResult,
        CausalTraceResult,
        ablate_heads,
        ablate_modules,
        ablate_neurons,
        ablated_prediction,
        ablation,
        causal_trace,
        mean_ablation,
        resample_ablation,
    )
    from interp_widgets.analysis.concepts import (
        ConceptMap,
        ConceptReading,
        ConceptSet,
        KeptStates,
        add_to_map,
        compare_steering,
        concept_directions,
        concept_map,
        decompose_prompt,
        decompose_state,
        dispersion,
        erase,
        neighbours,
        read_prompt_concepts,
        steer,
    )
    from interp_widgets.analysis.ffn_concepts import (
        AnnotationComparison,
        ConceptAnnotations,
        ConceptComparison,
        FFNConceptResult,
        NeuronEffectResult,
        NeuronTokenResult,
        annotate_concepts,
        compare_annotations,
        compare_concepts,
        ffn_concepts,
        level_table,
        neuron_effects,
        neuron_tokens,
        scenario_table,
        subspace_angles,
    )
    from interp_widgets.analysis.head_words import (
        HeadComparison,
        HeadWordResult,
        compare_heads,
        head_word_pairs,
        verb_table,
    )
    from interp_widgets.analysis.hidden_states import last_states
    from interp_widgets.analysis.logit_lens import LogitLensResult, load_translators, logit_lens, save_translators
    from interp_widgets.analysis.mod import RoutingResult, routing, routing_speed, solve
    from interp_widgets.analysis.saliency import (
        SaliencyDatasetResult,
        SaliencyResult,
        importance_density,
        instruction_score,
        normalise_importance,
        position_profile,
        prompt_saliency,
        saliency_dataset,
    )
    from interp_widgets.analysis.saliency.faithfulness import FaithfulnessResult, faithfulness
    from interp_widgets.analysis.token_decomposition import (
        LogitShareResult,
        TokenDecompositionResult,
        decompose_logit,
        decompose_tokens,
    )
    from interp_widgets.data.annotators import Annotation, Annotator, EndpointAnnotator, RuleAnnotator, UserAnnotator
    from interp_widgets.data.cases import SaliencyCase, demo_cases
    from interp_widgets.data.concepts import Concept, demo_concepts, read_concepts
    from interp_widgets.data.problems import demo_problems, read_problems
    from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors, read_word_vectors
    from interp_widgets.models import Model, ModelPair, load_demo_pair, load_model, load_pair
    from interp_widgets.models.mixture_of_depths.model import ModModel
    from interp_widgets.tuning.mixture_of_depths import ModReport, late_layer_losses, mod_ablations, mod_grid, tune_mod
    from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod
    from interp_widgets.widgets.ablation import AblationPanel
    from interp_widgets.widgets.concepts import ConceptBrowser
    from interp_widgets.widgets.ffn_concepts import FFNConceptBrowser
    from interp_widgets.widgets.head_words import HeadWordBrowser
    from interp_widgets.widgets.logit_lens import LogitLensExplorer
    from interp_widgets.widgets.mod import MoDRoutingViewer
    from interp_widgets.widgets.saliency import SaliencyExplorer
    from interp_widgets.widgets.token_decomposition import TokenDecompositionExplorer
    from interp_widgets.widgets.workbench import Workbench


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'interp_widgets' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(import_module(f"interp_widgets.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
