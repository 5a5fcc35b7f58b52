"""How a run reports progress, is cancelled, and delivers partial results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Event
from typing import TypeVar

import torch

from interp_widgets.models.threads import threads_kept

T = TypeVar("T")

Progress = Callable[[int, int], None] | None
"""Called with (done, total)."""
Check = Callable[[], None] | None
"""Called regularly; raises to cancel."""
_beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside")
"""One thread: the libraries called in it are not safe for concurrent calls."""


@dataclass(frozen=True)
class RunOptions:
    """The options of every run; each may be None."""

    progress: Progress = None
    check: Check = None
    batch_size: int | None = None
    """Most items in a chunk; by default what memory and work allow."""

    def stop_if_cancelled(self) -> None:
        """Call ``check``, which raises to cancel."""
        if self.check is not None:
            self.check()

    def run_cancellable(self, work: Callable[[], T]) -> T:
        """The result of a call that cannot be interrupted; after a cancel it runs on and its result is dropped."""
        running = _beside.submit(work)
        try:
            while not wait([running], 0.05).done:
                self.stop_if_cancelled()
        finally:
            running.cancel()  # takes effect only while it is still queued
        return running.result()

    def report(self, done: int, total: int) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(done, total)

    def part(self, number: int, parts: int) -> RunOptions:
        """The options for one of several equal parts of the run.

        >>> RunOptions(print).part(1, 2).report(1, 4)
        5 8
        """
        progress = self.progress
        if progress is None:
            return self
        return replace(self, progress=lambda done, total: progress(number * total + done, parts * total))

    def after(self, before: int, total: int) -> RunOptions:
        """The options for a part that begins when ``before`` of ``total`` steps of the whole run are done.

        >>> RunOptions(print).after(10, 100).report(1, 4)
        11 100
        """
        progress = self.progress
        if progress is None:
            return self
        return replace(self, progress=lambda done, _: progress(before + done, total))


def in_threads(works: Sequence[Iterator[None]]) -> Iterator[None]:
    """Run works that do not touch each other side by side, each in one torch thread; yields after every step of any.

    With fewer than two for each torch thread they run one after the other. Work of many short operations gains more
    from this than from splitting each operation. A work must not wait for a lock that the caller may hold, and sees
    neither its context managers nor its `torch.no_grad`.
    """
    count = torch.get_num_threads()
    if count == 1 or len(works) < 2 * count:
        for work in works:
            yield from work
        return
    steps: SimpleQueue[None] = SimpleQueue()
    stop = Event()

    def drain(work: Iterator[None]) -> None:
        torch.set_num_threads(1)
        for step in work:
            steps.put(step)
            if stop.is_set():
                return

    with threads_kept(), ThreadPoolExecutor(count) as pool:
        running = [pool.submit(drain, work) for work in works]
        try:
            while not (all(each.done() for each in running) and steps.empty()):
                try:
                    yield steps.get(timeout=0.05)
                except Empty:
                    continue
            for each in running:
                each.result()
        finally:
            stop.set()
            for each in running:
                each.cancel()


def partial_is_due(before: int, done: int, total: int, times: int) -> bool:
    """Whether a partial result is due after steps ``before``..``done``; at most ``times`` are delivered before the end.

    >>> [done for done in range(1, 10) if partial_is_due(done - 1, done, 9, 2)]
    [3, 6]
    """
    every = max(1, math.ceil(total / (times + 1)))
    return done < total and done // every > before // every
