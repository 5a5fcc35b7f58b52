"""The fast engine: logits, hidden states and derivatives from token embeddings, the same on both backends.

Three ways lead to the same numbers. *plain*: the equations of `interp_widgets.models.plain`, for a HookedTransformer
that nobody has hooked. *blocks*: TransformerLens' own blocks, for other HookedTransformers. *bridge*: the transformers
model inside a TransformerBridge. Before a way is first used on a model it is compared with the model's own forward
pass, and left out where it differs. While the user has hooks on the model, whole sequences run through the model's own
modules, so that every hook sees the positions it would always see.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import plain, plain_slopes, ways
from .compare import HALF_TOLERANCE, TOLERANCE, agree, difference, probe_ids
from .mixture_of_depths.graft import dense_routes
from .plain import KeysValues
from .slopes import AutogradSlopes, NoForwardMode, PlainSlopes, Slopes
from .soft_cap import soft_cap, soft_capped
from .ways import has_hooks

__all__ = [
    "NoForwardMode",
    "Prefix",
    "Slopes",
    "checked_way",
    "decode",
    "decode_blocks",
    "encode",
    "forward",
    "has_hooks",
    "in_blocks",
    "keeps_cache",
    "last_hidden",
    "mean_embedding",
    "prefix",
    "slopes",
    "token_logits",
]

Way = Literal["plain", "blocks", "bridge"]


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the first positions of one sequence, or its embeddings where they must run again."""

    way: Way
    length: int
    """Number of positions."""
    layers: tuple[KeysValues, ...] = ()
    embeddings: Tensor | None = None
    """(1, length, d_model) when the positions run again with every pass: the model has hooks or no usable cache."""

    def first(self, length: int) -> Prefix | None:
        """The prefix of the first ``length`` positions; None for no position at all."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be in 0..{self.length} for this prefix, got {length}")
        if length == 0:
            return None
        if self.embeddings is not None:
            return Prefix(self.way, length, embeddings=self.embeddings[:, :length])
        axis = 1 if self.way == "blocks" else 2
        layers = tuple((key.narrow(axis, 0, length), value.narrow(axis, 0, length)) for key, value in self.layers)
        return Prefix(self.way, length, layers)


# ---- the public calls


def prefix(model: Any, embeddings: Tensor) -> Prefix:
    """Keys and values of the first positions of a sequence, computed once for many continuations.

    Args:
        model: a `Model`.
        embeddings: (1, positions, d_model) token embeddings.

    Example:
        >>> embeddings = model.token_embeddings(model.tokens("The Eiffel Tower is in the city of"))[None]
        >>> start = prefix(model, embeddings[:, :5])
        >>> forward(model, embeddings[:, 5:], prefix=start).shape
        torch.Size([1, 4, 4096])
    """
    _check_embeddings(model, embeddings, 0)
    if embeddings.shape[0] != 1:
        raise ValueError(f"a prefix belongs to one sequence: embeddings must have batch 1, got {embeddings.shape[0]}")
    length = embeddings.shape[1]
    with model.lock, torch.no_grad():
        way, hooked = _way(model), has_hooks(model.tl_model)
        if hooked or not _traits(model).cache:
            return Prefix(way, length, embeddings=embeddings)
        if way == "plain":
            layers = plain.encode(model.tl_model, embeddings, keep=True, fused=True)[1]
        elif way == "blocks":
            layers = ways.blocks_cache(model.tl_model, embeddings)
        else:
            layers = ways.bridge_cache(model.tl_model, embeddings)
    return Prefix(way, length, tuple(layers))


def forward(
    model: Any, embeddings: Tensor, *, positions: slice | Tensor | None = None, prefix: Prefix | None = None
) -> Tensor:
    """Logits (batch, positions, d_vocab) from token embeddings; the model adds position information itself.

    Gradients, forward-mode derivatives and vmap pass through. Logits are made only for the positions asked for.

    Args:
        model: a `Model`.
        embeddings: (batch, tokens, d_model) token embeddings, after the prefix if there is one.
        positions: indices into the tokens given here, a slice or a (n,) tensor; all by default.
        prefix: what `prefix` gave, shared by the whole batch.

    Raises:
        ValueError: a wrong shape, or more positions than the model's context.
    """
    return decode(model, encode(model, embeddings, positions=positions, prefix=prefix))


def encode(
    model: Any, embeddings: Tensor, *, positions: slice | Tensor | None = None, prefix: Prefix | None = None
) -> Tensor:
    """The hidden states (batch, positions, width) that `decode` turns into logits; arguments as in `forward`.

    Their width is d_model, or d_vocab for a model whose logits are more than its unembedding of one state and a soft
    cap.
    """
    before = 0 if prefix is None else prefix.length
    _check_embeddings(model, embeddings, before)
    with model.lock:
        return _encode(model, embeddings, _positions(positions, embeddings), prefix, before)


def _encode(model: Any, embeddings: Tensor, chosen: Tensor | None, prefix: Prefix | None, before: int) -> Tensor:
    way, hooked = _way(model), has_hooks(model.tl_model)
    if prefix is not None and prefix.embeddings is None and (hooked or prefix.way != way):
        raise ValueError("the prefix was computed before hooks were put on or taken off the model: compute it again")
    if prefix is not None and prefix.embeddings is not None:
        front = prefix.embeddings.expand(embeddings.shape[0], -1, -1)
        embeddings = torch.cat([front, embeddings], dim=1)
        chosen = (torch.arange(before, embeddings.shape[1], device=embeddings.device) if chosen is None
                  else chosen + before)  # fmt: skip
        prefix = None
    past = None if prefix is None else prefix.layers
    if way == "plain":
        fused = not (embeddings.requires_grad and torch.is_grad_enabled()) and not _is_dual(embeddings)
        return plain.encode(model.tl_model, embeddings, positions=chosen, past=past, fused=fused)[0]
    if way == "blocks":
        return ways.blocks_encode(model.tl_model, embeddings, chosen, past, hooked)
    return ways.bridge_encode(model.tl_model, embeddings, chosen, past, hooked, _traits(model).split)


def last_hidden(model: Any, embeddings: Tensor, *, hooked: bool) -> Tensor:
    """(batch, width) hidden states of the last position through the model's own modules, for a caller with hooks on it.

    ``hooked`` says whether the user has hooks too: then nothing is left out of the pass.
    """
    with model.lock:
        last = torch.tensor([embeddings.shape[1] - 1], device=embeddings.device)
        if model.backend == "bridge":
            return ways.bridge_encode(model.tl_model, embeddings, last, None, hooked, _traits(model).split)[:, 0]
        return ways.blocks_encode(model.tl_model, embeddings, last, None, hooked)[:, 0]


def decode(model: Any, hidden: Tensor) -> Tensor:
    """Logits (..., d_vocab) of hidden states from `encode`."""
    with model.lock:
        return _decode(model, hidden)


def in_blocks(model: Any) -> bool:
    """Whether `decode_blocks` gives more than one block: a product that stays in the processor's cache is faster."""
    with model.lock:
        return _way(model) == "plain"


