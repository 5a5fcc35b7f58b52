"""The Mixture of Depths: a router over the last k layers, a norm for each, and one shared unembedding.

Each of the last k layers has its own logits ``U N_i(h_i)``. The router maps the residual stream x that enters the first
of these layers to k weights g = softmax(x W_g). The unembedding is linear, so the weighted logits are
``Σ g_i U N_i(h_i) = U Σ g_i N_i(h_i)``: a `Mixture` replaces the final norm's output by ``Σ g_i N_i(h_i)``, and the
model's own unembedding follows.

A soft cap on the logits (Gemma 2) stays after the unembedding: the ensemble's logits are ``cap(U Σ g_i N_i(h_i))``,
those of a single route ``cap(U N_i(h_i))``. Mixing before the cap keeps the single unembedding exact; one route, or
equal ones, reproduce the base model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..read_out import mix

__all__ = ["Mixture", "Reading", "gates", "mix"]


def gates(stream: Tensor, router: Tensor, top_k: int) -> Tensor:
    """(..., k) weights of the routes, which sum to 1, for residual streams (..., d_model); float32 or wider.

    With ``top_k`` below k the softmax runs over the ``top_k`` largest scores of each token; the others get zero.
    """
    wide = torch.promote_types(torch.promote_types(stream.dtype, router.dtype), torch.float32)
    scores = stream.to(wide) @ router.to(wide)
    if top_k < scores.shape[-1]:
        first = scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]  # of equal ones the earlier
        selected = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, first, True)
        scores = scores.masked_fill(~selected, -torch.inf)
    return scores.softmax(-1)


@dataclass
class Reading:
    """Record of a mixture in one pass."""

    gates: Tensor
    """(batch, positions, k) weights of the routes."""
    members: list[Tensor]
    """Per route (batch, positions, d_model): the normalised state that the unembedding reads."""


@dataclass
class _Pass:
    """The streams of the pass that runs in one thread."""

    entering: list[Tensor] = field(default_factory=list)
    """The inputs of the last k blocks, in order."""
    last: Tensor | None = None
    """The output of the last block."""


@dataclass(eq=False)
class _Choice:
    """A number of routes that counts for a while."""

    before: int
    """The number that counts when it ends."""


class Mixture(nn.Module):
    """Router and norms of the last k layers; `interp_widgets.models.mixture_of_depths.install` puts it into a model.

    The last route's norm is the model's own final norm, so there are k - 1 norms here. With ``only`` the router is not
    used and one route has all the weight.
    """

    SETTINGS = frozenset({"top_k", "only"})
    """Settings that users change through the model; another number of routes does not count as an edit."""

    def __init__(self, router: Tensor, norms: Sequence[nn.Module], top_k: int, only: int | None = None) -> None:
        super().__init__()
        self.router = nn.Parameter(router)
        self.norms = nn.ModuleList(norms)
        self.top_k = top_k
        self.only = only
        self._passes: dict[int, _Pass] = {}
        self._by_last: set[int] = set()
        self._readings: dict[int, list[Reading]] = {}
        self._choices: list[_Choice] = []
        if len(self.norms) != self.k - 1:
            raise ValueError(f"{self.k} routes need {self.k - 1} norms beside the final one, got {len(self.norms)}")

    @property
    def k(self) -> int:
        """Number of routes."""
        return int(self.router.shape[1])

    @property
    def gate_weights(self) -> Tensor | None:
        """The router (d_model, k); None with ``only``, where the weights are fixed."""
        return self.router if self.only is None else None

    def weigh(self, stream: Tensor, top_k: int | None = None) -> Tensor:
        """(..., k) weights of the routes for the streams (..., d_model) that enter the first of the last k blocks."""
        if self.only is None:
            return gates(stream, self.router, self.top_k if top_k is None else top_k)
        weights = torch.zeros(self.k, device=stream.device, dtype=torch.promote_types(stream.dtype, torch.float32))
        weights[self.only] = 1
        return weights.expand(*stream.shape[:-1], -1)

    # ---- called by the taps

    def enters(self, index: int, stream: Tensor) -> None:
        """``stream`` enters the block number ``index`` of the last k."""
        mine = threading.get_ident()
        if index == 0:
            self._passes[mine] = _Pass()
        current = self._passes.get(mine)
        # a pass that starts after the first of the last k blocks is detected at the final norm
        if current is not None and len(current.entering) == index:
            current.entering.append(stream)

    def leaves(self, stream: Tensor) -> None:
        """``stream`` has left the last block."""
        current = self._passes.get(threading.get_ident())
        if current is not None:
            current.last = stream

    # ---- the mixture

    def read(self, last: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The input of the unembedding, where ``last`` is the input of the final norm ``norm``."""
        current = self._passes.pop(threading.get_ident(), None)
        if self.reads_last:
            return norm(last)
        if current is None or current.last is not last or len(current.entering) != self.k:
            raise ValueError(
                f"this pass did not go through the last {self.k} layers, which a mixture of depths reads: "
                "run the model from its first layer on"
            )
        return self.combine([*current.entering, last], [*self.norms, norm])

    def combine(self, streams: Sequence[Tensor], norms: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        """The mixture of ``streams`` with a norm per route: the inputs of the last k blocks, then the last output."""
        members = [norm(stream) for norm, stream in zip(norms, streams[1:], strict=True)]
        weights = self.weigh(streams[0])
        recorded = self._readings.get(threading.get_ident())
        if recorded is not None:
            recorded.append(Reading(weights, members))
        return mix(weights, members)

    @property
    def reads_last(self) -> bool:
        """Whether this thread is inside `by_last`."""
        return threading.get_ident() in self._by_last

    @contextmanager
    def using(self, top_k: int) -> Iterator[None]:
        """Context manager in which every token uses ``top_k`` routes.

        Several may end in any order: of those that have not ended, the one entered last counts.
        """
        own = _Choice(self.top_k)
        self._choices.append(own)
        self.top_k = top_k
        try:
            yield
        finally:
            number = self._choices.index(own)
            del self._choices[number]
            if number == len(self._choices):
                self.top_k = own.before
            else:  # the next one goes back to what was before this one
                self._choices[number].before = own.before

    def dense(self) -> AbstractContextManager[None]:
        """Context manager in which every token uses all routes, for comparisons in which rounding must not change the
        choice of routes."""
        return self.using(self.k)

    @contextmanager
    def by_last(self) -> Iterator[None]:
        """Context manager in which this thread's final norm decodes any stream as the last route does."""
        mine = threading.get_ident()
        outer = mine in self._by_last
        self._by_last.add(mine)
        try:
            yield
        finally:
            if not outer:
                self._by_last.discard(mine)

    @contextmanager
    def recording(self) -> Iterator[list[Reading]]:
        """Context manager that appends a `Reading` of each of this thread's passes to a list."""
        mine = threading.get_ident()
        outer = self._readings.get(mine)
        readings = self._readings[mine] = []
        try:
            yield readings
        finally:
            if outer is None:
                del self._readings[mine]
            else:
                self._readings[mine] = outer
