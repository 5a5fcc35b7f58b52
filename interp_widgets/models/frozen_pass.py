"""The frozen map of a whole pass: parts forwards, or one gradient backwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .frozen import FrozenLayer, Rows

__all__ = ["FrozenPass"]


@dataclass(frozen=True)
class FrozenPass:
    """The frozen map of one sequence up to one position, n tokens in all; made by `interp_widgets.models.freeze`."""

    layers: tuple[FrozenLayer, ...]
    start: Tensor
    """(n, d_model) the first residual stream: token embeddings and what learned positions add."""
    residual: Tensor
    """(layers + 1, d_model) the model's own residual stream at position n - 1, before every block and at the end."""

    @torch.no_grad()
    def parts(self, begin: int, stop: int, *, bias: bool = False) -> Tensor:
        """(layers + 1, sources, d_model) parts of the stream at position n - 1 that the sources begin..stop brought.

        With ``bias`` the biases are a source too, the first. What no one asks for is left out: positions before a
        source (nothing looks back), in the last block all positions but one, and in its neighbours at either end
        products that can be done once for all positions.
        """
        n, last = len(self.start), self.layers[-1]
        rows = Rows.spread(n, begin, stop, bias=bias)
        found = self.start.new_zeros(len(self.layers) + 1, bias + stop - begin, self.start.shape[1])
        if stop == n:
            found[0, -1] = self.start[-1]
        ends = torch.tensor([part.stop - 1 for part, _ in rows.pieces], device=found.device)
        x, mixed = self._enter(begin, stop, rows), None
        for index, layer in enumerate(self.layers[:-1]):
            if index == 0 and layer.separable:
                x = self._first(layer, x, begin, stop, bias)
            elif index == len(self.layers) - 2 and layer.slope is not None and layer.separable and last.separable:
                found[index + 1], mixed = layer.push_mixed(x, rows, last.reading())
                continue
            else:
                x = layer.push(x, rows)
            found[index + 1] = x[ends]
        if mixed is None:
            read = last.read(x, rows)
        else:
            read = last.norm1.unscaled(mixed)
            if bias:
                read[:, 0] += last.pattern[:, -1].to(read.dtype).sum(-1, keepdim=True) * last.norm1.shift
        found[-1] = last.push_last(found[-2], read, bias=bias)
        return found

    def _enter(self, begin: int, stop: int, rows: Rows) -> Tensor:
        """(rows, d_model) the parts before the first block: every source at its own position only."""
        x = self.start.new_zeros(rows.count, self.start.shape[1])
        firsts = [part.start for part, _ in rows.pieces]
        x[firsts[len(firsts) - (stop - begin) :]] = self.start[begin:stop]
        return x

    def _first(self, layer: FrozenLayer, x: Tensor, begin: int, stop: int, bias: bool) -> Tensor:
        n = len(self.start)
        behind = layer.push_own(self.start[begin:stop], begin, Rows.spread(n, begin, stop, bias=False))
        return torch.cat([layer.push(x[:n], Rows.spread(n, 0, 0, bias=True)), behind]) if bias else behind

    @torch.no_grad()
    def gradient(self, direction: Tensor, check: Callable[[], None] | None = None) -> tuple[Tensor, float]:
        """The gradient at `start` (n, d_model) of the stream behind the last block along ``direction`` (d_model,), and
        what the biases of all layers add."""
        gradient, added = direction[None], 0.0
        for layer in reversed(self.layers):
            if check is not None:
                check()
            gradient, more = layer.pull(gradient, last=layer is self.layers[-1])
            added += more
        return gradient, added
