"""Integrated gradients along the straight line from a baseline to the prompt's token embeddings."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from interp_widgets.analysis.runner import Runner
from interp_widgets.analysis.saliency.case import Case
from interp_widgets.analysis.saliency.gradient import add_products, prefers_forward
from interp_widgets.analysis.targets import read
from interp_widgets.models import Model
from interp_widgets.models.engine import encode, mean_embedding

Baseline = Literal["zero", "mean"]
"""What a token's embedding is replaced by: nothing, or the mean of all token embeddings."""


def default_baseline(model: Model) -> Baseline:
    """``mean`` for models with RMSNorm, which has a jump at zero where the rule does not converge; else ``zero``."""
    return "mean" if model.normalization == "RMSNorm" else "zero"


def integrated_gradients(case: Case, runner: Runner, importance: Tensor, *, steps: int, baseline: Baseline) -> Tensor:
    """Fill ``importance`` (prompt, response), and return the completeness gap (response,).

    I[n, m] = (E[n] - B) · mean over the midpoints α = (s + ½)/steps of ∂f_m/∂E[n] at B + α(E - B), for all shown prompt
    tokens together. The gap is Σ_n I[n, m] - (f_m(E) - f_m(B)): 0 for enough steps.

    Source: Axiomatic Attribution for Deep Networks (Sundararajan et al. 2017), section 3; the midpoint rule is ours.
    """
    model, rows = case.model, case.rows()
    start = case.embeddings.clone()
    start[:, rows] = 0 if baseline == "zero" else mean_embedding(model)
    whole = case.embeddings - start
    forward = prefers_forward(case.n_prompt, case.n_response)
    runner.total = steps * (case.n_prompt if forward else case.n_response)
    importance.fill_(0.0)
    for step in range(steps):
        point = start + (step + 0.5) / steps * whole
        add_products(case, runner, point, whole[0, rows], importance, 1.0 / steps)
    with torch.no_grad():
        both = torch.cat([case.embeddings, start])
        ends = read(model, encode(model, both, positions=slice(case.first, None)), case.aim)
    return importance.sum(0) - (ends[0] - ends[1]).to(importance.dtype)
