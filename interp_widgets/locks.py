"""The order of the locks: a thread that holds one may wait only for those after it, so no two threads wait in a circle.

The order is device (`Worker.lock`), model (`Network.lock`), screen (`ui_lock`). Locks of single objects that hold
nothing while they are held (caches, tables) are plain `threading` locks and come last.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import Any

strict = False
"""Whether taking a lock before its turn is refused even if the lock is free; the tests set it, so that they find every
place that would have to wait on a busy day."""


class Rank(IntEnum):
    """The place of a lock in the order."""

    DEVICE = 1
    MODEL = 2
    SCREEN = 3


_local = threading.local()
_circles = threading.RLock()  # reentrant: the garbage collector may run a finaliser while it is held
_waiting: dict[int, RankedLock] = {}
"""By thread: the lock that it waits for while it holds another of the same rank."""


def held_locks() -> list[RankedLock]:
    """The locks that the calling thread holds, in the order in which it took them; one it took twice counts twice."""
    if not hasattr(_local, "held"):
        _local.held = []
    locks: list[RankedLock] = _local.held
    return locks


def may_wait_for(rank: Rank) -> bool:
    """Whether the order allows the calling thread to wait for a lock of this rank: it holds none of a later one."""
    return all(lock.rank <= rank for lock in held_locks())


def check_may_wait(purpose: str) -> None:
    """RuntimeError if the calling thread holds a lock, since whoever it waits for may need that."""
    held = held_locks()
    if held:
        raise RuntimeError(f"{purpose} while this thread holds the lock of {held[-1].name}: release it first")


class RankedLock:
    """A reentrant lock with a place in the order; a drop-in replacement of `threading.RLock`.

    A thread that holds a lock of a later rank gets this one only if it is free: to wait for it raises RuntimeError. An
    attempt that ends by itself (``blocking=False``, or a timeout) is allowed in any order. Of locks of one rank a
    thread may hold several; whoever would close a circle of threads that wait for each other gets a RuntimeError.

    >>> model, screen = RankedLock(Rank.MODEL, "a model"), RankedLock(Rank.SCREEN, "the screen")
    >>> with model, screen, model:
    ...     [lock.name for lock in held_locks()]
    ['a model', 'the screen', 'a model']
    """

    def __init__(self, rank: Rank, name: str) -> None:
        self.rank = rank
        self.name = name
        """What it guards, for messages."""
        self._lock = threading.RLock()
        self._owner: int | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if an attempt without waiting, or with a timeout, has failed."""
        held = held_locks()
        if any(lock is self for lock in held) or not blocking or timeout >= 0:
            taken = self._lock.acquire(blocking, timeout)
        else:
            taken = self._wait(max(held, key=lambda lock: lock.rank, default=None))
        if taken:
            self._owner = threading.get_ident()
            held.append(self)
        return taken

    def release(self) -> None:
        """Give the lock back."""
        held = held_locks()
        last = next((number for number in reversed(range(len(held))) if held[number] is self), None)
        if last is None:
            raise RuntimeError(f"this thread does not hold the lock of {self.name}")
        del held[last]
        if not any(lock is self for lock in held):
            self._owner = None
        self._lock.release()

    def _wait(self, last: RankedLock | None) -> bool:
        """Wait for the lock, if the order allows it; ``last`` is the held one of the latest rank."""
        if last is None or last.rank < self.rank:
            return self._lock.acquire()
        if last.rank > self.rank:
            if strict or not self._lock.acquire(blocking=False):
                raise RuntimeError(
                    f"this thread holds the lock of {last.name}, so it must not wait for {self.name}, which another "
                    "thread may be using: do it in the background (panel.jobs.start) or outside of handlers"
                )
            return True
        with _circles:
            self._check_circle(last)
            _waiting[threading.get_ident()] = self
        try:
            return self._lock.acquire()
        finally:
            with _circles:
                del _waiting[threading.get_ident()]

    def _check_circle(self, last: RankedLock) -> None:
        """RuntimeError if the holder of this lock waits for one that the calling thread holds, directly or not."""
        lock: RankedLock | None = self
        seen: list[RankedLock] = []
        while lock is not None and all(lock is not other for other in seen):
            seen.append(lock)
            if lock._owner == threading.get_ident():
                raise RuntimeError(
                    f"two threads wait for each other: this one holds the lock of {last.name} and needs {self.name}, "
                    "another the other way round; use the two in one order"
                )
            lock = None if lock._owner is None else _waiting.get(lock._owner)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    # for threading.Condition

    def _is_owned(self) -> bool:
        return any(lock is self for lock in held_locks())

    def _release_save(self) -> int:
        count = sum(lock is self for lock in held_locks())
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: Any) -> None:
        for _ in range(count):
            self.acquire()

    def __repr__(self) -> str:
        return f"RankedLock({self.rank.name}, {self.name!r})"
