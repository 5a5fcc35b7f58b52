"""Where the items of a sweep run: in this process, in worker processes of the sweep, or in an executor of the user."""

from __future__ import annotations

import os
import queue
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, Protocol

from interp_widgets.arguments import short

from .items import Item
from .remote import ItemToSend, WorkerNotReady, error_text, exit_with_parent, run_one, run_sent, sent_functions
from .sending import pack, pack_function

_WAIT = 0.2
"""Seconds between checks for cancellation."""
_AHEAD = 4
"""Items queued per process, so that no process is idle."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LOOK_AT_WORKERS = 2.0
"""Seconds between looks at how many workers a Dask client has."""
_WITHOUT_WORKERS = 60.0
"""Seconds without any worker after which a sweep stops."""
_GO_ON = (
    "Finished rows are kept in out=, if given: run the same line again to go on, with a new executor, or with a number "
    "as backend, whose processes are restarted"
)
_UNKNOWN_WORKERS = 16
"""Assumed number of workers of an executor that does not say how many it has."""


class Executor(Protocol):
    """The part of `concurrent.futures.Executor` that a sweep uses; Dask, joblib and submitit have it too."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Schedule a call; returns the future of its result."""


Backend = int | Executor | None
"""None: this process. An int: that many worker processes. Otherwise an executor or a Dask client."""

Done = tuple[Item, dict[str, Any], str, float]
"""An item, its row, its error (empty if it succeeded), and its seconds."""


def run_items(
    function: Callable[..., Any], items: Iterator[Item], backend: Backend, check: Callable[[], None]
) -> Iterator[Done]:
    """Yield each item with its row as it finishes. A failed item comes with its error; the others continue."""
    if backend is None:
        return _run_in_process(function, items, check)
    if isinstance(backend, int):
        return _run_in_executor(function, items, _Processes(backend), check)
    return _run_in_executor(function, items, _UserExecutor(backend), check)


def check_backend(backend: Any) -> None:
    """Raise TypeError or ValueError if this is not a backend."""
    if isinstance(backend, bool) or not (backend is None or isinstance(backend, int) or hasattr(backend, "submit")):
        raise TypeError(
            "backend must be None (this process), a number of processes, or an executor with submit() such as Dask's "
            f"client, got {short(backend)}"
        )
    if isinstance(backend, int) and backend < 1:
        raise ValueError(f"backend must be 1 process or more, got {backend}")
    if getattr(backend, "status", None) == "closed":
        raise ValueError("backend is a client that has been closed: give an open one")


def _run_in_process(function: Callable[..., Any], items: Iterator[Item], check: Callable[[], None]) -> Iterator[Done]:
    for item in items:
        check()
        yield _unread(item) if item.error else (item, *run_one(function, partial(getattr, item, "value")))


def _unread(item: Item) -> Done:
    """The row of an item that cannot be read."""
    return item, {}, item.error, float("nan")


# processes ------------------------------------------------------------------------------------------------------------


class _UserExecutor:
    """An executor that the user passed."""

    loses_results: bool
    """Whether it may fail by itself: Dask, when a worker dies with a result that is on its way."""

    def __init__(self, executor: Any) -> None:
        # the submit of a Dask client runs equal calls only once
        self._executor = executor.get_executor(pure=False) if hasattr(executor, "get_executor") else executor
        workers = getattr(executor, "_max_workers", None) or len(getattr(executor, "nthreads", dict)() or ())
        self.ahead = _AHEAD * (workers or _UNKNOWN_WORKERS)
        self._count_workers = getattr(executor, "nthreads", None)  # of a Dask client
        self.loses_results = self._count_workers is not None
        self._had_workers = self._looked = time.monotonic()

    def submit(self, *call: Any) -> Future[Any]:
        try:
            future: Future[Any] = self._executor.submit(*call)
        except BrokenExecutor:  # died since the last check
            self.restart()
        except Exception as error:
            raise RuntimeError(f"the backend accepts no more items ({error_text(error)}). {_GO_ON}") from error
        return future

    def check_workers(self) -> None:
        """Raise RuntimeError if a Dask client has had no worker for a minute."""
        now = time.monotonic()
        if self._count_workers is None or now - self._looked < _LOOK_AT_WORKERS:
            return
        self._looked = now
        if self._count_workers():
            self._had_workers = now
        elif now - self._had_workers >= _WITHOUT_WORKERS:
            raise RuntimeError(
                f"the backend has had no worker for {_WITHOUT_WORKERS:.0f} seconds: they died, perhaps killed by an "
                f"item or out of memory, or none has started yet (wait with client.wait_for_workers(1)). {_GO_ON}"
            )

    def restart(self) -> NoReturn:
        """Raise RuntimeError: only the user can restart this executor."""
        raise RuntimeError(f"a process of the backend died, so it accepts no more items. {_GO_ON}")

    def close(self, running: Iterable[Any]) -> None:
        """Cancel what is queued and leave the executor open."""
        for future in running:
            future.cancel()


