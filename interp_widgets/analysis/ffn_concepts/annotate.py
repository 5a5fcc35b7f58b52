"""`annotate_concepts`: ask an annotator what the word lists of MLP components mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from interp_widgets.analysis.ffn_concepts.annotations import USER, Cells, ConceptAnnotations
from interp_widgets.analysis.ffn_concepts.result import FFNConceptResult, Sign
from interp_widgets.analysis.result import provenance
from interp_widgets.arguments import checked
from interp_widgets.data.annotators import SCENARIOS, Annotation, Annotator

_PARTIAL_EVERY = 50
"""Components between two partial results."""


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

    An annotator that fails for one component counts as "cannot tell" there, and the run goes on; where it fails
    ``give_up`` times in a row the run stops and the result is partial, with what was answered and the reason.

    Args:
        result: from `ffn_concepts`.
        annotator: a `RuleAnnotator`, an `EndpointAnnotator`, your own, or None: nothing is annotated yet, to be filled
            by `ConceptAnnotations.changed`.
        layers: of the result; default: all.
        components: of each layer; default: all.
        sign: which words of a component are shown to the annotator.
        keep: annotations made before: what the user typed in stays, and so does all that this annotator has answered.
        give_up: failures in a row after which the annotator is asked no more.
        progress: called with (done, total) components.
        check: called between components; raises to cancel.
        on_partial: receives the annotations so far, every 50 components.

    Raises:
        ValueError: a layer or component that is not in the result, or ``keep`` of other ones.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendix D.

    Example:
        >>> notes = annotate_concepts(ffn_concepts(model, rank=20), RuleAnnotator())
        >>> notes.description(4, 19), notes.level(4, 19)
        ('first names [list: 13 of 15 words]', 'semantics')
    """
    if give_up < 1:
        raise ValueError(f"give_up must be 1 or more, got {give_up}")
    start = _blank(result, annotator, layers, components, sign)
    cells = Cells(start)
    if keep is not None:
        _keep(cells, start, keep)
    if annotator is None:
        return cells.annotations(start, partial=result.partial)
    todo = [(int(i), int(j)) for i, j in np.argwhere(~cells.done)]
    questions = (result.words(start.layers[row], start.components[column], sign=sign) for row, column in todo)
    in_a_row = 0
    for count, note in enumerate(_answers(annotator, questions, check), start=1):
        cells.put(*todo[count - 1], note)
        in_a_row = in_a_row + 1 if note.failure else 0
        if progress is not None:
            progress(count, len(todo))
        if in_a_row == give_up and count < len(todo):
            return cells.annotations(start, partial=True)
        if on_partial is not None and count % _PARTIAL_EVERY == 0 and count < len(todo):
            on_partial(cells.annotations(start, partial=True))
    return cells.annotations(start, partial=result.partial)


def _answers(
    annotator: Annotator, questions: Iterable[tuple[str, ...]], check: Callable[[], None] | None
) -> Iterator[Annotation]:
    """What the annotator says, in the order of the questions; one that takes several at a time is given them."""
    parallel = int(getattr(annotator, "parallel", 1))
    if parallel == 1:
        for words in questions:
            if check is not None:
                check()
            yield annotator.annotate(words, check=check)
        return
    waiting: deque[Future[Annotation]] = deque()
    pool = ThreadPoolExecutor(parallel)
    try:
        for words in questions:
            if check is not None:
                check()
            waiting.append(pool.submit(annotator.annotate, words, check=check))
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
    """Annotations of the chosen components that say nothing yet."""
    rows = tuple(result.layers) if layers is None else tuple(sorted(set(layers)))
    columns = tuple(range(result.rank)) if components is None else tuple(sorted(set(components)))
    for layer in rows:
        result.row(layer)
    if not rows or not columns or not 0 <= columns[0] <= columns[-1] < result.rank:
        raise ValueError(f"layers and components must be at least one each, components in 0..{result.rank - 1}")
    shape = len(rows), len(columns)
    name = "" if annotator is None else annotator.name
    told = {key: result.provenance.get(key) for key in ("model", "weight_hash")}
    told |= {key: result.provenance[key] for key in ("edited", "edit_key") if key in result.provenance}
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
        provenance=provenance(told, annotator=name, words=result.top, sign=sign),
    )


def _keep(cells: Cells, start: ConceptAnnotations, keep: ConceptAnnotations) -> None:
    """Put in what the user, or this annotator, has said before."""
    for name in ("model", "weight_hash", "edit_key", "sign"):
        old, new = keep.provenance.get(name), start.provenance.get(name)
        if old != new:
            raise ValueError(f"keep must be annotations of the same result: its {name} is {old!r}, here {new!r}")
    for row, layer in enumerate(start.layers):
        for column, component in enumerate(start.components):
            if layer not in keep.layers or component not in keep.components:
                continue
            at = keep.place(layer, component)
            known = keep.sources[at[0]][at[1]] in (USER, start.annotator)
            if keep.done[at] and not keep.failed[at] and known:
                cells.put(row, column, keep.annotation(layer, component))
