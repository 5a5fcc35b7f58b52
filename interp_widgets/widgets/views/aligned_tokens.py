"""Two texts in the browser, token under token: which tokens belong together can be seen and mended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import traitlets as t

from interp_widgets.figures.static import Scene, aligned_scene
from interp_widgets.widgets.views.base import View, is_cell, is_index, view_source, view_style


def columns_of(upper: int, lower: int, pairs: Sequence[Sequence[int]]) -> list[list[int]]:
    """The columns [upper token, lower token] of two texts of so many tokens, -1 for none: a pair shares a column, and
    those between two pairs have one each. The pairs must rise on both sides.

    >>> columns_of(3, 4, [[0, 0], [2, 3]])
    [[0, 0], [1, -1], [-1, 1], [-1, 2], [2, 3]]
    """
    columns, up, low = [], 0, 0
    for first, second in (*pairs, (upper, lower)):
        columns += [[at, -1] for at in range(up, first)] + [[-1, at] for at in range(low, second)]
        columns.append([first, second])
        up, low = first + 1, second + 1
    return columns[:-1]


def _are_pairs(view: AlignedTokens, value: Any) -> bool:
    """Whether a value from a page pairs at least one token of each text, none twice and none across another."""
    if not isinstance(value, list) or not value:
        return False
    if not all(is_cell(pair, [len(view.upper), len(view.lower)]) and pair for pair in value):
        return False
    return all(one[side] < other[side] for one, other in pairwise(value) for side in (0, 1))


class AlignedTokens(View):
    """Two texts, one under the other, tokens that belong together in one column; the others are underlined, and so are
    pairs that differ.

    A click on a token selects its column (again: deselects). While `writable`, a token that is dragged onto one of the
    other text is paired with it; with `pairing` on, so is a token that is clicked before one of the other text, and two
    that are already paired are parted. A new pair undoes those that it crosses. Arrows, Home and End move, Enter
    clicks, Esc deselects.

    >>> both = AlignedTokens(names=["Clean", "Corrupted"])
    >>> both.set_tokens(["in", " France"], ["in", " the", " US"], [[0, 0], [1, 2]])
    >>> both.columns
    [[0, 0], [-1, 1], [1, 2]]
    """

    _esm = view_source("aligned_tokens")
    _css = view_style("token_strip", "aligned_tokens")
    exported = True

    upper = t.List(t.Unicode()).tag(sync=True)
    """The tokens of the upper text."""
    lower = t.List(t.Unicode()).tag(sync=True)
    """Those of the lower one."""
    pairs = t.List(t.List(t.Int())).tag(sync=True, from_page=_are_pairs)
    """Tokens that belong together: [upper, lower], rising on both sides."""
    columns = t.List(t.List(t.Int())).tag(sync=True)
    """[upper, lower] token of each column, -1 for none; follows the pairs."""
    names = t.List(t.Unicode(), ["", ""]).tag(sync=True)
    """The names of both texts."""
    selected = t.Int(-1).tag(sync=True, from_page=lambda view, value: is_index(value, len(view.upper)))
    """The token of the upper text whose column is selected, -1 for none."""
    writable = t.Bool(True).tag(sync=True)
    """Whether pairs may be changed in the page."""
    pairing = t.Bool(False).tag(sync=True)
    """Whether clicks pair tokens instead of selecting."""
    titled_by = ("label",)
    label = t.Unicode("").tag(sync=True)
    """Heading and accessible name."""
    instruction = t.Unicode("").tag(sync=True)
    """What a click or a drag does, shown after the label; not in a saved page."""
    empty = t.Unicode("No tokens yet").tag(sync=True)
    """Text shown when there are no tokens."""
    max_lines = t.Int(3).tag(sync=True)
    """Double lines shown before the view scrolls."""

    def __repr__(self) -> str:
        return f"AlignedTokens({len(self.upper)} and {len(self.lower)} tokens, {len(self.pairs)} pairs)"

    @property
    def is_empty(self) -> bool:
        return not self.upper

    def set_tokens(self, upper: Sequence[str], lower: Sequence[str], pairs: Sequence[Sequence[int]]) -> None:
        """Show two texts; a selection that they do not have is cleared. ValueError if a pair does not fit."""
        rising = sorted([int(first), int(second)] for first, second in pairs)
        with self.hold_sync():
            self.upper, self.lower, self.pairs = list(upper), list(lower), []
            if rising and not _are_pairs(self, rising):
                raise ValueError(
                    f"pairs must name tokens of {len(upper)} and {len(lower)}, each once and none across another, got "
                    f"{rising}"
                )
            self.pairs, self.columns = rising, columns_of(len(upper), len(lower), rising)
            if self.selected >= len(self.upper):
                self.selected = -1

    @t.observe("pairs")
    def _place(self, _: Any) -> None:
        self.columns = columns_of(len(self.upper), len(self.lower), self.pairs)

    def scene(self, *, width: int = 900) -> Scene:
        """Both texts as a static picture `width` pixels wide, on a light page."""
        return aligned_scene(
            self.upper, self.lower, self.columns, names=self.names, selected=self.selected, width=width,
            title=self.label,
        )  # fmt: skip
