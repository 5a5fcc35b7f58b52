"""A matrix in the browser as a coloured map with labelled axes, cell cursor, zoom and pan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import traitlets as t
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.static import Scene, heatmap_scene
from interp_widgets.figures.theme import DIVERGING256, DIVERGING_DARK256, SEQUENTIAL256, SEQUENTIAL_DARK256, lut
from interp_widgets.widgets.views.base import (
    View,
    bytes_floats,
    check_spans,
    data_range,
    float_bytes,
    is_cell,
    view_source,
    view_style,
)
from interp_widgets.widgets.views.token_strip import TokenStrip

_PLAIN, _PLAIN_DARK = lut(SEQUENTIAL256), lut(SEQUENTIAL_DARK256)
ROUNDING = 1e-6
"""What zooming in the browser may add to the number of rows or columns."""
_SIGNED, _SIGNED_DARK = lut(DIVERGING256), lut(DIVERGING_DARK256)


def _is_cell(heat: Heatmap, value: Any) -> bool:
    return is_cell(value, heat.shape)


def _is_window(heat: Heatmap, value: Any) -> bool:
    """Whether a value from a page is empty, or the ends of a part of the map, up to the rounding of zooming."""
    if value == []:
        return True
    if not (isinstance(value, list) and len(value) == 4 and all(type(end) in (int, float) for end in value)):
        return False
    ends = zip(value[:2], value[2:], heat.shape, strict=True)
    return all(-ROUNDING <= start < end <= size + ROUNDING for start, end, size in ends)


@dataclass(frozen=True)
class Colours:
    """The colours of a map: one number per cell, NaN if not computed, and their scale."""

    matrix: NDArray[np.float64]
    vmin: float
    vmax: float
    label: str
    """Name and unit, for the colour bar."""
    signed: bool = False
    scale: str = "linear"
    reverse: bool = False


class Heatmap(View):
    """A map of numbers up to 2,000 × 300 cells and more; cells without a number (NaN) are hatched.

    A click or the arrow keys move the cursor `cross`, click or Enter pins a cell, Esc clears both; Ctrl and wheel,
    the keys + − 0 or the buttons zoom, a drag moves. Cells smaller than a pixel show the strongest of those they cover.

    >>> heat = Heatmap(title="Importance", row_name="prompt token", column_name="response")
    >>> heat.set_matrix([[0.0, 1.0], [2.0, 3.0]], rows=["a", "b"], columns=["x", "y"])
    >>> heat.shape, heat.vmin, heat.vmax
    ([2, 2], 0.0, 3.0)
    """

    _esm = view_source("heatmap")
    _css = view_style("heatmap")
    exported = True

    strips: tuple[TokenStrip, TokenStrip] | None = None
    """The strips of the rows' and the columns' tokens, if there are any: in a page saved by `export_html` a column
    of the map then shades the row tokens and rows shade the column tokens, as a panel does in the notebook."""

    shape = t.List(t.Int(), default_value=[0, 0]).tag(sync=True)
    """[rows, columns]."""
    data = t.Bytes(b"").tag(sync=True)
    """float32, row by row; NaN is "no number". See `set_matrix`."""
    vmin = t.Float(0.0).tag(sync=True)
    vmax = t.Float(1.0).tag(sync=True)
    lut = t.Bytes(_PLAIN).tag(sync=True)
    """1,024 bytes: the 256 colours of the range vmin..vmax."""
    lut_dark = t.Bytes(_PLAIN_DARK).tag(sync=True)
    """The colours of the range on a dark page; empty: as on a light page."""
    scale = t.Enum(("linear", "log"), default_value="linear").tag(sync=True)
    """How numbers become colours; ``log``: by the logarithm of 1 + number, for ranks and counts from 0 on."""
    reverse = t.Bool(False).tag(sync=True)
    """Whether the smallest number gets the last colour and the top of the colour bar: for ranks."""
    row_labels = t.List(t.Unicode()).tag(sync=True)
    column_labels = t.List(t.Unicode()).tag(sync=True)
    row_name = t.Unicode("row").tag(sync=True)
    """The name of a row in the tooltip, such as "prompt token"."""
    column_name = t.Unicode("column").tag(sync=True)
    x_label = t.Unicode("").tag(sync=True)
    y_label = t.Unicode("").tag(sync=True)
    titled_by = ("title", "value_label", "y_label", "heads_name")
    title = t.Unicode("").tag(sync=True)
    value_label = t.Unicode("").tag(sync=True)
    """Unit or name of the numbers, at the colour bar and in the tooltip."""
    texts = t.List(t.Unicode()).tag(sync=True)
    """A short text of each cell, row by row, drawn where it fits; may be empty. Of ``a → b`` both sides are shortened
    to fit, or stand on two lines."""
    joined = t.Bool(False).tag(sync=True)
    """Whether equal texts below each other are written once, across all of their cells."""
    muted = t.List(t.List(t.Int())).tag(sync=True)
    """Cells [row, column] without a colour, whose texts are grey."""
    heads = t.List(t.Unicode()).tag(sync=True)
    """What stands above each column, one or more lines; may be empty."""
    heads_name = t.Unicode("").tag(sync=True)
    """The names of these lines, as many lines."""
    column_width = t.Int(0).tag(sync=True)
    """Least width of a column in pixels: if not all columns fit, those around the cursor are in view, the others are a
    scroll away; 0: all are in view, however narrow."""
    numbers_from = t.Float(None, allow_none=True).tag(sync=True)
    """Numbers of at least this size are written into cells that have no text, if they all fit; None: none are."""
    number_decimals = t.Int(None, allow_none=True).tag(sync=True)
    """Decimals of these numbers; None: two significant digits."""
    notes = t.List(t.Unicode()).tag(sync=True)
    """What tooltip and readout say about each cell besides its number, row by row; may be empty."""
    edges = t.List(t.List(t.Int())).tag(sync=True)
    """Cells [row, column] with a line along their upper edge: where something begins."""
    crossed = t.List(t.List(t.Int())).tag(sync=True)
    """Cells [row, column] with a small cross in their corner."""
    row_marks = t.List(t.List(t.Int())).tag(sync=True)
    """Spans [start, end) of rows shown by a band (instruction spans)."""
    column_marks = t.List(t.List(t.Int())).tag(sync=True)
    mark_name = t.Unicode("marked").tag(sync=True)
    """The name of a mark, for tooltip and readout."""
    row_bars = t.Bytes(b"").tag(sync=True)
    """float32 number of each row, drawn as bars beside the rows, to both sides where some are negative; empty: none.
    See `set_row_bars`."""
    row_bars_max = t.Float(0.0).tag(sync=True)
    """The number a full bar stands for; 0: the largest in size."""
    row_bars_signed = t.Bool(False).tag(sync=True)
    """Whether there is room for negative bars even where there is none."""
    row_bars_label = t.Unicode("").tag(sync=True)
    cross = t.List(t.Int()).tag(sync=True, from_page=_is_cell)
    """[row, column] of the cursor, or empty; -1 in the place of either marks a whole column or row."""
    pinned = t.List(t.Int()).tag(sync=True, from_page=_is_cell)
    """[row, column] of the pinned cell, or empty."""
    hovered = t.List(t.Int()).tag(sync=True, from_page=_is_cell)
    """[row, column] under the pointer, or empty; sent by the browser only while `live_hover` is on."""
    live_hover = t.Bool(False).tag(sync=True)
    window = t.List(t.Float()).tag(sync=True, from_page=_is_window)
    """[first row, first column, last row, last column] of the part in view (ends excluded), or empty for all (with
    a `column_width`, for all rows and the columns that fit)."""
    height = t.Int(0).tag(sync=True)
    """Height of the drawing in pixels; 0: by the number of rows, the cells up to `max_height` (or what
    up to 60 rows with a name each take)."""
    max_height = t.Int(520).tag(sync=True)
    color_bar = t.Bool(True).tag(sync=True)
    empty = t.Unicode("Nothing to show yet").tag(sync=True)
    """Text shown when there are no cells."""

    def __repr__(self) -> str:
        return f"Heatmap({' × '.join(map(str, self.shape))}, title={self.title!r})"

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def set_matrix(
        self, matrix: ArrayLike | None, *, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None,
        vmin: float | None = None, vmax: float | None = None, signed: bool = False, texts: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Show another (rows, columns) matrix (None: empty), coloured from `vmin` to `vmax` or over its own range.

        `signed` makes the range symmetric about 0 and the colours blue–white–red (on a dark page 0 has the colour of
        its ground). Labels not given stay if their number still fits. Raises ValueError when the matrix has no two axes
        or labels and axes differ in length.
        """
        array = np.zeros((0, 0), np.float32) if matrix is None else np.asarray(matrix, dtype=np.float32)
        if array.ndim != 2:
            raise ValueError(f"a heat map needs a (rows, columns) matrix, got shape {array.shape}")
        row_labels = _labels(rows, self.row_labels, array.shape[0], "rows")
        column_labels = _labels(columns, self.column_labels, array.shape[1], "columns")
        for what, strings in (("texts", texts), ("notes", notes)):
            if strings and len(strings) != array.size:
                raise ValueError(f"{what} must hold one string for each of the {array.size} cells, got {len(strings)}")
        low, high = data_range(array, signed=signed)
        with self.hold_sync():
            if list(array.shape) != self.shape:
                self.window, self.cross, self.pinned, self.hovered = [], [], [], []
                self.row_marks, self.column_marks, self.row_bars, self.edges, self.crossed = [], [], b"", [], []
                self.muted, self.heads = [], []
            self.lut, self.lut_dark = (_SIGNED, _SIGNED_DARK) if signed else (_PLAIN, _PLAIN_DARK)
            self.vmin, self.vmax = low if vmin is None else float(vmin), high if vmax is None else float(vmax)
            self.row_labels, self.column_labels = row_labels, column_labels
            self.texts, self.notes = list(texts), list(notes)
            self.shape, self.data = list(array.shape), float_bytes(array)

    @property
    def matrix(self) -> NDArray[np.float32]:
        """(rows, columns) the numbers shown."""
        return bytes_floats(self.data).reshape(self.shape)

    def set_row_bars(
        self, values: ArrayLike | None, *, maximum: float = 0.0, label: str | None = None, signed: bool = False
    ) -> None:
        """Draw a bar beside each row (None: none); `maximum` is the number of a full bar, 0 the largest in size.

        Negative bars go to the left; `signed` keeps room for them even where there is none, so that two maps compare.
        Raises ValueError unless there is one number for each row.
        """
        array = np.zeros(0, np.float32) if values is None else np.asarray(values, dtype=np.float32)
        if values is not None and array.shape != (self.shape[0],):
            raise ValueError(f"row bars must be one number for each of the {self.shape[0]} rows, got {array.shape}")
        with self.hold_sync():
            self.row_bars_max, self.row_bars_signed, self.row_bars = float(maximum), signed, float_bytes(array)
            if label is not None:
                self.row_bars_label = label

    def set_row_marks(self, spans: Sequence[Sequence[int]]) -> None:
        """Mark the spans [start, end) of rows; ValueError when one lies outside the rows."""
        self.row_marks = check_spans(spans, self.shape[0], "row marks")

    def scene(self, *, width: int = 900) -> Scene:
        """The whole map as a static picture `width` pixels wide, on a light page."""
        return heatmap_scene(
            self.matrix, self.row_labels, self.column_labels, title=self.title, x_label=self.x_label,
            y_label=self.y_label, value_label=self.value_label, vmin=self.vmin, vmax=self.vmax, colors=self.lut,
            scale=self.scale, reverse=self.reverse, edges=self.edges, crossed=self.crossed,
            row_marks=self.row_marks, column_marks=self.column_marks,
            row_bars=bytes_floats(self.row_bars) if self.row_bars else None, row_bars_label=self.row_bars_label,
            row_bars_max=self.row_bars_max, row_bars_signed=self.row_bars_signed, texts=self.texts,
            numbers_from=self.numbers_from, number_decimals=self.number_decimals, width=width, joined=self.joined,
            muted=self.muted, heads=self.heads, heads_name=self.heads_name, column_width=self.column_width,
        )  # fmt: skip


def _labels(labels: Sequence[str] | None, current: list[str], n: int, what: str) -> list[str]:
    if labels is None:
        return current if len(current) == n else []
    if len(labels) != n:
        raise ValueError(f"{what} must hold one label for each of the {n} {what}, got {len(labels)}")
    return [str(label) for label in labels]
