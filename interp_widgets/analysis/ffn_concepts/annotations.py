"""What the word lists of MLP components mean, as said by an annotator and edited by the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Result, record
from interp_widgets.data.annotators import LEVELS, SCENARIOS, Annotation

if TYPE_CHECKING:
    import pandas as pd

USER = "user"
"""The source of what was typed in."""


@record
class ConceptAnnotations(Result):
    """A description, task scenarios and a linguistic level for the components of a model's MLPs.

    Immutable: `changed` gives a copy with one component's note edited.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendix D.

    Example:
        >>> notes = annotate_concepts(ffn_concepts(model, rank=20), RuleAnnotator())
        >>> notes.description(4, 19), notes.level(4, 19)
        ('first names [list: 13 of 15 words]', 'semantics')
        >>> notes.changed(4, 19, description="names of people").description(4, 19)
        'names of people'
    """

    layers: Sequence[int]
    """(layers,) layers of the model, rising."""

    components: Sequence[int]
    """(components,) components of each layer, rising."""

    descriptions: Sequence[Sequence[str]]
    """(layers, components) what the words have in common; empty: cannot tell."""

    sources: Sequence[Sequence[str]]
    """(layers, components) who said so; empty where nobody was asked."""

    scenario_flags: NDArray[np.bool_]
    """(layers, components, 4) whether a component serves writing, coding, math, translation."""

    level_index: NDArray[np.integer[Any]]
    """(layers, components) place of the level in phonology, morphology, syntax, semantics; -1: cannot tell."""

    done: NDArray[np.bool_]
    """(layers, components) whether the component was annotated."""

    failed: NDArray[np.bool_]
    """(layers, components) whether the annotator was asked and failed to answer: counted as "cannot tell"."""

    failures: Sequence[str] = ()
    """The different reasons of the failures, most frequent first."""

    annotator: str = ""
    """Name of the annotator that was asked."""

    def __post_init__(self) -> None:
        for name in ("layers", "components", "failures"):
            self.sequence(name)
        shape = len(self.layers), len(self.components)
        for name in ("descriptions", "sources"):
            rows = tuple(map(tuple, getattr(self, name)))
            if tuple(map(len, rows)) != (shape[1],) * shape[0]:
                raise ValueError(f"ConceptAnnotations.{name} must be {shape[0]} rows of {shape[1]} texts")
            object.__setattr__(self, name, rows)
        self.array("scenario_flags", (*shape, len(SCENARIOS)), "bool")
        self.array("level_index", shape, "int")
        for name in ("done", "failed"):
            self.array(name, shape, "bool")

    # ---- single components

    def place(self, layer: int, component: int) -> tuple[int, int]:
        """Where a component stands in the arrays: row and column; ValueError for one that is not there."""
        for what, value, known in (("layer", layer, self.layers), ("component", component, self.components)):
            if value not in known:
                raise ValueError(f"{what} must be one of {_listed(known)}, which were annotated, got {value}")
        return list(self.layers).index(layer), list(self.components).index(component)

    def description(self, layer: int, component: int) -> str:
        """What a component's words have in common; empty: cannot tell. ValueError for one that is not there."""
        row, column = self.place(layer, component)
        return self.descriptions[row][column]

    def scenarios(self, layer: int, component: int) -> tuple[str, ...]:
        """The task scenarios of a component; ValueError for one that is not there."""
        flags = self.scenario_flags[self.place(layer, component)]
        return tuple(name for name, flag in zip(SCENARIOS, flags.tolist(), strict=True) if flag)

    def level(self, layer: int, component: int) -> str | None:
        """The linguistic level of a component, None: cannot tell; ValueError for one that is not there."""
        place = int(self.level_index[self.place(layer, component)])
        return None if place < 0 else LEVELS[place]

    def annotation(self, layer: int, component: int) -> Annotation:
        """All that is said about a component; ValueError for one that is not there."""
        row, column = self.place(layer, component)
        return Annotation(
            self.descriptions[row][column],
            self.scenarios(layer, component),
            self.level(layer, component),
            self.sources[row][column],
        )

    def changed(
        self,
        layer: int,
        component: int,
        *,
        description: str | None = None,
        scenarios: Sequence[str] | None = None,
        level: str | None = "",
        source: str = USER,
    ) -> ConceptAnnotations:
        """A copy with the note about one component edited; what is not given stays.

        ``level=None`` and an empty ``description`` say "cannot tell"; ``scenarios=()`` none of them. Raises ValueError
        for a component that is not there or an unknown scenario or level.

        Example:
            >>> notes = annotate_concepts(ffn_concepts(model, rank=3), None)
            >>> notes.changed(5, 0, description="names of towns", level="semantics").description(5, 0)
            'names of towns'
        """
        old = self.annotation(layer, component)
        new = Annotation(
            old.description if description is None else description,
            old.scenarios if scenarios is None else tuple(scenarios),
            old.level if level == "" else level,
            source,
        )
        fields = Cells(self)
        fields.put(*self.place(layer, component), new)
        return fields.annotations(self)

    # ---- all of them

    @property
    def told(self) -> NDArray[np.bool_]:
        """(layers, components) whether a component has a description."""
        return np.array([[bool(text) for text in row] for row in self.descriptions], dtype=bool).reshape(
            self.done.shape
        )

    @property
    def n_failed(self) -> int:
        """Components for which the annotator failed to answer."""
        return int(self.failed.sum())

    @property
    def n_cannot_tell(self) -> int:
        """Annotated components without a description, failures included."""
        return int((self.done & ~self.told).sum())

    def summary(self) -> str:
        """One line for people: how many were annotated, described, "cannot tell" and failed."""
        total = int(self.done.sum())
        text = f"{total} components: {total - self.n_cannot_tell} described, {self.n_cannot_tell} cannot tell"
        if self.n_failed:
            text += f" (the annotator failed for {self.n_failed}: {self.failures[0]})"
        return text + (f"; {self.done.size - total} not annotated" if total < self.done.size else "")

    def to_frame(self) -> pd.DataFrame:
        """One row per component: layer, component, description, scenarios, level, source, whether it failed."""
        import pandas as pd

        cells = [(layer, component) for layer in self.layers for component in self.components]
        notes = [self.annotation(*cell) for cell in cells]
        return pd.DataFrame(
            {
                "layer": [layer for layer, _ in cells],
                "component": [component for _, component in cells],
                "description": [note.description for note in notes],
                "scenarios": [", ".join(note.scenarios) for note in notes],
                "level": [note.level for note in notes],
                "source": [note.source for note in notes],
                "annotated": self.done.ravel(),
                "failed": self.failed.ravel(),
            }
        )


