"""The inputs above the tabs: the prompt, which mixture, and how many routes a token uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from ..base.controls import row

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


def build_controls(panel: MoDRoutingViewer) -> list[Any]:
    """Rows of the inputs of the Route tab."""
    prompt = panel.bind(W.Textarea(description="Prompt", continuous_update=False, rows=3), "prompt")
    prompt.add_class("iw-grow")
    letters = [""] if len(panel.models) == 1 else [" A", " B"]
    panel.mixture_boxes = [W.Dropdown(description=f"Mixture{letter}", options=[("", 0)]) for letter in letters]
    panel.filling = False
    for slot, box in enumerate(panel.mixture_boxes):
        panel.watch(box, "value", _chooser(panel, slot))
    routes = panel.bind(
        W.BoundedIntText(
            description="Routes per token", min=0, max=max(int(model.n_layers) for model in panel.models),
            tooltip="How many routes each token uses here, by the largest weights; 0: as many as it was tuned with",
        ),
        "routes",
    )  # fmt: skip
    routes.add_class("iw-short")
    hint = W.HTML("0: as tuned")
    hint.add_class("iw-hint")
    return [row(prompt), row(*panel.mixture_boxes, routes, hint)]


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
