"""Results that were computed before, in the place of models: there is nothing to compute."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from interp_widgets.analysis.cost import Cost
from interp_widgets.analysis.ffn_concepts import FFNConceptResult


class SavedConcepts:
    """Stands in the place of a model whose components were computed before."""

    backend = "saved result"
    d_mlp = 1
    tokenizer = None

    def __init__(self, result: FFNConceptResult, path: str = "") -> None:
        self.result, self.path = result, path
        self.name = str(result.provenance.get("model") or (Path(path).stem if path else "a saved result"))
        self.n_layers = max(result.layers) + 1


@dataclass(frozen=True)
class SavedRequest:
    """What a browser asks of saved results."""

    method: ClassVar[str] = "concepts"

    def answer(self, model: SavedConcepts, **_: Any) -> FFNConceptResult:
        """The result that stands in the place of a model."""
        return model.result

    def cost(self, model: SavedConcepts) -> Cost:
        """Nothing."""
        return Cost(0.0, 0.0)

    def code(self, models: Sequence[SavedConcepts], suffixes: Sequence[str]) -> list[str]:
        """Lines of a cell that open the files again."""
        lines = []
        for model, suffix in zip(models, suffixes, strict=True):
            name = f"concepts{suffix}"
            held = f"FFNConceptResult.load({model.path!r})" if model.path else f"{name}  # the result at hand"
            lines.append(f"{name} = {held}")
        return lines


def opened_pair(base: Any, tuned: Any) -> tuple[Any, Any]:
    """What a browser is opened on: saved results, or the paths of some, made to stand for models; models stay.

    Raises FileNotFoundError or ValueError for a path without such a result, TypeError for a saved result beside a
    model.
    """
    base, tuned = _opened(base), _opened(tuned)
    saved = [isinstance(one, SavedConcepts) for one in (base, tuned)]
    if tuned is None or not any(saved):
        return base, tuned
    if not all(saved):
        raise TypeError("a saved result and a model cannot be compared here: give two saved results or two models")
    return SimpleNamespace(base=base, tuned=tuned), None


def _opened(given: Any) -> Any:
    if isinstance(given, FFNConceptResult):
        return SavedConcepts(given)
    if isinstance(given, str | os.PathLike):
        path = os.path.expanduser(os.fspath(given))
        return SavedConcepts(FFNConceptResult.load(path), path)
    return given
