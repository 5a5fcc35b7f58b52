"""The metric of an ablation: one number of the next-token distribution, before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_choice, check_finite
from interp_widgets.analysis._core.prompts import single_token
from interp_widgets.analysis._core.targets import Targets, check_foil, read
from interp_widgets.analysis._core.tensors import log_sum, wide, wide_type
from interp_widgets.models import Model
from interp_widgets.models.devices import has_float64
from interp_widgets.models.engine import decode, decode_blocks, decodes_in_blocks, token_logits
from interp_widgets.models.top_k import likeliest

Metric = Literal["logit", "probability", "log_prob", "logit_difference", "kl"]
"""Which number of the next-token distribution is compared; ``kl`` is KL(before‖after) of the distribution, in nats.

The raw logit also moves with what all logits share, which changes no prediction: a map of it can have the wrong sign.
"""

_ROWS, _COLUMNS = 256, 2048
"""Size of the block of logits that the divergence holds: 4 MB in float64."""


@dataclass(frozen=True)
class NextTokenMetric:
    """A metric of the next token, and its value on the clean run."""

    model: Model
    metric: Metric
    target: int
    """Token id."""
    foil: int | None
    hidden: Tensor
    """(1, width) hidden state of the last position in the clean run."""
    clean: float
    """The metric before: logits, probability or nats; 0 for ``kl``."""
    log_prob: NextTokenMetric | None = None
    """The log-probability of the same token beside its logit, which tells what all logits share; None for the rest."""

    def read(self, hidden: Tensor) -> Tensor:
        """(n,) the metric for hidden states (n, width) of the last position, float32 or wider."""
        if self.metric == "kl":
            return divergence(self.model, self.hidden, hidden)
        if self.metric in ("logit", "logit_difference"):
            ids = [self.target] if self.foil is None else [self.target, self.foil]
            logits = token_logits(self.model, hidden, torch.tensor(ids, device=hidden.device))
            return logits[:, 0] if self.foil is None else logits[:, 0] - logits[:, 1]
        rows = wide(hidden) if decodes_in_blocks(self.model) else hidden
        targets = Targets(self.metric, torch.tensor([self.target], device=hidden.device))
        return read(self.model, rows[:, None], targets)[:, 0]

    def of_logits(self, logits: Tensor) -> Tensor:
        """The metric of the last position of logits (batch, tokens, d_vocab), summed over the batch, with a gradient.

        Not for ``kl``, whose gradient is zero where both distributions are the same.
        """
        rows = wide(logits[:, -1])
        match self.metric:
            case "log_prob":
                return rows.log_softmax(-1)[:, self.target].sum()
            case "probability":
                return rows.softmax(-1)[:, self.target].sum()
        moved = rows[:, self.target] if self.foil is None else rows[:, self.target] - rows[:, self.foil]
        return moved.sum()

    def effects(self, hidden: Tensor) -> Tensor:
        """(n, 1) metric before minus after, or the divergence; exactly 0 where the hidden state is the same.

        (n, 2) with the logit: the second is the part that all logits share, their log-sum-exp before minus after.
        """
        value = self.read(hidden)
        moved = [value if self.metric == "kl" else self.clean - value]
        if self.log_prob is not None:
            moved.append(moved[0] - (self.log_prob.clean - self.log_prob.read(hidden)))
        return torch.stack(moved, -1).masked_fill((hidden == self.hidden).all(-1)[:, None], 0.0)


def check_metric(metric: str, foil: str | int | None) -> None:
    """ValueError for an unknown metric, or a foil that is missing or superfluous."""
    check_choice("metric", metric, Metric)
    check_foil("metric", metric, foil)


@torch.no_grad()
def next_token_metric(
    model: Model,
    hidden: Tensor,
    target: str | int | None,
    *,
    metric: Metric = "log_prob",
    foil: str | int | None = None,
) -> NextTokenMetric:
    """The metric of the token that follows a hidden state (1, width) of the last position.

    Args:
        target: text or id of one token; by default the model's most likely one.
        foil: text or id of the token whose logit ``logit_difference`` subtracts.

    Raises:
        ValueError: an unknown metric, a target or foil of several tokens, a missing or superfluous foil, logits that
            are not finite.
    """
    check_metric(metric, foil)
    target_id = None if target is None else single_token(model, target)
    foil_id = None if foil is None else single_token(model, foil, what="foil")
    logits = wide(decode(model, hidden)[0])
    check_finite(logits, lambda token: f"the model's logit of token {token} for this prompt")
    target_id = likeliest(logits) if target_id is None else target_id
    result = NextTokenMetric(model, metric, target_id, foil_id, hidden, 0.0)
    result = result if metric == "kl" else replace(result, clean=float(result.read(hidden)[0]))
    return replace(result, log_prob=next_token_metric(model, hidden, target_id)) if metric == "logit" else result


@torch.no_grad()
def divergence(model: Model, before: Tensor, after: Tensor) -> Tensor:
    """(n,) KL(before‖after) in nats of the next-token distributions of hidden states (1, width) and (n, width).

    Summed in float64 block by block, since the divergence is far smaller than the terms it is the difference of; on the
    CPU where the device has no float64.
    """
    device = after.device if has_float64(after.device) else torch.device("cpu")
    columns = _COLUMNS if decodes_in_blocks(model) else model.d_vocab
    rows = max(16, _ROWS * _COLUMNS // columns)
    divergences = []
    for part in torch.split(after, rows):
        hidden = torch.cat([before, part])
        total = torch.full((len(hidden),), -torch.inf, dtype=torch.float64, device=device)
        weighted = torch.zeros(len(part), dtype=torch.float64, device=device)
        for _, logits in decode_blocks(model, wide(hidden) if decodes_in_blocks(model) else hidden, columns):
            block = logits.to(device).double()
            larger = log_sum(total, block)
            share = torch.exp(block[0] - larger[0])
            # the earlier blocks were weighted with the smaller total
            weighted = weighted * torch.exp(total[0] - larger[0]) + (block[0] - block[1:]) @ share
            total = larger
        divergences.append(weighted - total[0] + total[1:])
    return torch.cat(divergences).clamp_min(0).to(wide_type(after.dtype)).to(after.device)
