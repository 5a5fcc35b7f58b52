"""The status line of a panel: what is going on, how far it is, Cancel, and errors in a sentence."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets as T

from ..compute.memory import describe_seconds
from ..compute.worker import Progress
from .views.base import View

_HERE = Path(__file__).parent
_SPEAKING = (ValueError, TypeError, RuntimeError, OSError, NotImplementedError, T.TraitError)
"""Errors whose message is meant to be read alone; others are shown with their type."""


def describe_error(error: BaseException) -> str:
    """The exception as a sentence.

    >>> describe_error(ValueError("layer must be in 0..5, got 9")), describe_error(KeyError("x"))
    ('layer must be in 0..5, got 9', "KeyError: 'x'")
    """
    text = str(error).strip()
    if isinstance(error, MemoryError):
        return f"Out of memory: {text or 'close other programs or shorten the input'}"
    if text and isinstance(error, _SPEAKING):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class StatusLine(View):
    """One line: idle, queued, running with a progress bar and Cancel, done, cancelled or failed with the error below.

    Everything is sent as text, so that nothing in a message can become HTML. It carries the style sheet of its panel.
    """

    _esm = (_HERE / "status.js").read_text(encoding="utf-8")
    _css = (_HERE / "style.css").read_text(encoding="utf-8")

    state = T.Enum(
        ("idle", "waiting", "queued", "running", "cancelling", "cancelled", "done", "failed"), default_value="idle"
    ).tag(sync=True)
    """What is going on; "waiting" means that the inputs have changed and Run is to be pressed."""
    text = T.Unicode("Ready").tag(sync=True)
    """The line itself."""
    done_steps = T.Int(0).tag(sync=True)
    """Steps finished, while running."""
    total_steps = T.Int(0).tag(sync=True)
    """Steps in all; 0 while not known."""
    seconds_left = T.Float(None, allow_none=True).tag(sync=True)
    """Seconds that the rest will take; None while not known."""
    error = T.Unicode("").tag(sync=True)
    """The error in a sentence; empty if there is none."""
    trace = T.Unicode("").tag(sync=True)
    """The traceback, shown folded."""

    def __init__(self, on_cancel: Callable[[], object] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_cancel = on_cancel
        self.on_msg(self._message)

    @property
    def busy(self) -> bool:
        """Whether there is something to cancel."""
        return self.state in ("queued", "running", "cancelling")

    def idle(self, text: str = "Ready") -> None:
        """Nothing is going on."""
        self._show("idle", text)

    def waiting(self, forecast: str) -> None:
        """The inputs have changed and the run is too long to start by itself."""
        self._show("waiting", f"Inputs changed: press Run ({forecast})" if forecast else "Inputs changed: press Run")

    def queued(self, title: str = "Computing") -> None:
        """A request waits for the device."""
        self._show("queued", f"{title}: waiting for its turn", keep_error=True)

    def running(self, title: str = "Computing") -> None:
        """A request is being computed."""
        self._show("running", title)

    def progress(self, progress: Progress) -> None:
        """How far the running request is."""
        with self.hold_sync():
            self.done_steps, self.total_steps = int(progress.done), int(progress.total)
            self.seconds_left = progress.seconds_left

    def cancelling(self) -> None:
        """The running request has been asked to stop."""
        self._show("cancelling", "Cancelling")

    def cancelled(self, *, partial: bool = False) -> None:
        """The request has stopped."""
        self._show("cancelled", "Cancelled: the part finished so far is shown" if partial else "Cancelled")

    def done(self, seconds: float, *, cached: bool = False, title: str = "Done") -> None:
        """The result is on the screen."""
        source = "from cache" if cached else "computed"
        self._show("done", f"{title} in {describe_seconds(seconds)} ({source})")

    def failed(self, error: BaseException) -> None:
        """Show what went wrong; the picture stays."""
        trace = "".join(traceback.format_exception(error))
        self._show("failed", "Failed", error=describe_error(error), trace=trace[-20_000:])

    def _show(self, state: str, text: str, *, error: str = "", trace: str = "", keep_error: bool = False) -> None:
        with self.hold_sync():
            self.state, self.text = state, text
            self.done_steps, self.total_steps, self.seconds_left = 0, 0, None
            if not keep_error:
                self.error, self.trace = error, trace

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if isinstance(content, dict) and content.get("event") == "cancel" and self._on_cancel is not None:
            self._on_cancel()
