"""The picture of a heat map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.labels import axis_name, brief, number
from interp_widgets.figures.raster import shorten, text_width
from interp_widgets.figures.scene import INK, MARGIN, MUTED, RULE, Item, Line, Pixels, Rect, Scene, Text
from interp_widgets.figures.shades import Shades, table_of
from interp_widgets.figures.theme import MARK, PALETTE8, SEQUENTIAL256, hex_color, ink, over

_BELOW, _ABOVE = "#2166ac", "#b2182b"  # negative and positive bars
_NAME, _SLANT = 13.0, 17.5  # least distance in pixels of two names, level and leaning by 45°
_VECTOR_CELLS = 4_000  # above this many cells a map is one stretched image instead of rectangles


@dataclass(frozen=True)
class _Frame:
    """Where the cells of a map lie, in pixels."""

    x: float
    y: float
    width: float
    height: float
    rows: int
    columns: int

    def column(self, c: float) -> float:
        return self.x + c * self.width / self.columns

    def row(self, r: float) -> float:
        return self.y + r * self.height / self.rows


def heatmap_scene(
    matrix: ArrayLike, row_labels: Sequence[str] = (), column_labels: Sequence[str] = (), *, title: str = "",
    x_label: str = "", y_label: str = "", value_label: str = "", vmin: float | None = None, vmax: float | None = None,
    colors: Sequence[str] | bytes = SEQUENTIAL256, row_marks: Sequence[Sequence[int]] = (),
    column_marks: Sequence[Sequence[int]] = (), row_bars: ArrayLike | None = None, row_bars_label: str = "",
    row_bars_max: float = 0.0, row_bars_signed: bool = False, texts: Sequence[str] = (),
    numbers_from: float | None = None, scale: str = "linear", reverse: bool = False,
    edges: Sequence[Sequence[int]] = (), crossed: Sequence[Sequence[int]] = (), width: int = 900,
) -> Scene:  # fmt: skip
    """A (rows, columns) matrix as a coloured map with thinned axis labels and a colour bar, `width` pixels wide.

    NaN is light grey. `row_bars` draws a bar beside each row (to both sides where some are or may be negative), a full
    one for `row_bars_max` or the largest, `row_marks` and `column_marks` a band along spans of rows and columns.
    Numbers of at least `numbers_from` in size are written into cells without a text, if all fit. The scale "log"
    colours by the logarithm of 1 + number, `reverse` gives the smallest number the last colour. `edges` and `crossed`
    are cells [row, column] with a line along the upper edge and with a cross. Raises ValueError unless the matrix has
    two axes.

    >>> heatmap_scene([[0.0, 1.0]], ["a"], ["x", "y"], title="t").title
    't'
    """
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2:
        raise ValueError(f"a heat map needs a (rows, columns) matrix, got shape {array.shape}")
    if not array.size:
        return Scene(width, 60, (Text(MARGIN, 30, title or "Nothing to show", fill=MUTED),), title=title)
    finite = array[np.isfinite(array)]
    low = vmin if vmin is not None else float(finite.min()) if finite.size else 0.0
    high = vmax if vmax is not None else float(finite.max()) if finite.size else 1.0
    names = [[axis_name(str(name)) for name in labels] or [str(i) for i in range(n)]
             for labels, n in zip((row_labels, column_labels), array.shape, strict=True)]  # fmt: skip
    rows, columns = array.shape
    widths = [text_width(name) for name in names[0]]
    # one very long name must not take the room of all
    row_room = min(150.0, max(widths), max(72.0, 1.5 * float(np.quantile(widths, 0.9))))
    left = MARGIN + (20 if y_label else 0) + row_room + 8 + (8 if row_marks else 0)
    bar_room = 0 if row_bars is None else 88
    right = bar_room + 16 + 12 + 6 + 44 + (18 if value_label else 0) + MARGIN
    top = MARGIN + (26 if title else 0)
    across = min(width - left - right, columns * (110 if texts else 52))
    wanted = rows * (28.0 if rows <= 12 else 20.0 if rows <= 30 else 16.0)
    down = max(48.0, min(wanted, max(520.0, rows * _NAME if rows <= 60 else 0.0)))
    frame = _Frame(left, top, across, down, rows, columns)
    items: list[Item] = [Text(MARGIN, MARGIN + 8, title, size=13, bold=True)] if title else []
    table = table_of(colors)[::-1] if reverse else table_of(colors)
    shades = Shades(low, high, table, scale == "log", reverse)
    items += _cells(frame, array, names, shades, texts, numbers_from)
    items += _cell_marks(frame, edges, crossed)
    items += _row_axis(frame, names[0], row_room, row_marks, y_label)
    labels, room = _column_axis(frame, names[1], column_marks, x_label)
    items += labels
    if row_bars is not None:
        bars = np.asarray(row_bars, dtype=np.float64)
        items += _side_bars(frame, bars, row_marks, row_bars_label, row_bars_max, row_bars_signed)
    items += _color_bar(frame, frame.x + across + bar_room + 16, shades, value_label)
    below = max(room, 36 if row_bars is not None else 0)
    return Scene(width, top + down + below + MARGIN, tuple(items), title=title)


def _cells(
    frame: _Frame, array: NDArray[np.float64], names: list[list[str]], shades: Shades, texts: Sequence[str],
    numbers_from: float | None,
) -> list[Item]:  # fmt: skip
    level, table = shades.levels(array), shades.table
    border = Rect(frame.x - 0.5, frame.y - 0.5, frame.width + 1, frame.height + 1, stroke=RULE)
    if array.size > _VECTOR_CELLS:
        pixels = table[level].copy()
        pixels[np.isnan(array)] = (225, 227, 230, 255)
        return [Pixels(frame.x, frame.y, frame.width, frame.height, pixels), border]
    items: list[Item] = []
    gap = 0.5 if min(frame.width / frame.columns, frame.height / frame.rows) >= 18 else 0.0
    wide, tall = frame.width / frame.columns, frame.height / frame.rows
    # all numbers or none: one that is cut off is another number
    least = math.inf if numbers_from is None else numbers_from
    roomy = all(text_width(brief(float(value))) <= wide - 4 for value in array[np.abs(array) >= least])
    for (r, c), value in np.ndenumerate(array):
        fill = "#e1e3e6" if math.isnan(value) else hex_color(*table[level[r, c]].tolist())
        row, column = (name if name == str(i) else f"{name} ({i})" for name, i in ((names[0][r], r), (names[1][c], c)))
        tip = f"{row} → {column}: {number(float(value))}"
        x, y = frame.column(c), frame.row(r)
        items.append(Rect(x + gap, y + gap, wide - 2 * gap, tall - 2 * gap, fill=fill, tip=tip))
        text = texts[r * frame.columns + c] if texts else ""
        lines = _fit(axis_name(text), wide - 6, tall) if text else []
        if not text and roomy and abs(value) >= least:
            lines = [brief(float(value))]
        for k, line in enumerate(lines if wide >= 20 and tall >= 12 else []):
            middle = y + tall / 2 + (k - (len(lines) - 1) / 2) * 12
            items.append(Text(x + wide / 2, middle, line, fill=ink(over(fill)), anchor="middle"))
    return [*items, border]


def _fit(text: str, room: float, tall: float) -> list[str]:
    """The lines of a cell's text. Of "a → b" both sides must be told: on two lines if they do not fit on one, or both
    cut."""
    left, arrow, right = text.partition(" → ")
    if not arrow or text_width(text) <= room:
        one = shorten(text, room)
        return [one] if _told(one, text) else []
    if tall >= 26:
        return [shorten(left, room), shorten(f"→{right}", room)]
    rest = room - text_width(arrow)
    cut = [shorten(side, max(rest / 2, rest - text_width(other))) for side, other in ((left, right), (right, left))]
    return [arrow.join(cut)] if _told(cut[0], left) and _told(cut[1], right) else []


def _told(part: str, whole: str) -> bool:
    """Whether what is left of a text says something: more than a blank and an ellipsis."""
    return part == whole or len(part) > 2


def _cell_marks(frame: _Frame, edges: Sequence[Sequence[int]], crossed: Sequence[Sequence[int]]) -> list[Item]:
    """Lines along upper edges and crosses in upper right corners, dark under light to show on every colour."""
    if min(frame.width / frame.columns, frame.height / frame.rows) < 6:
        return []
    size = max(2.0, min(3.5, frame.width / frame.columns / 6, frame.height / frame.rows / 6))
    items: list[Item] = []
    for color, more in (("#222222", 2.0), ("#ffffff", 0.0)):
        reach = more / 2
        for r, c in edges:
            y = frame.row(r) + 1
            items.append(Line(frame.column(c) + 3 - reach, y, frame.column(c + 1) - 3 + reach, y, color, 2 + more))
        for r, c in crossed:
            x, y, arm = frame.column(c + 1) - size - 2.5, frame.row(r) + size + 2.5, size + reach / 2
            items.append(Line(x - arm, y - arm, x + arm, y + arm, color, 1.6 + more))
            items.append(Line(x - arm, y + arm, x + arm, y - arm, color, 1.6 + more))
    return items


def _step(least: float) -> int:
    """The smallest of 1, 2, 3, 4, 5, 10, 20, 50, 100, … that is not below `least`."""
    if least <= 5:
        return max(1, math.ceil(least))
    return next(step * 10**power for power in range(1, 9) for step in (1, 2, 5) if step * 10**power >= least)


def _row_axis(frame: _Frame, names: list[str], room: float, marks: Sequence[Sequence[int]], label: str) -> list[Item]:
    items: list[Item] = []
    edge = frame.x - 6 - (8 if marks else 0)
    for r in range(0, frame.rows, _step(max((_NAME - 0.5) * frame.rows / frame.height, frame.rows / 60))):
        marked = any(start <= r < end for start, end in marks)
        text = shorten(names[r], room)
        items.append(Text(edge, frame.row(r + 0.5), text, fill=MARK if marked else INK, anchor="end"))
    for start, end in marks:
        items.append(Rect(frame.x - 8, frame.row(start), 4, frame.row(end) - frame.row(start), fill=MARK))
    if label:
        items.append(Text(MARGIN + 6, frame.row(frame.rows / 2), label, fill=MUTED, anchor="middle", rotate=-90))
    return items


def _column_axis(
    frame: _Frame, names: list[str], marks: Sequence[Sequence[int]], label: str
) -> tuple[list[Item], float]:
    widest = max(text_width(name) for name in names)
    wide, y = frame.width / frame.columns, frame.y + frame.height + (8 if marks else 0)
    fill = [MARK if any(start <= c < end for start, end in marks) else INK for c in range(frame.columns)]
    items: list[Item] = [
        Rect(frame.column(start), y - 4, frame.column(end) - frame.column(start), 4, fill=MARK) for start, end in marks
    ]
    if widest <= wide - 6:
        for c, name in enumerate(names):
            items.append(Text(frame.column(c + 0.5), y + 12, name, fill=fill[c], anchor="middle"))
        room = 22.0
    else:
        for c in range(0, frame.columns, _step(max(_SLANT / wide, frame.columns / 60))):
            x = frame.column(c + 0.5) + 4
            text = shorten(names[c], min(110.0, x / 0.7071))
            items.append(Text(x, y + 8, text, fill=fill[c], anchor="end", rotate=-45))
        room = min(widest, 110.0) * 0.7071 + 14
    room += 8 if marks else 0
    if label:
        middle = frame.y + frame.height + room + 8
        items.append(Text(frame.column(frame.columns / 2), middle, label, fill=MUTED, anchor="middle"))
        room += 20
    return items, room


def _side_bars(
    frame: _Frame, bars: NDArray[np.float64], marks: Sequence[Sequence[int]], label: str, most: float, signed: bool,
) -> list[Item]:  # fmt: skip
    if bars.shape != (frame.rows,):
        raise ValueError(f"row_bars must be one number for each of the {frame.rows} rows, got shape {bars.shape}")
    values = np.nan_to_num(bars)
    x, full, tall = frame.x + frame.width + 8, most or float(np.abs(values).max()) or 1.0, frame.height / frame.rows
    signed = signed or bool((values < 0).any())
    gap, zero, reach = 1.0 if tall >= 6 else 0.0, x + 40 if signed else x, 39.0 if signed else 78.0
    items: list[Item] = []
    for r, value in enumerate(values.tolist()):
        marked = any(start <= r < end for start, end in marks)
        color = MARK if marked else (_BELOW if value < 0 else _ABOVE) if signed else PALETTE8[0]
        long = reach * min(1.0, abs(value) / full)
        start = zero - long if value < 0 else zero
        items.append(Rect(start, frame.row(r) + gap, long, tall - 2 * gap, fill=color))
    items.append(Line(zero - 0.5, frame.y, zero - 0.5, frame.y + frame.height, RULE))
    y = frame.y + frame.height + 12
    left = number(-full) if signed else "0"
    items += [Text(x, y, left, fill=MUTED), Text(x + 80, y, number(full), fill=MUTED, anchor="end")]
    if label:
        items.append(Text(x + 40, y + 16, shorten(label, 110), fill=MUTED, anchor="middle"))
    return items


def _color_bar(frame: _Frame, x: float, shades: Shades, label: str) -> list[Item]:
    tall, reverse = min(frame.height, 240.0), shades.reverse
    table = shades.table if reverse else shades.table[::-1]
    items: list[Item] = [Pixels(x, frame.y, 12, tall, np.ascontiguousarray(table[:, None, :]))]
    items.append(Rect(x - 0.5, frame.y - 0.5, 13, tall + 1, stroke=RULE))
    for value in shades.ticks(tall):
        share = float(shades.share(value))
        y = frame.y + (share if reverse else 1 - share) * tall
        tiny = not shades.log and abs(value) < (shades.high - shades.low) * 1e-3
        items.append(Line(x + 13, y, x + 16, y, MUTED))
        shown = number(0.0 if tiny else value)
        items.append(Text(x + 19, min(max(y, frame.y + 6), frame.y + tall - 6), shown, size=11, fill=MUTED))
    if label:
        items.append(Text(x + 18 + 44 + 8, frame.y + tall / 2, label, fill=MUTED, anchor="middle", rotate=-90))
    return items
