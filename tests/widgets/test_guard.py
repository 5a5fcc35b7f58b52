"""The gate that every handler goes through."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import pytest

from interp_widgets.widgets.base.guard import guard, guarded, inside_handler, ui_lock
from tests.waiting import provoke
from tests.widgets.opening import at_once


class Host:
    def __init__(self) -> None:
        self.closed = False
        self.errors: list[BaseException] = []

    def show_error(self, error: BaseException) -> None:
        self.errors.append(error)

    @guard
    def divide(self, a: int, b: int) -> float:
        """Divide."""
        assert inside_handler()
        return a / b


def test_result_and_error() -> None:
    host = Host()
    assert host.divide(6, 3) == 2
    assert host.divide(6, 0) is None
    assert isinstance(host.errors[0], ZeroDivisionError)
    assert not inside_handler()
    assert host.divide.__doc__ == "Divide."


def test_a_closed_host_does_nothing() -> None:
    host = Host()
    host.closed = True
    assert host.divide(6, 0) is None
    assert not host.errors


def test_interrupts_pass() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(Host(), interrupt)()


def test_a_browser_message_that_fails_is_shown_and_would_vanish_without_the_guard(wire: Any) -> None:
    host = Host()

    def fail(change: Any) -> None:
        raise ValueError("no")

    slider = W.IntSlider()
    slider.observe(guarded(host, fail), "value")
    wire.type(slider, value=3)
    assert [str(error) for error in host.errors] == ["no"]


def test_handlers_of_two_threads_take_turns() -> None:
    host, order = Host(), []

    def slow() -> None:
        order.append("in")
        provoke()
        order.append("out")

    at_once(*[guarded(host, slow)] * 4)
    assert order == ["in", "out"] * 4
    with ui_lock:
        pass


def test_bokeh_accepts_a_guarded_callback() -> None:
    from bokeh.models import ColumnDataSource

    host, seen = Host(), []
    source = ColumnDataSource({"x": [1, 2]})
    source.selected.on_change("indices", guarded(host, lambda attr, old, new: seen.append(new)))
    source.selected.indices = [1]
    assert seen == [[1]]


def test_bokeh_figures_share_the_lock_of_the_panels() -> None:
    from bokeh.plotting import figure

    from interp_widgets.widgets.views import BokehFigure

    host = BokehFigure(figure(height=100))
    assert host.lock is ui_lock, "two locks taken in two orders would stop the worker and the kernel for good"
    host.close()
