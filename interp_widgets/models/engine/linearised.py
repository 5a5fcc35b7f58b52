"""A pass linearised by holding attention patterns, norm scales and activation slopes fixed.

Attention is linear given its patterns, a norm given its scales (a LayerNorm's centring is already linear), an MLP given
one slope per neuron: the activation's value divided by its input, so that slope times input is the value. In a gated
MLP the gate's value is held fixed and the linear branch carries the input. Biases are a source of their own.

The map is causal and the same for every source. So the parts of many sources share one flat matrix (`Rows`), each from
its source's position on, and each weight needs a single large product.

Patterns, scales and slopes are read at hooks during the model's own pass, which works on both backends and includes
any changes made by the user's hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from torch import Tensor

from .. import transformerlens
from ..devices import accumulation_dtype
from ..hooks import check_hook_names, has_hooks
from ..network import Network
from ..patching import site_hook
from ..stopping import stop_point
from .modules import drop_pattern, run_blocks

__all__ = [
    "ActivationSlope",
    "LinearisedBlock",
    "LinearisedNorm",
    "LinearisedPass",
    "Rows",
    "linearise",
    "rounded_gain",
    "rounds_norms",
]


ActivationSlope = Literal["secant", "step"]
"""How an activation is made linear: ``secant`` act(z)/z, which adds up; ``step`` 1 where z > 0, which does not."""


# ---- one block


@dataclass(frozen=True)
class Rows:
    """The positions of the rows of a flat matrix (rows, width)."""

    pieces: tuple[tuple[slice, slice], ...]
    """Slices of rows and of their positions; a single position applies to all rows of its piece."""
    bias: slice | None
    """The rows of the biases, which come first; None without."""

    @staticmethod
    def spread(n: int, begin: int, stop: int, *, bias: bool) -> Rows:
        """Rows for the biases at all n positions, then for each source begin..stop from its position on."""
        firsts = [*([0] if bias else []), *range(begin, stop)]
        pieces, row = [], 0
        for first in firsts:
            pieces.append((slice(row, row + n - first), slice(first, n)))
            row += n - first
        return Rows(tuple(pieces), slice(0, n) if bias else None)

    @staticmethod
    def together(count: int, positions: slice, *, bias: bool = False) -> Rows:
        """One row per source, all at one position or each at its own; with ``bias`` the first row is the biases'."""
        return Rows(((slice(0, count), positions),), slice(0, 1) if bias else None)

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.pieces[-1][0].stop) if self.pieces else 0


@dataclass(frozen=True)
class LinearisedNorm:
    """A norm at its scales: (x - mean x) · gain + shift, without the mean for RMSNorm."""

    scale: Tensor
    """(n, 1) divisor of each position."""
    weight: Tensor
    """(d_model,)"""
    shift: Tensor
    """(d_model,)"""
    centred: bool
    factor: Tensor | None = None
    """(n, d_model) what each element was multiplied by, where the model rounds it coarser than its own type."""

    def gain(self) -> Tensor:
        """(n, d_model) factor of the (centred) stream."""
        return self.weight / self.scale if self.factor is None else self.factor

    def unscaled(self, x: Tensor) -> Tensor:
        """(..., d_model) what `forward` divides by a position's scale, without shift; for a norm without `factor`."""
        return (x - x.mean(-1, keepdim=True)).mul_(self.weight) if self.centred else x * self.weight

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """(rows, d_model) the norm of parts."""
        gain = self.gain()
        out = x - x.mean(-1, keepdim=True) if self.centred else torch.empty_like(x)
        for part, positions in rows.pieces:
            torch.mul((out if self.centred else x)[part], gain[positions], out=out[part])
        if rows.bias is not None:
            out[rows.bias] += self.shift
        return out

    def backward(self, gradient: Tensor, positions: slice) -> tuple[Tensor, Tensor]:
        """The transpose of `forward` for one gradient per position (positions, d_model), and what the shift adds."""
        scaled = gradient * self.gain()[positions]
        scaled = scaled - scaled.mean(-1, keepdim=True) if self.centred else scaled
        return scaled, _dot(gradient, self.shift)


