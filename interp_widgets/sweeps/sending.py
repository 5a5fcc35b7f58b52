"""A function on its way to another process: its models are sent by name, and loaded there once."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from interp_widgets.models import Model, load_model
from interp_widgets.models.state import check_as_loaded, edits


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Model):
            return _model, _reference(value)
        return super().reducer_override(value)


def pack(value: Any) -> bytes:
    """Anything as bytes; ValueError for a model that another process cannot load."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def packed(function: Callable[..., Any]) -> tuple[str, bytes]:
    """A function as bytes, and their hash."""
    try:
        content = pack(function)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the function holds something that cannot be sent to another process ({error}): "
            "leave backend out, or make that in the function itself"
        ) from error
    name = hashlib.sha256(content).hexdigest()
    return name, content


def _reference(model: Model) -> tuple[Any, ...]:
    """What loads the model again, and what it must be then."""
    if model.source is None:
        raise ValueError(
            f"{model.name} came from memory, so that no other process can load it: save it with save_pretrained and "
            "load that folder, or leave backend out"
        )
    check_as_loaded(model, "another process")
    if (hooked := edits(model)) is not None:
        raise ValueError(f"{model.name} has been changed ({hooked.sentence}), which stays in this process: undo that")
    options = {"device": str(model.device), "dtype": model.dtype, "backend": model.backend}
    return model.source, tuple(options.items()), model.processed, _fingerprint(model)


def _fingerprint(model: Model) -> str:
    """A hash of what a model and its tokenizer make of a text."""
    reader = getattr(model.tokenizer, "backend_tokenizer", None)
    parts = (model.weight_hash, reader and reader.to_str(), model.chat_template, model.prepend_bos)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.lru_cache(maxsize=2)
def _model(source: str, options: tuple[tuple[str, Any], ...], processed: bool, fingerprint: str) -> Model:
    """The model that was sent by name; RuntimeError where what is loaded is another one."""
    model = load_model(source, processed=processed, **dict(options))
    if _fingerprint(model) != fingerprint:
        raise RuntimeError(
            f"{source} gives another model than the one of this sweep (its weights, tokenizer or chat template): "
            "save the model that you mean and load that folder, or leave backend out"
        )
    return model
