"""The verdict on one function of one architecture on one backend: right, refused in a sentence, or wrong."""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from interp_widgets import load_model
from tests.architectures.functions import FUNCTIONS, TOLERANCE, Function, Wrong, reference, tokenizer
from tests.architectures.models import dtype_of, random_model

Backend = Literal["auto", "hooked", "bridge"]
BACKENDS: tuple[Backend, Backend] = ("hooked", "bridge")
"""In the order in which ``"auto"`` tries them."""

_INSIDE = re.compile(
    r"\n|hook_|Traceback|has no attribute|object is not|<class|torch\.|size mismatch|state_dict|NoneType|KeyError"
    r"|unexpected keyword|positional argument|mat1|get_seq_length|not available on MLA|0x[0-9a-f]{6}"
)
"""What only a developer of the libraries underneath would understand."""

_BESIDE = re.compile(r"has no (?!W_gate)(W_\w+): its MLP has no gate")
"""A reason that is not the reason."""


@dataclass(frozen=True)
class Verdict:
    """What one cell of the matrix says."""

    kind: Literal["right", "refused", "wrong"]
    reason: str = ""
    """The sentence of a refusal, or what is wrong."""


def fault_of(sentence: str) -> str | None:
    """What keeps a refusal from being one that a user understands; None for a good one."""
    inside = _INSIDE.search(sentence)
    if inside is not None:
        return f"refused with words from inside ({inside.group()!r}): {sentence}"
    if _BESIDE.search(sentence):
        return f"refused for another reason than there is: {sentence}"
    if len(sentence.split()) < 4:
        return f"refused without a sentence: {sentence!r}"
    return None


def _refusal(error: Exception, what: str) -> Verdict:
    if not isinstance(error, ValueError | TypeError):
        return Verdict("wrong", f"{what} raises {type(error).__name__}: {str(error).strip() or 'without a message'}")
    fault = fault_of(str(error))
    return Verdict("refused", str(error)) if fault is None else Verdict("wrong", fault)


@functools.cache
def loaded(architecture: str, backend: Backend) -> Any:
    """The `Model`, or the error that loading raised; a bridge is the one that ``"auto"`` takes, where it takes one."""
    if backend == "bridge" and getattr(loaded(architecture, "auto"), "backend", None) == "bridge":
        return loaded(architecture, "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return load_model(random_model(architecture), tokenizer=tokenizer(), backend=backend)
        except Exception as error:
            return error


def load_verdict(architecture: str, backend: Backend) -> Verdict:
    """Whether a model loads; ``"auto"`` must take the first backend that does."""
    model = loaded(architecture, backend)
    if isinstance(model, Exception):
        return _refusal(model, "load_model")
    wanted = backend
    if backend == "auto":
        wanted = next((name for name in BACKENDS if not isinstance(loaded(architecture, name), Exception)), backend)
    return Verdict("right") if model.backend == wanted else Verdict("wrong", f"{model.backend} runs, not {wanted}")


@functools.cache
def verdict(architecture: str, function: str, backend: Backend) -> Verdict:
    """Run one function and hold it against the naive loops; a model that does not load refuses every function."""
    model = loaded(architecture, backend)
    if isinstance(model, Exception):
        return Verdict("refused", "the model does not load on this backend")
    wanted, naive = FUNCTIONS[function], reference(architecture)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = wanted.run(model)
    except Exception as error:
        refusal = _refusal(error, function)
        if refusal.kind == "refused" and wanted.due(naive):
            return Verdict("wrong", f"refused where there is an answer: {refusal.reason}")
        return refusal
    missing = [name for name in wanted.needs if not naive.has(name)]
    if missing:
        return Verdict("wrong", f"gives numbers although the architecture has no {missing[0].replace('_', ' ')}")
    return _compared(wanted, architecture, own)


WORST: dict[tuple[str, str, str], float] = {}
"""The largest difference of every comparison made in this process: what the tolerances were chosen by."""


def _compared(function: Function, architecture: str, own: Any) -> Verdict:
    limit = TOLERANCE[dtype_of(architecture)]
    try:
        for comparison in function.compare(reference(architecture), own):
            error = comparison.error()
            WORST[architecture, function.name, comparison.what] = error
            if not error <= limit:
                return Verdict("wrong", f"{comparison.what}: off by {error:.1e} of its size (allowed {limit:.0e})")
    except (Wrong, RuntimeError) as error:  # torch refuses products of weights that do not fit each other
        return Verdict("wrong", str(error))
    return Verdict("right")
