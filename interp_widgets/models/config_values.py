"""What the entries of a model's config.json may be, checked before anything is built from them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..data.files import short
from .errors import LoadError
from .small_copy import LIMITS

_TEXT_PARTS = ("text_config", "decoder", "generator")
"""Where transformers looks for the language model in the config of a model that also reads pictures or sound."""


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What an entry may be, if it is neither null nor a list, which depend on the class of the configuration."""

    words: str
    fits: Callable[[Any], bool]
    never_null: bool = False


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


_COUNT = Allowed("a whole number of at least 1", _whole(1))
_FROM_ZERO = Allowed("a whole number of at least 0", _whole(0))
_ID = Allowed("a token id, or -1 or null for none", _whole(-1))
_POSITIVE = Allowed("a finite number above 0", _is_positive)

ALLOWED: Mapping[str, Allowed] = {
    **dict.fromkeys(
        (
            "d_model", "head_dim", "hidden_size", "kv_heads", "n_embd", "n_head", "n_heads", "n_layer", "n_layers",
            "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "num_kv_heads", "num_layers",
            "vocab_size", *LIMITS,
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            "d_ff", "ffn_dim", "ffn_hidden_size", "intermediate_size", "n_inner", "num_experts", "num_local_experts",
        ),
        _FROM_ZERO,
    ),
    "num_labels": dataclasses.replace(_FROM_ZERO, never_null=True),
    "pad_token_id": _ID,
    "bos_token_id": _ID,
    "eos_token_id": dataclasses.replace(_ID, words="a token id, a list of them, or -1 or null for none"),
    **dict.fromkeys(
        (
            "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon", "rms_norm_eps",
            "rope_theta",
        ),
        _POSITIVE,
    ),
}  # fmt: skip


def check_values(config: Mapping[str, Any], owner: str) -> None:
    """Raise a LoadError where an entry of a configuration is nothing that it can be.

    Null and lists are allowed where the configuration's class allows them, and so is whatever is the class's own
    default; an entry that is absent is not looked at. Transformers itself warns of token ids past the vocabulary.

    Args:
        config: the content of config.json.
        owner: whose it is, for the message, such as "the config.json of folder".
    """
    for part in _parts(config):
        for name, allowed in ALLOWED.items():
            if name in part and not _fits(part, name, allowed):
                raise LoadError(_sentence(name, owner, allowed.words, part[name]))
        for settings in _rotary(part):
            theta = settings.get("rope_theta", 1)
            if not _POSITIVE.fits(theta):
                raise LoadError(_sentence("rope_theta", owner, _POSITIVE.words, theta))


def padding_past_vocabulary(config: Mapping[str, Any], owner: str) -> str | None:
    """The sentence for a padding token past the vocabulary, which some models cannot be built with; None without one.

    Args:
        config, owner: as in `check_values`.
    """
    for part in _parts(config):
        index, size = part.get("pad_token_id"), part.get("vocab_size")
        if isinstance(index, int) and isinstance(size, int) and index >= size:
            return _sentence("pad_token_id", owner, f"a token id up to {size - 1}, or -1 or null for none", index)
    return None


def _sentence(name: str, owner: str, allowed: str, value: Any) -> str:
    shown = "null" if value is None else short(ascii(value))
    return f"{name} in {owner} must be {allowed}, got {shown}: correct it"


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The configuration itself, and that of its language model where it has one."""
    return [config, *(config[name] for name in _TEXT_PARTS if isinstance(config.get(name), dict))]


def _rotary(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings of a configuration: one dictionary, or one for each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = part.get(name)
        if isinstance(settings, dict):
            yield settings
            yield from (each for each in settings.values() if isinstance(each, dict))


def _fits(part: Mapping[str, Any], name: str, allowed: Allowed) -> bool:
    value = part[name]
    if allowed.fits(value):
        return True
    field = _field(part, name)
    if value is None:
        return not allowed.never_null and (field is None or "None" in str(field.type))
    if isinstance(value, list | tuple):
        takes_lists = field is None or "list" in str(field.type) or "tuple" in str(field.type)
        return takes_lists and all(each is None or allowed.fits(each) for each in value)
    return field is not None and bool(value == field.default)


def _field(part: Mapping[str, Any], name: str) -> dataclasses.Field[Any] | None:
    """What the class of a configuration declares of an entry; None where it declares nothing."""
    from transformers import CONFIG_MAPPING

    kind = part.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return None
    declared = CONFIG_MAPPING[kind]
    own = declared.attribute_map.get(name, name)
    fields = dataclasses.fields(declared) if dataclasses.is_dataclass(declared) else ()
    return next((field for field in fields if field.name == own), None)
