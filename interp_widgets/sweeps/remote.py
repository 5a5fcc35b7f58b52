"""Runs one item, possibly in a worker process. Imports nothing that only an analysis needs."""

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

sent_functions: dict[str, Callable[..., Any]] = {}
"""Functions that this process has sent, by name; executors of threads use them without unpickling."""

Measured = tuple[dict[str, Any], str, float]
"""An item's row, its error (empty if it succeeded), and its seconds."""


class WorkerNotReady(RuntimeError):
    """Raised by a worker that cannot load the function: it can run no item."""


class InvalidRow(TypeError):
    """Raised for a result that cannot become a row: if the first results are such, the sweep stops."""


class ItemToSend:
    """An item sent to an executor, pickled only if that is another process."""

    def __init__(self, value: Any, pack: Callable[[Any], bytes] = pickle.dumps) -> None:
        self.value, self._pack = value, pack

    def __reduce__(self) -> Any:
        return _unpickle_item, (self._pack(self.value),)


def _unpickle_item(content: bytes) -> ItemToSend:
    return ItemToSend(pickle.loads(content))  # from the process that started this one


def row_of(result: Any) -> dict[str, Any]:
    """The row of a result: its measures, the entries of a mapping, or a single number or string as ``value``."""
    if isinstance(result, Result):
        try:
            result = result.measures()
        except TypeError as error:
            raise InvalidRow(str(error)) from error
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
    raise InvalidRow(
        f"the function must return numbers or strings by name, got {short(value)} as {name!r}: give measure= a "
        "function that turns a result into such a mapping"
    )


def error_text(error: BaseException) -> str:
    """Type and message of an error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def run_one(function: Callable[..., Any], value: Any) -> Measured:
    """Run the function on one item; an exception is returned as its error text."""
    start = time.perf_counter()
    try:
        return row_of(function(value)), "", time.perf_counter() - start
    except Exception as error:
        return {}, error_text(error), time.perf_counter() - start


def run_sent(name: str, content: bytes, item: ItemToSend) -> Measured:
    """Run one item with a function that was sent by name; it is unpickled once per process."""
    _limit_threads_after_fork()
    return run_one(sent_functions.get(name) or _unpickle_function(name, content), item.value)


_process = [os.getpid()]


def _limit_threads_after_fork() -> None:
    """Use one thread in a forked process: it would wait forever for torch's threads, which are not copied."""
    if _process[0] != os.getpid():
        _process[0] = os.getpid()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)


def exit_with_parent(parent: int) -> None:
    """Exit this process when its parent has ended, even if the parent was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=4)
def _unpickle_function(name: str, content: bytes) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = pickle.loads(content)  # from the process that started this one
    except Exception as error:
        raise WorkerNotReady(f"a worker cannot load the function: {error}") from error
    return function
