"""The head word browser: which words each attention head relates, of one model or two."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.head_words import HeadComparison, HeadWordResult
from interp_widgets.analysis.head_words.head_word_result import FoundWord
from interp_widgets.analysis.head_words.word_pairs import MOST_KEEP, MOST_TOP
from interp_widgets.figures.head_words import change_scene
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base.controls import TypedList
from ..base.fields import Bounds, Incomplete, field
from ..base.saved_result import opened_pair
from ..base.saving import as_one
from ..base.word_source import WordPanel
from ..base.workbench import in_model
from .comparison import ComparisonTab
from .details import CHANGES, Details
from .grid import Grid, known_spelling
from .numbers import COLOURS, has
from .request import HeadWordRequest, SavedHeads, SavedRequest
from .source import source_code

TABS = ("heads", "comparison")
LETTERS = "AB"


class HeadWordBrowser(WordPanel):
    """The word pairs that each attention head relates, read from the weights: grid, pairs, dimensions, word search.

    The grid shows every head, coloured by a statistic; a click lists the head's word pairs, a click on a pair the
    dimensions behind it. A searched word is marked in every head that keeps a pair with it. With two models: A, B, the
    difference, the pairs that a head gained and lost, and a tab that compares layer groups and verbs.

    ``HeadWordBrowser(model)``, ``(base, tuned)``, ``(pair)`` or, to share layer and head with other widgets,
    ``(workbench)``. In the place of a model a saved result may stand, as a :class:`HeadWordResult` or the path that it
    was saved to: then nothing is computed. Every trait below is a keyword too. `run()` computes and returns the
    :class:`HeadWordResult` (a pair of them with two models), which `result` keeps.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1, Figure 2, Table 3.

    Example:
        >>> panel = HeadWordBrowser(model, layer=2, head=0)
        >>> panel.run().find("Paris").nearest[-1][:5]
        (2, 1, 9, 'de', 'Paris')
        >>> panel.close()
    """

    title: ClassVar[str] = "Head words"
    top = field(
        Annotated[int, Bounds(1, MOST_TOP)], 100, label="Top K", width="short",
        help="Words that a dimension reacts to most, as query and as key, that may form pairs",
        shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    keep = field(
        Annotated[int, Bounds(1, MOST_KEEP)], 100, label="Keep", width="short",
        help="Pairs kept of each head and dimension", shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    color = field(
        COLOURS, "pairs", label="Colour", redraws=True, help="Which number colours the grid",
        offers=lambda panel: [name for name in COLOURS if name != "change" or len(panel.models) > 1],
    )  # fmt: skip
    word = field(
        str, label="Find word", placeholder="which heads have it?", chooses=True, argument=None,
        help="The word whose heads are marked; empty for none",
    )  # fmt: skip
    layer = in_model()
    """The chosen layer."""
    head = in_model()
    """The chosen head of that layer."""
    pair = field(TypedList(), chooses=True, argument=None)
    """The chosen word pair [query, key] of the chosen head, or empty."""
    dimension = field(Annotated[int, Bounds(low=-1)], -1, chooses=True, argument=None)
    """The chosen dimension of that head, -1 for none."""
    pair_change = field(
        CHANGES, "all", label="Pairs", group="pairs", argument=None, help="Which pairs of a head are listed"
    )
    groups = field(
        Annotated[int, Bounds(1, lambda panel: min(model.n_layers for model in panel.models))], 4,
        label="Layer groups", group="comparison", width="short", argument=None,
    )  # fmt: skip
    tab = T.Enum(TABS, default_value="heads")
    """The tab that is looked at: Save is about it."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.told = False
        """Whether a head has been chosen."""
        self._found: tuple[Any, str, tuple[FoundWord | None, ...]] = ((), "", ())
        model, tuned = opened_pair(model, tuned, SavedHeads)
        paths = {name: os.fspath(value) for name, value in options.items() if isinstance(value, os.PathLike)}
        super().__init__(model, tuned, **{**options, **paths})

    def defaults(self, given: set[str]) -> dict[str, Any]:
        self.told = bool({"layer", "head", "pair", "dimension"} & given)
        return super().defaults(given)

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        if self.color == "change" and len(self.models) < 2:
            raise ValueError("the colour 'change' compares two models: open the browser on two, or choose another")
        self.inputs.children = [*self.controls.rows("words"), *self.controls.rows()]
        if isinstance(self.models[0], SavedHeads):
            self.run_button.add_class("iw-hidden")
        self.grid, self.about = Grid(self), Details(self)
        self.tabs: W.Tab | None = None
        self.changes: ComparisonTab | None = None
        if len(self.models) > 1:
            self.changes = ComparisonTab(self)
            boxes = [self.grid.box, self.changes.box]
            self.tabs = W.Tab(boxes, titles=[name.title() for name in TABS], selected_index=TABS.index(self.tab))
            self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", TABS[change.new or 0]))
        self.plot.children = [self.grid.box if self.tabs is None else self.tabs]
        self.details.children = self.about.parts
        self.watch(self, "tab", lambda _: self._open_tab())
        self.watch(self, "word", lambda _: self._find())
        self.watch(self, ["layer", "head"], self._moved)
        self.watch(self, ["pair", "dimension"], lambda _: self.about.paint_pair() if self.results else None)
        self.watch(self, "pair_change", lambda _: self.about.paint() if self.results else None)
        self.watch(self, "groups", lambda _: self.changes.compare() if self.changes is not None else None)
        self._open_tab()

    def _open_tab(self) -> None:
        if self.tabs is None:
            if self.tab != "heads":
                raise ValueError("the tab 'comparison' needs two models")
            return
        self.tabs.selected_index = TABS.index(self.tab)
        if self.results and self.changes is not None:
            self.changes.compare()
        (self.details.remove_class if self.tab == "heads" else self.details.add_class)("iw-hidden")

    # what the panel asks for ------------------------------------------------------------------------------------------

    @property
    def asks_words(self) -> bool:
        """Not of saved results, whose words are what they are."""
        return not isinstance(self.models[0], SavedHeads)

    def request(self) -> HeadWordRequest | SavedRequest:
        if isinstance(self.models[0], SavedHeads):
            return SavedRequest()
        return HeadWordRequest(self.words_asked_for(), self.top, self.keep)

    def draw(self, results: tuple[HeadWordResult, ...], request: Any) -> None:
        if not self.told:
            self._choose_first(results[0])
        self.grid.paint()
        self.about.paint()
        if self.told and self.dimension < 0:
            self.dimension = self.about.first_dimension
        if self.changes is not None:
            self.changes.compare()

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {
            "dimension": (self.results[0].d_head, "the dimensions of a head"),
            "pair": ({word for one in self.results for word in one.vocabulary}, "the words of the list"),
        }

    def check_chosen(self) -> None:
        super().check_chosen()
        if self.word and "word" in {*self._asked_for, *self._changed} and not any(self.found):
            self._find()  # in another spelling, or an error that names near ones

    def _choose_first(self, result: HeadWordResult) -> None:
        """A first look: at the head whose kept pairs have the most dimensions."""
        if not np.isfinite(result.mean_count).any() or result.partial:
            return
        row, head = divmod(int(np.nanargmax(result.mean_count)), result.n_heads)
        self.look_at(result.layers[row], head)

    # what is looked at ------------------------------------------------------------------------------------------------

    @property
    def looked_at(self) -> tuple[HeadWordResult, ...]:
        """The results that the view shows: one, or both in a difference."""
        if not self.results:
            return ()
        return self.results if self.shown == "difference" else (self.results[LETTERS.index(self.shown)],)

    @property
    def found(self) -> tuple[FoundWord | None, ...]:
        """Where the searched word is in each result; None where there is no word, or it is not in the list."""
        if self._found[:2] != (self.results, self.word):
            places = (one.find(self.word) if self.word in one.vocabulary else None for one in self.results)
            self._found = self.results, self.word, tuple(places)
        return self._found[2]

    @property
    def found_here(self) -> tuple[FoundWord | None, ...]:
        """The same of the results that the view shows."""
        if not self.results or self.shown == "difference":
            return self.found
        return (self.found[LETTERS.index(self.shown)],)

    @property
    def found_word(self) -> str:
        """The searched word, if it is in the list of a result that is looked at; else empty."""
        return self.word if any(self.found_here) else ""

    @property
    def comparison(self) -> HeadComparison | None:
        """The comparison of the two results on the screen; None while there is none."""
        return None if self.changes is None else self.changes.comparison

    @property
    def letters(self) -> tuple[str, ...]:
        """What to call each of them: its letter, or nothing where there is only one."""
        return tuple(LETTERS) if len(self.looked_at) > 1 else ("",)

    @property
    def source_words(self) -> str:
        """Where the words on the screen come from."""
        request = self.shown_request
        return request.source.describe() if isinstance(request, HeadWordRequest) else "as saved"

    def look_at(self, layer: int, head: int) -> None:
        """Choose a head; ValueError for one that no result on the screen has."""
        if self.results and not any(has(one, layer, head) for one in self.results):
            raise ValueError(f"head {head} of layer {layer} was not computed: choose a coloured cell of the grid")
        self.told = True
        same = (layer, head) == (self.layer, self.head)
        with self.hold():
            self.layer, self.head = layer, head
        if same and self.results:
            self._moved(None)

    def look_at_pair(self, pair: Sequence[str]) -> None:
        """Choose a word pair (query, key) of the chosen head, or none; its first dimension is listed."""
        self.pair = list(pair)
        if pair:
            self.dimension = self.about.first_dimension

    def _moved(self, change: Any) -> None:
        if change is not None:
            self.told = True
        with self.hold():
            self.pair, self.dimension = [], -1
        if self.results:
            self.grid.paint_selection()
            self.about.paint()
            self.dimension = self.about.first_dimension

    def _find(self) -> None:
        if self.results and self.word:
            known = self._known(self.word)
            if known != self.word:
                self.word = known  # which comes here again
                return
        self.redraw()
        if self.results and not self.pair:
            self.dimension = self.about.first_dimension

    def _known(self, word: str) -> str:
        """The word as the lists spell it."""
        if any(word in one.vocabulary for one in self.results):
            return word
        try:
            return known_spelling(word, self.results[-1].vocabulary)
        except ValueError as error:
            self.redraw()  # with nothing marked
            raise Incomplete("word", str(error)) from error

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Any) -> str:
        return source_code(self, request)

    def frame(self) -> Any:
        import pandas as pd

        if self.tab == "comparison":
            found = self._finished()
            return found.change_table().merge(found.verb_table(), on="layers")
        frames = []
        for letter, result in zip(LETTERS, self.results, strict=False):
            table = result.to_frame()
            table.insert(0, "model", letter)
            frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def scene(self) -> Scene:
        return change_scene(self._finished()) if self.tab == "comparison" else self.grid.heat.scene()

    def stored(self) -> Result:
        return self._finished() if self.tab == "comparison" else as_one(self.by_letter())

    def _finished(self) -> HeadComparison:
        if self.comparison is None:
            raise ValueError("there is no comparison to save yet: it needs the complete results of both models")
        return self.comparison
