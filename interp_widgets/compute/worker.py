"""One worker thread per device: the newest request of an owner wins, cancelling is cooperative, stale results are
dropped.

An `Owner` is one source of requests, usually one widget. Its newest request replaces its queued one and asks its
running one to stop; anything a replaced request still produces is dropped. All owners on a device share one thread and
one lock, because a model with hooks can serve only one run at a time.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from interp_widgets.locks import Rank, RankedLock

State = Literal["queued", "running", "cancelling", "cancelled", "done", "failed"]

PROGRESS_INTERVAL = 0.1
"""Minimum seconds between two progress messages of a job."""

_log = logging.getLogger("interp_widgets")


class Cancelled(BaseException):
    """Raised by `Job.check` inside a computation whose result is no longer needed; not an `Exception`."""


@dataclass(frozen=True)
class Progress:
    """Progress of a job."""

    done: int
    """Number of finished steps."""
    total: int
    """Total number of steps."""
    seconds_left: float | None
    """Remaining seconds at the speed so far; None before the first step."""


@dataclass(frozen=True)
class Callbacks:
    """Callbacks of a job; each is called under the owner's lock, and never after a newer request replaced the job."""

    on_result: Callable[[Any], object] | None = None
    on_error: Callable[[BaseException], object] | None = None
    on_progress: Callable[[Progress], object] | None = None
    on_state: Callable[[State], object] | None = None
    on_partial: Callable[[Any], object] | None = None


class Job:
    """One request while it waits and runs; the computation is called with it.

    `check`, `progress` and `partial` have the signatures that the analyses ask for, so they can be handed on directly.
    """

    def __init__(
        self,
        owner: Owner,
        function: Callable[[Job], Any],
        callbacks: Callbacks,
        *,
        title: str = "",
        preemptible: bool = False,
    ) -> None:
        self.title = title
        """Description of the computation, for those who wait for it."""
        self.preemptible = preemptible
        """Whether it calls `give_way` regularly; such jobs do not give way to each other."""
        self.yielded_seconds = 0.0
        """Seconds of its time that were given to others."""
        self._owner = owner
        self._function: Callable[[Job], Any] | None = function
        self._callbacks = callbacks
        self._stop = threading.Event()
        self._finished = threading.Event()
        self._started = 0.0
        self._reported = float("-inf")

    @property
    def cancelled(self) -> bool:
        """Whether the job has been asked to stop."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if the job has been asked to stop; call it between chunks of work."""
        if self._stop.is_set():
            raise Cancelled

    def progress(self, done: int, total: int) -> None:
        """Report `done` of `total` steps, at most ten times a second, and raise `Cancelled` as `check` does."""
        self.check()
        now = self._owner.worker.clock()
        if now - self._reported < PROGRESS_INTERVAL:
            return
        self._reported = now
        left = (now - self._started) * (total - done) / done if done > 0 else None
        self._deliver(self._callbacks.on_progress, Progress(done, total, left))

    def partial(self, value: Any) -> None:
        """Deliver a partial result, and raise `Cancelled` as `check` does."""
        self.check()
        self._deliver(self._callbacks.on_partial, value)

    def give_way(self) -> None:
        """Let other requests use the device first, and raise `Cancelled` as `check` does.

        A job of several minutes calls it when it cannot interfere with other runs: without hooks on a shared model and
        without holding a lock.
        """
        self.check()
        began = self._owner.worker.clock()
        self._owner.worker._serve_others()
        self.yielded_seconds += self._owner.worker.clock() - began
        self.check()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended in any way; False after `timeout` seconds."""
        return self._finished.wait(timeout)

    def _deliver(self, callback: Callable[[Any], object] | None, value: Any) -> bool:
        """Call back unless the job has been replaced or cancelled."""
        with self._owner.lock:
            if self._owner.job is not self or self._stop.is_set():
                return False
            if callback is not None:
                callback(value)
            return True

    def _report_state(self, state: State) -> None:
        """Report a state; a failing handler must not end the worker's thread."""
        try:
            if self._callbacks.on_state is not None:
                self._callbacks.on_state(state)
        except Exception:
            _log.exception("the handler of the state %r failed", state)

    def _fail(self, error: BaseException) -> None:
        """Deliver an exception; it is logged if there is no handler or the handler fails."""
        try:
            if self._callbacks.on_error is None:
                _log.error("a computation failed and nobody asked for its errors", exc_info=error)
            else:
                self._callbacks.on_error(error)
        except Exception:
            _log.exception("the handler of a failed computation failed itself, after %r", error)
        self._report_state("failed")

    def _run(self) -> None:
        """Compute and deliver, in the worker's thread."""
        function, self._function = self._function, None
        value, error = None, None
        try:
            if function is not None and self._begin():
                value = function(self)
        except Cancelled:
            self._stop.set()
        except BaseException as caught:
            error = caught
        self._end(value, error)

    def _begin(self) -> bool:
        self._started = self._owner.worker.clock()
        return self._deliver(self._callbacks.on_state, "running")

    def _end(self, value: Any, error: BaseException | None) -> None:
        owner = self._owner
        with owner.lock:
            if owner.job is self:
                owner.job = None
                if self._stop.is_set():
                    self._report_state("cancelled")
                elif error is not None:
                    self._fail(error)
                else:
                    self._succeed(value)
        self._finished.set()

    def _succeed(self, value: Any) -> None:
        try:
            if self._callbacks.on_result is not None:
                self._callbacks.on_result(value)
        except Exception as caught:
            self._fail(caught)
        else:
            if self._owner.job is None:  # a handler may have submitted the next request already
                self._report_state("done")


