"""The notes about components: kept across runs, with undo, saved to a file and loaded again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from interp_widgets.analysis.ffn_concepts import ConceptAnnotations, FFNConceptResult, Sign, annotate_concepts
from interp_widgets.analysis.ffn_concepts.annotations import USER, Cells
from interp_widgets.data.annotators import Annotation

Cell = tuple[int, int]
"""Layer and component."""
Owner = tuple[str, Any]
"""A model: its letter and a key of its weights. Different weights have different notes."""
STEPS = 50
"""Number of changes that can be undone."""


@dataclass(frozen=True)
class Change:
    """A change of notes, with the previous ones."""

    what: str
    """Its description, as in "Undo …"."""
    owner: Owner
    before: Mapping[Cell, Annotation | None]
    run: int = 0
    """Changes of one run are undone together; 0 for one made by hand."""


@dataclass(frozen=True, eq=False)
class Notes:
    """The notes about the components of each model. Immutable: a change returns a new object, which can undo it.

    >>> notes = Notes().changed(("A", 1), {(5, 0): edited(None, description="moods")}, "description of component 0")
    >>> notes.of(("A", 1))[5, 0].description, notes.undone().of(("A", 1))
    ('moods', {})
    """

    by_owner: Mapping[Owner, Mapping[Cell, Annotation]] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    """The latest changes, the last one last."""

    def of(self, owner: Owner) -> Mapping[Cell, Annotation]:
        """The notes about one model's components."""
        return self.by_owner.get(owner, {})

    def changed(self, owner: Owner, notes: Mapping[Cell, Annotation | None], what: str, *, run: int = 0) -> Notes:
        """A copy with changed notes about some components; None deletes a note."""
        current, changes = self.of(owner), self.changes
        before = {cell: current.get(cell) for cell, note in notes.items() if note != current.get(cell)}
        if not before:
            return self
        if run and changes and changes[-1].run == run:
            before, changes = before | dict(changes[-1].before), changes[:-1]
        return Notes(self._with(owner, notes), (*changes, Change(what, owner, before, run))[-STEPS:])

    def answered(self, owner: Owner, notes: Mapping[Cell, Annotation], what: str, *, run: int = 0) -> Notes:
        """A copy with the answers of an annotator or the notes of a file; what the user has typed stays."""
        current = self.of(owner)
        return self.changed(
            owner, {cell: note for cell, note in notes.items() if not typed(current.get(cell))}, what, run=run
        )

    def undone(self) -> Notes:
        """A copy without the last change."""
        last = self.changes[-1]
        return Notes(self._with(last.owner, last.before), self.changes[:-1])

    def _with(self, owner: Owner, notes: Mapping[Cell, Annotation | None]) -> dict[Owner, Mapping[Cell, Annotation]]:
        merged = {cell: note for cell, note in {**self.of(owner), **notes}.items() if note is not None}
        return {**self.by_owner, owner: merged}


def typed(note: Annotation | None) -> bool:
    """Whether the user has written a note."""
    return note is not None and note.source == USER


def edited(note: Annotation | None, **changes: Any) -> Annotation:
    """A note with the user's changes; the rest stays."""
    return replace(note or Annotation(), **changes, source=USER, failure="")


def notes_in(annotations: ConceptAnnotations) -> dict[Cell, Annotation]:
    """The notes of a run or a file."""
    reason = annotations.failures[0] if annotations.failures else "the annotator failed"
    notes = {}
    for row, layer in enumerate(annotations.layers):
        for column, component in enumerate(annotations.components):
            if annotations.done[row, column]:
                note = annotations.annotation(layer, component)
                notes[layer, component] = replace(note, failure=reason) if annotations.failed[row, column] else note
    return notes


def as_annotations(
    notes: Mapping[Cell, Annotation], result: FFNConceptResult, components: int, *, sign: Sign = "both"
) -> ConceptAnnotations:
    """The notes about the first components of every layer of a result, as `ConceptAnnotations`."""
    blank = annotate_concepts(result, None, components=range(min(components, result.rank)), sign=sign)
    cells = Cells(blank)
    for (layer, component), note in notes.items():
        if layer in blank.layers and component in blank.components:
            cells.put(blank.layers.index(layer), component, note)
    sources = {source for row in cells.sources for source in row if source}
    return replace(cells.annotations(blank, partial=result.partial), annotator=", ".join(sorted(sources)))


def summary(notes: Mapping[Cell, Annotation], cells: Iterable[Cell]) -> str:
    """How many of these components are annotated, and how."""
    listed = list(cells)
    noted = [notes[cell] for cell in listed if cell in notes]
    silent = sum(note.cannot_tell for note in noted)
    count = f"{len(noted)} of {len(listed)} noted"
    if not noted:
        return count
    return f"{count}: {len(noted) - silent} described, {silent} “cannot tell”, {sum(map(typed, noted))} by you"
