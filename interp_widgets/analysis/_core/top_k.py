"""Top-k of arrays, and of long rows that come in tiles."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from interp_widgets.analysis._core.arrays import Ints
from interp_widgets.models.top_k import tied_at
from interp_widgets.models.top_k import top_k_indices as lowest_largest


def top_k_indices(values: ArrayLike, count: int | None = None, *, by_size: bool = False) -> Ints:
    """Indices of the ``count`` largest numbers along the last axis, in falling order; ties in the order of indices.

    Without a count, all of them; with ``by_size``, ordered by absolute value. NaN comes last.

    >>> top_k_indices([1.0, -5.0, 3.0], 2, by_size=True).tolist()
    [1, 2]
    """
    keys = np.abs(values) if by_size else np.asarray(values)
    return np.argsort(-keys, axis=-1, kind="stable")[..., :count]


class TopK:
    """Keeps the ``count`` largest numbers of every row and their indices, while the rows come in tiles.

    With ``by_size`` the numbers are ordered by their absolute value and keep their sign.

    >>> best = TopK(2)
    >>> best.add(torch.tensor([[1.0, 5.0, 3.0]]), 0)
    >>> best.add(torch.tensor([[4.0, 0.0]]), 3)
    >>> best.indices
    tensor([[1, 3]])
    """

    def __init__(self, count: int, *, by_size: bool = False) -> None:
        self.count = count
        self.by_size = by_size
        self.values = torch.empty(0, 0)
        """(rows, count) the largest numbers in falling order; ties in the order of indices."""
        self.indices = torch.empty(0, 0, dtype=torch.long)
        """(rows, count) their indices in the row."""

    def add(self, tile: Tensor, first: int) -> None:
        """Take in (rows, size) numbers whose first has the index ``first``; tiles come in order."""
        inside = _largest(tile, min(self.count, tile.shape[-1]), by_size=self.by_size)
        values, indices = tile.gather(-1, inside), inside + first
        if self.values.numel():
            values, indices = torch.cat([self.values, values], -1), torch.cat([self.indices, indices], -1)
        order = (values.abs() if self.by_size else values).sort(dim=-1, descending=True, stable=True).indices
        order = order[..., : self.count]
        self.values, self.indices = values.gather(-1, order), indices.gather(-1, order)


_BLOCK = 8


def _largest(rows: Tensor, count: int, *, by_size: bool) -> Tensor:
    """(rows, count) indices of the largest numbers, of equal ones those with the lowest indices, in their order.

    The largest ``count`` numbers lie in the ``count`` blocks with the largest maxima: long rows are first cut down to
    these, since a maximum over blocks is far cheaper than a selection. Where blocks are tied, the whole rows are used.
    """
    length = rows.shape[-1] // _BLOCK
    if length <= 2 * count:
        return lowest_largest(rows.abs() if by_size else rows, count)
    # a block is every length-th number, so that its maximum runs along whole rows
    blocks = rows[..., : length * _BLOCK].reshape(*rows.shape[:-1], _BLOCK, length)
    peaks = blocks.amax(-2)
    if by_size:
        peaks = torch.maximum(peaks, -blocks.amin(-2))
    best = peaks.topk(count + 1, dim=-1)
    if bool(tied_at(best.values, count).any()):
        return lowest_largest(rows.abs() if by_size else rows, count)
    inside = torch.arange(_BLOCK, device=rows.device) * length
    leftover = torch.arange(length * _BLOCK, rows.shape[-1], device=rows.device).expand(*rows.shape[:-1], -1)
    indices = torch.cat([(best.indices[..., :count, None] + inside).flatten(-2), leftover], -1).sort(dim=-1).values
    values = rows.gather(-1, indices)
    return indices.gather(-1, lowest_largest(values.abs() if by_size else values, count))
