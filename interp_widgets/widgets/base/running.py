"""How a panel runs: requests in the background, the newest wins, and what the screen holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ipywidgets as W
import traitlets as T

from ...compute.worker import Cancelled, Job, Owner, State
from .computing import Computing, Outcome
from .fields import Controls, Incomplete
from .guard import guard, guarded, handling, inside_handler, ui_lock
from .identity import Identity
from .status import StatusLine

QUICK_SECONDS = 0.3
"""A run that is forecast to take less starts by itself."""
FIRST_SECONDS = 1.0
"""The first run is done before the panel appears if it takes less,"""
FIRST_BACKGROUND_SECONDS = 30.0
"""and starts in the background if it takes less than this."""


class Running(Computing, W.VBox):
    """The half of `Panel` that runs: it knows requests, results and the status line, but no layout."""

    closed = True
    """Whether the panel is closed; True until there is something to close."""

    view = T.Enum(("A", "B", "difference"), default_value="A")
    """With two models: the first, the second, or the second minus the first."""
    result = T.Any(None, read_only=True)
    """The last good result (a tuple of two with two models); None before the first."""

    results: tuple[Any, ...]
    """The results on the screen, one per model."""
    controls: Controls
    """The controls of the fields."""
    status: StatusLine
    """The status line."""

    def _prepare(self, models: tuple[Any, ...]) -> None:
        """Start with nothing shown and nothing running."""
        self.models = models
        self.results = ()
        self._shown: Outcome | None = None
        self._good: Outcome | None = None
        self._drawn: Outcome | None = None
        self._pending: Hashable = None
        self._run_failed = False
        self._holds = 0
        self._settled = 0
        self._due: set[str] = set()
        self._asked_for: dict[str, Any] = {}
        self._changed: set[str] = set()
        self._identity = Identity()
        self._owners: dict[str, Owner] = {}

    # hooks ------------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        """Show the results, one per model; `self.shown` says which of them is looked at."""

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        """For traits that choose: how many or which ones the results on the screen have, and what to call them."""
        return {}

    def check_chosen(self) -> None:
        """Raise ValueError for a choice, such as a component, that the results on the screen do not have."""
        for name, (there, what) in self.choices().items():
            if name not in self._asked_for and name not in self._changed:
                continue  # chosen in results before
            value = self._asked_for.get(name, getattr(self, name))
            if isinstance(there, int):
                if value is not None and value >= there:
                    raise ValueError(f"{name} must be in 0..{there - 1} for {what}, got {value}")
                continue
            for one in [value] if isinstance(value, str) else value:
                if one and one not in there:
                    raise ValueError(f"{name} must be of {what}, got {one!r}: check how it is written")

    def _mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Show whether the picture is behind the inputs and whether Run is to be pressed; `Panel` does."""

    # for subclasses ---------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """What is looked at: `view`, but "A" as long as there is only one result."""
        return self.view if len(self.results) > 1 else "A"

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Change several traits and answer once at the end."""
        with handling():
            self._holds += 1
        try:
            yield
        finally:
            with handling():
                self._holds -= 1
                self._settle()

    def start(
        self,
        work: Callable[[Job], Any],
        done: Callable[[Any], object] | None = None,
        *,
        title: str,
        on_partial: Callable[[Any], object] | None = None,
        channel: str = "side",
        quiet: bool = False,
        gives_way: bool = False,
    ) -> Job:
        """Run `work(job)` in the worker beside the main request and then `done(value)`, with status and Cancel.

        `work` must not touch widgets; it hands `job.progress`, `job.check` and `job.partial` on to an analysis. `done`
        and `on_partial` may draw. The newest request of a channel replaces the one before it. With `quiet`, the status
        line tells of errors only: for milliseconds of work behind a click. With `gives_way`, the work calls
        `job.give_way` now and then, so that shorter runs of all panels need not wait for its end.
        """
        began, partial = time.monotonic(), False
        if quiet:
            self.status.forget(channel)

        def finish(value: Any) -> None:
            if done is not None:
                done(value)
            if not quiet:
                self.status.done(time.monotonic() - began, title=title, channel=channel)

        def compute(job: Job) -> Any:
            nonlocal began
            began = time.monotonic()  # the time in the queue is no work
            with self._threads():
                return work(job)

        def show(value: Any) -> None:
            nonlocal partial
            partial = True
            if on_partial is not None:
                on_partial(value)

        return self._owner(channel).submit(
            compute,
            on_result=guarded(self, finish),
            on_error=self.show_error,
            on_progress=None if quiet else lambda progress: self.status.progress(progress, channel=channel),
            on_state=None if quiet else lambda state: self._say(state, title, channel, partial=partial),
            on_partial=None if on_partial is None else guarded(self, show),
            title=self._named(title),
            gives_way=gives_way,
        )

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Set inputs that the result on the screen answers already, such as a text the run wrote: no run follows."""
        with handling():
            self._settled += 1
            try:
                yield
            finally:
                self._settled -= 1

    @guard
    def go(self) -> None:
        """Bring the picture up to the inputs, however long it takes: what the Run button does."""
        self._refresh(limit=float("inf"))

    def show_error(self, error: BaseException) -> None:
        """Show an exception in the status line; a setting that is not filled in is a hint at its control."""
        with ui_lock:
            if self.closed:
                return
            if isinstance(error, Incomplete) and self.controls.hint(error.name, str(error)):
                self.status.idle("Waiting for a setting: see the hint beside it")
            else:
                self.status.failed(error)

    def redraw(self) -> None:
        """Draw the results on the screen again, after a change that needs no run."""
        if self._shown is not None:
            self.draw(self._shown.results, self._shown.request)

    # running ----------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a run of this panel is going on or waiting."""
        return any(owner.busy for owner in self._owners.values())

    def run(self, *, fresh: bool = False) -> Any:
        """Compute what the inputs say, in the calling thread, draw it and return the result; errors are raised.

        `fresh` computes even if the result is in the cache. `Cancelled` is raised if something newer came in between.
        """
        if self.closed:
            raise RuntimeError(f"this {type(self).__name__} is closed: open a new one")
        try:
            request = self.request()
            outcome = self._owner("main").run(
                lambda job: self._work(request, job, fresh),
                wait=not inside_handler(),
                on_progress=self.status.progress,
                on_state=self._say_main,
                on_partial=self._show_partial,
            )
            with handling():
                self._show(outcome)
        except Cancelled:
            raise
        except Exception as error:
            with handling():
                self._failed(error)
            raise
        return self.result

    def cancel(self) -> None:
        """Ask everything that this panel runs to stop; what is finished stays on the screen."""
        for owner in list(self._owners.values()):
            owner.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing that this panel runs is left; False if `timeout` seconds passed first.

        For scripts and tests; raises RuntimeError in a handler, which the worker would wait for in turn.
        """
        if inside_handler():
            raise RuntimeError(
                "a handler cannot wait for the worker: give start(...) a function to call when it is done"
            )
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with ui_lock:
                jobs = [owner.job for owner in self._owners.values() if owner.job is not None]
            if not jobs:
                return True
            if not jobs[0].wait(None if end is None else max(0.0, end - time.monotonic())):
                return False

    # inside -----------------------------------------------------------------------------------------------------------

    def _owner(self, channel: str) -> Owner:
        if channel not in self._owners:
            self._owners[channel] = Owner(str(getattr(self.models[0], "device", "cpu")), lock=ui_lock)
        return self._owners[channel]

    def _first_run(self) -> None:
        """Appear with a result: at once if it is quick, else as soon as it is there."""
        try:
            seconds = self.forecast(self.request()).seconds
            if seconds <= FIRST_SECONDS and not self._owner("main").worker.busy:
                self.run()
                return
        except KeyboardInterrupt:
            return  # the status line says that it was cancelled; the panel is there to try again
        except Exception as error:
            self.show_error(error)
            return
        self._refresh(limit=FIRST_BACKGROUND_SECONDS)

    @guard
    def _refresh_due(self, change: Any) -> None:
        if not self._settled:
            self._due.add("refresh")
            self._settle()

    @guard
    def _redraw_due(self, change: Any) -> None:
        self._due.add("redraw")
        self._settle()

    @guard
    def _chosen_due(self, change: Any) -> None:
        self._changed.add(change.name)
        self._due.add("chosen")
        self._settle()

    @guard
    def _settle(self) -> None:
        """Do once what several changes have made due."""
        if self._holds:
            return
        due, self._due = self._due, set()
        if not due:
            return
        self.controls.clear_hints()
        if self.status.error and not self._run_failed:
            self.status.idle()  # that error was about a value that has changed since; if not, it comes back
        drawn = self._drawn
        if "redraw" in due and self._shown is None:
            due.add("refresh")  # there may be a result that could not be drawn as it was asked for
        if "refresh" in due:
            self._refresh()
        if "redraw" in due and self._drawn is drawn:
            self.redraw()
        if "chosen" in due:
            self._check_chosen()

    @guard
    def _check_chosen(self) -> None:
        """Tell of a choice that the results do not have, once they are complete."""
        if self._good is not None and self._shown is self._good:
            try:
                self.check_chosen()
            finally:
                self._asked_for, self._changed = {}, set()  # said once: what it was replaced by is on the screen

    @guard
    def _refresh(self, limit: float = QUICK_SECONDS) -> None:
        """Bring the picture up to the inputs: from the cache, by a run if it is quick, else light the Run button."""
        self.controls.clear_hints()
        try:
            request = self.request()
        except Exception:
            self._drop()  # what runs is about inputs that have changed: its end must not cover the error
            self._pending = None
            self._restore()
            raise
        if self._pending is not None and request == self._pending:
            return
        held = tuple(self._held(request, model) for model in self.models)
        if all(value is not None for value in held):
            self._drop()
            self._show(Outcome(request, held, 0.0, cached=True))
            return
        forecast = self.forecast(request)
        if forecast.seconds <= limit:
            self._mark(stale=True)
            self._submit(request)
        else:
            self._drop()
            self._pending = None
            self._mark(stale=True, forecast=forecast.describe())
            self.status.waiting(forecast.describe())

    def _drop(self) -> None:
        """Forget the run of the main request, if there is one."""
        self._owner("main").drop()
        self.status.forget("main")

    def _named(self, title: str) -> str:
        """A run as those on other panels know it."""
        return f"{title} ({name})" if (name := getattr(self, "title", "")) else title

    def _submit(self, request: Hashable) -> None:
        self._owner("main").submit(
            lambda job: self._work(request, job, fresh=False),
            on_result=self._show,
            on_error=self._failed,
            on_progress=self.status.progress,
            on_state=self._say_main,
            on_partial=self._show_partial,
            title=self._named("Computing"),
        )
        self._pending = request

    def _show(self, outcome: Outcome) -> None:
        """Draw a complete outcome and hold it as the last good one."""
        if self.closed:
            return
        self._pending = None
        began = time.monotonic()
        try:
            self._put(outcome)
        except Exception:
            self._restore()
            raise
        self._good = outcome
        self._run_failed = False
        self._mark(stale=False)
        seconds = time.monotonic() - began if outcome.cached else outcome.seconds
        self.status.done(seconds, cached=outcome.cached)
        if self._asked_for:  # later, what was chosen in the results before is no error in these
            self._check_chosen()

    def _show_partial(self, outcome: Outcome) -> None:
        self._put(outcome)

    def _put(self, outcome: Outcome) -> None:
        """Draw an outcome and hold it; if drawing fails, what was held before is held still."""
        before = self._shown, self.results
        self._shown, self.results, self._drawn = outcome, outcome.results, None
        try:
            self.draw(outcome.results, outcome.request)
        except BaseException:
            self._shown, self.results = before
            raise
        self._drawn = outcome
        self.set_trait("result", outcome.results[0] if len(self.models) == 1 else outcome.results)

    def _restore(self) -> None:
        """After an error, show the last good outcome again if something else has touched the picture."""
        if self._good is not None and self._drawn is not self._good:
            self._put(self._good)

    def _failed(self, error: BaseException) -> None:
        self._pending = None
        self._run_failed = True
        self.status.forget("main")  # also where the run itself went well, and drawing did not
        self.show_error(error)
        self._restore()

    def _say_main(self, state: State) -> None:
        if state in ("queued", "cancelled"):
            self._pending = None
        self._say(state, partial=self._shown is not None and self._shown.partial)
        if state == "cancelled" and not self.closed:
            self._mark(stale=True, forecast="")

    def _say(self, state: State, title: str = "Computing", channel: str = "main", *, partial: bool = False) -> None:
        """Show the state of a run; done and failed are shown with their result and their error."""
        if self.closed:
            return
        if state == "queued":
            before = self._owner(channel).worker.current
            self.status.queued(title, channel=channel, behind="" if before is None else before.title)
        elif state == "running":
            self.status.running(title, channel=channel)
        elif state == "cancelling":
            self.status.cancelling(channel=channel)
        elif state == "cancelled":
            self.status.cancelled(partial=partial, channel=channel)
        else:
            self.status.forget(channel)
