"""Cancelling inside a pass: what a thread computes stops between two layers, whichever engine runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch.nn.modules.module import register_module_forward_pre_hook

_thread = threading.local()


@contextmanager
def stopping(check: Callable[[], None] | None) -> Iterator[None]:
    """Call ``check``, which raises to cancel, before every layer of what this thread computes inside.

    None leaves it at the check of the `stopping` around this one.

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
    # the equations ask between their layers; a model's own modules, when one of them is called
    handle = None if _current() is not None else register_module_forward_pre_hook(_before_module)
    try:
        with _checked_by(check):
            yield
    finally:
        if handle is not None:
            handle.remove()


def unstoppable() -> AbstractContextManager[None]:
    """Let nothing cancel inside: for what takes moments and is kept, as whether a route serves a model."""
    return _checked_by(None)


def stop_point() -> None:
    """Raise what the `stopping` around it raises to cancel."""
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
