"""Entropy, KL divergence, ranks and top tokens of many softmaxes whose logits come in blocks (online softmax)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from interp_widgets.models.devices import accumulation_dtype
from interp_widgets.models.top_k import ranked

LOWEST = -1e30
"""Used instead of minus infinity, whose difference with itself and product with zero are NaN."""


class Readings:
    """Running sums over blocks of the vocabulary, for (positions, rows) cells.

    With x a cell's logits, f the final row's at the same position and m the largest x so far, a block adds
    exp(x - m) to `mass`, exp(x - m)(x - m) to `energy` and exp(x - m)(f - anchor) to `cross`; when a later block has a
    larger m, the sums so far are scaled (the online softmax). Blocks are in the logits' own type, sums in float64
    where the device has it.

    `followed` (positions, 1 or 2) holds the ids whose ranks are counted: the likeliest token of the final row, which
    the caller sets, and the target. `complete` (positions,) tells where the caller has added all blocks.
    """

    def __init__(
        self, positions: int, rows: int, *, top: int, target: int | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (positions, rows)
        followed = 1 if target is None else 2

        def filled(value: float, *more: int) -> Tensor:
            return torch.full((*shape, *more), value, dtype=accumulation_dtype(device), device=device)

        self.top, self.target = top, target
        self.peak = filled(LOWEST).to(dtype)
        self.mass, self.energy, self.cross = filled(0), filled(0), filled(0)
        self.anchor = torch.full((positions, 1), torch.nan, dtype=dtype, device=device)
        self.best = filled(-torch.inf, top).to(dtype)
        self.best_ids = torch.zeros(*shape, top, dtype=torch.long, device=device)
        self.followed = torch.zeros(positions, followed, dtype=torch.long, device=device)
        if target is not None:
            self.followed[:, 1] = target
        self.followed_logit = filled(torch.nan, followed).to(dtype)
        self.above = torch.zeros(*shape, followed, dtype=torch.long, device=device)
        self.complete = np.zeros(positions, dtype=bool)

    def add(self, positions: slice, rows: slice, first: int, logits: Tensor, final: Tensor) -> None:
        """Add one block; ``logits`` is overwritten.

        Args:
            positions, rows: the cells.
            first: the block's first token id. Blocks come in the order of ids; the logits of followed tokens that the
                first block does not hold must have been noted (`note_followed`).
            logits: (positions, rows, block) of these cells.
            final: (positions, block) of the final row; may be a part of ``logits``.
        """
        at = (positions, rows)
        highest = logits.amax(-1)
        weights = torch.empty_like(logits)
        self._count(at, first, logits, weights)
        self._merge(at, first, logits, highest)
        anchor = self.anchor[positions]
        self.anchor[positions] = torch.where(anchor.isnan(), final.amax(-1, keepdim=True), anchor)
        final = final - self.anchor[positions]  # a copy, before the logits change
        peak = torch.maximum(self.peak[at], highest)
        shift = (self.peak[at] - peak).to(self.mass.dtype)
        logits = logits.sub_(peak[..., None])
        torch.exp(logits, out=weights)
        scale = shift.exp()
        self.energy[at] = scale * (self.energy[at] + shift * self.mass[at]) + torch.linalg.vecdot(weights, logits)
        self.cross[at] = scale * self.cross[at] + (weights @ final[..., None])[..., 0]
        self.mass[at] = scale * self.mass[at] + weights.sum(-1)
        self.peak[at] = peak

    def note_followed(self, positions: slice, rows: slice, first: int, logits: Tensor) -> None:
        """Keep the logits of the followed tokens that a block holds."""
        columns = self.followed[positions] - first
        inside = (columns >= 0) & (columns < logits.shape[-1])
        places = columns.clamp(0, logits.shape[-1] - 1)[:, None].expand(-1, logits.shape[1], -1)
        at = (positions, rows)
        self.followed_logit[at] = torch.where(inside[:, None], logits.gather(-1, places), self.followed_logit[at])

    def _count(self, at: tuple[slice, slice], first: int, logits: Tensor, scratch: Tensor) -> None:
        """Count the logits above those of the followed tokens."""
        self.note_followed(*at, first, logits)  # exactly equal: a token must not count itself
        for index in range(self.followed.shape[1]):
            # ones in the logits' dtype: summing booleans would make a copy of 8 bytes each
            torch.gt(logits, self.followed_logit[at][..., index, None], out=scratch)
            self.above[at][..., index] += scratch.sum(-1).long()

    def _merge(self, at: tuple[slice, slice], first: int, logits: Tensor, highest: Tensor) -> None:
        """Merge a block's largest logits into the largest so far; most cells of later blocks have none."""
        best, best_ids = self.best[at], self.best_ids[at]
        # indices, since every use of a mask as an index would synchronise with the device
        better = (highest > best[..., -1]).nonzero(as_tuple=True)
        values, columns = ranked(logits[better], min(self.top, logits.shape[-1]))
        merged = torch.cat([best[better], values], dim=-1)
        ids = torch.cat([best_ids[better], columns + first], dim=-1)
        largest, order = ranked(merged, self.top)  # equal logits are in the order of ids already
        best[better], best_ids[better] = largest, ids.gather(-1, order)

    # ---- derived from the sums

    def log_mass(self) -> Tensor:
        """(positions, rows) log of the sum of exp(logit), in the dtype of the sums."""
        return self.peak.to(self.mass.dtype) + self.mass.log()

    def entropy(self) -> Tensor:
        """(positions, rows) entropy of the softmax in nats, in the dtype of the sums."""
        return (self.mass.log() - self.energy / self.mass).clamp_min(0)  # rounding may leave -1e-8

    def kl(self) -> Tensor:
        """(positions, rows) KL divergence of the final row's softmax from each cell's in nats."""
        to_final = self.anchor.to(self.mass.dtype) - self.log_mass()[:, [-1]]
        negative_entropy = self.energy / self.mass - self.mass.log()  # mean log-probability
        divergence = (negative_entropy - (self.cross / self.mass + to_final)).clamp_min(0)
        divergence[:, -1] = 0
        return divergence

    def ordered(self) -> tuple[Tensor, Tensor]:
        """(positions, rows, top) probabilities and ids of the largest logits; ties in the order of ids."""
        return (self.best.to(self.mass.dtype) - self.log_mass()[..., None]).exp(), self.best_ids
