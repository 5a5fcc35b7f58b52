"""`Trace`: cached activations of one pass, from which patched runs start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..network import Network
from ..patching import Site
from .equations import KeysValues

__all__ = ["Trace", "empty_streams"]


def empty_streams(network: Network, positions: int) -> Tensor:
    """An empty tensor (positions, layers + 1, d_model) for residual streams, in float32 or wider."""
    dtype = torch.float64 if network.dtype == torch.float64 else torch.float32
    return torch.empty(positions, network.n_layers + 1, network.d_model, dtype=dtype, device=network.device)


@dataclass(frozen=True)
class Trace:
    """Activations of one sequence, or of a ``batch`` of sequences of equal length."""

    native: bool
    """Whether the native engine computed it; otherwise the model's own modules."""
    hooked: bool
    """Whether the user had hooks on the model, so that every pass must run over the whole sequence."""
    embeddings: Tensor
    """(batch, tokens, d_model) input embeddings."""
    hidden: Tensor
    """(batch, width) the last position's hidden state, for `decode`."""
    resid: tuple[Tensor, ...]
    """n_layers + 1 tensors (batch, tokens, d_model): the stream entering each block, and the final norm."""
    attn: tuple[Tensor, ...]
    """Per layer (batch, tokens, d_model): what attention adds to the stream."""
    mlp: tuple[Tensor, ...]
    """Per layer (batch, tokens, d_model): what the MLP adds to the stream; empty for a model without MLPs."""
    head: tuple[Tensor, ...]
    """Per layer (batch, tokens, n_heads, d_head): output of each head before W_O (hook_z)."""
    neuron: Mapping[int, Tensor] = field(default_factory=dict)
    """(batch, tokens, d_mlp) neuron activations of the layers that were requested."""
    inputs: Mapping[tuple[Site, int], Tensor] = field(default_factory=dict)
    """The requested values inside of attention by site and layer: "q", "k", "v" (batch, tokens, heads, d_head),
    "pattern" (batch, tokens, n_heads, tokens), the attending token first."""
    projected: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    """Per layer queries, keys and values, (batch, heads, tokens, d_head); empty unless ``native``."""
    starts: bool = False
    """Whether patched runs of the model's own modules start at their first patched position."""
    _past: list[KeysValues] = field(default_factory=list)
    """Keys and values as the model's own cache holds them, once a patched run needed them."""

    @property
    def n_layers(self) -> int:
        return len(self.resid) - 1

    @property
    def tokens(self) -> int:
        """Length of the sequence."""
        return self.embeddings.shape[1]

    def computed(self, first: int) -> int:
        """Number of positions that a run with its first patch at position ``first`` has to compute."""
        return self.tokens - first if self.native or self.starts else self.tokens

    def keys_values(self, stop: int) -> list[KeysValues]:
        """Per layer the keys and values of the positions before ``stop``."""
        return [(key[:, :, :stop], value[:, :, :stop]) for _, key, value in self.projected]

    def past(self, compute: Callable[[Tensor], list[KeysValues]]) -> list[KeysValues]:
        """Per layer the keys and values of all positions in the model's own cache, which ``compute`` gives once for the
        embeddings."""
        if not self._past:
            self._past.extend(compute(self.embeddings))
        return self._past

    def value(self, site: Site, layer: int) -> Tensor:
        """(batch, tokens, [heads or neurons,] width) the traced values that a patch at this site replaces."""
        match site:
            case "resid":
                return self.resid[layer]
            case "attn" | "attn_to_mlp":
                return self.attn[layer]
            case "mlp":
                return self.mlp[layer] if self.mlp else torch.zeros_like(self.attn[layer])
            case "head":
                return self.head[layer]
            case "q" | "k" | "v" | "pattern":
                if (site, layer) not in self.inputs:
                    raise ValueError(f"the site {site!r} was not kept: trace(..., sites=({site!r},))")
                return self.inputs[site, layer]
            case "neuron":
                if layer not in self.neuron:
                    raise ValueError(f"the neurons of layer {layer} were not kept: trace(..., neurons=({layer},))")
                return self.neuron[layer][..., None]
