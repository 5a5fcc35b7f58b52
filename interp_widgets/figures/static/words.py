"""Pictures of words: a strip of tokens, two texts token under token, and a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.labels import axis_name, in_column, number, visible
from interp_widgets.figures.static.scene import (
    INK,
    MARGIN,
    MUTED,
    POINT,
    RULE,
    Scene,
    Sheet,
    fitted,
    shading,
    shorten,
    stack_scenes,
    text_width,
)
from interp_widgets.figures.theme import MARK, PALETTE8, SELECT, TOKENS256, hex_color, ink

_WORD = 14.0  # font size of a token in pixels
_CELL = 11.0  # and of a cell of a table
_ARC_ROOM = 22.0  # above each line where there are arcs


def strip_scene(
    tokens: Sequence[str], values: ArrayLike | None = None, *, vmin: float | None = None, vmax: float | None = None,
    colors: Sequence[str] | bytes = TOKENS256, special: Sequence[bool] = (), density: ArrayLike | None = None,
    density_max: float = 0.0, marks: Sequence[Sequence[int]] = (), selected: int = -1, title: str = "",
    arcs: Sequence[Sequence[float]] = (), width: int = 900,
) -> Scene:  # fmt: skip
    """Tokens as running text, each shaded by its number (NaN: not), wrapped to `width` pixels.

    `density` draws a small bar under each token, `marks` underlines spans [start, end), `arcs` are (from, to,
    share of the full width), in a signed range those above 0 in another colour. Raises ValueError unless there
    is one number for each token.

    >>> strip_scene(["The", " cat"], [0.0, 1.0], width=200).width
    200
    """
    width = int(fitted(width))
    shade, bars = _numbers(values, len(tokens), "values"), _numbers(density, len(tokens), "density")
    names = [visible(token) for token in tokens]
    texts = [shorten(name, width - 2 * MARGIN - 6, _WORD) for name in names]
    room = _ARC_ROOM if len(arcs) else 0.0
    line = (26.0 if bars is None else 40.0) + room
    x, y = MARGIN, MARGIN + room + (24 if title else 0)
    boxes = np.zeros((len(tokens), 3))  # left, top, width
    for i, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        wide = max(8.0, text_width(text, _WORD) + 6)
        if x + wide > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + line
        boxes[i] = x, y, wide
        x += wide + 2
        if "\n" in token:
            x, y = MARGIN, y + line
    height = y + line - room + 6
    marked = np.zeros(len(tokens), dtype=bool)
    for start, end in marks:
        marked[start:end] = True
    borders = [SELECT if i == selected else MUTED if any(special[i : i + 1]) else "none" for i in range(len(tokens))]

    def draw(sheet: Sheet) -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import FancyBboxPatch, PathPatch

        if title:
            sheet.title(title, width)
        if not tokens:
            return
        axes = sheet.pixels(width, height)
        shape = "round,pad=0,rounding_size=3"
        patches = axes.add_collection(PatchCollection([FancyBboxPatch((x, y), w, 22, shape) for x, y, w in boxes]))
        fills = np.zeros((len(tokens), 4))
        if shade is not None:
            norm, colormap = shading(shade, colors, vmin, vmax)
            known = np.isfinite(shade)
            fills[known] = colormap(norm(shade[known]))
            sheet.tip(patches, [f"{name}: {number(value)}" for name, value in zip(names, shade.tolist(), strict=True)])
        patches.set(facecolor=fills, edgecolor=borders)
        patches.set_linewidth([2 * POINT if i == selected else POINT for i in range(len(tokens))])
        for (x, y, wide), text, fill in zip(boxes, texts, fills, strict=True):
            color = ink(hex_color(*255 * fill)) if fill[3] else INK
            axes.text(x + wide / 2, y + 16, text, ha="center", fontsize=_WORD * POINT, color=color)
        for start, end, share in arcs:
            color = MARK if share > 0 and (vmin or 0) < 0 else SELECT
            path = _arc(boxes[int(start)], boxes[int(end)])
            width_of = (0.75 + 5 * min(1.0, abs(share))) * POINT
            axes.add_patch(PathPatch(path, fill=False, edgecolor=color, lw=width_of, alpha=0.75, capstyle="round"))
        left, top, wide = boxes.T
        axes.hlines(top[marked] + 23.5, (left - 1)[marked], (left + wide + 1)[marked], colors=MARK, lw=2 * POINT)
        if bars is not None:
            full = density_max or (float(np.nanmax(bars)) if np.any(bars > 0) else 1.0)
            tall = 10 * np.clip(np.nan_to_num(bars) / full, 0, 1)
            axes.hlines(top + 36, left, left + wide, colors=RULE, lw=POINT)
            # of the same width, so that the same number looks the same under every token
            middle, foot, fill = left + wide / 2, top + 36, np.where(marked, MARK, PALETTE8[0])
            axes.vlines(middle, foot - tall, foot, colors=fill.tolist(), lw=np.minimum(10, wide) * POINT)

    return Scene(width, height, draw, title=title)


def aligned_scene(
    upper: Sequence[str], lower: Sequence[str], columns: Sequence[Sequence[int]], *, names: Sequence[str] = ("", ""),
    selected: int = -1, title: str = "", width: int = 900,
) -> Scene:  # fmt: skip
    """Two texts, token under token, wrapped to `width` pixels: columns are [upper, lower] tokens, -1 for none.

    Tokens without a partner and pairs that differ are underlined, and the column of the `selected` upper token is
    framed; before any two tokens are paired, nothing is underlined.

    >>> aligned_scene(["a", "b"], ["a", "c"], [[0, 0], [1, 1]], width=200).width
    200
    """
    width = int(fitted(width))
    texts = [[shorten(visible(token), width - 2 * MARGIN - 6, _WORD) for token in side] for side in (upper, lower)]
    paired = any(first >= 0 and second >= 0 for first, second in columns)
    x, y = MARGIN, MARGIN + (24 if title else 0)
    start = x + max(text_width(name, _CELL) for name in names) + 8 * any(names)
    x, placed = start, []  # left, top, width and the two texts of each column
    for first, second in columns:
        pair = [texts[side][at] if at >= 0 else "–" * paired for side, at in enumerate((first, second))]
        wide = max(8.0, *(text_width(text, _WORD) + 6 for text in pair))
        if x + wide > width - MARGIN and x > start:
            x, y = start, y + 58
        marked = paired and (first < 0 or second < 0 or upper[first] != lower[second])
        placed.append((x, y, wide, pair, marked, (first, second)))
        x += wide + 2
    height = y + 58

    def draw(sheet: Sheet) -> None:
        if title:
            sheet.title(title, width)
        axes = sheet.pixels(width, height)
        for row, name in enumerate(names):
            axes.text(MARGIN, MARGIN + (24 if title else 0) + 16 + 24 * row, name, fontsize=_CELL * POINT, color=MUTED)
        for left, top, wide, pair, marked, column in placed:
            for row, text in enumerate(pair):
                known = column[row] >= 0
                color = INK if known else MUTED
                axes.text(left + wide / 2, top + 16 + 24 * row, text, ha="center", fontsize=_WORD * POINT, color=color)
                if marked and known:
                    axes.hlines(top + 21.5 + 24 * row, left + 1, left + wide - 1, colors=MARK, lw=2 * POINT)
            if 0 <= selected == column[0]:
                ends = [left, left + wide, left + wide, left, left], [top - 1, top - 1, top + 49, top + 49, top - 1]
                axes.plot(*ends, color=SELECT, lw=2 * POINT)

    return Scene(width, height, draw, title=title)


def _arc(start: NDArray[np.float64], end: NDArray[np.float64]) -> Any:
    """The path between two boxes (left, top, width): above their line, or to the lower edge of a box further up."""
    from matplotlib.path import Path

    x, to, top, low = start[0] + start[2] / 2, end[0] + end[2] / 2, start[1], end[1] + 22
    if start[1] == end[1]:
        rise, aside = top - min(1.25 * _ARC_ROOM, 12 + abs(to - x) / 20), 10.0 * (x == to)
        points = [(x - aside / 2, top), (x - aside, rise), (to + aside, rise), (to + aside / 2, top)]
    else:
        points = [(x, top), (x, (top + low) / 2), (to, (top + low) / 2), (to, low)]
    return Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])


def _numbers(values: ArrayLike | None, n: int, what: str) -> NDArray[np.float64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"{what} must be one number for each of the {n} tokens, got shape {array.shape}")
    return array


def table_scene(
    columns: Sequence[tuple[str, float]],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[int] = (),
) -> Scene:
    """A table as text: columns are (name, width in pixels), cells are cut to fit, ``right`` lists numeric columns.

    Where the picture is `laid_out` for less, the columns that do not fit go on below, beside the first one again.

    >>> table_scene([("word", 80), ("n", 40)], [["dog", 1]]).height > 20
    True
    """
    names, most = [name for name, _ in columns], fitted(math.inf) - 2 * MARGIN
    cells = list(map(_column, zip(*rows, strict=True))) or [[] for _ in columns]
    widths = [min(wide, 0.5 * most) for _, wide in columns]
    parts = _parts(widths, most)
    return stack_scenes(
        [
            _table([names[k] for k in part], [cells[k] for k in part], [widths[k] for k in part],
                   title="" if number else title, right=[at for at, k in enumerate(part) if k in right], most=most)
            for number, part in enumerate(parts)
        ],
        title=title,
    )  # fmt: skip


def _parts(widths: Sequence[float], most: float) -> list[list[int]]:
    """The columns of each part of a table, the first column in all of them."""
    parts = [[0]]
    for column in range(1, len(widths)):
        if sum(widths[k] for k in parts[-1]) + widths[column] > most:
            parts.append([0])
        parts[-1].append(column)
    return parts


def _table(
    names: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[float], *, title: str, right: Sequence[int],
    most: float,
) -> Scene:  # fmt: skip
    top, lines = 32.0 if title else 4.0, [names, *zip(*cells, strict=True)]
    wide = max(sum(widths), min(text_width(title, 15), most))
    width, height = wide + 2 * MARGIN, top + 20 * len(lines) + 8

    def draw(sheet: Sheet) -> None:
        if title:
            sheet.title(title, width)
        for index, cells in enumerate(lines):
            y, x = top + 10 + 20 * index, MARGIN
            for column, (cell, wide) in enumerate(zip(cells, widths, strict=True)):
                at, ha = (x + wide - 8, "right") if column in right else (x, "left")
                color = INK if index else MUTED
                sheet.text(at, y, shorten(cell, wide - 8, _CELL), size=_CELL, ha=ha, color=color)
                x += wide
        below = top + 20 + 20 * np.arange(len(lines))
        sheet.pixels(width, height).hlines(below, MARGIN, width - MARGIN, colors=RULE, lw=POINT)

    return Scene(width, height, draw, title=title)


def _column(cells: Sequence[object]) -> list[str]:
    """The cells of a column as text, its numbers with the same decimals."""
    numbers = iter(in_column([cell for cell in cells if isinstance(cell, float)]))
    return [
        next(numbers) if isinstance(cell, float) else "–" if cell is None or cell == "" else axis_name(str(cell))
        for cell in cells
    ]
