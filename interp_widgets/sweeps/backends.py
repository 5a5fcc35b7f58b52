"""Where the items of a sweep run: in this process, in processes of its own, or wherever an executor takes them."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from itertools import islice
from typing import Any, Protocol

from interp_widgets.arguments import short

from .items import Item
from .remote import Parcel, WorkerNotReady, end_with, error_text, here, run_one, run_sent
from .sending import pack, packed

_WAIT = 0.2
"""Seconds between two looks at whether the caller wants to stop."""
_AHEAD = 4
"""Items that are sent ahead per process, so that none waits for its next one."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_UNKNOWN_WORKERS = 16
"""Taken for the workers of an executor that does not say how many it has."""


class Executor(Protocol):
    """What `concurrent.futures.Executor` has, and those of Dask, joblib and submitit too."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Have a call made somewhere; the future of its result."""


Backend = int | Executor | None
"""None: this process. A number: so many processes of its own. Else an executor, or a Dask client."""

Done = tuple[Item, dict[str, Any], str, float]
"""An item, its row, what went wrong with it (empty if nothing did), and its seconds."""


def run_items(
    function: Callable[..., Any], items: Iterator[Item], backend: Backend, check: Callable[[], None]
) -> Iterator[Done]:
    """Each item with its row, as they come. What goes wrong with an item is in its row, and does not stop the rest."""
    if backend is None:
        return _here(function, items, check)
    if isinstance(backend, int):
        return _sent(function, items, _Processes(backend), check)
    return _sent(function, items, _Given(backend), check)


def check_backend(backend: Any) -> None:
    """Raise TypeError or ValueError for what cannot serve as a backend."""
    if isinstance(backend, bool) or not (backend is None or isinstance(backend, int) or hasattr(backend, "submit")):
        raise TypeError(
            "backend must be None (this process), a number of processes, or an executor with submit() such as Dask's "
            f"client, got {short(backend)}"
        )
    if isinstance(backend, int) and backend < 1:
        raise ValueError(f"backend must be 1 process or more, got {backend}")
    if getattr(backend, "status", None) == "closed":
        raise ValueError("backend is a client that has been closed: give an open one")


def _here(function: Callable[..., Any], items: Iterator[Item], check: Callable[[], None]) -> Iterator[Done]:
    for item in items:
        check()
        yield (item, *run_one(function, item.value))


# processes ------------------------------------------------------------------------------------------------------------


class _Given:
    """An executor of the user's."""

    def __init__(self, executor: Any) -> None:
        # Dask's client has a submit of its own, which takes equal calls for one
        self._executor = executor.get_executor(pure=False) if hasattr(executor, "get_executor") else executor
        workers = getattr(executor, "_max_workers", None) or len(getattr(executor, "nthreads", dict)() or ())
        self.ahead = _AHEAD * (workers or _UNKNOWN_WORKERS)

    def submit(self, *call: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(*call)
        return future

    def restart(self) -> None:
        """An executor of the user's is not started again."""
        raise RuntimeError(
            "a process of the backend died, and it takes no more items. What was finished is kept where out= says: "
            "run the same line again to go on, with a new executor, or with a number as backend, whose processes are "
            "started again"
        )

    def close(self, under_way: Iterable[Any]) -> None:
        """Leave it to the user, with nothing to do."""
        for future in under_way:
            future.cancel()


class _Processes:
    """Processes of the sweep's own, which are started again when one of them dies."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.ahead = _AHEAD * count
        self._executor = self._started()

    def _started(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        # loky's, since it can be told of a worker's death, and starts clean processes also where a GPU is in use
        threads = str(max(1, (os.cpu_count() or 1) // self._count))  # more would wait for each other
        return ProcessPoolExecutor(
            self._count,
            timeout=None,
            initializer=end_with,
            initargs=(os.getpid(),),
            env=dict.fromkeys(_THREADS, threads),
        )

    def submit(self, *call: Any) -> Future[Any]:
        try:
            future: Future[Any] = self._executor.submit(*call)
        except BrokenExecutor:  # between two looks at it; the futures of those under way say so too
            self.restart()
            future = self._executor.submit(*call)
        return future

    def restart(self) -> None:
        self._executor.shutdown(wait=False, kill_workers=True)
        self._executor = self._started()

    def close(self, under_way: Iterable[Any]) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)


def _sent(
    function: Callable[..., Any], items: Iterator[Item], backend: _Given | _Processes, check: Callable[[], None]
) -> Iterator[Done]:
    """Items through an executor, a few sent ahead, so that neither side waits and memory stays flat.

    When a process dies, nobody says which item it had. Those under way then go again, one at a time: the one that is
    sent alone when a process dies again is the one that kills it.
    """
    name, content = packed(function)
    here[name] = function
    running: dict[Any, Item] = {}
    suspects: deque[Item] = deque()
    suspected: set[int] = set()
    try:
        while True:
            source = iter(suspects.popleft, None) if suspects else iter(()) if suspected else items
            for item in islice(source, max(0, (1 if suspected else backend.ahead) - len(running))):
                running[backend.submit(run_sent, name, content, Parcel(item.value, pack))] = item
            if not running:
                return
            check()
            for future in _finished(running):
                try:
                    result = future.result()
                except BrokenExecutor:
                    under_way = sorted(running.values(), key=lambda one: one.row)
                    running.clear()
                    backend.restart()
                    sent_alone = suspected & {one.row for one in under_way}
                    if sent_alone:
                        suspected -= sent_alone
                        yield under_way[0], {}, "its process died (killed, crashed or out of memory)", float("nan")
                    else:
                        suspects.extend(under_way)
                        suspected |= {one.row for one in under_way}
                    break
                except WorkerNotReady:
                    raise
                except Exception as error:  # of the backend, about this item: Dask's KilledWorker, say
                    result = {}, error_text(error), float("nan")
                item = running.pop(future)
                suspected -= {item.row}
                yield (item, *result)
    finally:
        here.pop(name, None)
        backend.close(running)


def _finished(running: Mapping[Any, Item]) -> list[Any]:
    """Those of the futures that have ended, after a short wait at most."""
    if all(isinstance(future, Future) for future in running):
        return list(wait(running, _WAIT, return_when=FIRST_COMPLETED).done)
    done = [future for future in running if future.done()]
    if not done:
        time.sleep(_WAIT)
    return done
