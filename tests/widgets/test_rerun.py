"""A cell that is run again: its earlier panels are closed, and nothing holds their models."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import interp_widgets
from interp_widgets import AblationPanel, LogitLensExplorer, PatchingPanel, Workbench, load_model
from interp_widgets.widgets.base import lifetime
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from tests.models.tiny import tiny_model


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Begins an execution of a cell."""
    here = ["", 0]
    monkeypatch.setattr(lifetime, "running_cell", lambda: (here[0], str(here[1])))

    def begin(cell: str) -> None:
        here[:] = cell, here[1] + 1

    return begin


def tabs_of(panel: Any) -> None:
    """Open every tab, as a user may have."""
    for tab in getattr(panel, "fitting", ()):
        panel.open_tab(tab)
        assert panel.wait(300)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["LogitLensExplorer", "SaliencyExplorer", "FFNConceptBrowser", "AblationPanel", "MoDRoutingViewer", "Workbench"],
)
def test_a_cell_that_is_run_again_keeps_one_panel_and_one_model(kind: str, run: Any, comms: Any) -> None:
    BokehSource.shared()
    history, models, counts = [], [], []
    before = comms()
    for _ in range(2):
        run("a cell")
        model = load_model("demo-base")
        models.append(weakref.ref(model))
        shown = getattr(interp_widgets, kind)(model)
        history += [shown, shown.screen] if kind == "Workbench" else [shown]  # as `Out` does
        assert (shown.screen if kind == "Workbench" else shown).wait(300)
        tabs_of(shown)
        del model, shown
        counts.append(comms())
    gc.collect()
    assert counts[0] == counts[1] > before
    assert [model() is not None for model in models] == [False, True]
    history[-1].close()
    assert comms() == before
    assert "demo-base, closed" in repr(history[0]) or kind == "Workbench"
    gc.collect()
    assert kind == "Workbench" or models[1]() is None


@pytest.mark.seconds
def test_tabs_shown_by_a_cell_that_is_run_again_are_closed_and_the_panel_stays(run: Any, comms: Any) -> None:
    run("first")
    bench = Workbench(tiny_model("gpt2"), prompt="a b")
    bench.screen.wait(120)
    counts = []
    for _ in range(3):
        run("second")
        shown = bench.show("logit_lens")
        assert shown.wait(120)
        counts.append(comms())
    assert counts[0] == counts[1] == counts[2]
    assert bench.screen.in_sight.count("logit_lens") == 1
    assert not shown.closed
    bench.close()
    assert shown.closed


@pytest.mark.seconds
def test_a_workbench_lives_while_panels_of_other_cells_are_open_on_it(run: Any) -> None:
    run("first")
    bench = Workbench(tiny_model("gpt2"), prompt="a b")
    assert bench.models, "it has no panel yet"
    run("second")
    lens = LogitLensExplorer(bench)
    run("first")
    newer = Workbench(tiny_model("gpt2"), prompt="a b")
    assert not lens.closed
    assert bench.models == lens.models != ()
    run("second")
    other = LogitLensExplorer(newer)
    assert lens.closed
    assert (bench.models, lens.models) == ((), ())
    with pytest.raises(ValueError, match="closed with its panel or its cell: open the widget on a model"):
        LogitLensExplorer(bench)
    with pytest.raises(RuntimeError, match="is closed: open a new one"):
        lens.save("x.csv")
    lens.layer, lens.prompt = 1, "c"  # nobody is there to respond
    newer.close()
    assert other.closed
    assert newer.models, "the cell has no newer one"


def test_a_panel_belongs_to_the_cell_that_made_it(run: Any, model: Any, classes: Any, wire: Any) -> None:
    run("first")
    panel = classes.Toy(model)
    run("second")
    panel._repr_mimebundle_()
    run("second")
    panel._repr_mimebundle_()
    assert not panel.closed
    run("first")
    newer = classes.Toy(model)
    assert panel.closed
    assert not newer.closed
    newer.close()


@pytest.mark.seconds
@pytest.mark.parametrize("workbench", [False, True])
def test_every_panel_of_a_cell_is_closed_when_it_is_run_again(workbench: bool, run: Any, comms: Any) -> None:
    BokehSource.shared()
    history, models, counts = [], [], []
    for _ in range(3):
        run("a cell")
        model = tiny_model.__wrapped__("gpt2")
        models.append(weakref.ref(model))
        shown: list[Any] = [kind(model, prompt="a b") for kind in (LogitLensExplorer, AblationPanel, PatchingPanel)]
        if workbench:
            bench = Workbench(model, prompt="a b")
            shown += [bench.screen, LogitLensExplorer(bench)]
            del bench
        assert [panel.wait(60) for panel in shown] == [True] * len(shown)
        history.append(shown)
        counts.append(comms())
        del model, shown
    gc.collect()
    assert counts[0] == counts[1] == counts[2]
    assert [{panel.closed for panel in shown} for shown in history] == [{True}, {True}, {False}]
    assert [model() is not None for model in models] == [False, False, True]
    for panel in history[-1]:
        panel.close()
