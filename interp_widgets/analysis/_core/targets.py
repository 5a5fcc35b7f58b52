"""The number of each response token that is looked at, and its gradient at the model's last hidden state.

Only the hidden state at one position decides a response token's probability. So the unembedding, the widest product of
the model, is done in blocks, reduced to one number per row at once, and never becomes part of a batched derivative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interp_widgets.analysis._core.tensors import log_sum, wide
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind
from interp_widgets.models.engine import decode, decode_blocks, in_blocks

Target = Literal["probability", "log_prob", "logit", "logit_difference"]
"""Which number of a token is looked at."""

_BLOCK = {"cpu": 2**22, "accelerator": 2**27}
"""Logits held at once: 16 MB in float32 on a CPU."""

_COLUMNS = 2048
"""Token ids per block on a CPU: with 256 rows they stay in the cache."""


@dataclass(frozen=True)
class Aim:
    """Which number of each response token is looked at."""

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


def check_foil(name: str, value: str, foil: object) -> None:
    """ValueError for a foil that is missing or superfluous, where the argument ``name`` says what is looked at."""
    if value == "logit_difference" and foil in (None, ""):
        raise ValueError(f"{name} 'logit_difference' needs a foil: give foil=, a token id or the text of one token")
    if value != "logit_difference" and foil is not None:
        raise ValueError(f"a foil is only used by {name}='logit_difference', got {name}={value!r}: leave foil out")


def score(blocks: Iterable[tuple[int, Tensor]], aim: Aim) -> Tensor:
    """(rows,) the aimed numbers from logits in blocks of the vocabulary (first id, (rows, block)), float32 or wider."""
    own = foil = total = None
    for first, logits in blocks:
        block = wide(logits)
        own = _pick(own, block, aim.ids, first)
        if aim.foils is not None:
            foil = _pick(foil, block, aim.foils, first)
        if aim.target in ("probability", "log_prob"):
            total = log_sum(total, block)
    if own is None:
        raise ValueError("there are no logits to read")
    match aim.target:
        case "logit":
            return own
        case "logit_difference":
            if foil is None:
                raise ValueError("target 'logit_difference' needs a foil in its aim")
            return own - foil
        case "log_prob" | "probability":
            value = own if total is None else own - total
            return value.exp() if aim.target == "probability" else value
    raise ValueError(f"target must be 'probability', 'log_prob', 'logit' or 'logit_difference', got {aim.target!r}")


def _pick(before: Tensor | None, block: Tensor, ids: Tensor, first: int) -> Tensor:
    """The logits of ``ids`` (rows,) that lie in this block, else those of blocks before."""
    column = ids - first
    picked = block.gather(-1, column.clamp(0, block.shape[-1] - 1)[:, None])[:, 0]
    return picked if before is None else torch.where((column >= 0) & (column < block.shape[-1]), picked, before)


def _row_blocks(model: Model, rows: int, columns: int) -> Iterator[slice]:
    size = max(16, _BLOCK[device_kind(model.device)] // columns)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@torch.no_grad()
def read(model: Model, hidden: Tensor, aim: Aim) -> Tensor:
    """(batch, response) the aimed numbers from hidden states (batch, response, width)."""
    rows, many = hidden.flatten(0, 1), aim.repeated(hidden.shape[0])
    narrow = device_kind(model.device) == "cpu" and in_blocks(model)
    columns = _COLUMNS if narrow else model.d_vocab
    # blocks of the vocabulary are narrow, so that more rows go at once; both stay far below the memory of one layer
    row_blocks = _row_blocks(model, len(rows), max(columns, _BLOCK["cpu"] // 256))
    parts = [score(decode_blocks(model, rows[b], columns), many.of(b.start, b.stop)) for b in row_blocks]
    return torch.cat(parts).view(hidden.shape[:2])


def target_gradients(model: Model, hidden: Tensor, aim: Aim) -> tuple[Tensor, Tensor]:
    """The aimed numbers (response,) and the gradient of each at its own hidden state (response, width)."""
    values, gradients = [], []
    with torch.enable_grad():
        for block in _row_blocks(model, len(hidden), model.d_vocab):
            leaf = hidden[block].detach().requires_grad_(True)
            value = score([(0, decode(model, leaf))], aim.of(block.start, block.stop))
            (gradient,) = torch.autograd.grad(value.sum(), leaf)  # rows do not mix, so the sum keeps them apart
            values.append(value.detach())
            gradients.append(gradient)
    return torch.cat(values), torch.cat(gradients)
