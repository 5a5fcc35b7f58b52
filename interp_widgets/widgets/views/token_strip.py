"""A strip of tokens in the browser: shaded by value, selectable, brushable, markable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import traitlets as t
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.static import Scene, strip_scene
from interp_widgets.figures.theme import TOKENS256, TOKENS_DARK256, TOKENS_DIVERGING256, lut
from interp_widgets.widgets.views.base import (
    View,
    are_spans,
    bytes_floats,
    check_spans,
    data_range,
    float_bytes,
    is_index,
    view_source,
    view_style,
)

_LIGHT, _DARK, _SIGNED = lut(TOKENS256), lut(TOKENS_DARK256), lut(TOKENS_DIVERGING256)


def _is_token(strip: TokenStrip, value: Any) -> bool:
    return is_index(value, len(strip.tokens))


class TokenStrip(View):
    """Tokens as running text, each shaded by a number and reachable by pointer and keys.

    A click selects (again: deselects), a drag brushes a span; with `marking` on, a drag adds a mark or, if it starts in
    a mark, removes it. Arrows, Home and End move, Shift with arrows brushes, Enter selects (or marks), Esc deselects.

    >>> strip = TokenStrip(tokens=["The", " cat"], label="Prompt")
    >>> strip.set_values([0.1, 0.9])
    >>> strip.vmin, strip.vmax
    (0.10000000149011612, 0.8999999761581421)
    """

    _esm = view_source("token_strip")
    _css = view_style("token_strip")
    exported = True

    tokens = t.List(t.Unicode()).tag(sync=True)
    """One readable string per token."""
    special = t.List(t.Bool()).tag(sync=True)
    """Which tokens are special (outlined); may be empty."""
    captions = t.List(t.Unicode()).tag(sync=True)
    """Text before each token, such as the role of a chat message that starts there; "" for most; may be empty."""
    values = t.Bytes(b"").tag(sync=True)
    """float32 number of each token, NaN for none; see `set_values`."""
    vmin = t.Float(0.0).tag(sync=True)
    vmax = t.Float(1.0).tag(sync=True)
    lut = t.Bytes(_LIGHT).tag(sync=True)
    """1,024 bytes: the 256 colours (with opacity) of the range vmin..vmax on a light page."""
    lut_dark = t.Bytes(_DARK).tag(sync=True)
    """The colours of the range on a dark page; empty: as on a light page."""
    labels = t.List(t.Unicode()).tag(sync=True)
    """Tooltip of each token, instead of its number; may be empty."""
    value_label = t.Unicode("").tag(sync=True)
    """Unit or name after the number."""
    density = t.Bytes(b"").tag(sync=True)
    """float32 number of each token drawn as a small bar under it; empty: no bars."""
    density_max = t.Float(0.0).tag(sync=True)
    """The number a full bar stands for; 0: the largest one."""
    density_label = t.Unicode("").tag(sync=True)
    arcs = t.List(t.List(t.Float())).tag(sync=True)
    """[from token, to token, share of the full width] of each arc, signed in a signed range; see `set_arcs`."""
    selected = t.Int(-1).tag(sync=True, from_page=_is_token)
    """The clicked token, -1 for none."""
    hovered = t.Int(-1).tag(sync=True, from_page=_is_token)
    """The token under the pointer or key cursor, -1 for none; sent by the browser only while `live_hover` is on."""
    live_hover = t.Bool(False).tag(sync=True)
    """Whether hovering and dragging are reported as they happen."""
    brush = t.List(t.Int()).tag(
        sync=True, from_page=lambda strip, value: value == [] or are_spans([value], len(strip.tokens))
    )
    """The brushed tokens [start, end), or empty."""
    marks = t.List(t.List(t.Int())).tag(sync=True, from_page=lambda strip, value: are_spans(value, len(strip.tokens)))
    """Marked spans [[start, end), …], sorted and apart."""
    mark_name = t.Unicode("marked").tag(sync=True)
    """What a mark says about a token."""
    marking = t.Bool(False).tag(sync=True)
    """Whether a drag marks instead of brushing."""
    titled_by = ("label", "density_label")
    label = t.Unicode("").tag(sync=True)
    """Heading and accessible name."""
    instruction = t.Unicode("").tag(sync=True)
    """What a click or a drag does, shown after the label; not in a saved page, where it does nothing."""
    empty = t.Unicode("No tokens yet").tag(sync=True)
    """Text shown when there are no tokens."""
    max_lines = t.Int(8).tag(sync=True)
    """Lines shown before the strip scrolls."""
    legend = t.Bool(False).tag(sync=True)
    """Whether a colour bar after the label explains the shades, while there are any."""
    breaks = t.Bool(True).tag(sync=True)
    """Whether a token with a newline ends its line; else the text flows on, and the newline is only marked."""

    def __repr__(self) -> str:
        return f"TokenStrip({len(self.tokens)} tokens, label={self.label!r})"

    @property
    def is_empty(self) -> bool:
        return not self.tokens

    def set_tokens(self, tokens: Sequence[str], *, special: Sequence[bool] = (), captions: Sequence[str] = ()) -> None:
        """Replace the tokens; numbers, bars, arcs, marks, brush and selection are cleared."""
        if special and len(special) != len(tokens):
            raise ValueError(f"special must have one flag for each of the {len(tokens)} tokens, got {len(special)}")
        if captions and len(captions) != len(tokens):
            raise ValueError(f"captions must have one text for each of the {len(tokens)} tokens, got {len(captions)}")
        with self.hold_sync():
            self.values = self.density = b""
            self.labels, self.brush, self.marks, self.arcs = [], [], [], []
            self.selected = self.hovered = -1
            self.tokens, self.special = list(tokens), [bool(flag) for flag in special]
            self.captions = list(captions)

    def set_values(
        self, values: ArrayLike | None, *, vmin: float | None = None, vmax: float | None = None, signed: bool = False
    ) -> None:
        """Shade each token by its number (None: no shading), from `vmin` to `vmax` or over the numbers' own range.

        `signed` makes the range symmetric about 0 and the colours blue–none–red. Raises ValueError unless there is one
        number for each token.
        """
        array = np.zeros(0, np.float32) if values is None else self._per_token(values, "values")
        low, high = data_range(array, signed=signed)
        with self.hold_sync():
            self.lut, self.lut_dark = (_SIGNED, b"") if signed else (_LIGHT, _DARK)
            self.vmin, self.vmax = low if vmin is None else float(vmin), high if vmax is None else float(vmax)
            self.values = float_bytes(array)

    def set_density(self, density: ArrayLike | None, *, maximum: float = 0.0) -> None:
        """Draw a small bar under each token (None: none); `maximum` is the number of a full bar, 0 the largest one."""
        array = np.zeros(0, np.float32) if density is None else self._per_token(density, "density")
        with self.hold_sync():
            self.density_max, self.density = float(maximum), float_bytes(array)

    def set_arcs(self, arcs: Sequence[tuple[int, int, float]]) -> None:
        """Draw arcs (from token, to token, width), the width as a share of the full one from −1 to 1; ValueError when
        one ends outside the tokens."""
        for start, end, share in arcs:
            if not (0 <= start < len(self.tokens) and 0 <= end < len(self.tokens) and abs(share) <= 1):
                raise ValueError(
                    f"arcs must be (from, to, width) of tokens 0..{len(self.tokens) - 1}, the width from -1 to 1, got "
                    f"{(start, end, share)}"
                )
        self.arcs = [[float(part) for part in arc] for arc in arcs]

    def set_marks(self, spans: Sequence[Sequence[int]]) -> None:
        """Mark the spans [start, end) of tokens; ValueError when one lies outside the tokens."""
        self.marks = check_spans(spans, len(self.tokens), "marks")

    def mask(self) -> NDArray[np.bool_]:
        """(tokens,) whether each token is marked."""
        inside = np.zeros(len(self.tokens), dtype=bool)
        for start, end in self.marks:
            inside[start:end] = True
        return inside

    def _per_token(self, values: ArrayLike, what: str) -> NDArray[np.float32]:
        array = np.asarray(values, dtype=np.float32)
        if array.shape != (len(self.tokens),):
            raise ValueError(f"{what} must be one number for each of the {len(self.tokens)} tokens, got {array.shape}")
        return array

    def scene(self, *, width: int = 900, title: str | None = None) -> Scene:
        """The strip as a static picture `width` pixels wide, on a light page, under its label or another title."""
        values: Any = bytes_floats(self.values) if self.values else None
        density: Any = bytes_floats(self.density) if self.density else None
        return strip_scene(
            self.tokens, values, vmin=self.vmin, vmax=self.vmax, colors=self.lut, special=self.special, density=density,
            density_max=self.density_max, marks=self.marks, arcs=self.arcs, selected=self.selected, width=width,
            title=self.label if title is None else title,
        )  # fmt: skip
