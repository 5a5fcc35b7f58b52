"""Comparing two models: computes the results that are missing, and checks that the two match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from interp_widgets.analysis._core.result import Result, Scalar
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.models import Model

R = TypeVar("R", bound=Result)


def two_results(
    pair: tuple[Any, Any], kind: type[R], compute: Callable[..., R], keywords: Mapping[str, Any], run: RunOptions
) -> tuple[R, R]:
    """Two results: a model is passed to ``compute(model, **keywords)``, a result of type ``kind`` is used as it is.

    Raises TypeError for anything else, and for keywords when neither is a model.
    """
    name = kind.__name__
    for item in pair:
        if not isinstance(item, (kind, Model)):
            raise TypeError(
                f"the two compared must be loaded models or {name} results, got {item!r}: use load_model(...), or "
                f"{name}.load(...) for a saved file"
            )
    models = [item for item in pair if not isinstance(item, kind)]
    if keywords and not models:
        raise TypeError(f"{next(iter(keywords))!r} is an option for models, but two results were given: leave it out")
    parts = iter([run.part(number, len(models)) for number in range(len(models))])

    def result(item: Any) -> R:
        if isinstance(item, kind):
            return item
        part = next(parts)
        return compute(item, progress=part.progress, check=part.check, **keywords)

    return result(pair[0]), result(pair[1])


def pair_provenance(base: Result, tuned: Result) -> dict[str, Scalar]:
    """Provenance of the two models: names, weights, tokenizers and edits."""
    return {
        f"{side}{ending}": result.provenance.get(key)
        for side, result in (("base", base), ("tuned", tuned))
        for key, ending in (
            ("model", ""),
            ("weight_hash", "_weights"),
            ("tokenizer", "_tokenizer"),
            ("edited", "_edited"),
        )
        if key in ("model", "weight_hash") or key in result.provenance
    }


def check_same_words(first: Sequence[str], second: Sequence[str]) -> None:
    """Raise ValueError, naming the first difference, unless two results have the same words."""
    if tuple(first) != tuple(second):
        pairs = zip(first, second, strict=False)
        where = next((f"{a!r} and {b!r}" for a, b in pairs if a != b), "one list goes on after the other's end")
        raise ValueError(f"the two results have different words (first difference: {where}): use one list for both")


def check_same(facts: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise ValueError for the first fact of two results that differs."""
    for name, (first, second) in facts.items():
        if first != second:
            raise ValueError(f"the two results must have the same {name}, got {first} and {second}")
