"""The read-out of residual streams: final norm, unembedding and logit soft cap of any model, block by block.

The logits of many cells (every layer at every position) are never there at once: they come in blocks of the vocabulary,
small enough for the processor's cache, so that a caller reduces each block and forgets it. The numbers are float32 or
wider whatever the model's type: in bfloat16 the 8 bits of a logit move ranks.

Blocks use the model's own weights. Before they are first used on a model they are compared with the model's own logits;
where they differ, and while the user has hooks on the model, the cells go through the model's own modules instead.

A mixture of depths mixes several residual streams. One stream alone is read as its last route reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..compare import agree, probe_ids
from ..mixture_of_depths.graft import by_last_route
from ..network import Network
from ..patching import site_hook
from ..soft_cap import soft_cap, soft_capped
from .equations import Norm
from .modules import residual_streams

__all__ = ["ReadOut", "blocks_agree", "vocabulary_block"]


def vocabulary_block(network: Network, hidden: Tensor, ids: slice | Tensor) -> Tensor:
    """Logits (..., n) of some token ids from what the unembedding reads (..., d_model), in the type of ``hidden``."""
    weight, bias = network.weight("W_U")[:, ids].T, network.weight("b_U")[ids]
    logits = torch.nn.functional.linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))
    return soft_capped(logits, soft_cap(network.tl_model), in_place=not logits.requires_grad)


@dataclass(frozen=True)
class ReadOut:
    """How one model turns residual streams into logits; made by `interp_widgets.models.engine.read_out`."""

    network: Network
    in_blocks: bool
    """Whether `normed` and `block` may be used; else `whole`."""

    @torch.no_grad()
    def normed(self, rows: Tensor) -> Tensor:
        """(..., d_model) the final norm's output for residual streams of that shape, in their type."""
        norm = getattr(self.network.tl_model, "ln_final", None)
        with self.network.lock, by_last_route(self.network.tl_model):
            # transformers' own module: it may round what it computes in a way of its own
            return _in_type_of(rows, norm) if self.network.backend == "bridge" and norm else Norm.of(norm)(rows)

    @torch.no_grad()
    def block(self, hidden: Tensor, first: int, stop: int) -> Tensor:
        """(..., stop - first) logits of the token ids first..stop from what `normed` gave."""
        with self.network.lock:
            return vocabulary_block(self.network, hidden, slice(first, stop))

    @torch.no_grad()
    def whole(self, rows: Tensor) -> Tensor:
        """(batch, positions, d_vocab) logits of residual streams (batch, positions, d_model), by the model's modules.

        A HookedTransformer runs from the final norm on. A bridge cannot start in the middle: it runs whole, with its
        last residual stream replaced.
        """
        network = self.network
        if rows.numel() == 0:
            return rows.new_zeros(*rows.shape[:2], network.d_vocab)
        rows = rows.to(network.dtype)
        with network.lock, by_last_route(network.tl_model):
            if network.backend != "bridge":
                logits: Tensor = network.tl_model(rows, start_at_layer=network.n_layers)
            else:
                ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=network.device)
                put = {site_hook("resid", network.n_layers, network.n_layers): lambda stream: rows}
                logits = network.run(ids, edit=put).logits
        return logits.to(torch.float64 if network.dtype == torch.float64 else torch.float32)


def _in_type_of(rows: Tensor, norm: torch.nn.Module) -> Tensor:
    """A bridge's norm on rows that may be wider than its weights."""
    weights = dict(norm.named_parameters())
    if all(weight.dtype == rows.dtype for weight in weights.values()):
        result: Tensor = norm(rows)
        return result
    widened = {name: weight.to(rows.dtype) for name, weight in weights.items()}
    result = torch.func.functional_call(norm, widened, (rows,))
    return result


@torch.no_grad()
def blocks_agree(network: Network) -> bool | None:
    """Whether `ReadOut.block` gives the model's own logits, for the first residual stream too; None if these are NaN.

    Raises ValueError where even the model's own modules do not give the model's own logits.
    """
    ids = probe_ids(network.d_vocab, network.n_ctx).to(network.device)
    with by_last_route(network.tl_model):
        wanted = network.tl_model(ids).to(ids.device)
    if not bool(torch.isfinite(wanted).all()):
        return None
    streams = residual_streams(network, ids[:1], whole=False)[[0, -1]]
    read = ReadOut(network, in_blocks=True)
    own = read.whole(streams)
    if not agree(own[1:], wanted.to(own.dtype), network.precision):
        raise ValueError(
            f"{network.name} gives other logits when its last residual stream is replaced by itself: "
            "its read-out cannot be used, load it with the other backend"
        )
    try:
        logits = read.block(read.normed(streams), 0, network.d_vocab)
    except (AttributeError, RuntimeError, TypeError, StopIteration):
        return False  # a norm or an unembedding of another kind, such as a quantised one
    # the first stream is small: a wrong epsilon in the norm shows there only
    return all(agree(logits[i], own[i], network.precision) for i in range(2))
