"""The keyword under which transformers passes a key/value cache: ``past_key_values``, from 5.24 on ``cache``."""

from __future__ import annotations

import inspect
from typing import Any

from .transformerlens import part

OLD, NEW = "past_key_values", "cache"


def cache_keyword(hf_model: Any) -> str:
    """The keyword of a transformers model's forward pass, and the name of the cache in its output."""
    return NEW if NEW in inspect.signature(type(hf_model).forward).parameters else OLD


def take_either_keyword(bridge: Any) -> None:
    """Let the attention of a bridge find the cache under either keyword.

    TransformerLens 4.3 and older looks for the old one only; without its cache every step would attend to itself alone.
    """
    if cache_keyword(bridge.original_model) == OLD:
        return
    attention = part("AttentionBridge")
    for module in bridge.modules():
        if isinstance(module, attention):
            module.register_forward_pre_hook(_add_old, with_kwargs=True)
            module.original_component.register_forward_pre_hook(_drop_old, with_kwargs=True)


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _add_old(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
    return inputs, ({OLD: keywords[NEW]} if NEW in keywords else {}) | keywords


def _drop_old(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
    return inputs, {name: value for name, value in keywords.items() if name != OLD or NEW not in keywords}
