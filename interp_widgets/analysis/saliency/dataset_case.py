"""One case of a data set: where its importance comes from, and its scores or the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.saliency.dataset_result import FOLLOWED, SEGMENTS, UNFOLLOWED, UNKNOWN
from interp_widgets.analysis.saliency.density import (
    importance_density,
    instruction_score,
    normalise_importance,
    sentence_profiles,
    sentence_spans,
)
from interp_widgets.analysis.saliency.saliency_result import SaliencyResult, spans_to_mask
from interp_widgets.models import Model


@dataclass(frozen=True)
class Options:
    """How to score and to compare, see :func:`saliency_dataset`."""

    levels: int
    threshold: float
    p: float
    min_response: int
    normalised: bool | None
    resamples: int
    seed: int


@dataclass(frozen=True)
class Source:
    """One model, or one list of ready matrices: how to get case i's importance."""

    name: str
    cases: Sequence[Any]
    matrices: Sequence[Any] | None
    model: Model | None
    saliency: Callable[[Any], SaliencyResult] | None


@dataclass(frozen=True)
class Row:
    """What is known of one case of one model."""

    source: int
    case: int
    name: str
    group: str
    label: int = UNKNOWN
    score: float = float("nan")
    context_score: float = float("nan")
    sizes: tuple[int, int, int] = (0, 0, 0)
    dropped: bool = False
    error: str = ""
    response: str = ""
    profiles: tuple[tuple[float, ...], ...] = ()


class Relay:
    """Calls the caller's function and remembers whether it raised, so that a cancellation is no failed case."""

    def __init__(self, function: Callable[..., None] | None) -> None:
        self.function = function
        self.raised = False

    def __call__(self, *args: Any) -> None:
        if self.function is None:
            return
        try:
            self.function(*args)
        except BaseException:
            self.raised = True
            raise


def find_sources(
    given: Any, cases: Sequence[Any] | None, names: Sequence[str] | None, generate: bool, options: dict[str, Any]
) -> list[Source]:
    """The one or two models or lists of matrices to go through."""
    if hasattr(given, "base") and hasattr(given, "tuned"):
        given = (given.base, given.tuned)
    pair = isinstance(given, list | tuple) and len(given) == 2
    two = pair and (all(map(_is_model, given)) or (isinstance(given, tuple) and _are_lists(given)))
    parts = list(given) if two else [given]
    if names is not None and len(names) != len(parts):
        raise ValueError(f"names must be one per model ({len(parts)}), got {len(names)}")
    sources = []
    for place, part in enumerate(parts):
        if _is_model(part):
            if cases is None:
                raise ValueError("a model needs cases: give a sequence of SaliencyCase")
            source = Source(part.name, list(cases), None, part, _model_saliency(part, generate, options))
        elif isinstance(part, (str, bytes, Mapping)) or not isinstance(part, Iterable):
            raise TypeError(
                "the first argument must be a loaded model, two of them, or a list of saliency results or matrices, "
                f"got {part!r}"
            )
        else:
            matrices = list(part)
            if cases is not None and len(cases) != len(matrices):
                raise ValueError(f"matrices and cases must match one to one, got {len(matrices)} and {len(cases)}")
            default = "AB"[place] if two else "given"
            name = str(getattr(matrices[0], "model", default)) if matrices else default
            source = Source(name, list(cases) if cases is not None else matrices, matrices, None, None)
        if not len(source.cases):
            raise ValueError("there is no case to score: give at least one")
        sources.append(replace(source, name=names[place]) if names is not None else source)
    if len(sources) == 2 and sources[0].name == sources[1].name:
        sources = [replace(source, name=f"{source.name} ({'AB'[i]})") for i, source in enumerate(sources)]
    return sources


def _are_lists(values: Sequence[Any]) -> bool:
    return all(isinstance(value, list | tuple) for value in values)


def _is_model(value: Any) -> bool:
    return hasattr(value, "tl_model") or (hasattr(value, "run") and hasattr(value, "tokens"))


