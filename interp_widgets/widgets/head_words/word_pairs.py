"""The base of both panels: the word pairs of every head, computed or saved, and the comparison of two results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.head_words import (
    HeadComparison,
    HeadWordChance,
    HeadWordResult,
    compare_heads,
    has_token_counts,
    head_word_chance,
    head_word_pairs,
    head_words_cost,
    words_read,
)
from interp_widgets.analysis.head_words.word_pairs import MOST_KEEP, MOST_TOP
from interp_widgets.data.word_vectors import WordVectors
from interp_widgets.models import Model

from ..base.answers import once_for
from ..base.code import call, cell
from ..base.fields import Bounds, field
from ..base.jobs import Derived
from ..base.request import model_variables, result_variables
from ..base.saved_result import SavedAnswer, SavedResult
from ..base.word_source import WordPanel, WordSource

RESAMPLES = 999
QUIET_PAIRS = 2_000_000
"""Most pairs of dimensions that are compared at once, without the status line."""
ONLY = {"all": "all of the list", "read": "that the models have read", "one_token": "of one token"}
"""Which words of the list are searched."""
LEFT_OUT = {"read": "the models have never read", "one_token": "the tokenizer writes in several tokens"}
"""Why the others are not: words that …"""
INCOMPLETE = "The comparison needs the complete results of both models."


@dataclass(frozen=True)
class HeadWordRequest:
    """The word pairs of all heads for one word list."""

    source: WordSource
    top: int
    keep: int
    only: str = "all"
    layers: tuple[int, ...] | None = None
    """Of the model; None for all."""

    def words_for(
        self, models: Sequence[Model], check: Callable[[], None]
    ) -> tuple[tuple[str, ...], tuple[str, ...], WordVectors]:
        """The words to search, those of the list that are left out, and the vectors; for two models the same
        words, those that both have read."""
        listed, vectors = self.source.of_model(models[0]).read(check)
        check()
        words = listed
        for model in models if self.only != "all" else ():
            words = words_read(model, words, one_token=self.only == "one_token", check=check)
        there = set(words)
        return words, tuple(word for word in listed if word not in there), vectors

    def answer(
        self,
        model: Model,
        *,
        models: Sequence[Model] = (),
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[HeadWordResult], None],
    ) -> HeadWordResult:
        """Search one model."""
        words, left_out, vectors = self.words_for(models or (model,), check)
        options = {"vectors": str(self.source.vectors or "demo"), "only": self.only}

        def with_source(result: HeadWordResult) -> HeadWordResult:
            return replace(result, left_out=left_out, provenance={**result.provenance, **options})

        return with_source(
            head_word_pairs(
                model, words=words, vectors=vectors, top=self.top, keep=self.keep, layers=self.layers,
                progress=progress, check=check, on_partial=lambda part: on_partial(with_source(part)),
            )
        )  # fmt: skip

    def cost(self, model: Model) -> Cost:
        """FLOPs and bytes."""
        cost = head_words_cost(model, self.source.count, width=self.source.width, top=self.top, keep=self.keep)
        return cost if self.layers is None else Cost(cost.flops * len(self.layers) / model.n_layers, cost.bytes)

    def lines(self, models: tuple[Any, ...]) -> tuple[list[str], list[str]]:
        """Names to import, and lines of a cell that repeat it."""
        imports, lines, words = self.source.code(model_variables(models)[0])
        options: dict[str, Any] = {
            name: value for name, value in (("top", self.top), ("keep", self.keep)) if value != 100
        }
        if self.layers is not None:
            options["layers"] = list(self.layers)
        if self.only != "all":
            listed = words.get("words", words.get("vectors") if self.source.kind == "vectors" else None)
            for name in model_variables(models):
                parts = [name, *([] if listed is None else [listed])]
                lines.append(
                    f"words = {call('words_read', *parts, **({'one_token': True} if self.only == 'one_token' else {}))}"
                )
                listed = words["words"] = "words"
            imports = [*imports, "words_read"]
        arguments = [f"{name}={text}" for name, text in words.items()]
        for name, variable in zip(model_variables(models), result_variables(models), strict=True):
            lines.append(f"{variable} = {call('head_word_pairs', name, *arguments, **options)}")
        return ["head_word_pairs", *imports], lines


@dataclass(frozen=True)
class ChanceRequest:
    """The request for the chance level of the heads' pairs."""

    search: HeadWordRequest
    shuffles: int

    def answer(
        self, model: Model, models: Sequence[Model], progress: Callable[[int, int], None], check: Callable[[], None]
    ) -> HeadWordChance:
        """Shuffle the word vectors for one model."""
        words, _, vectors = self.search.words_for(models, check)
        return head_word_chance(
            model, words=words, vectors=vectors, top=self.search.top, shuffles=self.shuffles, progress=progress,
            check=check,
        )  # fmt: skip

    def cost(self, model: Model) -> Cost:
        """About one search per shuffle."""
        once = self.search.cost(model)
        return Cost(flops=once.flops * (self.shuffles + 1), bytes=once.bytes)


@dataclass(frozen=True)
class SavedRequest(SavedAnswer):
    """A request to saved results."""

    def lines(self, models: tuple[SavedHeads, ...]) -> tuple[list[str], list[str]]:
        """Names to import, and lines of a cell that open the files again."""
        names = result_variables(models)
        return ["HeadWordResult"], [model.line(name) for model, name in zip(models, names, strict=True)]


