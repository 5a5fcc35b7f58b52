"""The grid of all heads, and the list of heads with a word."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.head_words import HeadWordResult
from interp_widgets.analysis.head_words.head_word_result import FoundWord

from ..base import pair_view
from ..base.controls import row, shown_if
from ..views import Heatmap, Table
from ..views.heatmap import Colours
from .head_selection import COLOURS, HeadSelection
from .word_pairs import LEFT_OUT
from .word_rows import Matches, WordRow, common_words, counts_of, word_rows

Array = NDArray[np.float64]

NAMED = 8
"""Most missing words named in a sentence."""
LISTED = 300
"""Number of words to choose from."""


UNITS = {
    "pairs": "different pairs",
    "excess": "pairs above chance",
    "energy": "energy",
    "count": "mean dimensions",
    "word": "dimensions",
    "change": "1 − M",
}
"""Names of the statistics at the colour bar, where space is short."""


def whole(values: NDArray[Any], layers: Sequence[int], n_layers: int) -> Array:
    """(n_layers, heads) values of the computed layers; NaN for the others."""
    matrix = np.full((n_layers, values.shape[1]), np.nan)
    matrix[list(layers)] = values
    return matrix


def statistic(result: HeadWordResult, color: str, match: FoundWord | None) -> NDArray[Any]:
    """(layers, heads) statistic of one result."""
    if color == "energy":
        return np.asarray(result.head_energy)
    if color == "count":
        return np.asarray(result.mean_count)
    return counts_of(result, match) if color == "word" else np.asarray(result.n_pairs)


def colours(panel: Any, view: str, n_layers: Sequence[int]) -> Colours | str:
    """The colours of a view, or a sentence that says why there are none."""
    color, comparison = panel.color, panel.comparison
    if color == "word" and not any(panel.matches):
        return "Find a word: the colour is the number of a head's dimensions that have it"
    if color == "change":
        if comparison is None:
            return "The change needs two results of the same shape: see the Comparison tab"
        return Colours(whole(comparison.head_change, comparison.layers, max(n_layers)), 0.0, 1.0, UNITS[color])
    if color == "excess":
        if not panel.chance:
            return "The chance level has not been computed yet"
        arrays = [
            whole(chance.n_pairs - chance.chance_pairs.mean(axis=0), chance.layers, layers)
            for chance, layers in zip(panel.chance, n_layers, strict=False)
        ]
    else:
        arrays = [
            whole(statistic(result, color, match), result.layers, layers)
            for result, match, layers in zip(panel.results, panel.matches, n_layers, strict=False)
        ]
    matrix, largest = pair_view.of_view(view, arrays), pair_view.symmetric_limit(view, [arrays])
    if matrix is None:
        a, b = (" × ".join(map(str, array.shape)) for array in arrays)
        return f"A difference needs models of the same shape, these have {a} and {b} heads: choose A beside B"
    if view == "difference":
        return Colours(matrix, -largest, largest, f"{UNITS[color]}, B − A", signed=True)
    if color == "excess":
        return Colours(matrix, -largest, largest, UNITS[color], signed=True)
    least = min((float(np.nanmin(array)) for array in arrays if np.isfinite(array).any()), default=0.0)
    # where all heads have many, colours from 0 would be one colour
    return Colours(matrix, least if 2 * least > largest else 0.0, largest, UNITS[color])


def texts(results: Sequence[HeadWordResult], shown: str, matches: Matches, n_layers: Sequence[int]) -> list[str]:
    """Texts of the cells, row by row: how many dimensions keep a pair with the word; empty for none."""
    by_model = [
        whole(counts_of(result, match), result.layers, layers)
        for result, match, layers in zip(results, matches, n_layers, strict=False)
    ]
    if shown != "difference":
        return [str(int(count)) if count > 0 else "" for count in by_model[pair_view.LETTERS.index(shown)].ravel()]
    if by_model[0].shape != by_model[1].shape:
        return []
    return [
        f"{int(a)} → {int(b)}" if a > 0 or b > 0 else ""
        for a, b in np.nan_to_num(np.stack([counts.ravel() for counts in by_model], axis=1)).tolist()
    ]


class HeadGrid:
    """Layer × head, coloured by a statistic; a searched word puts the number of its pairs into the cells."""

    def __init__(self, panel: HeadSelection) -> None:
        self.panel = panel
        self.about = W.HTML("")
        self.maps = pair_view.SideBySide(
            panel, lambda: Heatmap(
                row_name="layer", column_name="head", y_label="layer", x_label="head", empty="No grid yet."
            ), alike=lambda: panel.color == "change",  # one picture for both models
        )  # fmt: skip
        self.heat = self.maps.views[0]
        self.heads = Table(empty="No heads yet.", height=244)
        both = W.VBox([*self.maps.boxes, W.VBox([self.heads])])
        both.add_class("iw-beside")
        self.chance = W.HTML("")
        self.chance_row = row(self.chance, panel.chance_button)
        self.parts, self.sentences = [both], [self.chance_row, self.about]
        self._rows: list[WordRow] = []
        self._words: list[str] = []
        for heat in self.maps.views:
            panel.on_user(heat, "pinned", self._pinned)
            panel.on_user(heat, "cross", self.maps.follow)
        panel.on_user(self.heads, "selected", self._picked)

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Update grid and list to the browser's results, word and view."""
        for view, heat in self.maps.drawn():
            self._paint_heat(view, heat)
        self._paint_heads()
        self.about.value = "<br>".join(_about(self.panel.results, self.panel.source_words, self.panel.only_words))
        self.paint_chance()
        self.paint_selection()

    def paint_chance(self) -> None:
        """Show the number of pairs against the chance level."""
        panel = self.panel
        lines = [
            f"{start}<b>Against chance:</b> {escape(chance.in_words())}"
            for start, chance in zip(pair_view.all_starts(panel.chance), panel.chance, strict=True)
        ]
        self.chance.value = "<br>".join(lines or ([escape(panel.chance_sentence)] if panel.chance_sentence else []))
        shown_if(self.chance_row, bool(self.chance.value))

    def paint_selection(self) -> None:
        """Show the selected head."""
        panel = self.panel
        at = [panel.layer, panel.head]
        for heat in self.maps.shown:
            inside = panel.head_chosen and all(i < n for i, n in zip(at, heat.shape, strict=True))
            with heat.hold_sync():
                heat.cross = heat.pinned = at if inside else []
        mine = (i for i, line in enumerate(self._rows) if panel.head_chosen and [line.layer, line.head] == at)
        self.heads.selected = next(mine, -1)

    def _paint_heat(self, view: str, heat: Heatmap) -> None:
        panel = self.panel
        n_layers = [model.n_layers for model in panel.models]
        colouring = colours(panel, view, n_layers)
        if isinstance(colouring, str):
            heat.empty = colouring
            heat.set_matrix(None)
            return
        shape = colouring.matrix.shape
        marked = texts(panel.results, view, panel.matches, n_layers) if panel.matched_word else []
        with heat.hold_sync():
            heat.title, heat.value_label = self._title(view), colouring.label
            heat.numbers_from = None if panel.matched_word else 1e-12
            heat.set_matrix(
                colouring.matrix, rows=list(map(str, range(shape[0]))), columns=list(map(str, range(shape[1]))),
                vmin=colouring.vmin, vmax=colouring.vmax, signed=colouring.signed,
                texts=marked if len(marked) == colouring.matrix.size else [],
            )  # fmt: skip

    def _title(self, view: str) -> str:
        panel = self.panel
        which = "A → B · " if panel.color == "change" else pair_view.title_start(panel, view)
        rest = ", partial" if any(result.partial for result in panel.results) else ""
        word = f", in the cells: dimensions with “{panel.word}”" if panel.matched_word else ""
        return f"{which}Heads, coloured by {COLOURS[panel.color]}{word}{rest}"

    def _paint_heads(self) -> None:
        panel, word, table = self.panel, self.panel.word, self.heads
        self._words = []
        if not word:
            self._rows = []
            self._paint_words()
            return
        rows = word_rows(panel.shown_results, panel.matches_shown)
        self._rows = rows
        letters = [""] if len(panel.shown_results) == 1 else [" A", " B"]
        columns: list[dict[str, Any]] = [{"label": "layer", "align": "right"}, {"label": "head", "align": "right"}]
        tip = "dimensions of the head that keep a pair with the word"
        columns += [
            {"label": f"dim.{letter}" if letter else "dimensions", "align": "right", "title": tip} for letter in letters
        ]
        columns.append({"label": "nearest pair", "title": "query → key, the pair with the largest cosine"})
        if not panel.matched_word:
            caption, empty = "", f"“{word}” is not in the word list."
        else:
            caption = f"Heads with a pair of “{word}”: {len(rows)} of {panel.shown_results[-1].n_pairs.size}"
            empty = f"No head has a pair with “{word}” among its dimensions' kept pairs."
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.caption, table.instruction, table.empty = columns, caption, "", empty
            table.rows = [[line.layer, line.head, *line.counts, line.pair] for line in rows]

    def _paint_words(self) -> None:
        """List words to choose from while none is searched."""
        shown_results, table = self.panel.shown_results, self.heads
        rows = common_words(shown_results)[:LISTED]
        self._words = [word for word, _ in rows]
        letters = [""] if len(shown_results) == 1 else [" A", " B"]
        columns: list[dict[str, Any]] = [{"label": "word"}]
        tip = "heads with a kept pair of the word"
        columns += [{"label": f"heads{letter}", "align": "right", "title": tip} for letter in letters]
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.caption = columns, "Words in the kept pairs of most heads"
            table.instruction = "click one to find it"
            table.empty = "No head has a pair."
            table.rows = [[word, *counts] for word, counts in rows]

    # what a user does -------------------------------------------------------------------------------------------------

    def _pinned(self, change: Any) -> None:
        if change.new:
            self.panel.select_cell(*change.new)

    def _picked(self, change: Any) -> None:
        if change.new < 0:
            return
        if self._words:
            self.panel.word = self._words[change.new]
        else:
            line = self._rows[change.new]
            with self.panel.batch_changes():
                self.panel.select_cell(line.layer, line.head)
                self.panel.dimension = line.dimension


