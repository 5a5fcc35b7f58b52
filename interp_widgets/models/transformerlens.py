"""The parts of TransformerLens that this package uses, and where it keeps them: no other module imports it.

`tests/models/test_transformerlens.py` holds this list against TransformerLens 3.9 and the newest 4.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

PARTS = {
    "AttentionBridge": "transformer_lens.model_bridge.generalized_components",
    "build_bridge_from_module": "transformer_lens.model_bridge.sources",
    "resolve_activation_fn": "transformer_lens.model_bridge.generalized_components.gated_mlp",
}
"""Names in every version → their modules."""
HOOKED_PARTS = {
    "HookedTransformer": "transformer_lens",
    "ProcessWeights": "transformer_lens.weight_processing",
    "TransformerLensKeyValueCache": "transformer_lens.cache.key_value_cache",
    "TransformerLensKeyValueCacheEntry": "transformer_lens.cache.key_value_cache_entry",
    "get_pretrained_model_config": "transformer_lens.loading_from_pretrained",
    "get_pretrained_state_dict": "transformer_lens.loading_from_pretrained",
}
"""Names that are used where there is a HookedTransformer, in 3.x, → their modules."""


def part(name: str) -> Any:
    """A part of TransformerLens; the first one takes 3 to 5 s to import, so ask for it where it is used.

    Raises ImportError if the installed version does not have it.
    """
    load()
    where = (PARTS | HOOKED_PARTS)[name]
    module = import_module(where)
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ImportError(f"{where} has no {name}", name=where) from error


@cache
def load() -> None:
    """Import TransformerLens, and keep it from changing transformers for the whole process.

    Its 3.x replaces the eager attention of Gemma 2, and that of Gemma 3 by the same function, when it first builds a
    bridge with rotary embeddings: all such models of the process would run it, also those with which a loaded model is
    compared. The hooks that its function calls are those that the bridge's own attention calls.
    """
    import transformer_lens  # noqa: F401

    rotary: Any = import_module("transformer_lens.model_bridge.generalized_components.position_embeddings_attention")
    if hasattr(rotary, "_EAGER_ATTENTION_WRAPPED"):
        rotary._EAGER_ATTENTION_WRAPPED = True


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens still has HookedTransformer (3.x has, 4.x has not)."""
    try:
        return part("HookedTransformer") is not None
    except ImportError:
        return False


def is_hooked(source: object) -> bool:
    """Whether an object is a HookedTransformer, without importing TransformerLens."""
    return any(base.__name__ == "HookedTransformer" for base in type(source).__mro__)


def is_bridge(source: object) -> bool:
    """Whether an object is a TransformerBridge, without importing TransformerLens."""
    return any(base.__name__ == "TransformerBridge" for base in type(source).__mro__)
