"""What no function takes, and whether a refusal is a sentence of the package: a fuzzer of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import interp_widgets

PACKAGE = str(Path(interp_widgets.__file__).parent)
NAN = float("nan")
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 10**6, 10**30, -(10**6), 1.5, NAN, float("inf"), 1e-320, complex(1, 1),
    "", " ", "\ud800", "a\x00b", "word " * 500, b"ab",
    [], [[]], [[1], [2, 3]], [0], [-1], [10**6], [10**30], [1.5], [NAN], ["a"], [None], ["\ud800"], [True], (3, 1),
    (0, 10**9), {}, {"a": 1}, {1}, range(0), [5] * 1000, object(), lambda *anything: None,
    np.array([]), np.array(3), np.int64(2), np.float32(0.5), np.array([[1.0, NAN]]),
    torch.tensor([]), torch.tensor([1, 2]), torch.tensor(1.5), torch.zeros(3, 3), torch.full((6, 32), NAN),
)  # fmt: skip
"""Values of every kind, most of which are wrong for most arguments."""
KINDS = (ValueError, TypeError, FileNotFoundError, MemoryError)
UNTRIED = ("self", "model", "progress", "check", "on_token", "annotator")


def complaint(call: Callable[[], Any]) -> str | None:
    """What is wrong with the error that a call raises; None for none, or for one sentence raised by the package."""
    try:
        made = call()
        if hasattr(made, "__enter__"):
            with made:
                pass
        return None
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = "" if trace is None else trace.tb_frame.f_code.co_filename
        text = str(error)
        if not isinstance(error, KINDS) or not place.startswith(PACKAGE):
            return f"{type(error).__name__} from {place}: {text[:160]}"
        if "\n" in text or len(text.split()) < 4:
            return f"no sentence: {text[:160]}"
        return None


def complaints(function: Callable[..., Any], right: Mapping[str, Any], leave: Collection[str] = ()) -> list[str]:
    """What is wrong when one argument after the other is odd and the others are right."""
    found = {}
    for name in inspect.signature(function).parameters:
        if name in UNTRIED or name in leave:
            continue
        for odd in ODD:
            fault = complaint(lambda name=name, odd=odd: function(**{**right, name: odd}))  # type: ignore[misc]
            if fault is not None:
                shown = repr(odd)[:40].encode("ascii", "backslashreplace").decode()
                found.setdefault((name, fault), f"{name}={' '.join(shown.split())}: {fault}")
    return list(found.values())
