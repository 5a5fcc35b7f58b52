"""Components that were computed before, in the place of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from interp_widgets.analysis.ffn_concepts import FFNConceptResult

from ..base.saved_result import SavedAnswer, SavedResult


class SavedConcepts(SavedResult):
    """Stands in the place of a model whose components were computed before."""

    kind = FFNConceptResult
    d_mlp = 1
    tokenizer = None


@dataclass(frozen=True)
class SavedRequest(SavedAnswer):
    """What a browser asks of saved results."""

    method: ClassVar[str] = "concepts"

    def code(self, models: Sequence[SavedConcepts], suffixes: Sequence[str]) -> list[str]:
        """Lines of a cell that open the files again."""
        return [model.line(f"concepts{suffix}") for model, suffix in zip(models, suffixes, strict=True)]
