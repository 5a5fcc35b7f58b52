"""FFN concepts: principal directions of MLP output weights as words, single neurons, and how tuning rotated them."""

from interp_widgets.analysis._core.word_embeddings import word_table

from .annotation_comparison import AnnotationComparison, compare_annotations, level_table, scenario_table
from .annotations import ConceptAnnotations, annotate_concepts
from .components import FFNConceptResult, Sign, ffn_concepts
from .concept_comparison import ConceptComparison, compare_concepts, subspace_angles
from .neurons import NeuronEffectResult, NeuronTokenResult, neuron_effects, neuron_tokens
from .text_activations import TextActivations, TopText, text_activations
