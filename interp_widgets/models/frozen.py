"""One block of a model with everything that is not linear frozen.

Attention is linear given its patterns, a norm given its scales (a LayerNorm's centring is linear already), an MLP given
one slope per neuron: the activation's value over its input, so that slope times input is the value itself. A gated MLP
keeps its gate's value; the linear branch carries what comes in. Biases enter as a source of their own.

The map is the same for every source and looks back only. So the parts of many sources lie in one flat matrix (`Rows`),
each at the positions from its own on, and every product with a weight is one large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["FrozenLayer", "FrozenNorm", "Rows", "rounded_gain", "rounds_norms"]


@dataclass(frozen=True)
class Rows:
    """Which rows of a flat matrix (rows, width) are at which positions."""

    pieces: tuple[tuple[slice, slice], ...]
    """Rows and their positions; one position stands for all rows of a piece."""
    bias: slice | None
    """The rows of the biases, which come first; None without."""

    @staticmethod
    def spread(n: int, begin: int, stop: int, *, bias: bool) -> Rows:
        """The biases at all n positions, then each of the sources begin..stop at those from its own on."""
        firsts = [*([0] if bias else []), *range(begin, stop)]
        pieces, row = [], 0
        for first in firsts:
            pieces.append((slice(row, row + n - first), slice(first, n)))
            row += n - first
        return Rows(tuple(pieces), slice(0, n) if bias else None)

    @staticmethod
    def together(count: int, positions: slice, *, bias: bool = False) -> Rows:
        """One row per source, all at one position or each at its own; the first is that of the biases."""
        return Rows(((slice(0, count), positions),), slice(0, 1) if bias else None)

    @property
    def count(self) -> int:
        """Rows in all."""
        return int(self.pieces[-1][0].stop) if self.pieces else 0


@dataclass(frozen=True)
class FrozenNorm:
    """A norm at its scales: (x - mean x) · gain + shift, without the mean for RMSNorm."""

    scale: Tensor
    """(n, 1) by which each position is divided."""
    weight: Tensor
    """(d_model,)"""
    shift: Tensor
    """(d_model,)"""
    centred: bool
    factor: Tensor | None = None
    """(n, d_model) what each element was multiplied by, where the model rounds it coarser than its own type."""

    def gain(self) -> Tensor:
        """(n, d_model) by which the (centred) stream is multiplied."""
        return self.weight / self.scale if self.factor is None else self.factor

    def unscaled(self, x: Tensor) -> Tensor:
        """(..., d_model) what `push` divides by a position's scale, without the shift; for a norm without `factor`."""
        return (x - x.mean(-1, keepdim=True)).mul_(self.weight) if self.centred else x * self.weight

    def push(self, x: Tensor, rows: Rows) -> Tensor:
        """(rows, d_model) the norm of parts."""
        gain = self.gain()
        out = x - x.mean(-1, keepdim=True) if self.centred else torch.empty_like(x)
        for part, positions in rows.pieces:
            torch.mul((out if self.centred else x)[part], gain[positions], out=out[part])
        if rows.bias is not None:
            out[rows.bias] += self.shift
        return out

    def pull(self, gradient: Tensor, positions: slice) -> tuple[Tensor, float]:
        """The transpose of `push` for one gradient per position (positions, d_model), and what the shift adds."""
        scaled = gradient * self.gain()[positions]
        scaled = scaled - scaled.mean(-1, keepdim=True) if self.centred else scaled
        return scaled, _dot(gradient, self.shift)


