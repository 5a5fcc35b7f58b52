"""Tables of concepts: a click on a row selects its concept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis.concepts import ConceptSet
from interp_widgets.figures.static import Scene

from ..views import Table

MOST_LISTED = 500
"""Most rows of a table; search to see others."""

MOST_DRAWN = 60
"""Most rows of a table in a picture."""

NO_MATCH = "No concept matches."
"""What a table says that is empty after a search."""


def matching(concepts: ConceptSet, words: str) -> list[int]:
    """Indices of the concepts whose name or group contains all of these words, ignoring case."""
    wanted = words.casefold().split()
    texts = [f"{name} {group}".casefold() for name, group in zip(concepts.names, concepts.groups, strict=True)]
    return [i for i, text in enumerate(texts) if all(word in text for word in wanted)]


def number(value: float) -> float | None:
    """A number for a table; None if it is missing."""
    return float(value) if np.isfinite(value) else None


class ConceptTable:
    """A table with a row for each listed concept, for a panel or a stack with a selected concept."""

    def __init__(self, owner: Any, **options: Any) -> None:
        self.owner = owner
        self.view = Table(**options)
        self.names: list[str] = []
        owner.watch(self.view, "selected", self._picked)

    def show(self, names: Sequence[str], heads: list[dict[str, Any]], rows: list[list[Any]], caption: str = "") -> None:
        """Show rows, one per concept."""
        self.names = list(names)
        with self.view.hold_sync():
            self.view.selected = -1
            self.view.rows = []
            self.view.columns, self.view.rows, self.view.caption = heads, rows, caption
        self.mark()

    def scene(self) -> Scene:
        """Its first rows as a picture; ValueError if there are none."""
        if not self.view.rows:
            raise ValueError("there is no picture to save: the table has no rows")
        return self.view.scene(most=MOST_DRAWN)

    def mark(self) -> None:
        """Mark the row of the selected concept."""
        concept = self.owner.shown_concept
        self.view.selected = self.names.index(concept) if concept in self.names else -1

    def _picked(self, change: Any) -> None:
        # `mark` selects the row of a concept that is already selected
        if 0 <= change.new < len(self.names) and self.names[change.new] != self.owner.shown_concept:
            self.owner.concept = self.names[change.new]
