"""`saliency_dataset`: instruction scores of many cases, compared by label and by model, and position profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, float64
from interp_widgets.analysis._core.result import Scalar, provenance
from interp_widgets.analysis._core.statistics import GroupComparison, bootstrap_mean, compare_known, holm
from interp_widgets.analysis._core.targets import Target
from interp_widgets.analysis.saliency.attribution import prompt_saliency
from interp_widgets.analysis.saliency.dataset_result import (
    FOLLOWED,
    SEGMENTS,
    UNFOLLOWED,
    UNKNOWN,
    SaliencyDatasetResult,
)
from interp_widgets.analysis.saliency.density import (
    FLOOR,
    importance_density,
    instruction_score,
    normalize_importance,
    sentence_profiles,
    sentence_spans,
    under_floor,
)
from interp_widgets.analysis.saliency.saliency_result import Method, SaliencyResult, spans_to_mask
from interp_widgets.analysis.saliency.spans import spaced_tokens
from interp_widgets.arguments import checked, message_of
from interp_widgets.models import Model
from interp_widgets.renamed import renamed

_PARTIAL_DELIVERIES = 8


@dataclass(frozen=True)
class Options:
    """Options of scores and comparisons, see :func:`saliency_dataset`."""

    levels: int
    threshold: float
    p: float
    min_response: int
    min_importance: float
    normalized: bool | None
    resamples: int
    seed: int


@dataclass(frozen=True)
class Source:
    """One model or one list of importance matrices, from which each case's importance is taken."""

    name: str
    cases: Sequence[Any]
    matrices: Sequence[Any] | None
    model: Model | None
    saliency: Callable[[Any], SaliencyResult] | None


@dataclass(frozen=True)
class Row:
    """One case of one model: its scores, or the error."""

    model: int
    case: int
    name: str
    group: str
    label: int = UNKNOWN
    score: float = float("nan")
    context_score: float = float("nan")
    paper_score: float = float("nan")
    n_under_floor: int = 0
    n_prompt: int = 0
    n_response: int = 0
    n_instruction: int = 0
    dropped: bool = False
    error: str = ""
    response: str = ""
    profiles: tuple[tuple[float, ...], ...] = ()


class Relay:
    """Wraps the caller's function and records whether it raised, so that a cancellation is not a failed case."""

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


