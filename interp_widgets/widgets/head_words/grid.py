"""The grid of all heads, and the heads that have a word."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.head_words import HeadWordResult

from ..base import pair_view
from ..views import Heatmap, Table
from .numbers import COLOURS, WordRow, colours, common_words, texts, word_rows

if TYPE_CHECKING:
    from .heads import HeadWords

NAMED = 8
"""Missing words named in a sentence."""
LISTED = 300
"""Words listed to choose from."""


class Grid:
    """Layer × head, coloured by a statistic; a searched word puts the number of its pairs into the cells."""

    def __init__(self, panel: HeadWords) -> None:
        self.panel = panel
        self.about = W.HTML("")
        self.heat = Heatmap(
            row_name="layer", column_name="head", y_label="layer", x_label="head", empty="No grid yet: press Run"
        )
        self.heads = Table(empty="No head has a pair.", height=300)
        both = W.VBox([W.VBox([self.heat]), W.VBox([self.heads])])
        both.add_class("iw-maps")
        self.box = W.VBox([self.about, both])
        self.box.add_class("iw-column")
        self._filling = False
        self._rows: list[WordRow] = []
        self._words: list[str] = []
        panel.watch(self.heat, "pinned", self._pinned)
        panel.watch(self.heads, "selected", self._picked)

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Bring grid and list up to the browser's results, word and view."""
        self._filling = True  # another grid drops its selection, which is not the user's doing
        try:
            self._paint_heat()
            self._paint_heads()
        finally:
            self._filling = False
        self.about.value = "<br>".join(_about(self.panel.results, self.panel.source_words))
        self.paint_selection()

    def paint_selection(self) -> None:
        """Show the chosen head."""
        panel = self.panel
        at = [panel.layer, panel.head]
        inside = panel.head_chosen and all(i < n for i, n in zip(at, self.heat.shape, strict=True))
        self._filling = True
        try:
            with self.heat.hold_sync():
                self.heat.cross = self.heat.pinned = at if inside else []
            mine = (i for i, one in enumerate(self._rows) if panel.head_chosen and [one.layer, one.head] == at)
            self.heads.selected = next(mine, -1)
        finally:
            self._filling = False

    def _paint_heat(self) -> None:
        panel, heat = self.panel, self.heat
        n_layers = [model.n_layers for model in panel.models]
        found = colours(panel, n_layers)
        if isinstance(found, str):
            heat.empty = found
            heat.set_matrix(None)
            return
        shape = found.matrix.shape
        marked = texts(panel.results, panel.shown, panel.found, n_layers) if panel.found_word else []
        with heat.hold_sync():
            heat.title, heat.value_label = self._title(), found.label
            heat.numbers_from = None if panel.found_word else 1e-12
            heat.set_matrix(
                found.matrix, rows=list(map(str, range(shape[0]))), columns=list(map(str, range(shape[1]))),
                vmin=found.vmin, vmax=found.vmax, signed=found.signed,
                texts=marked if len(marked) == found.matrix.size else [],
            )  # fmt: skip

    def _title(self) -> str:
        panel = self.panel
        which = "A → B · " if panel.color == "change" else pair_view.title_start(panel)
        rest = ", partial" if any(one.partial for one in panel.results) else ""
        word = f", in the cells: dimensions with “{panel.word}”" if panel.found_word else ""
        return f"{which}Heads, coloured by {COLOURS[panel.color]}{word}{rest}"

    def _paint_heads(self) -> None:
        panel, word, table = self.panel, self.panel.word, self.heads
        self._words = []
        if not word:
            self._rows = []
            self._paint_words()
            return
        rows = word_rows(panel.looked_at, panel.found_here)
        self._rows = rows
        letters = [""] if len(panel.looked_at) == 1 else [" A", " B"]
        columns: list[dict[str, Any]] = [{"label": "layer", "align": "right"}, {"label": "head", "align": "right"}]
        told = "dimensions of the head that keep a pair with the word"
        columns += [
            {"label": f"dim.{letter}" if letter else "dimensions", "align": "right", "title": told}
            for letter in letters
        ]
        columns.append({"label": "nearest pair", "title": "query → key, the pair with the largest cosine"})
        if not panel.found_word:
            said, empty = "", f"“{word}” is not in the word list."
        else:
            said = f"Heads with a pair of “{word}”: {len(rows)} of {panel.looked_at[-1].n_pairs.size}"
            empty = f"No head has a pair with “{word}” among those that its dimensions keep."
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.caption, table.instruction, table.empty = columns, said, "", empty
            table.rows = [[one.layer, one.head, *one.counts, one.pair] for one in rows]

    def _paint_words(self) -> None:
        """Without a searched word: the words to choose from."""
        looked_at, table = self.panel.looked_at, self.heads
        rows = common_words(looked_at)[:LISTED]
        self._words = [word for word, _ in rows]
        letters = [""] if len(looked_at) == 1 else [" A", " B"]
        columns: list[dict[str, Any]] = [{"label": "word"}]
        told = "heads with a kept pair of the word"
        columns += [{"label": f"heads{letter}", "align": "right", "title": told} for letter in letters]
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.caption = columns, "Words in the kept pairs of most heads"
            table.instruction = "click one to find it"
            table.empty = "No head has a pair."
            table.rows = [[word, *counts] for word, counts in rows]

    # what a user does -------------------------------------------------------------------------------------------------

    def _pinned(self, change: Any) -> None:
        if not self._filling and change.new:
            self.panel.look_at(*change.new)

    def _picked(self, change: Any) -> None:
        if self._filling or change.new < 0:
            return
        if self._words:
            self.panel.word = self._words[change.new]
        else:
            one = self._rows[change.new]
            with self.panel.hold():
                self.panel.look_at(one.layer, one.head)
                self.panel.dimension = one.dimension


def _about(results: Sequence[HeadWordResult], source: str) -> list[str]:
    """Which words were looked at, and which could not be, as HTML."""
    first = results[-1]
    where = f" ({escape(source)})" if source else ""
    searched = f"{len(first.vocabulary):,} words{where}; each dimension's top {first.top} as query and as key; "
    lines = [f"{searched}the {first.keep} pairs that most dimensions have are kept of each head."]
    for words, one, more in (
        (first.missing, "has no word vector and is in no pair", "have no word vector and are in no pair"),
        (first.unknown, "cannot be written by the tokenizer and was left out",
         "cannot be written by the tokenizer and were left out"),
    ):  # fmt: skip
        if words:
            rest = f" and {len(words) - NAMED:,} more" if len(words) > NAMED else ""
            named = ", ".join(map(escape, words[:NAMED]))
            count = f"{len(words):,} word{'s' * (len(words) > 1)}"
            lines.append(f"<b>{count}</b> {more if len(words) > 1 else one}: {named}{rest}.")
    if not any(one.n_pairs.any() for one in results):
        lines.append(
            "<b>No head has a pair.</b> How near two words must be is taken from the list itself: "
            "give a longer one, of some hundred words."
        )
    return lines
