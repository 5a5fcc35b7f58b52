"""The wrapper of every handler: it takes the drawing lock and shows exceptions, which ipywidgets would swallow."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from interp_widgets.locks import Rank, RankedLock

ui_lock = RankedLock(Rank.SCREEN, "the screen")
"""Held while any panel reads its controls or draws. One for all panels: linked panels draw into each other, and two
locks taken in two orders would stop both threads."""

after_handlers: list[Callable[[], None]] = []
"""Called at the end of every handler that is in no other handler, unless its thread is computing."""

_local = threading.local()

Handler = TypeVar("Handler", bound=Callable[..., Any])


def inside_handler() -> bool:
    """Whether this thread is in a guarded handler, where nothing may wait for the worker."""
    return getattr(_local, "depth", 0) > 0


@contextmanager
def handling() -> Iterator[None]:
    """Take the drawing lock and mark this thread as being in a handler."""
    with ui_lock:
        _local.depth = getattr(_local, "depth", 0) + 1
        try:
            yield
            if _local.depth == 1 and not getattr(_local, "computing", False):
                for react in after_handlers:
                    react()
        finally:
            _local.depth -= 1


@contextmanager
def computing_here() -> Iterator[None]:
    """Mark this thread as computing: it may have changed a model for as long as the computation takes."""
    before, _local.computing = getattr(_local, "computing", False), True
    try:
        yield
    finally:
        _local.computing = before


def guard(method: Handler) -> Handler:
    """Decorate a handler of a `Panel`: an exception is shown in the panel, a closed panel does nothing.

    An exception in a handler that a browser message called would otherwise vanish without a trace in the notebook.
    """

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with handling():
            if self.closed:
                return None
            try:
                return method(self, *args, **kwargs)
            except (Exception, SystemExit) as error:  # one panel's code must not end the kernel
                self.show_error(error)
                return None

    return cast(Handler, guarded)


def guarded(panel: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a handler of `panel`: for observers, buttons and Bokeh callbacks that are not its methods."""

    @guard
    def call(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    @functools.wraps(function)  # Bokeh looks at the signature
    def handler(*args: Any, **kwargs: Any) -> Any:
        return call(panel, args, kwargs)

    return handler