def _about(results: Sequence[HeadWordResult], source: str, only: str) -> list[str]:
    """Which words were searched, and which could not be, as HTML."""
    first = results[-1]
    where = f" ({escape(source)})" if source else ""
    searched = f"{len(first.vocabulary):,} words{where}; each dimension's top {first.top} as query and as key; "
    lines = [f"{searched}of each head, the {first.keep} pairs that most dimensions have are kept."]
    why = LEFT_OUT.get(only, "are not looked up")
    for words, singular, plural in (
        (first.left_out, f"that {why} is left out", f"that {why} are left out"),
        (first.missing, "has no word vector and is in no pair", "have no word vector and are in no pair"),
        (first.unknown, "cannot be tokenized and was left out",
        "cannot be tokenized and were left out"),
    ):  # fmt: skip
        if words:
            rest = f" and {len(words) - NAMED:,} more" if len(words) > NAMED else ""
            named = ", ".join(map(escape, words[:NAMED]))
            count = f"{len(words):,} word{'s' * (len(words) > 1)}"
            lines.append(f"<b>{count}</b> {plural if len(words) > 1 else singular}: {named}{rest}.")
    if not any(result.n_pairs.any() for result in results):
        lines.append(
            "<b>No head has a pair.</b> The threshold of similarity comes from the list itself: "
            "use a longer one, of a few hundred words."
        )
    return lines
