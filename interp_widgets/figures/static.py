"""Pictures without a browser: a heat map and a token strip as scenes, saved as SVG or PNG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.raster import own_glyphs, render_png, shorten, text_width
from interp_widgets.figures.scene import Item, Line, Pixels, Rect, Scene, Text, render_svg
from interp_widgets.figures.theme import MARK, PALETTE8, SELECT, SEQUENTIAL256, TOKENS256, hex_color, ink, lut, over

__all__ = [
    "Item", "Line", "Pixels", "Rect", "Scene", "Text",
    "heatmap_scene", "render_png", "render_svg", "save_scene", "stack_scenes", "strip_scene", "visible",
]  # fmt: skip

_INK, _MUTED, _RULE = "#1f2328", "#5c6370", "#d0d4da"
_BELOW, _ABOVE = "#2166ac", "#b2182b"  # negative and positive bars
_MARGIN = 12.0
_NAME, _SLANT = 13.0, 17.5  # least distance in pixels of two names, level and leaning by 45°
_VECTOR_CELLS = 4_000  # above this many cells a map is one stretched image instead of rectangles

_VISIBLE = {32: "·", 9: "⇥", 10: "⏎", 0xA0: "⍽"} | {k: 0x2400 + k for k in range(32) if k not in (9, 10)}


def visible(text: str) -> str:
    """A token as people should see it: blanks, tabs and newlines as marks, control characters as their pictures.

    >>> visible(" a\\n")
    '·a⏎'
    """
    return text.translate(_VISIBLE)


def axis_name(text: str) -> str:
    """A name on an axis, which may be a token or words: blanks are marked at its ends only.

    >>> axis_name(" layer 0")
    '·layer 0'
    """
    body = text.strip(" ")
    start = len(text) - len(text.lstrip(" ")) if body else 0
    return visible(text[:start]) + " ".join(map(visible, body.split(" "))) + visible(text[start + len(body) :])


def number(value: float) -> str:
    """Three significant digits.

    >>> number(0.123456), number(-2.0), number(12345.6)
    ('0.123', '−2', '12346')
    """
    if math.isnan(value):
        return "no value"
    text = f"{value:.3g}" if abs(value) < 1000 or abs(value) >= 1e6 else f"{value:.0f}"
    return text.replace("-", "−")


def brief(value: float) -> str:
    """Two significant digits, for the number in a cell.

    >>> brief(0.1234), brief(-2.04), brief(123.4)
    ('0.12', '−2', '123')
    """
    return (f"{value:.2g}" if abs(value) < 99.5 else f"{value:.0f}").replace("-", "−")


def _table(colors: Sequence[str] | bytes) -> NDArray[np.uint8]:
    packed = colors if isinstance(colors, bytes) else lut(colors)
    return np.frombuffer(packed, dtype=np.uint8).reshape(256, 4)


def _levels(values: NDArray[np.floating], vmin: float, vmax: float) -> NDArray[np.intp]:
    span = (vmax - vmin) or 1.0
    return np.clip(np.rint(np.nan_to_num((values - vmin) / span) * 255), 0, 255).astype(np.intp)


@dataclass(frozen=True)
class _Shades:
    """How numbers become the colours of a map."""

    low: float
    high: float
    table: NDArray[np.uint8]
    """(256, 4) colours from low to high."""
    log: bool = False
    """By the logarithm of 1 + number, which leaves 0 where it is."""
    reverse: bool = False
    """The lowest number stands at the upper end of the colour bar."""

    def share(self, values: NDArray[np.floating] | float) -> NDArray[np.float64]:
        """How far the numbers are on the way from low to high."""
        low, high, found = (np.log1p(np.maximum(v, 0)) if self.log else np.asarray(v) for v in
                            (self.low, self.high, values))  # fmt: skip
        return np.asarray((found - low) / ((high - low) or 1.0), dtype=np.float64)

    def levels(self, values: NDArray[np.floating]) -> NDArray[np.intp]:
        """The entries of the table for these numbers."""
        return _levels(self.share(values), 0.0, 1.0)

    def ticks(self, tall: float) -> list[float]:
        """Numbers to name beside a colour bar so many pixels tall."""
        if not self.log:
            return _ticks(self.low, self.high, tall)
        found = [self.low]
        for value in (10.0**k for k in range(300) if 10.0**k <= self.high * (1 + 1e-9)):
            apart = min(float(self.share(value) - self.share(found[-1])), float(1 - self.share(value)))
            found += [value] if apart * tall > 18 else []
        return [*found, self.high]


def save_scene(scene: Scene, path: str | Path, *, scale: float = 2.0) -> Path:
    """Write the scene as SVG or PNG, by the ending of `path`; ValueError for any other ending."""
    path = Path(path)
    if path.suffix.lower() == ".svg":
        path.write_text(render_svg(scene), encoding="utf-8")
    elif path.suffix.lower() == ".png":
        path.write_bytes(render_png(scene, scale))
    else:
        raise ValueError(f"a picture is saved as .svg or .png, got {path.name!r}")
    return path


def _moved(item: Item, right: float, down: float) -> Item:
    if isinstance(item, Line):
        return Line(item.x0 + right, item.y0 + down, item.x1 + right, item.y1 + down, item.stroke, item.width)
    return type(item)(**{**item.__dict__, "x": item.x + right, "y": item.y + down})


def stack_scenes(scenes: Iterable[Scene], *, columns: int = 1, gap: float = 8.0, title: str = "") -> Scene:
    """Several scenes below one another as one, or row by row in a grid of `columns` (at least 1)."""
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    held = list(scenes)
    items: list[Item] = []
    y = width = 0.0
    for start in range(0, len(held), columns):
        x = 0.0
        for scene in held[start : start + columns]:
            items += [_moved(item, x, y) for item in scene.items]
            x += scene.width + gap
        y += max(scene.height for scene in held[start : start + columns]) + gap
        width = max(width, x - gap)
    return Scene(width, max(1.0, y - gap), tuple(items), title=title)


# ---- token strip


def strip_scene(
    tokens: Sequence[str], values: ArrayLike | None = None, *, vmin: float | None = None, vmax: float | None = None,
    colors: Sequence[str] | bytes = TOKENS256, special: Sequence[bool] = (), density: ArrayLike | None = None,
    density_max: float = 0.0, marks: Sequence[Sequence[int]] = (), selected: int = -1, title: str = "",
    width: int = 900,
) -> Scene:  # fmt: skip
    """Tokens as running text, each shaded by its number (NaN: not), wrapped to `width` pixels.

    `density` draws a small bar under each token, `marks` underlines spans [start, end). Raises ValueError unless there
    is one number for each token.

    >>> strip_scene(["The", " cat"], [0.0, 1.0], width=200).width
    200
    """
    shade = _numbers(values, len(tokens), "values")
    bars = _numbers(density, len(tokens), "density")
    finite = shade[np.isfinite(shade)] if shade is not None else np.zeros(0)
    low = vmin if vmin is not None else float(finite.min()) if finite.size else 0.0
    high = vmax if vmax is not None else float(finite.max()) if finite.size else 1.0
    table, level = _table(colors), _levels(shade, low, high) if shade is not None else None
    line = 26.0 if bars is None else 40.0
    top = _MARGIN + (24 if title else 0)
    items: list[Item] = [Text(_MARGIN, _MARGIN + 8, title, size=13, bold=True)] if title else []
    full = density_max or (float(np.nanmax(bars)) if bars is not None and bars.size and np.any(bars > 0) else 1.0)
    x, y = _MARGIN, top
    for i, token in enumerate(tokens):
        text = shorten(visible(token), width - 2 * _MARGIN - 6, 14)
        wide = max(8.0, text_width(text, 14) + 6)
        if x + wide > width - _MARGIN and x > _MARGIN:
            x, y = _MARGIN, y + line
        fill = None
        if shade is not None and level is not None and not math.isnan(shade[i]):
            fill = hex_color(*table[level[i]].tolist())
        outlined = i < len(special) and special[i]
        border = SELECT if i == selected else _MUTED if outlined else None
        tip = "" if shade is None else f"{visible(token)}: {number(float(shade[i]))}"
        items.append(
            Rect(x, y, wide, 22, fill=fill, stroke=border, stroke_width=2 if i == selected else 1, radius=3, tip=tip)
        )
        color = ink(over(fill)) if fill else _INK
        items.append(
            Text(x + 3, y + 11, text, size=14, fill=color, length=wide - 6 if own_glyphs(text) and text else None)
        )
        if any(start <= i < end for start, end in marks):
            items.append(Line(x - 1, y + 23.5, x + wide + 1, y + 23.5, MARK, 2))
        if bars is not None:
            tall = 10 * max(0.0, min(1.0, float(np.nan_to_num(bars[i])) / full))
            bar = min(10.0, wide)  # of one width, so that the same number looks the same under every token
            color = MARK if any(start <= i < end for start, end in marks) else PALETTE8[0]
            items.append(Line(x, y + 36, x + wide, y + 36, _RULE))
            items.append(Rect(x + (wide - bar) / 2, y + 36 - tall, bar, tall, fill=color))
        x += wide + 2
        if "\n" in token:
            x, y = _MARGIN, y + line
    return Scene(width, y + line + 6, tuple(items), title=title)


def _numbers(values: ArrayLike | None, n: int, what: str) -> NDArray[np.float64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"{what} must be one number for each of the {n} tokens, got shape {array.shape}")
    return array


# ---- heat map


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
        return Scene(width, 60, (Text(_MARGIN, 30, title or "Nothing to show", fill=_MUTED),), title=title)
    finite = array[np.isfinite(array)]
    low = vmin if vmin is not None else float(finite.min()) if finite.size else 0.0
    high = vmax if vmax is not None else float(finite.max()) if finite.size else 1.0
    names = [[axis_name(str(name)) for name in labels] or [str(i) for i in range(n)]
             for labels, n in zip((row_labels, column_labels), array.shape, strict=True)]  # fmt: skip
    rows, columns = array.shape
    widths = [text_width(name) for name in names[0]]
    # one very long name must not take the room of all
    row_room = min(150.0, max(widths), max(72.0, 1.5 * float(np.quantile(widths, 0.9))))
    left = _MARGIN + (20 if y_label else 0) + row_room + 8 + (8 if row_marks else 0)
    bar_room = 0 if row_bars is None else 88
    right = bar_room + 16 + 12 + 6 + 44 + (18 if value_label else 0) + _MARGIN
    top = _MARGIN + (26 if title else 0)
    across = min(width - left - right, columns * (110 if texts else 52))
    wanted = rows * (28.0 if rows <= 12 else 20.0 if rows <= 30 else 16.0)
    down = max(48.0, min(wanted, max(520.0, rows * _NAME if rows <= 60 else 0.0)))
    frame = _Frame(left, top, across, down, rows, columns)
    items: list[Item] = [Text(_MARGIN, _MARGIN + 8, title, size=13, bold=True)] if title else []
    table = _table(colors)[::-1] if reverse else _table(colors)
    shades = _Shades(low, high, table, scale == "log", reverse)
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
    return Scene(width, top + down + below + _MARGIN, tuple(items), title=title)


def _cells(
    frame: _Frame, array: NDArray[np.float64], names: list[list[str]], shades: _Shades, texts: Sequence[str],
    numbers_from: float | None,
) -> list[Item]:  # fmt: skip
    level, table = shades.levels(array), shades.table
    border = Rect(frame.x - 0.5, frame.y - 0.5, frame.width + 1, frame.height + 1, stroke=_RULE)
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
        items.append(Text(edge, frame.row(r + 0.5), text, fill=MARK if marked else _INK, anchor="end"))
    for start, end in marks:
        items.append(Rect(frame.x - 8, frame.row(start), 4, frame.row(end) - frame.row(start), fill=MARK))
    if label:
        items.append(Text(_MARGIN + 6, frame.row(frame.rows / 2), label, fill=_MUTED, anchor="middle", rotate=-90))
    return items


def _column_axis(
    frame: _Frame, names: list[str], marks: Sequence[Sequence[int]], label: str
) -> tuple[list[Item], float]:
    widest = max(text_width(name) for name in names)
    wide, y = frame.width / frame.columns, frame.y + frame.height + (8 if marks else 0)
    fill = [MARK if any(start <= c < end for start, end in marks) else _INK for c in range(frame.columns)]
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
        items.append(Text(frame.column(frame.columns / 2), middle, label, fill=_MUTED, anchor="middle"))
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
    items.append(Line(zero - 0.5, frame.y, zero - 0.5, frame.y + frame.height, _RULE))
    y = frame.y + frame.height + 12
    left = number(-full) if signed else "0"
    items += [Text(x, y, left, fill=_MUTED), Text(x + 80, y, number(full), fill=_MUTED, anchor="end")]
    if label:
        items.append(Text(x + 40, y + 16, shorten(label, 110), fill=_MUTED, anchor="middle"))
    return items


def _ticks(low: float, high: float, tall: float) -> list[float]:
    """Both ends and round numbers between them, about 34 pixels apart and clear of the ends."""
    span = high - low
    least = span / max(2.0, tall / 34)
    if not (least > 0 and math.isfinite(least)):
        return [low]
    power = 10.0 ** math.floor(math.log10(least))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))
    inner = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step
    clear = [float(v) for v in inner if min(v - low, high - v) / span * tall > 18]
    return [low, *clear, high]


def _color_bar(frame: _Frame, x: float, shades: _Shades, label: str) -> list[Item]:
    tall, reverse = min(frame.height, 240.0), shades.reverse
    table = shades.table if reverse else shades.table[::-1]
    items: list[Item] = [Pixels(x, frame.y, 12, tall, np.ascontiguousarray(table[:, None, :]))]
    items.append(Rect(x - 0.5, frame.y - 0.5, 13, tall + 1, stroke=_RULE))
    for value in shades.ticks(tall):
        share = float(shades.share(value))
        y = frame.y + (share if reverse else 1 - share) * tall
        tiny = not shades.log and abs(value) < (shades.high - shades.low) * 1e-3
        items.append(Line(x + 13, y, x + 16, y, _MUTED))
        shown = number(0.0 if tiny else value)
        items.append(Text(x + 19, min(max(y, frame.y + 6), frame.y + tall - 6), shown, size=11, fill=_MUTED))
    if label:
        items.append(Text(x + 18 + 44 + 8, frame.y + tall / 2, label, fill=_MUTED, anchor="middle", rotate=-90))
    return items