def decode_blocks(model: Any, hidden: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """The logits in blocks of the vocabulary: (first token id, logits (..., block)), up to ``size`` ids each.

    A model whose logits come in one piece gives one block.
    """
    if size >= model.d_vocab or not in_blocks(model):
        yield 0, decode(model, hidden)
        return
    for first in range(0, model.d_vocab, size):
        with model.lock:
            block = plain.decode(model.tl_model, hidden, slice(first, min(first + size, model.d_vocab)))
        yield first, block


@torch.no_grad()
def token_logits(model: Any, hidden: Tensor, ids: Tensor) -> Tensor:
    """(rows, n) logits of the token ids (n,) alone, from hidden states (rows, width); float32 or wider."""
    if in_blocks(model):
        with model.lock:
            return plain.decode(model.tl_model, hidden if hidden.dtype == torch.float64 else hidden.float(), ids)
    size = max(1, 2**22 // model.d_vocab)
    logits = torch.cat([decode(model, part)[:, ids] for part in hidden.split(size)])
    return logits if logits.dtype == torch.float64 else logits.float()


def _decode(model: Any, hidden: Tensor) -> Tensor:
    way = _way(model)
    if way == "plain":
        return plain.decode(model.tl_model, hidden)
    if way == "bridge" and not _traits(model).split:
        return hidden
    flat = hidden if hidden.ndim == 3 else hidden.reshape(1, -1, hidden.shape[-1])
    logits = model.tl_model.unembed(flat)
    logits = soft_capped(logits, soft_cap(model.tl_model))
    return logits.reshape(*hidden.shape[:-1], logits.shape[-1])


def slopes(model: Any, embeddings: Tensor, first: int) -> Slopes:
    """The derivative of the hidden states from position ``first`` on, at token embeddings (1, tokens, d_model).

    No parameter's ``.grad`` or ``requires_grad`` is touched.
    """
    _check_embeddings(model, embeddings, 0)
    with model.lock:
        if _way(model) == "plain":
            return PlainSlopes(model.tl_model, embeddings, first)

    @contextmanager
    def alone() -> Iterator[None]:
        with model.lock, model.frozen():
            yield

    return AutogradSlopes(lambda rows, chosen: encode(model, rows, positions=chosen), alone, embeddings, first)


@torch.no_grad()
def mean_embedding(model: Any) -> Tensor:
    """(d_model,) mean of all token embeddings, in the model's dtype, summed in float32 or wider."""
    total = torch.zeros(model.d_model, device=model.device, dtype=torch.float64)
    for start in range(0, model.d_vocab, model.n_ctx):
        rows = model.token_embeddings(range(start, min(start + model.n_ctx, model.d_vocab)))
        total += rows.sum(0, dtype=torch.float64 if model.dtype == torch.float64 else torch.float32)
    return (total / model.d_vocab).to(model.dtype)


# ---- choosing a way


def checked_way(model: Any, embeddings: Tensor) -> Way:
    """The way that a pass over (batch, tokens, d_model) embeddings takes; ValueError for a wrong shape."""
    _check_embeddings(model, embeddings, 0)
    with model.lock:
        _traits(model)  # compared now, before a caller's own hooks are on the model
        return _way(model)


def keeps_cache(model: Any) -> bool:
    """Whether keys and values of a beginning can be reused; False while the model has never been compared."""
    with model.lock:
        return _traits(model).cache


@dataclass(frozen=True)
class _Traits:
    """What held when a model was compared with its own forward pass."""

    plain: bool
    cache: bool
    """Keys and values of a prefix can be reused."""
    split: bool
    """Logits are the unembedding of one hidden state and a soft cap, nothing more."""


_KNOWN: weakref.WeakKeyDictionary[Any, _Traits] = weakref.WeakKeyDictionary()
_UNTRIED = _Traits(plain=False, cache=False, split=False)


def _traits(model: Any) -> _Traits:
    """Compared on first use, when the model has no hooks; with hooks on, nothing is taken for granted."""
    found = _KNOWN.get(model.tl_model)
    if found is None:
        with dense_routes(model.tl_model):
            compared = None if has_hooks(model.tl_model) else _compare(model)
        if compared is None:
            return _UNTRIED
        found = _KNOWN[model.tl_model] = compared
    return found


def _way(model: Any) -> Way:
    if model.backend == "bridge":
        return "bridge"
    return "plain" if plain.applies(model.tl_model) and _traits(model).plain else "blocks"


@torch.no_grad()
def _compare(model: Any) -> _Traits | None:
    """Run a short random sequence through every way and compare with the model's own logits; None if these are NaN."""
    tl_model = model.tl_model
    ids = probe_ids(model.d_vocab, model.n_ctx).to(model.device)
    count = ids.shape[1]
    embeddings = model.token_embeddings(ids[0])[None]
    wanted = tl_model(ids)
    if not bool(torch.isfinite(wanted).all()):
        return None
    cut, rest = count // 2, torch.arange(count - count // 2, device=model.device)

    def same(logits: Tensor, reference: Tensor) -> bool:
        return agree(logits, reference, model.dtype)

    if model.backend == "bridge":
        logits = ways.bridge_encode(tl_model, embeddings, None, None, True, False)
        if not same(logits, wanted):
            raise ValueError(f"{model.name} gives other logits for its own token embeddings than for their ids")
        hidden = ways.bridge_encode(tl_model, embeddings, None, None, False, True)
        split = same(soft_capped(tl_model.unembed(hidden), soft_cap(tl_model)), wanted)
        layers = ways.bridge_cache(tl_model, embeddings[:, :cut])
        cache = bool(layers) and same(
            ways.bridge_encode(tl_model, embeddings[:, cut:], rest, tuple(layers), False, False), wanted[:, cut:]
        )
        return _Traits(plain=False, cache=cache, split=split)
    agrees = False
    if plain.applies(tl_model):
        hidden, _ = plain.encode(tl_model, embeddings)
        agrees = same(plain.decode(tl_model, hidden), wanted) and _same_gradient(model, embeddings)
    past = tuple(ways.blocks_cache(tl_model, embeddings[:, :cut]))
    again = tl_model.unembed(ways.blocks_encode(tl_model, embeddings[:, cut:], rest, past, False))
    first = tl_model.unembed(ways.blocks_encode(tl_model, embeddings, rest + cut, None, False))
    return _Traits(plain=agrees, cache=agrees or same(again, first), split=True)


def _same_gradient(model: Any, embeddings: Tensor) -> bool:
    """Whether one gradient of the plain equations is the one autograd finds through TransformerLens' blocks.

    Forward mode must be its transpose.
    """
    last = embeddings.shape[1] - 1
    at = torch.tensor([last], device=embeddings.device)
    with torch.enable_grad(), model.frozen():
        leaf = embeddings.detach().requires_grad_(True)
        hidden = ways.blocks_encode(model.tl_model, leaf, at, None, False)
        seed = torch.ones_like(hidden) * torch.linspace(-1, 1, hidden.shape[-1], device=hidden.device).to(hidden.dtype)
        (wanted,) = torch.autograd.grad(hidden, leaf, seed)
    slope = plain_slopes.PlainSlopes(model.tl_model, embeddings)
    found, moved = slope.pull(seed[0], at), slope.push(embeddings[0, :1], at[:1] * 0, last)
    one, other = (float((a.double() * b.double()).sum()) for a, b in ((found[0, 0], embeddings[0, 0]), (moved, seed)))
    size = float((found[0, 0].double() * embeddings[0, 0].double()).abs().sum())
    limit = TOLERANCE.get(model.dtype, 2 * HALF_TOLERANCE)
    return difference(found, wanted[0]) <= limit and abs(one - other) <= limit * size


# ---- small checks


def _is_dual(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x) or forward_ad.unpack_dual(x).tangent is not None


def _positions(positions: slice | Tensor | None, embeddings: Tensor) -> Tensor | None:
    if positions is None:
        return None
    if isinstance(positions, slice):
        return torch.arange(embeddings.shape[1], device=embeddings.device)[positions]
    return positions.to(embeddings.device)


def _check_embeddings(model: Any, embeddings: Tensor, before: int) -> None:
    if embeddings.ndim != 3 or embeddings.shape[2] != model.d_model or embeddings.shape[1] == 0:
        raise ValueError(
            f"embeddings must have shape (batch, tokens, {model.d_model}) with at least one token, "
            f"got {tuple(embeddings.shape)}"
        )
    if before + embeddings.shape[1] > model.n_ctx:
        raise ValueError(
            f"{before + embeddings.shape[1]} tokens do not fit the model's context of {model.n_ctx} tokens: "
            "shorten the text"
        )
