"""`Trace`: the values of one pass that patched runs start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..network import Network
from ..patching import Site
from .equations import KeysValues

__all__ = ["Trace", "empty_streams"]


def empty_streams(network: Network, positions: int) -> Tensor:
    """(positions, layers + 1, d_model) to write residual streams into: float32 or wider, the layers of one position
    side by side."""
    dtype = torch.float64 if network.dtype == torch.float64 else torch.float32
    return torch.empty(positions, network.n_layers + 1, network.d_model, dtype=dtype, device=network.device)


@dataclass(frozen=True)
class Trace:
    """What the layers computed for one sequence, or for several of one length (``batch``)."""

    native: bool
    """By the equations; otherwise by the model's own modules."""
    hooked: bool
    """The user had hooks on the model: every pass runs whole."""
    embeddings: Tensor
    """(batch, tokens, d_model) that were fed."""
    hidden: Tensor
    """(batch, width) the last position's hidden state, for `decode`."""
    resid: tuple[Tensor, ...]
    """Per layer and once more, (batch, tokens, d_model): the stream entering the block, then the final norm."""
    attn: tuple[Tensor, ...]
    """Per layer (batch, tokens, d_model): what attention adds to the stream."""
    mlp: tuple[Tensor, ...]
    """Per layer (batch, tokens, d_model): what the MLP adds to the stream; empty for a model without MLPs."""
    head: tuple[Tensor, ...]
    """Per layer (batch, tokens, n_heads, d_head): what each head reads, before the output matrix."""
    neuron: Mapping[int, Tensor] = field(default_factory=dict)
    """(batch, tokens, d_mlp) for the layers asked for."""
    projected: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    """Per layer queries, keys and values, (batch, heads, tokens, d_head), where the equations run."""

    @property
    def n_layers(self) -> int:
        return len(self.resid) - 1

    @property
    def tokens(self) -> int:
        """Length of the sequence."""
        return self.embeddings.shape[1]

    def computed(self, first: int) -> int:
        """How many positions of a cell are computed when its first patch is at position ``first``."""
        return self.tokens - first if self.native else self.tokens

    def keys_values(self, stop: int) -> list[KeysValues]:
        """Per layer the keys and values of the positions before ``stop``."""
        return [(key[:, :, :stop], value[:, :, :stop]) for _, key, value in self.projected]

    def value(self, site: Site, layer: int) -> Tensor:
        """(batch, tokens, [heads or neurons,] width) the traced values that a patch would replace."""
        match site:
            case "resid":
                return self.resid[layer]
            case "attn" | "attn_to_mlp":
                return self.attn[layer]
            case "mlp":
                return self.mlp[layer] if self.mlp else torch.zeros_like(self.attn[layer])
            case "head":
                return self.head[layer]
            case "neuron":
                if layer not in self.neuron:
                    raise ValueError(f"the neurons of layer {layer} were not kept: trace(..., neurons=({layer},))")
                return self.neuron[layer][..., None]
