"""Waiting in tests: for a signal, never for a time, and with one limit that only what hangs reaches.

A wait that ends when the awaited thing happens may have a generous limit: it costs nothing where the test passes, and a
busy machine does not fail it. `tests/test_waiting.py` finds waits of other kinds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 240
"""Seconds after which what a test waits for counts as never coming."""
LEAST = 60
"""The shortest limit in a test: many waits for one run of a panel have this one or twice as much."""


def until(happened: Callable[[], T], what: str) -> T:
    """Look again and again until something outside this process has happened, and return what was seen."""
    end = time.monotonic() + LIMIT
    while not (seen := happened()):
        assert time.monotonic() < end, f"{what} did not happen within {LIMIT} seconds"
        time.sleep(0.05)
    return seen


def join(*threads: threading.Thread) -> None:
    """Wait for the end of threads."""
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), f"{thread.name} did not end within {LIMIT} seconds"


def beat() -> None:
    """Between two steps of what goes on until something ends it: neither a flood nor a silence."""
    time.sleep(0.01)


def until_stopped(check: Callable[[], None]) -> None:
    """What a run does that only a cancel ends."""
    while True:
        check()
        beat()


def provoke() -> None:
    """Let other threads run for a while, where they must not come between: a correct program passes however long it
    takes."""
    time.sleep(0.05)
