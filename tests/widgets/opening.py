"""Opening panels in tests, waiting for their answers, and leaving nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.waiting import LIMIT, join

P = TypeVar("P")


@contextmanager
def opening(kind: Callable[..., P], *, wait: bool = True, **defaults: Any) -> Iterator[Callable[..., P]]:
    """Gives a function that opens panels of a kind; afterwards every worker they started must be gone."""
    opened: list[Any] = []
    others = set(threading.enumerate())

    def build(*args: Any, **options: Any) -> P:
        opened.append(kind(*args, **{**defaults, **options}))
        return settle(opened[-1]) if wait else opened[-1]

    try:
        yield build
    finally:  # after a failure too: a panel left open would keep the worker of every later test
        for panel in opened:
            panel.close()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("interp-widgets"):
            join(thread)  # closing the last panel must end its worker


def settle(panel: P) -> P:
    """Wait for the answer to a change, pressing Run where the forecast asks for it."""
    asked: Any = panel
    assert asked.wait(LIMIT)
    if asked.status.state == "waiting":
        asked.go()
    assert asked.wait(LIMIT)
    return panel


def at_once(*works: Callable[[], object]) -> None:
    """Each in a thread of its own, as JupyterLab's messages may come; waits until all are done."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    join(*threads)


def hooks_on(model: Any) -> int:
    """Hooks on the TransformerLens model, forward and backward."""
    return sum(len(point.fwd_hooks) + len(point.bwd_hooks) for point in model.tl_model.hook_dict.values())
