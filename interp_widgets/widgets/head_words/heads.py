"""The heads of one model or two: word pairs of each head, dimensions behind a pair, and heads with a word."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis.head_words import HeadWordChance, HeadWordResult
from interp_widgets.analysis.head_words.chance import MOST_SHUFFLES
from interp_widgets.analysis.head_words.head_word_result import FoundWord
from interp_widgets.compute.memory import describe_seconds
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import TypedList, shown_if
from ..base.description import MOST_ROWS, Description, Step
from ..base.fields import Bounds, Incomplete, field
from ..base.jobs import Derived
from ..base.request import result_variables
from ..base.workbench import in_model
from .head_grid import COLOURS, HeadGrid
from .pair_tables import CHANGES, PairTables
from .word_pairs import ChanceRequest, HeadWordRequest, WordPairPanel
from .word_rows import dimension_rows, has, pair_rows

CHANCE_SECONDS = 30.0
"""Seconds: a chance-level search that is forecast to take longer waits for its button."""


class HeadWords(WordPairPanel):
    """The grid of all heads, coloured by a statistic, and below it the pairs and dimensions of the selected head."""

    title, pair_views = "Head words", ("difference", "beside")
    color = field(
        COLOURS, "pairs", label="Colour", redraws=True, help="Quantity shown as colour",
        offers=lambda panel: [
            name for name in COLOURS
            if (name != "change" or len(panel.models) > 1) and (name != "excess" or panel.asks_words)
        ],
    )  # fmt: skip
    word = field(
        str, label="Find word", placeholder="any word", redraws=True, validated_by_result=True,
        help="Mark the heads that have this word; empty: none",
    )  # fmt: skip
    layer = field(in_model(), selects=True)
    """The selected layer."""
    head = field(in_model(), selects=True)
    """The selected head of that layer."""
    pair = field(TypedList(count=2), selects=True, validated_by_result=True)
    """The selected word pair [query, key] of the selected head, or empty."""
    dimension = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True)
    """The selected dimension of that head, -1 for none."""
    shuffles = field(
        Annotated[int, Bounds(0, MOST_SHUFFLES)], 10, label="Shuffles", group="words", width="short", redraws=True,
        more=True, shown_if=lambda panel: panel.asks_words,
        help="Number of shuffles of the word vectors for the chance level; 0: no chance level",
    )  # fmt: skip
    pair_change = field(
        CHANGES, "all", label="Pairs", group="pairs", selects=True, help="Which pairs of a head to list",
        shown_if=lambda panel: len(panel.models) > 1 and panel.view not in ("A", "B"),
    )  # fmt: skip

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.head_chosen = False
        """Whether a head has been chosen: until then none is marked."""
        self.chance_sentence = ""
        """Why there is no chance level, or that it is being computed."""
        self._matches: tuple[Any, str, tuple[FoundWord | None, ...]] = ((), "", ())
        super().__init__(model, tuned, **options)

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        self.head_chosen = bool({"layer", "head", "pair", "dimension"} & keywords)
        return super().defaults(keywords)

    def build(self) -> None:
        if self.color == "change" and len(self.models) < 2:
            raise ValueError(
                "the colour 'change' compares two models: open the browser on two, or choose another colour"
            )
        super().build()
        self._beside_chance = Derived(self, self._chance_there, title="Chance level", channel="chance")
        self.chance_button = self.on_click(
            W.Button(description="Compute it", tooltip="Search again with the word vectors shuffled"),
            lambda: self.ask_chance(whatever_it_takes=True),
        )
        self.grid, self.tables = HeadGrid(self), PairTables(self)
        self.arrange(self.grid.parts, self.tables.parts, spare=self.grid.sentences)
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

    @property
    def chance(self) -> tuple[HeadWordChance, ...]:
        """The chance level of each model; empty while unknown."""
        return self._beside_chance.of(self._chance_key) or ()

    @property
    def _chance_key(self) -> Any:
        return self.results, self.shuffles

    def ask_chance(self, *, whatever_it_takes: bool = False) -> None:
        """Search again with shuffled word vectors in the background; if that takes long, wait for the button."""
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

    # the selection ----------------------------------------------------------------------------------------------------

    @property
    def shown_results(self) -> tuple[HeadWordResult, ...]:
        """The results that the view shows: one, or both."""
        return tuple(self.results[index] for index in pair_view.shown_indices(self)) if self.results else ()

    @property
    def matches(self) -> tuple[FoundWord | None, ...]:
        """The searched word in each result; None if there is no word, or it is not in the list."""
        if self._matches[:2] != (self.results, self.word):
            matches = (result.find(self.word) if self.word in result.vocabulary else None for result in self.results)
            self._matches = self.results, self.word, tuple(matches)
        return self._matches[2]

    @property
    def matches_shown(self) -> tuple[FoundWord | None, ...]:
        """The found word in each result in view."""
        return tuple(self.matches[index] for index in pair_view.shown_indices(self)) if self.results else ()

    @property
    def matched_word(self) -> str:
        """The searched word, if it is in the list of a result in view; else empty."""
        return self.word if any(self.matches_shown) else ""

    @property
    def letters(self) -> tuple[str, ...]:
        """The letter of each result in view; empty if there is only one."""
        return tuple(letter.strip() for letter in pair_view.letters(self.shown_results))

    @property
    def source_words(self) -> str:
        """Where the words on the screen come from."""
        request = self.shown_request
        return request.source.describe() if isinstance(request, HeadWordRequest) else "as saved"

    @property
    def only_words(self) -> str:
        """Which words of the list were searched."""
        request = self.shown_request
        return request.only if isinstance(request, HeadWordRequest) else ""

    @property
    def head_computed(self) -> bool:
        """Whether a result in view has the selected head."""
        return self.head_chosen and any(has(result, self.layer, self.head) for result in self.shown_results)

    @property
    def first_dimension(self) -> int:
        """The first dimension behind the selection; -1 for none."""
        if not self.head_computed:
            return -1
        rows = dimension_rows(self.shown_results, self.matches_shown, self.layer, self.head, self.pair)
        return rows[0].dimension if rows else -1

    # what a user does -------------------------------------------------------------------------------------------------

    def select_cell(self, layer: int, head: int) -> None:
        """Select a head; ValueError for one that no result on the screen has."""
        if self.results and not any(has(result, layer, head) for result in self.results):
            raise ValueError(f"head {head} of layer {layer} was not computed: choose a coloured cell of the grid")
        with self.hold():
            self.layer, self.head = layer, head
            self._moved()

    def look_at_pair(self, pair: Sequence[str]) -> None:
        """Select a word pair (query, key) of the selected head, or none; its first dimension is listed."""
        with self.hold():
            self.pair = list(pair)
            if pair:
                self.dimension = self.first_dimension

    def _moved(self) -> None:
        """Clear pair and dimension of the previous head."""
        self.head_chosen = True
        with self.hold():
            self.pair = []
            self.dimension = self.first_dimension

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