def _model_saliency(model: Model, generate: bool, options: dict[str, Any]) -> Callable[[Any], SaliencyResult]:
    def saliency(case: Any) -> SaliencyResult:
        from interp_widgets.analysis.saliency.attribution import prompt_saliency

        return prompt_saliency(model, case.prompt, None if generate else case.response, **options)

    return saliency


def score_row(
    source: Source, place: int, index: int, group: str, judge: Any, options: Options, relays: Sequence[Relay]
) -> Row:
    """One case's row; an error becomes the row's sentence unless it is the caller's own cancellation."""
    case = source.cases[index]
    name = str(getattr(case, "name", "")) or f"case {index}"
    blank = Row(place, index, name, group)
    try:
        return _score_case(source, index, blank, judge, options)
    except Exception as error:
        if any(relay.raised for relay in relays):
            raise
        return replace(blank, error=str(error) or type(error).__name__)


def _score_case(source: Source, index: int, blank: Row, judge: Any, options: Options) -> Row:
    case = source.cases[index]
    item = source.saliency(case) if source.saliency is not None else source.matrices[index]  # type: ignore[index]
    scores = _scores(item, case, options)
    prompt, length = scores.shape
    mask = _mask(item, case, source.model)
    if mask.shape != (prompt,):
        raise ValueError(f"the instruction mask must have one entry per prompt token ({prompt}), got {mask.shape}")
    response = "".join(getattr(item, "response_tokens", ())) or str(getattr(case, "response", "") or "")
    if source.model is not None and isinstance(item, SaliencyResult):
        response = source.model.decode(list(item.response_ids))
    label = judge(case, response) if judge is not None else getattr(case, "label", None)
    row = replace(
        blank,
        label=UNKNOWN if label is None else FOLLOWED if label else UNFOLLOWED,
        sizes=(prompt, length, int(mask.sum())),
        response=response,
    )
    if length < options.min_response:
        return replace(row, dropped=True)
    density = importance_density(scores, p=options.p)
    special = np.asarray(getattr(item, "prompt_special", np.zeros(prompt)), dtype=bool)
    profiles: NDArray[np.float64] = np.zeros((0, SEGMENTS))
    if isinstance(item, SaliencyResult):
        profiles = sentence_profiles(density, sentence_spans(item.prompt_tokens), segments=SEGMENTS)
    return replace(
        row,
        score=instruction_score(density, mask),
        context_score=instruction_score(density, ~mask & ~special),
        profiles=tuple(map(tuple, profiles.tolist())),
    )


def _scores(item: Any, case: Any, options: Options) -> NDArray[np.float64]:
    """(prompt, response) levels above the threshold, from a matrix, a result or a record."""
    ready = options.normalised
    if ready is None:
        ready = bool(getattr(item, "normalised", False)) if not isinstance(item, SaliencyResult) else False
    if isinstance(item, SaliencyResult) and not ready:
        return item.normalised(levels=options.levels, threshold=options.threshold)
    values = np.asarray(getattr(item, "importance", item), dtype=np.float64)
    if not ready:
        return normalise_importance(values, levels=options.levels, threshold=options.threshold)
    if (
        values.ndim != 2
        or not np.isfinite(values).all()
        or values.min(initial=0) < 0
        or values.max(initial=0) > options.levels
    ):
        raise ValueError(f"normalised matrices must be (prompt, response) with values 0..{options.levels}")
    return np.where(values > options.threshold, values, 0.0)


def _mask(item: Any, case: Any, model: Model | None) -> NDArray[np.bool_]:
    """(prompt,) which prompt tokens belong to the instruction, from whatever the case or the record says."""
    for holder in (case, item):
        if getattr(holder, "mask", None) is not None and not callable(holder.mask):
            return np.asarray(holder.mask, dtype=bool)
    spans = getattr(case, "instruction", None)
    if spans is not None:
        spans = [spans] if isinstance(spans[0], int) else list(spans)
        known = getattr(item, "prompt_spans", None)
        if known is None and model is not None and isinstance(case.prompt, str):
            known = model.token_spans(case.prompt)
        return spans_to_mask(known, spans)
    if isinstance(case, np.ndarray | list | tuple) and case is not item:
        return np.asarray(case, dtype=bool)
    raise ValueError("no instruction is marked: give the case an instruction span or a token mask")
