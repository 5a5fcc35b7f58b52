"""What runs where an item is done, which may be another process: nothing here imports what an analysis needs."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from interp_widgets.analysis._core.result import Result
from interp_widgets.arguments import short

here: dict[str, Callable[..., Any]] = {}
"""Functions that this process has sent, by name: a thread of its own gets them as they are."""

Measured = tuple[dict[str, Any], str, float]
"""An item's row, what went wrong with it (empty if nothing did), and its seconds."""


class WorkerNotReady(RuntimeError):
    """A worker cannot make ready what it is to run: no item can be done there."""


class NoRow(TypeError):
    """A result of which no row can be made: where the first ones are such, the sweep stops."""


class Parcel:
    """An item on its way to where it is done. It is packed only if that is another process."""

    def __init__(self, value: Any, pack: Callable[[Any], bytes] = pickle.dumps) -> None:
        self.value, self._pack = value, pack

    def __reduce__(self) -> Any:
        return _opened, (self._pack(self.value),)


def _opened(content: bytes) -> Parcel:
    return Parcel(pickle.loads(content))  # from the process that started this one


def row_of(result: Any) -> dict[str, Any]:
    """The row of a result: what it measures, the entries of a mapping, or a single number or text as ``value``."""
    if isinstance(result, Result):
        try:
            result = result.measures()
        except TypeError as error:
            raise NoRow(str(error)) from error
    if not isinstance(result, Mapping):
        result = {"value": result}
    return {str(name): _cell(name, value) for name, value in result.items()}


def _cell(name: Any, value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # of NumPy or PyTorch
        value = value.item()
    if isinstance(value, int) and abs(value) >= 2**63:
        return float(value)
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return value
    raise NoRow(
        f"the function must give numbers or texts by name, got {short(value)} as {name!r}: give measure= a function "
        "that makes such a mapping of a result"
    )


def error_text(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def run_one(function: Callable[..., Any], value: Any) -> Measured:
    """One item, done."""
    start = time.perf_counter()
    try:
        return row_of(function(value)), "", time.perf_counter() - start
    except Exception as error:
        return {}, error_text(error), time.perf_counter() - start


def run_sent(name: str, content: bytes, item: Parcel) -> Measured:
    """One item by a function that was sent under a name; made of its bytes once per process."""
    _after_a_fork()
    return run_one(here.get(name) or _made(name, content), item.value)


_process = [os.getpid()]


def _after_a_fork() -> None:
    """Leave the threads alone that a forked process knows of and does not have: it would wait for them for ever."""
    if _process[0] != os.getpid():
        _process[0] = os.getpid()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)


def end_with(parent: int) -> None:
    """End this process when the one that started it is gone, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=4)
def _made(name: str, content: bytes) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = pickle.loads(content)  # from the process that started this one
    except Exception as error:
        raise WorkerNotReady(f"a worker cannot make the function ready: {error}") from error
    return function
