"""Pickles a function for another process. Models are sent as their source and loaded there once."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from interp_widgets.models import Model, load_model
from interp_widgets.models.state import check_as_loaded, edits, facts


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Model):
            return _load_sent_model, _model_reference(value)
        return super().reducer_override(value)


def pack(value: Any) -> bytes:
    """A value pickled to bytes; ValueError for a model that another process cannot load."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def pack_function(function: Callable[..., Any]) -> tuple[str, bytes]:
    """The hash of a pickled function, and its bytes; ValueError if it cannot be pickled."""
    try:
        content = pack(function)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the function holds something that cannot be sent to another process ({error}): "
            "leave backend out, or create it inside the function"
        ) from error
    name = hashlib.sha256(content).hexdigest()
    return name, content


def _model_reference(model: Model) -> tuple[Any, ...]:
    """The arguments with which `_load_sent_model` loads the model again."""
    if model.source is None:
        raise ValueError(
            f"{model.name} was not loaded from a file, so no other process can load it: save it with save_pretrained "
            "and load that folder, or leave backend out"
        )
    check_as_loaded(model, "another process")
    if (hooked := edits(model)) is not None:
        raise ValueError(
            f"{model.name} has been changed ({hooked.sentence}), which another process does not see: undo that"
        )
    options = {
        "device": str(model.device), "dtype": model.dtype, "backend": model.backend,
        "allow_mismatch": model.allow_mismatch,
    }  # fmt: skip
    return model.source, tuple(options.items()), model.processed, _fingerprint(model)


def _fingerprint(model: Model) -> str:
    """A hash of what a model's numbers depend on."""
    return hashlib.sha256(repr(facts(model)).encode()).hexdigest()


@functools.lru_cache(maxsize=2)
def _load_sent_model(source: str, options: tuple[tuple[str, Any], ...], processed: bool, fingerprint: str) -> Model:
    """Load a model that was sent; RuntimeError if it differs from the model of the sweep."""
    model = load_model(source, processed=processed, **dict(options))
    if _fingerprint(model) != fingerprint:
        raise RuntimeError(
            f"{source} holds a different model from that of this sweep (weights, tokenizer or chat template): "
            "save the model of the sweep and load that folder, or leave backend out"
        )
    return model
