"""The options and the selection of the panel of all heads, which its grid and its tables read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import ipywidgets as W

from interp_widgets.analysis.head_words import HeadWordChance, HeadWordResult
from interp_widgets.analysis.head_words.chance import MOST_SHUFFLES
from interp_widgets.analysis.head_words.head_word_result import FoundWord
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import TypedList
from ..base.fields import Bounds, field
from ..base.jobs import Derived
from ..base.workbench import in_model
from .word_pairs import HeadWordRequest, WordPairPanel
from .word_rows import dimension_rows, has

COLOURS = {
    "pairs": "number of pairs",
    "excess": "pairs beyond chance",
    "energy": "energy",
    "count": "dimensions per kept pair",
    "word": "dimensions with the word",
    "change": "change of the pairs, 1 − M",
}
CHANGES = {"all": "all pairs", "gained": "gained", "lost": "lost", "kept": "kept"}


class HeadSelection(WordPairPanel):
    """Base of the panel of all heads: its options, the searched word, the selected head and the chance level."""

    pair_views = ("difference", "beside")
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
        raise NotImplementedError

    def _chance_there(self) -> None:
        """Draw the chance level, or say why there is none."""
        raise NotImplementedError

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
        with self.batch_changes():
            self.layer, self.head = layer, head
            self._moved()

    def select_pair(self, pair: Sequence[str]) -> None:
        """Select a word pair (query, key) of the selected head, or none; its first dimension is listed."""
        with self.batch_changes():
            self.pair = list(pair)
            if pair:
                self.dimension = self.first_dimension

    def _moved(self) -> None:
        """Clear pair and dimension of the previous head."""
        self.head_chosen = True
        with self.batch_changes():
            self.pair = []
            self.dimension = self.first_dimension
