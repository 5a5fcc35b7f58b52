"""Opening panels in tests, waiting for their answers, and leaving nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

P = TypeVar("P")


@contextmanager
def opening(kind: Callable[..., P], *, wait: bool = True, **defaults: Any) -> Iterator[Callable[..., P]]:
    """Gives a function that opens panels of a kind; afterwards every worker they started must be gone."""
    opened: list[Any] = []
    others = set(threading.enumerate())

    def build(*args: Any, **options: Any) -> P:
        opened.append(kind(*args, **{**defaults, **options}))
        return settle(opened[-1]) if wait else opened[-1]

    yield build
    for panel in opened:
        panel.close()
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("interp-widgets"):
            thread.join(10)
            assert not thread.is_alive(), "closing the last panel must end its worker"


def settle(panel: P) -> P:
    """Wait for the answer to a change, pressing Run where the forecast asks for it."""
    asked: Any = panel
    assert asked.wait(60)
    if asked.status.state == "waiting":
        asked.go()
    assert asked.wait(60)
    return panel


def at_once(*works: Callable[[], object]) -> None:
    """Each in a thread of its own, as JupyterLab's messages may come; waits until all are done."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def hooks_on(model: Any) -> int:
    """Hooks on the TransformerLens model, forward and backward."""
    return sum(len(point.fwd_hooks) + len(point.bwd_hooks) for point in model.tl_model.hook_dict.values())
