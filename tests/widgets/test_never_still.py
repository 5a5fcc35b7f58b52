"""The kernel never stands still: no handler waits for a model that computes, and no run holds a model while it reports.

A model stands still in the middle of a step, or another thread holds it, until the handlers have returned.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from interp_widgets import AblationPanel, BiasWorkbench, ConceptBrowser, HeadWordBrowser, LogitLensExplorer, Workbench
from interp_widgets.analysis.ablation.maps import ablation_cost
from interp_widgets.compute.cache import results as cache
from interp_widgets.compute.memory import Speedometer
from interp_widgets.models import generation, load_model
from interp_widgets.models.engine import routes
from interp_widgets.widgets.base import answers
from interp_widgets.widgets.base.answers import COMPARING
from interp_widgets.widgets.workbench.tools import TOOLS
from tests.models.tiny import tiny_folder
from tests.shipped import demo_pair
from tests.test_locks import LONG, held_elsewhere
from tests.widgets.opening import opening

pytestmark = pytest.mark.slow


class Slow:
    """Every step of a text waits for `gate`, holding the model's lock."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()

    def decoder(self, decoder: Callable[[Any], Callable[[Any], Any]], network: Any) -> Callable[[Any], Any]:
        step = decoder(network)

        def slow(ids: Any) -> Any:
            self.entered.set()
            assert self.gate.wait(2 * LONG)
            return step(ids)

        return slow


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    cache.clear()  # or the text would not be written again
    monkeypatch.setattr(generation, "incremental_decoder", partial(made.decoder, generation.incremental_decoder))
    yield made
    made.gate.set()


def handled(*handlers: Callable[[], object]) -> None:
    """Call handlers as the kernel does, one after the other; fails if one of them waits."""
    for handler in handlers:
        errors: list[Exception] = []
        thread = threading.Thread(target=_caught, args=(handler, errors), daemon=True)
        thread.start()
        thread.join(LONG)
        assert not errors, errors[0]
        frame = sys._current_frames().get(thread.ident or 0) if thread.is_alive() else None
        assert frame is None, "the kernel stands still:\n" + "".join(traceback.format_stack(frame)[-8:])


def _caught(handler: Callable[[], object], errors: list[Exception]) -> None:
    try:
        handler()
    except Exception as error:
        errors.append(error)


@contextmanager
def writing(slow: Slow, start: Callable[[], object]) -> Iterator[None]:
    """The model is in the middle of a text that ``start`` asks for."""
    handled(start)
    assert slow.entered.wait(LONG)
    yield
    slow.gate.set()


@pytest.fixture
def base(wire: Any) -> Any:
    return demo_pair().base


def write_text(panel: Any) -> None:
    panel.max_new_tokens = 30
    panel.tab = "text"
    panel.go()


def test_a_tab_opens_while_the_model_writes(base: Any, slow: Slow) -> None:
    with opening(AblationPanel, wait=False) as build:
        panel = build(base)
        assert panel.wait(LONG)
        with writing(slow, lambda: write_text(panel)):
            handled(
                lambda: setattr(panel, "tab", "heads"),
                lambda: setattr(panel, "prompt", "Snow fell on the"),
                lambda: setattr(panel, "tab", "modules"),
            )
        assert panel.wait(LONG)
        assert panel.results[0].prompt_tokens[-1] == " the"


def test_another_panel_on_the_model_opens_while_it_writes(base: Any, slow: Slow) -> None:
    with opening(lambda kind, *models, **options: kind(*models, **options), wait=False) as build:
        panel, others = build(AblationPanel, base), list[Any]()
        assert panel.wait(LONG)
        with writing(slow, lambda: write_text(panel)):
            handled(
                lambda: others.append(build(LogitLensExplorer, base, prompt="Snow fell on the")),
                lambda: others.append(build(AblationPanel, base, tab="heads")),
                lambda: setattr(others[1], "prompt", "Snow fell on the city of"),
            )
        for other in others:
            assert other.wait(LONG)
            assert not other.status.error


def test_a_prompt_is_typed_while_a_concept_steers(base: Any, slow: Slow) -> None:
    with opening(ConceptBrowser, wait=False) as build:
        panel = build(base, max_new_tokens=4)
        assert panel.wait(LONG)

        def steer() -> None:
            panel.tab = "steer"
            panel.go()

        with writing(slow, steer):
            handled(
                lambda: setattr(panel, "prompt", "Snow fell on the"),
                lambda: setattr(panel, "tab", "read"),
                lambda: setattr(panel, "tab", "steer"),
            )
        assert panel.wait(LONG)
        assert not panel.status.error


def test_the_debias_tab_while_another_thread_holds_the_model(base: Any) -> None:
    with opening(BiasWorkbench, wait=False) as build:
        panel = build(base, tab="data")
        assert panel.wait(LONG)
        with held_elsewhere(base.lock):
            handled(
                *(partial(setattr, panel, "tab", tab) for tab in panel.fitting),
                lambda: setattr(panel, "tab", "debias"),
                lambda: setattr(panel, "method", "leace"),
                lambda: setattr(panel, "random", True),
                panel.cancel,
            )
        assert panel.wait(LONG)


