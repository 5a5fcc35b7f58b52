"""The derivative of the end of the plain equations: from residual streams to what the unembedding reads.

Without a mixture of depths that is the final norm of the last stream. With one, it is the weighted sum of the late
layers' norms, and the weights hang on a stream as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .mixture_of_depths.graft import mixture_in_force
from .mixture_of_depths.mixture import mix
from .plain import read_streams

__all__ = ["NormSlope", "ReadSlope"]


@dataclass(frozen=True)
class NormSlope:
    """A norm's derivative at one sequence: J = weight ∘ S with the symmetric S v = rstd (v - mean v - x̂ mean(x̂ v))."""

    scaled: Tensor | None
    rstd: Tensor | None
    centred: bool
    weight: Tensor | None

    @staticmethod
    def of(module: Any, x: Tensor) -> NormSlope:
        kind = type(module).__name__
        if kind in ("Identity", "NoneType"):
            return NormSlope(None, None, False, None)
        centred = kind.startswith("Layer")
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        wide = wide - wide.mean(-1, keepdim=True) if centred else wide
        rstd = (wide.pow(2).mean(-1, keepdim=True) + module.eps).rsqrt()
        return NormSlope((wide * rstd).to(x.dtype), rstd.to(x.dtype), centred, getattr(module, "w", None))

    def at(self, rows: slice | Tensor) -> NormSlope:
        if self.scaled is None or self.rstd is None:
            return self
        return NormSlope(self.scaled[rows], self.rstd[rows], self.centred, self.weight)

    def _symmetric(self, v: Tensor) -> Tensor:
        if self.scaled is None or self.rstd is None:
            return v
        out = torch.addcmul(v, self.scaled, (v * self.scaled).mean(-1, keepdim=True), value=-1)
        return (out - v.mean(-1, keepdim=True) if self.centred else out).mul_(self.rstd)

    def push(self, v: Tensor) -> Tensor:
        out = self._symmetric(v)
        return out if self.weight is None else out * self.weight

    def pull(self, v: Tensor) -> Tensor:
        return self._symmetric(v if self.weight is None else v * self.weight)


@dataclass(frozen=True)
class ReadSlope:
    """The derivative of what the unembedding reads at one sequence, by the streams that `plain.read_streams` takes."""

    hidden: Tensor
    """(1, tokens, d_model) what the unembedding reads."""
    norms: tuple[NormSlope, ...]
    """Per route; one without a mixture."""
    gates: Tensor | None = None
    """(tokens, k) the routes' weights; None without a mixture."""
    members: tuple[Tensor, ...] = ()
    """Per route (tokens, d_model): what its norm gives."""
    router: Tensor | None = None
    """(d_model, k) where the weights hang on the first stream; None where they are fixed."""

    @staticmethod
    def of(tl_model: Any, streams: Sequence[Tensor]) -> ReadSlope:
        """From streams (1, tokens, d_model)."""
        mixture, final = mixture_in_force(tl_model), getattr(tl_model, "ln_final", None)
        if mixture is None:
            return ReadSlope(read_streams(tl_model, streams), (NormSlope.of(final, streams[-1][0]),))
        with mixture.recording() as readings:
            hidden = read_streams(tl_model, streams)
        gates, members = readings[0].gates, readings[0].members
        norms = zip((*mixture.norms, final), streams[1:], strict=True)
        slopes = tuple(NormSlope.of(norm, stream[0]) for norm, stream in norms)
        router = mixture.router.to(gates.dtype) if mixture.only is None else None
        return ReadSlope(hidden, slopes, gates[0], tuple(member[0] for member in members), router)

    def pull(self, seeds: Tensor, at: Tensor) -> list[Tensor]:
        """Per stream (k, d_model) the gradient for seeds (k, d_model) at one position ``at`` (k,) each."""
        norms = [norm.at(at) for norm in self.norms]
        if self.gates is None:
            return [norms[0].pull(seeds)]
        gates = self.gates[at]
        parts = [norm.pull((gates[:, [route]] * seeds).to(seeds.dtype)) for route, norm in enumerate(norms)]
        if self.router is None:
            return [torch.zeros_like(seeds), *parts]
        wanted = torch.stack([(seeds * member[at]).to(gates.dtype).sum(-1) for member in self.members], dim=-1)
        return [(_softmax_slope(gates, wanted) @ self.router.T).to(seeds.dtype), *parts]

    def push(self, tangents: Sequence[Tensor], first: int) -> Tensor:
        """(n, tokens - first, d_model) change, from each stream's (n, tokens - first, d_model) from ``first`` on."""
        rows = slice(first, None)
        norms = [norm.at(rows) for norm in self.norms]
        if self.gates is None:
            return norms[0].push(tangents[-1])
        gates = self.gates[rows]
        moved = [norm.push(tangent) for norm, tangent in zip(norms, tangents[1:], strict=True)]
        out = mix(gates, moved)
        if self.router is None:
            return out
        turned = _softmax_slope(gates, tangents[0].to(gates.dtype) @ self.router)
        return out + mix(turned, [member[rows] for member in self.members])


def _softmax_slope(gates: Tensor, change: Tensor) -> Tensor:
    """What a change of the scores does to the weights, and the other way round: the map is symmetric."""
    return gates * (change - (gates * change).sum(-1, keepdim=True))
