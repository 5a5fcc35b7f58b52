"""The map of concept directions: in the page and as a static picture."""

from __future__ import annotations

from .groups import group_colours
from .map import ConceptMapFigure
from .picture import concept_map_scene

__all__ = ["ConceptMapFigure", "concept_map_scene", "group_colours"]