class Worker:
    """The thread that computes for all owners on one device; it starts with the first request and ends with the last
    owner.

    Get it from `worker_for`, and submit requests through an `Owner`.
    """

    def __init__(self, device: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.device = device
        self.clock = clock
        self.lock = RankedLock(Rank.DEVICE, f"the device {device}")
        """Held while a computation runs on the device."""
        self._wake = threading.Condition()
        self._queue: deque[Job] = deque()
        self._owners: set[Owner] = set()
        self._thread: threading.Thread | None = None
        self._current: Job | None = None
        self._callers = 0

    @property
    def current(self) -> Job | None:
        """The job that the thread is computing."""
        return self._current

    @property
    def busy(self) -> bool:
        """Whether any owner has a request running or queued."""
        with self._wake:
            return bool(self._queue) or self._current is not None

    @property
    def alive(self) -> bool:
        """Whether the thread exists."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def submit(
        self,
        owner: Owner,
        function: Callable[[Job], Any],
        *,
        on_result: Callable[[Any], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        on_state: Callable[[State], object] | None = None,
        on_partial: Callable[[Any], object] | None = None,
        title: str = "",
        preemptible: bool = False,
    ) -> Job:
        """Queue `function(job)` as the owner's newest request and return at once.

        The callbacks run in the worker's thread. `title` is shown to those who wait; `preemptible` tells that the
        function calls `Job.give_way`. Raises RuntimeError for a closed owner.
        """
        callbacks = Callbacks(on_result, on_error, on_progress, on_state, on_partial)
        job = Job(owner, function, callbacks, title=title, preemptible=preemptible)
        with owner.lock:
            self._replace(owner, job)
            job._report_state("queued")
            with self._wake:
                self._queue.append(job)
                if self._thread is None:
                    name = f"interp-widgets worker {self.device}"
                    self._thread = threading.Thread(target=self._main, name=name, daemon=True)
                    self._thread.start()
                self._wake.notify()
        return job

    def run(self, owner: Owner, function: Callable[[Job], Any], *, wait: bool = True, **callbacks: Any) -> Any:
        """Compute as the owner's newest request in the calling thread and return the result.

        Takes the callbacks of `submit` except on_result and on_error: the result is returned and exceptions are raised.
        Waits until the device is free, or raises RuntimeError if it is busy and `wait` is False; raises `Cancelled` if
        a newer request or a cancel came in between. The caller reports the state "done" once it has shown the result.
        """
        job = Job(owner, function, Callbacks(**callbacks))
        with owner.lock:
            self._replace(owner, job)
            job._report_state("queued")
        state: State = "failed"
        try:
            if not self._take_turn(wait):
                raise RuntimeError(f"the device {self.device} is busy with another run: wait for it or cancel it")
            try:
                if not job._begin():
                    raise Cancelled
                value = function(job)
            finally:
                self.lock.release()
            job.check()
            state = "done"
            return value
        except (Cancelled, KeyboardInterrupt):
            state = "cancelled"
            raise
        finally:
            with owner.lock:
                if owner.job is job:
                    owner.job = None
                    if state != "done":
                        job._report_state(state)
            job._finished.set()

    def cancel(self, owner: Owner) -> bool:
        """Ask the owner's request to stop; a queued one ends at once. False if there is none."""
        with owner.lock:
            job = owner.job
            if job is None:
                return False
            job._stop.set()
            if self._unqueue(job):
                owner.job = None
                job._report_state("cancelled")
                job._finished.set()
            else:
                job._report_state("cancelling")
            return True

    def _replace(self, owner: Owner, job: Job | None) -> None:
        """Make `job` the owner's newest request and drop the previous one; the owner's lock is held."""
        if owner.closed and job is not None:
            raise RuntimeError("this widget is closed: open a new one")
        old, owner.job = owner.job, job
        if old is not None:
            old._stop.set()
            if self._unqueue(old):
                old._finished.set()

    def _unqueue(self, job: Job) -> bool:
        with self._wake:
            if job not in self._queue:
                return False
            self._queue.remove(job)
            return True

    def _take_next(self, *, preemptible: bool = True) -> Job | None:
        """Take the job whose turn it is from the queue, if any: the oldest of an owner in sight, else the oldest."""
        jobs = [job for job in self._queue if preemptible or not job.preemptible]
        if not jobs:
            return None
        job = min(jobs, key=lambda job: job._owner.in_background)
        self._queue.remove(job)
        return job

    def _take_turn(self, wait: bool) -> bool:
        """Take the device in the calling thread; False if it is busy and `wait` is False."""
        with self._wake:
            self._callers += 1
        try:
            return self.lock.acquire(blocking=wait)
        finally:
            with self._wake:
                self._callers -= 1
                self._wake.notify_all()

    def _serve_others(self) -> None:
        """In a job that gives way: compute queued requests, and let callers of `run` use the device."""
        if threading.current_thread() is not self._thread:
            return
        while True:
            with self._wake:
                job = self._take_next(preemptible=False)
                if job is None and not self._callers:
                    return
            if job is None:
                self._yield_device()
                continue
            before, self._current = self._current, job
            try:
                job._run()
            finally:
                self._current = before

    def _yield_device(self) -> None:
        """Release the device for the callers that wait for it, and take it back afterwards."""
        self.lock.release()
        try:
            with self._wake:
                self._wake.wait_for(lambda: not self._callers)
        finally:
            self.lock.acquire()

    def _add(self, owner: Owner) -> None:
        with self._wake:
            self._owners.add(owner)

    def _remove(self, owner: Owner) -> None:
        with self._wake:
            self._owners.discard(owner)
            self._wake.notify()

    def _main(self) -> None:
        while True:
            with self._wake:
                self._current = None
                while not self._queue and self._owners:
                    self._wake.wait()
                job = self._current = self._take_next()
                if job is None:
                    self._thread = None
                    return
            with self.lock:
                job._run()
            del job  # or the last result would live until the next request

    def _shut_down(self) -> None:
        """End at interpreter exit, since a thread in native code during interpreter shutdown can crash it."""
        for owner in list(self._owners):
            owner.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2)


