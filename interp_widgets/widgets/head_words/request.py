"""What a head word browser asks for: one frozen object per run; and results that were computed before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.head_words import HeadWordResult, head_word_pairs, head_words_cost
from interp_widgets.models import Model

from ..base.code import call
from ..base.saved_result import SavedAnswer, SavedResult
from ..base.word_source import WordSource


@dataclass(frozen=True)
class HeadWordRequest:
    """The word pairs of all heads for one word list."""

    source: WordSource
    top: int
    keep: int

    def answer(
        self,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[HeadWordResult], None],
    ) -> HeadWordResult:
        """Search one model."""
        words, vectors = self.source.read(check)
        check()
        found = head_word_pairs(
            model, words=words, vectors=vectors, top=self.top, keep=self.keep, progress=progress, check=check,
            on_partial=on_partial,
        )  # fmt: skip
        return replace(found, provenance={**found.provenance, "vectors": str(self.source.vectors or "demo")})

    def cost(self, model: Model) -> Cost:
        """Operations and bytes."""
        return head_words_cost(model, self.source.count, width=self.source.width, top=self.top, keep=self.keep)

    def code(self, names: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """Names to import, and lines of a cell that repeat it for the models called so."""
        imports, lines, given = self.source.code()
        usual = {"top": self.top, "keep": self.keep}
        options = {name: value for name, value in usual.items() if value != 100}
        words = [f"{name}={text}" for name, text in given.items()]
        for name, variable in zip(names, variables(len(names)), strict=True):
            lines.append(f"{variable} = {call('head_word_pairs', name, *words, **options)}")
        return ["head_word_pairs", *imports], lines


@dataclass(frozen=True)
class SavedRequest(SavedAnswer):
    """What a browser asks of saved results."""

    def code(self, models: tuple[SavedHeads, ...]) -> tuple[list[str], list[str]]:
        """Names to import, and lines of a cell that open the files again."""
        names = variables(len(models))
        return ["HeadWordResult"], [model.line(name) for model, name in zip(models, names, strict=True)]


class SavedHeads(SavedResult):
    """Stands in the place of a model whose word pairs were computed before."""

    kind = HeadWordResult

    def __init__(self, result: HeadWordResult, path: str = "") -> None:
        super().__init__(result, path)
        self.n_heads = result.n_heads


def variables(count: int) -> list[str]:
    """What results are called in code."""
    return ["result"] if count == 1 else ["result_a", "result_b"]
