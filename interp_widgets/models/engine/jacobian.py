"""The exact derivative of a pass at one sequence, applied to many directions at once.

Vector-Jacobian products (`vjp`) go from the output back to the embeddings, Jacobian-vector products (`jvp`) from the
embeddings to the output. By the equations, gates, attention patterns and norm scales are the same for all directions:
they are computed once, and each layer's derivative is a few large products. Other models go through autograd.
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

from ..mixture_of_depths.graft import mixture_in_force
from ..mixture_of_depths.mixture import mix
from .equations import Block, Equations, Mlp, Norm, Rotation
from .native import walk

__all__ = ["AutogradJacobian", "Jacobian", "NativeJacobian", "NoForwardMode"]

Encode = Callable[[Tensor, Tensor], Tensor]
"""Hidden states (batch, n, width) from token embeddings (batch, tokens, d_model) and positions (n,)."""

Frozen = Callable[[], AbstractContextManager[None]]
"""Makes a context in which no parameter asks for a gradient and nobody else uses the model."""


@runtime_checkable
class Jacobian(Protocol):
    """The derivative of the hidden states at one sequence, ready to be applied to many directions."""

    hidden: Tensor
    """(tokens - first, width) what `decode` turns into logits, from the first position asked."""

    def vjp(self, seeds: Tensor, at: Tensor) -> Tensor:
        """(k, length, d_model) gradients at the embeddings for seeds (k, width) at positions ``at`` (k,), one each;
        length is the last of these positions plus one."""
        ...

    def jvp(self, tangents: Tensor, at: Tensor) -> Tensor:
        """(k, tokens - first, width) change of the hidden states for changes (k, d_model) of the embeddings at
        positions ``at`` (k,), one each. Raises `NoForwardMode` where an operation has no such derivative."""
        ...


class NoForwardMode(RuntimeError):
    """Some operation of the model has no forward-mode derivative; reverse mode works."""


# ---- by the equations


@dataclass(frozen=True)
class NormJacobian:
    """A norm's derivative at one sequence: J = weight ∘ S with the symmetric S v = rstd (v - mean v - x̂ mean(x̂ v))."""

    scaled: Tensor | None
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
        if self.scaled is None or self.rstd is None:
            return self
        return NormJacobian(self.scaled[rows], self.rstd[rows], self.centred, self.weight)

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


@dataclass(frozen=True)
class ReadJacobian:
    """The derivative of what the unembedding reads at one sequence, by the streams that `Equations.read` takes."""

    hidden: Tensor
    """(1, tokens, d_model) what the unembedding reads."""
    norms: tuple[NormJacobian, ...]
    """Per route; one without a mixture."""
    gates: Tensor | None = None
    """(tokens, k) the routes' weights; None without a mixture."""
    members: tuple[Tensor, ...] = ()
    """Per route (tokens, d_model): what its norm gives."""
    router: Tensor | None = None
    """(d_model, k) where the weights depend on the first stream; None where they are fixed."""

    @staticmethod
    def of(equations: Equations, streams: Sequence[Tensor]) -> ReadJacobian:
        """From streams (1, tokens, d_model)."""
        mixture, norms = mixture_in_force(equations.network.tl_model), equations.read_norms()
        if mixture is None:
            return ReadJacobian(equations.read(streams), (NormJacobian.of(norms[0], streams[-1][0]),))
        with mixture.recording() as readings:
            hidden = equations.read(streams)
        gates, members = readings[0].gates, readings[0].members
        jacobians = tuple(NormJacobian.of(norm, stream[0]) for norm, stream in zip(norms, streams[1:], strict=True))
        router = mixture.router.to(gates.dtype) if mixture.only is None else None
        return ReadJacobian(hidden, jacobians, gates[0], tuple(member[0] for member in members), router)

    def vjp(self, seeds: Tensor, at: Tensor) -> list[Tensor]:
        """Per stream (k, d_model) the gradient for seeds (k, d_model) at one position ``at`` (k,) each."""
        norms = [norm.at(at) for norm in self.norms]
        if self.gates is None:
            return [norms[0].vjp(seeds)]
        gates = self.gates[at]
        parts = [norm.vjp((gates[:, [route]] * seeds).to(seeds.dtype)) for route, norm in enumerate(norms)]
        if self.router is None:
            return [torch.zeros_like(seeds), *parts]
        wanted = torch.stack([(seeds * member[at]).to(gates.dtype).sum(-1) for member in self.members], dim=-1)
        return [(_softmax_jacobian(gates, wanted) @ self.router.T).to(seeds.dtype), *parts]

    def jvp(self, tangents: Sequence[Tensor], first: int) -> Tensor:
        """(n, tokens - first, d_model) change, from each stream's (n, tokens - first, d_model) from ``first`` on."""
        rows = slice(first, None)
        norms = [norm.at(rows) for norm in self.norms]
        if self.gates is None:
            return norms[0].jvp(tangents[-1])
        gates = self.gates[rows]
        moved = [norm.jvp(tangent) for norm, tangent in zip(norms, tangents[1:], strict=True)]
        out = mix(gates, moved)
        if self.router is None:
            return out
        turned = _softmax_jacobian(gates, tangents[0].to(gates.dtype) @ self.router)
        return out + mix(turned, [member[rows] for member in self.members])


