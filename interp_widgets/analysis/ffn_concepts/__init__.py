"""FFN concepts: principal directions of MLP output weights as words, single neurons, and what tuning rotated."""

from __future__ import annotations

from .annotate import annotate_concepts
from .annotation_comparison import AnnotationComparison, compare_annotations
from .annotations import ConceptAnnotations
from .components import ffn_concepts
from .components_result import FFNConceptResult, Sign
from .concept_comparison import ConceptComparison, compare_concepts, subspace_angles
from .effects import NeuronEffectResult, neuron_effects
from .neurons import NeuronTokenResult, neuron_tokens
from .tables import level_table, scenario_table

__all__ = [
    "AnnotationComparison",
    "ConceptAnnotations",
    "ConceptComparison",
    "FFNConceptResult",
    "NeuronEffectResult",
    "NeuronTokenResult",
    "Sign",
    "annotate_concepts",
    "compare_annotations",
    "compare_concepts",
    "ffn_concepts",
    "level_table",
    "neuron_effects",
    "neuron_tokens",
    "scenario_table",
    "subspace_angles",
]
