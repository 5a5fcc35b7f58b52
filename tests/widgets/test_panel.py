"""The panel: runs, cancels, shows errors, keeps the last good result, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ipywidgets as W
import pytest
import traitlets as T

from interp_widgets.compute.worker import Cancelled
from interp_widgets.widgets.base import lifetime
from interp_widgets.widgets.base.guard import ui_lock
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.stack import Stack
from tests.waiting import LIMIT, join, provoke, until_stopped

HERE = threading.current_thread()


def test_appears_with_a_result(toy: Any) -> None:
    assert toy.result == 9
    assert toy.label.value == "A 9"
    assert toy.status.text.startswith("Done in ")
    assert toy.status.text.endswith("(computed)")
    assert repr(toy) == "Toy(fake)"


def test_unknown_keyword(wire: Any, classes: Any, model: Any) -> None:
    with pytest.raises(TypeError, match=r"Toy got an unknown keyword 'kidn'; did you mean 'kind'\?"):
        classes.Toy(model, kidn="good")
    with pytest.raises(TypeError, match=r"allowed: .*scale"):
        classes.Toy(model, zzzz=1)
    with pytest.raises(TypeError, match="unknown keyword 'children'"):
        classes.Toy(model, children=[])
    with pytest.raises(T.TraitError):
        classes.Toy(model, kind="bad")
    assert wire.open() == 0, "a panel that could not be made must leave no comm"


@pytest.mark.parametrize("wrong", [None, "demo-base"])
def test_needs_a_loaded_model(classes: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match="a widget needs a loaded model"):
        classes.Toy(wrong)


def test_slider_recomputes_and_threshold_does_not(toy: Any, wire: Any) -> None:
    wire.type(toy.slider, value=5)
    assert toy.wait(120)
    assert (toy.n, toy.result, toy.label.value) == (5, 25, "A 25")
    before = list(toy.models[0].computed)
    toy.scale = 2.0
    assert toy.label.value == "A 50"
    assert toy.models[0].computed == before


def test_known_answers_come_from_the_cache(toy: Any) -> None:
    toy.n = 5
    assert toy.wait(120)
    toy.n = 3
    assert toy.result == 9, "a cached answer is shown at once, without the worker"
    assert toy.status.text.endswith("(from cache)")
    assert toy.models[0].computed == [3, 5]
    assert toy.run(fresh=True) == 9
    assert toy.models[0].computed == [3, 5, 3]


def test_another_panel_on_the_same_weights_shares_the_cache(toy: Any, make: Callable[..., Any]) -> None:
    again = make(toy.models[0])
    assert again.result == 9
    assert toy.models[0].computed == [3]


def test_200_rapid_changes_paint_only_what_is_asked_for(toy: Any, wire: Any, model: Any) -> None:
    model.hold(deaf=True)
    wire.type(toy.slider, value=999)
    assert model.entered.wait(120)
    toy.painted.clear()
    for value in range(4, 204):
        wire.type(toy.slider, value=value)
    model.gate.set()
    assert toy.wait(120)
    assert toy.result == 203**2
    whole = [n for n, results in toy.painted if results[0] >= 0]
    assert whole == [203], "older answers must not be painted"
    assert model.computed == [3, 999, 203], "replaced requests must not be computed"


def test_without_a_newer_request_the_held_answer_is_painted(toy: Any, model: Any) -> None:
    model.hold()
    toy.n = 7
    assert model.entered.wait(120)
    model.gate.set()
    assert toy.wait(120)
    assert (7, (49,)) in toy.painted


def test_cancel_keeps_the_part_that_is_there(toy: Any, wire: Any, model: Any) -> None:
    model.hold()
    toy.n = 8
    assert model.entered.wait(120)
    assert toy.status.busy
    wire.event(toy.status, event="cancel")
    assert toy.wait(120), "the gate is shut: only the cancel can have ended the run"
    assert toy.status.state == "cancelled"
    assert toy.run_button.button_style == "primary", "the inputs are still unanswered"
    assert "the part finished so far is shown" in toy.status.text
    assert toy.result == -8
    model.gate.set()
    wire.click(toy.run_button)
    assert toy.wait(120)
    assert toy.result == 64


def test_second_click_during_a_run_starts_nothing(toy: Any, wire: Any, model: Any) -> None:
    model.hold()
    toy.n = 6
    assert model.entered.wait(120)
    for _ in range(3):
        wire.click(toy.run_button)
    model.gate.set()
    assert toy.wait(120)
    assert toy.result == 36
    assert model.computed == [3, 6]


def test_exception_shows_a_sentence_and_keeps_the_last_result(toy: Any, model: Any) -> None:
    model.error = ValueError("layer <img src=x onerror=alert(1)> does not exist")
    toy.n = 4
    assert toy.wait(120)
    assert toy.status.state == "failed"
    assert toy.status.error == "layer <img src=x onerror=alert(1)> does not exist"
    assert "Traceback" in toy.status.trace
    assert "in square" in toy.status.trace
    assert toy.result == 9
    assert toy.label.value == "A 9", "the partial picture must have made way for the last good one"
    model.error = None
    toy.n = 5
    assert toy.wait(120)
    assert toy.status.state == "done"
    assert toy.status.error == ""


def test_out_of_memory_is_said_and_survived(toy: Any, model: Any) -> None:
    model.error = MemoryError()
    toy.n = 4
    assert toy.wait(120)
    assert toy.status.error.startswith("Out of memory")
    assert toy.result == 9


def test_exception_while_drawing(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = toy.draw

    def broken(results: Any, request: Any) -> None:
        if request.n == 4 and results[0] > 0:
            raise RuntimeError("cannot draw 4")
        draw(results, request)

    monkeypatch.setattr(toy, "draw", broken, raising=False)
    toy.n = 4
    assert toy.wait(120)
    assert toy.status.error == "cannot draw 4"
    assert (toy.result, toy.results, toy.label.value) == (9, (9,), "A 9")


def test_run_raises_what_the_button_shows(toy: Any, wire: Any, model: Any) -> None:
    model.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        toy.run(fresh=True)
    assert toy.status.error == "broken"
    assert toy.result == 9
    toy.n = -1
    assert toy.status.error == "n must be 0 or more, got -1"
    with pytest.raises(ValueError, match="n must be 0 or more"):
        toy.run()
    wire.click(toy.run_button)
    assert toy.status.error == "n must be 0 or more, got -1"


def test_run_computes_in_the_calling_thread(make: Callable[..., Any], model: Any, classes: Any) -> None:
    threads: list[threading.Thread] = []

    class Noting(classes.Toy):
        def compute(self, request: Any, model: Any, **hooks: Any) -> int:
            threads.append(threading.current_thread())
            return super().compute(request, model, **hooks)

    panel = make(model, kind=Noting, n=12)
    assert panel.run(fresh=True) == 144
    assert set(threads) == {HERE}
    panel.n = 13
    assert panel.wait(120)
    assert threads[-1].name.startswith("interp-widgets")


def test_a_run_under_way_does_not_cover_an_error_in_the_inputs(toy: Any, model: Any) -> None:
    model.hold()
    toy.n = 4
    assert model.entered.wait(120)
    toy.n = -1
    model.gate.set()
    assert toy.wait(120)
    assert (toy.status.state, toy.status.error) == ("failed", "n must be 0 or more, got -1")
    assert toy.painted[-1] == (3, (9,)), "neither the old run's result nor its part stays"
    assert toy.result == 9
    toy.n = 4
    assert toy.wait(120)
    assert (toy.status.state, toy.result) == ("done", 16)


def test_run_is_replaced_by_a_change_from_elsewhere(toy: Any, model: Any) -> None:
    model.hold()

    def user() -> None:
        assert model.entered.wait(120)
        toy.n = 11
        model.gate.set()

    other = threading.Thread(target=user)
    other.start()
    with pytest.raises(Cancelled):
        toy.run(fresh=True)
    join(other)
    assert toy.wait(120)
    assert toy.result == 121


def test_an_error_on_a_browser_message_is_shown(toy: Any, wire: Any) -> None:
    wire.type(toy.slider, value=-2)
    assert toy.status.error == "n must be 0 or more, got -2"
    wire.type(toy.box, value="bad")
    assert "kind of Toy must be any of ['good', 'better'], got 'bad'" in toy.status.error
    assert toy.status.error.endswith("; it stays 'good'")
    assert (toy.kind, toy.box.value) == ("good", "good"), "the control shows what is used"
    wire.type(toy.slider, value=3)
    assert toy.status.error == ""
    assert toy.status.state == "done"


def test_what_is_within_the_budget_starts_by_itself(toy: Any) -> None:
    toy.seconds = 9.5
    toy.n = 5
    assert toy.wait(120)
    assert toy.result == 25
    toy.live_seconds = 9.0
    toy.n = 6
    assert not toy.busy
    assert toy.result == 25
    assert toy.workbench.live_seconds == 9.0


def test_what_needs_more_memory_than_there_should_be_waits(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.base.panel.budget", lambda _device: 299e6)
    toy.n = 7
    assert not toy.busy
    assert toy.status.state == "waiting"


def test_a_panel_that_has_not_run_does_not_say_that_its_inputs_changed(
    make: Any, model: Any, classes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes.Toy, "manual_run", True)
    panel = make(model)
    panel.refresh()
    assert panel.status.text.startswith("Not computed yet: press Run")
    panel.go()
    assert panel.wait(120)
    panel.n = 7
    assert panel.status.text.startswith("Inputs changed: press Run")


def test_a_long_forecast_lights_the_run_button(toy: Any, wire: Any, model: Any) -> None:
    toy.seconds = 12.6
    toy.n = 20
    assert not toy.busy
    assert toy.result == 9
    assert toy.run_button.button_style == "primary"
    assert toy.forecast_label.value == "about 13 s, 300 MB"
    assert toy.status.text == "Inputs changed: press Run (about 13 s, 300 MB)"
    assert "iw-stale" in toy.plot._dom_classes
    wire.click(toy.run_button)
    assert toy.wait(120)
    assert toy.result == 400
    assert toy.run_button.button_style == ""
    assert "iw-stale" not in toy.plot._dom_classes


def test_the_first_picture_comes_by_itself_also_after_a_hint(make: Callable[..., Any], model: Any) -> None:
    panel = make(model, n=-1, seconds=50.0)
    assert panel.results == ()
    panel.n = 4
    assert panel.wait(120)
    assert panel.results == (16,), "50 s are much while one types, but not for the first picture"
    panel.n = 5
    assert (panel.results, panel.status.state) == ((16,), "waiting")
    far = make(model, n=-1, seconds=3000.0)
    far.n = 6
    assert (far.results, far.status.state) == ((), "waiting")


def test_a_panel_that_would_take_long_opens_on_its_strongest_parts_and_waits(
    make: Any, model: Any, classes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interp_widgets.widgets.base.panel.FIRST_PARTS_SECONDS", 0.0)
    far = make(model, n=4, seconds=61.0)
    assert (far.results, far.status.state) == ((), "waiting"), "parts in any order are no first picture"
    monkeypatch.setattr(classes.Toy, "first_parts", "what is expected to be strongest")
    panel = make(model, n=5, seconds=61.0)
    assert panel.wait(120)
    assert (panel.results, panel.result) == ((-5,), -5), "the first part alone"
    assert panel.status.text == "Only what is expected to be strongest: press Run (about 1 min 1 s, 300 MB)"
    assert panel.status.error == ""
    assert panel.run_button.button_style == "primary"
    assert "iw-stale" not in panel.plot._dom_classes, "what is there is true"
    panel.n = 6
    assert panel.status.text.startswith("Inputs changed: press Run")
    assert model.computed == [5], "only the first picture comes unasked"


def test_run_lets_the_strongest_parts_go_on_to_the_whole(
    make: Any, model: Any, classes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(classes.Toy):
        first_parts = "the first"

        def compute(self, request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> int:
            value: int = super().compute(request, model, progress=progress, check=check, on_partial=on_partial)
            on_partial(-1)
            return value

    model.hold()
    panel = make(model, kind=Twice, n=7, seconds=61.0)
    assert model.entered.wait(120)
    panel.go()
    monkeypatch.setattr("interp_widgets.widgets.base.panel.FIRST_PARTS_SECONDS", 0.0)
    model.gate.set()
    assert panel.wait(120)
    assert (panel.result, model.computed, panel.run_button.button_style) == (49, [7], "")


def test_a_change_that_waits_for_run_stops_the_run_before_it(toy: Any, model: Any) -> None:
    model.hold()
    toy.n = 6
    assert model.entered.wait(120)
    toy.seconds = 50.0
    toy.n = 7
    assert toy.wait(120)
    assert toy.status.state == "waiting"
    assert (6, (36,)) not in toy.painted


def test_closing_during_a_run_leaves_no_thread_and_no_comm(
    toy: Any, wire: Any, model: Any, comms: Callable[[], int]
) -> None:
    model.hold()
    toy.n = 6
    assert model.entered.wait(120)
    worker = toy.jobs.owner().worker
    thread = worker._thread
    assert thread is not None
    toy.close()
    join(thread)
    assert wire.open() == 0
    assert repr(toy) == "Toy(fake, closed)"
    wire_messages = len(wire.sent)
    toy.close()
    toy.n = 8
    assert len(wire.sent) == wire_messages, "a closed panel must stay silent"
    with pytest.raises(RuntimeError, match="closed"):
        toy.run()


def test_one_live_panel_per_cell(
    wire: Any, make: Callable[..., Any], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["cell 1", "0"]
    monkeypatch.setattr(lifetime, "running_cell", lambda: tuple(where))
    counts = []
    panels = []
    for execution in range(20):
        where[1] = str(execution)
        panels.append(make(model))
        counts.append(wire.open())
    assert len(set(counts)) == 1, "re-running a cell must not add comms"
    assert [panel.closed for panel in panels] == [True] * 19 + [False]
    beside = make(model)
    assert not panels[-1].closed, "two panels of one execution live together"
    where[0] = "cell 2"
    make(model)
    assert not beside.closed, "another cell is another cell"


def test_the_running_cell_is_read_from_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = {"header": {"msg_id": "m1"}, "metadata": {"cellId": "c1"}}
    shell = SimpleNamespace(get_parent=lambda: parent)
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    assert lifetime.running_cell() == ("c1", "m1")
    parent["metadata"] = {}
    assert lifetime.running_cell() is None
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: None)
    assert lifetime.running_cell() is None


def test_several_changes_at_once_make_one_request(toy: Any, model: Any) -> None:
    with toy.batch_changes():
        toy.n = 6
        toy.scale = 2.0
        toy.prompt = "other"
    assert toy.wait(120)
    assert model.computed == [3, 6]
    assert toy.label.value == "A 72"


def test_two_models(make: Callable[..., Any], classes: Any, wire: Any) -> None:
    base, tuned = classes.FakeModel("base"), classes.FakeModel("tuned", factor=10)
    panel = make(SimpleNamespace(base=base, tuned=tuned))
    assert panel.result == (9, 90)
    assert "base" in panel.heading.value
    assert "tuned" in panel.heading.value
    assert panel.label.value == "A 9 90"
    tabs = next(w for w in panel.actions.children if type(w).__name__ == "ToggleButtons")
    wire.type(tabs, index=2)
    assert (panel.view, panel.label.value) == ("difference", "difference 9 90")
    tuned.hold()
    panel.n = 4
    assert tuned.entered.wait(120)
    with ui_lock:
        assert panel.results == (16, -4), "while B runs, A is there already"
    tuned.gate.set()
    assert panel.wait(120)
    assert panel.result == (16, 160)
    assert tuned.computed == [3, 4]
    assert "ToggleButtons" not in [type(w).__name__ for w in make(classes.FakeModel()).actions.children]


def test_progress_of_two_models_counts_on(toy: Any, classes: Any, make: Callable[..., Any]) -> None:
    base, tuned = classes.FakeModel("base"), classes.FakeModel("tuned")
    panel = make(SimpleNamespace(base=base, tuned=tuned))
    seen: list[tuple[int, int]] = []

    class Recorder:
        yielded_seconds = 0.0

        def check(self) -> None: ...
        def progress(self, done: int, total: int) -> None:
            seen.append((done, total))

        def partial(self, value: Any) -> None: ...

    panel.answers.work(classes.Request(50), Recorder())
    assert seen == [(k, 6) for k in range(6)]


def test_side_jobs_run_beside_the_main_one(toy: Any, wire: Any, model: Any) -> None:
    got: list[Any] = []
    toy.jobs.start(lambda job: "text", got.append, title="Generating")
    assert toy.wait(120)
    assert got == ["text"]
    assert toy.status.text.startswith("Generating: done in ")
    toy.jobs.start(lambda job: 1 / 0, got.append, title="Generating")
    assert toy.wait(120)
    assert toy.status.error == "ZeroDivisionError: division by zero"

    def painter(value: Any) -> None:
        raise ValueError("cannot show this")

    toy.jobs.start(lambda job: 1, painter, title="Generating")
    assert toy.wait(120)
    assert toy.status.error == "cannot show this"
    assert got == ["text"]


def test_a_quiet_side_job_tells_of_errors_only(toy: Any, wire: Any) -> None:
    said, got = toy.status.text, []
    before = len(wire.states(toy.status, "text"))
    toy.jobs.start(lambda job: "text", got.append, title="Reading", channel="quiet", quiet=True)
    assert toy.wait(120)
    assert got == ["text"]
    assert toy.status.text == said
    assert len(wire.states(toy.status, "text")) == before
    toy.jobs.start(lambda job: 1 / 0, got.append, title="Reading", channel="quiet", quiet=True)
    assert toy.wait(120)
    assert toy.status.state == "failed"
    assert "division" in toy.status.error


def test_cancel_stops_side_jobs_too(toy: Any, wire: Any) -> None:
    entered, got = threading.Event(), []

    def endless(job: Any) -> None:
        entered.set()
        until_stopped(job.check)

    toy.jobs.start(endless, got.append, title="Checking")
    assert entered.wait(120)
    wire.event(toy.status, event="cancel")
    assert toy.wait(120)
    assert toy.status.state == "cancelled"
    assert not got


def test_waiting_inside_a_handler_is_refused(toy: Any) -> None:
    toy.watch(toy.label, "tooltip", lambda change: toy.wait())
    toy.label.tooltip = "x"
    assert "a handler cannot wait" in toy.status.error


def test_changed_weights_and_hooks_are_not_answered_from_the_cache(make: Callable[..., Any], model: Any) -> None:
    import torch

    from interp_widgets.models.state import Watch

    model.tl_model = torch.nn.Linear(2, 2)
    model.lock, model._watch = threading.RLock(), Watch(model.tl_model)
    panel = make(model)
    assert panel.run() == 9
    assert model.computed == [3]
    with torch.no_grad():
        model.tl_model.weight.add_(1)
    panel.run()
    assert model.computed == [3, 3]
    handle = model.tl_model.register_forward_hook(lambda *args: None)
    panel.run()
    assert model.computed == [3, 3, 3]
    handle.remove()
    panel.run()
    assert model.computed == [3, 3, 3]


def test_a_slow_first_run_goes_to_the_background(make: Callable[..., Any], model: Any) -> None:
    model.hold()
    panel = make(model, seconds=5.0)
    assert model.entered.wait(120)
    assert panel.result in (None, -3)
    model.gate.set()
    assert panel.wait(120)
    assert panel.result == 9
    later = make(type(model)(), seconds=500.0)
    assert later.result is None
    assert later.status.state == "waiting"


def test_forecast_and_learning(
    make: Callable[..., Any], classes: Any, model: Any, learning: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interp_widgets.compute.memory._matmul_speed", lambda device: 3e3)

    class Costed(classes.Toy):
        def cost(self, request: Any, model: Any) -> Any:
            return classes.Cost(flops=1e3 * request.n, bytes=5e6)

        forecast = Panel.forecast

    panel = make(model, kind=Costed)
    assert panel.wait(120)
    assert panel.result == 9, "a trial speed of 1,000 per second makes 3 seconds, which the background takes"
    ahead = panel.forecast(classes.Request(4, "hello"))
    assert ahead.bytes == 5_000_000
    assert ahead.seconds < 3, "the finished run was faster than the trial and is believed"
    assert panel.forecast(panel.request()).seconds == 0, "what is in the cache takes no time"


def test_code_is_shown(toy: Any, wire: Any) -> None:
    wire.choose(toy.menu, "Copy as code")
    assert toy.code_box.visible
    assert toy.code_box.code == "3 ** 2"


def test_keyboard_interrupt_is_a_cancel(toy: Any, model: Any) -> None:
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        toy.run(fresh=True)
    assert toy.status.state == "cancelled"
    assert not toy.busy


def test_a_run_may_write_an_input_that_it_answers(make: Callable[..., Any], classes: Any, model: Any) -> None:
    class Writing(classes.Toy):
        """Fills its empty prompt in, as a generated response does."""

        def compute(self, request: Any, model: Any, **hooks: Any) -> int:
            value = int(super().compute(request, model, **hooks))
            self.answers.remember(classes.Request(request.n, "written"), model, value)
            return value

        def draw(self, results: Any, request: Any) -> None:
            if not self.prompt:
                with self.settled():
                    self.prompt = "written"
            super().draw(results, request)

    panel = make(model, kind=Writing, prompt="")
    assert panel.prompt == "written"
    assert model.computed == [3], "the written input must not start another run"
    panel.n = 4
    assert panel.wait(120)
    panel.n = 3
    assert panel.status.text.endswith("(from cache)"), "the remembered answer counts for the written input"
    assert model.computed == [3, 4]
    panel.seconds = 100.0
    panel.n = 5
    assert not panel.busy
    panel.go()
    assert panel.wait(120)
    assert panel.result == 25


def test_the_collector_may_finalise_a_closed_panel_while_another_thread_draws(toy: Any) -> None:
    toy.close()
    held, done, release = threading.Event(), threading.Event(), threading.Event()

    def draw() -> None:
        with ui_lock:
            held.set()
            release.wait(120)

    def finalise() -> None:
        toy.__del__()  # as ipywidgets lets the collector do
        done.set()

    threads = [threading.Thread(target=draw), threading.Thread(target=finalise)]
    threads[0].start()
    assert held.wait(120)
    threads[1].start()
    try:
        assert done.wait(120), "finalising a closed panel must wait for no lock"
    finally:
        release.set()
        join(*threads)


def test_a_quiet_run_that_was_cancelled_says_so(toy: Any) -> None:
    entered = threading.Event()

    def endless(job: Any) -> None:
        entered.set()
        while True:
            job.check()

    toy.jobs.start(endless, title="Reading", channel="quiet", quiet=True)
    assert entered.wait(LIMIT)
    assert toy.status.state == "done", "milliseconds behind a click are not worth a word"
    toy.cancel()
    assert toy.wait(LIMIT)
    assert (toy.status.state, toy.status.text) == ("cancelled", "Cancelled")


def test_two_threads_that_ask_for_a_tab_get_one_panel(toy: Any) -> None:
    kind, made, begun = type(toy), [], threading.Event()

    class Slow(kind):  # type: ignore[misc, valid-type]
        def build(self) -> None:
            made.append(self)
            begun.set()
            provoke()
            super().build()

    class Two(Stack):
        title, panels = "Two", {"first": kind, "second": Slow}

    stack = Two(toy.models[0])
    opening = threading.Thread(target=lambda: setattr(stack, "tab", "second"))
    opening.start()
    assert begun.wait(120)
    seen = stack["second"]  # as the kernel's main thread does while a comm message opens the tab
    join(opening)
    assert stack.wait(120)
    assert made == [seen] == [stack.current]
    assert seen.active
    assert stack.result == 9
    stack.close()


def test_a_wait_ends_when_the_answer_is_on_the_screen(toy: Any) -> None:
    kind, drawing, gate = type(toy), threading.Event(), threading.Event()
    gate.set()

    class Slow(kind):  # type: ignore[misc, valid-type]
        def draw(self, results: Any, request: Any) -> None:
            if results[0] > 0:  # not what comes on the way
                drawing.set()
                assert gate.wait(120)
            super().draw(results, request)

    class Two(Stack):
        title, panels = "Two", {"first": Slow, "second": kind}

    stack = Two(toy.models[0])
    panel = stack.current  # looking it up waits for the drawing too
    for asked, n in ((stack, 5), (panel, 6)):
        drawing.clear()
        gate.clear()
        stack.n = n
        assert drawing.wait(120)
        letting_go = threading.Thread(target=lambda: (provoke(), gate.set()))
        letting_go.start()
        assert asked.wait(120)
        join(letting_go)
        assert panel.painted[-1] == (n, (n * n,))
        assert not stack.busy
    stack.close()


def test_a_panel_about_both_models_has_no_views(classes: Any, make: Callable[..., Any]) -> None:
    class About(classes.Toy):  # type: ignore[misc, name-defined]
        pair_views = ()

    pair = SimpleNamespace(base=classes.FakeModel("base"), tuned=classes.FakeModel("tuned", factor=10))
    views = [
        ("ToggleButtons" in [type(one).__name__ for one in panel.actions.children], "View" in panel.question())
        for panel in (make(pair), make(pair, kind=About))
    ]
    assert views == [(True, True), (False, False)]


def test_what_is_beside_a_picture_goes_below_one_of_many_columns(classes: Any, make: Callable[..., Any]) -> None:
    def build(panel: Any) -> None:
        classes.Toy.build(panel)
        panel.story, panel.table = W.Label("story"), W.Label("table")
        panel.arrange([panel.story, panel.label], [panel.slider], below=[panel.box], beside=[panel.table])

    toy = make(classes.FakeModel(), kind=type("Beside", (classes.Toy,), {"build": build}))
    above, both, box = toy.plot.children
    assert (above.value, box) == ("story", toy.box)
    assert both.children[0] is toy.label
    assert both.children[1].children == (toy.table,)
    assert toy.details.children == (toy.slider,)
    toy.widen_map(33)
    assert "iw-wide" in both._dom_classes
    toy.widen_map(32)
    assert "iw-wide" not in both._dom_classes
    screen = SimpleNamespace(screen=object(), plot=SimpleNamespace(), details=SimpleNamespace())
    Panel.arrange(screen, ["map"], ["charts"], below=["sentence"], beside=["table"])  # type: ignore[arg-type]
    assert screen.plot.children == ["map"]
    assert screen.details.children == ["sentence", "table", "charts"], "on a screen there is no room at the side"
