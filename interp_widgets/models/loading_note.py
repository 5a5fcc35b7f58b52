"""The line that a notebook shows while a model is loaded: seconds of silence look like a fault."""

from __future__ import annotations

import contextlib
import html
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from interp_widgets import notebook

AFTER = 1.0
"""Seconds after which the line comes; at once where libraries that take longer are not imported yet."""


class _Note:
    """The line of one load."""

    def __init__(self, title: str) -> None:
        self.title, self.start = title, time.perf_counter()
        self.handle: Any = None

    def say(self, text: str) -> None:
        """Show a text in place of the one before."""
        if self.handle is None:
            self.handle = notebook.new_line()
        if self.handle is not None:
            line = html.escape(f"{self.title}: {text}" if text else "")
            self.handle.update({"text/plain": line, "text/html": f"<small>{line}</small>"}, raw=True)

    def step(self, text: str) -> None:
        """Show a step, unless the load has taken no time worth a line yet."""
        if self.handle is not None or time.perf_counter() - self.start >= AFTER or "transformers" not in sys.modules:
            self.say(f"{text} …")


_note: ContextVar[_Note | None] = ContextVar("note", default=None)


@contextlib.contextmanager
def loading_note(title: str) -> Iterator[None]:
    """Context manager in which `loading_step` is shown; at its end the line says how long the load took.

    Only in the main thread of a notebook's kernel: the output of others has no cell of its own. After an error nothing
    stays, since the error says what is wrong.
    """
    note = _Note(title) if threading.current_thread() is threading.main_thread() else None
    token = _note.set(note)
    said = ""
    try:
        yield
        said = f"loaded in {time.perf_counter() - note.start:.0f} s" if note is not None else ""
    finally:
        _note.reset(token)
        if note is not None and note.handle is not None:
            note.say(said)


def loading_step(text: str) -> None:
    """Show what a load does now, such as ``"reading the weights"``."""
    note = _note.get()
    if note is not None:
        note.step(text)
