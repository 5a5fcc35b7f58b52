"""The loss of a mixture of depths, and the statistics of its routes at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from interp_widgets.models.mixture_of_depths.install import LateParts
from interp_widgets.models.mixture_of_depths.mixture import Mixture
from interp_widgets.models.read_out import mix

from ..examples import IGNORED, Batch

SPARSE = 1e-5
"""Routing weights below this count as zero (section 5.1.3)."""


@dataclass(frozen=True)
class StepLoss:
    """The loss and routing of a step."""

    total: Tensor
    """() task + distill x distillation, in nats, with its graph."""
    task: Tensor
    """() mean cross-entropy of the ensemble on the learned tokens."""
    distillation: Tensor
    """() sum over all routes but the last of the mean divergence from the teacher; NaN where ``distill`` is 0."""
    gates: Tensor
    """(tokens, k) routing weights at the positions that predict the learned tokens."""
    routes: Tensor
    """(k,) mean cross-entropy of each route alone; NaN if it was not computed."""


def distillation_loss(routes: list[Tensor], teacher: Tensor) -> Tensor:
    """``Σ_i KL(P_i ‖ P_teacher)``, a mean over tokens in nats, from logits (tokens, d_vocab); no gradient reaches the
    teacher.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.1.

    >>> same = torch.zeros(1, 4)
    >>> float(distillation_loss([same], same))
    0.0
    """
    target = teacher.detach().log_softmax(-1)
    total = target.new_zeros(())
    for logits in routes:
        log_p = logits.log_softmax(-1)
        total = total + (log_p.exp() * (log_p - target)).sum(-1).mean()
    return total


def step_loss(
    hf_model: Any, parts: LateParts, mixture: Mixture, batch: Batch, distill: float, each_route: bool = False
) -> StepLoss:
    """Loss of a batch by a transformers model with the mixture in it (`installed`).

    Logits are computed only at the positions that predict a learned token.
    """
    device = mixture.router.device
    labels = batch.labels.to(device)[:, 1:]
    chosen = labels != IGNORED
    with mixture.recording() as readings:
        # without the unembedding, since the required logits are computed below
        hf_model.base_model(input_ids=batch.ids.to(device), use_cache=False)
    reading = readings[0]
    weights = reading.gates[:, :-1][chosen]
    members = [member[:, :-1][chosen] for member in reading.members]
    task = F.cross_entropy(parts.logits(mix(weights, members)), labels[chosen])
    divergence = task.new_full((), torch.nan)
    alone = task.new_full((mixture.k,), torch.nan)
    if distill > 0:
        routes = [parts.logits(member) for member in members]
        divergence = distillation_loss(routes[:-1], routes[-1])
        alone = torch.stack([F.cross_entropy(logits.detach(), labels[chosen]) for logits in routes])
    elif each_route:
        with torch.no_grad():
            alone = torch.stack([F.cross_entropy(parts.logits(member), labels[chosen]) for member in members])
    total = task + distill * divergence if distill > 0 else task
    return StepLoss(total, task.detach(), divergence.detach(), weights.detach(), alone)


def routing_statistics(gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per route (k,): share of tokens with a weight below `SPARSE`, mean and variance, from weights (tokens, k).

    >>> routing_statistics(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))[0].tolist()
    [0.5, 0.5]
    """
    wide = gates.cpu().double()  # a few numbers per token; not every device has float64
    return (wide < SPARSE).double().mean(0), wide.mean(0), wide.var(0, unbiased=False)