@renamed(normalised="normalized")
@checked
def saliency_dataset(
    model_or_matrices: Any,
    cases: Sequence[Any] | None = None,
    *,
    method: Method = "exact",
    target: Target = "probability",
    levels: int = 10,
    threshold: float = 7,
    p: float = 4,
    min_response: int = 5,
    min_importance: float = FLOOR,
    normalized: bool | None = None,
    groups: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    generate: bool = False,
    judge: Callable[[Any, str], bool | None] | None = None,
    resamples: int = 9999,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[SaliencyDatasetResult], None] | None = None,
    **saliency_options: Any,
) -> SaliencyDatasetResult:
    """Score how strongly instruction words drive each response of a data set, and compare groups of responses.

    `model_or_matrices` is a model, or a sequence of importance matrices (prompt, response), saliency results or records
    of an importance archive; a ModelPair or a tuple of two of either compares two (A, B), with the alternative
    hypothesis that B scores higher. `cases` are :class:`SaliencyCase` (prompt, response, instruction span, label),
    records, or for plain matrices just the (prompt,) instruction masks; records need none.

    - ``generate=True`` lets the model write every response; `judge(case, response)` then returns whether a response
      follows the instruction (True, False, or None if not known). Without it the case's label is used.
    - `levels` and `threshold` are those of :func:`normalize_importance`, `p` that of :func:`importance_density`.
    - responses under `min_response` tokens are dropped and counted.
    - response tokens whose largest importance is under `min_importance` (in the target's unit) are counted and left out
      of density and scores, since :func:`normalize_importance` would stretch them to the full scale; a case without any
      other token is dropped. `paper_score` is the score with them; with 0 no token is left out. Normalised matrices
      have no unit, so that the floor does not apply to them.
    - `normalized`: whether matrices hold levels already; by default as the records state.
    - `groups` (cases,) names groups to compare within as well, with Holm's correction over them.
    - `names` are the models' names in their order.
    - `resamples` and `seed` are those of the bootstrap intervals and permutation tests.
    - `progress` is called with (done, total) cases, `check` before every case; it raises to cancel.
    - `method`, `target` and further keywords (``max_new_tokens``, ``steps``...) go to :func:`prompt_saliency`.
    - `on_partial` receives a partial result a few times, and when `check` or `progress` raises; that exception is
      passed on.

    A case that fails keeps its row with its error message. Raises ValueError when there is no case, the inputs do not
    match, or all cases fail.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.2, Tables 1-2, App. B.3.

    Example:
        >>> matrices = [[[1, 1, 1], [0, 0, 1]], [[1, 0, 0], [1, 1, 1]]]
        >>> result = saliency_dataset(matrices, [[True, False], [True, False]], min_response=1)
        >>> result.score.round(2).tolist()
        [0.63, 0.28]
    """
    options = Options(levels, threshold, p, min_response, min_importance, normalized, resamples, seed)
    # refuse bad options before any work
    normalize_importance(np.zeros((1, 1)), levels=levels, threshold=threshold, min_importance=min_importance)
    relay, ticks = Relay(check), Relay(progress)
    saliency_options |= {"method": method, "target": target, "seed": seed, "check": relay}
    extra = sorted(set(saliency_options) - {"method", "target", "seed", "check"})
    sources = _sources(model_or_matrices, cases, names, generate, saliency_options)
    if extra and all(source.model is None for source in sources):
        raise TypeError(f"ready matrices take no {', '.join(extra)}: that is an option of prompt_saliency")
    if groups is not None and any(len(groups) != len(source.cases) for source in sources):
        raise ValueError(f"groups must name one group per case, got {len(groups)} for {len(sources[0].cases)} cases")
    settings = {"min_response": min_response, "generate": generate, "resamples": resamples, **saliency_options}
    facts = _provenance(sources, {key: value for key, value in settings.items() if key != "check"})
    method_name = _method_name(sources, method)

    def assemble(done: Sequence[Row], partial: bool) -> SaliencyDatasetResult:
        return _assemble(done, sources, method_name, options, facts, partial)

    work = [(s, i) for s in range(len(sources)) for i in range(len(sources[s].cases))]
    every = max(1, len(work) // _PARTIAL_DELIVERIES)
    rows: list[Row] = []
    try:
        for s, i in work:
            relay()
            group = groups[i] if groups is not None else "all"
            rows.append(_score_row(sources[s], s, i, group, judge, options, (relay, ticks)))
            ticks(len(rows), len(work))
            if on_partial is not None and len(rows) % every == 0 and len(rows) < len(work):
                on_partial(assemble(rows, True))
    except BaseException:
        if on_partial is not None and rows and (relay.raised or ticks.raised):
            on_partial(assemble(rows, True))
        raise
    if all(row.error for row in rows):
        raise ValueError(f"all {len(rows)} cases failed; the first: {rows[0].error}")
    return assemble(rows, False)


def _method_name(sources: Sequence[Source], method: str) -> str:
    """The requested method; for given matrices the one they name, else ``given``."""
    matrices = sources[0].matrices
    return method if matrices is None else str(getattr(matrices[0], "method", "given"))


def _provenance(sources: Sequence[Source], options: Mapping[str, Any]) -> dict[str, Scalar]:
    models: dict[str, Scalar] = {}
    for letter, source in zip("AB", sources, strict=False):
        if source.model is not None:
            prefix = "" if len(sources) == 1 else f"{letter}."
            models |= {prefix + key: value for key, value in source.model.provenance().items()}
    return provenance(models, **options)


def _assemble(
    rows: Sequence[Row],
    sources: Sequence[Source],
    method: str,
    options: Options,
    facts: Mapping[str, Scalar],
    partial: bool,
) -> SaliencyDatasetResult:
    names = [source.name for source in sources]
    tests, notes = _tests(rows, names, options)
    profile = np.full((len(names), SEGMENTS), np.nan)
    interval = np.full((len(names), 2, SEGMENTS), np.nan)
    count = np.zeros(len(names), dtype=int)
    for s in range(len(names)):
        shares = [(share, row.case) for row in rows if row.model == s for share in row.profiles]
        if shares:
            values, owner = np.array([share for share, _ in shares]), np.array([case for _, case in shares])
            profile[s], count[s] = values.mean(axis=0), len(values)
            interval[s] = bootstrap_mean(values, clusters=owner, resamples=options.resamples, seed=options.seed)
    columns = {
        name: np.array([getattr(row, name) for row in rows], dtype=kind)
        for kind, listed in (
            (int, ("model", "case", "label", "n_prompt", "n_response", "n_instruction", "n_under_floor")),
            (float, ("score", "context_score", "paper_score")),
            (bool, ("dropped",)),
        )
        for name in listed
    }
    return SaliencyDatasetResult(
        model_names=names,
        names=[row.name for row in rows],
        groups=[row.group for row in rows],
        error=[row.error for row in rows],
        response=[row.response for row in rows],
        **columns,
        tests=tests,
        notes=notes,
        profile=profile,
        profile_interval=interval,
        profile_sentences=count,
        method=method,
        levels=options.levels,
        threshold=options.threshold,
        p=options.p,
        min_response=options.min_response,
        min_importance=options.min_importance,
        partial=partial,
        provenance=facts,
    )


def _tests(
    rows: Sequence[Row], names: Sequence[str], options: Options
) -> tuple[tuple[GroupComparison, ...], tuple[str, ...]]:
    """Compare followed with unfollowed cases for each model, and the two models; over all cases and by group."""
    scored = [row for row in rows if np.isfinite(row.score)]
    groups = sorted({row.group for row in scored} - {"all"})
    tests: list[GroupComparison] = []
    notes: list[str] = []

    def family(kind: str, model: str, sides: tuple[str, str], split: Callable[[Row], int | None]) -> None:
        comparisons = []
        for group in ["all", *groups]:
            inside = [row for row in scored if group in ("all", row.group)]
            first, second = ([row for row in inside if split(row) == number] for number in (0, 1))
            comparison = compare_known(
                [row.score for row in first],
                [row.score for row in second],
                names=sides,
                resamples=options.resamples,
                seed=options.seed,
                paired=_paired(first, second) if kind == "models" else None,
            )
            if comparison is not None:
                comparisons.append(replace(comparison, kind=kind, model=model, group=group))
                continue
            notes.append(
                f"{sides[0]} against {sides[1]}{f' ({model})' if model else ''}, group {group}: not compared, "
                f"it takes 2 scores on each side and there are {len(first)} and {len(second)}"
            )
        over_all = [comparison for comparison in comparisons if comparison.group == "all"]
        tests.extend([*over_all, *holm(comparisons[len(over_all) :])])

    for s, name in enumerate(names):
        if any(row.label != UNKNOWN for row in scored if row.model == s):
            family(
                "followed",
                name,
                ("followed", "unfollowed"),
                lambda row, s=s: None if row.model != s or row.label == UNKNOWN else 1 - row.label,  # type: ignore[misc]
            )
    if len(names) == 2:
        family("models", "", (names[1], names[0]), lambda row: 1 - row.model)
    return tuple(tests), tuple(notes)


def _paired(first: Sequence[Row], second: Sequence[Row]) -> tuple[list[float], list[float]] | None:
    """Scores of the cases that both lists have, in the same order; None when fewer than two match."""
    left, right = ({(row.case, row.name): row.score for row in rows} for rows in (first, second))
    shared = [key for key in left if key in right]
    return ([left[key] for key in shared], [right[key] for key in shared]) if len(shared) > 1 else None


# single cases -------------------------------------------------------------------------------------------------------


def _sources(
    data: Any, cases: Sequence[Any] | None, names: Sequence[str] | None, generate: bool, options: dict[str, Any]
) -> list[Source]:
    """The one or two models or lists of matrices to score."""
    if hasattr(data, "base") and hasattr(data, "tuned"):
        data = (data.base, data.tuned)
    pair = isinstance(data, list | tuple) and len(data) == 2
    lists = isinstance(data, tuple) and all(isinstance(part, list | tuple) for part in data)
    is_pair = pair and (lists or all(map(_is_model, data)))
    inputs = list(data) if is_pair else [data]
    if names is not None and len(names) != len(inputs):
        raise ValueError(f"names must be one per model ({len(inputs)}), got {len(names)}")
    sources = []
    for number, part in enumerate(inputs):
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
            default = "AB"[number] if is_pair else "given"
            name = str(getattr(matrices[0], "model", default)) if matrices else default
            source = Source(name, list(cases) if cases is not None else matrices, matrices, None, None)
        if not len(source.cases):
            raise ValueError("there is no case to score: give at least one")
        sources.append(replace(source, name=names[number]) if names is not None else source)
    if len(sources) == 2 and sources[0].name == sources[1].name:
        sources = [replace(source, name=f"{source.name} ({'AB'[i]})") for i, source in enumerate(sources)]
    return sources


def _is_model(value: Any) -> bool:
    return hasattr(value, "run") and hasattr(value, "tokens")


def _model_saliency(model: Model, generate: bool, options: dict[str, Any]) -> Callable[[Any], SaliencyResult]:
    def saliency(case: Any) -> SaliencyResult:
        return prompt_saliency(model, case.prompt, None if generate else case.response, **options)

    return saliency


def _score_row(
    source: Source, number: int, index: int, group: str, judge: Any, options: Options, relays: Sequence[Relay]
) -> Row:
    """One case's row; an error is stored in the row unless it is the caller's cancellation."""
    case = source.cases[index]
    name = str(getattr(case, "name", "")) or f"case {index}"
    blank = Row(number, index, name, group)
    try:
        return _score_case(source, index, blank, judge, options)
    except Exception as error:
        if any(relay.raised for relay in relays):
            raise
        return replace(blank, error=message_of(error) or type(error).__name__)


def _score_case(source: Source, index: int, blank: Row, judge: Any, options: Options) -> Row:
    case = source.cases[index]
    item = source.saliency(case) if source.saliency is not None else source.matrices[index]  # type: ignore[index]
    scores, under = _scores(item, options)
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
        n_prompt=prompt,
        n_response=length,
        n_instruction=int(mask.sum()),
        response=response,
    )
    if length < options.min_response:
        return replace(row, dropped=True)
    paper = instruction_score(importance_density(scores, p=options.p), mask)
    row = replace(row, paper_score=paper, n_under_floor=int(under.sum()))
    if under.any() and under.all():
        return replace(row, dropped=True)
    density = importance_density(np.where(under, 0.0, scores), p=options.p)
    special = np.asarray(getattr(item, "prompt_special", np.zeros(prompt)), dtype=bool)
    profiles: NDArray[np.float64] = np.zeros((0, SEGMENTS))
    if isinstance(item, SaliencyResult):
        sentences = sentence_spans(spaced_tokens(item.prompt_tokens, item.prompt_spans))
        profiles = sentence_profiles(density, sentences, segments=SEGMENTS)
    return replace(
        row,
        score=instruction_score(density, mask),
        context_score=instruction_score(density, ~mask & ~special),
        profiles=tuple(map(tuple, profiles.tolist())),
    )


