"""Two results to be compared, of which one or both may be given as models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from interp_widgets.models import Model

R = TypeVar("R")


def two_results(
    given: tuple[Any, Any],
    kind: type[R],
    compute: Callable[..., R],
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
    check: Callable[[], None] | None,
) -> tuple[R, R]:
    """The two results: what is no ``kind`` is taken for a model, whose result ``compute(model, **options)`` gives.

    Raises TypeError for what is neither, and where options were given and nothing is to be computed.
    """
    name = kind.__name__
    for one in given:
        if not isinstance(one, (kind, Model)):
            raise TypeError(
                f"what is compared must be two loaded models or two of {name}, got {one!r}: use load_model(...), or "
                f"{name}.load(...) for a saved file"
            )
    todo = sum(not isinstance(one, kind) for one in given)
    if options and not todo:
        raise TypeError(f"{next(iter(options))!r} is an option for models, but two results were given: leave it out")
    found: list[R] = []
    started = 0
    for one in given:
        if isinstance(one, kind):
            found.append(one)
            continue
        report = None if progress is None else shifted(progress, started, todo)
        found.append(compute(one, progress=report, check=check, **options))
        started += 1
    return found[0], found[1]


def check_same_words(first: Sequence[str], second: Sequence[str]) -> None:
    """Raise ValueError, naming the first difference, where two results are not of the same words."""
    if tuple(first) != tuple(second):
        pairs = zip(first, second, strict=False)
        found = next((f"{a!r} and {b!r}" for a, b in pairs if a != b), "one list goes on after the other's end")
        raise ValueError(f"the two results have different words (first difference: {found}): use one list for both")


def check_same(facts: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise ValueError for the first fact of two results that differs."""
    for name, (first, second) in facts.items():
        if first != second:
            raise ValueError(f"the two results must have the same {name}, got {first} and {second}")


def shifted(progress: Callable[[int, int], None], before: int, parts: int) -> Callable[[int, int], None]:
    """Progress of one of several equal parts."""
    return lambda done, total: progress(before * total + done, parts * total)
