"""FFN concepts: principal directions of MLP output weights as words, single neurons, and what tuning rotated."""

from __future__ import annotations

from .annotations import ConceptAnnotations, annotate_concepts
from .compare import ConceptComparison, compare_concepts, subspace_angles
from .concepts import ffn_concepts
from .effects import NeuronEffectResult, neuron_effects
from .neurons import NeuronTokenResult, neuron_tokens
from .result import FFNConceptResult, Sign

__all__ = [
    "ConceptAnnotations",
    "ConceptComparison",
    "FFNConceptResult",
    "NeuronEffectResult",
    "NeuronTokenResult",
    "Sign",
    "annotate_concepts",
    "compare_concepts",
    "ffn_concepts",
    "neuron_effects",
    "neuron_tokens",
    "subspace_angles",
]
