"""The number of each response token that is attributed, and its gradient at the model's last hidden state.

Only the hidden state at one position decides a response token's probability. So the unembedding, the widest product of
the model, is done in blocks of rows, reduced to one number each, and never becomes part of a batched derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp_widgets.analysis.saliency.result import Target
from interp_widgets.models.forward import decode

_BLOCK = 2**23
"""Logits held at once on a CPU (32 MB in float32); sixteen times as many on a GPU."""


@dataclass(frozen=True)
class Aim:
    """Which number of each response token is attributed."""

    target: Target
    ids: Tensor
    """(response,) token ids."""
    foils: Tensor | None = None
    """(response,) token ids that the response tokens are set against, for ``logit_difference``."""

    def of(self, start: int, stop: int) -> Aim:
        """The same for the response tokens start..stop."""
        foils = None if self.foils is None else self.foils[start:stop]
        return Aim(self.target, self.ids[start:stop], foils)

    def repeated(self, times: int) -> Aim:
        """The same for ``times`` copies of the response one after the other."""
        return Aim(self.target, self.ids.repeat(times), None if self.foils is None else self.foils.repeat(times))

    def probability(self) -> Aim:
        """The probability of the same response tokens."""
        return Aim("probability", self.ids)


def wide(x: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it was."""
    return x if x.dtype == torch.float64 else x.float()


def score(logits: Tensor, aim: Aim) -> Tensor:
    """(rows,) the aimed number from logits (rows, d_vocab), in float32 or float64."""
    own = wide(logits.gather(-1, aim.ids[:, None])[:, 0])
    match aim.target:
        case "logit":
            return own
        case "logit_difference":
            if aim.foils is None:
                raise ValueError(
                    "target 'logit_difference' needs a foil: give foil=, a token id or the text of one token"
                )
            return own - wide(logits.gather(-1, aim.foils[:, None])[:, 0])
        case "log_prob":
            return own - torch.logsumexp(wide(logits), -1)
        case "probability":
            return (own - torch.logsumexp(wide(logits), -1)).exp()
    raise ValueError(f"target must be 'probability', 'log_prob', 'logit' or 'logit_difference', got {aim.target!r}")


def _blocks(model: Any, rows: int) -> Sequence[slice]:
    size = max(16, _BLOCK * (16 if model.device.type == "cuda" else 1) // model.d_vocab)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


@torch.no_grad()
def read(model: Any, hidden: Tensor, aim: Aim) -> Tensor:
    """(batch, response) the aimed numbers from hidden states (batch, response, width)."""
    rows, many = hidden.flatten(0, 1), aim.repeated(hidden.shape[0])
    parts = [score(decode(model, rows[b]), many.of(b.start, b.stop)) for b in _blocks(model, len(rows))]
    return torch.cat(parts).view(hidden.shape[:2])


def seeds(model: Any, hidden: Tensor, aim: Aim) -> tuple[Tensor, Tensor]:
    """The aimed numbers (response,) and the gradient of each at its own hidden state (response, width)."""
    values, gradients = [], []
    with torch.enable_grad():
        for block in _blocks(model, len(hidden)):
            leaf = hidden[block].detach().requires_grad_(True)
            value = score(decode(model, leaf), aim.of(block.start, block.stop))
            (gradient,) = torch.autograd.grad(value.sum(), leaf)  # rows do not mix, so the sum keeps them apart
            values.append(value.detach())
            gradients.append(gradient)
    return torch.cat(values), torch.cat(gradients)
