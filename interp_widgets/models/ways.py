"""Passes through TransformerLens' own modules: the blocks of a HookedTransformer, the transformers model in a bridge.

Both take token embeddings and reuse keys and values of earlier positions. With hooks on the model nothing is cut short.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from .mixture_of_depths.graft import mixture_of
from .plain import KeysValues, hooks_of

OWN_HOOKS = ("transformer_lens.model_bridge", __name__)
"""Modules whose hooks are part of how a pass works."""


def has_hooks(tl_model: Any) -> bool:
    """Whether anyone has a hook on the model that acts in this thread, permanent or not; those that a bridge wires up
    itself do not count."""
    return any(
        not str(getattr(hook, "__module__", "")).startswith(OWN_HOOKS)
        for module in tl_model.modules()
        for hook in hooks_of(module)
    )


# ---- TransformerLens' own blocks


def cache_entry(key: Tensor, value: Tensor, *, frozen: bool) -> Any:
    """TransformerLens' cache of one layer; a frozen one stays as it is when a block reads it."""
    from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry

    return TransformerLensKeyValueCacheEntry(past_keys=key, past_values=value, frozen=frozen)


def blocks_start(tl_model: Any, embeddings: Tensor, first: int) -> tuple[Tensor, Tensor | None]:
    stream, short = tl_model.get_residual(
        tl_model.hook_embed(embeddings), first, return_shortformer_pos_embed=True, device=embeddings.device
    )
    return stream, short


def blocks_cache(tl_model: Any, embeddings: Tensor) -> list[KeysValues]:
    """Keys (not rotated) and values of every layer, each (1, positions, n_kv_heads, d_head)."""
    cfg = tl_model.cfg
    stream, short = blocks_start(tl_model, embeddings, 0)
    made = []
    for block in tl_model.blocks:
        stream = stream.to(next(block.parameters()).device)
        empty = stream.new_empty(1, 0, cfg.n_key_value_heads or cfg.n_heads, cfg.d_head)
        entry = cache_entry(empty, empty, frozen=False)
        stream = block(stream, past_kv_cache_entry=entry, shortformer_pos_embed=short)
        made.append((entry.past_keys, entry.past_values))
    return made


def blocks_encode(
    tl_model: Any, embeddings: Tensor, positions: Tensor | None, past: tuple[KeysValues, ...] | None, hooked: bool
) -> Tensor:
    first = past[0][0].shape[1] if past else 0
    stream, short = blocks_start(tl_model, embeddings, first)
    for index, block in enumerate(tl_model.blocks):
        stream = stream.to(next(block.parameters()).device)
        entry = None
        if past:
            key, value = (part.expand(embeddings.shape[0], -1, -1, -1) for part in past[index])
            entry = cache_entry(key, value, frozen=True)
        stream = block(stream, past_kv_cache_entry=entry, shortformer_pos_embed=short)
    normalise = tl_model.ln_final if tl_model.cfg.normalization_type is not None else (lambda x: x)
    # a mixture reads several streams, all of them whole
    if hooked or positions is None or mixture_of(tl_model) is not None:
        hidden = normalise(stream)
        return hidden if positions is None else hidden[:, positions]
    return normalise(stream[:, positions])


# ---- the transformers model inside a bridge


def bridge_cache(tl_model: Any, embeddings: Tensor) -> list[KeysValues]:
    """Keys and values of every layer, each (1, n_kv_heads, positions, d_head); empty where there is no such cache."""
    from transformers import DynamicCache

    cache = DynamicCache()
    try:
        tl_model.original_model(inputs_embeds=embeddings, past_key_values=cache, use_cache=True)
    except (AttributeError, TypeError, ValueError, KeyError, NotImplementedError):
        return []  # an architecture with a cache of its own kind: its sequences run whole
    layers = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    whole = [(k, v) for k, v in layers if k is not None and v is not None and k.shape[2] == embeddings.shape[1]]
    return whole if whole and len(whole) == tl_model.cfg.n_layers else []


def bridge_options(tl_model: Any, batch: int, past: Sequence[KeysValues]) -> dict[str, Any]:
    """What a pass of ``batch`` sequences from embeddings needs besides them; ``past`` is of batch 1 or of the same."""
    options: dict[str, Any] = {"use_cache": False}
    if past:
        from transformers import DynamicCache

        expanded = [tuple(part.expand(batch, -1, -1, -1) for part in layer) for layer in past]
        options = {"use_cache": True, "past_key_values": DynamicCache(expanded)}
    if hasattr(tl_model, "pos_embed"):  # the bridge repeats position ids by this number
        tl_model.pos_embed._current_batch_size = batch
    return options


def bridge_encode(
    tl_model: Any,
    embeddings: Tensor,
    positions: Tensor | None,
    past: tuple[KeysValues, ...] | None,
    hooked: bool,
    split: bool,
) -> Tensor:
    """Hidden states (``split``) or logits. With hooks on, nothing is left out of the model's own pass."""
    options = bridge_options(tl_model, embeddings.shape[0], past or ())
    if hooked:
        embeddings = tl_model.embed.hook_out(embeddings)
    elif positions is not None:
        options["logits_to_keep"] = positions
    if not split:
        logits = tl_model.original_model(inputs_embeds=embeddings, **options).logits
        return logits[:, positions] if hooked and positions is not None else logits
    with unembedding_input(tl_model, keep=hooked) as caught:
        tl_model.original_model(inputs_embeds=embeddings, **options)
    return caught[0][:, positions] if hooked and positions is not None else caught[0]


@contextmanager
def unembedding_input(tl_model: Any, *, keep: bool) -> Iterator[list[Tensor]]:
    """What enters the unembedding; without ``keep`` it goes on for one position only, to save the product."""
    caught: list[Tensor] = []
    thread = threading.get_ident()

    def catch(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if threading.get_ident() != thread:
            return None
        caught.append(inputs[0])
        return inputs if keep else (inputs[0][:, :1], *inputs[1:])

    handle = tl_model.unembed.register_forward_pre_hook(catch)
    try:
        yield caught
    finally:
        handle.remove()
