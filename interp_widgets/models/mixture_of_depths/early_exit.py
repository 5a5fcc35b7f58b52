"""Writing with a mixture of depths, layer by layer, so that layers which nobody needs are not computed.

A token's prediction needs the layers up to its last route with a weight. What lies above is left until a later token
needs it: then the positions that wait there are computed first, all at once, with their own residual streams. Keys and
values are therefore those of the whole computation, never estimates, and the logits are the same to rounding.

Only models that the engine's equations describe are written like this (`skips_layers`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..compare import agree, probe_ids
from ..engine.equations import Equations
from ..engine.native import Writer, decode
from ..hooks import has_hooks
from ..network import Network
from ..state import remembered
from .graft import mixture_of
from .mixture import Mixture, mix

__all__ = ["EarlyExit", "skips_layers"]


class EarlyExit:
    """One sequence that is being written."""

    def __init__(self, network: Network, mixture: Mixture, top_k: int) -> None:
        equations = Equations.of(network)
        if equations is None:
            raise ValueError(
                f"{network.name} has blocks that cannot be computed one at a time: write with Model.generate"
            )
        self.network, self.mixture, self.top_k = network, mixture, top_k
        self._writer = Writer(equations)
        self._norms = equations.read_norms()
        self._waiting: list[list[Tensor]] = [[] for _ in self._writer.blocks]
        self.exits: list[int] = []
        """Per call of `feed` the last layer that its prediction needed."""
        self.runs = 0
        """How many times a layer ran, each for all positions that waited."""

    @property
    def length(self) -> int:
        """Tokens fed."""
        return self._writer.length

    @property
    def computed(self) -> list[int]:
        """Per layer at how many positions it was computed."""
        past = self._writer.past
        return [past[layer][0].shape[2] if layer in past else 0 for layer in range(len(self._waiting))]

    @torch.no_grad()
    def feed(self, ids: Tensor) -> Tensor:
        """Logits (1, 1, d_vocab) after more tokens (1, n)."""
        writer = self._writer
        embeddings = self.network.embed(ids)
        self._waiting[0].append(writer.equations.start(embeddings, writer.length))
        writer.length += ids.shape[1]
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
        return decode(writer.equations, mix(weights[..., used], members))

    def _advance(self, layer: int) -> Tensor:
        """Compute a layer for all positions that wait in front of it; what it gives for the last of them."""
        stream = torch.cat(self._waiting[layer], dim=1)
        self._waiting[layer] = []
        self.runs += 1
        final = layer == len(self._waiting) - 1  # nothing reads the other positions' outputs
        stream = self._writer.advance(self._writer.blocks[layer], stream, last=slice(-1, None) if final else None)
        if not final:
            self._waiting[layer + 1].append(stream)
        return stream[:, -1:]


def skips_layers(network: Network) -> bool:
    """Whether a model has a mixture that `EarlyExit` can write with; compared on first use."""
    tl_model = network.tl_model
    mixture = mixture_of(tl_model)
    if mixture is None or has_hooks(tl_model) or Equations.of(network) is None:
        return False
    with mixture.dense():
        return remembered(network, "early exit", lambda: _same_logits(network, mixture))


@torch.no_grad()
def _same_logits(network: Network, mixture: Mixture) -> bool:
    """With all routes: rounding must not choose between two of them."""
    ids = probe_ids(network.d_vocab, network.n_ctx).to(network.device)
    wanted = network.tl_model(ids)
    write = EarlyExit(network, mixture, mixture.k)
    cut = ids.shape[1] // 2 + 1
    pieces = [ids[:, :cut], *ids[:, cut:].split(1, dim=1)]
    logits = torch.cat([write.feed(piece) for piece in pieces], dim=1)
    return agree(logits, wanted[:, cut - 1 :], network.precision)
