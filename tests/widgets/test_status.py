"""The status line."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets.compute.worker import Progress
from interp_widgets.widgets.base.status import WAITING, StatusLine, describe_error


class Unreadable(Exception):
    """Its message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_what_was_asked_for_is_taken_back_with_its_panel() -> None:
    status, seen = StatusLine(), []
    for say in (lambda: status.waiting("2 s"), lambda: status.idle(WAITING), lambda: status.done(1.0)):
        say()
        status.leave_off()
        seen.append((status.state, status.text))
    assert seen == [("idle", "Ready"), ("idle", "Ready"), ("done", "Done in 1.0 s (computed)")]


def test_states(wire: Any) -> None:
    status = StatusLine()
    assert (status.state, status.text, status.busy) == ("idle", "Ready", False)
    status.queued("Computing")
    assert status.busy
    status.running("Computing")
    status.progress(Progress(3, 10, 1.5))
    assert (status.done_steps, status.total_steps, status.seconds_left) == (3, 10, 1.5)
    status.done(0.0123, source="from cache")
    assert status.text == "Done in 12 ms (from cache)"
    assert (status.busy, status.total_steps) == (False, 0)
    status.cancelled(partial=True)
    assert status.text == "Cancelled: the part finished so far is shown"
    status.close()


def test_several_runs(wire: Any) -> None:
    """The line stays with what is computing: what else is said or waits stands beside it, and nothing hides Cancel."""
    status = StatusLine()
    status.queued("Computing", behind="Tuning (Mixture of depths)")
    assert status.text == "Computing: waiting for Tuning (Mixture of depths) to end"
    status.forget("main")
    status.running("Tuning", channel="tune")
    status.progress(Progress(3, 10, 1.5), channel="tune")
    status.queued("Measuring", channel="speed")
    assert (status.state, status.text, status.done_steps) == ("running", "Tuning · then Measuring", 3)
    status.queued("Comparing", channel="compare")
    status.queued("Saving", channel="save")
    assert status.text == "Tuning · then Measuring and 2 more"
    for channel in ("speed", "compare", "save"):
        status.forget(channel)
    status.running("Computing")
    assert (status.state, status.text, status.total_steps) == ("running", "Computing", 0)
    status.done(0.0123)
    assert (status.state, status.text, status.done_steps) == ("running", "Tuning · Done in 12 ms (computed)", 3)
    status.waiting("about 2 s")
    assert (status.busy, status.text) == (True, "Tuning · Inputs changed: press Run (about 2 s)")
    status.failed(ValueError("not so"))
    assert (status.state, status.text, status.error) == ("running", "Tuning", "not so")
    status.progress(Progress(4, 10, 1.0), channel="tune")
    assert (status.error, status.done_steps) == ("not so", 4)
    status.done(2.0, title="Tuning", channel="tune")
    assert (status.state, status.text, status.error) == ("done", "Tuning: done in 2.0 s (computed)", "")
    status.close()


def test_progress_is_one_message(wire: Any) -> None:
    status = StatusLine()
    status.running()
    before = len(wire.sent)
    status.progress(Progress(3, 10, 1.5))
    assert len(wire.sent) == before + 1
    status.close()


def test_error_with_its_traceback_goes_away_with_the_next_run(wire: Any) -> None:
    status = StatusLine()
    try:
        raise ValueError("prompt must not be empty")
    except ValueError as error:
        status.failed(error)
    assert status.error == "prompt must not be empty"
    assert "test_status.py" in status.trace
    status.queued()
    assert status.error, "it stays until something happens"
    status.running()
    assert status.error == ""
    status.close()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("say so"), "say so"),
        (RuntimeError(""), "RuntimeError"),
        (IndexError("list index"), "IndexError: list index"),
        (MemoryError(), "Out of memory: close other programs or shorten the input"),
        (SystemExit(3), "The code called sys.exit(3): let it return or raise an error instead"),
        (Unreadable(), "Unreadable"),
        (ValueError("a" * 10**7), "a" * 997 + "..."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_in_words(error: BaseException, text: str) -> None:
    assert describe_error(error) == text


@pytest.mark.parametrize("error", [Unreadable(), ValueError("a" * 10**7)], ids=["unreadable", "long"])
def test_no_error_is_too_much_to_show(error: Exception, wire: Any) -> None:
    status = StatusLine()
    try:
        raise error
    except Exception as caught:
        status.failed(caught)
    assert status.error
    assert len(status.error) + len(status.trace) < 25_000
    assert "test_status.py" in status.trace, "the traceback is not pushed out by the message"
    status.close()


def test_cancel_button(wire: Any) -> None:
    hits: list[int] = []
    status = StatusLine(on_cancel=lambda: hits.append(1))
    wire.event(status, event="cancel")
    wire.event(status, event="else")
    assert hits == [1]
    status.close()
    assert wire.open() == 0


class Exits(Exception):
    """An error whose text and notes raise."""

    def __str__(self) -> str:
        raise SystemExit("from the text")

    @property
    def __notes__(self) -> list[str]:
        raise ValueError("from the notes")


def test_an_error_whose_parts_raise_is_shown_by_its_name(wire: Any) -> None:
    status = StatusLine()
    status.failed(Exits())
    assert (status.state, status.error) == ("failed", "Exits")
    assert "Exits raised" in status.trace
    status.close()
