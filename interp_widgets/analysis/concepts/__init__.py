"""Concept directions: computing them from stimuli, testing, comparing, reading prompts with them, and steering."""

from .concept_set import ConceptSet, neighbor_agreement, neighbors
from .cosine_dispersion import Dispersion, dispersion
from .directions import concept_directions
from .maps import ConceptMap, add_to_map, concept_map, concept_map_cost
from .projection import ConceptReading, SparseReading, decompose_prompt, decompose_state, read_prompt_concepts
from .state_cache import HiddenStateCache
from .steered import SteeringComparison, SteeringSweep, compare_steering, steering_sweep
from .steering import erase, steer
from .word_baseline import word_aucs
