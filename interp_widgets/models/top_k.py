"""The largest of a row of numbers, such as the likeliest tokens; of equal numbers the one with the lowest index.

Equal logits are common in half precision. torch's topk leaves open which of them it takes, and in which order; here
everything that names tokens, from generated text to tables, names the same ones on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SHORT = 128
"""Length of rows that are sorted as a whole."""


def likeliest(logits: Tensor) -> int:
    """The index of the largest of some logits (n,), the lowest one of equal logits."""
    return int(logits.argmax())  # documented to be the first


def ranked(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest numbers along the last axis and their indices, in falling order.

    Equal numbers are in the order of their indices, and NaN counts as the largest.

    >>> values, indices = ranked(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), 3)
    >>> indices.tolist()
    [1, 3, 2]
    """
    indices = top_k_indices(rows, count)
    values, order = rows.gather(-1, indices).sort(dim=-1, descending=True, stable=True)
    return values, indices.gather(-1, order)


def top_k_indices(rows: Tensor, count: int) -> Tensor:
    """(..., count) indices of the largest numbers along the last axis, in the order of indices."""
    length = rows.shape[-1]
    if count >= length:
        return torch.arange(length, device=rows.device).expand(rows.shape).contiguous()
    if length <= _SHORT:  # without waiting for the device
        return rows.sort(dim=-1, descending=True, stable=True).indices[..., :count].sort(dim=-1).values
    best = rows.topk(count + 1, dim=-1)
    indices = best.indices[..., :count]
    tied = tied_at(best.values, count)
    if bool(tied.any()):
        some, least = rows[tied], best.values[tied][:, count - 1 : count]
        above, equal = ~(some <= least), some == least
        taken = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
        indices = indices.masked_scatter(tied[..., None], taken.nonzero()[:, -1])
    return indices.sort(dim=-1).values


def tied_at(falling: Tensor, count: int) -> Tensor:
    """Whether the numbers before and after a cut of falling rows (..., more than count) are equal."""
    return falling[..., count - 1] == falling[..., count]
