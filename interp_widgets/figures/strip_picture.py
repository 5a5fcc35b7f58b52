"""The picture of a token strip."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.labels import number, visible
from interp_widgets.figures.raster import own_glyphs, shorten, text_width
from interp_widgets.figures.scene import INK, MARGIN, MUTED, RULE, Item, Line, Rect, Scene, Text
from interp_widgets.figures.shades import levels_of, table_of
from interp_widgets.figures.theme import MARK, PALETTE8, SELECT, TOKENS256, hex_color, ink, over


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
    table, level = table_of(colors), levels_of(shade, low, high) if shade is not None else None
    line = 26.0 if bars is None else 40.0
    top = MARGIN + (24 if title else 0)
    items: list[Item] = [Text(MARGIN, MARGIN + 8, title, size=13, bold=True)] if title else []
    full = density_max or (float(np.nanmax(bars)) if bars is not None and bars.size and np.any(bars > 0) else 1.0)
    x, y = MARGIN, top
    for i, token in enumerate(tokens):
        text = shorten(visible(token), width - 2 * MARGIN - 6, 14)
        wide = max(8.0, text_width(text, 14) + 6)
        if x + wide > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + line
        fill = None
        if shade is not None and level is not None and not math.isnan(shade[i]):
            fill = hex_color(*table[level[i]].tolist())
        outlined = i < len(special) and special[i]
        border = SELECT if i == selected else MUTED if outlined else None
        tip = "" if shade is None else f"{visible(token)}: {number(float(shade[i]))}"
        items.append(
            Rect(x, y, wide, 22, fill=fill, stroke=border, stroke_width=2 if i == selected else 1, radius=3, tip=tip)
        )
        color = ink(over(fill)) if fill else INK
        items.append(
            Text(x + 3, y + 11, text, size=14, fill=color, length=wide - 6 if own_glyphs(text) and text else None)
        )
        if any(start <= i < end for start, end in marks):
            items.append(Line(x - 1, y + 23.5, x + wide + 1, y + 23.5, MARK, 2))
        if bars is not None:
            tall = 10 * max(0.0, min(1.0, float(np.nan_to_num(bars[i])) / full))
            bar = min(10.0, wide)  # of one width, so that the same number looks the same under every token
            color = MARK if any(start <= i < end for start, end in marks) else PALETTE8[0]
            items.append(Line(x, y + 36, x + wide, y + 36, RULE))
            items.append(Rect(x + (wide - bar) / 2, y + 36 - tall, bar, tall, fill=color))
        x += wide + 2
        if "\n" in token:
            x, y = MARGIN, y + line
    return Scene(width, y + line + 6, tuple(items), title=title)


def _numbers(values: ArrayLike | None, n: int, what: str) -> NDArray[np.float64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"{what} must be one number for each of the {n} tokens, got shape {array.shape}")
    return array
