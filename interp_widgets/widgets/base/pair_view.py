"""Two models in one place: what they are called, which is looked at, their difference, and one table of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .workbench import model_name

LETTERS = "AB"
"""The first model and the second."""


def letters(results: Sequence[Any]) -> list[str]:
    """What to put before each of several results: nothing for one."""
    return [""] if len(results) == 1 else [f"{letter} " for letter in LETTERS[: len(results)]]


def labels(panel: Any) -> list[str]:
    """What charts call the models: their names, of two behind their letters."""
    names = [model_name(model) for model in panel.models]
    return names if len(names) == 1 else [f"{letter}: {name}" for letter, name in zip(LETTERS, names, strict=True)]


def title_start(panel: Any) -> str:
    """What to put before the title of a picture, of two models."""
    if len(panel.results) < 2:
        return ""
    return {"A": "A · ", "B": "B · ", "difference": "B − A · "}[panel.shown]


def looked_at(panel: Any) -> tuple[int, ...]:
    """Which models the view shows: one, or both in a difference."""
    if len(panel.models) == 1:
        return (0,)
    view = panel.shown if panel.results else panel.view
    return (0, 1) if view == "difference" else (LETTERS.index(view),)


def names(panel: Any) -> tuple[str, ...]:
    """What to call each model that is looked at: its letter, or nothing where there is only one."""
    return ("",) if len(panel.models) == 1 else tuple(LETTERS[index] for index in looked_at(panel))


def starts(panel: Any) -> tuple[str, ...]:
    """What to begin a line about each model that is looked at with: its letter, or nothing where there is only one."""
    return tuple(f"{name}: " if name else "" for name in names(panel))


def all_starts(results: Sequence[Any]) -> list[str]:
    """What to begin a line about each of several results with: nothing for one."""
    return [f"{letter.strip()}: " if letter else "" for letter in letters(results)]


def of_view(panel: Any, arrays: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """The numbers of what is looked at; None for a difference of models with arrays of two shapes."""
    if panel.shown != "difference":
        return arrays[LETTERS.index(panel.shown)]
    difference: NDArray[Any] | None = arrays[1] - arrays[0] if arrays[0].shape == arrays[1].shape else None
    return difference


def largest(panel: Any, arrays: Iterable[Sequence[NDArray[Any]]]) -> float:
    """The end of a scale about zero: of all arrays of both models, or of their differences; 1 if there is nothing."""
    if panel.shown == "difference":
        parts = [of_view(panel, pair) for pair in arrays]
    else:
        parts = [one for several in arrays for one in several]
    sizes = [float(np.nanmax(np.abs(one))) for one in parts if one is not None and np.isfinite(one).any()]
    return max(sizes, default=0.0) or 1.0


def joined(tables: Iterable[Any]) -> Any:
    """One table of the tables of each model, which of them in the first column."""
    import pandas as pd

    frames = []
    for letter, table in zip(LETTERS, tables, strict=False):
        table.insert(0, "model", letter, allow_duplicates=True)
        frames.append(table)
    return pd.concat(frames, ignore_index=True)
