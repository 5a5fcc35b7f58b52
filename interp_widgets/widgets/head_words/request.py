"""What a head word browser asks for: one frozen object per run; and results that were computed before."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from interp_widgets.analysis.cost import Cost
from interp_widgets.analysis.head_words import HeadWordResult, head_word_pairs, head_words_cost

from ..code import call
from ..word_source import WordSource


@dataclass(frozen=True)
class HeadWordRequest:
    """The word pairs of all heads for one word list."""

    source: WordSource
    top: int
    keep: int

    def answer(
        self,
        model: Any,
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

    def cost(self, model: Any) -> Cost:
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
class SavedRequest:
    """Results that were computed before: there is nothing to compute."""

    def answer(self, model: SavedHeads, **_: Any) -> HeadWordResult:
        """The result that stands in the place of a model."""
        return model.result

    def cost(self, model: SavedHeads) -> Cost:
        """Nothing."""
        return Cost(0.0, 0.0)

    def code(self, models: tuple[SavedHeads, ...]) -> tuple[list[str], list[str]]:
        """Names to import, and lines of a cell that open the files again."""
        lines = []
        for model, variable in zip(models, variables(len(models)), strict=True):
            held = f"HeadWordResult.load({model.path!r})" if model.path else f"{variable}  # the result at hand"
            lines.append(f"{variable} = {held}")
        return ["HeadWordResult"], lines


class SavedHeads:
    """Stands in the place of a model whose word pairs were computed before."""

    backend = "saved result"

    def __init__(self, result: HeadWordResult, path: str = "") -> None:
        self.result, self.path = result, path
        self.name = str(result.provenance.get("model") or (Path(path).stem if path else "a saved result"))
        self.n_layers, self.n_heads = max(result.layers) + 1, result.n_heads


def variables(count: int) -> list[str]:
    """What results are called in code."""
    return ["result"] if count == 1 else ["result_a", "result_b"]


def opened(given: Any) -> Any:
    """What a widget is opened on, a saved result or the path of one made to stand for a model; models stay.

    Raises FileNotFoundError or ValueError for a path without such a result.
    """
    if isinstance(given, HeadWordResult):
        return SavedHeads(given)
    if isinstance(given, str | os.PathLike):
        path = os.path.expanduser(os.fspath(given))
        return SavedHeads(HeadWordResult.load(path), path)
    return given


def opened_pair(base: Any, tuned: Any) -> tuple[Any, Any]:
    """The same of what may be two; two saved results become one pair.

    Raises TypeError for a saved result beside a model.
    """
    base, tuned = opened(base), opened(tuned)
    saved = [isinstance(one, SavedHeads) for one in (base, tuned)]
    if tuned is None or not any(saved):
        return base, tuned
    if not all(saved):
        raise TypeError("a saved result and a model cannot be compared here: give two saved results or two models")
    return SimpleNamespace(base=base, tuned=tuned), None
