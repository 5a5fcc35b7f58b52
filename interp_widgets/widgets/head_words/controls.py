"""The inputs of the head word browser: words and vectors, how many of them count, colour and search."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from interp_widgets.analysis.head_words.word_pairs import MOST_KEEP, MOST_TOP

from ..base.controls import row
from ..base.word_source import word_controls
from .numbers import COLOURS
from .request import SavedHeads


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    top = panel.bind(
        W.BoundedIntText(description="Top K", min=1, max=MOST_TOP,
                         tooltip="Words that a dimension reacts to most, as query and as key, that may form pairs"),
        "top",
    )  # fmt: skip
    keep = panel.bind(
        W.BoundedIntText(description="Keep", min=1, max=MOST_KEEP, tooltip="Pairs kept of each head and dimension"),
        "keep",
    )
    for box in (top, keep):
        box.add_class("iw-short")
    names = [name for name in COLOURS if name != "change" or len(panel.models) > 1]
    color = panel.bind(W.Dropdown(description="Colour", options=[(COLOURS[name], name) for name in names]), "color")
    word = panel.bind(
        W.Text(description="Find word", continuous_update=False, placeholder="which heads have it?"), "word"
    )
    if isinstance(panel.models[0], SavedHeads):  # its words are what they are
        return [row(color, word)]
    return [row(*word_controls(panel)), row(top, keep, color, word)]
