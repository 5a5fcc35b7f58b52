"""What is said about the components of a browser's models: kept, taken over, and handed out as a result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import traitlets as T

from interp_widgets.analysis.ffn_concepts import ConceptAnnotations, FFNConceptResult
from interp_widgets.models import Model

from ..base.prediction import PredictionPanel
from .notes import Notes


class Noting(PredictionPanel):
    """The half of the browser that keeps the notes about components."""

    notes = T.Any(None)
    """Annotations to go on from: a :class:`ConceptAnnotations`, the path of one, or a pair of them for two models."""

    tab: str

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.concepts: tuple[FFNConceptResult, ...] = ()
        """The components on the screen, one result per model."""
        self._notes: dict[tuple[str, Any], Notes] = {}
        super().__init__(model, tuned, **options)

    def repaint_concepts(self) -> None:
        """Draw what depends on components and notes."""

    @property
    def letter(self) -> str:
        """The model whose components are looked at: A or B; of a difference, B."""
        return "B" if self.shown == "difference" else self.shown

    def notes_of(self, letter: str) -> Notes:
        """What is said about a model's components; other weights have other notes."""
        place = "AB".index(letter)
        weights = self.concepts[place].provenance.get("weight_hash") if place < len(self.concepts) else None
        return self._notes.setdefault((letter, weights), Notes())

    def annotations_of(self, letter: str) -> ConceptAnnotations:
        """The notes about a model's components as a result that saves itself: at least those that are listed."""
        place = "AB".index(letter)
        if place >= len(self.concepts):
            raise ValueError("there are no components yet: press Run on the tab Concepts first")
        notes, result = self.notes_of(letter), self.concepts[place]
        count = max([self.components, *(component + 1 for _, component in notes)])
        return notes.annotations(result, count)

    @property
    def annotations(self) -> Any:
        """What is said about the components: a :class:`ConceptAnnotations`, or a pair of them with two models."""
        found = tuple(self.annotations_of(letter) for letter, _ in zip("AB", self.models, strict=False))
        return found[0] if len(self.models) == 1 else found

    def take_notes(self, letter: str, given: Any) -> None:
        """Take annotations over, or a file of them; ValueError for those of another model."""
        found = _read(given)
        own = self.concepts["AB".index(letter)].provenance.get("weight_hash")
        theirs = found.provenance.get("weight_hash")
        if None not in (own, theirs) and own != theirs:
            name = found.provenance.get("model")
            raise ValueError(f"these notes are about other weights (those of {name}): open them with that model")
        self.notes_of(letter).take(found)
        self.notes_changed()

    def take_given(self) -> None:
        """Take over what the keyword `notes` holds, once there are components to note."""
        given = self.notes
        pair = list(given) if isinstance(given, list | tuple) else [given]
        if given is None or len(self.concepts) < len(self.models):
            return  # the second model is still on its way
        self.notes = None

        def work(job: Any) -> list[Any]:
            if len(pair) > len(self.models):
                raise ValueError(f"notes of {len(pair)} models were given, the browser has {len(self.models)}")
            return [None if one is None else _read(one) for one in pair]

        def done(found: list[Any]) -> None:
            for letter, one in zip("AB", found, strict=False):
                if one is not None:
                    self.take_notes(letter, one)

        # a run of its own: what is wrong with notes must not keep the components from being shown
        self.jobs.start(work, done, title="Opening the notes", channel="notes")

    def notes_changed(self) -> None:
        """Draw what depends on the notes."""
        if self.concepts and self.tab != "neurons":
            self.repaint_concepts()


def _read(given: Any) -> ConceptAnnotations:
    """Annotations, or those of a file."""
    if isinstance(given, str | os.PathLike):
        given = ConceptAnnotations.load(Path(given).expanduser())
    if not isinstance(given, ConceptAnnotations):
        raise TypeError(f"notes must be ConceptAnnotations or the path of a file of them, got {given!r}")
    return given
