"""`annotate_concepts`: descriptions of MLP components from their word lists, by an annotator or the user."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from interp_widgets.analysis._core.arrays import Bools, Ints
from interp_widgets.analysis._core.checks import check_range, indices, row_of, rows_of
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.ffn_concepts.components import FFNConceptResult, Sign
from interp_widgets.arguments import checked
from interp_widgets.data.annotators import LEVELS, SCENARIOS, Annotation, Annotator

USER = "user"
"""The source of annotations typed in by the user."""
_PARTIAL_EVERY = 50
"""Components between two partial results."""


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

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model, rising."""

    components: Sequence[int] = with_axes("components")
    """Components of each layer, rising."""

    descriptions: Sequence[Sequence[str]] = with_axes("layers", "components")
    """What the words have in common; empty for "cannot tell"."""

    sources: Sequence[Sequence[str]] = with_axes("layers", "components")
    """The annotator, or "user"; empty where not annotated."""

    scenario_flags: Bools = with_axes("layers", "components", 4)
    """Whether a component serves writing, coding, math, translation."""

    level_index: Ints = with_axes("layers", "components")
    """Index of the level in phonology, morphology, syntax, semantics; -1 for "cannot tell"."""

    done: Bools = with_axes("layers", "components")
    """Whether the component was annotated."""

    failed: Bools = with_axes("layers", "components")
    """Whether the annotator failed to answer: counted as "cannot tell"."""

    failures: Sequence[str] = with_axes("failures", default=())
    """The different reasons of the failures, most frequent first."""

    annotator: str = ""
    """Name of the annotator."""

    # ---- single components

    def cell(self, layer: int, component: int) -> tuple[int, int]:
        """Row and column of a component in the arrays; ValueError for an unknown one."""
        return row_of(layer, self.layers, "layer"), row_of(component, self.components, "component")

    def description(self, layer: int, component: int) -> str:
        """What a component's words have in common; empty for "cannot tell". ValueError for an unknown component."""
        row, column = self.cell(layer, component)
        return self.descriptions[row][column]

    def scenarios(self, layer: int, component: int) -> tuple[str, ...]:
        """The task scenarios of a component; ValueError for an unknown one."""
        flags = self.scenario_flags[self.cell(layer, component)]
        return tuple(name for name, flag in zip(SCENARIOS, flags.tolist(), strict=True) if flag)

    def level(self, layer: int, component: int) -> str | None:
        """The linguistic level of a component, None for "cannot tell"; ValueError for an unknown component."""
        number = int(self.level_index[self.cell(layer, component)])
        return None if number < 0 else LEVELS[number]

    def annotation(self, layer: int, component: int) -> Annotation:
        """The whole annotation of a component; ValueError for an unknown one."""
        row, column = self.cell(layer, component)
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
        """A copy with the annotation of one component edited; arguments that are left out keep their value.

        ``level=None`` and an empty ``description`` mean "cannot tell", ``scenarios=()`` none of the scenarios. Raises
        ValueError for an unknown component, scenario or level.

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
        fields.put(*self.cell(layer, component), new)
        return fields.annotations(self)

    # ---- all components

    @property
    def described(self) -> Bools:
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
        return int((self.done & ~self.described).sum())

    def summary(self) -> str:
        """A readable line: how many were annotated and described, and how many were "cannot tell" or failed."""
        total = int(self.done.sum())
        text = f"{total} components: {total - self.n_cannot_tell} described, {self.n_cannot_tell} cannot tell"
        if self.n_failed:
            text += f" (the annotator failed for {self.n_failed}: {self.failures[0]})"
        return text + (f"; {self.done.size - total} not annotated" if total < self.done.size else "")

    def to_frame(self) -> DataFrame:
        """One row per component: layer, component, description, scenarios, level, source, whether it failed."""
        cells = [[self.annotation(layer, component) for component in self.components] for layer in self.layers]
        columns = {
            "description": self.descriptions,
            "scenarios": [[", ".join(note.scenarios) for note in row] for row in cells],
            "level": [[note.level for note in row] for row in cells],
            "source": self.sources,
            "annotated": self.done,
            "failed": self.failed,
        }
        return table({"layer": self.layers, "component": self.components}, columns)


class Cells:
    """Mutable fields of the immutable `ConceptAnnotations`, while they are being filled."""

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


@checked
def annotate_concepts(
    result: FFNConceptResult,
    annotator: Annotator | None,
    *,
    layers: Sequence[int] | None = None,
    components: Sequence[int] | None = None,
    sign: Sign = "both",
    keep: ConceptAnnotations | None = None,
    give_up: int = 8,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[ConceptAnnotations], None] | None = None,
) -> ConceptAnnotations:
    """Ask an annotator what each component's words have in common, which task they serve and their linguistic level.

    A component for which the annotator fails counts as "cannot tell", and the run goes on. After ``give_up`` failures
    in a row the run stops; the result is then partial and holds the answers so far and the reason.

    Args:
        result: from `ffn_concepts`.
        annotator: a `RuleAnnotator`, an `EndpointAnnotator` or your own; None for empty annotations, which
            `ConceptAnnotations.changed` fills.
        layers: of the result; default: all.
        components: of each layer; default: all.
        sign: which words of a component are shown to the annotator.
        keep: earlier annotations; those by the user and by this annotator are kept.
        give_up: failures in a row after which the run stops.
        progress: called with (done, total) components.
        check: called between components; raises to cancel.
        on_partial: receives the annotations so far, every 50 components.

    Raises:
        ValueError: a layer or component that is not in the result, or ``keep`` from another result.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendix D.

    Example:
        >>> notes = annotate_concepts(ffn_concepts(model, rank=20), RuleAnnotator())
        >>> notes.description(4, 19), notes.level(4, 19)
        ('first names [list: 13 of 15 words]', 'semantics')
    """
    check_range("give_up", give_up)
    run = RunOptions(progress, check)
    start = _blank(result, annotator, layers, components, sign)
    cells = Cells(start)
    if keep is not None:
        _keep(cells, start, keep)
    if annotator is None:
        return cells.annotations(start, partial=result.partial)
    todo = [(int(i), int(j)) for i, j in np.argwhere(~cells.done)]
    questions = (result.words(start.layers[row], start.components[column], sign=sign) for row, column in todo)
    in_a_row = 0
    for count, note in enumerate(_answers(annotator, questions, run), start=1):
        cells.put(*todo[count - 1], note)
        in_a_row = in_a_row + 1 if note.failure else 0
        run.report(count, len(todo))
        if in_a_row == give_up and count < len(todo):
            return cells.annotations(start, partial=True)
        if on_partial is not None and count % _PARTIAL_EVERY == 0 and count < len(todo):
            on_partial(cells.annotations(start, partial=True))
    return cells.annotations(start, partial=result.partial)


def _answers(annotator: Annotator, questions: Iterable[tuple[str, ...]], run: RunOptions) -> Iterator[Annotation]:
    """The annotator's answers in the order of the questions, which are sent in batches if it supports them."""
    parallel = int(getattr(annotator, "parallel", 1))
    if parallel == 1:
        for words in questions:
            run.stop_if_cancelled()
            yield annotator.annotate(words, check=run.check)
        return
    waiting: deque[Future[Annotation]] = deque()
    pool = ThreadPoolExecutor(parallel)
    try:
        for words in questions:
            run.stop_if_cancelled()
            waiting.append(pool.submit(annotator.annotate, words, check=run.check))
            if len(waiting) == parallel:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _blank(
    result: FFNConceptResult,
    annotator: Annotator | None,
    layers: Sequence[int] | None,
    components: Sequence[int] | None,
    sign: Sign,
) -> ConceptAnnotations:
    """Empty annotations of the chosen components."""
    rows = tuple(result.layers[row] for row in sorted(rows_of(layers, result.layers, "layer")))
    columns = tuple(sorted(indices(components, result.rank, "component", f"result of rank {result.rank}")))
    shape = len(rows), len(columns)
    name = "" if annotator is None else annotator.name
    made_of = {key: result.provenance.get(key) for key in ("model", "weight_hash")}
    made_of |= {key: result.provenance[key] for key in ("tokenizer", "edited", "edit_key") if key in result.provenance}
    return ConceptAnnotations(
        layers=rows,
        components=columns,
        descriptions=(("",) * shape[1],) * shape[0],
        sources=(("",) * shape[1],) * shape[0],
        scenario_flags=np.zeros((*shape, len(SCENARIOS)), dtype=bool),
        level_index=np.full(shape, -1),
        done=np.zeros(shape, dtype=bool),
        failed=np.zeros(shape, dtype=bool),
        annotator=name,
        provenance=provenance(made_of, annotator=name, words=result.top, sign=sign),
    )


def _keep(cells: Cells, start: ConceptAnnotations, keep: ConceptAnnotations) -> None:
    """Copy the earlier annotations of the user and of this annotator."""
    for name in ("model", "weight_hash", "tokenizer", "edit_key", "sign"):
        old, new = keep.provenance.get(name), start.provenance.get(name)
        if name == "tokenizer" and None in (old, new):  # earlier releases did not note it
            continue
        if old != new:
            raise ValueError(f"keep must be annotations of the same result: its {name} is {old!r}, here {new!r}")
    for row, layer in enumerate(start.layers):
        for column, component in enumerate(start.components):
            if layer not in keep.layers or component not in keep.components:
                continue
            cell = keep.cell(layer, component)
            known = keep.sources[cell[0]][cell[1]] in (USER, start.annotator)
            if keep.done[cell] and not keep.failed[cell] and known:
                cells.put(row, column, keep.annotation(layer, component))
