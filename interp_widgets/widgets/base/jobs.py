"""What a panel has running in the background: one run per channel, the newest wins, each with status and Cancel."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ...compute.worker import Job, Owner, State
from ...models.stopping import stopping
from ...models.threads import SMALL, few_threads
from .guard import computing_here, guarded, inside_handler, ui_lock
from .status import describe_error

MAIN = "main"
"""The channel of a panel's own question."""


class Jobs:
    """The runs of one panel on its device's worker; they report to the panel's status line."""

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        self._owners: dict[str, Owner] = {}
        self._in_background = False

    @property
    def in_background(self) -> bool:
        """Whether runs that wait let those of other panels go first; a panel that is not shown sets it."""
        return self._in_background

    @in_background.setter
    def in_background(self, value: bool) -> None:
        self._in_background = value
        for owner in list(self._owners.values()):
            owner.in_background = value

    def start(
        self,
        work: Callable[[Job], Any],
        done: Callable[[Any], object] | None = None,
        *,
        title: str,
        on_partial: Callable[[Any], object] | None = None,
        channel: str = "side",
        quiet: bool = False,
        preemptible: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Job:
        """Run `work(job)` in the worker beside the panel's question and then `done(value)`, with status and Cancel.

        `work` must not touch widgets; it hands `job.progress`, `job.check` and `job.partial` on to an analysis. `done`
        and `on_partial` may draw. The newest run of a channel replaces the one before it. With `quiet`, the status line
        only reports errors and cancellation: for milliseconds of work behind a click. With `preemptible`, the work
        calls `job.give_way` now and then, so that shorter runs need not wait for it to end. `stopped` says
        whether the user cut the run short although it has a value.
        """
        panel, status, line = self._panel, self._panel.status, self.on_line(channel)
        began, partial = time.monotonic(), False
        if quiet:
            status.forget(line)

        def finish(value: Any) -> None:
            if done is not None:
                done(value)
            if stopped():
                status.cancelled(partial=partial, channel=line)
            elif not quiet:
                status.done(time.monotonic() - began, title=title, channel=line)

        def compute(job: Job) -> Any:
            nonlocal began
            began = time.monotonic()  # time in the queue does not count
            with computing(panel.models, job):
                return work(job)

        def show(value: Any) -> None:
            nonlocal partial
            partial = True
            if on_partial is not None:
                on_partial(value)

        def tell(state: State) -> None:
            if not quiet or state == "cancelled":
                self.report(state, title, channel, partial=partial)

        return self.owner(channel).submit(
            compute,
            on_result=guarded(panel, finish),
            on_error=panel.show_error,
            on_progress=None if quiet else lambda progress: status.progress(progress, channel=line),
            on_state=tell,
            on_partial=None if on_partial is None else guarded(panel, show),
            title=self.named(title),
            preemptible=preemptible,
        )

    def owner(self, channel: str = MAIN) -> Owner:
        """The source of a channel's requests."""
        if channel not in self._owners:
            device = str(getattr(self._panel.models[0], "device", "cpu"))
            self._owners[channel] = Owner(device, lock=ui_lock)
            self._owners[channel].in_background = self._in_background
        return self._owners[channel]

    def drop(self) -> None:
        """Drop the run of the panel's own request: its answer is no longer needed."""
        self.owner().drop()
        self._panel.status.forget(self.on_line())

    def on_line(self, channel: str = MAIN) -> str:
        """What the status line calls a channel; where panels share a line, each has channels of its own."""
        return f"{type(self._panel).__qualname__} {channel}" if self._panel.shares_status else channel

    def named(self, title: str) -> str:
        """The title of a run, with the panel's name for the other panels."""
        return f"{title} ({name})" if (name := getattr(self._panel, "title", "")) else title

    def report(self, state: State, title: str = "Computing", channel: str = MAIN, *, partial: bool = False) -> None:
        """Show the state of a run, except done and failed, which are shown with the result or the error."""
        status, line = self._panel.status, self.on_line(channel)
        if channel == MAIN and line != MAIN:
            title = self.named(title)  # other tabs show it too
        if self._panel.closed:
            return
        if state == "queued":
            before = self.owner(channel).worker.current
            status.queued(title, channel=line, behind="" if before is None else before.title)
        elif state == "running":
            status.running(title, channel=line)
        elif state == "cancelling":
            status.cancelling(channel=line)
        elif state == "cancelled":
            status.cancelled(partial=partial, channel=line)
        else:
            status.forget(line)

    @property
    def busy(self) -> bool:
        """Whether a run is under way or queued, or its answer is being drawn."""
        with ui_lock:  # held while an answer is drawn
            return any(owner.busy for owner in self._owners.values())

    def runs(self, channel: str) -> bool:
        """Whether a run of one channel is under way or queued, or its answer is being drawn."""
        with ui_lock:
            return channel in self._owners and self._owners[channel].busy

    def cancel(self, *, but: Collection[str] = ()) -> None:
        """Ask every run to stop, except on the channels `but`."""
        for channel, owner in list(self._owners.items()):
            if channel not in but:
                owner.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run is left; False if `timeout` seconds passed first. RuntimeError in a handler."""
        if inside_handler():
            raise RuntimeError(
                "a handler cannot wait for the worker: pass jobs.start(...) a function to call when it is done"
            )
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with ui_lock:
                jobs = [owner.job for owner in self._owners.values() if owner.job is not None]
            if not jobs:
                return True
            if not jobs[0].wait(None if end is None else max(0.0, end - time.monotonic())):
                return False

    def close(self) -> None:
        """End all runs and release the worker."""
        for owner in self._owners.values():
            owner.close()


class Derived:
    """A value that a panel derives from its result in the background, recomputed when the result changes.

    `drawn()` is called when there is a value or an error; an error is also shown in the panel. The other keywords are
    those of `Jobs.start`.
    """

    def __init__(self, panel: Any, drawn: Callable[[], object], **keywords: Any) -> None:
        self._panel, self._drawn, self._keywords = panel, drawn, keywords
        self._key: Any = None
        self._value: Any = None
        self._job: Job | None = None
        self.failure = ""
        """The error, in a sentence; empty while nothing has failed."""

    def ask(self, key: Any, work: Callable[[Job], Any], *, again: bool = True, **keywords: Any) -> None:
        """Compute it for a key unless it is there or under way; a cancelled run starts again only if `again`.

        Further keywords of `Jobs.start` are for this run.
        """
        if self._job is not None and key == self._key and not (again and self._job.cancelled):
            return
        self._key, self._value, self.failure = key, None, ""

        def caught(job: Job) -> tuple[Any, Exception | None]:
            try:
                return work(job), None
            except Exception as error:  # passed on, so that the picture shows it before the status line does
                return None, error

        def done(outcome: tuple[Any, Exception | None]) -> None:
            if key != self._key:
                return
            self._value, error = outcome
            self.failure = "" if error is None else describe_error(error)
            self._drawn()
            if error is not None:
                raise error

        self._job = self._panel.jobs.start(caught, done, **{**self._keywords, **keywords})

    def forget(self) -> None:
        """Drop the value, its run and its error."""
        self._key = self._value = self._job = None
        self.failure = ""

    def of(self, key: Any) -> Any:
        """The value for a key; None while there is none."""
        return self._value if key == self._key else None


@contextmanager
def computing(models: tuple[Any, ...], job: Job) -> Iterator[None]:
    """Use as many processor threads as pay off for the largest model; a cancel takes effect between layers.

    A computation that calls `sys.exit` has failed with a RuntimeError: it must end neither the cell nor the kernel.
    """
    with (
        few_threads(max(getattr(model, "parameter_count", SMALL) for model in models)),
        stopping(job.check),
        computing_here(),
    ):
        try:
            yield
        except SystemExit as error:
            raise RuntimeError(describe_error(error)) from error
