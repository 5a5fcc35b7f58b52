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
    """An item sent to an executor, pickled only if that is another process.

    Where it cannot be pickled or unpickled, that becomes the error of its row.
    """

    error = ""

    def __init__(self, value: Any, pack: Callable[[Any], bytes] = pickle.dumps) -> None:
        self._value, self._pack = value, pack

    def value(self) -> Any:
        """The item."""
        return self._value

    def __reduce__(self) -> Any:
        try:
            return SentItem, (self._pack(self._value), "")
        except BaseException as error:  # whatever the methods of an item raise
            return SentItem, (b"", error_text(error))


class SentItem:
    """An item as it comes to another process."""

    def __init__(self, content: bytes, error: str) -> None:
        self._content, self.error = content, error

    def value(self) -> Any:
        """The item."""
        return pickle.loads(self._content)  # from the process that started this one


def row_of(result: Any) -> dict[str, Any]:
    """The row of a result: its measures, the entries of a mapping, or a single number or string as ``value``."""
    if isinstance(result, Result):
        try:
            result = result.measures()
        except TypeError as error:
            raise InvalidRow(str(error)) from error
    if not isinstance(result, Mapping):
        result = {"value": result}
    return column_names({name: _cell(name, value) for name, value in result.items()})


def column_names(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values by name as str, which any file can hold: half characters (lone surrogates) are escaped."""
    names = [str(name).encode("utf8", "backslashreplace").decode("utf8") for name in values]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidRow(f"two columns are named {twice[0]!r}: rename one of them")
    return dict(zip(names, values.values(), strict=True))


def plain_scalar(value: Any) -> Any:
    """A bool, number or str of NumPy, PyTorch or a class of the user as Python's own; anything else as it is."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # of NumPy or PyTorch
        value = value.item()
    if isinstance(value, np.floating):  # wider than Python's
        value = float(value)
    if isinstance(value, int):
        return value if isinstance(value, bool) else int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    return str.__str__(value) if isinstance(value, str) else value


def _cell(name: Any, value: Any) -> Any:
    value = plain_scalar(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidRow(
        f"the function must return numbers or strings by name, got {short(value)} as {name!r}: give measure= a "
        "function that turns a result into such a mapping"
    )


def error_text(error: BaseException) -> str:
    """Type and message of an error on one line."""
    try:
        message = " ".join(str(error).split())
    except BaseException as another:  # the error is of the user's own class
        message = f"(its text raises {type(another).__name__})"
    return f"{type(error).__name__}: {message}"[:500]


def run_one(function: Callable[..., Any], value: Callable[[], Any]) -> Measured:
    """Run the function on one item; whatever it raises, `SystemExit` too, is returned as its error text."""
    start, process = time.perf_counter(), os.getpid()
    try:
        return row_of(function(value())), "", time.perf_counter() - start
    except BaseException as error:
        if os.getpid() != process:  # a copy of this process that the item has made, and that ends
            raise
        return {}, error_text(error), time.perf_counter() - start


def run_sent(name: str, content: bytes, item: ItemToSend | SentItem) -> Measured:
    """Run one item with a function that was sent by name; it is unpickled once per process."""
    _limit_threads_after_fork()
    function = sent_functions.get(name) or _unpickle_function(name, content)
    return ({}, item.error, float("nan")) if item.error else run_one(function, item.value)


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
    except BaseException as error:  # a module that it imports may call sys.exit
        raise WorkerNotReady(f"a worker cannot load the function: {error}") from error
    return function
