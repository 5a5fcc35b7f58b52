"""The exact derivative of the plain equations at one sequence, applied to many directions at once.

Gates, attention patterns and norm scales are the same for all directions, so they are computed once; each layer's
derivative is then a few large products. `PlainSlopes.pull` goes from the output back to the embeddings (reverse mode),
`PlainSlopes.push` from the embeddings to the output (forward mode).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .plain import Attention, activation, attend, first_read, mlp_output, normed, start
from .read_slopes import NormSlope, ReadSlope

_QUERY_BLOCK = 64


@dataclass(frozen=True)
class _MlpSlope:
    """An MLP's derivative at one sequence: the slope of each neuron, and for gated ones its gate's value."""

    mlp: Any
    slope: Tensor
    gate: Tensor | None

    @staticmethod
    def of(mlp: Any, x: Tensor) -> _MlpSlope:
        gated = type(mlp).__name__ == "GatedMLP"
        before = (x @ mlp.W_gate if gated else F.linear(x, mlp.W_in.T, mlp.b_in)).detach().requires_grad_(True)
        with torch.enable_grad():
            after = activation(mlp, before)
            (slope,) = torch.autograd.grad(after.sum(), before)
        return _MlpSlope(mlp, slope * (x @ mlp.W_in), after.detach()) if gated else _MlpSlope(mlp, slope, None)

    def at(self, rows: slice | Tensor) -> _MlpSlope:
        return _MlpSlope(self.mlp, self.slope[rows], None if self.gate is None else self.gate[rows])

    def push(self, v: Tensor) -> Tensor:
        if self.gate is None:
            return (v @ self.mlp.W_in).mul_(self.slope) @ self.mlp.W_out
        inner = (v @ self.mlp.W_gate).mul_(self.slope)
        return inner.addcmul_(v @ self.mlp.W_in, self.gate) @ self.mlp.W_out

    def pull(self, v: Tensor) -> Tensor:
        inner = v @ self.mlp.W_out.T
        if self.gate is None:
            return inner.mul_(self.slope) @ self.mlp.W_in.T
        return (inner * self.slope) @ self.mlp.W_gate.T + inner.mul_(self.gate) @ self.mlp.W_in.T


@dataclass(frozen=True)
class _LayerSlope:
    """What the derivative of one layer needs to know about the sequence it is taken at."""

    block: Any
    norm1: NormSlope
    norm2: NormSlope
    mlp: _MlpSlope | None
    query: Tensor
    """(n_heads, positions, d_head), rotated."""
    key: Tensor
    value: Tensor
    mixed: Tensor
    """(n_heads, positions, d_head) what attention reads, before the output projection."""


class PlainSlopes:
    """The derivative of the hidden states at one sequence of token embeddings (1, tokens, d_model)."""

    def __init__(self, tl_model: Any, embeddings: Tensor) -> None:
        self.layers: list[_LayerSlope] = []
        with torch.no_grad():
            self._first_read = first_read(tl_model)
            stream, reads = start(tl_model, embeddings, 0), list[Tensor]()
            for index, block in enumerate(tl_model.blocks):
                if index >= self._first_read:
                    reads.append(stream)
                stream = self._add(block, stream)
            self._read = ReadSlope.of(tl_model, [*reads, stream])
            self.hidden = self._read.hidden
            """(1, tokens, d_model) what the unembedding reads at every position."""

    def _add(self, block: Any, stream: Tensor) -> Tensor:
        layer, every = Attention(block.attn), slice(stream.shape[1])
        query, key, value = layer.heads_first(F.linear(normed(block.ln1, stream), layer.w_in.T, layer.b_in))
        query, key = layer.rotate(query, every), layer.rotate(key, every)
        read = attend(layer, query, key, value, fused=True)
        after = stream + F.linear(read, layer.w_out.T, block.attn.b_O)
        mixed = read.view(read.shape[1], layer.heads, layer.size).transpose(0, 1)
        norm1, norm2, mlp = NormSlope.of(block.ln1, stream[0]), NormSlope.of(None, stream[0]), None
        if getattr(block, "mlp", None) is not None:
            inside = stream if block.cfg.parallel_attn_mlp else after
            norm2 = NormSlope.of(block.ln2, inside[0])
            normal = normed(block.ln2, inside)
            mlp = _MlpSlope.of(block.mlp, normal[0])
            after = after + mlp_output(block.mlp, normal)
        self.layers.append(_LayerSlope(block, norm1, norm2, mlp, query[0], key[0], value[0], mixed))
        return after

    # ---- reverse: from the output back to the embeddings

    def pull(self, seeds: Tensor, at: Tensor) -> Tensor:
        """(k, length, d_model) gradients at the embeddings up to the last position asked.

        Args:
            seeds: (k, d_model) gradient at the hidden state of one position per row.
            at: (k,) those positions.
        """
        length = int(at.max()) + 1
        *reads, last = self._read.pull(seeds, at)
        grad = self._pull_last(self.layers[-1], last, at, length)
        rows = torch.arange(len(at), device=at.device)
        for index in reversed(range(len(self.layers))):
            if index < len(self.layers) - 1:
                grad = self._pull(self.layers[index], grad, length)
            if index >= self._first_read:
                grad[rows, at] += reads[index - self._first_read]
        return grad

    @staticmethod
    def _pull_mlp(layer: _LayerSlope, grad: Tensor, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Gradient at the attention's output, and at the stream that enters the layer (attention left out)."""
        if layer.mlp is None:
            return grad, grad
        inside = layer.norm2.at(rows).pull(layer.mlp.at(rows).pull(grad))
        return (grad, grad + inside) if layer.block.cfg.parallel_attn_mlp else (inside := inside + grad, inside)

    def _pull_last(self, layer: _LayerSlope, grad: Tensor, at: Tensor, length: int) -> Tensor:
        """The last layer, where every row has a gradient at one position only: no product over all positions."""
        attention = Attention(layer.block.attn)
        heads, groups, rows = attention.heads, attention.kv_heads, len(at)
        out, stream = self._pull_mlp(layer, grad, at)
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
        d_key = attention.rotate(d_key, slice(length), back=True)
        total = attention.heads_last(d_key, d_value) @ torch.cat([weight_k, weight_v], dim=1).T
        d_query = attention.rotate(d_query, at, back=True)
        index = torch.arange(rows, device=at.device)
        total[index, at] += d_query.transpose(0, 1).reshape(rows, -1) @ weight_q.T
        total = layer.norm1.at(slice(length)).pull(total)
        total[index, at] += stream
        return total

    def _pull(self, layer: _LayerSlope, grad: Tensor, length: int) -> Tensor:
        attention = Attention(layer.block.attn)
        rows, heads, groups, size = len(grad), attention.heads, attention.kv_heads, attention.size
        out, stream = self._pull_mlp(layer, grad, slice(length))
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
            attention.rotate(d_query, slice(length), back=True),
            attention.rotate(d_key, slice(length), back=True),
        )
        total = attention.heads_last(d_query, d_key, d_value.flatten(0, 1).transpose(0, 1)) @ attention.w_in.T
        return layer.norm1.at(slice(length)).pull(total).add_(stream)

    # ---- forward: from the embeddings to the output

    def push(self, tangents: Tensor, at: Tensor, first: int) -> Tensor:
        """(k, tokens - first, d_model) change of the hidden states from position ``first`` on.

        Args:
            tangents: (k, d_model) change of the embedding of one position per row.
            at: (k,) those positions.
            first: index of the first hidden state asked for.
        """
        begin, total = int(at.min()), self.hidden.shape[1]
        tangent = tangents.new_zeros(len(at), total - begin, tangents.shape[-1])
        tangent[torch.arange(len(at), device=at.device), at - begin] = tangents
        seen, reads = max(first, begin), list[Tensor]()
        for index, layer in enumerate(self.layers):
            if index >= self._first_read:
                reads.append(tangent[:, seen - begin :])
            wanted = seen if layer is self.layers[-1] else begin
            tangent, begin = self._push(layer, tangent, begin, wanted), wanted
        out = self._read.push([*reads, tangent], begin)
        if begin > first:
            out = torch.cat([out.new_zeros(len(out), begin - first, out.shape[-1]), out], dim=1)
        return out

    def _push(self, layer: _LayerSlope, tangent: Tensor, begin: int, wanted: int) -> Tensor:
        """One layer for tangents at positions ``begin`` and after; the result starts at ``wanted``."""
        attention = Attention(layer.block.attn)
        rows, length, heads, groups, size = (
            len(tangent),
            tangent.shape[1],
            attention.heads,
            attention.kv_heads,
            attention.size,
        )
        share, total = heads // groups, begin + length
        moving = slice(begin, total)
        moved = layer.norm1.at(moving).push(tangent) @ attention.w_in
        d_query, d_key, d_value = attention.heads_first(moved)
        d_query, d_key = attention.rotate(d_query, moving), attention.rotate(d_key, moving)
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
        inside = stream if layer.block.cfg.parallel_attn_mlp else mid
        after = slice(wanted, None)
        return layer.mlp.at(after).push(layer.norm2.at(after).push(inside)).add_(mid)
