"""Which mixture of each model is looked at, above the tabs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as W

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


def mixture_boxes(panel: MoDRoutingViewer) -> list[Any]:
    """A list of mixtures for each model."""
    letters = [""] if len(panel.models) == 1 else [" A", " B"]
    boxes = [W.Dropdown(description=f"Mixture{letter}", options=[("", 0)]) for letter in letters]
    for slot, box in enumerate(boxes):
        panel.watch(box, "value", _chooser(panel, slot))
    return boxes


def fill_mixtures(panel: MoDRoutingViewer) -> None:
    """Bring the lists of mixtures up to the shelf."""
    panel.filling = True
    try:
        for slot, box in enumerate(panel.mixture_boxes):
            entries = panel.shelf.rows[slot]
            options = [(entry.name, place) for place, entry in enumerate(entries)]
            if tuple(box.options) != tuple(options):
                box.options = options
            box.value = entries.index(panel.shelf.chosen(slot))
    finally:
        panel.filling = False


def _chooser(panel: MoDRoutingViewer, slot: int) -> Callable[[Any], None]:
    def choose(change: Any) -> None:
        if panel.filling or change.new is None or panel.chosen[slot] == change.new:
            return
        chosen = [*panel.chosen]
        chosen[slot] = change.new
        with panel.hold():
            panel.chosen = chosen
            panel.adopt(slot)

    return choose
