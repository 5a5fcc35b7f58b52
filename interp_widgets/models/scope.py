"""Hooks that act for one thread only: whose they are, and how code that looks for hooks tells them from others'."""

from __future__ import annotations

import threading
from typing import Any

_MARK = "_interp_widgets_scope"
_local = threading.local()


def _this_thread() -> object:
    """A mark of the calling thread. Thread numbers are given again when a thread ends, this object never is."""
    if not hasattr(_local, "mark"):
        _local.mark = object()
    return _local.mark


class Scope:
    """The time from entering a ``with`` to leaving it, in the thread that entered."""

    def __init__(self) -> None:
        self._thread = _this_thread()
        self.open = True

    def acts(self) -> bool:
        """Whether its hooks act here and now."""
        return self.open and self._thread is _this_thread()


def mark(hook: Any, scope: Scope) -> None:
    """Say that a function registered at a PyTorch module acts in this scope only."""
    setattr(hook, _MARK, scope)


def acts(hook: Any) -> bool:
    """Whether a registered function acts in the calling thread; one without a mark does so in all."""
    scope: Scope | None = getattr(hook, _MARK, None)
    return scope is None or scope.acts()
