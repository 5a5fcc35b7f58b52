"""How a model reads text, as digests of its tokenizer, special tokens included, and of its chat template.

The digest of a tokenizer is the same in every process. Everything in it is read when the state must be exact;
otherwise the last digest is used as long as nothing that is cheap to read has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import xxhash

_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_SETTINGS = ("split_special_tokens", "clean_up_tokenization_spaces")
"""Settings of a fast tokenizer that are not in its file."""
_ELSEWHERE = {
    "cache", "chat_template", "deprecation_warnings", "init_inputs", "init_kwargs", "model_max_length", "name_or_path",
    "padding_side", "tokenizer_file", "truncation_side", "verbose", "vocab_file",
}  # fmt: skip
"""Attributes of a tokenizer written in Python that say where it is from, that are compared by themselves, or that no
reading of a text depends on."""
_SAMPLES = 64
"""Entries of the vocabulary that a look without reading everything compares."""


class Reading:
    """How one model reads text; remembers the digest of its tokenizer."""

    def __init__(self) -> None:
        self._last: tuple[Any, bytes, str] = (None, b"", "")
        """The tokenizer, what was cheap to read of it, and its digest."""

    def digest(self, model: Any, *, exact: bool = True) -> str:
        """The digest of the tokenizer with its special tokens; empty for a model without one.

        Args:
            model: a `Network` or `Model`.
            exact: read everything; otherwise a vocabulary of the same size that was exchanged inside the same
                tokenizer may be missed.
        """
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is None:
            return ""
        glance = xxhash.xxh3_128_digest(_text([_glance(tokenizer), _own(model)]).encode())
        before, seen, digest = self._last
        if exact or before is not tokenizer or seen != glance:
            digest = xxhash.xxh3_64_hexdigest(_text([_tokenizer_text(tokenizer), _own(model)]).encode())
            self._last = tokenizer, glance, digest
        return digest


def template_digest(model: Any) -> str:
    """The digest of the template that writes the messages of a chat; empty for a model without one."""
    template = getattr(getattr(model, "tokenizer", None), "chat_template", None)
    return xxhash.xxh3_64_hexdigest(_text(template).encode()) if template else ""


def _tokenizer_text(tokenizer: Any) -> str:
    """Everything in a tokenizer that ids and strings of a text depend on, as text that is the same in every process."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return _text([_kind(tokenizer), _attributes(tokenizer)])
    # padding and truncation come first; no text is read with them, and transformers resets them at every call
    head, mark, rest = core.to_str().partition('"added_tokens":')
    return _text([rest if mark else head, *_around_core(tokenizer)])


def _glance(tokenizer: Any) -> Any:
    """The part of a tokenizer that is cheap to read."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return [(name, _brief(value)) for name, value in _attributes(tokenizer).items()]
    parts = (getattr(core, name) for name in _PARTS)
    size, model = core.get_vocab_size(with_added_tokens=True), core.model
    settings = (getattr(model, name) for name in dir(model) if name[0] != "_")
    return [
        size,
        [core.id_to_token(index) for index in range(0, size, max(1, size // _SAMPLES))],
        [(index, repr(token)) for index, token in core.get_added_tokens_decoder().items()],
        [None if part is None else part.__getstate__().decode() for part in parts],
        type(model).__name__,
        [value for value in settings if not callable(value)],
        *_around_core(tokenizer),
    ]


def _around_core(tokenizer: Any) -> list[Any]:
    """What a fast tokenizer has beside its core."""
    kind = type(tokenizer)
    own = "" if kind.__module__.partition(".")[0] == "transformers" else _kind(tokenizer)
    return [own, *(getattr(tokenizer, name, None) for name in ("special_tokens_map", *_SETTINGS))]


def _own(model: Any) -> list[Any]:
    """What the model took from its tokenizer when it was loaded."""
    names = ("bos_token_id", "_stop_ids", "_special_ids", "_piece_kind")
    return [getattr(model, name, None) for name in names]


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object written in Python that a text may be read with."""
    return {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in _ELSEWHERE}


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _brief(value: Any) -> Any:
    """A value of a tokenizer written in Python; of a container, how much is in it."""
    if isinstance(value, str | int | float | bool | None):
        return value
    return f"{_kind(value)} {len(value)}" if hasattr(value, "__len__") else _kind(value)


def _text(value: Any, inside: tuple[int, ...] = ()) -> str:
    """A value as text, the same in every process."""
    if isinstance(value, str | int | float | bool | None):
        return json.dumps(value)
    if isinstance(value, bytes):
        return xxhash.xxh3_128_hexdigest(value)
    if id(value) in inside:
        return "itself"
    inner = (*inside, id(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(key, inner)}:{_text(part, inner)}" for key, part in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(_text(part, inner) for part in value)) + "}"
    if isinstance(value, Iterable) and hasattr(value, "__len__"):
        return "[" + ",".join(_text(part, inner) for part in value) + "]"
    if hasattr(value, "serialized_model_proto"):  # SentencePiece
        return _text(value.serialized_model_proto())
    if isinstance(value, re.Pattern):
        return f"pattern {value.flags} {_text(value.pattern)}"
    if not hasattr(value, "__dict__"):  # such as an added token of the tokenizers library
        return repr(value)
    return f"{_kind(value)} {_text(_attributes(value), inner)}"
