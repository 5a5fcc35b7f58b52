"""A panel's description of its selection: a heading, sentences and a small table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from typing import Any

from interp_widgets.figures.labels import fixed

MOST_ROWS = 3
"""Rows of a table."""
LONG = 40
"""Characters of a cell from which on it is cut."""


@dataclass(frozen=True)
class Step:
    """A suggested next step: a tab of the screen, with these options."""

    tool: str
    """The name of the tab."""
    label: str
    """The label of its button."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """A heading, sentences below it, and a small table."""

    heading: str = ""
    sentences: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """The cells, formatted; the first column is text, the others are numbers."""
    steps: tuple[Step, ...] = ()
    """Suggested next steps; tabs not among them are offered for the selected token."""

    def html(self) -> str:
        """As HTML, everything escaped."""
        parts = [f"<div class='iw-words-heading'>{escape(self.heading)}</div>"] if self.heading else []
        if self.rows:
            head = "".join(f"<th>{escape(column)}</th>" if column else "<td></td>" for column in self.columns)
            body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
            parts.append(f"<table class='iw-words'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f"<p>{escape(sentence)}</p>" for sentence in self.sentences]
        return "".join(parts)


def _cell(text: str) -> str:
    """A cell as HTML; of a long text, such as a sentence of a prompt, two lines are shown, and all in its tooltip."""
    return f"<span class='iw-brief' title='{escape(text)}'>{escape(text)}</span>" if len(text) > LONG else escape(text)


def decimals(value: float, digits: int = 3) -> str:
    """A number with this many decimals; one that would round to zero is printed as a bound of its size.

    >>> decimals(0.93), decimals(0.00004), decimals(-0.5), decimals(-0.0001), decimals(0.0)
    ('0.930', '< 0.001', '−0.500', '< 0.001', '0.000')
    """
    if math.isnan(value):
        return "no value"
    least = 10.0**-digits
    if 0 < abs(value) < least / 2:
        return f"< {least:.{digits}f}"
    return fixed(value, digits)


def plain(html: str) -> str:
    """A sentence of HTML without its tags.

    >>> plain("<b>0.9</b>, layer 1 at “&lt;s&gt;”")
    '0.9, layer 1 at “<s>”'
    """
    return unescape(re.sub("<[^>]*>", "", html))