class _Processes:
    """Worker processes of the sweep, restarted when one of them dies."""

    loses_results = False

    def __init__(self, count: int) -> None:
        self._count = count
        self.ahead = _AHEAD * count
        self._cleaner = _start_cleaner()
        self._executor = self._new_pool()

    def _new_pool(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        # loky reports the death of a worker, and starts clean processes even if a GPU is in use
        threads = str(max(1, (os.cpu_count() or 1) // self._count))  # more would compete for the cores
        return ProcessPoolExecutor(
            self._count,
            timeout=None,
            initializer=exit_with_parent,
            initargs=(os.getpid(),),
            env=dict.fromkeys(_THREADS, threads),
        )

    def submit(self, *call: Any) -> Future[Any]:
        try:
            future: Future[Any] = self._executor.submit(*call)
        except BrokenExecutor:  # died since the last check; the futures of the running items raise it too
            self.restart()
            future = self._executor.submit(*call)
        return future

    def check_workers(self) -> None:
        """A process that dies is noticed."""

    def restart(self) -> None:
        self._end_pool(wait=False)
        self._executor = self._new_pool()

    def _end_pool(self, *, wait: bool) -> None:
        # loky forgets the calls that no worker has taken, and its thread would then fail to find those still in line
        waiting = getattr(self._executor, "_work_ids", None)  # none in a loky that keeps its line elsewhere
        with suppress(queue.Empty):
            while waiting is not None:
                waiting.get(block=False)
        self._executor.shutdown(wait=wait, kill_workers=True)

    def close(self, running: Iterable[Any]) -> None:
        self._end_pool(wait=True)
        if self._cleaner is not None:
            self._cleaner.communicate(b"done\n")


def _start_cleaner() -> subprocess.Popen[bytes] | None:
    """A process that removes this process's semaphores from shared memory if it ends without a word; None where they
    are no files.

    loky's own cleaner is of the same group of processes, and is killed with it.
    """
    if not Path("/dev/shm").is_dir():
        return None
    command = f"read done || rm -f /dev/shm/sem.loky-{os.getpid()}-*"
    return subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True)


def _run_in_executor(
    function: Callable[..., Any], items: Iterator[Item], backend: _UserExecutor | _Processes, check: Callable[[], None]
) -> Iterator[Done]:
    """Yield each item with its row, run through an executor; a few items are queued, so that memory stays flat.

    When a process dies, the executor does not say which item it was running. All running items are then run again, one
    at a time: the item that runs alone when a process dies again is the one that kills it.
    """
    name, content = pack_function(function)
    sent_functions[name] = function
    running: dict[Any, Item] = {}
    suspects: deque[Item] = deque()
    suspected: set[int] = set()
    again: set[int] = set()
    try:
        while True:
            source = iter(suspects.popleft, None) if suspects else iter(()) if suspected else items
            unread: list[Item] = []
            for item in islice(source, max(0, (1 if suspected else backend.ahead) - len(running))):
                if item.error:
                    unread.append(item)
                else:
                    running[backend.submit(run_sent, name, content, ItemToSend(item.value, pack))] = item
            yield from map(_unread, unread)
            if not running and not unread:
                return
            check()
            completed = _completed(running)
            if not completed:
                backend.check_workers()
            for future in completed:
                try:
                    result = future.result()
                except BrokenExecutor:
                    lost = sorted(running.values(), key=lambda item: item.row)
                    running.clear()
                    backend.restart()
                    sent_alone = suspected & {item.row for item in lost}
                    if sent_alone:
                        suspected -= sent_alone
                        yield lost[0], {}, "its process died (killed, crashed or out of memory)", float("nan")
                    else:
                        suspects.extend(lost)
                        suspected |= {item.row for item in lost}
                    break
                except WorkerNotReady:
                    raise
                except Exception as error:  # raised by the backend for this item
                    item = running[future]
                    # not KilledWorker: Dask has run the item several times
                    if backend.loses_results and item.row not in again and type(error).__name__ != "KilledWorker":
                        again.add(item.row)
                        del running[future]
                        running[backend.submit(run_sent, name, content, ItemToSend(item.value, pack))] = item
                        continue
                    result = {}, error_text(error), float("nan")
                item = running.pop(future)
                suspected -= {item.row}
                yield (item, *result)
    finally:
        sent_functions.pop(name, None)
        backend.close(running)


def _completed(running: Mapping[Any, Item]) -> list[Any]:
    """The futures that have completed, waiting briefly for the first."""
    if all(isinstance(future, Future) for future in running):
        return list(wait(running, _WAIT, return_when=FIRST_COMPLETED).done)
    done = [future for future in running if future.done()]
    if not done:
        time.sleep(_WAIT)
    return done
