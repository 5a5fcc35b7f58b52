"""A small random model of another model's configuration, on which long sequences are cheap.

Sliding windows, the original context of a scaled rotary embedding and the number of learned positions are boundaries:
a conversion can be correct up to one and wrong past it. The small copy has the model's class and its kinds of layers,
but few layers, narrow matrices and boundaries of about ten tokens, so that a short sequence crosses all of them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import torch

WINDOWS = (
    "sliding_window",
    "sliding_window_size",
    "attention_window_size",
    "attention_chunk_size",
    "window_size",
    "local_attention",
    "original_max_position_embeddings",
)
"""Names under which configurations declare a length where attention or positions change."""
LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "context_length")
"""Names under which configurations declare the largest number of positions."""

STEP = 16
"""Tokens between two boundaries of a small copy."""
D_VOCAB = 128
N_HEADS = 4
KINDS = 4
"""A list with an entry per layer is taken to encode kinds of layers if it has at most this many different entries."""


def _dictionaries(tree: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary in a configuration; rotary settings are nested one or two levels deep."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _dictionaries(value)


def _lengths(tree: dict[str, Any], names: tuple[str, ...]) -> set[int]:
    return {
        value
        for part in _dictionaries(tree)
        for name in names
        if isinstance(value := part.get(name), int) and not isinstance(value, bool) and value > 0
    }


def position_limit(config: Any) -> int | None:
    """The largest number of positions that a transformers configuration declares; None if it declares none."""
    lengths = [value for name in LIMITS if isinstance(value := getattr(config, name, None), int) and value > 0]
    return min(lengths) if lengths else None


def boundaries(config: Any) -> tuple[int, ...]:
    """The lengths past which a model of this configuration may compute differently, ascending.

    The largest number of positions is one of them, except for plain rotary positions, which are the same at any length.
    """
    tree = config.to_dict()
    lengths, limit = _lengths(tree, WINDOWS), position_limit(config)
    rotary = [part for part in _dictionaries(tree) if "rope_theta" in part or "rope_type" in part]
    plain = bool(rotary) and all(part.get("rope_type", "default") == "default" for part in rotary)
    if limit is not None:
        lengths = {length for length in lengths if length < limit} | (set() if plain else {limit})
    return tuple(sorted(lengths))


def length_past_bounds(config: Any) -> int:
    """The number of tokens that crosses every boundary of a configuration, if its positions allow it; 0 without any."""
    lengths, limit = boundaries(config), position_limit(config)
    if not lengths:
        return 0
    return lengths[-1] + STEP if limit is None else min(lengths[-1] + STEP, limit)


def small_config(config: Any) -> Any:
    """The configuration of the small copy.

    It keeps the head size, the kinds of layers and all settings that are not sizes. Lists with an entry per layer are
    shortened like the layers.

    Raises any error of the configuration's class for incompatible numbers.
    """
    tree = copy.deepcopy(config.to_dict())
    names = dict(getattr(config, "attribute_map", None) or {})

    def put(name: str, value: int) -> None:
        tree[names.get(name, name)] = value

    layers = _layers(tree, config.num_hidden_layers)
    for name, value in tree.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers > 1:
            tree[name] = value[:layers]
    if isinstance(tree.get("attention_types"), list):  # GPT-Neo: [[kinds, how often they repeat]]
        kinds = tree["attention_types"][0][0]
        tree["attention_types"], layers = [[kinds, 1]], len(kinds)
        tree.pop("attention_layers", None)
    if isinstance(tree.get("max_window_layers"), int):
        kinds = tree.get("layer_types") or []
        tree["max_window_layers"] = next((i for i, kind in enumerate(kinds) if "sliding" in kind), layers)
    wide, heads = config.hidden_size, getattr(config, "num_attention_heads", None)
    width = 64
    if isinstance(heads, int) and heads > 0:
        size = getattr(config, "head_dim", None) or wide // heads
        shared = getattr(config, "num_key_value_heads", None)
        put("num_attention_heads", N_HEADS)
        if isinstance(shared, int):
            put("num_key_value_heads", N_HEADS if shared == heads else min(shared, N_HEADS // 2))
        width = N_HEADS * size
    for name, value in tree.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if value == wide and name not in WINDOWS + LIMITS:
            tree[name] = width
        elif "layer" not in name and any(part in name for part in ("intermediate", "ffn", "inner")) and value > 64:
            tree[name] = 2 * width if value > wide else 64
        elif name.endswith("token_id") and value >= D_VOCAB:
            tree[name] = D_VOCAB - 1
    put("num_hidden_layers", layers)
    put("hidden_size", width)
    put("vocab_size", D_VOCAB)
    _shorten(tree)
    tree["dtype"] = None
    return type(config).from_dict(tree)


def _layers(tree: dict[str, Any], count: int) -> int:
    """Number of first layers that include every kind of layer, at least two if the model has two."""
    needed = min(2, count)
    for value in tree.values():
        if not isinstance(value, list) or len(value) != count or not all(isinstance(kind, str | int) for kind in value):
            continue
        if len(set(value)) <= KINDS:
            needed = max(needed, 1 + max(value.index(kind) for kind in set(value)))
    return needed


def _shorten(tree: dict[str, Any]) -> None:
    """Replace the declared boundaries by ones of a few tokens, in the same order; equal ones stay equal."""
    lengths = sorted(_lengths(tree, WINDOWS + LIMITS))
    short = {length: min(length, STEP * (rank + 1)) for rank, length in enumerate(lengths)}
    for part in _dictionaries(tree):
        for name in WINDOWS + LIMITS:
            if type(part.get(name)) is int:
                part[name] = short.get(part[name], part[name])


def small_random_copy(model_class: Any, config: Any) -> Any:
    """A transformers model in float32 on the CPU, with random weights large enough to reveal a missing term.

    Raises any error of transformers for a configuration that it cannot build.
    """
    generator = torch.Generator().manual_seed(20240607)
    with torch.random.fork_rng(devices=[]):
        model = model_class._from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.add_(0.1 * noise)
    return model.eval()


def config_key(config: Any) -> str:
    """A key that is the same for two configurations exactly if their small copies are the same."""
    names = ("_name_or_path", "name_or_path", "transformers_version", "dtype", "architectures")
    tree = {name: value for name, value in config.to_dict().items() if name not in names}
    return json.dumps(tree, sort_keys=True, default=str)
