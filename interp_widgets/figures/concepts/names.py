"""Placement of names on a map: none covers a point or another name. `views/bokeh_map.js` does the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.static.scene import text_width

MOST_NAMES = 60
"""Most names on a map at a time; zooming in shows others."""
MOST_TRIED = 1500
"""Most concepts tried for them."""
HEIGHT = 14.0
"""Size of a name in pixels."""


class PlacedName(NamedTuple):
    """A name beside its point, in pixels of the map."""

    concept: int
    left: float
    middle: float


def name_order(looks: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """(n,) the order in which concepts are named: the first of every group, then the second of every group, etc.

    >>> name_order(np.array([0, 0, 0, 1, 1])).tolist()
    [0, 3, 1, 4, 2]
    """
    by_group = np.argsort(looks, kind="stable")
    _, starts, counts = np.unique(looks[by_group], return_index=True, return_counts=True)
    within = np.empty(len(looks), dtype=int)
    within[by_group] = np.arange(len(looks)) - np.repeat(starts, counts)
    return np.lexsort((looks, within))


def placed_names(
    at: NDArray[np.floating[Any]],
    names: Sequence[str],
    order: Iterable[int],
    size: tuple[float, float],
    *,
    radius: float = 5.0,
    chosen: int | None = None,
) -> list[PlacedName]:
    """The names that fit, for concepts at these pixels (n, 2) of a map of this width and height, in order of priority.

    A name goes to the right of its point, else to the left, above or below it. That of the chosen concept, which
    comes first, may cover points if there is no room.

    >>> at = np.array([[60.0, 50.0], [72.0, 50.0], [200.0, 50.0]])
    >>> [(placed.concept, round(placed.left)) for placed in placed_names(at, ["a", "b", "c"], range(3), (300, 100))]
    [(0, 45), (1, 80), (2, 208)]
    """
    wide, tall = size
    boxes: list[tuple[float, float, float, float]] = []
    placed: list[PlacedName] = []
    for tried, index in enumerate(order):
        if len(placed) == MOST_NAMES or tried == MOST_TRIED:
            break
        x, y = at[index].tolist()
        if not (0 <= x <= wide and 0 <= y <= tall):
            continue
        width, gap = text_width(names[index], 11), radius + 3
        lines = HEIGHT / 2 + radius + 2
        inside: tuple[tuple[float, float, float, float], PlacedName] | None = None
        for left, middle in (
            (x + gap, y), (x - gap - width, y), (x - width / 2, y - lines), (x - width / 2, y + lines)
        ):  # fmt: skip
            box = (left, middle - HEIGHT / 2, left + width, middle + HEIGHT / 2)
            if box[0] < 0 or box[1] < 0 or box[2] > wide or box[3] > tall:
                continue
            if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes):
                continue
            covered = (at > np.subtract(box[:2], radius)) & (at < np.add(box[2:], radius))
            if covered.all(axis=1).any():
                inside = inside or (box, PlacedName(index, left, middle))
                continue
            break
        else:
            if index != chosen or inside is None:
                continue
            box, (_, left, middle) = inside
        boxes.append(box)
        placed.append(PlacedName(index, left, middle))
    return placed
