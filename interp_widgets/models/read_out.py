"""`ReadOut`: what the engine asks of a module that makes the unembedding's input from several residual streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

NAME = "mixture"
"""The name under which it is a module of the final norm."""


class RouteReading(Protocol):
    """Record of one pass."""

    gates: Tensor
    """(batch, positions, k) weights of the routes."""
    members: list[Tensor]
    """Per route (batch, positions, d_model): the normalized state."""


class ReadOut(Protocol):
    """Mixes k routes: the outputs of the last k blocks, each with a norm of its own; the last one's is the final norm.

    The weights of the routes come from the stream that enters the first of these blocks.
    """

    norms: nn.ModuleList
    """The norms of all routes but the last."""

    @property
    def k(self) -> int:
        """Number of routes."""

    @property
    def reads_last(self) -> bool:
        """Whether this thread is inside `by_last`."""

    @property
    def gate_weights(self) -> Tensor | None:
        """(d_model, k) of the linear map whose softmax weighs the routes; None where the weights are fixed."""

    def combine(self, streams: Sequence[Tensor], norms: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        """The unembedding's input, of the inputs of the last k blocks and the last output, with a norm per route."""

    def by_last(self) -> AbstractContextManager[None]:
        """Context manager in which this thread's final norm decodes any stream as the last route does."""

    def dense(self) -> AbstractContextManager[None]:
        """Context manager in which every token uses all routes."""

    def recording(self) -> AbstractContextManager[Sequence[RouteReading]]:
        """Context manager that appends a record of each of this thread's passes to a list."""


def read_out_of(tl_model: Any) -> ReadOut | None:
    """The read-out of a TransformerLens model that mixes several streams; None for a plain final norm."""
    found: ReadOut | None = getattr(getattr(tl_model, "ln_final", None), "_modules", {}).get(NAME)
    return found


def read_out_in_force(tl_model: Any) -> ReadOut | None:
    """The read-out that this thread's passes use; None inside `last_route_only`."""
    found = read_out_of(tl_model)
    return None if found is None or found.reads_last else found


def last_route_only(tl_model: Any) -> AbstractContextManager[None]:
    """Context manager in which the final norm acts on any stream as the last route's; no effect without a read-out."""
    found = read_out_of(tl_model)
    return contextlib.nullcontext() if found is None else found.by_last()


def dense_routes(tl_model: Any) -> AbstractContextManager[None]:
    """Context manager in which all routes are used; no effect without a read-out."""
    found = read_out_of(tl_model)
    return contextlib.nullcontext() if found is None else found.dense()


def norm_kind(final: nn.Module) -> type:
    """The class of a final norm without the class, marked `in_front`, that was put in front of it."""
    kind = type(final)
    return kind.__mro__[2] if getattr(kind, "in_front", False) else kind


def mix(weights: Tensor, members: Sequence[Tensor]) -> Tensor:
    """``Σ_i weights[..., i] members[i]``, in the members' dtype."""
    total = weights[..., :1] * members[0]
    for index, member in enumerate(members[1:], start=1):
        total = total + weights[..., index : index + 1] * member
    return total.to(members[0].dtype)
