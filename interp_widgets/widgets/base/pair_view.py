"""Views of two models: one of them, their difference, one beside the other, and one table of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models.pair import distinct_names

from .controls import shown_if

V = TypeVar("V")

LETTERS = "AB"
"""The first model and the second."""


def letters(results: Sequence[Any]) -> list[str]:
    """Prefixes of several results: their letters; empty for a single one."""
    return [""] if len(results) == 1 else [f"{letter} " for letter in LETTERS[: len(results)]]


def labels(panel: Any) -> list[str]:
    """The models in chart legends: their names, with a letter if there are two."""
    names = distinct_names(panel.models)
    return names if len(names) == 1 else [f"{letter}: {name}" for letter, name in zip(LETTERS, names, strict=True)]


def page_title(panel: Any) -> str:
    """The heading of a saved page: ``Logit lens: A demo-base, B demo-tuned``."""
    names = distinct_names(panel.models)
    return f"{panel.title}: {', '.join(start + name for start, name in zip(letters(panel.models), names, strict=True))}"


def title_start(panel: Any, view: str = "") -> str:
    """Prefix of a picture's title that names the view of two models (by default the current one)."""
    if len(panel.results) < 2:
        return ""
    return {"A": "A · ", "B": "B · ", "difference": "B − A · ", "beside": ""}[view or panel.shown]


def models_of(view: str) -> tuple[int, ...]:
    """Indices of the models that a view shows."""
    return (LETTERS.index(view),) if view in ("A", "B") else (0, 1)


def shown_indices(panel: Any) -> tuple[int, ...]:
    """Indices of the models in the current view."""
    if len(panel.models) == 1:
        return (0,)
    return models_of(panel.shown if panel.results else panel.offered_view)


def views_to_draw(panel: Any) -> tuple[str, ...]:
    """The views to draw: the current one; "A" and "B" when they are side by side."""
    return ("A", "B") if panel.shown == "beside" else (panel.shown,)


def names(panel: Any) -> tuple[str, ...]:
    """The letter of each model in the current view; empty if there is only one."""
    return ("",) if len(panel.models) == 1 else tuple(LETTERS[index] for index in shown_indices(panel))


def starts(panel: Any) -> tuple[str, ...]:
    """Prefixes of lines about each model in the current view: its letter; empty if there is only one."""
    return tuple(f"{name}: " if name else "" for name in names(panel))


def all_starts(results: Sequence[Any]) -> list[str]:
    """Prefixes of lines about several results: their letters; empty for a single one."""
    return [f"{letter.strip()}: " if letter else "" for letter in letters(results)]


def of_view(view: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """The numbers of A, B or their difference; None if the arrays differ in shape."""
    if view != "difference":
        return arrays[LETTERS.index(view)]
    difference: NDArray[Any] | None = arrays[1] - arrays[0] if arrays[0].shape == arrays[1].shape else None
    return difference


def symmetric_limit(view: str, arrays: Iterable[Sequence[NDArray[Any]]]) -> float:
    """The largest magnitude for a scale centred on 0, over both models or their differences; 1 if there is none."""
    if view == "difference":
        parts = [of_view(view, pair) for pair in arrays]
    else:
        parts = [array for pair in arrays for array in pair]
    sizes = [float(np.nanmax(np.abs(array))) for array in parts if array is not None and np.isfinite(array).any()]
    return max(sizes, default=0.0) or 1.0


def by_letter(results: Sequence[V]) -> dict[str, V]:
    """What there is of each model, by letter; a single model has none."""
    return dict(zip([""] if len(results) == 1 else LETTERS, results, strict=False))


def joined(tables: Mapping[str, Any]) -> Any:
    """The tables by letter in one, with a first column that says which model; that of a single model as it is.

    >>> import pandas as pd
    >>> joined({letter: pd.DataFrame({"layer": [0]}) for letter in "AB"}).model.tolist()
    ['A', 'B']
    """
    import pandas as pd

    if list(tables) == [""]:
        return tables[""]
    frames = []
    for letter, table in tables.items():
        table.insert(0, "model", letter, allow_duplicates=True)
        frames.append(table)
    return pd.concat(frames, ignore_index=True)


class SideBySide(Generic[V]):
    """A view (a map, a strip) of the current model or difference, or one per model side by side if there is room.

    `make` makes one; they are in `views`, and `box` lays them out. The panel draws those that `drawn` returns; while
    `alike()` holds, one picture is about both models and only that is shown.

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
        # Each in its own box: a view that is already on the page cannot be given a class
        self.boxes = [W.VBox([view]) for view in self.views]
        for second in self.boxes[1:]:
            shown_if(second, False)

    @cached_property
    def box(self) -> W.VBox:
        """All views, side by side."""
        box = W.VBox(self.boxes)
        box.add_class("iw-beside")
        return box

    def drawn(self) -> list[tuple[str, V]]:
        """The views to draw ("A", "B" or "difference") with their widgets; the other widgets are hidden."""
        views = self._names()
        for index, box in enumerate(self.boxes):
            shown_if(box, index < len(views))
        return list(zip(views, self.views, strict=False))

    def _names(self) -> tuple[str, ...]:
        return views_to_draw(self.panel)[:1] if self.alike() else views_to_draw(self.panel)

    def follow(self, change: Any) -> None:
        """Copy a change of one view, such as its cursor, to the others on the screen."""
        for view in self.shown:
            if view is not change.owner:
                setattr(view, change.name, change.new)

    @property
    def shown(self) -> list[V]:
        """The views on the screen."""
        return self.views[: len(self._names())]

    def scene(self, **options: Any) -> Scene:
        """The views on the screen as one picture, side by side."""
        scenes: list[Scene] = [view.scene(**options) for view in self.shown]  # type: ignore[attr-defined]
        return scenes[0] if len(scenes) == 1 else stack_scenes(scenes, columns=2)
