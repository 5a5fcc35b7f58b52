"""Colours of every figure and widget: one categorical set, sequential and diverging scales, and readable ink.

A colour is a string ``#rrggbb`` or ``#rrggbbaa``; a scale is a tuple of 256 of them. The token scales start out
transparent, so that a token with a low value keeps the background of the page in the light and in the dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bokeh.palettes import Viridis256
from numpy.typing import NDArray

Scale = tuple[str, ...]
"""256 colours, lowest value first."""

PALETTE8: Scale = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#6c6c86", "#a83c2a")
"""Categories, distinct for colour-blind readers too and legible on white and on black (Okabe and Ito 2008, with slate
and brick in place of black and yellow, which would be invisible on one of the pages)."""

MARK = "#d55e00"
"""Marked spans (instructions)."""

SELECT = "#1f77d0"
"""The selected token or cell."""

VIRIDIS256: Scale = tuple(str(color).lower() for color in Viridis256)
"""Magnitudes of points on either page, all of which have to be seen: viridis, perceptually uniform."""


def rgba(color: str) -> tuple[int, int, int, int]:
    """Split a colour string into red, green, blue and opacity, each 0..255.

    Raises ValueError unless the colour is ``#rrggbb`` or ``#rrggbbaa``.

    >>> rgba("#ff8000")
    (255, 128, 0, 255)
    """
    digits = color.removeprefix("#")
    if not color.startswith("#") or len(digits) not in (6, 8):
        raise ValueError(f"a colour must be '#rrggbb' or '#rrggbbaa', got {color!r}")
    try:
        parts = [int(digits[i : i + 2], 16) for i in range(0, len(digits), 2)]
    except ValueError:
        raise ValueError(f"a colour must be '#rrggbb' or '#rrggbbaa', got {color!r}") from None
    return parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else 255


def hex_color(red: float, green: float, blue: float, alpha: float = 255) -> str:
    """Join red, green, blue and opacity (0..255) into a colour string; full opacity is left out."""
    parts = [max(0, min(255, round(v))) for v in (red, green, blue, alpha)]
    return "#" + "".join(f"{v:02x}" for v in (parts[:3] if parts[3] == 255 else parts))


def _to_oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lms = linear @ np.array([[0.4122214708, 0.2119034982, 0.0883024619], [0.5363325363, 0.6806995451, 0.2817188376],
                             [0.0514459929, 0.1073969566, 0.6299787005]])  # fmt: skip
    return np.asarray(np.cbrt(lms) @ np.array([[0.2104542553, 1.9779984951, 0.0259040371],
                                    [0.7936177850, -2.4285922050, 0.7827717662],
                                    [-0.0040720468, 0.4505937099, -0.8086757660]]))  # fmt: skip


def _from_oklab(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    lms = lab @ np.array([[1.0, 1.0, 1.0], [0.3963377774, -0.1055613458, -0.0894841775],
                          [0.2158037573, -0.0638541728, -1.2914855480]])  # fmt: skip
    linear = lms**3 @ np.array([[4.0767416621, -1.2684380046, -0.0041960863],
                                [-3.3077115913, 2.6097574011, -0.7034186147],
                                [0.2309699292, -0.3413193965, 1.7076147010]])  # fmt: skip
    linear = np.clip(linear, 0, 1)
    return np.asarray(np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055))


def _scale(anchors: Sequence[str], at: NDArray[np.float64]) -> Scale:
    """Colours at the positions `at` (0..1) on the path through the anchors, linear in OKLab, so that equal
    steps look equal (Ottosson 2020)."""
    points = np.array([rgba(color) for color in anchors], dtype=float) / 255
    knots = np.linspace(0, 1, len(anchors))
    lab = _to_oklab(points[:, :3])
    rgb = _from_oklab(np.stack([np.interp(at, knots, lab[:, k]) for k in range(3)], axis=1))
    alpha = np.interp(at, knots, points[:, 3])
    return tuple(hex_color(*row) for row in 255 * np.column_stack([rgb, alpha]))


# 256 entries have no middle one: both middle entries are white, so that 0 is white from either side.
_SIGNED = np.clip((np.arange(256) - 127.5) / 127.5, -1, 1)
_SIGNED = (1 + np.sign(_SIGNED) * np.maximum(0, np.abs(_SIGNED) * 127.5 - 0.5) / 127) / 2

DIVERGING256: Scale = _scale(("#053061", "#2166ac", "#6aabd2", "#ffffff", "#ef8a62", "#b2182b", "#67001f"), _SIGNED)
"""Signed numbers on a map, blue below and red above 0; give it a range symmetric about 0 and 0 is white."""

DIVERGING_DARK256: Scale = _scale(
    ("#b9dcf5", "#58a6e0", "#2b5f8f", "#111111", "#96402e", "#e8775c", "#ffd2bf"), _SIGNED
)
"""Signed numbers on a map of a dark page: 0 has the colour of the page, and large values are bright."""

_BLUES = ("#d5efc1ff", "#86d0bb", "#3ba6bf", "#2a72b0", "#2b3f8f", "#1d1f5c")
SEQUENTIAL256: Scale = _scale(("#ffffff", *_BLUES), np.linspace(0, 1, 256))
"""Magnitudes on a map on a light page: white at the lowest value, dark blue at the highest, as behind text."""

TOKENS256: Scale = _scale(("#e9f6c900", *_BLUES), np.linspace(0, 1, 256))
"""Magnitudes behind text on a light page: no colour at the lowest value, dark blue at the highest."""

_LIGHTS = ("#28346f", "#2a5596", "#2a7bb0", "#3ba4b4", "#74cbb0", "#e2f5c4")
SEQUENTIAL_DARK256: Scale = _scale(("#111111", *_LIGHTS), np.linspace(0, 1, 256))
"""Magnitudes on a map on a dark page: the colour of the page at the lowest value, pale green at the highest."""

TOKENS_DARK256: Scale = _scale(("#1f254a00", *_LIGHTS), np.linspace(0, 1, 256))
"""Magnitudes behind text on a dark page: no colour at the lowest value, pale green at the highest."""

TOKENS_DIVERGING256: Scale = _scale(
    ("#15508f", "#2f79bd", "#6aabd2", "#ffffff00", "#ef8a62", "#cf3f3a", "#a1122a"), _SIGNED
)
"""Signed numbers behind text on either page: no colour at 0."""


def lut(colors: Sequence[str]) -> bytes:
    """Pack 256 colours as the 1,024-byte lookup table (red, green, blue, opacity each) of the browser views.

    Raises ValueError unless there are 256 colours.

    >>> lut(VIRIDIS256)[:4].hex()
    '440154ff'
    """
    if len(colors) != 256:
        raise ValueError(f"a colour scale must have 256 colours, got {len(colors)}")
    return bytes(part for color in colors for part in rgba(color))


def _luminance(red: float, green: float, blue: float) -> float:
    """Relative luminance, 0 black to 1 white (WCAG 2.1)."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (red / 255, green / 255, blue / 255)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two opaque colours, 1 (same) to 21 (black on white) (WCAG 2.1, section 1.4.3).

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    bright, dim = sorted((_luminance(*rgba(one)[:3]), _luminance(*rgba(other)[:3])), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def over(color: str, background: str = "#ffffff") -> str:
    """The opaque colour seen when `color` lies on `background`.

    >>> over("#00000080")
    '#7f7f7f'
    """
    *top, alpha = rgba(color)
    below = rgba(background)
    return hex_color(*(below[k] + (top[k] - below[k]) * alpha / 255 for k in range(3)))


def ink(color: str, background: str = "#ffffff") -> str:
    """Black or white, whichever is more legible on `color` (over `background` where it is transparent).

    >>> ink("#440154"), ink("#fde725")
    ('#ffffff', '#000000')
    """
    seen = over(color, background)
    return max("#ffffff", "#000000", key=lambda one: contrast(one, seen))
