"""Writing with a mixture of depths, layer by layer, so that layers which nobody needs are not computed.

A token's prediction needs the layers up to its last route with a weight. What lies above is left until a later token
needs it: then the positions that wait there are computed first, all at once, with their own residual streams. Keys and
values are therefore those of the whole computation, never estimates, and the logits are the same to rounding.

Only models that the equations of `plain` describe are written like this (`skips_layers`). A TransformerBridge computes
all layers: its passes start at the first layer (it has no ``start_at_layer``), so that a position which waits in front
of a layer could not go on from there.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from .. import plain
from ..compare import agree, probe_ids
from ..plain import Attention, KeysValues, attend, normed
from .graft import mixture_of
from .mixture import Mixture, mix

__all__ = ["EarlyExit", "skips_layers"]

_AGREES: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Whether the logits were those of the model's own pass, by TransformerLens model."""


class EarlyExit:
    """One sequence that is being written."""

    def __init__(self, tl_model: Any, mixture: Mixture, top_k: int) -> None:
        self.tl_model, self.mixture, self.top_k = tl_model, mixture, top_k
        # put together once: weights stay as they are while one text is written
        self._layers = [Attention(block.attn) for block in tl_model.blocks]
        self._past: list[KeysValues | None] = [None] * len(self._layers)
        self._waiting: list[list[Tensor]] = [[] for _ in self._layers]
        self.length = 0
        """Tokens fed."""
        self.exits: list[int] = []
        """Per call of `feed` the last layer that its prediction needed."""
        self.runs = 0
        """How many times a layer ran, each for all positions that waited."""

    @property
    def computed(self) -> list[int]:
        """Per layer at how many positions it was computed."""
        return [0 if past is None else past[0].shape[2] for past in self._past]

    @torch.no_grad()
    def feed(self, ids: Tensor) -> Tensor:
        """Logits (1, 1, d_vocab) after more tokens (1, n)."""
        stream = plain.start(self.tl_model, self.tl_model.embed(ids), self.length)
        self.length += ids.shape[1]
        self._waiting[0].append(stream)
        late = len(self._layers) - self.mixture.k
        for index in range(late):
            self._advance(index)
        weights = self.mixture.weigh(self._waiting[late][-1][:, -1:], self.top_k)
        used = (weights[0, 0] != 0).nonzero()[:, 0].tolist()  # a NaN goes on into the logits, where it is told
        members = []
        for route in range(used[-1] + 1):
            end = self._advance(late + route)
            if route in used:
                members.append(self._norm(route, end))
        self.exits.append(late + used[-1])
        return plain.decode(self.tl_model, mix(weights[..., used], members))

    def _norm(self, route: int, stream: Tensor) -> Tensor:
        norms = [*self.mixture.norms, self.tl_model.ln_final]
        return normed(norms[route], stream)

    def _advance(self, index: int) -> Tensor:
        """Compute a layer for all positions that wait in front of it; what it gives for the last of them."""
        block, layer = self.tl_model.blocks[index], self._layers[index]
        stream = torch.cat(self._waiting[index], dim=1)
        self._waiting[index] = []
        self.runs += 1
        past = self._past[index]
        first = 0 if past is None else past[0].shape[2]
        query, key, value = layer.project(normed(block.ln1, stream), slice(first, first + stream.shape[1]))
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        self._past[index] = key, value
        if index == len(self._layers) - 1:  # nothing reads the other positions' outputs
            query, stream = query[:, :, -1:], stream[:, -1:]
        stream = plain.finish(block, layer, stream, attend(layer, query, key, value, True))
        if index < len(self._layers) - 1:
            self._waiting[index + 1].append(stream)
        return stream[:, -1:]


def skips_layers(tl_model: Any) -> bool:
    """Whether a TransformerLens model has a mixture that `EarlyExit` can write with; compared on first use."""
    mixture = mixture_of(tl_model)
    if mixture is None or not plain.applies(tl_model):
        return False
    if tl_model not in _AGREES:
        _AGREES[tl_model] = _same_logits(tl_model, mixture)
    return _AGREES[tl_model]


@torch.no_grad()
def _same_logits(tl_model: Any, mixture: Mixture) -> bool:
    parameter = next(tl_model.parameters())
    ids = probe_ids(tl_model.cfg.d_vocab, tl_model.cfg.n_ctx).to(parameter.device)
    with mixture.dense():
        wanted = tl_model(ids)
    write = EarlyExit(tl_model, mixture, mixture.k)
    cut = ids.shape[1] // 2 + 1
    pieces = [ids[:, :cut], *ids[:, cut:].split(1, dim=1)]
    found = torch.cat([write.feed(piece) for piece in pieces], dim=1)
    return agree(found, wanted[:, cut - 1 :], parameter.dtype)
