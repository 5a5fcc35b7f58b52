"""The demo's mixtures of depths: a router and norms for the last three layers of each model, tuned on its tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from interp_widgets.analysis.mixture_of_depths.solving import solve
from interp_widgets.atomic import whole_file
from interp_widgets.data.problems import Problem, demo_problems
from interp_widgets.models import Model, load_model
from interp_widgets.models.hub_files import DEMO_MIXTURES, DEMO_NAMES
from interp_widgets.tuning.mixture_of_depths import tune_mod

COMMAND = "python -m interp_widgets.demo mixture"
K, STEPS, BATCH, LEARNING_RATE, SEED = 3, 600, 16, 3e-3, 0
HELD_OUT = 300
"""Held-out problems that loss and accuracy are measured on."""
REPORT = "report.json"


@torch.no_grad()
def held_out(model: Model, problems: list[Problem]) -> dict[str, float]:
    """Mean loss of the response tokens, in nats, and the share of problems solved by generating."""
    losses = []
    for problem in problems:
        start = len(model.tokens(problem.prompt))
        ids = [*model.tokens(problem.prompt + problem.response), model.tokenizer.eos_token_id]
        logits = model.run(ids).logits[0, start - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[start:]), reduction="none").numpy())
    return {
        "loss": round(float(np.concatenate(losses).mean()), 4),
        "solved": round(float(solve(model, problems).accuracy), 4),
    }


def make_mixture(name: str, folder: Path | None = None, *, steps: int = STEPS, n: int = HELD_OUT) -> dict[str, Any]:
    """Tune the mixture of a demo model, save the weights that it adds, and measure it on held-out tasks."""
    target = DEMO_MIXTURES[f"{name}-mixture"] if folder is None else folder
    mixture, report = tune_mod(
        name, demo_problems("train", BATCH * steps, SEED), K, steps=steps, batch_size=BATCH,
        learning_rate=LEARNING_RATE, seed=SEED, checkpoints=None,
    )  # fmt: skip
    mixture.save(target)
    problems = demo_problems("held_out", n)
    measured = {
        "command": COMMAND,
        "steps": report.done,
        "parameters": report.trained_parameters,
        "held_out_problems": n,
        "base": held_out(load_model(name), problems),
        "mixture": held_out(mixture, problems),
    }
    with whole_file(target / REPORT) as draft:
        draft.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf8")
    return measured


def make_mixtures() -> dict[str, dict[str, Any]]:
    """Tune the mixtures of both demo models."""
    return {name: make_mixture(name) for name in DEMO_NAMES}
