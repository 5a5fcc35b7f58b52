"""Cancelling inside a pass: a thread's computation stops between two layers, whichever engine runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch.nn.modules.module import register_module_forward_pre_hook

_thread = threading.local()


@contextmanager
def stopping(check: Callable[[], None] | None) -> Iterator[None]:
    """Context manager that calls ``check``, which raises to cancel, before every layer that this thread computes.

    With None, the check of the enclosing `stopping` remains in force.

    >>> class Enough(Exception):
    ...     "Raised to cancel."
    >>> def check():
    ...     raise Enough
    >>> with stopping(check):
    ...     try:
    ...         _ = model.generate("Paris is in", max_new_tokens=1)
    ...     except Enough:
    ...         print("cancelled")
    cancelled
    """
    if check is None:
        yield
        return
    # the equations check between layers; a model's own modules, when one of them is called
    handle = None if _current() is not None else register_module_forward_pre_hook(_before_module)
    try:
        with _checked_by(check):
            yield
    finally:
        if handle is not None:
            handle.remove()


def unstoppable() -> AbstractContextManager[None]:
    """Disable cancelling inside, for short computations whose result is cached."""
    return _checked_by(None)


def stop_point() -> None:
    """Call the check of the enclosing `stopping`, which raises to cancel."""
    check = _current()
    if check is not None:
        check()


def _current() -> Callable[[], None] | None:
    check: Callable[[], None] | None = getattr(_thread, "check", None)
    return check


@contextmanager
def _checked_by(check: Callable[[], None] | None) -> Iterator[None]:
    before, _thread.check = _current(), check
    try:
        yield
    finally:
        _thread.check = before


def _before_module(module: object, inputs: object) -> None:
    stop_point()
