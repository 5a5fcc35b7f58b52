"""Words and notes of a component as cells of a table."""

from __future__ import annotations

from interp_widgets.analysis.ffn_concepts import FFNConceptResult
from interp_widgets.data.annotators import Annotation


def words_of(result: FFNConceptResult, cell: tuple[int, int], side: str, *, turned: bool = False) -> str:
    """The words of one side of a component, or of both, those of the negative side with a minus.

    ``turned`` swaps the sides: the sign of a component is free.
    """
    if side != "both":
        return ", ".join(result.words(*cell, sign=side))  # type: ignore[arg-type]
    return ", ".join(word if (value > 0) != turned else f"−{word}" for word, value in result.scores(*cell))


def note_cells(note: Annotation | None) -> list[str | None]:
    """Description, scenarios, level and who says so, for the table."""
    if note is None:
        return [None, None, None, None]
    by = note.source or "–"
    if note.failure:
        by += f": no answer ({note.failure})"
    elif note.cannot_tell:
        by += ": cannot tell"
    return [note.description, ", ".join(note.scenarios), note.level or "", by]
