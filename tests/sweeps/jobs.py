"""What the processes of a sweep run in the tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.waiting import until


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


class Stop(KeyboardInterrupt):
    """A relative of what Ctrl+C raises."""


class NoText(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Sly:
    """A value whose methods raise, each of them once it is asked for."""

    def __init__(self, method: str) -> None:
        self.method = method

    def _raise(self, method: str, default: Any) -> Any:
        if self.method == method:
            raise SystemExit(method)
        return default

    def __repr__(self) -> str:
        return self._raise("repr", "Sly()")

    def __str__(self) -> str:
        return self._raise("str", "Sly()")

    def __hash__(self) -> int:
        return 1

    def __getstate__(self) -> Any:
        return self._raise("getstate", {"method": self.method})

    def __setstate__(self, state: dict[str, str]) -> None:
        self.method = state["method"]
        self._raise("setstate", None)


RAISED = {1: SystemExit(3), 2: KeyboardInterrupt(), 3: GeneratorExit(), 4: Stop("enough"), 5: NoText()}


def raises_anything(n: int) -> dict[str, Any]:
    """Raise what is no ordinary error at some items."""
    if n == 6:
        sys.exit("the end")
    if n in RAISED:
        raise RAISED[n]
    return square(n)


def waits_for(n: int, *, started: str, go_on: str) -> int:
    """Say that the first item runs, and wait until a file is there."""
    Path(started).touch()
    wait_for(Path(go_on))
    return n * n


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    until(path.exists, f"the making of {path}")
