"""Many small maps in the browser, such as the attention patterns of all heads: one of them is selected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import traitlets as t
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.static import Scene, heatmap_scene
from interp_widgets.figures.theme import DIVERGING256, DIVERGING_DARK256, SEQUENTIAL256, SEQUENTIAL_DARK256, lut
from interp_widgets.widgets.views.base import View, data_range, is_index, view_source, view_style

_PLAIN, _PLAIN_DARK = lut(SEQUENTIAL256), lut(SEQUENTIAL_DARK256)
_SIGNED, _SIGNED_DARK = lut(DIVERGING256), lut(DIVERGING_DARK256)
_NOTHING = 255


class Thumbnails(View):
    """Small square maps on one colour scale, row by row, each in its own canvas; a click or Enter selects one.

    Arrows, Home and End move, Enter selects, Esc deselects. Cells without a number (NaN) are left out.

    >>> grid = Thumbnails(title="Heads")
    >>> grid.set_tiles(np.zeros((4, 8, 8)), names=["0.0", "0.1", "1.0", "1.1"], columns=2)
    >>> grid.count, grid.size, grid.tiles.shape
    (4, 8, (4, 8, 8))
    """

    _esm = view_source("thumbnails")
    _css = view_style("thumbnails")
    exported = True

    count = t.Int(0).tag(sync=True)
    """Number of maps."""
    size = t.Int(0).tag(sync=True)
    """Cells along a side of each."""
    columns = t.Int(1).tag(sync=True)
    """Maps in a row."""
    data = t.Bytes(b"").tag(sync=True)
    """One byte a cell, map by map and row by row: 0..254 from vmin to vmax, 255 for no number. See `set_tiles`."""
    vmin = t.Float(0.0).tag(sync=True)
    vmax = t.Float(1.0).tag(sync=True)
    lut = t.Bytes(_PLAIN).tag(sync=True)
    """1,024 bytes: the 256 colours of the range vmin..vmax."""
    lut_dark = t.Bytes(_PLAIN_DARK).tag(sync=True)
    """The colours of the range on a dark page."""
    names = t.List(t.Unicode()).tag(sync=True)
    """The name of each map, for tooltip and screen readers."""
    notes = t.List(t.Unicode()).tag(sync=True)
    """What the tooltip says about each map besides its name; may be empty."""
    captions = t.List(t.Unicode()).tag(sync=True)
    """A short text below each map; may be empty."""
    row_labels = t.List(t.Unicode()).tag(sync=True)
    """A name beside each row of maps; may be empty."""
    column_labels = t.List(t.Unicode()).tag(sync=True)
    """A name above each column of maps; may be empty."""
    selected = t.Int(-1).tag(sync=True, from_page=lambda view, value: is_index(value, view.count))
    """The selected map, -1 for none."""
    titled_by = ("title",)
    title = t.Unicode("").tag(sync=True)
    instruction = t.Unicode("").tag(sync=True)
    """What a click does, shown after the title; not in a saved page, where it does nothing."""
    max_height = t.Int(400).tag(sync=True)
    """Largest height of the maps in pixels; more of them scroll."""
    empty = t.Unicode("Nothing to show yet").tag(sync=True)
    """Text shown when there are no maps."""

    def __repr__(self) -> str:
        return f"Thumbnails({self.count} maps, title={self.title!r})"

    @property
    def is_empty(self) -> bool:
        return not self.count

    def set_tiles(
        self, tiles: ArrayLike | None, *, names: Sequence[str] = (), columns: int = 1, vmin: float | None = None,
        vmax: float | None = None, signed: bool = False, notes: Sequence[str] = (), captions: Sequence[str] = (),
        row_labels: Sequence[str] = (), column_labels: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Show other (maps, cells, cells) numbers (None: empty), coloured from `vmin` to `vmax` or over their range.

        `signed` makes the range symmetric about 0 and the colours blue–white–red. The selection is cleared. Raises
        ValueError unless the maps are square and there is one name, and note and caption if any, for each.
        """
        array = np.zeros((0, 0, 0), np.float32) if tiles is None else np.asarray(tiles, dtype=np.float32)
        if array.ndim != 3 or array.shape[1] != array.shape[2]:
            raise ValueError(f"thumbnails need (maps, cells, cells) numbers, got shape {array.shape}")
        for what, strings in (("names", names), ("notes", notes), ("captions", captions)):
            if len(strings) != len(array) and (strings or what == "names"):
                raise ValueError(f"{what} must hold one string for each of the {len(array)} maps, got {len(strings)}")
        low, high = data_range(array, signed=signed)
        low, high = low if vmin is None else float(vmin), high if vmax is None else float(vmax)
        share = np.clip((array - low) / ((high - low) or 1.0), 0, 1)
        codes = np.where(np.isfinite(array), np.nan_to_num(np.rint(share * (_NOTHING - 1))), _NOTHING)
        with self.hold_sync():
            self.selected = -1
            self.lut, self.lut_dark = (_SIGNED, _SIGNED_DARK) if signed else (_PLAIN, _PLAIN_DARK)
            self.vmin, self.vmax, self.columns = low, high, max(1, columns)
            self.names, self.notes, self.captions = list(names), list(notes), list(captions)
            self.row_labels, self.column_labels = list(row_labels), list(column_labels)
            self.count, self.size, self.data = len(array), array.shape[1], codes.astype(np.uint8).tobytes()

    @property
    def tiles(self) -> NDArray[np.float64]:
        """(maps, cells, cells) the numbers shown, to 1 of 254 parts of the range; NaN for none."""
        codes = np.frombuffer(self.data, np.uint8).reshape(self.count, self.size, self.size)
        values = self.vmin + codes / (_NOTHING - 1) * (self.vmax - self.vmin)
        return np.where(codes == _NOTHING, np.nan, values)

    def scene(self, *, width: int = 900) -> Scene:
        """All maps as a static picture `width` pixels wide, on a light page."""
        if not self.count:
            return heatmap_scene(np.zeros((0, 0)), title=self.title, width=width)
        rows, step = -(-self.count // self.columns), self.size + 1 + self.size // 8
        sheet = np.full((rows * step, self.columns * step), np.nan)
        for index, tile in enumerate(self.tiles):
            top, left = (step * place for place in divmod(index, self.columns))
            sheet[top : top + self.size, left : left + self.size] = tile
        labels = [
            [names[at // step] if names and at % step == self.size // 2 else "" for at in range(count * step)]
            for names, count in ((self.row_labels, rows), (self.column_labels, self.columns))
        ]
        return heatmap_scene(
            sheet, *labels, title=self.title, vmin=self.vmin, vmax=self.vmax, colors=self.lut, width=width
        )
