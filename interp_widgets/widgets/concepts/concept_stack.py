"""What the parts of the concept browser read of it: its options, its stimuli, and what the active tab shows."""

from __future__ import annotations

from typing import Any, cast

from interp_widgets.analysis.concepts import ConceptSet
from interp_widgets.models import Model

from ..base.stack import Stack
from .directions import ConceptOptions, ConceptPanel, StimulusStore


class ConceptStack(ConceptOptions, Stack):
    """Base of the concept browser, which its library and its list of concepts read."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.store = StimulusStore()
        super().__init__(model, tuned, **options)

    @property
    def current(self) -> ConceptPanel:
        """The active panel."""
        return cast(ConceptPanel, self[self.tab])

    @property
    def sets(self) -> tuple[ConceptSet, ...]:
        """The directions on the screen, one set per model."""
        return self.current.sets

    @property
    def opened(self) -> bool:
        """Whether the directions on the screen come from a file."""
        return self.current.opened

    @property
    def shown_concept(self) -> str:
        """The concept that the picture shows."""
        return self.current.shown_concept