def test_every_tab_of_the_screen_opens_and_follows_while_a_model_computes(wire: Any) -> None:
    pair = demo_pair()
    bench = Workbench(pair, prompt="The Eiffel Tower is in the city of", response=" Paris", live_seconds=0)
    try:
        screen = bench.screen
        screen.show("logit_lens")
        assert screen.wait(LONG)

        def open_all(name: str) -> None:
            screen.show(name)
            tool = screen[name]
            for tab in getattr(tool, "fitting", ()):
                tool.tab = tab

        with held_elsewhere(pair.tuned.lock):
            handled(
                *(partial(open_all, name) for name in TOOLS),
                lambda: bench.select(prompt="Snow fell on the", prompt_token=1),
                lambda: bench.select(layer=1, head=1, neuron=1),
                screen.cancel,
            )
        assert screen.wait(LONG)
    finally:
        bench.close()


def test_a_session_is_saved_and_opened_while_a_model_computes(
    base: Any, wire: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Workbench(base, prompt="The Eiffel Tower is in the city of", response=" Paris")
    screen = bench.screen
    screen.show("logit_lens")
    assert screen.wait(LONG)
    with held_elsewhere(base.lock):
        handled(lambda: wire.click(screen.save_row.write))
        assert screen.status_line.text.startswith("Saved ")
    asked = screen["logit_lens"].results[0]
    bench.close()
    again = Workbench.load(tmp_path / "workbench.npz", base)
    with held_elsewhere(base.lock):
        handled(lambda: again.screen)
    screen = again.screen
    assert screen.wait(LONG)
    assert screen["logit_lens"].results[0].probability.tolist() == asked.probability.tolist()
    assert not screen.status_line.error
    again.close()


def test_a_forecast_takes_what_is_known_and_corrects_itself(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native engine is expected until the worker has compared it; this model turns out to be of another kind."""
    model, options = load_model(tiny_folder("llama"), device="cpu"), {"live_seconds": 0, "prompt": "One two three"}
    monkeypatch.setattr(routes, "_compare", lambda *_: routes.CheckedRoutes(None, True, True, tokens=8))
    monkeypatch.setattr(AblationPanel.panels["modules"], "manual_run", True)
    speed = {COMPARING: 0.0}
    monkeypatch.setattr(Speedometer, "seconds", lambda self, kind, device, flops, **_: flops * speed.get(kind, 1e-6))
    expected = ablation_cost(model, 4)
    with opening(AblationPanel, wait=False) as build:
        with held_elsewhere(model.lock):
            panels: list[Any] = []
            handled(lambda: panels.append(build(model, **options)))
            (panel,) = panels
            first = panel.current.forecast_label.value
            assert first.startswith("about")
        assert panel.wait(LONG)
        assert ablation_cost(model, 4).flops > 1.5 * expected.flops
        assert panel.status.state == "waiting"
        known = panel.current.forecast(panel.current.request()).describe()
        assert panel.current.forecast_label.value == f"{known} · {panel.current.shorter}" != first


@pytest.mark.parametrize("seconds", [0, 100])
def test_the_first_forecast_of_a_model_has_the_comparing_of_its_routes(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred seconds are not spent in the constructor; and they are no part of the speed of the panel's own runs."""
    model = load_model(tiny_folder("llama"), device="cpu")
    learnt: dict[Any, list[float]] = {}

    def learn(kind: Any, device: str, flops: float, took: float) -> None:
        learnt.setdefault(kind, []).append(took)

    monkeypatch.setattr(answers.speedometer, "learn", learn)
    monkeypatch.setattr(Speedometer, "seconds", lambda self, kind, *_, **__: seconds * (kind == COMPARING))
    monkeypatch.setattr(answers, "comparing_seconds", lambda model: 1e6 * answers.knows_routes(model))
    with opening(LogitLensExplorer, wait=False) as build:
        panel = build(model, prompt="One two" + " three" * bool(seconds))  # not in the cache
        assert bool(panel.results) == (not seconds)
        assert panel.wait(LONG)
        assert panel.results, "once its routes are known, it starts by itself"
        assert panel.forecast(panel.request()).seconds == 0
    assert 1e6 in learnt.pop(COMPARING)
    (own,) = learnt.values()
    assert (own[0] < 0) == (not seconds)


def test_a_run_that_waits_for_the_screen_holds_no_model(base: Any) -> None:
    """What a cell computes meanwhile need not wait until a handler has drawn."""
    from interp_widgets.widgets.base.guard import ui_lock

    with opening(HeadWordBrowser, wait=False) as build:
        panel = build(base)
        assert panel.wait(LONG)
        with ui_lock:
            panel.jobs.start(
                lambda job: base.generate("The Eiffel Tower", max_new_tokens=3, on_token=lambda _: job.partial(0)),
                title="Writing", on_partial=lambda _: None,
            )  # fmt: skip
            found = list[bool]()
            thread = threading.Thread(target=lambda: found.append(len(base.generate("One", max_new_tokens=2)) > 0))
            thread.start()
            thread.join(LONG)
            assert found == [True]
        assert panel.wait(LONG)
