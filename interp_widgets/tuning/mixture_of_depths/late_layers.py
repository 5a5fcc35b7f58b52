"""What late layers can predict: their losses while the last one is tuned, or each of them (Figs 4.7 and 4.8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.analysis.mod.late_layers_result import LateLayerLosses
from interp_widgets.analysis.mod.solving import solve
from interp_widgets.analysis.result import provenance
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
    """Tune the base with LoRA on all layers, once for each of the last k layers as the one whose loss is tuned.

    The norm stays the pretrained one. Every run starts from the same adapters and sees the same batches. The run of the
    last layer gives the implicit curves of all others as well.

    Args:
        model: the base, as for `tune_mod`.
        dataset: what is learned, as for `tune_mod`.
        k: number of late layers.
        problems: solved by each tuned model, read at the layer that was tuned; none by default.
        lora: rank of the adapters.
        steps: steps per run; two passes over the data by default.
        batch_size: examples per step.
        learning_rate: of AdamW.
        seed: of adapters and data order.
        tokenizer: of a transformers model given as ``model``; else the one beside it.
        max_new_tokens: most tokens of a response.
        progress: called with runs done and in all.
        check: called before every step and token; raises to cancel.
        on_partial: receives what is done after every run.

    Raises:
        ValueError: a number out of range, no data, or a loss that is no number (the step is named).
        ImportError: without the peft package.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.2,
    Figs 4.7 and 4.8.

    Example:
        >>> found = late_layer_losses(base, demo_problems("train", 4), 2, steps=1)
        >>> found.layers, found.explicit.shape, found.implicit.shape
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
        last = np.array([step.routes for step in curves[k - 1]])
        own = np.full_like(last, np.nan)
        for route, found in curves.items():
            own[:, route] = [step.task for step in found]
        return LateLayerLosses(
            layers, last, own, solved.copy(), partial=partial,
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
