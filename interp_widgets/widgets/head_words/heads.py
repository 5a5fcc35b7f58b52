"""The heads of one model or two: word pairs of each head, dimensions behind a pair, and heads with a word."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import traitlets as T

from interp_widgets.analysis.head_words import HeadWordChance, HeadWordResult
from interp_widgets.compute.memory import describe_seconds
from interp_widgets.figures.static import Scene

from ..base import pair_view
from ..base.controls import shown_if
from ..base.description import MOST_ROWS, Description, Step
from ..base.fields import Incomplete
from ..base.request import result_variables
from .head_grid import HeadGrid
from .head_selection import HeadSelection
from .pair_tables import PairTables
from .word_pairs import ChanceRequest, HeadWordRequest
from .word_rows import pair_rows

CHANCE_SECONDS = 30.0
"""Seconds: a chance-level search that is forecast to take longer waits for its button."""


class HeadWords(HeadSelection):
    """The grid of all heads, coloured by a statistic, and below it the pairs and dimensions of the selected head."""

    title = "Head words"

    def build(self) -> None:
        super().build()
        self.grid, self.tables = HeadGrid(self), PairTables(self)
        self.arrange(self.grid.parts, self.tables.parts, below=self.grid.sentences)
        self.watch(self, "word", lambda _: self._find())
        self.watch(self, ["layer", "head"], lambda _: self._moved())

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[HeadWordResult, ...], request: Any) -> None:
        if not self.head_chosen:
            self._choose_first(results[0])
        if self.head_chosen and self.dimension < 0:
            self.dimension = self.first_dimension
        self.grid.paint()
        self.compare()
        self.ask_chance()

    def appear(self) -> None:
        super().appear()
        if self.results:
            self.ask_chance()  # start again if it was cancelled

    def draw_selection(self) -> None:
        if self.results:
            self.grid.paint_selection()
            self.tables.paint()

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        if not self.head_computed:
            return Description("Heads", ("Click a head of the grid to list the words it relates.",))
        rows = pair_rows(self.results, self.layer, self.head, self.matched_word)
        lines = [
            f"{start}{chance.head_in_words(self.layer, self.head)}."
            for index, start in zip(pair_view.shown_indices(self), pair_view.starts(self), strict=True)
            for chance in self.chance[index : index + 1]
            if self.layer in chance.layers
        ] or [f"{len(rows)} pairs are kept."]
        names = [letter.strip() or "dimensions" for letter in pair_view.letters(self.results)]
        return Description(
            f"Words of head {self.head} of layer {self.layer}",
            ("Query → key, and the number of dimensions that have the pair.", *lines),
            ("pair", *names),
            tuple(
                (f"{row.query} → {row.key}", *(str(count or "–") for count in row.counts)) for row in rows[:MOST_ROWS]
            ),
            (Step("ablation", "Does it need this head?", {"tab": "heads", "kind": "head"}),),
        )

    @property
    def shows_comparison(self) -> bool:
        return self.color == "change"

    def draw_comparison(self, sentence: str) -> None:
        if self.comparison is not None:
            self.grid.paint()
            self.tables.paint()

    # the chance level -------------------------------------------------------------------------------------------------

    def ask_chance(self, *, whatever_it_takes: bool = False) -> None:
        request, complete = self.shown_request, not any(result.partial for result in self.results)
        self.chance_sentence = ""
        shown_if(self.chance_button, False)
        if not self.results or not isinstance(request, HeadWordRequest) or not self.shuffles or not complete:
            self._beside_chance.forget()
            self.grid.paint_chance()
            return
        chance, models = ChanceRequest(request, max(2, self.shuffles)), self.models
        seconds = self.answers.forecast(chance).seconds  # 0 for cached or shipped answers
        if not (self.chance or whatever_it_takes) and seconds > CHANCE_SECONDS:
            self.chance_sentence = (
                f"The chance level has not been computed yet: {self.shuffles} shuffles take about "
                f"{describe_seconds(seconds)}."
            )
            shown_if(self.chance_button, True)
            self.grid.paint_chance()
            return

        def chance_of(index: int, job: Any) -> HeadWordChance:
            def progress(done: int, total: int) -> None:
                job.progress(done + index * total, len(models) * total)

            model = models[index]
            result: HeadWordChance = self.answers.cached_or_compute(
                chance, model, lambda: chance.answer(model, models, progress, job.check)
            )
            return result

        def work(job: Any) -> tuple[HeadWordChance, ...]:
            return tuple(chance_of(index, job) for index in range(len(models)))

        self._beside_chance.ask(self._chance_key, work, again=self.active)
        if not self.chance:
            self.chance_sentence = "Searching with shuffled word vectors: how many pairs are there by chance?"
        self.grid.paint_chance()

    def _chance_there(self) -> None:
        if self._beside_chance.failure:
            self.chance_sentence = self._beside_chance.failure
        self.grid.paint()
        self._draw_selection()

    def _choose_first(self, result: HeadWordResult) -> None:
        """Select the head whose kept pairs have the most dimensions to begin with."""
        if not np.isfinite(result.mean_count).any() or result.partial:
            return
        row, head = divmod(int(np.nanargmax(result.mean_count)), result.n_heads)
        self.select_cell(result.layers[row], head)

    # what a user does -------------------------------------------------------------------------------------------------

    @T.validate("word")
    def _spelled(self, proposal: Any) -> str:
        """A word as the lists spell it, once there are any; `check_chosen` refuses a word that they do not have."""
        word = str(proposal.value)
        return self._known(word) or word

    def _known(self, word: str) -> str:
        """The word as a list spells it; empty if none has it."""
        if any(word in result.vocabulary for result in self.results):
            return word
        return known_spelling(word, self.results[-1].vocabulary) if self.results else ""

    def _find(self) -> None:
        if self.results and not self.pair:
            self.dimension = self.first_dimension

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {
            "dimension": (self.results[0].d_head, "the dimensions of a head"),
            "pair": ({word for result in self.results for word in result.vocabulary}, "the words of the list"),
        }

    def check_chosen(self) -> None:
        super().check_chosen()
        if self.word and "word" in {*self._chosen_at_start, *self._changed} and not any(self.matches):
            if not (known := self._known(self.word)):
                raise Incomplete("word", unknown_word(self.word, self.results[-1].vocabulary))
            self.word = known

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> list[str]:
        return [f"{result_variables(self.models)[-1]}.pairs({self.layer}, {self.head})"]

    def scene(self) -> Scene:
        return self.grid.maps.scene()


def known_spelling(word: str, vocabulary: Sequence[str]) -> str:
    """A searched word as the list spells it; empty if the list does not have it."""
    word = word.strip()
    if word in vocabulary:
        return word
    return {known.lower(): known for known in reversed(vocabulary)}.get(word.lower(), "")


def unknown_word(word: str, vocabulary: Sequence[str]) -> str:
    """The error for a word that is not in a list, with similar ones that are."""
    small = {known.lower(): known for known in reversed(vocabulary)}
    near = difflib.get_close_matches(word.strip().lower(), small, 3, 0.7)
    hint = f"; similar: {', '.join(small[key] for key in near)}" if near else ": try another, or add it to the list"
    return f"the word {word.strip()!r} is not among the {len(vocabulary):,} words of the list{hint}"
