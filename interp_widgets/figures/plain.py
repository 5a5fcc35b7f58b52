"""Static pictures of lines and of tables, for saving what a widget shows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.figures.labels import axis_name, number
from interp_widgets.figures.scene import INK, MUTED, RULE, Item, Line, Rect, Scene, Text
from interp_widgets.figures.theme import PALETTE8

_QUIET = "#c3c7cd"
_LEFT, _TOP, _BOTTOM, _RIGHT = 64.0, 56.0, 48.0, 16.0
Curve = tuple[str, ArrayLike, bool]
"""Name, numbers, and whether it is marked: only marked ones are named."""


def curves_scene(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    subtitle: str = "",
    at: ArrayLike | None = None,
    width: float = 720,
    height: float = 320,
) -> Scene:
    """Lines over the places `at`, or over 1, 2, 3…; marked ones in colour and named above the plot.

    Raises ValueError without a number.

    >>> curves_scene([("a", [0.0, 1.0], True)], title="t", x_label="x", y_label="y").width
    720
    """
    held = [(name, np.asarray(values, dtype=float), marked) for name, values, marked in curves]
    finite = np.concatenate([values[np.isfinite(values)] for _, values, _ in held] or [np.zeros(0)])
    if not finite.size:
        raise ValueError("there is no number to draw")
    low, high = min(0.0, float(finite.min())), max(0.0, float(finite.max()))
    high = high if high > low else low + 1.0
    most = max(len(values) for _, values, _ in held)
    xs = np.arange(1, most + 1) if at is None else np.asarray(at, dtype=float)
    first, last = float(xs.min()), float(xs.max())
    inner = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def point(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / ((last - first) or 1.0)
        return _LEFT + across * inner[0], _TOP + (high - y) / (high - low) * inner[1]

    items: list[Item] = [Text(_LEFT, 14, title, size=13, bold=True)]
    for value in np.linspace(low, high, 5):
        y = point(first, float(value))[1]
        items += [
            Line(_LEFT, y, width - _RIGHT, y, RULE),
            Text(_LEFT - 6, y, number(round(float(value), 3)), size=11, fill=MUTED, anchor="end"),
        ]
    for x in sorted({float(xs[round(share * (most - 1))]) for share in (0.0, 0.25, 0.5, 0.75, 1.0)}):
        items.append(Text(point(x, low)[0], height - _BOTTOM + 14, number(x), size=11, fill=MUTED, anchor="middle"))
    items += [
        Text(_LEFT + inner[0] / 2, height - 12, x_label, fill=MUTED, anchor="middle"),
        Text(14, _TOP + inner[1] / 2, y_label, fill=MUTED, anchor="middle", rotate=-90),
    ]
    color = itertools.cycle(PALETTE8)
    right = _LEFT
    for name, values, marked in sorted(held, key=lambda curve: curve[2]):
        stroke = next(color) if marked else _QUIET
        points = [point(float(x), float(value)) for x, value in zip(xs, values, strict=False)]
        items += [Line(*a, *b, stroke, 2.5 if marked else 1.0) for a, b in itertools.pairwise(points)]
        if marked:
            items += [Rect(right, 32, 14, 4, fill=stroke), Text(right + 18, 34, name, size=11)]
            right += 34 + 6.4 * len(name)
    items.append(Text(right, 34, subtitle, size=11, fill=MUTED))
    return Scene(width, height, tuple(items), title=title)


def table_scene(
    columns: Sequence[tuple[str, float]],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[int] = (),
) -> Scene:
    """A table as text: columns are (name, width in pixels), cells are cut to fit, ``right`` names those of numbers.

    >>> table_scene([("word", 80), ("n", 40)], [["dog", 1]]).height > 20
    True
    """
    top = 26.0 if title else 4.0
    width = sum(wide for _, wide in columns) + 16
    items: list[Item] = [Text(8, 12, title, size=13, bold=True)] if title else []
    lines = [[name for name, _ in columns], *rows]
    for index, cells in enumerate(lines):
        y, x = top + 10 + 20 * index, 8.0
        for place, (cell, (_, wide)) in enumerate(zip(cells, columns, strict=True)):
            text = _written(cell)
            room = int((wide - 8) / 6.4)
            text = text if len(text) <= room else text[: max(1, room - 1)] + "…"
            anchored = place in right
            items.append(
                Text(x + wide - 8 if anchored else x, y, text, size=11, bold=index == 0,
                     fill=INK, anchor="end" if anchored else "start")
            )  # fmt: skip
            x += wide
        items.append(Line(8, y + 10, width - 8, y + 10, RULE))
    return Scene(width, top + 20 * len(lines) + 8, tuple(items), title=title)


def _written(cell: object) -> str:
    if cell is None or cell == "":
        return "–"
    return number(cell) if isinstance(cell, float) else axis_name(str(cell))
