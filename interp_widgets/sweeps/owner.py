"""One sweep at a time writes into a folder: `owned_folder`."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

LOCK = "sweep.lock"
_WAIT = 0.2
"""Seconds between checks for cancellation."""
_owners: set[tuple[int, int, str]] = set()
"""(process, thread, folder) of the sweeps that run in this process."""


@contextlib.contextmanager
def owned_folder(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Context manager in which this sweep owns a folder, against other processes, also on other machines, and threads.

    The owner holds a lock of the operating system, which ends with its process, however that ends. ``wait`` is called
    again and again while another sweep owns the folder.

    Raises ValueError if this thread owns the folder already.
    """
    me = os.getpid(), threading.get_ident(), os.path.realpath(folder)
    if me in _owners:
        raise ValueError(f"{folder} is the folder of the sweep that makes this call: give another out=")
    lock = _acquired(folder, wait)
    _owners.add(me)
    try:
        yield
    finally:
        _owners.discard(me)
        if lock is not None and os.getpid() == me[0]:  # not in a copy of this process that an item has made
            if not isinstance(lock, SoftFileLock):  # there the file is the lock
                with contextlib.suppress(OSError):  # Windows removes no open file
                    os.unlink(folder / LOCK)
            lock.release()


def _acquired(folder: Path, wait: Callable[[], None]) -> BaseFileLock | None:
    """The lock of a folder, once no other sweep has it; None in a folder that can only be read."""
    lock = FileLock(folder / LOCK)
    waiting = False
    while True:
        try:
            lock.acquire(timeout=_WAIT, poll_interval=_WAIT / 4)
            return lock
        except Timeout:
            wait()
            if not waiting:
                warnings.warn(f"another sweep writes into {folder}: this one goes on when that ends", stacklevel=2)
            waiting = True
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return None
            raise OSError(error.errno, f"{folder / LOCK} cannot be locked: {error.strerror}") from error
