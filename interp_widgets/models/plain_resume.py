"""`resume` by the equations of `plain`: only what a patch can change is computed, all cells in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import plain
from .plain import Attention, attend, normed

if TYPE_CHECKING:
    from .resume import Patch, Trace

_FEW = 16
"""Positions up to which the keys and values before them are shared rather than copied: the scores are then smaller."""


def trace(model: Any, embeddings: Tensor, neurons: tuple[int, ...], hooked: bool) -> Trace:
    """See `resume.trace`."""
    from .resume import Trace

    tl_model, tokens = model.tl_model, embeddings.shape[1]
    stream = plain.start(tl_model, embeddings, 0)
    resid, projected = [], []
    parts: dict[str, list[Tensor]] = {"attn": [], "mlp": [], "head": [], "neuron": []}

    def keep(part: str, value: Tensor) -> Tensor:
        if part in parts:
            parts[part].append(value)
        return value

    kept = {}
    for index, block in enumerate(tl_model.blocks):
        resid.append(stream)
        layer = Attention(block.attn)
        query, key, value = layer.project(normed(block.ln1, stream), slice(0, tokens))
        projected.append((query, key, value))
        stream = plain.finish(block, layer, stream, attend(layer, query, key, value, True), keep)
        inner = parts["neuron"].pop() if parts["neuron"] else None
        if index in neurons and inner is not None:
            kept[index] = inner
    return Trace(
        way="plain",
        hooked=hooked,
        backend=model.backend,
        embeddings=embeddings,
        hidden=plain.read_streams(tl_model, [one[:, -1] for one in (*resid[plain.first_read(tl_model) :], stream)]),
        resid=(*resid, stream),
        attn=tuple(parts["attn"]),
        mlp=tuple(parts["mlp"]),
        head=tuple(value.unflatten(-1, (model.n_heads, model.d_head)) for value in parts["head"]),
        neuron=kept,
        projected=tuple(projected),
    )


@dataclass
class _Rows:
    """Few changed rows; all others are clean."""

    cell: Tensor
    at: Tensor
    values: Tensor
    """(n, d_model)"""


def run(model: Any, trace: Trace, patches: Sequence[Patch], sequence: Tensor, check: Callable[[], None]) -> Tensor:
    """(cells, d_model) what the unembedding reads; every cell has a patch that the last position can see."""
    walk = _Walk(model, trace, sequence, min(int(patch.at.min()) for patch in patches))
    start, reads = min(patch.layer for patch in patches), plain.first_read(model.tl_model)
    streams = [walk.last(layer) for layer in range(reads, start)]
    for layer in range(start, trace.n_layers):
        check()
        here = [patch for patch in patches if patch.layer == layer]
        walk.enter([patch for patch in here if patch.part == "resid"])
        if layer >= reads:
            streams.append(walk.last(layer))
        walk.step(layer, [patch for patch in here if patch.part != "resid"])
    walk.enter([patch for patch in patches if patch.layer == trace.n_layers])
    return plain.read_streams(model.tl_model, [*streams, walk.last(trace.n_layers)])


class _Walk:
    """The cells on their way through the layers.

    ``stream`` is None while nothing has changed, a few rows after the first patch, and whole (cells, rows, d_model)
    from position ``first`` on once an attention has carried a change to all later positions.
    """

    def __init__(self, model: Any, trace: Trace, sequence: Tensor, first: int) -> None:
        self.tl_model = model.tl_model
        self.trace = trace
        self.sequence = sequence
        self.first = first
        self.stream: Tensor | _Rows | None = None

    @property
    def count(self) -> int:
        return self.trace.tokens - self.first

    def clean(self, value: Tensor) -> Tensor:
        """(cells, ...) traced values (batch, ...) of each cell's sequence; without a copy where there is one."""
        if len(value) == 1:
            return value.expand(len(self.sequence), *value.shape[1:])
        return value.index_select(0, self.sequence)

    def step(self, layer: int, inside: Sequence[Patch]) -> None:
        """Through one block, with patches of its parts."""
        block = self.tl_model.blocks[layer]
        weights = Attention(block.attn)
        if self.stream is None:
            key = torch.cat([patch.cell * self.trace.tokens + patch.at for patch in inside]).unique()
            cell, at = key // self.trace.tokens, key % self.trace.tokens
            place = self.sequence[cell], at
            change = _changes(inside, lambda p: torch.searchsorted(key, p.cell * self.trace.tokens + p.at))
            mixed = self.trace.head[layer][place].flatten(-2)
            values = plain.finish(block, weights, self.trace.resid[layer][place], mixed, change)
            self.stream = _Rows(cell, at, values)
            return
        stream, mixed = self.attend(block, weights, layer)
        change = _changes(inside, lambda p: p.cell * self.count + p.at - self.first)
        self.stream = plain.finish(block, weights, stream, mixed, change)

    def enter(self, patches: Sequence[Patch]) -> None:
        """Put rows into the stream that enters a block."""
        for patch in patches:
            if self.stream is None:
                self.stream = _Rows(patch.cell, patch.at, patch.rows.to(self.trace.resid[0].dtype))
                continue
            whole = self.whole(patch.layer).clone()
            patch.put(whole, patch.cell, patch.at - self.first)
            self.stream = whole

    def whole(self, layer: int) -> Tensor:
        """(cells, rows, d_model) the stream entering a block, from position ``first`` on."""
        if isinstance(self.stream, Tensor):
            return self.stream
        found = self.clean(self.trace.resid[layer][:, self.first :]).clone()
        if self.stream is not None:
            found[self.stream.cell, self.stream.at - self.first] = self.stream.values
        return found

    def attend(self, block: Any, weights: Attention, layer: int) -> tuple[Tensor, Tensor]:
        """The stream and what its heads read, both (cells, rows, ...); of the last layer the last row only."""
        first, stream = self.first, self.whole(layer)
        clean = self.trace.projected[layer]
        if isinstance(self.stream, _Rows) and len(self.stream.at) < stream.shape[0] * stream.shape[1]:
            cell, at = self.stream.cell, self.stream.at
            rows = weights.project(normed(block.ln1, self.stream.values)[None], at)
            query, key, value = (self.clean(part[:, :, first:]).clone() for part in clean)
            for part, changed in zip((query, key, value), rows, strict=True):
                part[cell, :, at - first] = changed[0].transpose(0, 1)
        else:
            query, key, value = weights.project(normed(block.ln1, stream), slice(first, self.trace.tokens))
        if layer == self.trace.n_layers - 1:
            self.first = self.trace.tokens - 1
            query, stream = query[:, :, -1:], stream[:, -1:]
        before = tuple(part[:, :, :first] for part in clean[1:])
        if len(self.trace.embeddings) == 1 and first and query.shape[2] <= _FEW:
            return stream, attend_behind(weights, query, key, value, before)
        key, value = (torch.cat([self.clean(old), new], dim=2) for old, new in zip(before, (key, value), strict=True))
        return stream, attend(weights, query, key, value, True)

    def last(self, layer: int) -> Tensor:
        """(cells, d_model) the last row of the stream entering a block, or behind the last one."""
        if isinstance(self.stream, Tensor):
            return self.stream[:, -1]
        found = self.clean(self.trace.resid[layer][:, -1])
        if self.stream is None:
            return found
        here = self.stream.at == self.trace.tokens - 1
        return found.index_copy(0, self.stream.cell[here], self.stream.values[here])


