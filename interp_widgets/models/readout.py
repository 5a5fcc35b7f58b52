"""The read-out of a residual stream: final norm, unembedding and logit soft cap of any model, block by block.

The logits of many cells (every layer at every position) are never there at once: they come in blocks of the vocabulary,
small enough for the processor's cache, so that a caller reduces each block and forgets it. The numbers are float32 or
wider whatever the model's type: in bfloat16 the 8 bits of a logit move ranks.

Blocks use the model's own weights. Before they are first used on a model they are compared with the model's own logits;
where they differ, and while the user has hooks on the model, the cells go through the model's own modules instead.

A mixture of depths mixes several residual streams. One stream alone is read as its last route reads it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import plain, ways
from .compare import agree, probe_ids
from .hooks import attached
from .mixture_of_depths.graft import by_last_route
from .soft_cap import soft_cap, soft_capped
from .ways import has_hooks

__all__ = ["ReadOut", "read_out", "residuals", "run_blocks"]

_IN_BLOCKS: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""What the comparison found, by TransformerLens model."""


@dataclass(frozen=True)
class ReadOut:
    """How one model turns residual streams into logits; made by `read_out` for one computation."""

    model: Any
    in_blocks: bool
    """Whether `normed` and `block` may be used; else `whole`."""

    @torch.no_grad()
    def normed(self, rows: Tensor) -> Tensor:
        """(..., d_model) the final norm's output for residual streams of that shape, in their type."""
        tl_model = self.model.tl_model
        with self.model.lock, by_last_route(tl_model):
            norm = getattr(tl_model, "ln_final", None)
            if self.model.backend != "bridge":
                return plain.normed(norm, rows)
            return rows if norm is None else _in_type_of(rows, norm)

    @torch.no_grad()
    def block(self, hidden: Tensor, first: int, stop: int) -> Tensor:
        """(..., stop - first) logits of the token ids first..stop from what `normed` gave."""
        with self.model.lock:
            logits = plain.decode(self.model.tl_model, hidden, slice(first, stop))
        return soft_capped(logits, soft_cap(self.model.tl_model), in_place=True)

    @torch.no_grad()
    def whole(self, rows: Tensor) -> Tensor:
        """(batch, positions, d_vocab) logits of residual streams (batch, positions, d_model), by the model's modules.

        A HookedTransformer runs from the final norm on. A bridge cannot start in the middle: it runs whole, with its
        last residual stream replaced.
        """
        if rows.numel() == 0:
            return rows.new_zeros(*rows.shape[:2], self.model.d_vocab)
        rows = rows.to(self.model.dtype)
        layers = self.model.n_layers
        with self.model.lock, by_last_route(self.model.tl_model):
            if self.model.backend != "bridge":
                logits: Tensor = self.model.tl_model(rows, start_at_layer=layers)
            else:
                ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=self.model.device)
                put = {f"blocks.{layers - 1}.hook_resid_post": lambda stream: rows}
                logits = self.model.run(ids, edit=put).logits
        return logits if logits.dtype == torch.float64 else logits.float()


def read_out(model: Any) -> ReadOut:
    """The read-out of a model, compared with the model's own logits on first use (0.1 s and less for small models).

    Raises ValueError where even the model's own modules do not give the model's own logits.

    Example:
        >>> ids = model.tokens("The capital of France is")
        >>> read = read_out(model)
        >>> read.block(read.normed(residuals(model, ids)), 0, 100).shape
        torch.Size([7, 6, 100])
    """
    with model.lock:
        if has_hooks(model.tl_model):
            return ReadOut(model, in_blocks=False)
        if model.tl_model not in _IN_BLOCKS:
            found = _compare(model)
            if found is None:
                return ReadOut(model, in_blocks=False)
            _IN_BLOCKS[model.tl_model] = found
        return ReadOut(model, in_blocks=_IN_BLOCKS[model.tl_model])


@torch.no_grad()
def residuals(model: Any, ids: Tensor) -> Tensor:
    """(layers + 1, positions, d_model) the residual stream entering every block and, last, the final norm.

    In float32 or wider. In memory the layers of one position lie side by side. The unembedding does not run, unless
    the user has hooks on the model: these see the pass they would always see.

    Args:
        model: a `Model`.
        ids: (positions,) token ids to feed.
    """
    batch = model._batch(ids)
    kind = torch.float64 if model.dtype == torch.float64 else torch.float32
    streams = torch.empty(batch.shape[1], model.n_layers + 1, model.d_model, dtype=kind, device=model.device)

    def keep(layer: int) -> Callable[..., Tensor]:
        def write(value: Tensor, hook: Any) -> Tensor:
            streams[:, layer] = value[0]
            if layer > 0:
                drop_pattern(model.tl_model.blocks[layer - 1])
            return value

        return write

    hooks = [(f"blocks.{layer}.hook_resid_pre", keep(layer)) for layer in range(model.n_layers)]
    hooks.append((f"blocks.{model.n_layers - 1}.hook_resid_post", keep(model.n_layers)))
    run_blocks(model, batch, hooks)
    return streams.transpose(0, 1)


@torch.no_grad()
def run_blocks(model: Any, batch: Tensor, hooks: Sequence[tuple[str, Callable[..., Tensor]]]) -> None:
    """A pass through all blocks with these hooks; no unembedding, unless the user has hooks on the model.

    Args:
        model: a `Model`.
        batch: (batch, positions) token ids.
        hooks: names and functions of (value, hook) that return the value.
    """
    tl_model = model.tl_model
    with model.lock:
        hooked = has_hooks(tl_model)
        with attached(tl_model, hooks):
            if hooked:
                tl_model(batch)
            elif model.backend != "bridge":
                tl_model(batch, stop_at_layer=model.n_layers)
            else:
                with ways.unembedding_input(tl_model, keep=False):
                    tl_model(batch, use_cache=False)


def drop_pattern(block: Any) -> None:
    """A bridge leaves its attention pattern (heads, positions, positions) on the module, where nothing reads it."""
    attention = getattr(block, "attn", None)
    if attention is not None and getattr(attention, "_pattern", None) is not None:
        attention._pattern = None


def _in_type_of(rows: Tensor, norm: Any) -> Tensor:
    """A bridge's norm on rows that may be wider than its weights."""
    weights = dict(norm.named_parameters())
    if all(weight.dtype == rows.dtype for weight in weights.values()):
        found: Tensor = norm(rows)
        return found
    widened = {name: weight.to(rows.dtype) for name, weight in weights.items()}
    called: Tensor = torch.func.functional_call(norm, widened, (rows,))
    return called


@torch.no_grad()
def _compare(model: Any) -> bool | None:
    """Whether the blocks give the model's own logits, for the first residual stream too; None if these are NaN."""
    ids = probe_ids(model.d_vocab, model.n_ctx).to(model.device)
    with by_last_route(model.tl_model):
        wanted = model.tl_model(ids)
    if not bool(torch.isfinite(wanted).all()):
        return None
    streams = residuals(model, ids)[[0, -1]]
    read = ReadOut(model, in_blocks=True)
    own = read.whole(streams)
    if not agree(own[1:], wanted.to(own.dtype), model.dtype):
        raise ValueError(
            f"{model.name} gives other logits when its last residual stream is replaced by itself: "
            "its read-out cannot be used, load it with the other backend"
        )
    try:
        found = read.block(read.normed(streams), 0, model.d_vocab)
    except (AttributeError, RuntimeError, TypeError):
        return False  # a norm or an unembedding of another kind, such as a quantised one
    # the first stream is small: a wrong epsilon in the norm shows there only
    return all(agree(found[i], own[i], model.dtype) for i in range(2))
