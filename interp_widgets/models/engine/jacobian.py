"""The exact derivative of a pass at one sequence or several, applied to many directions at once.

Vector-Jacobian products (`vjp`) go from the output back to the embeddings, Jacobian-vector products (`jvp`) from the
embeddings to the output. By the equations, gates, attention patterns and norm scales are the same for all directions:
they are computed once, and each layer's derivative is a few large products. Other models go through autograd.

The sequences at which a derivative is taken are its *points*, the first axis of every tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..memory import is_out_of_memory
from ..read_out import mix, read_out_in_force
from ..stopping import stop_point
from .equations import Block, Equations, Mlp, Norm, Rotation
from .native import walk

__all__ = ["AutogradJacobian", "Jacobian", "NativeJacobian", "NoForwardMode"]

Encode = Callable[[Tensor, Tensor], Tensor]
"""Hidden states (batch, n, width) from token embeddings (batch, tokens, d_model) and positions (n,)."""

Frozen = Callable[[], AbstractContextManager[None]]
"""Creates a context with exclusive use of the model, in which no parameter requires a gradient."""


Positions = range | Tensor
"""The position of each direction; on the CPU, to avoid synchronising with a device."""


@runtime_checkable
class Jacobian(Protocol):
    """The derivative of the hidden states at some points, ready to be applied to many directions at each."""

    hidden: Tensor
    """(points, tokens - first, width) the input of `decode`, from position ``first`` on."""

    def vjp(self, seeds: Tensor, at: Positions) -> Tensor:
        """(points, k, length, d_model) gradients at the embeddings for seeds (points, k, width) at positions ``at``
        (k,), one each; length is the last of these positions plus one."""
        ...

    def jvp(self, tangents: Tensor, at: Positions) -> Tensor:
        """(points, k, tokens - first, width) change of the hidden states for changes (points, k, d_model) of the
        embeddings at positions ``at`` (k,), one each. Raises `NoForwardMode` where an operation has no such
        derivative."""
        ...


def _on(device: torch.device, at: Positions) -> Tensor:
    return torch.arange(at.start, at.stop, at.step, device=device) if isinstance(at, range) else at.to(device)


def _bounds(at: Positions) -> tuple[int, int]:
    """The first of the positions, and one more than the last."""
    return (min(at), max(at) + 1) if isinstance(at, range) else (int(at.min()), int(at.max()) + 1)


class NoForwardMode(RuntimeError):
    """Some operation of the model has no forward-mode derivative; reverse mode works."""


# ---- by the equations


@dataclass(frozen=True)
class NormJacobian:
    """A norm's derivative at some points: J = weight ∘ S with the symmetric S v = rstd (v - mean v - x̂ mean(x̂ v))."""

    scaled: Tensor | None
    """(points, positions, d_model) x̂, or with an axis of directions behind the points."""
    rstd: Tensor | None
    centred: bool
    weight: Tensor | None

    @staticmethod
    def of(norm: Norm, x: Tensor) -> NormJacobian:
        if norm.kind == "none":
            return NormJacobian(None, None, False, None)
        centred = norm.kind == "LayerNorm"
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        wide = wide - wide.mean(-1, keepdim=True) if centred else wide
        rstd = (wide.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt()
        return NormJacobian((wide * rstd).to(x.dtype), rstd.to(x.dtype), centred, norm.weight)

    def at(self, rows: slice | Tensor) -> NormJacobian:
        """For directions at the same positions, a slice, or at one each (k,)."""
        if self.scaled is None or self.rstd is None:
            return self
        return NormJacobian(_at(self.scaled, rows), _at(self.rstd, rows), self.centred, self.weight)

    def _symmetric(self, v: Tensor) -> Tensor:
        if self.scaled is None or self.rstd is None:
            return v
        out = torch.addcmul(v, self.scaled, (v * self.scaled).mean(-1, keepdim=True), value=-1)
        return (out - v.mean(-1, keepdim=True) if self.centred else out).mul_(self.rstd)

    def jvp(self, v: Tensor) -> Tensor:
        out = self._symmetric(v)
        return out if self.weight is None else out * self.weight

    def vjp(self, v: Tensor) -> Tensor:
        return self._symmetric(v if self.weight is None else v * self.weight)


def _at(values: Tensor, rows: slice | Tensor) -> Tensor:
    """Of values (points, positions, ...): (points, 1, rows, ...) for a slice, (points, k, ...) for positions (k,)."""
    return values[:, None, rows] if isinstance(rows, slice) else values[:, rows]


@dataclass(frozen=True)
class ReadJacobian:
    """The derivative of the unembedding's input at some points, with respect to the streams of `Equations.read`."""

    hidden: Tensor
    """(points, tokens, d_model) the unembedding's input."""
    norms: tuple[NormJacobian, ...]
    """Per route; one without a mixture."""
    gates: Tensor | None = None
    """(points, tokens, k) the routes' weights; None without a mixture."""
    members: tuple[Tensor, ...] = ()
    """Per route (points, tokens, d_model): what its norm gives."""
    router: Tensor | None = None
    """(d_model, k) where the weights depend on the first stream; None where they are fixed."""

    @staticmethod
    def of(equations: Equations, streams: Sequence[Tensor]) -> ReadJacobian:
        """From streams (points, tokens, d_model)."""
        read_out, norms = read_out_in_force(equations.network.tl_model), equations.read_norms()
        if read_out is None:
            return ReadJacobian(equations.read(streams), (NormJacobian.of(norms[0], streams[-1]),))
        with read_out.recording() as readings:
            hidden = equations.read(streams)
        gates, members = readings[0].gates, readings[0].members
        jacobians = tuple(NormJacobian.of(norm, stream) for norm, stream in zip(norms, streams[1:], strict=True))
        weights = read_out.gate_weights
        router = None if weights is None else weights.to(gates.dtype)
        return ReadJacobian(hidden, jacobians, gates, tuple(members), router)

    def vjp(self, seeds: Tensor, at: Tensor) -> list[Tensor]:
        """Per stream (points, k, d_model) the gradient for seeds of that shape at one position ``at`` (k,) each."""
        norms = [norm.at(at) for norm in self.norms]
        if self.gates is None:
            return [norms[0].vjp(seeds)]
        gates = self.gates[:, at]
        parts = [norm.vjp((gates[..., [route]] * seeds).to(seeds.dtype)) for route, norm in enumerate(norms)]
        if self.router is None:
            return [torch.zeros_like(seeds), *parts]
        wanted = torch.stack([(seeds * member[:, at]).to(gates.dtype).sum(-1) for member in self.members], dim=-1)
        return [(_softmax_jacobian(gates, wanted) @ self.router.T).to(seeds.dtype), *parts]

    def jvp(self, tangents: Sequence[Tensor], first: int) -> Tensor:
        """(points, k, tokens - first, d_model) change, from each stream's of that shape from ``first`` on."""
        rows = slice(first, None)
        norms = [norm.at(rows) for norm in self.norms]
        if self.gates is None:
            return norms[0].jvp(tangents[-1])
        gates = _at(self.gates, rows)
        moved = [norm.jvp(tangent) for norm, tangent in zip(norms, tangents[1:], strict=True)]
        out = mix(gates, moved)
        if self.router is None:
            return out
        turned = _softmax_jacobian(gates, tangents[0].to(gates.dtype) @ self.router)
        return out + mix(turned, [_at(member, rows) for member in self.members])


def _softmax_jacobian(gates: Tensor, change: Tensor) -> Tensor:
    """The softmax's Jacobian applied to ``change``; it is symmetric, so this is both its jvp and its vjp."""
    return gates * (change - (gates * change).sum(-1, keepdim=True))


_QUERY_BLOCK = 64


@dataclass(frozen=True)
class _MlpJacobian:
    """An MLP's derivative at some points: the slope of each neuron, and for gated ones its gate's value."""

    mlp: Mlp
    slope: Tensor
    gate: Tensor | None

    @staticmethod
    def of(mlp: Mlp, x: Tensor) -> _MlpJacobian:
        gated = mlp.w_gate is not None
        weight, bias = (mlp.w_in, mlp.b_in) if mlp.w_gate is None else (mlp.w_gate, mlp.b_gate)
        before = F.linear(x, weight.T, bias).detach().requires_grad_(True)
        with torch.enable_grad():
            after = mlp.activation(before)
            (slope,) = torch.autograd.grad(after.sum(), before)
        if not gated:
            return _MlpJacobian(mlp, slope, None)
        linear = x @ mlp.w_in if mlp.bias_outside else F.linear(x, mlp.w_in.T, mlp.b_in)
        return _MlpJacobian(mlp, slope * linear, after.detach())

    def at(self, rows: slice | Tensor) -> _MlpJacobian:
        """For directions at the same positions, a slice, or at one each (k,)."""
        return _MlpJacobian(self.mlp, _at(self.slope, rows), None if self.gate is None else _at(self.gate, rows))

    def jvp(self, v: Tensor) -> Tensor:
        if self.gate is None or self.mlp.w_gate is None:
            return (v @ self.mlp.w_in).mul_(self.slope) @ self.mlp.w_out
        inner = (v @ self.mlp.w_gate).mul_(self.slope)
        return inner.addcmul_(v @ self.mlp.w_in, self.gate) @ self.mlp.w_out

    def vjp(self, v: Tensor) -> Tensor:
        inner = v @ self.mlp.w_out.T
        if self.gate is None or self.mlp.w_gate is None:
            return inner.mul_(self.slope) @ self.mlp.w_in.T
        return (inner * self.slope) @ self.mlp.w_gate.T + inner.mul_(self.gate) @ self.mlp.w_in.T


@dataclass(frozen=True)
class _BlockJacobian:
    """The values of one layer at some points that its derivative needs."""

    block: Block
    rotation: Rotation | None
    norm1: NormJacobian
    norm2: NormJacobian
    mlp: _MlpJacobian | None
    query: Tensor
    """(points, n_heads, positions, d_head), rotated."""
    key: Tensor
    value: Tensor
    z: Tensor
    """(points, n_heads, positions, d_head) the heads' outputs, before the output projection."""

    @staticmethod
    def of(block: Block, rotation: Rotation | None, kept: Mapping[tuple[str, int], Tensor]) -> _BlockJacobian:
        """From the values that `walk` saw at the block's sites."""
        layer = block.index
        stream = kept["resid", layer]
        norm1, norm2, mlp = NormJacobian.of(block.norm1, stream), NormJacobian(None, None, False, None), None
        if block.mlp is not None:
            inside = stream if block.parallel else stream + kept["attn", layer]
            norm2 = NormJacobian.of(block.norm2, inside)
            mlp = _MlpJacobian.of(block.mlp, block.norm2(inside))
        z = rearrange(
            kept["head", layer], "points positions (heads size) -> points heads positions size", heads=block.heads
        )
        query, key, value = (kept[site, layer] for site in ("query", "key", "value"))
        return _BlockJacobian(block, rotation, norm1, norm2, mlp, query, key, value, z)

    def rotation_at(self, rows: slice | Tensor) -> Rotation | None:
        """The rotation of some positions."""
        return None if self.rotation is None else self.rotation.at(rows)

    def unrotate(self, x: Tensor, rows: slice | Tensor) -> Tensor:
        """Undo the rotation of (..., positions, d_head) at the positions ``rows``."""
        return x if self.rotation is None else self.rotation.at(rows)(x, back=True)


class NativeJacobian:
    """The derivative of the hidden states from position ``first`` on, at sequences of token embeddings
    (points, tokens, d_model), by the equations."""

    def __init__(self, equations: Equations, embeddings: Tensor, first: int) -> None:
        self._first, self._first_read = first, equations.first_read
        kept: dict[tuple[str, int], Tensor] = {}

        def at(site: str, layer: int, value: Tensor) -> Tensor:
            kept[site, layer] = value
            return value

        with torch.no_grad():
            blocks = equations.blocks()
            rotation = equations.rotation(embeddings.shape[1])
            end = walk(equations, blocks, equations.start(embeddings.detach(), 0), 0, at=at, rotation=rotation)
            self.layers = [_BlockJacobian.of(block, rotation, kept) for block in blocks]
            reads = [kept["resid", layer] for layer in range(self._first_read, len(blocks))]
            self._read = ReadJacobian.of(equations, [*reads, end])
        self.hidden = self._read.hidden[:, first:]
        """(points, tokens - first, d_model) the unembedding's input."""

    # ---- reverse: from the output back to the embeddings

    @torch.no_grad()
    def vjp(self, seeds: Tensor, at: Positions) -> Tensor:
        """(points, k, length, d_model) gradients at the embeddings up to the last position asked.

        Args:
            seeds: (points, k, d_model) gradient at the hidden state of one position per direction.
            at: (k,) those positions.
        """
        length, at = _bounds(at)[1], _on(seeds.device, at)
        *reads, last = self._read.vjp(seeds, at)
        grad = self._vjp_last(self.layers[-1], last, at, length)
        rows = torch.arange(len(at), device=at.device)
        for index in reversed(range(len(self.layers))):
            stop_point()
            if index < len(self.layers) - 1:
                grad = self._vjp(self.layers[index], grad, length)
            if index >= self._first_read:
                grad[:, rows, at] += reads[index - self._first_read]
        return grad

    @staticmethod
    def _vjp_mlp(layer: _BlockJacobian, grad: Tensor, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Gradients at the attention output, and at the layer's input (without the path through attention)."""
        if layer.mlp is None:
            return grad, grad
        inside = layer.norm2.at(rows).vjp(layer.mlp.at(rows).vjp(grad))
        return (grad, grad + inside) if layer.block.parallel else (inside := inside + grad, inside)

    def _vjp_last(self, layer: _BlockJacobian, grad: Tensor, at: Tensor, length: int) -> Tensor:
        """The last layer, where every row has a gradient at one position only: no product over all positions."""
        attention = layer.block
        heads, groups, rows, points = attention.heads, attention.kv_heads, len(at), len(grad)
        out, stream = self._vjp_mlp(layer, grad, at)
        key, value = layer.key[:, :, :length], layer.value[:, :, :length]
        query = layer.query[:, :, at]
        masked = torch.arange(length, device=at.device)[None] > at[:, None]
        if attention.window is not None:
            masked |= torch.arange(length, device=at.device)[None] <= at[:, None] - attention.window
        scores = (attention.grouped(query) @ key.mT).view(points, heads, rows, length) * attention.scale
        pattern = scores.masked_fill(masked, -torch.inf).softmax(-1)
        read = (out @ attention.w_out.T).view(points, rows, heads, -1).transpose(1, 2)
        slope = (attention.grouped(read) @ value.mT).view(points, heads, rows, length)
        slope = (slope - (read * layer.z[:, :, at]).sum(-1, keepdim=True)).mul_(pattern).mul_(attention.scale)
        d_query = (slope.view(points, groups, -1, length) @ key).view(points, heads, rows, -1)
        # outer products per row: heads that share a key add up
        outer = "pgrit,pgrid->pigtd"
        slope, pattern, query, read = (x.unflatten(1, (groups, -1)) for x in (slope, pattern, query, read))
        d_key = layer.unrotate(torch.einsum(outer, slope, query), slice(length))
        d_value = torch.einsum(outer, pattern, read)
        weight_q, weight_k, weight_v = attention.matrices
        total = attention.merge_heads(d_key) @ weight_k.T
        total += attention.merge_heads(d_value) @ weight_v.T
        index = torch.arange(rows, device=at.device)
        total[:, index, at] += attention.merge_heads(layer.unrotate(d_query, at)) @ weight_q.T
        total = layer.norm1.at(slice(length)).vjp(total)
        total[:, index, at] += stream
        return total

    def _vjp(self, layer: _BlockJacobian, grad: Tensor, length: int) -> Tensor:
        attention = layer.block
        points, rows, heads, groups, size = *grad.shape[:2], attention.heads, attention.kv_heads, attention.size
        out, stream = self._vjp_mlp(layer, grad, slice(length))
        share = heads // groups
        read = (out @ attention.w_out.T).view(points, rows, length, groups, share, size).permute(0, 3, 4, 1, 2, 5)
        # keys and values collect from every block of queries: in float32 at least
        wide = torch.float32 if read.dtype in (torch.float16, torch.bfloat16) else read.dtype
        d_query = read.new_empty(points, groups, share, rows, length, size)
        d_key, d_value = (read.new_zeros(points, groups, rows, length, size, dtype=wide) for _ in range(2))
        for first in range(0, length, _QUERY_BLOCK):
            here = slice(first, min(first + _QUERY_BLOCK, length))
            count = here.stop - first
            key, value = layer.key[:, :, : here.stop], layer.value[:, :, : here.stop]
            pattern = attention.pattern(layer.query[:, :, here], key, here).to(read.dtype)
            pattern = pattern.unflatten(1, (groups, share))
            query = layer.query[:, :, here].unflatten(1, (groups, share))
            part = read[:, :, :, :, here]
            inner = (part * layer.z[:, :, here].unflatten(1, (groups, share))[:, :, :, None]).sum(-1, keepdim=True)
            slope = part.reshape(points, groups, -1, size) @ value.mT
            slope = slope.view(points, groups, share, rows, count, here.stop).sub_(inner).mul_(pattern[:, :, :, None])
            moved = slope.view(points, groups, -1, here.stop) @ key
            d_query[:, :, :, :, here] = moved.view(points, groups, share, rows, count, size)
            columns = part.permute(0, 1, 2, 4, 3, 5).reshape(points, groups, share * count, rows * size)
            into = pattern.reshape(points, groups, share * count, -1).mT @ columns
            d_value[:, :, :, : here.stop] += into.view(points, groups, here.stop, rows, size).transpose(2, 3)
            for head in range(share):
                many = query[:, :, head, None].expand(points, groups, rows, count, size)
                d_key[:, :, :, : here.stop] += slope[:, :, head].mT @ many
        d_query = d_query.flatten(1, 2).transpose(1, 2).mul(attention.scale)
        d_key = d_key.to(read.dtype).transpose(1, 2).mul(attention.scale)
        d_value = d_value.to(read.dtype).transpose(1, 2)
        d_query, d_key = (layer.unrotate(x, slice(length)) for x in (d_query, d_key))
        parts = [attention.merge_heads(x).flatten(0, -2) for x in (d_query, d_key, d_value)]
        total = parts[0] @ attention.matrices[0].T
        for x, weight in zip(parts[1:], attention.matrices[1:], strict=True):
            total.addmm_(x, weight.T)
        return layer.norm1.at(slice(length)).vjp(total.view(points, rows, length, -1)).add_(stream)

    # ---- forward: from the embeddings to the output

    @torch.no_grad()
    def jvp(self, tangents: Tensor, at: Positions) -> Tensor:
        """(points, k, tokens - first, d_model) change of the hidden states from position ``first`` on.

        Args:
            tangents: (points, k, d_model) change of the embedding of one position per direction.
            at: (k,) those positions.
        """
        first, begin = self._first, _bounds(at)[0]
        at, total = _on(tangents.device, at), self._read.hidden.shape[1]
        tangent = tangents.new_zeros(*tangents.shape[:2], total - begin, tangents.shape[-1])
        tangent[:, torch.arange(len(at), device=at.device), at - begin] = tangents
        seen, reads = max(first, begin), list[Tensor]()
        for index, layer in enumerate(self.layers):
            stop_point()
            if index >= self._first_read:
                reads.append(tangent[:, :, seen - begin :])
            wanted = seen if layer is self.layers[-1] else begin
            tangent, begin = self._jvp(layer, tangent, begin, wanted), wanted
        out = self._read.jvp([*reads, tangent], begin)
        if begin > first:
            out = torch.cat([out.new_zeros(*out.shape[:2], begin - first, out.shape[-1]), out], dim=2)
        return out

    def _jvp(self, layer: _BlockJacobian, tangent: Tensor, begin: int, wanted: int) -> Tensor:
        """One layer for tangents at positions ``begin`` and after; the result starts at ``wanted``."""
        attention = layer.block
        points, rows, length, _ = tangent.shape
        heads, groups, size = attention.heads, attention.kv_heads, attention.size
        share, total = heads // groups, begin + length
        moving = slice(begin, total)
        change = layer.norm1.at(moving).jvp(tangent)
        d_query, d_key, d_value = attention.project_change(change, layer.rotation_at(moving))
        d_query = d_query.transpose(1, 2).reshape(points, groups, share, rows, length, size)
        d_key, d_value = d_key.transpose(1, 2), d_value.transpose(1, 2)
        columns = d_value.permute(0, 1, 3, 2, 4).reshape(points, groups, length, rows * size)
        read = tangent.new_empty(points, groups, share, rows, total - wanted, size)
        for first in range(wanted, total, _QUERY_BLOCK):
            here = slice(first, min(first + _QUERY_BLOCK, total))
            count, local = here.stop - first, slice(first - begin, here.stop - begin)
            key, value = layer.key[:, :, : here.stop], layer.value[:, :, : here.stop]
            pattern = attention.pattern(layer.query[:, :, here], key, here).to(tangent.dtype)
            pattern = pattern.unflatten(1, (groups, share))
            part = d_query[:, :, :, :, local].reshape(points, groups, -1, size)
            slope = (part @ key.mT).view(points, groups, share, rows, count, here.stop)
            query = layer.query[:, :, here].unflatten(1, (groups, share))
            seen = d_key[:, :, :, : local.stop].mT
            for head in range(share):
                slope[:, :, head, :, :, begin:] += query[:, :, head, None] @ seen
            slope = slope.mul_(pattern[:, :, :, None]).mul_(attention.scale)
            moved = slope.view(points, groups, -1, here.stop) @ value
            moved = moved.view(points, groups, share, rows, count, size)
            z = layer.z[:, :, here].unflatten(1, (groups, share))[:, :, :, None]
            moved.addcmul_(slope.sum(-1, keepdim=True), z, value=-1)
            through = pattern[..., begin:].reshape(points, groups, share * count, -1) @ columns[:, :, : local.stop]
            moved += through.view(points, groups, share, count, rows, size).transpose(3, 4)
            read[:, :, :, :, first - wanted : here.stop - wanted] = moved
        stream = tangent[:, :, wanted - begin :]
        out = attention.merge_heads(read.flatten(1, 2).transpose(1, 2)) @ attention.w_out
        mid = stream + out
        if layer.mlp is None:
            return mid
        inside = stream if layer.block.parallel else mid
        after = slice(wanted, None)
        return layer.mlp.at(after).jvp(layer.norm2.at(after).jvp(inside)).add_(mid)


# ---- through autograd


class AutogradJacobian:
    """The linearised model's derivative through autograd, for any model.

    Batched over directions where the operations allow, else one by one.
    """

    def __init__(self, encode: Encode, frozen: Frozen, embeddings: Tensor, first: int) -> None:
        self._encode, self._frozen, self._first = encode, frozen, first
        self._positions = torch.arange(first, embeddings.shape[1], device=embeddings.device)
        self._leaf = embeddings.detach().clone()
        with torch.no_grad():
            self.hidden = encode(self._leaf, self._positions)
        self._graph: tuple[Tensor, Tensor] | None = None

    def vjp(self, seeds: Tensor, at: Positions) -> Tensor:
        length, at = _bounds(at)[1], _on(self._leaf.device, at)
        with torch.enable_grad(), self._frozen():
            if self._graph is None:
                leaf = self._leaf.clone().requires_grad_(True)
                self._graph = leaf, self._encode(leaf, self._positions)
            leaf, hidden = self._graph
            rows = torch.arange(len(at), device=at.device)
            chosen = hidden[:, at - self._first]
            spread = seeds.new_zeros(len(at), *chosen.shape)
            spread[rows, :, rows] = seeds.transpose(0, 1)
            return pulled_back(chosen, leaf, spread)[:, :, :length].transpose(0, 1)

    def jvp(self, tangents: Tensor, at: Positions) -> Tensor:
        at = _on(self._leaf.device, at)
        rows = torch.arange(len(at), device=at.device)
        spread = tangents.new_zeros(len(at), *self._leaf.shape)
        spread[rows, :, at] = tangents.transpose(0, 1)

        def run(embeddings: Tensor) -> Tensor:
            return self._encode(embeddings, self._positions)

        def one(tangent: Tensor) -> Tensor:
            result: Tensor = torch.func.jvp(run, (self._leaf,), (tangent,))[1]
            return result

        with torch.no_grad(), self._frozen():
            return _batched_or_each(one, spread).transpose(0, 1)


def pulled_back(output: Tensor, source: Tensor, rows: Tensor) -> Tensor:
    """(rows, *source.shape) the gradient at ``source`` of each row's product with ``output``, whose graph stays.

    Batched over the rows where the operations allow, else one by one.
    """
    try:
        (gradients,) = torch.autograd.grad(output, source, rows, retain_graph=True, is_grads_batched=True)
        return gradients
    except RuntimeError as error:
        if not _is_batching_error(error):
            raise
    return torch.stack([torch.autograd.grad(output, source, row, retain_graph=True)[0] for row in rows])


def _batched_or_each(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    try:
        return torch.vmap(function)(rows)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
    try:
        return torch.stack([function(row) for row in rows])
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        # also where an operation cannot be part of functorch at all: a real fault shows in reverse mode again
        raise NoForwardMode(f"no forward-mode derivative: {str(error).splitlines()[0]}") from error


def _is_batching_error(error: RuntimeError) -> bool:
    text = str(error).lower()
    return not is_out_of_memory(error) and any(word in text for word in ("vmap", "batch", "functorch", "tensorwrapper"))