def _softmax_jacobian(gates: Tensor, change: Tensor) -> Tensor:
    """What a change of the scores does to the weights, and the other way round: the map is symmetric."""
    return gates * (change - (gates * change).sum(-1, keepdim=True))


_QUERY_BLOCK = 64


@dataclass(frozen=True)
class _MlpJacobian:
    """An MLP's derivative at one sequence: the slope of each neuron, and for gated ones its gate's value."""

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
        return _MlpJacobian(self.mlp, self.slope[rows], None if self.gate is None else self.gate[rows])

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
    """What the derivative of one layer needs to know about the sequence it is taken at."""

    block: Block
    rotation: Rotation | None
    norm1: NormJacobian
    norm2: NormJacobian
    mlp: _MlpJacobian | None
    query: Tensor
    """(n_heads, positions, d_head), rotated."""
    key: Tensor
    value: Tensor
    mixed: Tensor
    """(n_heads, positions, d_head) what attention reads, before the output projection."""

    @staticmethod
    def of(block: Block, rotation: Rotation | None, kept: Mapping[tuple[str, int], Tensor]) -> _BlockJacobian:
        """From what a walk saw at the sites of the block, batch 1."""
        layer = block.index
        stream = kept["resid", layer]
        norm1, norm2, mlp = NormJacobian.of(block.norm1, stream[0]), NormJacobian(None, None, False, None), None
        if block.mlp is not None:
            inside = stream if block.parallel else stream + kept["attn", layer]
            norm2 = NormJacobian.of(block.norm2, inside[0])
            mlp = _MlpJacobian.of(block.mlp, block.norm2(inside)[0])
        mixed = rearrange(kept["head", layer][0], "positions (heads size) -> heads positions size", heads=block.heads)
        query, key, value = (kept[site, layer][0] for site in ("query", "key", "value"))
        return _BlockJacobian(block, rotation, norm1, norm2, mlp, query, key, value, mixed)

    def turn(self, x: Tensor, rows: slice | Tensor, *, back: bool = False) -> Tensor:
        """Rotary position information of the positions ``rows`` put on (..., positions, d_head), or taken off."""
        return x if self.rotation is None else self.rotation.at(rows)(x, back=back)


