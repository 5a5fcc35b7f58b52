"""The picture of a heat map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.labels import axis_name, brief, fixed, number
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
from interp_widgets.figures.theme import MARK, PALETTE8, SEQUENTIAL256, hex_color, ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize

_BELOW, _ABOVE = "#2166ac", "#b2182b"  # negative and positive bars
_NAME, _SLANT = 13.0, 17.5  # least distance in pixels between two names, horizontal and rotated by 45°
_LONGEST = 110.0  # pixels of a rotated name
_CELL = 11.0  # font size of a cell's text, in pixels
_VECTOR_CELLS = 4_000  # above this many cells, a map is one stretched image instead of rectangles
Spans = Sequence[Sequence[int]]


def heatmap_scene(
    matrix: ArrayLike, row_labels: Sequence[str] = (), column_labels: Sequence[str] = (), *, title: str = "",
    x_label: str = "", y_label: str = "", value_label: str = "", vmin: float | None = None, vmax: float | None = None,
    colors: Sequence[str] | bytes = SEQUENTIAL256, row_marks: Spans = (), column_marks: Spans = (),
    row_bars: ArrayLike | None = None, row_bars_label: str = "", row_bars_max: float = 0.0,
    row_bars_signed: bool = False, texts: Sequence[str] = (), numbers_from: float | None = None,
    number_decimals: int | None = None, scale: str = "linear", reverse: bool = False, edges: Spans = (),
    crossed: Spans = (), joined: bool = False, muted: Spans = (), heads: Sequence[str] = (), heads_name: str = "",
    column_width: int = 0, width: int = 900,
) -> Scene:  # fmt: skip
    """A (rows, columns) matrix as a coloured map with thinned axis labels and a colour bar, `width` pixels wide.

    NaN is light grey. `row_bars` draws a bar beside each row (to both sides where some are or may be negative), a full
    one for `row_bars_max` or the largest, `row_marks` and `column_marks` a band along spans of rows and columns.
    Numbers of at least `numbers_from` in size are written into cells without a text, if all fit, with two significant
    digits or `number_decimals`. The scale "log"
    colours by the logarithm of 1 + number, `reverse` gives the smallest number the last colour. `edges` and `crossed`
    are cells [row, column] with a line along the upper edge and with a cross. `joined` writes equal texts below each
    other once, `muted` cells have no colour and a grey text, `heads` are lines above the columns, named `heads_name` at
    the left. With a `column_width` the picture becomes wider than `width` where its columns need it, or goes on below
    where it is `laid_out` for less. Raises ValueError unless the matrix has two axes.

    >>> heatmap_scene([[0.0, 1.0]], ["a"], ["x", "y"], title="t").title
    't'
    """
    width = int(fitted(width))
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2:
        raise ValueError(f"a heat map needs a (rows, columns) matrix, got shape {array.shape}")
    if not array.size:
        empty = title or "Nothing to show"
        return Scene(width, 60, lambda sheet: sheet.text(MARGIN, 30, empty, color=MUTED), title=title)
    bars = None if row_bars is None else _Bars.of(row_bars, len(array), row_bars_label, row_bars_max, row_bars_signed)
    rows = _Axis.of(row_labels, array.shape[0], row_marks, y_label)
    columns = _Axis.of(column_labels, array.shape[1], column_marks, x_label)
    norm, colormap = shading(array, colors, vmin, vmax, log=scale == "log", reverse=reverse)
    cells = _Cells(array, norm, colormap, texts, numbers_from, number_decimals, edges, crossed, joined, muted)
    legend = _Legend(norm, value_label, log=scale == "log", reverse=reverse)
    head_names = heads_name.split("\n") if heads else []
    return _Map(title, rows, columns, cells, legend, bars, heads, head_names).scene(width, column_width)


@dataclass(frozen=True)
class _Map:
    """A heat map by its parts."""

    title: str
    rows: _Axis
    columns: _Axis
    cells: _Cells
    legend: _Legend
    bars: _Bars | None
    heads: Sequence[str]
    """The lines above every column."""
    head_names: Sequence[str]
    """What each of these lines is."""

    def scene(self, width: int, column_width: int) -> Scene:
        """The picture, wider than `width` where columns of `column_width` need it, or in parts below each other."""
        layout, most = _Layout.of(self, width, column_width), fitted(math.inf)
        if layout.width > most and self.columns.count > 1:
            fit = max(1, self.columns.count - math.ceil((layout.width - most) / column_width))
            each = math.ceil(self.columns.count / math.ceil(self.columns.count / fit))
            parts = [self._part(start, start + each) for start in range(0, self.columns.count, each)]
            return stack_scenes([part.scene(width, column_width) for part in parts], title=self.title)

        def draw(sheet: Sheet) -> None:
            if self.title:
                sheet.title(self.title, layout.width)
            self._draw_heads(sheet, layout)
            axes = sheet.axes(layout.left, layout.top, layout.across, layout.down)
            cells = self.cells.draw(sheet, axes, (self.rows.tips, self.columns.tips), layout)
            self._draw_names(axes, layout)
            self._draw_marks(axes, layout)
            self._draw_labels(sheet, layout)
            if self.bars is not None:
                self.bars.draw(sheet, layout, self.rows.marked)
            self.legend.draw(sheet, cells, layout)

        return Scene(layout.width, layout.height, draw, title=self.title)

    def _part(self, start: int, end: int) -> _Map:
        """The map of these columns; only the first part has the title."""
        return replace(
            self, title="" if start else self.title, columns=self.columns.part(start, end),
            cells=self.cells.part(start, end), heads=self.heads[start:end],
        )  # fmt: skip

    def _draw_heads(self, sheet: Sheet, layout: _Layout) -> None:
        for line, name in enumerate(self.head_names):
            y = layout.top + 4 - 16 * (len(self.head_names) - line)
            sheet.text(layout.left - 6, y, name, color=MUTED, ha="right")
            for column, head in enumerate(self.heads):
                text = " ".join(_fit(axis_name((head.split("\n") + [""] * line)[line]), layout.wide - 4, 12))
                x = layout.left + (column + 0.5) * layout.wide
                sheet.text(x, y, text, color=MUTED if line else INK, ha="center")

    def _draw_names(self, axes: Axes, layout: _Layout) -> None:
        """The names of rows and columns, as many as there is room for."""
        rows, columns = self.rows, self.columns
        shown = range(0, rows.count, _step(max((_NAME - 0.5) / layout.tall, rows.count / 60)))
        axes.set_yticks([r + 0.5 for r in shown], [shorten(rows.names[r], layout.row_room) for r in shown])
        axes.tick_params(length=0, pad=(6 + 8 * bool(rows.marks)) * POINT)
        _colour(axes.get_yticklabels(), rows.marked[shown])
        shown = range(0, columns.count, 1 if layout.level else _step(max(_SLANT / layout.wide, columns.count / 60)))
        room = [
            _LONGEST if layout.level else min(_LONGEST, (layout.left + (c + 0.5) * layout.wide) / 0.7071) for c in shown
        ]
        lean: dict[str, Any] = {} if layout.level else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        names = [shorten(columns.names[c], at) for c, at in zip(shown, room, strict=True)]
        axes.set_xticks([c + 0.5 for c in shown], names, **lean)
        axes.tick_params("x", pad=(5 + 8 * bool(columns.marks)) * POINT)
        _colour(axes.get_xticklabels(), columns.marked[shown])

    def _draw_marks(self, axes: Axes, layout: _Layout) -> None:
        """Bands along the marked rows and columns."""
        band: dict[str, Any] = {"color": MARK, "lw": 4 * POINT, "solid_capstyle": "butt", "clip_on": False}
        for start, end in self.rows.marks:
            axes.plot([-6 / layout.wide] * 2, [start, end], **band)
        for start, end in self.columns.marks:
            axes.plot([start, end], [self.rows.count + 6 / layout.tall] * 2, **band)

    def _draw_labels(self, sheet: Sheet, layout: _Layout) -> None:
        x, y = layout.left + layout.across / 2, layout.top + layout.down / 2
        sheet.text(MARGIN + 6, y, self.rows.label, color=MUTED, ha="center", rotation=90)
        sheet.text(x, layout.top + layout.down + layout.below + 8, self.columns.label, color=MUTED, ha="center")


@dataclass(frozen=True)
class _Layout:
    """Sizes of a map and its cells, and the room around them, in pixels."""

    width: int
    """Of the whole picture."""
    height: float
    left: float
    top: float
    across: float
    """Width of all cells together, from `left` on."""
    down: float
    """Height of all cells together, from `top` on."""
    wide: float
    """Width of a cell."""
    tall: float
    """Height of a cell."""
    row_room: float
    """Longest name of a row."""
    level: bool
    """Whether the names of the columns are horizontal, else rotated by 45°."""
    below: float
    """Height of the names of the columns."""
    bar_room: int
    """Width of the bars beside the rows."""

    @classmethod
    def of(cls, picture: _Map, width: int, column_width: int) -> _Layout:
        """The layout in a picture that is `width` wide, or wider where the columns need it."""
        rows, columns, head_names, title = picture.rows, picture.columns, picture.head_names, picture.title
        # one very long name must not take up all the room
        widths = [text_width(name) for name in rows.names]
        row_room = min(150.0, max(widths), max(72.0, 1.5 * float(np.quantile(widths, 0.9))))
        row_room = max([row_room, *map(text_width, head_names)])
        left = MARGIN + (20 if rows.label else 0) + row_room + 8 + (8 if rows.marks else 0)
        bar_room = 0 if picture.bars is None else 88
        right = bar_room + 16 + 12 + 6 + 44 + (18 if picture.legend.label else 0) + MARGIN
        top = MARGIN + (26 if title else 0) + (16 * len(head_names) + 4 if head_names else 0)
        width = max(width, math.ceil(left + right + columns.count * column_width))
        across = min(width - left - right, columns.count * max(110 if picture.cells.texts else 52, column_width))
        down = max(48.0, min(rows.count * (28.0 if rows.count <= 12 else 20.0 if rows.count <= 30 else 16.0),
                             max(520.0, rows.count * _NAME if rows.count <= 60 else 0.0)))  # fmt: skip
        wide, tall = across / columns.count, down / rows.count
        width = round(min(width, max(left + across + right, text_width(title, 15) + 2 * MARGIN)))
        longest = max(map(text_width, columns.names))
        level = longest <= wide - 6
        below = 22.0 if level else min(longest, _LONGEST) * 0.7071 + 14
        below += 8 if columns.marks else 0
        under = max(below + (20 if columns.label else 0), 36 if picture.bars is not None else 0)
        height = top + down + under + MARGIN
        return cls(width, height, left, top, across, down, wide, tall, row_room, level, below, bar_room)


@dataclass(frozen=True)
class _Axis:
    """The rows or the columns of a map."""

    names: Sequence[str]
    count: int
    marks: Spans
    """[start, end) of the marked ones."""
    label: str
    """What they are."""
    first: int = 0
    """The index of the first of them."""

    @classmethod
    def of(cls, labels: Sequence[str], count: int, marks: Spans, label: str) -> _Axis:
        """Named by these labels, or else by their numbers."""
        return cls([axis_name(str(name)) for name in labels] or [str(i) for i in range(count)], count, marks, label)

    def part(self, start: int, end: int) -> _Axis:
        """Some of them, in a row."""
        names = self.names[start:end]
        marks = [(max(first, start) - start, min(last, end) - start) for first, last in self.marks
                 if first < end and last > start]  # fmt: skip
        return _Axis(names, len(names), marks, self.label, start)

    @property
    def tips(self) -> list[str]:
        """Their names with their indices."""
        return [name if name == str(i) else f"{name} ({i})" for i, name in enumerate(self.names, start=self.first)]

    @property
    def marked(self) -> NDArray[np.bool_]:
        """(count,) whether each one is in a marked span."""
        inside = np.zeros(self.count, dtype=bool)
        for start, end in self.marks:
            inside[start:end] = True
        return inside


@dataclass(frozen=True)
class _Cells:
    """The cells of a map: their colours, what is written into them, and the marks on them."""

    array: NDArray[np.float64]
    norm: Normalize
    colormap: Colormap
    texts: Sequence[str]
    numbers_from: float | None
    decimals: int | None
    edges: Spans
    crossed: Spans
    joined: bool
    muted: Spans

    def part(self, start: int, end: int) -> _Cells:
        """The cells of some columns."""
        columns = self.array.shape[1]
        edges, crossed, muted = (
            [(r, c - start) for r, c in spots if start <= c < end] for spots in (self.edges, self.crossed, self.muted)
        )
        texts = [text for at, text in enumerate(self.texts) if start <= at % columns < end]
        return replace(
            self, array=self.array[:, start:end], texts=texts, edges=edges, crossed=crossed, muted=muted
        )  # fmt: skip

    def draw(self, sheet: Sheet, axes: Axes, names: Sequence[Sequence[str]], layout: _Layout) -> Any:
        """Draw the cells of these rows and columns; returns what the legend is made for."""
        rows, columns = self.array.shape
        if self.array.size > _VECTOR_CELLS:
            look: dict[str, Any] = {"interpolation": "none", "aspect": "auto", "extent": (0, columns, rows, 0)}
            drawn: Any = axes.imshow(self.array, norm=self.norm, cmap=self.colormap, **look)
        else:
            drawn = self._draw_rectangles(axes, layout)
            sheet.tip(drawn, _tips(self.array, names))
            self._write(axes, layout)
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        axes.spines[:].set(visible=True)
        self._mark(axes, layout)
        return drawn

    def _draw_rectangles(self, axes: Axes, layout: _Layout) -> Any:
        from matplotlib.patches import Rectangle

        # pale lines between the cells, or else edges in their own colours against hairlines of the page
        lined = min(layout.wide, layout.tall) >= 18 and not self.joined
        edge, thick = ("#eceef0", POINT) if lined else ("face", 0.6)
        drawn = axes.pcolormesh(self.array, norm=self.norm, cmap=self.colormap, edgecolors=edge, lw=thick)
        for r, c in self.muted:
            axes.add_patch(Rectangle((c, r), 1, 1, facecolor="white", edgecolor=edge if lined else "white", lw=thick))
        return drawn

    def _write(self, axes: Axes, layout: _Layout) -> None:
        fills = self.colormap(self.norm(self.array))
        for r, c in self.muted:
            fills[r, c] = 1.0
        # crosses in upper corners must not lie on texts: a single line stands so many pixels under the middle
        lower = 3 if self.crossed and layout.tall >= 26 else 0
        if self.joined:
            self._write_runs(axes, fills, layout, lower)
        else:
            self._write_cells(axes, fills, layout, lower)

    def _write_cells(self, axes: Axes, fills: NDArray[np.float64], layout: _Layout, lower: float) -> None:
        """Texts, else numbers."""
        array, texts, wide, tall = self.array, self.texts, layout.wide, layout.tall
        if wide < 20 or tall < 12:
            return

        def number(value: float) -> str:
            return brief(value) if self.decimals is None else fixed(value, self.decimals)

        # all numbers or none: a truncated number would be misread
        least = math.inf if self.numbers_from is None else self.numbers_from
        roomy = all(text_width(number(float(value)), _CELL) <= wide - 4 for value in array[np.abs(array) >= least])
        for k, ((r, c), value) in enumerate(np.ndenumerate(array)):
            lines = _fit(axis_name(texts[k]), wide - 6, tall) if texts and texts[k] else []
            if not (texts and texts[k]) and roomy and abs(value) >= least:
                lines = [number(float(value))]
            for line, text in enumerate(lines):
                y = r + 0.5 + (4 + (line - (len(lines) - 1) / 2) * 12 + lower * (len(lines) == 1)) / tall
                color = ink(hex_color(*255 * fills[r, c]))
                axes.text(c + 0.5, y, text, ha="center", fontsize=_CELL * POINT, color=color)

    def _write_runs(self, axes: Axes, fills: NDArray[np.float64], layout: _Layout, lower: float) -> None:
        """Each text once for its run of equal texts below each other, with lines between the runs."""
        texts, wide, tall = self.texts, layout.wide, layout.tall
        rows, columns, _ = fills.shape
        pale = {(r, c) for r, c in self.muted}
        lined = wide >= 18
        for c in range(columns):
            alike = [(texts[r * columns + c] if texts else "", (r, c) in pale) for r in range(rows)]
            starts = [r for r in range(rows) if not r or alike[r] != alike[r - 1]]
            written = False
            for start, end in zip(starts, [*starts[1:], rows], strict=True):
                text, is_pale = alike[start]
                above, written = written, text != "" and (end - start) * tall >= 11.5  # as high as a line
                if lined and start and (written or above):
                    axes.plot([c, c + 1], [start, start], color="#eceef0", lw=POINT)
                if not written or wide < 20:
                    continue
                middle = (start + end - 1) // 2
                color = MUTED if is_pale else ink(hex_color(*255 * fills[middle, c]))
                lines = _fit(axis_name(text), wide - 6, (end - start) * tall)
                centre = middle + 0.5 + lower / tall if tall >= 12 and len(lines) == 1 else (start + end) / 2
                for line, shown in enumerate(lines):
                    y = centre + (4 + (line - (len(lines) - 1) / 2) * 12) / tall
                    axes.text(c + 0.5, y, shown, ha="center", fontsize=_CELL * POINT, color=color)
            if lined and c:
                axes.plot([c, c], [0, rows], color="#eceef0", lw=POINT)

    def _mark(self, axes: Axes, layout: _Layout) -> None:
        """Lines along upper edges and crosses in upper right corners, light with a dark rim to show on every colour."""
        from matplotlib.patheffects import withStroke

        wide, tall = layout.wide, layout.tall
        if min(wide, tall) < 6:
            return
        size = max(2.0, min(3.5, wide / 6, tall / 6))
        for r, c in self.edges:
            rim = [withStroke(linewidth=4 * POINT, foreground="#222222")]
            axes.plot(
                [c + 3 / wide, c + 1 - 3 / wide], [r + 1 / tall] * 2, color="white", lw=2 * POINT, path_effects=rim
            )
        if self.crossed:
            r, c = np.array(self.crossed).T
            rim = [withStroke(linewidth=3.6 * POINT, foreground="#222222")]
            x, y = c + 1 - (size + 2.5) / wide, r + (size + 2.5) / tall
            cross: dict[str, Any] = {"markersize": 2 * size * POINT, "markeredgewidth": 1.6 * POINT}
            axes.plot(x, y, "x", color="white", path_effects=rim, **cross)


@dataclass(frozen=True)
class _Bars:
    """A bar beside each row."""

    values: NDArray[np.float64]
    label: str
    most: float
    """A full bar; the largest one for 0."""
    signed: bool
    """Whether they may go to both sides."""

    @classmethod
    def of(cls, values: ArrayLike, count: int, label: str, most: float, signed: bool) -> _Bars:
        """The bars of `count` rows; ValueError for another number of them."""
        bars = np.asarray(values, dtype=np.float64)
        if bars.shape != (count,):
            raise ValueError(f"row_bars must be one number for each of the {count} rows, got shape {bars.shape}")
        return cls(bars, label, most, signed)

    def draw(self, sheet: Sheet, layout: _Layout, marked: NDArray[np.bool_]) -> None:
        """Draw them at the right of the cells, those of marked rows in the colour of marks."""
        bars, x, top, down = self.values, layout.left + layout.across + 8, layout.top, layout.down
        full = self.most or float(np.abs(bars[np.isfinite(bars)]).max(initial=0)) or 1.0
        values = np.clip(np.nan_to_num(bars), -full, full)
        signed = self.signed or bool((values < 0).any())
        plain = np.where(values < 0, _BELOW, _ABOVE) if signed else np.full(len(values), PALETTE8[0])
        axes = sheet.axes(x, top, 80, down, xlim=(-full if signed else 0, full), ylim=(len(values), 0))
        tall = down / len(values)
        thick = 1 - 2 / tall if tall >= 6 else 1.0
        axes.barh(np.arange(len(values)) + 0.5, values, thick, color=np.where(marked, MARK, plain).tolist())
        axes.axvline(0, color=RULE, lw=POINT)
        axes.set_axis_off()
        sheet.text(x, top + down + 12, number(-full) if signed else "0", color=MUTED)
        sheet.text(x + 80, top + down + 12, number(full), color=MUTED, ha="right")
        sheet.text(x + 40, top + down + 28, shorten(self.label, 110), color=MUTED, ha="center")


@dataclass(frozen=True)
class _Legend:
    """The colour bar."""

    norm: Normalize
    label: str
    log: bool
    reverse: bool

    def draw(self, sheet: Sheet, cells: Any, layout: _Layout) -> None:
        """Draw it at the right of the cells, and of the bars beside them."""
        tall = min(layout.down, 240.0)
        x = layout.left + layout.across + layout.bar_room + 16
        color_bar = sheet.figure.colorbar(cells, cax=sheet.axes(x, layout.top, 12, tall))
        if color_bar.solids is not None:  # 256 rectangles otherwise
            color_bar.solids.set(rasterized=True, edgecolor="face")
        color_bar.outline.set(edgecolor=RULE)
        ticks = _ticks(float(self.norm.vmin or 0), float(self.norm.vmax or 0), tall, log=self.log)
        color_bar.set_ticks(ticks, labels=[number(value) for value in ticks], fontsize=11 * POINT, color=MUTED)
        color_bar.ax.tick_params(length=2, pad=2)
        if self.reverse:
            color_bar.ax.invert_yaxis()
        unit = shorten(self.label, layout.height - 8)
        middle = max(layout.top + tall / 2, 4 + text_width(unit) / 2)  # a long unit may be taller than the bar
        sheet.text(x + 66, middle, unit, color=MUTED, ha="center", rotation=90)


def _tips(array: NDArray[np.float64], names: Sequence[Sequence[str]]) -> list[str]:
    rows, columns = names
    return [f"{rows[r]} → {columns[c]}: {number(float(value))}" for (r, c), value in np.ndenumerate(array)]


def _fit(text: str, room: float, tall: float) -> list[str]:
    """The lines of a cell's text. For "a → b" both sides are shown: on two lines if they do not fit on one, or both
    cut."""
    left, arrow, right = text.partition(" → ")
    if not arrow or text_width(text, _CELL) <= room:
        line = shorten(text, room, _CELL)
        return [line] if _is_readable(line, text) else []
    if tall >= 26:
        return [shorten(left, room, _CELL), shorten(f"→{right}", room, _CELL)]
    rest = room - text_width(arrow, _CELL)
    pairs = (left, right), (right, left)
    cut = [shorten(side, max(rest / 2, rest - text_width(other, _CELL)), _CELL) for side, other in pairs]
    return [arrow.join(cut)] if _is_readable(cut[0], left) and _is_readable(cut[1], right) else []


def _is_readable(part: str, whole: str) -> bool:
    """Whether a shortened text is still readable: more than a space and an ellipsis."""
    return part == whole or len(part) > 2


def _colour(labels: Sequence[Any], marked: NDArray[np.bool_]) -> None:
    for label, is_marked in zip(labels, marked, strict=True):
        label.set_color(MARK if is_marked else INK)


def _step(least: float) -> int:
    """The smallest of 1, 2, 3, 4, 5, 10, 20, 50, 100, … that is not below `least`."""
    if least <= 5:
        return max(1, math.ceil(least))
    return next(step * 10**power for power in range(1, 9) for step in (1, 2, 5) if step * 10**power >= least)


def _ticks(low: float, high: float, tall: float, *, log: bool) -> list[float]:
    """Both ends and round numbers between them, or powers of ten, without overlap."""
    from matplotlib.ticker import MaxNLocator

    shares = np.log1p if log else np.asarray
    powers = [10.0**k for k in range(300) if low < 10.0**k < high] if log else []
    places = MaxNLocator(max(1, int(tall / 34)), steps=(1, 2, 5, 10)).tick_values(low, high)
    inner = powers if log else [0.0 if abs(v) < (high - low) * 1e-9 else float(v) for v in places]
    ticks = [low]
    for value in inner:
        apart = min(float(shares(value) - shares(ticks[-1])), float(shares(high) - shares(value)))
        ticks += [value] if apart * tall > 18 * float(shares(high) - shares(low)) else []
    return [*ticks, high]
