"""How numbers become the colours of a picture, and the numbers beside its colour bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.theme import lut


def table_of(colors: Sequence[str] | bytes) -> NDArray[np.uint8]:
    """(256, 4) red, green, blue and opacity of a palette, from its low end to its high one."""
    packed = colors if isinstance(colors, bytes) else lut(colors)
    return np.frombuffer(packed, dtype=np.uint8).reshape(256, 4)


def levels_of(values: NDArray[np.floating], vmin: float, vmax: float) -> NDArray[np.intp]:
    """The entry 0..255 of each number between ``vmin`` and ``vmax``; what is beyond them gets the entry at that end."""
    span = (vmax - vmin) or 1.0
    return np.clip(np.rint(np.nan_to_num((values - vmin) / span) * 255), 0, 255).astype(np.intp)


@dataclass(frozen=True)
class Shades:
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
        return levels_of(self.share(values), 0.0, 1.0)

    def ticks(self, tall: float) -> list[float]:
        """Numbers to name beside a colour bar so many pixels tall."""
        if not self.log:
            return _ticks(self.low, self.high, tall)
        found = [self.low]
        for value in (10.0**k for k in range(300) if 10.0**k <= self.high * (1 + 1e-9)):
            apart = min(float(self.share(value) - self.share(found[-1])), float(1 - self.share(value)))
            found += [value] if apart * tall > 18 else []
        return [*found, self.high]


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