class NativeJacobian:
    """The derivative of the hidden states from position ``first`` on, at one sequence of token embeddings
    (1, tokens, d_model), by the equations."""

    def __init__(self, equations: Equations, embeddings: Tensor, first: int) -> None:
        self._first, self._first_read = first, equations.first_read
        kept: dict[tuple[str, int], Tensor] = {}

        def at(site: str, layer: int, value: Tensor) -> Tensor:
            kept[site, layer] = value
            return value

        with torch.no_grad():
            blocks = equations.blocks()
            end = walk(equations, blocks, equations.start(embeddings.detach(), 0), 0, at=at)
            rotation = equations.rotation(embeddings.shape[1])
            self.layers = [_BlockJacobian.of(block, rotation, kept) for block in blocks]
            reads = [kept["resid", layer] for layer in range(self._first_read, len(blocks))]
            self._read = ReadJacobian.of(equations, [*reads, end])
        self.hidden = self._read.hidden[0, first:]
        """(tokens - first, d_model) what the unembedding reads."""

    # ---- reverse: from the output back to the embeddings

    @torch.no_grad()
    def vjp(self, seeds: Tensor, at: Tensor) -> Tensor:
        """(k, length, d_model) gradients at the embeddings up to the last position asked.

        Args:
            seeds: (k, d_model) gradient at the hidden state of one position per row.
            at: (k,) those positions.
        """
        length = int(at.max()) + 1
        *reads, last = self._read.vjp(seeds, at)
        grad = self._vjp_last(self.layers[-1], last, at, length)
        rows = torch.arange(len(at), device=at.device)
        for index in reversed(range(len(self.layers))):
            if index < len(self.layers) - 1:
                grad = self._vjp(self.layers[index], grad, length)
            if index >= self._first_read:
                grad[rows, at] += reads[index - self._first_read]
        return grad

    @staticmethod
    def _vjp_mlp(layer: _BlockJacobian, grad: Tensor, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Gradient at the attention's output, and at the stream that enters the layer (attention left out)."""
        if layer.mlp is None:
            return grad, grad
        inside = layer.norm2.at(rows).vjp(layer.mlp.at(rows).vjp(grad))
        return (grad, grad + inside) if layer.block.parallel else (inside := inside + grad, inside)

    def _vjp_last(self, layer: _BlockJacobian, grad: Tensor, at: Tensor, length: int) -> Tensor:
        """The last layer, where every row has a gradient at one position only: no product over all positions."""
        attention = layer.block
        heads, groups, rows = attention.heads, attention.kv_heads, len(at)
        out, stream = self._vjp_mlp(layer, grad, at)
        key, value = layer.key[:, :length], layer.value[:, :length]
        query = layer.query[:, at]
        masked = torch.arange(length, device=at.device)[None] > at[:, None]
        if attention.window is not None:
            masked |= torch.arange(length, device=at.device)[None] <= at[:, None] - attention.window
        scores = (query.unflatten(0, (groups, -1)).flatten(1, 2) @ key.mT).view(heads, rows, length) * attention.scale
        pattern = scores.masked_fill(masked, -torch.inf).softmax(-1)
        read = (out @ attention.w_out.T).view(rows, heads, -1).transpose(0, 1)
        slope = (read.unflatten(0, (groups, -1)).flatten(1, 2) @ value.mT).view(heads, rows, length)
        slope = (slope - (read * layer.mixed[:, at]).sum(-1, keepdim=True)).mul_(pattern).mul_(attention.scale)
        d_query = (slope.view(groups, -1, length) @ key).view(heads, rows, -1)
        # outer products per row: heads that share a key add up
        d_key = torch.einsum("grit,grid->igtd", slope.unflatten(0, (groups, -1)), query.unflatten(0, (groups, -1)))
        d_value = torch.einsum("grit,grid->igtd", pattern.unflatten(0, (groups, -1)), read.unflatten(0, (groups, -1)))
        wide = groups * attention.size
        weight_q, weight_k, weight_v = attention.w_in.split([heads * attention.size, wide, wide], dim=1)
        d_key = layer.turn(d_key, slice(length), back=True)
        total = attention.heads_last(d_key, d_value) @ torch.cat([weight_k, weight_v], dim=1).T
        d_query = layer.turn(d_query, at, back=True)
        index = torch.arange(rows, device=at.device)
        total[index, at] += d_query.transpose(0, 1).reshape(rows, -1) @ weight_q.T
        total = layer.norm1.at(slice(length)).vjp(total)
        total[index, at] += stream
        return total

    def _vjp(self, layer: _BlockJacobian, grad: Tensor, length: int) -> Tensor:
        attention = layer.block
        rows, heads, groups, size = len(grad), attention.heads, attention.kv_heads, attention.size
        out, stream = self._vjp_mlp(layer, grad, slice(length))
        read = (out @ attention.w_out.T).view(rows, length, heads, size).permute(2, 0, 1, 3)
        read = read.reshape(groups, -1, rows, length, size)
        share = heads // groups
        # keys and values collect from every block of queries: in float32 at least
        wide = torch.float32 if read.dtype in (torch.float16, torch.bfloat16) else read.dtype
        d_query = read.new_empty(groups, share, rows, length, size)
        d_key, d_value = (read.new_zeros(groups, 1, rows, length, size, dtype=wide) for _ in range(2))
        for first in range(0, length, _QUERY_BLOCK):
            here = slice(first, min(first + _QUERY_BLOCK, length))
            count = here.stop - first
            pattern = attention.pattern(layer.query[:, here], layer.key[:, : here.stop], here).to(read.dtype)
            pattern = pattern.unflatten(0, (groups, share))
            query = layer.query[:, here].unflatten(0, (groups, share))
            key, value = layer.key[:, : here.stop], layer.value[:, : here.stop]
            part = read[:, :, :, here]
            inner = (part * layer.mixed[:, here].unflatten(0, (groups, share))[:, :, None]).sum(-1, keepdim=True)
            slope = (part.reshape(groups, -1, size) @ value.mT).view(groups, share, rows, count, here.stop)
            slope = slope.sub_(inner).mul_(pattern[:, :, None])
            d_query[:, :, :, here] = (slope.view(groups, -1, here.stop) @ key).view(groups, share, rows, count, size)
            columns = part.permute(0, 1, 3, 2, 4).reshape(groups, share * count, rows * size)
            into = pattern.reshape(groups, share * count, -1).mT @ columns
            d_value[:, 0, :, : here.stop] += into.view(groups, here.stop, rows, size).transpose(1, 2)
            for head in range(share):
                many = query[:, head, None].expand(groups, rows, count, size)
                d_key[:, 0, :, : here.stop] += slope[:, head].mT @ many
        d_key, d_value = d_key.to(read.dtype), d_value.to(read.dtype)
        d_query, d_key = (x.flatten(0, 1).transpose(0, 1).mul(attention.scale) for x in (d_query, d_key))
        d_query, d_key = (
            layer.turn(d_query, slice(length), back=True),
            layer.turn(d_key, slice(length), back=True),
        )
        total = attention.heads_last(d_query, d_key, d_value.flatten(0, 1).transpose(0, 1)) @ attention.w_in.T
        return layer.norm1.at(slice(length)).vjp(total).add_(stream)

    # ---- forward: from the embeddings to the output

    @torch.no_grad()
    def jvp(self, tangents: Tensor, at: Tensor) -> Tensor:
        """(k, tokens - first, d_model) change of the hidden states from position ``first`` on.

        Args:
            tangents: (k, d_model) change of the embedding of one position per row.
            at: (k,) those positions.
        """
        first = self._first
        begin, total = int(at.min()), self._read.hidden.shape[1]
        tangent = tangents.new_zeros(len(at), total - begin, tangents.shape[-1])
        tangent[torch.arange(len(at), device=at.device), at - begin] = tangents
        seen, reads = max(first, begin), list[Tensor]()
        for index, layer in enumerate(self.layers):
            if index >= self._first_read:
                reads.append(tangent[:, seen - begin :])
            wanted = seen if layer is self.layers[-1] else begin
            tangent, begin = self._jvp(layer, tangent, begin, wanted), wanted
        out = self._read.jvp([*reads, tangent], begin)
        if begin > first:
            out = torch.cat([out.new_zeros(len(out), begin - first, out.shape[-1]), out], dim=1)
        return out

    def _jvp(self, layer: _BlockJacobian, tangent: Tensor, begin: int, wanted: int) -> Tensor:
        """One layer for tangents at positions ``begin`` and after; the result starts at ``wanted``."""
        attention = layer.block
        rows, length, heads, groups, size = (
            len(tangent),
            tangent.shape[1],
            attention.heads,
            attention.kv_heads,
            attention.size,
        )
        share, total = heads // groups, begin + length
        moving = slice(begin, total)
        moved = layer.norm1.at(moving).jvp(tangent) @ attention.w_in
        d_query, d_key, d_value = attention.heads_first(moved)
        d_query, d_key = layer.turn(d_query, moving), layer.turn(d_key, moving)
        d_query = d_query.transpose(0, 1).reshape(groups, share, rows, length, size)
        d_key, d_value = d_key.transpose(0, 1), d_value.transpose(0, 1)
        columns = d_value.permute(0, 2, 1, 3).reshape(groups, length, rows * size)
        read = tangent.new_empty(groups, share, rows, total - wanted, size)
        for first in range(wanted, total, _QUERY_BLOCK):
            here = slice(first, min(first + _QUERY_BLOCK, total))
            count, local = here.stop - first, slice(first - begin, here.stop - begin)
            pattern = attention.pattern(layer.query[:, here], layer.key[:, : here.stop], here).to(tangent.dtype)
            pattern = pattern.view(groups, share, count, here.stop)
            part = d_query[:, :, :, local].reshape(groups, -1, size)
            slope = (part @ layer.key[:, : here.stop].mT).view(groups, share, rows, count, here.stop)
            query = layer.query[:, here].unflatten(0, (groups, share))
            seen = d_key[:, :, : local.stop].mT
            for head in range(share):
                slope[:, head, :, :, begin:] += query[:, head, None] @ seen
            slope = slope.mul_(pattern[:, :, None]).mul_(attention.scale)
            change = (slope.view(groups, -1, here.stop) @ layer.value[:, : here.stop]).view(
                groups, share, rows, count, size
            )
            mixed = layer.mixed[:, here].unflatten(0, (groups, share))[:, :, None]
            change.addcmul_(slope.sum(-1, keepdim=True), mixed, value=-1)
            through = pattern[..., begin:].reshape(groups, share * count, -1) @ columns[:, : local.stop]
            change += through.view(groups, share, count, rows, size).transpose(2, 3)
            read[:, :, :, first - wanted : here.stop - wanted] = change
        stream = tangent[:, wanted - begin :]
        out = read.flatten(0, 1).permute(1, 2, 0, 3).reshape(rows, total - wanted, -1) @ attention.w_out
        mid = stream + out
        if layer.mlp is None:
            return mid
        inside = stream if layer.block.parallel else mid
        after = slice(wanted, None)
        return layer.mlp.at(after).jvp(layer.norm2.at(after).jvp(inside)).add_(mid)


# ---- through autograd


class AutogradJacobian:
    """The same through autograd, for any model: batched over directions where the operations allow, else one by one."""

    def __init__(self, encode: Encode, frozen: Frozen, embeddings: Tensor, first: int) -> None:
        self._encode, self._frozen, self._first = encode, frozen, first
        self._positions = torch.arange(first, embeddings.shape[1], device=embeddings.device)
        self._leaf = embeddings.detach().clone()
        with torch.no_grad():
            self.hidden = encode(self._leaf, self._positions)[0]
        self._graph: tuple[Tensor, Tensor] | None = None

    def vjp(self, seeds: Tensor, at: Tensor) -> Tensor:
        with torch.enable_grad(), self._frozen():
            if self._graph is None:
                leaf = self._leaf.clone().requires_grad_(True)
                self._graph = leaf, self._encode(leaf, self._positions)
            leaf, hidden = self._graph
            rows = torch.arange(len(at), device=at.device)
            chosen = hidden[0, at - self._first]
            spread = seeds.new_zeros(len(at), *chosen.shape)
            spread[rows, rows] = seeds
            length = int(at.max()) + 1
            try:
                (found,) = torch.autograd.grad(chosen, leaf, spread, retain_graph=True, is_grads_batched=True)
                return found[:, 0, :length]
            except RuntimeError as error:
                if not _is_batching_error(error):
                    raise
            each = [torch.autograd.grad(chosen, leaf, one, retain_graph=True)[0][0, :length] for one in spread]
            return torch.stack(each)

    def jvp(self, tangents: Tensor, at: Tensor) -> Tensor:
        rows = torch.arange(len(at), device=at.device)
        spread = tangents.new_zeros(len(at), *self._leaf.shape)
        spread[rows, 0, at] = tangents

        def run(embeddings: Tensor) -> Tensor:
            return self._encode(embeddings, self._positions)[0]

        def one(tangent: Tensor) -> Tensor:
            result: Tensor = torch.func.jvp(run, (self._leaf,), (tangent,))[1]
            return result

        with torch.no_grad(), self._frozen():
            return _batched_or_each(one, spread)


def _batched_or_each(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    try:
        return torch.vmap(function)(rows)
    except (RuntimeError, NotImplementedError) as error:
        if _is_memory_error(error):
            raise
    try:
        return torch.stack([function(row) for row in rows])
    except (RuntimeError, NotImplementedError) as error:
        if _is_memory_error(error):
            raise
        # also where an operation cannot be part of functorch at all: a real fault shows in reverse mode again
        raise NoForwardMode(f"no forward-mode derivative: {str(error).splitlines()[0]}") from error


def _is_memory_error(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "memory" in str(error).lower()


def _is_batching_error(error: RuntimeError) -> bool:
    text = str(error).lower()
    return not _is_memory_error(error) and any(word in text for word in ("vmap", "batch", "functorch", "tensorwrapper"))