@dataclass(frozen=True)
class LinearisedBlock:
    """One block as a linear map on the parts of the residual stream at positions 0..n-1.

    Weights are read from the model at every call, and widened to float32 where they are narrower.
    """

    model: Network
    index: int
    dtype: torch.dtype
    pattern: Tensor
    """(n_heads, n, n)"""
    norm1: LinearisedNorm
    norm2: LinearisedNorm | None
    after1: LinearisedNorm | None
    """Norm of the attention output, if the model has one."""
    after2: LinearisedNorm | None
    slope: Tensor | None
    """(n, d_mlp) what each neuron's input (for gated ones: the linear branch) is multiplied by; None without an MLP."""
    bias_outside: bool
    """Whether b_in is added after multiplying by the slope."""

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        return self.model.last_capabilities.parallel_layers[self.index]

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
    def _norm2(self) -> LinearisedNorm:
        return self.norm1 if self.norm2 is None else self.norm2

    def _weight(self, name: str, *, grouped: bool = False) -> Tensor:
        return self.model.last_weight(name, self.index, grouped=grouped).to(self.dtype)

    def _values(self) -> tuple[Tensor, Tensor]:
        """W_V (d_model, n_kv_heads * d_head) and b_V; shared heads once."""
        weight = rearrange(self._weight("W_V", grouped=True), "heads model size -> model (heads size)")
        return weight, self._weight("b_V", grouped=True).reshape(-1)

    def _out(self) -> Tensor:
        """W_O (n_heads * d_head, d_model)."""
        return rearrange(self._weight("W_O"), "heads size model -> (heads size) model")

    # ---- forward: parts

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """The parts after the block (rows, d_model), from those before it; ``x`` is overwritten."""
        written = self._write(self._attend(self.norm1.forward(x, rows), rows), rows)
        if self.parallel and self.slope is not None:
            x += self._mlp(self._norm2.forward(x, rows), rows)
            return x.add_(written)
        x += written
        return x if self.slope is None else x.add_(self._mlp(self._norm2.forward(x, rows), rows))

    def forward_last(self, stream: Tensor, mixed: Tensor, *, bias: bool) -> Tensor:
        """The parts after the block at position n - 1 only, (parts, d_model).

        Args:
            stream: (parts, d_model) parts before the block at that position.
            mixed: (heads, parts, d_model) what each head reads there of the normed parts.
            bias: whether the first part collects the biases.
        """
        values = mixed @ self._weight("W_V")
        if bias:
            values[:, 0] += self.pattern[:, -1].to(self.dtype).sum(-1, keepdim=True) * self._weight("b_V")
        rows = Rows.together(len(stream), slice(self._length - 1, self._length), bias=bias)
        written = self._write(values.transpose(0, 1).flatten(1), rows)
        mid = stream if self.parallel else stream + written
        out = mid if self.slope is None else mid + self._mlp(self._norm2.forward(mid, rows), rows)
        return out + written if self.parallel else out

    def read(self, x: Tensor, rows: Rows) -> Tensor:
        """(heads, parts, d_model) what each head reads at position n - 1 of the normed parts ``x``."""
        return self.sums(self.norm1.forward(x, rows), rows, self.pattern[:, -1].to(self.dtype))

    def reading(self) -> Tensor:
        """(heads, n) how much of each position's unscaled norm the last one reads; for a `separable` layer."""
        return self.pattern[:, -1].to(self.dtype) / self.norm1.scale[:, 0]

    @staticmethod
    def sums(x: Tensor, rows: Rows, weights: Tensor) -> Tensor:
        """(heads, parts, width) sums of ``x`` (rows, width) over each part's positions, with weights (heads, n)."""
        sums = x.new_empty(len(rows.pieces), len(weights), x.shape[-1])
        for index, (part, positions) in enumerate(rows.pieces):
            torch.mm(weights[:, positions], x[part], out=sums[index])
        return sums.transpose(0, 1)

    def forward_own(self, start: Tensor, begin: int, rows: Rows) -> Tensor:
        """`forward` (without biases) for the first block, where a source is at its own position only.

        Attention spreads one vector per head over the later positions, so that the products with W_V, W_O and W_in are
        done once per source and head. The layer must be `separable`.

        Args:
            start: (sources, d_model) the stream at the positions of the sources.
            begin: position of the first source.
            rows: those of the sources.
        """
        sources, width = start.shape
        own = Rows.together(sources, slice(begin, begin + sources))
        values = self.norm1.forward(start, own) @ self._weight("W_V", grouped=True)
        heads = (values.repeat_interleave(self._share, 0) @ self._weight("W_O")).transpose(0, 1).contiguous()
        pattern = self.pattern[:, :, begin : begin + sources].to(self.dtype)
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
            x[firsts] += self._mlp(self._norm2.forward(start, own), own)
            return x
        w_in, norm = self._weight("W_in"), self._norm2
        before = (norm.unscaled(heads.flatten(0, 1)) @ w_in).view(sources, -1, w_in.shape[1])
        hidden = spread(before, start.new_empty(rows.count, w_in.shape[1]))
        hidden[firsts] += norm.unscaled(start) @ w_in
        return x.addmm_(_times(hidden, rows, self.slope / norm.scale), self._weight("W_out"))

    def forward_mixed(self, x: Tensor, rows: Rows, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The parts after the block at position n - 1, (parts, d_model), and their `sums` with ``weights`` (heads, n).

        This is all that the last block needs, without the product with W_out at every position. ``x`` is overwritten.
        The layer must be `separable` and have an MLP.
        """
        written = self._write(self._attend(self.norm1.forward(x, rows), rows), rows)
        inside = self._norm2.forward(x, rows) if self.parallel else None
        mid = x.add_(written)
        hidden = self._hidden(self._norm2.forward(mid, rows) if inside is None else inside, rows)
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
        """(rows, n_heads * d_head) the heads' outputs z for their normed input."""
        heads, groups, size = self.model.n_heads, self.model.n_kv_heads, self.model.d_head
        weight, constant = self._values()
        values = inside @ weight
        if rows.bias is not None:
            values[rows.bias] += constant
        pattern = self.pattern.to(self.dtype)
        read = inside.new_empty(len(inside), heads * size)
        for part, positions in rows.pieces:
            columns = values[part].view(-1, groups, size).transpose(0, 1)
            columns = columns if self._share == 1 else columns.repeat_interleave(self._share, 0)
            mixed = pattern[:, positions, positions] @ columns
            read[part].view(-1, heads, size).copy_(mixed.transpose(0, 1))
        return read

    def _write(self, read: Tensor, rows: Rows) -> Tensor:
        """(rows, d_model) the attention output."""
        written = read @ self._out()
        if rows.bias is not None:
            written[rows.bias] += self._weight("b_O")
        return written if self.after1 is None else self.after1.forward(written, rows)

    def _hidden(self, inside: Tensor, rows: Rows) -> Tensor:
        """(rows, d_mlp) the MLP's hidden activations for its normed input."""
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
        """(rows, d_model) the MLP output."""
        written = self._hidden(inside, rows) @ self._weight("W_out")
        if rows.bias is not None:
            written[rows.bias] += self._weight("b_out")
        return written if self.after2 is None else self.after2.forward(written, rows)

    # ---- backward: one gradient per position

    def backward(self, gradient: Tensor, *, last: bool = False) -> tuple[Tensor, Tensor]:
        """The gradient before the block (n, d_model), and the contribution of the block's biases.

        Args:
            gradient: (n, d_model) after the block; with ``last`` (1, d_model), at position n - 1 only.
        """
        positions = slice(self._length - 1 if last else 0, self._length)
        middle, stream, added = gradient, gradient, _zero(gradient)
        if self.slope is not None:
            through, added = self._backward_mlp(self.slope[positions], gradient, positions)
            stream = gradient + through
            middle = gradient if self.parallel else stream
        before, more = self._backward_attention(middle, positions)
        before[positions] += stream
        return before, added + more

    def _backward_mlp(self, slope: Tensor, gradient: Tensor, positions: slice) -> tuple[Tensor, Tensor]:
        written, added = (
            (gradient, _zero(gradient)) if self.after2 is None else self.after2.backward(gradient, positions)
        )
        hidden = written @ self._weight("W_out").T
        added = added + _dot(written, self._weight("b_out"))
        if self.bias_outside:
            added = added + _dot(hidden, self._weight("b_in"))
        hidden *= slope
        if not self.bias_outside:
            added = added + _dot(hidden, self._weight("b_in"))
        before, more = self._norm2.backward(hidden @ self._weight("W_in").T, positions)
        return before, added + more

    def _backward_attention(self, gradient: Tensor, positions: slice) -> tuple[Tensor, Tensor]:
        written, added = (
            (gradient, _zero(gradient)) if self.after1 is None else self.after1.backward(gradient, positions)
        )
        groups, size = self.model.n_kv_heads, self.model.d_head
        weight, constant = self._values()
        added = added + _dot(written, self._weight("b_O"))
        read = (written @ self._out().T).view(len(written), groups, -1, size).permute(1, 2, 0, 3)
        pattern = self.pattern[:, positions].to(self.dtype)
        values = pattern.reshape(groups, -1, self._length).mT @ read.reshape(groups, -1, size)
        flat = values.transpose(0, 1).reshape(self._length, -1)
        before, more = self.norm1.backward(flat @ weight.T, slice(None))
        return before, added + _dot(flat, constant) + more


def _times(x: Tensor, rows: Rows, table: Tensor) -> Tensor:
    """``x`` (rows, width), every row multiplied by its position's row of ``table`` (n, width); in place."""
    for part, positions in rows.pieces:
        x[part] *= table[positions]
    return x


def rounds_norms(model: Network) -> bool:
    """Whether norms compute in a narrower dtype than the model, as transformers' RMSNorm in a float64 model does."""
    return model.precision != model.dtype


def rounded_gain(gain: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """(n, d_model) output over input of such a norm; ``gain`` itself where the input is next to nothing."""
    tiny = before.abs() < 1e-6 * before.abs().amax(-1, keepdim=True)
    ratio = after / torch.where(tiny, torch.ones_like(before), before)
    return torch.where(tiny | ((ratio - gain).abs() > 1e-3 * gain.abs()), gain, ratio)


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=accumulation_dtype(like.device), device=like.device)


def _dot(rows: Tensor, bias: Tensor) -> Tensor:
    """() the sum over rows of their product with one bias, in the device's widest dtype, without synchronising."""
    kind = accumulation_dtype(rows.device)
    return rows.sum(0, dtype=kind) @ bias.to(kind)


# ---- a whole pass


@dataclass(frozen=True)
class LinearisedPass:
    """The linear map of one sequence up to one position, n tokens in all; made by `linearise`."""

    layers: tuple[LinearisedBlock, ...]
    start: Tensor
    """(n, d_model) the first residual stream: token embeddings and what learned positions add."""
    residual: Tensor
    """(layers + 1, d_model) the model's own residual stream at position n - 1, before every block and at the end."""

    @torch.no_grad()
    def parts(self, begin: int, stop: int, *, bias: bool = False) -> Tensor:
        """(layers + 1, sources, d_model) parts of the stream at position n - 1 due to the sources begin..stop.

        With ``bias`` the biases are the first source. Unneeded work is skipped: positions before a source, all
        positions but one in the last block, and in the first and second-to-last blocks products that can be done once
        for all positions.
        """
        n, last = len(self.start), self.layers[-1]
        rows = Rows.spread(n, begin, stop, bias=bias)
        parts = self.start.new_zeros(len(self.layers) + 1, bias + stop - begin, self.start.shape[1])
        if stop == n:
            parts[0, -1] = self.start[-1]
        ends = torch.tensor([part.stop - 1 for part, _ in rows.pieces], device=parts.device)
        x, mixed = self._enter(begin, stop, rows), None
        for index, layer in enumerate(self.layers[:-1]):
            stop_point()
            if index == 0 and layer.separable:
                x = self._first(layer, x, begin, stop, bias)
            elif index == len(self.layers) - 2 and layer.slope is not None and layer.separable and last.separable:
                parts[index + 1], mixed = layer.forward_mixed(x, rows, last.reading())
                continue
            else:
                x = layer.forward(x, rows)
            parts[index + 1] = x[ends]
        if mixed is None:
            read = last.read(x, rows)
        else:
            read = last.norm1.unscaled(mixed)
            if bias:
                read[:, 0] += last.pattern[:, -1].to(read.dtype).sum(-1, keepdim=True) * last.norm1.shift
        parts[-1] = last.forward_last(parts[-2], read, bias=bias)
        return parts

    def _enter(self, begin: int, stop: int, rows: Rows) -> Tensor:
        """(rows, d_model) the parts before the first block: every source at its own position only."""
        x = self.start.new_zeros(rows.count, self.start.shape[1])
        firsts = [part.start for part, _ in rows.pieces]
        x[firsts[len(firsts) - (stop - begin) :]] = self.start[begin:stop]
        return x

    def _first(self, layer: LinearisedBlock, x: Tensor, begin: int, stop: int, bias: bool) -> Tensor:
        n = len(self.start)
        behind = layer.forward_own(self.start[begin:stop], begin, Rows.spread(n, begin, stop, bias=False))
        return torch.cat([layer.forward(x[:n], Rows.spread(n, 0, 0, bias=True)), behind]) if bias else behind

    @torch.no_grad()
    def gradient(self, direction: Tensor) -> tuple[Tensor, float]:
        """The gradient at `start` (n, d_model) of the stream after the last block along ``direction`` (d_model,), and
        the contribution of all layers' biases."""
        gradient, added = direction[None], _zero(direction)
        for layer in reversed(self.layers):
            stop_point()
            gradient, more = layer.backward(gradient, last=layer is self.layers[-1])
            added = added + more
        return gradient, float(added)


# ---- reading it at hooks


@torch.no_grad()
def linearise(model: Network, ids: Sequence[int], last: int, *, slope: ActivationSlope = "secant") -> LinearisedPass:
    """Run the model once and linearise the pass up to position ``last`` (n = last + 1 positions).

    No logits are computed. While the user has hooks on the model the whole sequence runs, so that they see a normal
    pass.

    Args:
        model: a `Model`.
        ids: token ids of the sequence.
        last: the position to explain.
        slope: an `ActivationSlope`.

    Raises:
        ValueError: an unknown slope, or a model without the hooks that this needs.
    """
    if slope not in get_args(ActivationSlope):
        raise ValueError(f"slope must be one of {', '.join(map(repr, get_args(ActivationSlope)))}, got {slope!r}")
    hooked = has_hooks(model.tl_model)
    batch = model._batch(ids if hooked else ids[: last + 1])
    n, layers = last + 1, model.n_layers
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    known = frozenset(model.tl_model.hook_dict)  # a bridge builds this table at every access
    readers = [_BlockReader(model, index, n, slope, dtype, known) for index in range(layers)]
    residual = torch.empty(layers + 1, model.d_model, dtype=dtype, device=model.device)
    start: list[Tensor] = []

    def keep(layer: int) -> Callable[..., Tensor]:
        def write(value: Tensor, hook: Any) -> Tensor:
            residual[layer] = value[0, last]
            if layer == 0:
                start[:] = [value[0, :n].to(dtype, copy=True)]
            else:
                drop_pattern(model.tl_model.blocks[layer - 1])
            return value

        return write

    hooks = [hook for reader in readers for hook in reader.hooks()]
    hooks += [(site_hook("resid", layer, layers), keep(layer)) for layer in range(layers + 1)]
    check_hook_names(model.tl_model, [name for name, _ in hooks])
    run_blocks(model, batch, hooks, whole=hooked)
    return LinearisedPass(tuple(reader.layer() for reader in readers), start[0], residual)


class _BlockReader:
    """Hooks that collect the fixed values of one layer."""

    def __init__(
        self, model: Network, index: int, n: int, slope: ActivationSlope, dtype: torch.dtype, known: Set[str]
    ) -> None:
        self.model, self.index, self.n, self.dtype = model, index, n, dtype
        self.rule: ActivationSlope = slope
        self.seen: dict[str, Tensor] = {}
        prefix = f"blocks.{index}."
        self.has_mlp = f"{prefix}mlp.hook_post" in known
        self.gated = f"{prefix}mlp.hook_pre_linear" in known
        self.norms = [name for name in ("ln1", "ln2", "ln1_post", "ln2_post") if f"{prefix}{name}.hook_scale" in known]
        self.rounded = rounds_norms(model)

    def hooks(self) -> list[tuple[str, Callable[..., Tensor]]]:
        names = [f"{norm}.hook_scale" for norm in self.norms] + ["attn.hook_pattern"]
        if self.has_mlp:
            names += ["mlp.hook_pre", "mlp.hook_post", *(["mlp.hook_pre_linear"] if self.gated else [])]
        if self.rounded:
            names += [f"{norm}.{end}" for norm in self.norms for end in ("hook_in", "hook_out")]
        return [(f"blocks.{self.index}.{name}", self._hook(name)) for name in names]

    def _hook(self, name: str) -> Callable[..., Tensor]:
        def keep(value: Tensor, hook: Any) -> Tensor:
            if value.ndim < 3:
                raise ValueError(
                    f"layer {self.index} of {self.model.name} computes {name.split('.')[0]} without a batch axis, "
                    "which a linearised pass needs: use a model with standard transformer blocks"
                )
            shown = value[0, :, : self.n, : self.n] if name == "attn.hook_pattern" else value[0, : self.n]
            if name.endswith("hook_scale") and shown.ndim == 3:  # one copy per head, where the user split the inputs
                shown = shown[:, 0]
            if name == "mlp.hook_post":
                self.seen["slope"] = self._slope(shown)
            elif name.endswith("hook_out"):
                label = name.removesuffix(".hook_out")
                self.seen[f"{label}.factor"] = self._factor(label, self.seen.pop(f"{label}.hook_in"), shown)
            else:
                self.seen[name] = shown.detach().clone()
            return value

        return keep

    def _slope(self, post: Tensor) -> Tensor:
        """(n, d_mlp) what each neuron's input is multiplied by."""
        pre = self.seen.pop("mlp.hook_pre").to(self.dtype)
        value = post.detach().to(self.dtype, copy=True)  # becomes the slope
        if not self.gated:
            if self.rule == "step":
                return (pre > 0).to(self.dtype)
            return value.div_(pre).masked_fill_(_is_zero(pre), _slope_at_zero(self.model, self.index))
        linear = self.seen.pop("mlp.hook_pre_linear").to(self.dtype)
        if self.rule == "step":
            return pre * (pre > 0)
        if self.bias_outside:
            value -= self.model.last_weight("b_in", self.index).to(self.dtype)
        gate = _activation(self.model, self.index)(pre)
        return torch.where(_is_zero(linear), gate.to(self.dtype), value.div_(linear))

    @property
    def bias_outside(self) -> bool:
        # HookedTransformer adds b_in to the product of gate and linear branch, transformers to the linear branch
        return self.gated and self.model.backend == "hooked"

    def _factor(self, label: str, before: Tensor, after: Tensor) -> Tensor:
        """(n, d_model) output over input of an RMSNorm."""
        weight = self.model.last_weight(f"{label}_w", self.index).to(self.dtype)
        exact = weight / self.seen[f"{label}.hook_scale"].to(self.dtype)
        return rounded_gain(exact, before, after.to(self.dtype))

    def _norm(self, label: str) -> LinearisedNorm | None:
        if label not in self.norms or f"{label}.hook_scale" not in self.seen:  # none, or taken out of the block
            return None
        weight, shift = (self.model.last_weight(f"{label}_{part}", self.index).to(self.dtype) for part in "wb")
        scale = self.seen.pop(f"{label}.hook_scale").to(self.dtype)
        factor = self.seen.pop(f"{label}.factor", None)
        return LinearisedNorm(scale, weight, shift, self.model.normalization == "LayerNorm", factor)

    def layer(self) -> LinearisedBlock:
        norm1 = self._norm("ln1")
        if norm1 is None or "attn.hook_pattern" not in self.seen:
            missing = "attention pattern" if norm1 is not None else "norm before attention"
            raise ValueError(
                f"layer {self.index} of {self.model.name} shows no {missing} at its hooks, so that its attention "
                "cannot be held fixed: use a model with ordinary attention blocks"
            )
        return LinearisedBlock(
            self.model, self.index, self.dtype, self.seen.pop("attn.hook_pattern"), norm1, self._norm("ln2"),
            self._norm("ln1_post"), self._norm("ln2_post"), self.seen.pop("slope", None), self.bias_outside,
        )  # fmt: skip


def _is_zero(x: Tensor) -> Tensor:
    """Whether each number is too small to divide by."""
    return x.abs() < torch.finfo(x.dtype).tiny


def _activation(model: Network, index: int) -> Callable[[Tensor], Tensor]:
    own = getattr(model.tl_model.blocks[index].mlp, "act_fn", None)
    if callable(own):
        return own
    return transformerlens.part("resolve_activation_fn")(model.tl_model.cfg)


def _slope_at_zero(model: Network, index: int) -> float:
    """The activation's derivative at 0."""
    act = _activation(model, index)
    with torch.enable_grad():
        zero = torch.zeros(1, 1, model.d_mlp, requires_grad=True)
        (slope,) = torch.autograd.grad(act(zero).sum(), zero)
    return float(slope[0, 0, 0])
