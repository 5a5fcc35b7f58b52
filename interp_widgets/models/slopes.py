"""The derivative of the hidden states at one sequence: the plain equations' own, or through autograd for any model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from . import plain_slopes

Encode = Callable[[Tensor, Tensor], Tensor]
"""Hidden states (batch, n, width) from token embeddings (batch, tokens, d_model) and positions (n,)."""

Frozen = Callable[[], AbstractContextManager[None]]
"""Makes a context in which no parameter asks for a gradient and nobody else uses the model."""


@runtime_checkable
class Slopes(Protocol):
    """The derivative of the hidden states at one sequence, ready to be applied to many directions."""

    hidden: Tensor
    """(tokens - first, width) what `decode` turns into logits, from the first position asked."""

    def pull(self, seeds: Tensor, at: Tensor) -> Tensor:
        """(k, length, d_model) gradients at the embeddings for seeds (k, width) at positions ``at`` (k,), one each;
        length is the last of these positions plus one."""
        ...

    def push(self, tangents: Tensor, at: Tensor) -> Tensor:
        """(k, tokens - first, width) change of the hidden states for changes (k, d_model) of the embeddings at
        positions ``at`` (k,), one each. Raises `NoForwardMode` where an operation has no such derivative."""
        ...


class NoForwardMode(RuntimeError):
    """Some operation of the model has no forward-mode derivative; reverse mode works."""


class PlainSlopes:
    """The derivative by the plain equations, for hidden states from position ``first`` on."""

    def __init__(self, tl_model: Any, embeddings: Tensor, first: int) -> None:
        self._slopes = plain_slopes.PlainSlopes(tl_model, embeddings.detach())
        self._first = first
        self.hidden = self._slopes.hidden[0, first:]

    @torch.no_grad()
    def pull(self, seeds: Tensor, at: Tensor) -> Tensor:
        return self._slopes.pull(seeds, at)

    @torch.no_grad()
    def push(self, tangents: Tensor, at: Tensor) -> Tensor:
        return self._slopes.push(tangents, at, self._first)


class AutogradSlopes:
    """The same through autograd, for any model: batched over directions where the operations allow, else one by one."""

    def __init__(self, encode: Encode, frozen: Frozen, embeddings: Tensor, first: int) -> None:
        self._encode, self._frozen, self._first = encode, frozen, first
        self._positions = torch.arange(first, embeddings.shape[1], device=embeddings.device)
        self._leaf = embeddings.detach().clone()
        with torch.no_grad():
            self.hidden = encode(self._leaf, self._positions)[0]
        self._graph: tuple[Tensor, Tensor] | None = None

    def pull(self, seeds: Tensor, at: Tensor) -> Tensor:
        with torch.enable_grad(), self._frozen():
            if self._graph is None:
                leaf = self._leaf.clone().requires_grad_(True)
                self._graph = leaf, self._encode(leaf, self._positions)
            leaf, hidden = self._graph
            rows = torch.arange(len(at), device=at.device)
            chosen = hidden[0, at - self._first]
            spread = seeds.new_zeros(len(at), *chosen.shape)
            spread[rows, rows] = seeds
            length = int(at.max()) + 1
            try:
                (found,) = torch.autograd.grad(chosen, leaf, spread, retain_graph=True, is_grads_batched=True)
                return found[:, 0, :length]
            except RuntimeError as error:
                if not _is_batching_error(error):
                    raise
            each = [torch.autograd.grad(chosen, leaf, one, retain_graph=True)[0][0, :length] for one in spread]
            return torch.stack(each)

    def push(self, tangents: Tensor, at: Tensor) -> Tensor:
        rows = torch.arange(len(at), device=at.device)
        spread = tangents.new_zeros(len(at), *self._leaf.shape)
        spread[rows, 0, at] = tangents

        def run(embeddings: Tensor) -> Tensor:
            return self._encode(embeddings, self._positions)[0]

        def one(tangent: Tensor) -> Tensor:
            result: Tensor = torch.func.jvp(run, (self._leaf,), (tangent,))[1]
            return result

        with torch.no_grad(), self._frozen():
            return _batched_or_each(one, spread)


def _batched_or_each(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    try:
        return torch.vmap(function)(rows)
    except (RuntimeError, NotImplementedError) as error:
        if _is_memory_error(error):
            raise
    try:
        return torch.stack([function(row) for row in rows])
    except (RuntimeError, NotImplementedError) as error:
        if _is_memory_error(error) or "forward" not in str(error).lower():
            raise
        raise NoForwardMode(f"no forward-mode derivative: {str(error).splitlines()[0]}") from error


def _is_memory_error(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "memory" in str(error).lower()


def _is_batching_error(error: RuntimeError) -> bool:
    text = str(error).lower()
    return not _is_memory_error(error) and ("vmap" in text or "batch" in text or "functorch" in text)
