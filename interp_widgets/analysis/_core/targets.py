"""The target of each response token (logit, probability, ...), and its gradient at the model's last hidden state.

A response token's probability depends on the hidden state of one position only. So the unembedding, the widest product
of the model, runs in blocks that are reduced to one number per row, and never becomes part of a batched derivative.
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
from interp_widgets.models.engine import decode, decode_blocks, decodes_in_blocks

Target = Literal["probability", "log_prob", "logit", "logit_difference"]
"""Which number of a response token is the target."""

_BLOCK = {"cpu": 2**22, "accelerator": 2**27}
"""Logits in memory at once: 16 MB in float32 on a CPU."""

_FEWEST = 64
"""Fewest rows at once, however large the vocabulary: every block of rows reads the whole unembedding, which takes
longer than the products of few rows. 64 rows of 262,144 logits are 67 MB."""

_COLUMNS = 2048
"""Token ids per block on a CPU: with 256 rows they stay in the cache."""


@dataclass(frozen=True)
class Targets:
    """The target of each response token."""

    kind: Target
    ids: Tensor
    """(response,) token ids."""
    foils: Tensor | None = None
    """(response,) token ids of the foils, for ``logit_difference``."""

    def of(self, start: int, stop: int) -> Targets:
        """The targets of the response tokens start..stop."""
        foils = None if self.foils is None else self.foils[start:stop]
        return Targets(self.kind, self.ids[start:stop], foils)

    def repeated(self, times: int) -> Targets:
        """The targets of ``times`` copies of the response one after the other."""
        return Targets(self.kind, self.ids.repeat(times), None if self.foils is None else self.foils.repeat(times))

    def probability(self) -> Targets:
        """The probability of the same response tokens."""
        return Targets("probability", self.ids)


def check_foil(name: str, value: str, foil: object) -> None:
    """ValueError for a missing or superfluous foil; ``name`` is the argument that chooses the target."""
    if value == "logit_difference" and foil in (None, ""):
        raise ValueError(f"{name} 'logit_difference' needs a foil: give foil=, a token id or the text of one token")
    if value != "logit_difference" and foil is not None:
        raise ValueError(f"a foil is only used by {name}='logit_difference', got {name}={value!r}: leave foil out")


def score(blocks: Iterable[tuple[int, Tensor]], targets: Targets) -> Tensor:
    """(rows,) targets from logits in blocks of the vocabulary (first id, (rows, block)), float32 or wider."""
    target = foil = total = None
    for first, logits in blocks:
        block = wide(logits)
        target = _pick(target, block, targets.ids, first)
        if targets.foils is not None:
            foil = _pick(foil, block, targets.foils, first)
        if targets.kind in ("probability", "log_prob"):
            total = log_sum(total, block)
    if target is None:
        raise ValueError("there are no logits to read")
    match targets.kind:
        case "logit":
            return target
        case "logit_difference":
            if foil is None:
                raise ValueError("target 'logit_difference' needs foils")
            return target - foil
        case "log_prob" | "probability":
            value = target if total is None else target - total
            return value.exp() if targets.kind == "probability" else value
    raise ValueError(f"target must be 'probability', 'log_prob', 'logit' or 'logit_difference', got {targets.kind!r}")


def _pick(before: Tensor | None, block: Tensor, ids: Tensor, first: int) -> Tensor:
    """The logits of ``ids`` (rows,) that lie in this block, else those from earlier blocks."""
    column = ids - first
    logits = block.gather(-1, column.clamp(0, block.shape[-1] - 1)[:, None])[:, 0]
    return logits if before is None else torch.where((column >= 0) & (column < block.shape[-1]), logits, before)


def _row_blocks(model: Model, rows: int, columns: int) -> Iterator[slice]:
    size = max(_FEWEST, _BLOCK[device_kind(model.device)] // columns)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@torch.no_grad()
def read(model: Model, hidden: Tensor, targets: Targets) -> Tensor:
    """(batch, response) targets from hidden states (batch, response, width)."""
    rows, repeated = hidden.flatten(0, 1), targets.repeated(hidden.shape[0])
    narrow = device_kind(model.device) == "cpu" and decodes_in_blocks(model)
    columns = _COLUMNS if narrow else model.d_vocab
    # blocks of the vocabulary are narrow, so that more rows go at once; both stay far below the memory of one layer
    row_blocks = _row_blocks(model, len(rows), max(columns, _BLOCK["cpu"] // 256))
    parts = [score(decode_blocks(model, rows[b], columns), repeated.of(b.start, b.stop)) for b in row_blocks]
    return torch.cat(parts).view(hidden.shape[:2])


def target_gradients(model: Model, hidden: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """The targets (response,) and the gradient of each at its own hidden state (response, width)."""
    values, gradients = [], []
    with torch.enable_grad():
        for block in _row_blocks(model, len(hidden), model.d_vocab):
            leaf = hidden[block].detach().requires_grad_(True)
            value = score([(0, decode(model, leaf))], targets.of(block.start, block.stop))
            (gradient,) = torch.autograd.grad(value.sum(), leaf)  # rows do not mix: each keeps its own gradient
            values.append(value.detach())
            gradients.append(gradient)
    return torch.cat(values), torch.cat(gradients)
