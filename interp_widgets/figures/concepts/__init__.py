"""The map of concept directions: in the page and as a static picture."""

from __future__ import annotations

from .groups import LOOKS, group_looks
from .map import ConceptMapFigure
from .picture import concept_map_scene

__all__ = ["LOOKS", "ConceptMapFigure", "concept_map_scene", "group_looks"]