class Cells:
    """The fields of annotations while they are being filled, which annotations themselves never are."""

    def __init__(self, start: ConceptAnnotations) -> None:
        self.descriptions = list(map(list, start.descriptions))
        self.sources = list(map(list, start.sources))
        self.flags, self.levels = start.scenario_flags.copy(), start.level_index.copy()
        self.done, self.failed = start.done.copy(), start.failed.copy()
        self.reasons: Counter[str] = Counter(dict.fromkeys(start.failures, 0))

    def put(self, row: int, column: int, note: Annotation) -> None:
        self.descriptions[row][column] = note.description
        self.sources[row][column] = note.source
        self.flags[row, column] = [name in note.scenarios for name in SCENARIOS]
        self.levels[row, column] = -1 if note.level is None else LEVELS.index(note.level)
        self.done[row, column] = True
        self.failed[row, column] = bool(note.failure)
        if note.failure:
            self.reasons[note.failure] += 1

    def annotations(self, start: ConceptAnnotations, *, partial: bool = False) -> ConceptAnnotations:
        return replace(
            start,
            descriptions=tuple(map(tuple, self.descriptions)),
            sources=tuple(map(tuple, self.sources)),
            scenario_flags=self.flags.copy(),
            level_index=self.levels.copy(),
            done=self.done.copy(),
            failed=self.failed.copy(),
            failures=tuple(reason for reason, _ in self.reasons.most_common()) if self.failed.any() else (),
            partial=partial,
        )


def _listed(numbers: Sequence[int]) -> str:
    """Whole numbers for an error: 0..5, or the single ones."""
    first, last = numbers[0], numbers[-1]
    whole = len(numbers) == last - first + 1 > 1
    return f"{first}..{last}" if whole else ", ".join(map(str, numbers))
