"""The colour and shape of each group of concepts, the same in the page and in a saved picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.theme import PALETTE8


class Look(NamedTuple):
    """Colour, and Bokeh's name of the shape."""

    colour: str
    shape: str


SHAPES = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
"""Bokeh's and matplotlib's names of each shape."""
LOOKS = (*(Look(colour, shape) for shape in SHAPES for colour in PALETTE8), Look(QUIET, "circle"))
"""The looks of the 32 largest groups, 8 colours with each shape, and of all others."""
OTHERS = len(LOOKS) - 1


def group_looks(groups: Sequence[str]) -> tuple[NDArray[np.integer[Any]], list[str]]:
    """The index in `LOOKS` of each entry, and the legend's label of each look; empty for unused looks.

    The largest groups come first; entries without a group count as others.

    >>> group_looks(["a", "b", "b", ""])[0].tolist()
    [1, 0, 0, 32]
    """
    names, inverse, counts = np.unique(np.array(groups, dtype=str), return_inverse=True, return_counts=True)
    order = [int(i) for i in np.argsort(-counts, kind="stable") if names[i]]
    named = order[:OTHERS]
    looks = np.full(len(names), OTHERS)
    looks[named] = np.arange(len(named))
    labels = [short_name(str(names[i])) for i in named] + [""] * (OTHERS - len(named))
    rest = len(order) - len(named)
    last = f"{rest} other groups" if rest else "no group" if "" in names else ""
    return looks[inverse], [*labels, last]


def short_name(text: str, longest: int = 18) -> str:
    """A name cut to fit a legend."""
    text = axis_name(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