class SavedHeads(SavedResult):
    """Saved word pairs in place of a model."""

    kind = HeadWordResult

    def __init__(self, result: HeadWordResult, path: str = "") -> None:
        super().__init__(result, path)
        self.n_heads = result.n_heads


class WordPairPanel(WordPanel):
    """Base of the panels on the word pairs of all heads; two results are compared as soon as they are complete."""

    cached_as = "head word pairs"
    top = field(
        Annotated[int, Bounds(1, MOST_TOP)], 100, label="Top K", group="words", new_row=True, width="short",
        help="Number of top words of a dimension, as query and as key, from which pairs are formed",
        shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    keep = field(
        Annotated[int, Bounds(1, MOST_KEEP)], 100, label="Keep", group="words", width="short",
        help="Number of pairs kept per head and per dimension", shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    only = field(
        ONLY, "all", label="Only words", group="words", shown_if=lambda panel: panel.asks_words,
        offers=lambda panel: [name for name in ONLY if name != "read" or all(map(has_token_counts, panel.models))],
        help="Which words of the list to search; the embeddings of words that a model has never read are meaningless",
    )  # fmt: skip
    groups = field(
        Annotated[int, Bounds(1, lambda panel: min(model.n_layers for model in panel.models))], 4,
        label="Layer groups", group="comparison", width="short", redraws=True,
        shown_if=lambda panel: len(panel.models) > 1,
    )  # fmt: skip

    def build(self) -> None:
        super().build()
        if not self.asks_words:
            self.run_button.add_class("iw-hidden")
        self._comparing = Derived(self, self._compared, title="Comparing", channel="comparison")

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return only_read(self.models, keywords) | super().defaults(keywords)

    def request(self) -> HeadWordRequest | SavedRequest:
        if not self.asks_words:
            return SavedRequest()
        return HeadWordRequest(self.words_asked_for(), self.top, self.keep, self.only)

    def compute(self, request: Any, model: Any, **reports: Any) -> HeadWordResult:
        if isinstance(request, HeadWordRequest):
            return request.answer(model, models=self.models, **reports)
        return super().compute(request, model, **reports)

    def depends_on(self, request: Any, model: Any) -> tuple[Any, ...]:
        """The words left out for two models depend on both."""
        search = request.search if isinstance(request, ChanceRequest) else request
        chosen = isinstance(search, HeadWordRequest) and search.only != "all"
        return tuple(other for other in self.models if other is not model) if chosen else ()

    # the comparison ---------------------------------------------------------------------------------------------------

    @property
    def comparison(self) -> HeadComparison | None:
        """The comparison of the two results on the screen; None while there is none."""
        comparison = self._comparing.of((self.results, self.groups))
        return None if isinstance(comparison, str) else comparison

    @property
    def shows_comparison(self) -> bool:
        """Whether the picture shows the comparison."""
        return True

    def draw_comparison(self, sentence: str) -> None:
        """Show the comparison, or the sentence that says why there is none."""

    def compare(self) -> None:
        """Compare the two results on the screen in the background, unless that is done.

        A cancelled comparison starts again only on the panel that shows it.
        """
        results, groups = self.results, self.groups
        if len(results) < 2 or any(result.partial for result in results):
            self._comparing.forget()
            self.draw_comparison(INCOMPLETE)
            return

        def work(job: Any) -> HeadComparison | str:
            try:
                return compared(results, groups, job.check)
            except ValueError as error:  # two results that cannot be compared can still be shown
                return str(error)

        quick = sum(len(result.dimension_scores) for result in results) < QUIET_PAIRS
        self._comparing.ask((results, groups), work, again=self.shows_comparison, quiet=quick)

    def _compared(self) -> None:
        """Draw the comparison, or the sentence that says why there is none."""
        comparison = self._comparing.of((self.results, self.groups))
        if comparison is not None:
            self.draw_comparison(comparison if isinstance(comparison, str) else "")

    def change_of(self, layer: int, head: int) -> float | None:
        """1 − M of a head; None while unknown."""
        comparison = self.comparison
        if comparison is None or layer not in comparison.layers or head >= comparison.head_change.shape[1]:
            return None
        value = float(comparison.head_change[list(comparison.layers).index(layer), head])
        return value if np.isfinite(value) else None

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Any) -> str:
        """The search, or the files that were opened; for two results also the comparison."""
        imports, lines = request.lines(self.models)
        if len(self.models) > 1:
            imports = [*imports, "compare_heads"]
            lines.append(f"comparison = {call('compare_heads', *result_variables(self.models), groups=self.groups)}")
        lines += self.last_lines()
        if isinstance(request, SavedRequest):  # no model to load
            return "\n".join([f"from interp_widgets import {', '.join(sorted(imports))}", "", *lines])
        return cell(imports, self.models, lines)

    def last_lines(self) -> list[str]:
        """The last lines of a cell, with what the panel shows."""
        return []


def only_read(models: Sequence[Any], keywords: set[str]) -> dict[str, Any]:
    """By default, search only the words of the demo's list that the models have read, if that is known.

    All words that a user provides are searched.
    """
    provided = {"word_list", "words", "word_file", "vectors"} & keywords
    return {"only": "read"} if not provided and all(map(has_token_counts, models)) else {}


def compared(results: tuple[HeadWordResult, ...], groups: int, check: Callable[[], None]) -> HeadComparison:
    """The comparison of two results, once for all panels that show them."""
    comparison: HeadComparison = once_for(
        results,
        ("compare_heads", groups),
        lambda: compare_heads(*results, groups=groups, resamples=RESAMPLES, check=check),
    )
    return comparison
