"""A saved result that takes the place of a model: there is nothing to compute."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.atomic import named_path


class SavedResult:
    """Takes the place of a model; subclasses set the class of the result and add the sizes that their panel needs."""

    kind: ClassVar[Any]
    """Class of the result."""

    backend = "saved result"

    def __init__(self, result: Any, path: str = "") -> None:
        self.result, self.path = result, path
        self.name = str(result.provenance.get("model") or (Path(path).stem if path else "a saved result"))
        self.n_layers = max(result.layers) + 1

    def line(self, name: str) -> str:
        """A line of a cell that opens the file again as ``name``."""
        source = f"{self.kind.__name__}.load({self.path!r})" if self.path else f"{name}  # the result at hand"
        return f"{name} = {source}"


class SavedAnswer:
    """Base of a panel's requests to saved results."""

    def answer(self, model: SavedResult, **_: Any) -> Any:
        """The saved result itself."""
        return model.result

    def cost(self, model: SavedResult) -> Cost:
        """Nothing."""
        return Cost(0.0, 0.0)


def opened_pair(base: Any, tuned: Any, saved: type[SavedResult]) -> tuple[Any, Any]:
    """The models that a panel opens on: saved results or their paths are wrapped, models are returned unchanged.

    Raises FileNotFoundError or ValueError for a path without such a result, TypeError for a saved result beside a
    model.
    """
    base, tuned = _opened(base, saved), _opened(tuned, saved)
    are_saved = [isinstance(model, saved) for model in (base, tuned)]
    if tuned is None or not any(are_saved):
        return base, tuned
    if not all(are_saved):
        raise TypeError("a saved result and a model cannot be compared here: pass two saved results or two models")
    return SimpleNamespace(base=base, tuned=tuned), None


def _opened(source: Any, saved: type[SavedResult]) -> Any:
    if isinstance(source, saved.kind):
        return saved(source)
    if isinstance(source, str | os.PathLike):
        path = str(named_path(source, "the path of a result"))
        try:
            return saved(saved.kind.load(path), path)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; a model is opened with load_model({str(source)!r})") from None
    return source
