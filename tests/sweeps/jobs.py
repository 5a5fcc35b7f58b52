"""What the processes of a sweep run in the tests."""

from __future__ import annotations

import os
import signal
from typing import Any


def square(n: int) -> dict[str, Any]:
    return {"square": n * n, "parity": "odd" if n % 2 else "even"}


def fails_at_two(n: int) -> dict[str, Any]:
    if n == 2:
        raise ValueError("two is\nrefused")
    return square(n)


def dies_at(n: int, *, bad: tuple[int, ...], once: str = "") -> dict[str, Any]:
    """Kill the process at some items, each time or only as long as a file is there."""
    if n in bad:
        if once and os.path.exists(once):
            os.unlink(once)
            os.kill(os.getpid(), signal.SIGKILL)
        elif not once:
            os.kill(os.getpid(), signal.SIGKILL)
    return square(n)


def threads(_: int) -> dict[str, Any]:
    """What the process may use."""
    return {"threads": int(os.environ["OMP_NUM_THREADS"])}
