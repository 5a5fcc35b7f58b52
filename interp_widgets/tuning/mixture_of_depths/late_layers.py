"""Losses of the late layers while the last layer is tuned, or each layer in turn (Figs 4.7 and 4.8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis.mixture_of_depths.solving import solve
from interp_widgets.analysis.mixture_of_depths.tuning_results import LateLayerLosses
from interp_widgets.arguments import checked
from interp_widgets.data.problems import Problem
from interp_widgets.models import Model
from interp_widgets.models.mixture_of_depths.model import check_k

from .accuracy import loaded
from .trainer import ModStep
from .tune import tune_mod


@checked
def late_layer_losses(
    model: Model | str | Path | Any,
    dataset: Sequence[Any],
    k: int = 3,
    *,
    problems: Sequence[Problem] = (),
    lora: int = 8,
    steps: int | None = None,
    batch_size: int = 16,
    learning_rate: float = 3e-4,
    seed: int = 0,
    tokenizer: Any = None,
    max_new_tokens: int = 40,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[LateLayerLosses], None] | None = None,
) -> LateLayerLosses:
    """Tune the base model with LoRA on all layers, in one run for the loss of each of the last k layers.

    The pretrained norm is kept. Every run starts from the same adapters and sees the same batches. The run on the last
    layer also gives the implicit curves of the other layers.

    Args:
        model: the base model, as for `tune_mod`.
        dataset: the training examples, as for `tune_mod`.
        k: number of late layers.
        problems: problems for each tuned model, which is decoded from the tuned layer; none by default.
        lora: rank of the adapters.
        steps: optimizer steps per run; two passes over the data by default.
        batch_size: examples per step.
        learning_rate: learning rate of AdamW.
        seed: seed of the adapters and of the order of the data.
        tokenizer: the tokenizer of a transformers model in memory; by default the one in its folder.
        max_new_tokens: most tokens of a response.
        progress: called with the number of runs done and their total.
        check: called before every step and token; raises to cancel.
        on_partial: receives the result so far after every run.

    Raises:
        ValueError: a number is out of range, there are no data, or a loss became NaN (the message names the step).
        ImportError: the peft package is missing.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.2,
    Figs 4.7 and 4.8.

    Example:
        >>> losses = late_layer_losses(base, demo_problems("train", 4), 2, steps=1)
        >>> losses.layers, losses.explicit.shape, losses.implicit.shape
        ((4, 5), (1, 2), (1, 2))
    """
    base = loaded(model, tokenizer)
    check_k(k, base.n_layers)
    options: dict[str, Any] = {
        "k": k,
        "lora": lora,
        "lora_layers": "all",
        "train_norms": False,
        "steps": steps,
        "seed": seed,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }
    curves: dict[int, list[ModStep]] = {}
    layers = tuple(range(base.n_layers - k, base.n_layers))
    items = list(problems)
    solved = np.zeros((len(layers), len(items)), dtype=bool)

    def result(partial: bool) -> LateLayerLosses:
        implicit = np.array([step.routes for step in curves[k - 1]])
        explicit = np.full_like(implicit, np.nan)
        for route, curve in curves.items():
            explicit[:, route] = [step.task for step in curve]
        return LateLayerLosses(
            layers, implicit, explicit, solved.copy(), partial=partial,
            provenance=provenance(base.provenance(), max_new_tokens=max_new_tokens, problems=len(items), **options),
        )  # fmt: skip

    for done, route in enumerate(reversed(range(k)), start=1):
        steps_made: list[ModStep] = []
        tuned, report = tune_mod(
            model,
            dataset,
            only=route,
            tokenizer=tokenizer,
            each_route=route == k - 1,
            check=check,
            checkpoints=None,
            on_step=steps_made.append,
            **options,
        )
        if report.stopped == "nan":
            raise ValueError(f"tuning at layer {layers[route]} {report.message}")
        curves[route] = steps_made
        if items:
            solved[route] = solve(tuned, items, max_new_tokens=max_new_tokens, check=check).solved
        if progress is not None:
            progress(done, k)
        if on_partial is not None and done < k:
            on_partial(result(True))
    return result(False)
