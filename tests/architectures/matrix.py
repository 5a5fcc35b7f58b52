"""The verdict on one function of one architecture on one backend: right, refused in a sentence, or wrong."""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tests.architectures.functions import FUNCTIONS, TOLERANCE, Function, Wrong, reference, tokenizer
from tests.architectures.models import ARCHITECTURES, dtype_of, random_model

from interp_widgets import load_model

BACKENDS: tuple[Literal["hooked", "bridge"], ...] = ("hooked", "bridge")

_INSIDE = re.compile(
    r"\n|hook_|Traceback|object has no attribute|object is not|has no attribute|<class|torch\.Size|size mismatch"
    r"|state_dict|NoneType|KeyError|unexpected keyword|positional argument|0x[0-9a-f]{6}"
)
"""What only a developer of the library underneath would understand."""


@dataclass(frozen=True)
class Verdict:
    """What one cell of the matrix says."""

    kind: Literal["right", "refused", "wrong"]
    reason: str = ""
    """The sentence of a refusal, or what is wrong."""


def fault_of_sentence(sentence: str) -> str | None:
    """What keeps a refusal from being one that a user understands; None for a good one."""
    inside = _INSIDE.search(sentence)
    if inside is not None:
        return f"refused with words from inside ({inside.group()!r}): {sentence}"
    if len(sentence.split()) < 4:
        return f"refused without a sentence: {sentence!r}"
    return None


@functools.cache
def loaded(architecture: str, backend: str) -> Any:
    """The `Model`, or the error that loading raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return load_model(random_model(architecture), tokenizer=tokenizer(), backend=backend)  # type: ignore[arg-type]
        except Exception as error:
            return error


def _refusal(error: Exception, what: str) -> Verdict:
    if not isinstance(error, ValueError | TypeError):
        return Verdict("wrong", f"{what} raises {type(error).__name__}: {str(error).strip() or 'without a message'}")
    fault = fault_of_sentence(str(error))
    return Verdict("refused", str(error)) if fault is None else Verdict("wrong", fault)


@functools.cache
def verdict(architecture: str, function: str, backend: str) -> Verdict:
    """Run one function and hold it against the naive loops."""
    model = loaded(architecture, backend)
    if isinstance(model, Exception):
        return _refusal(model, "load_model")
    wanted, naive = FUNCTIONS[function], reference(architecture)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = wanted.run(model)
    except Exception as error:
        return _refusal(error, function)
    missing = [name for name in wanted.needs if not naive.has(name)]
    if missing:
        return Verdict("wrong", f"gives numbers although the architecture has no {missing[0].replace('_', ' ')}")
    return _compared(wanted, architecture, own)


def _compared(function: Function, architecture: str, own: Any) -> Verdict:
    limit = TOLERANCE[dtype_of(architecture)]
    try:
        for comparison in function.compare(reference(architecture), own):
            error = comparison.error()
            WORST[architecture, function.name, comparison.what] = error
            if not error <= limit:
                return Verdict("wrong", f"{comparison.what}: off by {error:.1e} of its size (allowed {limit:.0e})")
    except Wrong as error:
        return Verdict("wrong", str(error))
    return Verdict("right")


WORST: dict[tuple[str, str, str], float] = {}
"""The largest difference of every comparison made in this process: what the tolerances were chosen by."""

__all__ = ["ARCHITECTURES", "BACKENDS", "FUNCTIONS", "Verdict", "loaded", "torch", "verdict"]
