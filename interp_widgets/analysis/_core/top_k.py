"""The largest numbers of long rows that come in tiles."""

from __future__ import annotations

import torch
from torch import Tensor


class Largest:
    """Keeps the ``count`` largest numbers of every row, and where they stand, while the rows come in tiles.

    With ``by_size`` the numbers are ordered by their absolute value and keep their sign.

    >>> best = Largest(2)
    >>> best.add(torch.tensor([[1.0, 5.0, 3.0]]), 0)
    >>> best.add(torch.tensor([[4.0, 0.0]]), 3)
    >>> best.places
    tensor([[1, 3]])
    """

    def __init__(self, count: int, *, by_size: bool = False) -> None:
        self.count = count
        self.by_size = by_size
        self.values = torch.empty(0, 0)
        """(rows, count) the largest numbers, falling; of equal ones the earlier stands first."""
        self.places = torch.empty(0, 0, dtype=torch.long)
        """(rows, count) their places in the row."""

    def add(self, tile: Tensor, first: int) -> None:
        """Take in (rows, size) numbers that stand at ``first`` and after; tiles come in order."""
        places = _largest(tile, min(self.count, tile.shape[-1]), by_size=self.by_size)
        places = places.sort(dim=-1).values  # by place first: the sort by value then keeps ties in this order
        values = tile.gather(-1, places)
        places = places + first
        if self.values.numel():
            values, places = torch.cat([self.values, values], -1), torch.cat([self.places, places], -1)
        order = (values.abs() if self.by_size else values).sort(dim=-1, descending=True, stable=True).indices
        order = order[..., : self.count]
        self.values, self.places = values.gather(-1, order), places.gather(-1, order)


_BLOCK = 8


def _largest(rows: Tensor, count: int, *, by_size: bool) -> Tensor:
    """(rows, count) places of the largest numbers, in no order.

    The largest ``count`` numbers lie in the ``count`` blocks with the largest maxima: long rows are first cut down to
    these, since a maximum over blocks is far cheaper than a selection.
    """
    length = rows.shape[-1] // _BLOCK
    if length <= 2 * count:
        return (rows.abs() if by_size else rows).topk(count, dim=-1, sorted=False).indices
    # a block is every length-th number, so that its maximum runs along whole rows
    blocks = rows[..., : length * _BLOCK].reshape(*rows.shape[:-1], _BLOCK, length)
    peaks = blocks.amax(-2)
    if by_size:
        peaks = torch.maximum(peaks, -blocks.amin(-2))
    best = peaks.topk(count, dim=-1, sorted=False).indices
    inside = torch.arange(_BLOCK, device=rows.device) * length
    rest = torch.arange(length * _BLOCK, rows.shape[-1], device=rows.device).expand(*rows.shape[:-1], -1)
    places = torch.cat([(best[..., None] + inside).flatten(-2), rest], -1)
    values = rows.gather(-1, places)
    return places.gather(-1, (values.abs() if by_size else values).topk(count, dim=-1, sorted=False).indices)
