"""A picture is dimmed as soon as its model has changed, after every cell and interaction, and without waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from IPython.core.events import EventManager, available_events

from interp_widgets.models import Model
from interp_widgets.widgets.base import freshness
from interp_widgets.widgets.base.answers import once_for
from interp_widgets.widgets.base.panel import MOVED
from tests.models.state_edits import in_place
from tests.models.tiny import tiny_model
from tests.waiting import LIMIT


@pytest.fixture
def reading(classes: Any) -> Any:
    class Reading(classes.Toy):  # type: ignore[misc]
        """Sums up the logits."""

        def compute(self, request: Any, model: Any, **hooks: Any) -> float:
            return float(model.run([5, 17, 300, request.n]).logits.double().abs().sum())

    return Reading


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model that no other test has."""
    model = tiny_model.__wrapped__("gpt2", "bridge")
    monkeypatch.setattr(model, "gate", threading.Event(), raising=False)  # the fixture `make` expects one
    return model


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Any:
    """IPython's events, without the rest of it."""
    shell = type("Shell", (), {})()
    shell.events = EventManager(shell, available_events)
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    return shell


def is_dimmed(panel: Any) -> bool:
    dimmed = "iw-stale" in panel.plot._dom_classes
    assert (MOVED in panel.forecast_label.value) == dimmed
    assert ("iw-hidden" in panel.forecast_label._dom_classes) == (panel.forecast_label.value == "")
    return dimmed


def other_weights(model: Model) -> Callable[[], object]:
    return in_place(model)


def another_bos(model: Model) -> Callable[[], object]:
    before, model.prepend_bos = model.prepend_bos, not model.prepend_bos
    return lambda: setattr(model, "prepend_bos", before)


def a_hook(model: Model) -> Callable[[], object]:
    handle = model.tl_model.blocks[0].register_forward_hook(lambda *_: None)
    return handle.remove


@pytest.mark.parametrize("edit", [other_weights, another_bos, a_hook], ids=lambda edit: edit.__name__)
def test_a_cell_that_changes_the_model_dims_its_pictures(
    edit: Any, make: Any, reading: Any, own: Model, shell: Any, model: Any
) -> None:
    panels = [make(own, kind=reading, n=n) for n in (3, 4)]
    other = make(model)
    assert [panel.run() is not None for panel in (*panels, other)] == [True] * 3
    shell.events.trigger("post_run_cell", None)
    assert not any(map(is_dimmed, panels))
    undo = edit(own)
    shell.events.trigger("post_run_cell", None)
    assert all(map(is_dimmed, panels))
    assert not is_dimmed(other)
    assert panels[0].run_button.button_style == "primary"
    panels[0].run()
    assert [is_dimmed(panel) for panel in panels] == [False, True]
    undo()
    shell.events.trigger("post_run_cell", None)
    assert [is_dimmed(panel) for panel in panels] == [True, False]
    assert panels[1].run_button.button_style == ""


def test_an_interaction_with_any_panel_dims_too(make: Any, reading: Any, own: Model, model: Any, wire: Any) -> None:
    panel, other = make(own, kind=reading), make(model)
    panel.run()
    undo = other_weights(own)
    assert not is_dimmed(panel), "nothing has happened since"
    wire.type(other.slider, value=5)
    assert other.wait(LIMIT)
    assert is_dimmed(panel)
    undo()
    wire.type(other.slider, value=6)
    assert other.wait(LIMIT)
    assert not is_dimmed(panel)


def test_both_reasons_to_dim_are_kept_apart(make: Any, reading: Any, own: Model, shell: Any) -> None:
    panel = make(own, kind=reading)
    panel.run()
    with panel.batch_changes():
        panel.live_seconds, panel.seconds, panel.n = 0.0, 5.0, 9
    assert panel.wait(LIMIT), "the forecast is corrected in the background"
    assert panel.plot._dom_classes.count("iw-stale") == 1
    assert MOVED not in panel.forecast_label.value
    undo = other_weights(own)
    shell.events.trigger("post_run_cell", None)
    assert "about 5.0 s" in panel.forecast_label.value
    assert MOVED in panel.forecast_label.value
    undo()
    shell.events.trigger("post_run_cell", None)
    assert MOVED not in panel.forecast_label.value
    assert "iw-stale" in panel.plot._dom_classes, "the settings are still others"


def test_a_model_that_computes_is_not_waited_for(make: Any, reading: Any, own: Model, shell: Any) -> None:
    panel = make(own, kind=reading)
    panel.run()
    undo = other_weights(own)
    held, end = threading.Event(), threading.Event()

    def compute() -> None:
        with own.lock:
            held.set()
            assert end.wait(LIMIT)

    thread = threading.Thread(target=compute)
    thread.start()
    assert held.wait(LIMIT)
    shell.events.trigger("post_run_cell", None)  # would wait for ever
    assert not is_dimmed(panel)
    end.set()
    thread.join()
    shell.events.trigger("post_run_cell", None)
    assert is_dimmed(panel)
    undo()


def test_what_a_run_changes_for_its_own_time_dims_nothing(make: Any, reading: Any, own: Model) -> None:
    seen: list[bool] = []

    class Edits(reading):  # type: ignore[misc]
        """Edits the model, reports a part of its result, and undoes the edit."""

        def compute(self, request: Any, model: Any, *, on_partial: Any, **hooks: Any) -> float:
            undo = other_weights(model)
            on_partial(1.0)
            undo()
            return 2.0

        def draw(self, results: Any, request: Any) -> None:
            super().draw(results, request)
            seen.append(is_dimmed(panel))

    panel = make(own, kind=reading)
    panel.run()
    editing = make(own, kind=Edits, n=8)
    assert editing.wait(LIMIT)
    assert editing.result == 2.0
    assert seen
    assert not any(seen)


def test_the_event_is_registered_once_and_only_in_ipython(make: Any, model: Any, shell: Any) -> None:
    for _ in range(3):
        make(model)
    assert shell.events.callbacks["post_run_cell"].count(freshness._after_cell) == 1


def test_a_script_without_ipython_registers_nothing(
    make: Any, model: Any, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: None)
    make(model).run()
    assert freshness._after_cell not in shell.events.callbacks["post_run_cell"]


def test_a_closed_panel_is_forgotten(make: Any, model: Any) -> None:
    panel = make(model)
    assert panel in freshness._open
    panel.close()
    assert panel not in freshness._open


def test_what_is_computed_from_a_result_with_a_model_is_of_that_state(own: Model) -> None:
    result = object()

    def asked() -> float:
        return float(once_for((result,), "sum", lambda: float(own.run([5, 17]).logits.abs().sum()), models=(own,)))

    first = asked()
    undo = other_weights(own)
    assert asked() != first
    undo()
    assert asked() == first


def test_a_saved_page_names_the_edits_of_the_run(make: Any, reading: Any, own: Model) -> None:
    panel = make(own, kind=reading)
    panel.run()
    with torch.no_grad():
        own.applied.append(("an edit", None))  # type: ignore[arg-type]
    assert "Edited" not in panel.question()
    panel.run(fresh=True)
    own.applied.clear()
    assert "an edit" in panel.question()["Edited"]
