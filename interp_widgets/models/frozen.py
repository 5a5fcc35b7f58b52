"""One pass of a model with everything that is not linear frozen: what is left is linear in the first residual stream.

Attention is linear given its patterns, a norm given its scales (a LayerNorm's centring is linear already), an MLP given
one slope per neuron: the activation's value over its input, so that slope times input is the value itself. A gated MLP
keeps its gate's value; the linear branch carries what comes in. Biases enter as a term of their own.

`interp_widgets.models.freeze` reads all of it at hooks during the model's own pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["FrozenLayer", "FrozenNorm", "FrozenPass", "rounded_gain", "rounds_norms"]

_MLP_ROWS = 512
"""Rows whose hidden values are held at once."""


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

    def gain(self, rows: slice) -> Tensor:
        return self.weight / self.scale[rows] if self.factor is None else self.factor[rows]

    def push(self, x: Tensor, rows: slice) -> Tensor:
        """(positions, parts, d_model) the norm of parts, without the shift."""
        gain = self.gain(rows)[:, None]
        return (x - x.mean(-1, keepdim=True)).mul_(gain) if self.centred else x * gain

    def pull(self, gradient: Tensor, rows: slice) -> Tensor:
        """(positions, d_model) the transpose of `push` for one gradient per position."""
        scaled = gradient * self.gain(rows)
        return scaled - scaled.mean(-1, keepdim=True) if self.centred else scaled


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

    def _weight(self, name: str) -> Tensor:
        return self.model.weight(name, self.index).to(self.kind)

    def _values(self) -> tuple[Tensor, Tensor]:
        """W_V (d_model, n_kv_heads * d_head) and b_V; shared heads once."""
        share = self.model.n_heads // self.model.n_kv_heads
        weight = self._weight("W_V")[::share].transpose(0, 1)
        return weight.reshape(weight.shape[0], -1), self._weight("b_V")[::share].reshape(-1)

    def _out(self) -> Tensor:
        """W_O (n_heads * d_head, d_model)."""
        return self._weight("W_O").flatten(0, 1)

    # ---- forward: parts

    def push(self, x: Tensor, begin: int, bias: bool) -> Tensor:
        """The parts behind the block, (n - begin, parts, d_model), from those before it; ``x`` is overwritten.

        Args:
            x: (n - begin, parts, d_model) parts at the positions from ``begin`` on; all are zero before it.
            begin: the first position.
            bias: whether the last part collects the biases; ``begin`` must be 0 then.
        """
        rows = slice(begin, self.pattern.shape[-1])
        written = self._attend(self.norm1.push(x, rows), begin, bias)
        if self.slope is None:
            return x.add_(self._after(self.after1, written, rows))
        if self.parallel:
            x.add_(self._mlp(self.slope, self._inside(x, rows), rows, bias))
            return x.add_(self._after(self.after1, written, rows))
        x.add_(self._after(self.after1, written, rows))
        return x.add_(self._mlp(self.slope, self._inside(x, rows), rows, bias))

    def push_last(self, x: Tensor, begin: int, bias: bool) -> Tensor:
        """The parts behind the block at position n - 1 alone, (parts, d_model); ``x`` as in `push`, left as it is."""
        n = self.pattern.shape[-1]
        at = slice(n - 1, n)
        written = self._after(self.after1, self._attend_last(x, begin, bias), at)
        stream = x[-1:]
        if self.slope is None:
            return (stream + written)[0]
        mid = stream if self.parallel else stream + written
        out = self._mlp(self.slope, self._inside(mid, at), at, bias).add_(mid)
        return (out.add_(written) if self.parallel else out)[0]

    @staticmethod
    def _after(norm: FrozenNorm | None, written: Tensor, rows: slice) -> Tensor:
        return written if norm is None else norm.push(written, rows)

    @property
    def _norm2(self) -> FrozenNorm:
        return self.norm1 if self.norm2 is None else self.norm2

    def _inside(self, x: Tensor, rows: slice) -> Tensor:
        return self._norm2.push(x, rows)

    def _attend(self, inside: Tensor, begin: int, bias: bool) -> Tensor:
        """(n - begin, parts, d_model) what attention writes, from its normed input."""
        length, parts, _ = inside.shape
        groups = self.model.n_kv_heads
        weight, constant = self._values()
        values = inside @ weight
        if bias:
            values[:, -1] += torch.addmv(constant, weight.T, self.norm1.shift)
        columns = values.view(length, parts, groups, -1).permute(2, 0, 1, 3).reshape(groups, length, -1)
        pattern = self.pattern[:, begin:, begin:].to(self.kind).reshape(groups, -1, length)
        mixed = (pattern @ columns).view(groups, -1, length, parts, self.model.d_head)
        written = mixed.permute(2, 3, 0, 1, 4).reshape(length, parts, -1) @ self._out()
        if bias:
            written[:, -1] += self._weight("b_O")
        return written

    def _attend_last(self, x: Tensor, begin: int, bias: bool) -> Tensor:
        """(1, parts, d_model) what attention writes at the last position: mixed before it is projected."""
        length, parts, width = x.shape
        pattern = self.pattern[:, -1, begin:].to(self.kind)
        inside = self.norm1.push(x, slice(begin, None))
        mixed = (pattern @ inside.view(length, -1)).view(-1, parts, width)
        if bias:
            mixed[:, -1] += pattern.sum(-1, keepdim=True) * self.norm1.shift
        read = mixed @ self._weight("W_V")
        if bias:
            read[:, -1] += pattern.sum(-1, keepdim=True) * self._weight("b_V")
        written = read.transpose(0, 1).reshape(parts, -1) @ self._out()
        if bias:
            written[-1] += self._weight("b_O")
        return written[None]

    def _mlp(self, slopes: Tensor, inside: Tensor, rows: slice, bias: bool) -> Tensor:
        """What the MLP writes, in place of its normed input (positions, parts, d_model)."""
        slope = slopes[rows]
        w_in, w_out = self._weight("W_in"), self._weight("W_out")
        step = max(1, _MLP_ROWS // inside.shape[1])
        for start in range(0, len(inside), step):
            here = slice(start, start + step)
            hidden = inside[here] @ w_in
            if bias:
                hidden[:, -1] += self._norm2.shift @ w_in
                if not self.bias_outside:
                    hidden[:, -1] += self._weight("b_in")
            hidden *= slope[here, None]
            if bias and self.bias_outside:
                hidden[:, -1] += self._weight("b_in")
            torch.matmul(hidden, w_out, out=inside[here])
            if bias:
                inside[here, -1] += self._weight("b_out")
        return self._after(self.after2, inside, rows)

    # ---- backward: one gradient per position

    def pull(self, gradient: Tensor, last: bool = False) -> tuple[Tensor, float]:
        """The gradient before the block (n, d_model), and what the biases inside add.

        Args:
            gradient: (n, d_model) behind the block; with ``last`` (1, d_model), at position n - 1 alone.
        """
        n = self.pattern.shape[-1]
        rows = slice(n - 1, n) if last else slice(0, n)
        middle, added = gradient, 0.0
        stream = gradient
        if self.slope is not None:
            through, added = self._pull_mlp(self.slope[rows], gradient, rows)
            stream = gradient + through
            middle = gradient if self.parallel else stream
        before, more = self._pull_attention(middle, rows)
        before[rows] += stream
        return before, added + more

    def _pull_mlp(self, slope: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, float]:
        written = gradient if self.after2 is None else self.after2.pull(gradient, rows)
        w_in, w_out = self._weight("W_in"), self._weight("W_out")
        hidden = written @ w_out.T
        added = _dot(written, self._weight("b_out"))
        if self.bias_outside:
            added += _dot(hidden, self._weight("b_in"))
        hidden *= slope
        if not self.bias_outside:
            added += _dot(hidden, self._weight("b_in"))
        inside = hidden @ w_in.T
        return self._norm2.pull(inside, rows), added + _dot(inside, self._norm2.shift)

    def _pull_attention(self, gradient: Tensor, rows: slice) -> tuple[Tensor, float]:
        written = gradient if self.after1 is None else self.after1.pull(gradient, rows)
        groups, size = self.model.n_kv_heads, self.model.d_head
        weight, constant = self._values()
        added = _dot(written, self._weight("b_O"))
        read = (written @ self._out().T).view(len(written), groups, -1, size).permute(1, 2, 0, 3)
        pattern = self.pattern[:, rows].to(self.kind)
        values = pattern.reshape(groups, -1, pattern.shape[-1]).mT @ read.reshape(groups, -1, size)
        flat = values.transpose(0, 1).reshape(pattern.shape[-1], -1)
        inside = flat @ weight.T
        added += _dot(flat, constant) + _dot(inside, self.norm1.shift)
        return self.norm1.pull(inside, slice(None)), added


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


@dataclass(frozen=True)
class FrozenPass:
    """The frozen map of one sequence up to one position, n tokens in all."""

    layers: tuple[FrozenLayer, ...]
    start: Tensor
    """(n, d_model) the first residual stream: token embeddings and what learned positions add."""
    residual: Tensor
    """(layers + 1, d_model) the model's own residual stream at position n - 1, before every block and at the end."""
