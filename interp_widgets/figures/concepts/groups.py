"""Which colour each group of concepts has, the same in the page and in a saved picture, and which names have room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.static.scene import text_width
from interp_widgets.figures.theme import PALETTE8

GROUP_COLOURS = (*PALETTE8, QUIET)
"""Of the 8 largest groups and of all others."""


def group_colours(groups: Sequence[str]) -> tuple[NDArray[np.integer[Any]], list[str]]:
    """The colour of each entry (0..7 of the 8-colour set, 8 for all others) and what a legend says of each colour.

    The largest groups get the colours in the order of their size; entries without a group are among the others.

    >>> group_colours(["a", "b", "b", ""])[0].tolist()
    [1, 0, 0, 8]
    """
    names, inverse, counts = np.unique(np.array(groups, dtype=str), return_inverse=True, return_counts=True)
    order = [int(i) for i in np.argsort(-counts, kind="stable") if names[i]]
    own = order[: len(PALETTE8)]
    colours = np.full(len(names), len(PALETTE8))
    colours[own] = np.arange(len(own))
    labels = [short_name(str(names[i])) for i in own] + [""] * (len(PALETTE8) - len(own))
    rest = len(order) - len(own)
    last = f"{rest} other groups" if rest else "no group" if "" in names else ""
    return colours[inverse], [*labels, last]


def short_name(text: str, longest: int = 18) -> str:
    """A name cut to fit a legend."""
    text = axis_name(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def room_for_names(at: NDArray[np.floating[Any]], names: Sequence[str], *, size: float = 12.0) -> list[bool]:
    """Which names can stand beside their places (n, 2), in pixels, without covering one that stands before them.

    >>> room_for_names(np.array([[0.0, 0.0], [5.0, 3.0], [0.0, 40.0]]), ["one", "two", "three"])
    [True, False, True]
    """
    boxes: list[tuple[float, float, float]] = []
    fits = []
    for (left, low), name in zip(at.tolist(), names, strict=True):
        right = left + text_width(name, size) + size
        free = all(right < start or left > end or abs(low - y) > 1.25 * size for start, end, y in boxes)
        fits.append(free)
        if free:
            boxes.append((left, right, low))
    return fits
