"""Dims the pictures whose models have changed since their results were computed.

All open panels are compared with their models at the end of every cell and of every handler. This takes milliseconds
and never waits: a model that is computing is compared once it has finished.
"""

from __future__ import annotations

import weakref
from typing import Any

from interp_widgets.models.state import State

from . import guard
from .identity import state_now

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def follow(panel: Any) -> None:
    """Compare a panel with its models from now on, until it is closed."""
    from IPython.core.getipython import get_ipython

    _open.add(panel)
    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)  # registering it again does nothing


def unfollow(panel: Any) -> None:
    """Forget a closed panel."""
    _open.discard(panel)


def _after_cell(_result: Any = None) -> None:
    with guard.handling():  # at the end of which all panels are compared
        pass


def compare() -> None:
    """Dim the pictures of all open panels whose models have changed since, and undim those that are up to date."""
    states: dict[int, State | None] = {}

    def now(model: Any) -> State | None:
        if id(model) not in states:
            states[id(model)] = state_now(model)
        return states[id(model)]

    for panel in list(_open):
        panel.compare_models(now)


guard.after_handlers.append(compare)
