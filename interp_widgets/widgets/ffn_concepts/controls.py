"""The inputs of the FFN concept browser: which layer, how many components and words, and the prompt of the neurons."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from ..base.controls import row, shown_if
from ..base.word_source import word_controls

SIDES = {
    "sides": "each side for itself",
    "both": "both sides together",
    "+": "the positive side",
    "-": "the negative side",
}
"""Which words of a component the table lists."""


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    layers = min(model.n_layers for model in panel.models)
    layer = panel.bind(
        W.IntSlider(description="Layer", min=0, max=max(layers - 1, 1), disabled=layers == 1, continuous_update=True),
        "layer",
    )
    return [row(layer, *_listing(panel)), *_words(panel), _prompt(panel)]


def _listing(panel: Any) -> list[Any]:
    """What is listed of the held components; none of these runs the model."""
    listed = panel.bind(
        W.BoundedIntText(description="Components", min=1, max=10_000,
                         tooltip="How many of the first components are listed, annotated and compared"),
        "components",
    )  # fmt: skip
    listed.add_class("iw-short")
    sides = panel.bind(
        W.Dropdown(description="Words of", options=[(label, value) for value, label in SIDES.items()]), "sides"
    )

    def fit(_: Any = None) -> None:
        shown_if(listed, panel.tab != "neurons")
        shown_if(sides, panel.tab != "neurons")

    panel.watch(panel, "tab", fit)
    fit()
    return [listed, sides]


def _words(panel: Any) -> list[Any]:
    """What a new run computes."""
    rank = panel.bind(
        W.BoundedIntText(description="Rank", min=1, max=100_000,
                         tooltip="Components computed; at most as many as the model has directions"),
        "rank",
    )  # fmt: skip
    top = panel.bind(W.BoundedIntText(description="Words each", min=1, max=1000), "top")
    for box in (rank, top):
        box.add_class("iw-short")
    line = row(rank, top, *word_controls(panel))

    def fit(_: Any = None) -> None:
        shown_if(line, panel.tab != "neurons" and not panel.saved)

    panel.watch(panel, "tab", fit)
    fit()
    return [line]


def _prompt(panel: Any) -> W.VBox:
    """The prompt on which neurons are watched."""
    box = W.VBox([] if panel.saved else panel.text_inputs())
    box.add_class("iw-column")

    def fit(_: Any = None) -> None:
        shown_if(box, panel.tab == "neurons")

    panel.watch(panel, "tab", fit)
    fit()
    return box
