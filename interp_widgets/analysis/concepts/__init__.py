"""Concept directions: made from stimuli, tested, compared, read off prompts, and used to steer."""

from __future__ import annotations

from .concept_set import ConceptSet, neighbour_agreement, neighbours
from .cosine_dispersion import Dispersion, dispersion
from .directions import concept_directions
from .maps import ConceptMap, add_to_map, concept_map, concept_map_cost
from .projection import ConceptReading, SparseReading, decompose_prompt, decompose_state, read_prompt_concepts
from .state_cache import KeptStates
from .steered import SteeringComparison, compare_steering
from .steering import erase, steer

__all__ = [
    "ConceptMap",
    "ConceptReading",
    "ConceptSet",
    "Dispersion",
    "KeptStates",
    "SparseReading",
    "SteeringComparison",
    "add_to_map",
    "compare_steering",
    "concept_directions",
    "concept_map",
    "concept_map_cost",
    "decompose_prompt",
    "decompose_state",
    "dispersion",
    "erase",
    "neighbour_agreement",
    "neighbours",
    "read_prompt_concepts",
    "steer",
]
