"""Generation with a mixture of depths that skips layers which no prediction needs.

A token's prediction needs the layers up to its last route with a weight. Layers above are deferred until a later token
needs them: then all skipped positions are computed there at once, from their own residual streams. Keys and values are
therefore exact, never estimates, and the logits equal those of the full computation up to rounding.

This applies only to models that the engine's equations describe (`skips_layers`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..compare import agree, probe_ids
from ..engine.equations import Equations
from ..engine.native import IncrementalDecoder, decode
from ..hooks import has_hooks
from ..network import Network
from ..read_out import mix
from ..state import remembered
from .install import mixture_of
from .mixture import Mixture

__all__ = ["EarlyExit", "skips_layers"]


class EarlyExit:
    """One sequence that is being generated."""

    def __init__(self, network: Network, mixture: Mixture, top_k: int) -> None:
        equations = Equations.of(network)
        if equations is None:
            raise ValueError(
                f"{network.name} has blocks that cannot be computed one at a time: write with Model.generate"
            )
        self.network, self.mixture, self.top_k = network, mixture, top_k
        self._decoder = IncrementalDecoder(equations)
        self._norms = equations.read_norms()
        self._waiting: list[list[Tensor]] = [[] for _ in self._decoder.blocks]
        self.exits: list[int] = []
        """The last layer that the prediction needed, per call of `feed`."""
        self.runs = 0
        """Number of runs of each layer; a run covers all skipped positions."""

    @property
    def length(self) -> int:
        """Number of tokens fed."""
        return self._decoder.length

    @property
    def computed(self) -> list[int]:
        """Number of positions at which each layer was computed."""
        past = self._decoder.past
        return [past[layer][0].shape[2] if layer in past else 0 for layer in range(len(self._waiting))]

    @torch.no_grad()
    def feed(self, ids: Tensor) -> Tensor:
        """Logits (1, 1, d_vocab) after more tokens (1, n)."""
        decoder = self._decoder
        embeddings = self.network.embed(ids)
        self._waiting[0].append(decoder.equations.start(embeddings, decoder.length))
        decoder.length += ids.shape[1]
        late = len(self._waiting) - self.mixture.k
        for layer in range(late):
            self._advance(layer)
        weights = self.mixture.weigh(self._waiting[late][-1][:, -1:], self.top_k)
        used = [
            route for route, share in enumerate(weights[0, 0].tolist()) if share != 0
        ]  # a NaN goes on into the logits, where it is reported
        members = []
        for route in range(used[-1] + 1):
            end = self._advance(late + route)
            if route in used:
                members.append(self._norms[route](end))
        self.exits.append(late + used[-1])
        return decode(decoder.equations, mix(weights[..., used], members))

    def _advance(self, layer: int) -> Tensor:
        """Compute a layer for all positions that have not passed it, and return its output at the last one."""
        stream = torch.cat(self._waiting[layer], dim=1)
        self._waiting[layer] = []
        self.runs += 1
        final = layer == len(self._waiting) - 1  # nothing reads the other positions' outputs
        stream = self._decoder.advance(self._decoder.blocks[layer], stream, last=slice(-1, None) if final else None)
        if not final:
            self._waiting[layer + 1].append(stream)
        return stream[:, -1:]


def skips_layers(network: Network) -> bool:
    """Whether `EarlyExit` can be used with a model; verified on first use."""
    tl_model = network.tl_model
    mixture = mixture_of(tl_model)
    if mixture is None or has_hooks(tl_model) or Equations.of(network) is None:
        return False
    with mixture.dense():
        return remembered(network, "early exit", lambda: _same_logits(network, mixture))


@torch.no_grad()
def _same_logits(network: Network, mixture: Mixture) -> bool:
    """Compare with all routes in use, so that rounding cannot change which routes are chosen."""
    ids = probe_ids(network.d_vocab, network.n_ctx).to(network.device)
    expected = network.tl_model(ids)
    write = EarlyExit(network, mixture, mixture.k)
    cut = ids.shape[1] // 2 + 1
    chunks = [ids[:, :cut], *ids[:, cut:].split(1, dim=1)]
    logits = torch.cat([write.feed(chunk) for chunk in chunks], dim=1)
    return agree(logits, expected[:, cut - 1 :], network.precision)
