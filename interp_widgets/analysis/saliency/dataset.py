"""Instruction scores over a data set: who follows instructions, which of two models, and where in the sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from interp_widgets.analysis._core.result import Scalar, provenance
from interp_widgets.analysis._core.statistics import GroupComparison, bootstrap_mean, compare_groups, holm
from interp_widgets.analysis._core.targets import Target
from interp_widgets.analysis.saliency.dataset_case import Options, Relay, Row, Source, find_sources, score_row
from interp_widgets.analysis.saliency.dataset_result import SEGMENTS, UNKNOWN, SaliencyDatasetResult
from interp_widgets.analysis.saliency.density import normalise_importance
from interp_widgets.analysis.saliency.saliency_result import Method
from interp_widgets.arguments import checked

_PARTIAL_DELIVERIES = 8


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
    normalised: bool | None = None,
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

    `model_or_matrices` is a model, or a sequence of ready importance matrices (prompt, response), saliency results or
    records of an importance archive; a ModelPair or a tuple of two of either compares two (A, B), claiming that B
    scores higher. `cases` are :class:`SaliencyCase` (prompt, response, instruction span, label), records, or for plain
    matrices just the (prompt,) instruction masks; records need none.

    - ``generate=True`` lets the model write each response even where the case has one; `judge(case, response)` then
      says whether a response follows (True, False, None for not known). Without it the case's label counts.
    - `levels` and `threshold` are those of :func:`normalise_importance`, `p` that of :func:`importance_density`.
    - responses under `min_response` tokens are dropped and counted.
    - `normalised` says that matrices hold levels already; by default records say it themselves.
    - `groups` (cases,) names groups to compare within as well, with Holm's correction over them.
    - `names` are those of the models, in their order.
    - `resamples` and `seed` are those of the bootstrap intervals and permutation tests.
    - `progress` is called with cases done and in all, `check` before every case; it raises to cancel.
    - `method`, `target` and further keywords (``max_new_tokens``, ``steps``...) go to :func:`prompt_saliency`.
    - `on_partial` receives what is done, a few times and when `check` or `progress` raises; that exception passes on.

    A case that fails keeps its row with the sentence of its error. Raises ValueError when there is no case, the inputs
    do not match, or all cases fail.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.2, Tables 1-2, App. B.3.

    Example:
        >>> matrices = [[[1, 1, 1], [0, 0, 1]], [[1, 0, 0], [1, 1, 1]]]
        >>> found = saliency_dataset(matrices, [[True, False], [True, False]], min_response=1)
        >>> found.score.round(2).tolist()
        [0.63, 0.28]
    """
    options = Options(levels, threshold, p, min_response, normalised, resamples, seed)
    normalise_importance(np.zeros((1, 1)), levels=levels, threshold=threshold)  # refuse bad options before any work
    relay, ticks = Relay(check), Relay(progress)
    saliency_options |= {"method": method, "target": target, "seed": seed, "check": relay}
    extra = sorted(set(saliency_options) - {"method", "target", "seed", "check"})
    sources = find_sources(model_or_matrices, cases, names, generate, saliency_options)
    if extra and all(source.model is None for source in sources):
        raise TypeError(f"ready matrices take no {', '.join(extra)}: that is an option of prompt_saliency")
    if groups is not None and any(len(groups) != len(source.cases) for source in sources):
        raise ValueError(f"groups must name one group per case, got {len(groups)} for {len(sources[0].cases)} cases")
    settings = {"min_response": min_response, "generate": generate, "resamples": resamples, **saliency_options}
    told = _provenance(sources, {key: value for key, value in settings.items() if key != "check"})
    found_by = _method_name(sources, method)

    def assemble(done: Sequence[Row], partial: bool) -> SaliencyDatasetResult:
        return _assemble(done, sources, found_by, options, told, partial)

    work = [(s, i) for s in range(len(sources)) for i in range(len(sources[s].cases))]
    every = max(1, len(work) // _PARTIAL_DELIVERIES)
    rows: list[Row] = []
    try:
        for s, i in work:
            relay()
            group = groups[i] if groups is not None else "all"
            rows.append(score_row(sources[s], s, i, group, judge, options, (relay, ticks)))
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
    """The method asked for, or with ready matrices the one they name, ``given`` where they name none."""
    matrices = sources[0].matrices
    return method if matrices is None else str(getattr(matrices[0], "method", "given"))


def _provenance(sources: Sequence[Source], options: Mapping[str, Any]) -> dict[str, Scalar]:
    models: dict[str, Scalar] = {}
    for place, source in enumerate(sources):
        if source.model is not None:
            prefix = "" if len(sources) == 1 else f"{'AB'[place]}."
            models |= {prefix + key: value for key, value in source.model.provenance().items()}
    return provenance(models, **options)


def _assemble(
    rows: Sequence[Row],
    sources: Sequence[Source],
    method: str,
    options: Options,
    told: Mapping[str, Scalar],
    partial: bool,
) -> SaliencyDatasetResult:
    names = [source.name for source in sources]
    tests, notes = _tests(rows, names, options)
    profile = np.full((len(names), SEGMENTS), np.nan)
    interval = np.full((len(names), 2, SEGMENTS), np.nan)
    count = np.zeros(len(names), dtype=int)
    for s in range(len(names)):
        shares = [(share, row.case) for row in rows if row.source == s for share in row.profiles]
        if shares:
            values, owner = np.array([share for share, _ in shares]), np.array([case for _, case in shares])
            profile[s], count[s] = values.mean(axis=0), len(values)
            interval[s] = bootstrap_mean(values, clusters=owner, resamples=options.resamples, seed=options.seed)
    sizes = np.array([row.sizes for row in rows], dtype=int).reshape(-1, 3)
    return SaliencyDatasetResult(
        model_names=names,
        names=[row.name for row in rows],
        groups=[row.group for row in rows],
        model=np.array([row.source for row in rows], dtype=int),
        case=np.array([row.case for row in rows], dtype=int),
        score=np.array([row.score for row in rows], dtype=float),
        context_score=np.array([row.context_score for row in rows], dtype=float),
        label=np.array([row.label for row in rows], dtype=int),
        n_prompt=sizes[:, 0],
        n_response=sizes[:, 1],
        n_instruction=sizes[:, 2],
        dropped=np.array([row.dropped for row in rows], dtype=bool),
        error=[row.error for row in rows],
        response=[row.response for row in rows],
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
        partial=partial,
        provenance=told,
    )


def _tests(
    rows: Sequence[Row], names: Sequence[str], options: Options
) -> tuple[tuple[GroupComparison, ...], tuple[str, ...]]:
    """Followed against unfollowed for each model, second model against first; over all cases and within each group."""
    scored = [row for row in rows if np.isfinite(row.score)]
    groups = sorted({row.group for row in scored} - {"all"})
    found: list[GroupComparison] = []
    notes: list[str] = []

    def family(kind: str, model: str, words: tuple[str, str], split: Callable[[Row], int | None]) -> None:
        made = []
        for group in ["all", *groups]:
            inside = [row for row in scored if group in ("all", row.group)]
            first, second = ([row for row in inside if split(row) == side] for side in (0, 1))
            if min(len(first), len(second)) < 2:
                notes.append(
                    f"{words[0]} against {words[1]}{f' ({model})' if model else ''}, group {group}: not compared, "
                    f"it takes 2 scores on each side and there are {len(first)} and {len(second)}"
                )
                continue
            comparison = compare_groups(
                [row.score for row in first],
                [row.score for row in second],
                names=words,
                resamples=options.resamples,
                seed=options.seed,
                paired=_paired(first, second) if kind == "models" else None,
            )
            made.append(replace(comparison, kind=kind, model=model, group=group))
        found.extend([c for c in made if c.group == "all"])
        found.extend(holm([c for c in made if c.group != "all"]))

    for s, name in enumerate(names):
        if any(row.label != UNKNOWN for row in scored if row.source == s):
            family(
                "followed",
                name,
                ("followed", "unfollowed"),
                lambda row, s=s: None if row.source != s or row.label == UNKNOWN else 1 - row.label,  # type: ignore[misc]
            )
    if len(names) == 2:
        family("models", "", (names[1], names[0]), lambda row: 1 - row.source)
    return tuple(found), tuple(notes)


def _paired(first: Sequence[Row], second: Sequence[Row]) -> tuple[list[float], list[float]] | None:
    """Scores of the cases that both sides have, in one order; None when fewer than two match."""
    left, right = ({(row.case, row.name): row.score for row in side} for side in (first, second))
    both = [key for key in left if key in right]
    return ([left[key] for key in both], [right[key] for key in both]) if len(both) > 1 else None