def _scores(item: Any, options: Options) -> tuple[NDArray[np.float64], Bools]:
    """From a matrix, a result or a record: (prompt, response) levels above the threshold, without the floor, and a mask
    (response,) of response tokens under the floor, which is empty for normalised matrices."""
    ready = options.normalized
    if ready is None:
        ready = bool(getattr(item, "normalised", False)) if not isinstance(item, SaliencyResult) else False
    shape: dict[str, Any] = {"levels": options.levels, "threshold": options.threshold}
    if isinstance(item, SaliencyResult) and not ready:
        return item.normalized(**shape), item.under_floor(options.min_importance)
    values = float64(getattr(item, "importance", item))
    if not ready:
        return normalize_importance(values, **shape), under_floor(values, options.min_importance)
    if (
        values.ndim != 2
        or not np.isfinite(values).all()
        or values.min(initial=0) < 0
        or values.max(initial=0) > options.levels
    ):
        raise ValueError(f"normalised matrices must be (prompt, response) with values 0..{options.levels}")
    return np.where(values > options.threshold, values, 0.0), np.zeros(values.shape[1], dtype=bool)


def _mask(item: Any, case: Any, model: Model | None) -> Bools:
    """(prompt,) mask of the instruction tokens, from the mask or the spans of the case or the record."""
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
