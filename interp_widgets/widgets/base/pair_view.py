"""Two models in one place: which is looked at, their difference, one beside the other, and one table of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.static import Scene, stack_scenes

from .controls import shown_if
from .workbench import model_name

V = TypeVar("V")

LETTERS = "AB"
"""The first model and the second."""


def letters(results: Sequence[Any]) -> list[str]:
    """What to put before each of several results: nothing for one."""
    return [""] if len(results) == 1 else [f"{letter} " for letter in LETTERS[: len(results)]]


def labels(panel: Any) -> list[str]:
    """What charts call the models: their names, of two behind their letters."""
    names = [model_name(model) for model in panel.models]
    return names if len(names) == 1 else [f"{letter}: {name}" for letter, name in zip(LETTERS, names, strict=True)]


def title_start(panel: Any, view: str = "") -> str:
    """What to put before the title of a picture of a view (usually the one looked at), of two models."""
    if len(panel.results) < 2:
        return ""
    return {"A": "A · ", "B": "B · ", "difference": "B − A · ", "beside": ""}[view or panel.shown]


def models_of(view: str) -> tuple[int, ...]:
    """Which models a view of two shows."""
    return (LETTERS.index(view),) if view in ("A", "B") else (0, 1)


def looked_at(panel: Any) -> tuple[int, ...]:
    """Which models are looked at: one, or both."""
    if len(panel.models) == 1:
        return (0,)
    return models_of(panel.shown if panel.results else panel.offered_view)


def drawn(panel: Any) -> tuple[str, ...]:
    """The views that are drawn: the one looked at, or with A beside B that of each model."""
    return ("A", "B") if panel.shown == "beside" else (panel.shown,)


def names(panel: Any) -> tuple[str, ...]:
    """What to call each model that is looked at: its letter, or nothing where there is only one."""
    return ("",) if len(panel.models) == 1 else tuple(LETTERS[index] for index in looked_at(panel))


def starts(panel: Any) -> tuple[str, ...]:
    """What to begin a line about each model that is looked at with: its letter, or nothing where there is only one."""
    return tuple(f"{name}: " if name else "" for name in names(panel))


def all_starts(results: Sequence[Any]) -> list[str]:
    """What to begin a line about each of several results with: nothing for one."""
    return [f"{letter.strip()}: " if letter else "" for letter in letters(results)]


def of_view(view: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """The numbers of A, B or their difference; None for a difference of models with arrays of two shapes."""
    if view != "difference":
        return arrays[LETTERS.index(view)]
    difference: NDArray[Any] | None = arrays[1] - arrays[0] if arrays[0].shape == arrays[1].shape else None
    return difference


def largest(view: str, arrays: Iterable[Sequence[NDArray[Any]]]) -> float:
    """The end of a scale about zero: of all arrays of both models, or of their differences; 1 if there is nothing."""
    if view == "difference":
        parts = [of_view(view, pair) for pair in arrays]
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


class SideBySide(Generic[V]):
    """One view (a map, a strip) of what is looked at, and with A beside B one of each model, as the width allows.

    `make` makes one; they are in `views`, and `box` lays them out. The panel draws those that `drawn` gives; while
    `alike()` holds, one picture is about both models, and there is only that.

    Example:
        >>> from types import SimpleNamespace
        >>> from interp_widgets.widgets.views import Heatmap
        >>> panel = SimpleNamespace(models="two", shown="A")
        >>> maps = SideBySide(panel, lambda: Heatmap(title="map"))
        >>> [view for view, _ in maps.drawn()]
        ['A']
        >>> panel.shown = "beside"
        >>> [view for view, _ in maps.drawn()], len(maps.views)
        (['A', 'B'], 2)
    """

    def __init__(self, panel: Any, make: Callable[[], V], *, alike: Callable[[], bool] = lambda: False) -> None:
        self.panel, self.alike = panel, alike
        self.views: list[V] = [make() for _ in panel.models[:2]]
        # Each in a box of its own: a view that is on the page already cannot get a class itself
        self.boxes = [W.VBox([view]) for view in self.views]
        for second in self.boxes[1:]:
            shown_if(second, False)

    @cached_property
    def box(self) -> W.VBox:
        """All of them next to each other."""
        box = W.VBox(self.boxes)
        box.add_class("iw-beside")
        return box

    def drawn(self) -> list[tuple[str, V]]:
        """Each view that is looked at ("A", "B" or "difference") with what draws it; the others are hidden."""
        views = self._names()
        for index, box in enumerate(self.boxes):
            shown_if(box, index < len(views))
        return list(zip(views, self.views, strict=False))

    def _names(self) -> tuple[str, ...]:
        return drawn(self.panel)[:1] if self.alike() else drawn(self.panel)

    def follow(self, change: Any) -> None:
        """Set what has changed in one of them in the others on the screen too, such as the cursor."""
        for view in self.shown:
            if view is not change.owner:
                setattr(view, change.name, change.new)

    @property
    def shown(self) -> list[V]:
        """Those on the screen."""
        return self.views[: len(self._names())]

    def scene(self, **options: Any) -> Scene:
        """Those on the screen as a picture, next to each other."""
        scenes: list[Scene] = [view.scene(**options) for view in self.shown]  # type: ignore[attr-defined]
        return scenes[0] if len(scenes) == 1 else stack_scenes(scenes, columns=2)
