"""Below the grid: the selected head's word pairs, its dimensions, and the pairs of one dimension."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as W

from ..base import pair_view
from ..base.controls import row, shown_if
from ..views import Table
from ..views.table import RIGHT
from .head_selection import CHANGES, HeadSelection
from .word_rows import PairRow, dimension_rows, has, holding, pair_rows


class PairTables:
    """The pairs of the selected head; a click on one lists its dimensions, a click on a dimension its pairs."""

    def __init__(self, panel: HeadSelection) -> None:
        self.panel = panel
        self.pairs = Table(empty="Click a head of the grid to list its word pairs.", height=340)
        self.dimensions = Table(empty="Click a head of the grid to list its dimensions.", height=170)
        self.inside = Table(empty="Click a dimension to list its pairs, nearest first.", height=170)
        every = panel.on_click(
            W.Button(description="All dimensions", tooltip="Deselect the pair and list all dimensions"),
            lambda: panel.select_pair(()),
        )
        self.bar, self.every = panel.controls.row("pair_change"), row(every)
        self.chance = W.HTML("")
        left, right = W.VBox([self.chance, self.bar, self.pairs]), W.VBox([self.every, self.dimensions, self.inside])
        for box in (left, right):
            box.add_class("iw-column")
        both = W.VBox([left, right])
        both.add_class("iw-maps")
        self.parts = [both]
        self._rows: list[PairRow] = []
        self._numbers: list[int] = []
        panel.on_user(self.pairs, "selected", self._pair_picked)
        panel.on_user(self.dimensions, "selected", self._dimension_picked)

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Update the tables to the panel's results and selection."""
        self._paint_chance()
        self._paint_pairs()
        self._paint_dimensions()

    def _paint_chance(self) -> None:
        """Show the selected head's number of pairs against the chance level."""
        panel = self.panel
        lines = []
        for index, start in zip(pair_view.shown_indices(panel), pair_view.starts(panel), strict=True):
            if panel.head_computed and index < len(panel.chance):
                lines.append(f"{start}{panel.chance[index].head_in_words(panel.layer, panel.head)}")
        self.chance.value = "<br>".join(map(escape, lines))
        shown_if(self.chance, bool(lines))

    def _paint_pairs(self) -> None:
        panel, table, results = self.panel, self.pairs, self.panel.shown_results
        two = len(results) > 1
        every = pair_rows(results, panel.layer, panel.head, panel.matched_word) if panel.head_computed else []
        self._rows = [pair for pair in every if not two or panel.pair_change in ("all", pair.change)]
        columns: list[dict[str, Any]] = [{"label": "query"}, {"label": "key"}]
        letters = (" A", " B") if two else ("",)
        tip = "dimensions of the head that have the pair; – where it is not kept"
        columns += [{"label": f"dim.{letter}" if two else "dimensions", "title": tip, **RIGHT} for letter in letters]
        columns += [{"label": "change"}] if two else []
        columns.append({"label": "cosine", "title": "of the two word vectors", **RIGHT})
        rows = []
        for pair in self._rows:
            counts = [count or None for count in pair.counts]
            rows.append([pair.query, pair.key, *counts, *([pair.change] if two else []), round(pair.score, 3)])
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.caption, table.rows = columns, self._caption(every), rows
            if panel.head_chosen and not panel.head_computed:
                table.empty = f"Head {panel.head} of layer {panel.layer} was not computed."
            elif panel.head_chosen:
                table.empty = "No pair." if not every else f"No pair was {panel.pair_change}."
        self._mark_pair()

    def _mark_pair(self) -> None:
        wanted = tuple(self.panel.pair)
        self.pairs.selected = next((i for i, pair in enumerate(self._rows) if (pair.query, pair.key) == wanted), -1)

    def _caption(self, every: list[PairRow]) -> str:
        """What is listed, and what has changed."""
        panel = self.panel
        if not panel.head_computed:
            return ""
        where = f"Head {panel.head} of layer {panel.layer}"
        if len(panel.shown_results) > 1:
            counts = {name: sum(pair.change == name for pair in every) for name in CHANGES if name != "all"}
            counted = ", ".join(f"{count} {name}" for name, count in counts.items())
            change = panel.change_of(panel.layer, panel.head)
            return f"{where}, kept pairs of A and B: {counted}" + (
                f"; 1 − M = {change:.2f}" if change is not None else ""
            )
        result = panel.shown_results[0]
        total = int(result.n_pairs[result.row(panel.layer), panel.head])
        return f"{where}: {len(every)} of {total:,} pairs, those that most of its {result.d_head} dimensions have"

    def _paint_dimensions(self) -> None:
        panel, table, two = self.panel, self.dimensions, len(self.panel.shown_results) > 1
        at = panel.layer, panel.head
        word = panel.matched_word
        rows = dimension_rows(panel.shown_results, panel.matches_shown, *at, panel.pair) if panel.head_computed else []
        self._numbers = [entry.dimension for entry in rows]
        word = word if any(any(entry.word_counts) for entry in rows) else ""
        two = two and all(len(entry.counts) == 2 for entry in rows)
        letters = (" A", " B") if two else ("",)
        columns: list[dict[str, Any]] = [{"label": "dim.", "title": "dimension of the head", **RIGHT}]
        if word:
            tip = f"kept pairs with “{word}”"
            columns += [{"label": f"word{letter}", "title": tip, **RIGHT} for letter in letters]
        energy = "sum over all words of the squared query and key activations"
        columns += [{"label": f"energy{letter}", "title": energy, **RIGHT} for letter in letters]
        columns += [{"label": f"pairs{letter}", "title": "all its pairs", **RIGHT} for letter in letters]
        luck = self._by_chance() if len(letters) == 1 else None
        if luck is not None:
            tip = "its pairs with the word vectors shuffled, on average"
            columns.append({"label": "by chance", "title": tip, **RIGHT})
        shown_if(self.every, bool(panel.pair))
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.caption = columns, self._dimension_caption(word)
            table.empty = self._none_behind() if panel.head_computed else "Click a head of the grid first."
            table.rows = [
                [
                    entry.dimension,
                    *(entry.word_counts if word else ()),
                    *(round(e, 1) for e in entry.energies),
                    *entry.counts,
                    *(() if luck is None else (round(float(luck[entry.dimension])),)),
                ]
                for entry in rows
            ]
        if panel.dimension in self._numbers:
            table.selected = self._numbers.index(panel.dimension)
        self._paint_inside()

    def _by_chance(self) -> Any:
        """(d_head,) pairs that the dimensions of the selected head have by chance; None while unknown."""
        panel = self.panel
        index = pair_view.shown_indices(panel)[-1]
        if not panel.head_computed or index >= len(panel.chance):
            return None
        chance = panel.chance[index]
        return chance.chance_dimension_counts[chance.row(panel.layer), panel.head]

    def _none_behind(self) -> str:
        return "No dimension keeps this pair among its nearest ones."

    def _dimension_caption(self, word: str) -> str:
        panel = self.panel
        if not panel.head_computed:
            return ""
        if not panel.pair:
            first = f"those with “{word}” first" if word else "by energy"
            first += f"; none has “{panel.matched_word}”" if panel.matched_word and not word else ""
            return f"Dimensions of head {panel.head}, layer {panel.layer}, {first}"
        query, key = panel.pair
        parts = []
        for letter, result in zip(panel.letters, panel.shown_results, strict=True):
            if not has(result, panel.layer, panel.head):
                continue
            count = next((c for q, k, c, _ in result.pairs(panel.layer, panel.head) if (q, k) == (query, key)), 0)
            kept = len(holding(result, panel.layer, panel.head, panel.pair))
            prefix = f"{letter}: " if letter else ""
            if count:
                cut = "" if kept == count else f", {kept} of them among the {result.keep} nearest that each keeps"
                parts.append(f"{prefix}{count} dimension{'s' * (count != 1)}{cut}")
            else:
                parts.append(f"{prefix}not among the head's kept pairs")
        return f"Behind {query} → {key}: {'; '.join(parts)}"

    def _paint_inside(self) -> None:
        """List the pairs of the selected dimension."""
        panel, table = self.panel, self.inside
        two = len(panel.shown_results) > 1
        pairs: dict[tuple[str, str], list[Any]] = {}
        for letter, result in zip(panel.letters, panel.shown_results, strict=True):
            if panel.head_computed and has(result, panel.layer, panel.head) and 0 <= panel.dimension < result.d_head:
                for query, key, _, score in result.dimension_pairs(panel.layer, panel.head, panel.dimension):
                    pairs.setdefault((query, key), [score, []])[1].append(letter)
        columns: list[dict[str, Any]] = [{"label": "query"}, {"label": "key"}]
        columns += [{"label": "in"}] if two else []
        columns.append({"label": "cosine", **RIGHT})
        ordered = sorted(pairs.items(), key=lambda item: (panel.matched_word not in item[0], -item[1][0]))
        rows = [[*pair, *([" and ".join(where)] if two else []), round(score, 3)] for pair, (score, where) in ordered]
        with table.hold_sync():
            table.rows = []
            table.columns = columns
            marked = any(panel.matched_word in row[:2] for row in rows)
            first = f"those with “{panel.matched_word}”" if marked else "the nearest"
            table.caption = f"Pairs of dimension {panel.dimension}, {first} first" if rows else ""
            table.empty = (
                "Click a dimension to list its pairs, nearest first."
                if panel.dimension < 0
                else f"Dimension {panel.dimension} has no pair."
            )
            table.rows = rows

    # what a user does -------------------------------------------------------------------------------------------------

    def _pair_picked(self, change: Any) -> None:
        pair = self._rows[change.new] if change.new >= 0 else None
        self.panel.select_pair(() if pair is None else (pair.query, pair.key))

    def _dimension_picked(self, change: Any) -> None:
        self.panel.dimension = self._numbers[change.new] if change.new >= 0 else -1
