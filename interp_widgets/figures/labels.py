"""Formatting of texts and numbers in figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

_VISIBLE = {32: "·", 9: "⇥", 10: "⏎", 0xA0: "⍽"} | {k: 0x2400 + k for k in range(32) if k not in (9, 10)}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def visible(text: str) -> str:
    """A token in visible form: spaces, tabs and newlines as marks, control characters as their symbols.

    >>> visible(" a\\n")
    '·a⏎'
    """
    return text.translate(_VISIBLE)


def axis_name(text: str) -> str:
    """A name on an axis, which may be a token or words: spaces are marked only at its ends.

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


def power_of_ten(value: float, digits: int = 0) -> str:
    """A number by its power of ten, with at most so many decimals.

    >>> power_of_ten(3.2e-9), power_of_ten(-0.00004567, 2)
    ('3×10⁻⁹', '−4.57×10⁻⁵')
    """
    head, power = f"{value:.{digits}e}".split("e")
    return f"{float(head):g}×10{str(int(power)).translate(_RAISED)}".replace("-", "−")


def fixed(value: float, digits: int, sign: str = "") -> str:
    """A number with this many decimals; with ``+`` as `sign` a positive one has its sign too.

    >>> fixed(-1.234, 2), fixed(0.5, 1, "+")
    ('−1.23', '+0.5')
    """
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def in_column(values: Sequence[float]) -> list[str]:
    """The numbers of a column with the same decimals, 3 at most; large numbers and integers are formatted separately.

    >>> in_column([0.65, 1.0, 0.5671]), in_column([1.0, 12.0]), in_column([0.5, 1e-6])
    (['0.650', '1.000', '0.567'], ['1', '12'], ['0.5', '1e−06'])
    """
    finite = [value for value in values if math.isfinite(value)]
    written = [number(value).partition(".")[2] for value in finite if abs(value) >= 1e-3]
    large = any(abs(value) >= 1000 for value in finite)
    places = 0 if large else min(3, max(map(len, written), default=0))
    aligned = [places > 0 and math.isfinite(value) and (value == 0 or abs(value) >= 1e-3) for value in values]
    return [fixed(value, places) if shared else number(value) for value, shared in zip(values, aligned, strict=True)]


def brief(value: float) -> str:
    """Two significant digits, for the number in a cell.

    >>> brief(0.1234), brief(-2.04), brief(123.4)
    ('0.12', '−2', '123')
    """
    return (f"{value:.2g}" if abs(value) < 99.5 else f"{value:.0f}").replace("-", "−")


def capitalised(text: str) -> str:
    """A text with a capital first letter.

    >>> capitalised("head 3.1")
    'Head 3.1'
    """
    return text[:1].upper() + text[1:]