@dataclass(frozen=True)
class FrozenLayer:
    """One block as a linear map on the parts of the residual stream at positions 0..n-1.

    Weights are read from the model at every call, and widened to float32 where they are narrower.
    """

    model: Any
    index: int
    kind: torch.dtype
    pattern: Tensor
    """(n_heads, n, n)"""
    norm1: FrozenNorm
    norm2: FrozenNorm | None
    after1: FrozenNorm | None
    """Norm of what attention writes, where the model has one."""
    after2: FrozenNorm | None
    slope: Tensor | None
    """(n, d_mlp) what each neuron's input (for gated ones: the linear branch) is multiplied by; None without an MLP."""
    bias_outside: bool
    """Whether b_in is added behind the slope."""

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        return bool(getattr(self.model.tl_model.cfg, "parallel_attn_mlp", False))

    @property
    def separable(self) -> bool:
        """Whether norms differ between positions by one number only, so that positions may be mixed before a norm."""
        norms = (self.norm1, self.norm2)
        return self.after1 is None and self.after2 is None and all(n is None or n.factor is None for n in norms)

    @property
    def _length(self) -> int:
        return self.pattern.shape[-1]

    @property
    def _share(self) -> int:
        """Query heads per key/value head."""
        return int(self.model.n_heads // self.model.n_kv_heads)

    @property
    def _norm2(self) -> FrozenNorm:
        return self.norm1 if self.norm2 is None else self.norm2

    def _weight(self, name: str) -> Tensor:
        return self.model.weight(name, self.index).to(self.kind)

    def _values(self) -> tuple[Tensor, Tensor]:
        """W_V (d_model, n_kv_heads * d_head) and b_V; shared heads once."""
        weight = self._weight("W_V")[:: self._share].transpose(0, 1)
        return weight.reshape(weight.shape[0], -1), self._weight("b_V")[:: self._share].reshape(-1)

    def _out(self) -> Tensor:
        """W_O (n_heads * d_head, d_model)."""
        return self._weight("W_O").flatten(0, 1)

    # ---- forward: parts

    def push(self, x: Tensor, rows: Rows) -> Tensor:
        """The parts behind the block (rows, d_model), from those before it; ``x`` is overwritten."""
        written = self._write(self._attend(self.norm1.push(x, rows), rows), rows)
        if self.parallel and self.slope is not None:
            x += self._mlp(self._norm2.push(x, rows), rows)
            return x.add_(written)
        x += written
        return x if self.slope is None else x.add_(self._mlp(self._norm2.push(x, rows), rows))

    def push_last(self, stream: Tensor, mixed: Tensor, *, bias: bool) -> Tensor:
        """The parts behind the block at position n - 1 alone, (parts, d_model).

        Args:
            stream: (parts, d_model) parts before the block at that position.
            mixed: (heads, parts, d_model) what each head reads there of the normed parts.
            bias: whether the first part collects the biases.
        """
        values = mixed @ self._weight("W_V")
        if bias:
            values[:, 0] += self.pattern[:, -1].to(self.kind).sum(-1, keepdim=True) * self._weight("b_V")
        rows = Rows.together(len(stream), slice(self._length - 1, self._length), bias=bias)
        written = self._write(values.transpose(0, 1).flatten(1), rows)
        mid = stream if self.parallel else stream + written
        out = mid if self.slope is None else mid + self._mlp(self._norm2.push(mid, rows), rows)
        return out + written if self.parallel else out

    def read(self, x: Tensor, rows: Rows) -> Tensor:
        """(heads, parts, d_model) what each head reads at position n - 1 of the normed parts ``x``."""
        return self.sums(self.norm1.push(x, rows), rows, self.pattern[:, -1].to(self.kind))

    def reading(self) -> Tensor:
        """(heads, n) how much of each position's unscaled norm the last one reads; for a `separable` layer."""
        return self.pattern[:, -1].to(self.kind) / self.norm1.scale[:, 0]

    @staticmethod
    def sums(x: Tensor, rows: Rows, weights: Tensor) -> Tensor:
        """(heads, parts, width) sums of ``x`` (rows, width) over each part's positions, with weights (heads, n)."""
        found = x.new_empty(len(rows.pieces), len(weights), x.shape[-1])
        for index, (part, positions) in enumerate(rows.pieces):
            torch.mm(weights[:, positions], x[part], out=found[index])
        return found.transpose(0, 1)

    def push_own(self, start: Tensor, begin: int, rows: Rows) -> Tensor:
        """`push` (without biases) for the first block, where a source is at its own position only.

        Attention spreads one vector per head over the later positions, so that the products with W_V, W_O and W_in are
        done once per source and head. The layer must be `separable`.

        Args:
            start: (sources, d_model) the stream at the positions of the sources.
            begin: position of the first source.
            rows: those of the sources.
        """
        sources, width = start.shape
        own = Rows.together(sources, slice(begin, begin + sources))
        values = self.norm1.push(start, own) @ self._weight("W_V")[:: self._share]
        heads = (values.repeat_interleave(self._share, 0) @ self._weight("W_O")).transpose(0, 1).contiguous()
        pattern = self.pattern[:, :, begin : begin + sources].to(self.kind)
        firsts = torch.tensor([part.start for part, _ in rows.pieces], device=start.device)

        def spread(what: Tensor, into: Tensor) -> Tensor:
            for index, (part, positions) in enumerate(rows.pieces):
                torch.mm(pattern[:, positions, index].T, what[index], out=into[part])
            return into

        x = spread(heads, start.new_empty(rows.count, width))
        x[firsts] += start
        if self.slope is None:
            return x
        if self.parallel:
            x[firsts] += self._mlp(self._norm2.push(start, own), own)
            return x
        w_in, norm = self._weight("W_in"), self._norm2
        before = (norm.unscaled(heads.flatten(0, 1)) @ w_in).view(sources, -1, w_in.shape[1])
        hidden = spread(before, start.new_empty(rows.count, w_in.shape[1]))
        hidden[firsts] += norm.unscaled(start) @ w_in
        return x.addmm_(_times(hidden, rows, self.slope / norm.scale), self._weight("W_out"))

    def push_mixed(self, x: Tensor, rows: Rows, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The parts behind the block at position n - 1, (parts, d_model), and their `sums` with ``weights`` (heads, n).

        All that a last block asks for, without the product with W_out at every position. ``x`` is overwritten. The
        layer must be `separable` and have an MLP.
        """
        written = self._write(self._attend(self.norm1.push(x, rows), rows), rows)
        inside = self._norm2.push(x, rows) if self.parallel else None
        mid = x.add_(written)
        hidden = self._hidden(self._norm2.push(mid, rows) if inside is None else inside, rows)
        ends = torch.tensor([part.stop - 1 for part, _ in rows.pieces], device=x.device)
        w_out = self._weight("W_out")
        total = self.sums(hidden, rows, weights)
        mixed = self.sums(mid, rows, weights) + (total.flatten(0, 1) @ w_out).view(*total.shape[:2], -1)
        out = mid[ends].addmm_(hidden[ends], w_out)
        if rows.bias is not None:
            mixed[:, 0] += weights.sum(-1, keepdim=True) * self._weight("b_out")
            out[0] += self._weight("b_out")
        return out, mixed

    def _attend(self, inside: Tensor, rows: Rows) -> Tensor:
        """(rows, n_heads * d_head) what the heads read of their normed input."""
        heads, groups, size = self.model.n_heads, self.model.n_kv_heads, self.model.d_head
        weight, constant = self._values()
        values = inside @ weight
        if rows.bias is not None:
            values[rows.bias] += constant
        pattern = self.pattern.to(self.kind)
        read = inside.new_empty(len(inside), heads * size)
        for part, positions in rows.pieces:
            columns = values[part].view(-1, groups, size).transpose(0, 1)
            columns = columns if self._share == 1 else columns.repeat_interleave(self._share, 0)
            mixed = pattern[:, positions, positions] @ columns
            read[part].view(-1, heads, size).copy_(mixed.transpose(0, 1))
        return read

    def _write(self, read: Tensor, rows: Rows) -> Tensor:
        """(rows, d_model) what attention writes."""
        written = read @ self._out()
        if rows.bias is not None:
            written[rows.bias] += self._weight("b_O")
        return written if self.after1 is None else self.after1.push(written, rows)

    def _hidden(self, inside: Tensor, rows: Rows) -> Tensor:
        """(rows, d_mlp) the MLP's hidden values of its normed input."""
        if self.slope is None:
            raise ValueError(f"layer {self.index} has no MLP")
        hidden = inside @ self._weight("W_in")
        if rows.bias is not None and not self.bias_outside:
            hidden[rows.bias] += self._weight("b_in")
        _times(hidden, rows, self.slope)
        if rows.bias is not None and self.bias_outside:
            hidden[rows.bias] += self._weight("b_in")
        return hidden

    def _mlp(self, inside: Tensor, rows: Rows) -> Tensor:
        """(rows, d_model) what the MLP writes."""
        written = self._hidden(inside, rows) @ self._weight("W_out")
        if rows.bias is not None:
            written[rows.bias] += self._weight("b_out")
        return written if self.after2 is None else self.after2.push(written, rows)

    # ---- backward: one gradient per position

    def pull(self, gradient: Tensor, *, last: bool = False) -> tuple[Tensor, float]:
        """The gradient before the block (n, d_model), and what the biases inside add.

        Args:
            gradient: (n, d_model) behind the block; with ``last`` (1, d_model), at position n - 1 alone.
        """
        positions = slice(self._length - 1 if last else 0, self._length)
        middle, stream, added = gradient, gradient, 0.0
        if self.slope is not None:
            through, added = self._pull_mlp(self.slope[positions], gradient, positions)
            stream = gradient + through
            middle = gradient if self.parallel else stream
        before, more = self._pull_attention(middle, positions)
        before[positions] += stream
        return before, added + more

    def _pull_mlp(self, slope: Tensor, gradient: Tensor, positions: slice) -> tuple[Tensor, float]:
        written, added = (gradient, 0.0) if self.after2 is None else self.after2.pull(gradient, positions)
        hidden = written @ self._weight("W_out").T
        added += _dot(written, self._weight("b_out"))
        if self.bias_outside:
            added += _dot(hidden, self._weight("b_in"))
        hidden *= slope
        if not self.bias_outside:
            added += _dot(hidden, self._weight("b_in"))
        before, more = self._norm2.pull(hidden @ self._weight("W_in").T, positions)
        return before, added + more

    def _pull_attention(self, gradient: Tensor, positions: slice) -> tuple[Tensor, float]:
        written, added = (gradient, 0.0) if self.after1 is None else self.after1.pull(gradient, positions)
        groups, size = self.model.n_kv_heads, self.model.d_head
        weight, constant = self._values()
        added += _dot(written, self._weight("b_O"))
        read = (written @ self._out().T).view(len(written), groups, -1, size).permute(1, 2, 0, 3)
        pattern = self.pattern[:, positions].to(self.kind)
        values = pattern.reshape(groups, -1, self._length).mT @ read.reshape(groups, -1, size)
        flat = values.transpose(0, 1).reshape(self._length, -1)
        before, more = self.norm1.pull(flat @ weight.T, slice(None))
        return before, added + _dot(flat, constant) + more


def _times(x: Tensor, rows: Rows, table: Tensor) -> Tensor:
    """``x`` (rows, width), every row multiplied by its position's row of ``table`` (n, width); in place."""
    for part, positions in rows.pieces:
        x[part] *= table[positions]
    return x


def rounds_norms(model: Any) -> bool:
    """Whether norms are coarser than the model's type: transformers' RMSNorm is in float32 within a float64 model."""
    return bool(model.backend == "bridge" and model.dtype == torch.float64 and model.normalization == "RMSNorm")


def rounded_gain(gain: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """(n, d_model) output over input of such a norm; ``gain`` itself where the input is next to nothing."""
    tiny = before.abs() < 1e-6 * before.abs().amax(-1, keepdim=True)
    ratio = after / torch.where(tiny, torch.ones_like(before), before)
    return torch.where(tiny | ((ratio - gain).abs() > 1e-3 * gain.abs()), gain, ratio)


def _dot(rows: Tensor, bias: Tensor) -> float:
    """The sum over rows of their product with one bias, in float64."""
    return float(rows.double().sum(0) @ bias.double())