class Owner:
    """One source of requests to the worker of a device, usually one widget.

    `lock` is held during every callback: owners that draw into linked widgets share one, so that two threads never
    wait for each other. Do not hold it while calling `run`.

    >>> owner = Owner("cpu")
    >>> owner.run(lambda job: 6 * 7)
    42
    >>> owner.close()
    """

    def __init__(self, device: str = "cpu", *, lock: Any = None, worker: Worker | None = None) -> None:
        self.worker = worker_for(device) if worker is None else worker
        self.lock: Any = RankedLock(Rank.SCREEN, "the callbacks") if lock is None else lock
        self.job: Job | None = None
        """The newest request, while it is queued or running."""
        self.closed = False
        self.in_background = False
        """Whether its requests wait until no other owner has one, such as those of a panel that is not shown."""
        self.worker._add(self)

    @property
    def busy(self) -> bool:
        """Whether a request is queued or running."""
        return self.job is not None

    def submit(self, function: Callable[[Job], Any], **callbacks: Any) -> Job:
        """Queue `function(job)` as the newest request; see `Worker.submit`."""
        return self.worker.submit(self, function, **callbacks)

    def run(self, function: Callable[[Job], Any], *, wait: bool = True, **callbacks: Any) -> Any:
        """Compute in the calling thread; see `Worker.run`."""
        return self.worker.run(self, function, wait=wait, **callbacks)

    def cancel(self) -> bool:
        """Ask the request to stop; see `Worker.cancel`."""
        return self.worker.cancel(self)

    def drop(self) -> None:
        """Ask the request to stop and ignore it from now on; not even its cancellation is reported."""
        with self.lock:
            self.worker._replace(self, None)

    def close(self) -> None:
        """Drop the request, deliver nothing more, and end the thread if this was its last owner."""
        with self.lock:
            self.closed = True
            self.worker._replace(self, None)
        self.worker._remove(self)


_workers: dict[str, Worker] = {}
_workers_lock = threading.Lock()


def worker_for(device: str) -> Worker:
    """The worker of a device such as "cpu" or "cuda:0", made on first use."""
    with _workers_lock:
        return _workers.setdefault(device, Worker(device))


@atexit.register
def _shut_down_all() -> None:
    for worker in list(_workers.values()):
        worker._shut_down()