def attend_behind(layer: Attention, query: Tensor, key: Tensor, value: Tensor, before: tuple[Tensor, ...]) -> Tensor:
    """What `plain.attend` gives for keys and values (cells, ...) behind earlier ones (1, ...) that all cells share.

    Those are not copied for every cell, which would take longer than all else where few positions are computed.
    """
    cells, _, length, size = query.shape
    total = before[0].shape[2] + key.shape[2]
    grouped = query.unflatten(1, (layer.kv_heads, -1)).flatten(2, 3)  # heads that share keys side by side
    together = grouped.transpose(0, 1).reshape(layer.kv_heads, -1, size)
    shared = (together @ before[0][0].mT).unflatten(1, (cells, -1)).transpose(0, 1)
    scores = torch.cat([shared, grouped @ key.mT], dim=-1).mul_(layer.scale).unflatten(2, (-1, length))
    if length > 1 or layer.window is not None:
        scores = scores.masked_fill(layer.hidden(slice(total - length, total), total, query.device), -torch.inf)
    wide = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else None
    pattern = scores.softmax(-1, dtype=wide).to(value.dtype).flatten(2, 3)
    old, new = pattern.split([total - key.shape[2], key.shape[2]], dim=-1)
    shared = old.transpose(0, 1).reshape(layer.kv_heads, -1, old.shape[-1]) @ before[1][0]
    mixed = shared.unflatten(1, (cells, -1)).transpose(0, 1) + new @ value
    mixed = mixed.unflatten(2, (-1, length)).flatten(1, 2)
    return mixed.transpose(1, 2).reshape(cells, length, -1)


def _changes(patches: Sequence[Patch], slot: Callable[[Patch], Tensor]) -> plain.Change:
    """Puts each patch's rows where its part passes; ``slot`` gives the row of each in a flat list of all rows."""
    by_part: dict[str, list[Patch]] = {}
    for patch in patches:
        by_part.setdefault(patch.part, []).append(patch)

    def change(part: str, value: Tensor) -> Tensor:
        if part not in by_part:
            return value
        new = value.clone()
        for patch in by_part[part]:
            flat = new.view(-1, new.shape[-1])
            if patch.index is not None:
                flat = flat.unflatten(-1, (-1, patch.rows.shape[-1]))
            patch.put(flat, slot(patch))
        return new

    return change
