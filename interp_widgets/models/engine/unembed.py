"""Decode residual streams to logits: final norm, unembedding and logit soft cap, in blocks of the vocabulary.

The logits of every layer at every position are not kept in memory: they are computed in blocks of the vocabulary that
fit in the processor's cache, and the caller reduces each block. They are float32 or wider for every model dtype, since
the 8 significant bits of bfloat16 would change ranks.

Blocks use the model's own weights. They are compared with the model's own logits before they are first used on a model.
If they differ, or while the user has hooks on the model, the model's own modules are used instead.

A mixture of depths mixes several residual streams. A single stream is decoded as by its last route.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..compare import agree, probe_ids
from ..network import Network
from ..patching import site_hook
from ..read_out import last_route_only
from ..soft_cap import soft_cap, soft_capped
from .equations import Norm
from .modules import residual_streams

__all__ = ["ReadOut", "blocks_agree", "vocabulary_block"]


def vocabulary_block(network: Network, hidden: Tensor, ids: slice | Tensor) -> Tensor:
    """Logits (..., n) of some token ids from normed hidden states (..., d_model), in the dtype of ``hidden``."""
    return Unembedding.of(network)(hidden, ids)


@dataclass(frozen=True)
class Unembedding:
    """The unembedding as it is now; calls of it wait for no lock, so that several threads may share it."""

    weight: Tensor
    bias: Tensor
    cap: float
    """On the logits; 0 for none."""

    @classmethod
    def of(cls, network: Network) -> Unembedding:
        """That of a network."""
        return cls(network.weight("W_U"), network.weight("b_U"), soft_cap(network.tl_model))

    def __call__(self, hidden: Tensor, ids: slice | Tensor) -> Tensor:
        """Logits (..., n) of some token ids from normed hidden states (..., d_model), in the dtype of ``hidden``."""
        weight, bias = self.weight[:, ids].T, self.bias[ids]
        logits = torch.nn.functional.linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))
        return soft_capped(logits, self.cap, in_place=not logits.requires_grad)


@dataclass(frozen=True)
class ReadOut:
    """Decodes residual streams of one model to logits; created by `interp_widgets.models.engine.read_out`."""

    network: Network
    in_blocks: bool
    """Whether `normed` and `block` may be used; otherwise only `whole`."""

    @torch.no_grad()
    def normed(self, rows: Tensor) -> Tensor:
        """(..., d_model) output of the final norm for residual streams of that shape, in their dtype."""
        norm = getattr(self.network.tl_model, "ln_final", None)
        with self.network.lock, last_route_only(self.network.tl_model):
            # the module of transformers, which may round differently from the equation
            return _norm_in_dtype_of(rows, norm) if self.network.backend == "bridge" and norm else Norm.of(norm)(rows)

    def unembedding(self) -> Unembedding:
        """What `block` uses, for several threads."""
        with self.network.lock:
            return Unembedding.of(self.network)

    @torch.no_grad()
    def block(self, hidden: Tensor, first: int, stop: int) -> Tensor:
        """(..., stop - first) logits of the token ids first..stop from the output of `normed`."""
        with self.network.lock:
            return vocabulary_block(self.network, hidden, slice(first, stop))

    @torch.no_grad()
    def whole(self, rows: Tensor) -> Tensor:
        """(batch, positions, d_vocab) logits of streams (batch, positions, d_model), by the model's own modules.

        A HookedTransformer starts at the final norm. A bridge cannot start in the middle, so a whole pass runs with its
        last residual stream replaced.
        """
        network = self.network
        if rows.numel() == 0:
            return rows.new_zeros(*rows.shape[:2], network.d_vocab)
        rows = rows.to(network.dtype)
        with network.lock, last_route_only(network.tl_model):
            if network.backend != "bridge":
                logits: Tensor = network.tl_model(rows, start_at_layer=network.n_layers)
            else:
                ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=network.device)
                edit = {site_hook("resid", network.n_layers, network.n_layers): lambda stream: rows}
                logits = network.run(ids, edit=edit).logits
        return logits.to(torch.float64 if network.dtype == torch.float64 else torch.float32)


def _norm_in_dtype_of(rows: Tensor, norm: torch.nn.Module) -> Tensor:
    """The output of a bridge's norm for rows whose dtype may be wider than that of its weights."""
    weights = dict(norm.named_parameters())
    if all(weight.dtype == rows.dtype for weight in weights.values()):
        result: Tensor = norm(rows)
        return result
    widened = {name: weight.to(rows.dtype) for name, weight in weights.items()}
    result = torch.func.functional_call(norm, widened, (rows,))
    return result


@torch.no_grad()
def blocks_agree(network: Network) -> bool | None:
    """Whether `ReadOut.block` gives the model's own logits, for the first residual stream too; None if they are NaN.

    Raises ValueError if `ReadOut.whole` does not give the model's own logits either.
    """
    ids = probe_ids(network.d_vocab, network.n_ctx).to(network.device)
    with last_route_only(network.tl_model):
        wanted = network.tl_model(ids).to(ids.device)
    if not bool(torch.isfinite(wanted).all()):
        return None
    streams = residual_streams(network, ids[:1], whole=False)[[0, -1]]
    read = ReadOut(network, in_blocks=True)
    own = read.whole(streams)
    if not agree(own[1:], wanted.to(own.dtype), network.precision):
        raise ValueError(
            f"{network.name} gives different logits when its last residual stream is replaced by itself: "
            "its hidden states cannot be decoded, load it with the other backend"
        )
    try:
        logits = read.block(read.normed(streams), 0, network.d_vocab)
    except (AttributeError, RuntimeError, TypeError, StopIteration):
        return False  # an unusual norm or unembedding, such as a quantised one
    # the first stream is small: only there does a wrong epsilon of the norm show
    return all(agree(logits[i], own[i], network.precision) for i in range(2))
