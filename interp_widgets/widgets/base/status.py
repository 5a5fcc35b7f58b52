"""The status line of a panel: what is running, its progress, Cancel, and errors in a sentence."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import traitlets as T

from ...arguments import message_of
from ...compute.memory import describe_seconds
from ...compute.worker import Progress
from ..views.base import View, page_style

_HERE = Path(__file__).parent
_SPEAKING = (ValueError, TypeError, RuntimeError, OSError, NotImplementedError, T.TraitError)
"""Errors whose message can be read alone; others are shown with their type."""


def describe_error(error: BaseException) -> str:
    """The exception as a sentence.

    >>> describe_error(ValueError("layer must be in 0..5, got 9")), describe_error(KeyError("x"))
    ('layer must be in 0..5, got 9', "KeyError: 'x'")
    """
    text = message_of(error)
    if isinstance(error, SystemExit):
        return f"The code called sys.exit({text}): let it return or raise an error instead"
    if isinstance(error, MemoryError):
        return f"Out of memory: {text or 'close other programs or shorten the input'}"
    if text and isinstance(error, _SPEAKING):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


WAITING = "Waiting for a setting: see the hint beside it"
"""The line while a setting is not filled in."""
LONGEST_LINE, LONGEST_TRACE = 2_000, 20_000
"""Most characters of one entry of a traceback, and of all of them."""


@dataclass
class _Run:
    """One run that is under way."""

    title: str
    state: str
    """queued, running or cancelling"""
    progress: Progress | None = None
    behind: str = ""
    """The run that it waits for, if known."""


class StatusLine(View):
    """One line: idle, queued, running with a progress bar and Cancel, done, cancelled or failed with the error below.

    Several runs may be under way, each on its own channel: the line shows the one that is computing, and beside it
    what has ended meanwhile and what is queued. Everything is sent as text, so that nothing
    in a message can become HTML. It carries the style sheet of its panel.
    """

    _esm = (_HERE / "status.js").read_text(encoding="utf-8")
    _css = f"{page_style()}\n{(_HERE / 'style.css').read_text(encoding='utf-8')}"

    state = T.Enum(
        ("idle", "waiting", "queued", "running", "cancelling", "cancelled", "done", "failed"), default_value="idle"
    ).tag(sync=True)
    """The state; "waiting" means that the user has to press Run."""
    text = T.Unicode("Ready").tag(sync=True)
    """The line itself."""
    done_steps = T.Int(0).tag(sync=True)
    """Steps finished, while running."""
    total_steps = T.Int(0).tag(sync=True)
    """Total steps; 0 while unknown."""
    seconds_left = T.Float(None, allow_none=True).tag(sync=True)
    """Estimated seconds left; None while unknown."""
    error = T.Unicode("").tag(sync=True)
    """The error as a sentence; empty if there is none."""
    trace = T.Unicode("").tag(sync=True)
    """The traceback, shown folded."""

    def __init__(self, on_cancel: Callable[[], object] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self.add_class("iw-status-box")
        self._runs: dict[str, _Run] = {}
        self._last = ("idle", "Ready")
        self._on_cancel = on_cancel
        self.on_msg(self._message)

    @property
    def busy(self) -> bool:
        """Whether there is something to cancel."""
        return self.state in ("queued", "running", "cancelling")

    def idle(self, text: str = "Ready") -> None:
        """Show that nothing is running."""
        self._say("idle", text)

    def leave_off(self) -> None:
        """Take back that Run has to be pressed, or a setting filled in, of a panel that is no longer shown."""
        if self._last[0] == "waiting" or self._last[1] == WAITING:
            self.idle()

    def waiting(self, forecast: str, *, because: str = "Inputs changed") -> None:
        """Show that Run has to be pressed, and why."""
        self._say("waiting", f"{because}: press Run ({forecast})" if forecast else f"{because}: press Run")

    def queued(self, title: str = "Computing", *, channel: str = "main", behind: str = "") -> None:
        """Show a request that waits for the device, or for the run that it is queued `behind`."""
        self._runs.pop(channel, None)
        self._runs[channel] = _Run(title, "queued", behind=behind)
        self._last = ("idle", "")
        self._paint()

    def running(self, title: str = "Computing", *, channel: str = "main") -> None:
        """Show a request that is being computed."""
        self._runs.pop(channel, None)
        self._runs[channel] = _Run(title, "running")
        self._last = ("idle", "")
        self._paint(error="")

    def progress(self, progress: Progress, *, channel: str = "main") -> None:
        """Show the progress of the running request."""
        run = self._runs.get(channel)
        if run is not None:
            run.progress = progress
        self._paint()

    def cancelling(self, *, channel: str = "main") -> None:
        """Show that the running request is being cancelled."""
        self._runs.setdefault(channel, _Run("", "cancelling")).state = "cancelling"
        self._paint(error="")

    def cancelled(self, *, partial: bool = False, channel: str = "main") -> None:
        """Show that the request was cancelled."""
        self._runs.pop(channel, None)
        self._say("cancelled", "Cancelled: the part finished so far is shown" if partial else "Cancelled")

    def done(self, seconds: float, *, source: str = "computed", title: str = "", channel: str = "main") -> None:
        """Show that the result is on the screen; `source` is where it came from."""
        begin = f"{title}: done" if title else "Done"
        self._runs.pop(channel, None)
        self._say("done", f"{begin} in {describe_seconds(seconds)} ({source})")

    def forget(self, channel: str) -> None:
        """Drop a run that will report nothing more; the last message stays."""
        if self._runs.pop(channel, None) is not None:
            self._paint()

    def failed(self, error: BaseException) -> None:
        """Show an error; the picture stays."""
        try:
            lines = [line[:LONGEST_LINE] for line in traceback.format_exception(error)]
        except (Exception, SystemExit) as raised:  # whatever the class of the error raises
            lines = [f"The traceback cannot be written: {type(error).__name__} raised {type(raised).__name__}"]
        self._last = ("failed", "Failed")
        self._paint(error=describe_error(error), trace="".join(lines)[-LONGEST_TRACE:])

    def _say(self, state: str, text: str) -> None:
        """Show something that has ended: as the whole line, or beside the current run."""
        self._last = (state, text)
        self._paint(error="")

    def _paint(self, *, error: str | None = None, trace: str = "") -> None:
        """Show the current run, or else the last message; `error` None leaves the error unchanged."""
        computing = [run for run in self._runs.values() if run.state != "queued"]
        run = computing[-1] if computing else next(iter(self._runs.values()), None)
        state, text = (run.state, self._run_text(run)) if run is not None else self._last
        progress = None if run is None or state != "running" else run.progress
        with self.hold_sync():
            self.state, self.text = state, text
            self.done_steps, self.total_steps = (int(progress.done), int(progress.total)) if progress else (0, 0)
            self.seconds_left = progress.seconds_left if progress else None
            if error is not None:
                self.error, self.trace = error, trace

    def _run_text(self, run: _Run) -> str:
        """The current run, the queued ones, and the last message."""
        queued = [other.title for other in self._runs.values() if other.state == "queued" and other is not run]
        if run.state == "queued":
            text = f"{run.title}: waiting for {f'{run.behind} to end' if run.behind else 'its turn'}"
        else:
            text = "Cancelling" if run.state == "cancelling" else run.title
        others = f" and {len(queued) - 1} more" if len(queued) > 1 else ""
        then = f"then {queued[0]}{others}" if queued else ""
        last = "" if self._last in (("idle", "Ready"), ("failed", "Failed")) else self._last[1]
        return " · ".join(part for part in (text, then, last) if part)

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if content.get("event") == "cancel" and self._on_cancel is not None:
            self._on_cancel()
