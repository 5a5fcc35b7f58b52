"""Residual streams at one position of many sequences: no logits, no layer that nobody asks for.

Sequences of different lengths lie in one batch, padded behind their end, where a causal model cannot see it. A
beginning that several of them share is computed once and its keys and values reused. While the user has hooks on the
model, sequences of one length at a time run whole through the model's own modules instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import plain, ways
from .forward import checked_way, keeps_cache
from .hooks import attached
from .plain import Attention, KeysValues, attend, normed
from .readout import drop_pattern
from .ways import has_hooks

__all__ = ["Begun", "begin", "states", "whole_states"]


@dataclass(frozen=True)
class Begun:
    """Keys and values of beginnings of one length, for the sequences that go on from them."""

    way: str
    length: int
    """Tokens of every beginning."""
    layers: tuple[KeysValues, ...]
    """Per layer that is needed, each tensor with the beginnings on its first axis."""

    def rows(self, which: Tensor) -> Sequence[KeysValues]:
        """The keys and values that sequences go on from; ``which`` (batch,) numbers their beginnings."""
        return _Rows(self.layers, which)


@dataclass(frozen=True)
class _Rows(Sequence[KeysValues]):
    """Keys and values of a batch, copied for one layer at a time as they are read."""

    layers: tuple[KeysValues, ...]
    which: Tensor

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: Any) -> Any:
        key, value = self.layers[layer]
        return key[self.which], value[self.which]


@torch.no_grad()
def begin(model: Any, ids: Tensor, top: int) -> Begun | None:
    """Compute beginnings (beginnings, tokens) once, for streams up to the one entering layer ``top``.

    None where keys and values cannot be reused: the model has hooks, or a cache of its own kind; or no block runs.
    """
    if top == 0 or ids.shape[1] == 0:
        return None
    with model.lock:
        embeddings = _embeddings(model, ids)
        way = checked_way(model, embeddings)
        if has_hooks(model.tl_model) or not keeps_cache(model):
            return None
        made: list[KeysValues] = []
        if way == "plain":
            _plain(model.tl_model, embeddings, (top,), torch.zeros_like(ids[:, 0]), (), made)
        elif way == "blocks":
            _blocks(model.tl_model, embeddings, (top,), torch.zeros_like(ids[:, 0]), (), made)
        else:
            made = ways.bridge_cache(model.tl_model, embeddings)
        return Begun(way, ids.shape[1], tuple(made)) if made else None


@torch.no_grad()
def states(
    model: Any,
    ids: Tensor,
    last: Tensor,
    layers: Sequence[int],
    *,
    begun: Begun | None = None,
    which: Tensor | None = None,
) -> Tensor:
    """(batch, layers, d_model) residual streams entering ``layers`` (n_layers: the final norm) at position ``last``.

    Args:
        model: a `Model` without hooks.
        ids: (batch, tokens) token ids behind the beginning; what stands behind ``last`` may be anything.
        last: (batch,) the position that is read, counted in ``ids``.
        layers: rising numbers 0..n_layers.
        begun: beginnings that were computed before, and ``which`` (batch,) of them each sequence goes on from.

    Raises ValueError when hooks were put on the model since ``begun`` was computed.
    """
    with model.lock:
        embeddings = _embeddings(model, ids)
        way = checked_way(model, embeddings)
        if has_hooks(model.tl_model) or (begun is not None and begun.way != way):
            raise ValueError("hooks were put on the model while its hidden states were computed: run it again")
        past = () if begun is None or which is None else begun.rows(which)
        if way == "bridge":
            return _bridge(model, embeddings, layers, last, past)
        run = _plain if way == "plain" else _blocks
        return run(model.tl_model, embeddings, layers, last, past)


@torch.no_grad()
def whole_states(model: Any, ids: Tensor, layers: Sequence[int]) -> Tensor:
    """(batch, layers, d_model) the same at the last position of sequences of one length, for a model with hooks.

    The model's own modules run whole, so that every hook sees what it would always see.
    """
    names = [_name(model, layer) for layer in layers]
    found = model.run(ids, capture=names).activations
    return torch.stack([found[name][:, -1] for name in names], dim=1)


def _embeddings(model: Any, ids: Tensor) -> Tensor:
    embed = getattr(model.tl_model.embed, "original_component", model.tl_model.embed)
    found: Tensor = embed(ids)
    return found


def _name(model: Any, layer: int) -> str:
    end = layer == model.n_layers
    return f"blocks.{layer - end}.hook_resid_{'post' if end else 'pre'}"


# ---- the three ways


def _plain(
    tl_model: Any,
    embeddings: Tensor,
    layers: Sequence[int],
    last: Tensor,
    past: Sequence[KeysValues],
    made: list[KeysValues] | None = None,
) -> Tensor:
    """By the equations of `plain`; of the last block that is needed only one position is computed."""
    first = past[0][0].shape[2] if past else 0
    stream = plain.start(tl_model, embeddings, first)
    rows, top = torch.arange(len(stream), device=stream.device), layers[-1]
    found = []
    for index in range(top):
        if index in layers:
            found.append(stream[rows, last])
        block = tl_model.blocks[index]
        layer = Attention(block.attn)
        query, key, value = layer.project(normed(block.ln1, stream), slice(first, first + stream.shape[1]))
        if made is not None:
            made.append((key, value))
        if past:
            key, value = (torch.cat(parts, dim=2) for parts in zip(past[index], (key, value), strict=True))
        if index < top - 1:
            stream = plain.finish(block, layer, stream, attend(layer, query, key, value, True))
        else:
            mixed = _attend_one(layer, query[rows, :, last], key, value, first + last)
            stream, last = plain.finish(block, layer, stream[rows, last][:, None], mixed), torch.zeros_like(last)
    found.append(stream[rows, last])
    return torch.stack(found, dim=1)


def _attend_one(layer: Attention, query: Tensor, key: Tensor, value: Tensor, at: Tensor) -> Tensor:
    """(batch, 1, n_heads * d_head) what one query (batch, n_heads, d_head) at position ``at`` (batch,) reads."""
    column = torch.arange(key.shape[2], device=key.device)
    seen = column <= at[:, None]
    if layer.window is not None:
        seen &= column > at[:, None] - layer.window
    mixed = F.scaled_dot_product_attention(
        query[:, :, None], key, value,
        attn_mask=seen[:, None, None], scale=layer.scale, enable_gqa=layer.heads != layer.kv_heads,
    )  # fmt: skip
    return mixed.transpose(1, 2).flatten(2)


def _blocks(
    tl_model: Any,
    embeddings: Tensor,
    layers: Sequence[int],
    last: Tensor,
    past: Sequence[KeysValues],
    made: list[KeysValues] | None = None,
) -> Tensor:
    """Through TransformerLens' own blocks."""
    cfg = tl_model.cfg
    stream, short = ways.blocks_start(tl_model, embeddings, past[0][0].shape[1] if past else 0)
    rows, found = torch.arange(len(stream), device=stream.device), []
    for index in range(layers[-1]):
        if index in layers:
            found.append(stream[rows, last].to(embeddings.device))
        block = tl_model.blocks[index]
        stream = stream.to(next(block.parameters()).device)
        empty = stream.new_empty(len(stream), 0, cfg.n_key_value_heads or cfg.n_heads, cfg.d_head)
        entry: Any = None
        if past or made is not None:
            entry = ways.cache_entry(*(past[index] if past else (empty, empty)), frozen=made is None)
        stream = block(stream, past_kv_cache_entry=entry, shortformer_pos_embed=short)
        if made is not None and entry is not None:
            made.append((entry.past_keys, entry.past_values))
    found.append(stream[rows, last].to(embeddings.device))
    return torch.stack(found, dim=1)


class _Enough(Exception):
    """The last stream that is needed has been read."""


def _bridge(model: Any, embeddings: Tensor, layers: Sequence[int], last: Tensor, past: Sequence[KeysValues]) -> Tensor:
    """Through the transformers model in a bridge, left by an exception behind the last stream that is needed."""
    tl_model = model.tl_model
    rows, found = torch.arange(len(embeddings), device=embeddings.device), dict[int, Tensor]()

    def keep(layer: int) -> Callable[..., Tensor]:
        def read(value: Tensor, hook: Any) -> Tensor:
            found[layer] = value[rows, last].to(embeddings.device)
            if layer > 0:
                drop_pattern(tl_model.blocks[layer - 1])
            if layer == layers[-1]:
                raise _Enough
            return value

        return read

    options = ways.bridge_options(tl_model, len(embeddings), past)
    hooks = attached(tl_model, [(_name(model, layer), keep(layer)) for layer in layers])
    with contextlib.suppress(_Enough), hooks:
        tl_model.original_model(inputs_embeds=embeddings, **options)
    return torch.stack([found[layer] for layer in layers], dim=1)
