"""Accuracy of many tuning runs: the grid of k and top-K, and ablations of the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis.mixture_of_depths.solving import solve
from interp_widgets.analysis.mixture_of_depths.tuning_results import ModAblations, ModGrid, ModReport
from interp_widgets.arguments import checked
from interp_widgets.data.problems import Problem
from interp_widgets.models import load_model
from interp_widgets.models.model import Model

from .tune import DivergedError, check_adapters, check_base, tune_mod

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "MoD": {},
    "without norms": {"train_norms": False},
    "without distillation": {"distill": 0.0},
}
"""The method and its two ablations (Fig. 5.4), as options of `tune_mod`."""
_SET_HERE = ("k", "seed", "resume", "on_step", "on_partial")


@checked
def mod_grid(
    model: Model | str | Path | Any,
    dataset: Sequence[Any],
    problems: Sequence[Problem],
    *,
    ks: Sequence[int] = (1, 2, 3),
    top_ks: Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    max_new_tokens: int = 40,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[ModGrid], None] | None = None,
    **tuning: Any,
) -> ModGrid:
    """Tune a mixture for every k and top-K and measure how many held-out problems each solves.

    Args:
        model: the base model, as for `tune_mod`.
        dataset: the training examples, as for `tune_mod`.
        problems: held-out problems from `read_problems` or `demo_problems`.
        ks: numbers of late layers.
        top_ks: numbers of routes per token; 1 to the largest k by default. Pairs with top-K above k stay empty.
        seeds: seeds of the runs, one run each.
        max_new_tokens: most tokens of a response.
        progress: called with the number of runs done and their total.
        check: called before every step and token; raises to cancel.
        on_partial: receives the result so far after every run.
        **tuning: other options of `tune_mod`, such as ``steps`` and ``lora``.

    Raises:
        ValueError: a number is out of range, or there are no problems or no data.
        TypeError: an option that `tune_mod` does not have, or that the grid sets itself.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.3,
    Fig. 5.3.

    Example:
        >>> tasks, held_out = demo_problems("train", 4), demo_problems(n=1)
        >>> grid = mod_grid(base, tasks, held_out, ks=[1, 2], steps=1, max_new_tokens=2)
        >>> grid.mean.shape, bool(np.isnan(grid.mean[0, 1]))  # k=1 has no second route
        ((2, 2), True)
    """
    _check_options(tuning, *_SET_HERE, "top_k")
    base = loaded(model, tuning.get("tokenizer"))
    rows = _numbers("ks", ks, base.n_layers)
    columns = _numbers("top_ks", range(1, max(rows) + 1) if top_ks is None else top_ks, max(rows))
    check_adapters(tuning.get("lora"), tuning.get("lora_layers", "last"), max(rows), base.n_layers)
    _check_seeds(seeds)
    accuracies = np.full((len(rows), len(columns), len(seeds)), np.nan)
    share = np.full(len(rows), np.nan)
    start = solve(base, problems, max_new_tokens=max_new_tokens, check=check).accuracy
    cells = [
        (i, j, s) for i, k in enumerate(rows) for j, top in enumerate(columns) if top <= k for s in range(len(seeds))
    ]

    def result(partial: bool) -> ModGrid:
        record = provenance(base.provenance(), max_new_tokens=max_new_tokens, **_recorded(tuning))
        return ModGrid(rows, columns, accuracies.copy(), start, share.copy(), tuple(seeds), len(problems),
                       partial=partial, provenance=record)  # fmt: skip

    for done, (i, j, s) in enumerate(cells, start=1):
        options = {**tuning, "k": rows[i], "top_k": columns[j], "seed": seeds[s]}
        accuracies[i, j, s], report = _accuracy(model, dataset, problems, max_new_tokens, check, options)
        share[i] = report.trained_share
        if progress is not None:
            progress(done, len(cells))
        if on_partial is not None and done < len(cells):
            on_partial(result(True))
    return result(False)


@checked
def mod_ablations(
    model: Model | str | Path | Any,
    dataset: Sequence[Any],
    problems: Sequence[Problem],
    k: int = 3,
    *,
    variants: Mapping[str, Mapping[str, Any]] = ABLATIONS,
    seeds: Sequence[int] = (0, 1, 2),
    max_new_tokens: int = 40,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[ModAblations], None] | None = None,
    **tuning: Any,
) -> ModAblations:
    """Accuracy of a mixture, and of the ablations without trained norms and without the distillation term.

    Args:
        model: the base model, as for `tune_mod`.
        dataset: the training examples, as for `tune_mod`.
        problems: held-out problems from `read_problems` or `demo_problems`.
        k: number of late layers.
        variants: names and their options of `tune_mod`, such as ``{"with LoRA": {"lora": 8}}``.
        seeds: seeds of the runs, one run each.
        max_new_tokens: most tokens of a response.
        progress: called with the number of runs done and their total.
        check: called before every step and token; raises to cancel.
        on_partial: receives the result so far after every run.
        **tuning: other options of `tune_mod`, for all variants.

    Raises:
        ValueError: a number is out of range, or there are no problems or no data.
        TypeError: an option that `tune_mod` does not have.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.3,
    Fig. 5.4.

    Example:
        >>> tasks, held_out = demo_problems("train", 4), demo_problems(n=1)
        >>> ablations = mod_ablations(base, tasks, held_out, 2, seeds=[0], steps=1, max_new_tokens=2)
        >>> ablations.to_frame()[["variant", "trained_parameters"]]
                        variant  trained_parameters
        0                   MoD                 768
        1         without norms                 384
        2  without distillation                 768
    """
    _check_options(tuning, *_SET_HERE)
    if not variants:
        raise ValueError("there are no variants to compare: give at least one")
    _check_seeds(seeds)
    base = loaded(model, tuning.get("tokenizer"))
    names = tuple(variants)
    accuracies, trained = np.full((len(names), len(seeds)), np.nan), np.zeros(len(names), dtype=np.int64)
    size = 0
    start = solve(base, problems, max_new_tokens=max_new_tokens, check=check).accuracy

    def result(partial: bool) -> ModAblations:
        record = provenance(base.provenance(), max_new_tokens=max_new_tokens, k=k, **_recorded(tuning))
        return ModAblations(names, accuracies.copy(), trained.copy(), start, size, tuple(seeds), len(problems),
                            partial=partial, provenance=record)  # fmt: skip

    cells = [(i, s) for s in range(len(seeds)) for i in range(len(names))]
    for done, (i, s) in enumerate(cells, start=1):
        options = {"k": k, **tuning, **variants[names[i]], "seed": seeds[s]}
        accuracies[i, s], report = _accuracy(model, dataset, problems, max_new_tokens, check, options)
        trained[i], size = report.trained_parameters, report.parameters_base
        if progress is not None:
            progress(done, len(cells))
        if on_partial is not None and done < len(cells):
            on_partial(result(True))
    return result(False)


def _accuracy(
    model: Model | str | Path | Any,
    dataset: Sequence[Any],
    problems: Sequence[Problem],
    max_new_tokens: int,
    check: Callable[[], None] | None,
    options: Mapping[str, Any],
) -> tuple[float, ModReport]:
    """Accuracy of one tuning run; NaN if its loss became NaN or infinite, or its weights too large to compute with."""
    try:
        tuned, report = tune_mod(model, dataset, check=check, checkpoints=None, **options)
    except DivergedError as error:  # the other runs may have worked
        return float("nan"), error.report
    if report.stopped == "nan":
        return float("nan"), report
    return solve(tuned, problems, max_new_tokens=max_new_tokens, check=check).accuracy, report


def loaded(model: Model | Any, tokenizer: Any) -> Model:
    """The base model as a `Model`; ValueError for a mixture."""
    check_base(model)
    return model if isinstance(model, Model) else load_model(model, tokenizer=tokenizer)


def _numbers(name: str, values: Sequence[int], most: int) -> tuple[int, ...]:
    """The values in order; ValueError unless they are different and in 1..largest."""
    numbers = tuple(map(int, values))
    if not numbers or not all(1 <= number <= most for number in numbers):
        raise ValueError(f"{name} must be ints in 1..{most}, got {list(numbers)}")
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{name} must differ, got {list(numbers)}")
    return tuple(sorted(numbers))


def _check_seeds(seeds: Sequence[int]) -> None:
    if len(seeds) == 0 or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds must be at least one int >= 0, all different, got {list(seeds)}")


def _recorded(tuning: Mapping[str, Any]) -> dict[str, Any]:
    """The options that go into the provenance."""
    return {name: value for name, value in tuning.items() if name != "tokenizer"}


def _check_options(tuning: Mapping[str, Any], *set_here: str) -> None:
    conflict = next((name for name in tuning if name in set_here), None)
    if conflict is not None:
        raise TypeError(f"{conflict!r} is set by the comparison itself: leave it out")
