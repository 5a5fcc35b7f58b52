"""What is said about components so far: kept while results come and go, written to a file and read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from interp_widgets.analysis.ffn_concepts import FFNConceptResult, annotate_concepts
from interp_widgets.analysis.ffn_concepts.annotations import USER, ConceptAnnotations
from interp_widgets.data.annotators import LEVELS, SCENARIOS, Annotation

Cell = tuple[int, int]
"""Layer and component."""


class Notes:
    """The notes about one model's components; what the user typed is never written over by another."""

    def __init__(self, notes: Mapping[Cell, Annotation] | None = None) -> None:
        self._notes: dict[Cell, Annotation] = dict(notes or {})

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[Cell]:
        return iter(sorted(self._notes))

    def get(self, cell: Cell) -> Annotation | None:
        """What is said about a component; None where nobody was asked."""
        return self._notes.get(cell)

    def typed(self, cell: Cell) -> bool:
        """Whether the user has the word about a component."""
        note = self._notes.get(cell)
        return note is not None and note.source == USER

    def edit(self, cell: Cell, **changes: Any) -> Annotation:
        """Write down what the user says about a component; the rest of the note stays."""
        before = self._notes.get(cell, Annotation())
        self._notes[cell] = replace(before, **changes, source=USER, failure="")
        return self._notes[cell]

    def put(self, cell: Cell, note: Annotation) -> None:
        """Write down what an annotator says, unless the user has spoken."""
        if not self.typed(cell):
            self._notes[cell] = note

    def take(self, found: ConceptAnnotations) -> None:
        """Write down the annotations of a file or a run."""
        reason = found.failures[0] if found.failures else "the annotator failed"
        for row, layer in enumerate(found.layers):
            for column, component in enumerate(found.components):
                if found.done[row, column]:
                    note = found.annotation(layer, component)
                    failed = bool(found.failed[row, column])
                    self.put((layer, component), replace(note, failure=reason) if failed else note)

    def annotations(self, result: FFNConceptResult, components: int) -> ConceptAnnotations:
        """The notes about the first components of every layer of a result, as analyses take them."""
        count = min(components, result.rank)
        blank = annotate_concepts(result, None, components=range(count))
        shape = len(blank.layers), count
        grid = [[self._notes.get((layer, component)) for component in range(count)] for layer in blank.layers]
        flags = np.zeros((*shape, len(SCENARIOS)), dtype=bool)
        levels = np.full(shape, -1)
        for row, notes in enumerate(grid):
            for column, note in enumerate(notes):
                if note is not None:
                    flags[row, column] = [name in note.scenarios for name in SCENARIOS]
                    levels[row, column] = -1 if note.level is None else LEVELS.index(note.level)
        failures = Counter(note.failure for notes in grid for note in notes if note is not None and note.failure)
        sources = {note.source for notes in grid for note in notes if note is not None and note.source}
        return replace(
            blank,
            descriptions=tuple(tuple("" if note is None else note.description for note in notes) for notes in grid),
            sources=tuple(tuple("" if note is None else note.source for note in notes) for notes in grid),
            scenario_flags=flags,
            level_index=levels,
            done=np.array([[note is not None for note in notes] for notes in grid], dtype=bool),
            failed=np.array([[bool(note and note.failure) for note in notes] for notes in grid], dtype=bool),
            failures=tuple(reason for reason, _ in failures.most_common()),
            annotator=", ".join(sorted(sources)),
        )

    def counts(self, cells: Iterator[Cell]) -> tuple[int, int, int]:
        """Of these components: how many have a note, how many of the notes say nothing, how many were typed."""
        notes = [note for cell in cells if (note := self._notes.get(cell)) is not None]
        return len(notes), sum(note.cannot_tell for note in notes), sum(note.source == USER for note in notes)
