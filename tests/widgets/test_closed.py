"""A panel that is closed leaves no widget open, and nothing refers to it any more, nor through it to its models."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from interp_widgets import LogitLensExplorer, Workbench
from interp_widgets.compute.worker import _workers
from interp_widgets.widgets.base import lifetime
from interp_widgets.widgets.base.fields import field
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.base.workbench import WorkbenchState
from interp_widgets.widgets.views import Table
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from interp_widgets.widgets.workbench.tools import TOOLS
from tests.models.tiny import tiny_model
from tests.waiting import LIMIT, until


def assert_freed(*references: weakref.ref[Any]) -> None:
    """Nothing refers to them, once no worker computes: a run holds its panel until it has ended."""
    for worker in list(_workers.values()):
        until(lambda worker=worker: not worker.busy, f"the end of the run on {worker.device}")
    gc.collect()
    assert [type(one()).__name__ for one in references if one() is not None] == []


def computed(toy: Any, wire: Any) -> None:
    toy.n = 6
    assert toy.wait(LIMIT)


def run_in_a_cell(toy: Any, wire: Any) -> None:
    toy.n = 7
    assert toy.run() == 49


def failed(toy: Any, wire: Any) -> None:
    toy.models[0].error = RuntimeError("this went wrong")
    toy.n = 6
    assert toy.wait(LIMIT)
    assert "this went wrong" in toy.status.error


def failed_in_a_cell(toy: Any, wire: Any) -> None:
    toy.models[0].error = RuntimeError("this went wrong")
    with pytest.raises(RuntimeError, match="went wrong"):
        toy.run(fresh=True)


def refused(toy: Any, wire: Any) -> None:
    wire.type(toy.slider, value=-1)
    assert "n must be 0 or more" in toy.status.error
    wire.type(toy.box, value="worst")
    assert "good" in toy.status.error


def running(toy: Any, wire: Any) -> None:
    toy.models[0].hold()
    toy.n = 6
    assert toy.models[0].entered.wait(LIMIT)


def cancelled(toy: Any, wire: Any) -> None:
    running(toy, wire)
    toy.cancel()
    assert toy.wait(LIMIT)


def in_its_own_buttons(toy: Any, wire: Any) -> None:
    toy.jobs.start(lambda job: 6, lambda value: setattr(toy, "n", value), title="a side job")
    assert toy.wait(LIMIT)
    wire.choose(toy.menu, "Copy as code")
    assert toy.code_box.code


def on_no_screen(toy: Any, wire: Any) -> None:
    """Its code has taken widgets off the screen, and asks for a control that is not on it."""
    toy.plot.children = []
    toy.controls["scale"].value = 2.0
    assert toy.scale == 2.0


def drawn_with_hints(toy: Any, wire: Any) -> None:
    toy.prompt = ""
    assert toy.hints


SITUATIONS = (
    computed, run_in_a_cell, failed, failed_in_a_cell, refused, running, cancelled, in_its_own_buttons, on_no_screen,
    drawn_with_hints,
)  # fmt: skip


@pytest.fixture
def kind(classes: Any) -> Any:
    """A small panel, with widgets that it does not show."""

    class Small(classes.Toy):
        prompt = field(str, "hello", label="Prompt", required="type a prompt")

        def build(self) -> None:
            self.controls.rows()  # made for other inputs than those that are shown
            super().build()
            self.inputs.children = [*self.inputs.children, self.controls.row("prompt")]
            self.hidden_table = Table()
            self.watch(self.hidden_table, "selected", self._picked)

        def _picked(self, change: Any) -> None:
            """Refer to the panel."""

        def request(self) -> Any:
            self.require("prompt")
            return super().request()

    return Small


@pytest.mark.parametrize("owner", ["alone", "in a stack", "on a workbench", "in a cell that is run again"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_closed_panel_is_freed(
    situation: Callable[[Any, Any], None], owner: str, kind: Any, model: Any, comms: Any, wire: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    here = ["a cell", "1"]
    monkeypatch.setattr(lifetime, "running_cell", lambda: tuple(here) if "cell" in owner else None)
    before, bench = comms(), WorkbenchState(model)
    two = type("Two", (Stack,), {"title": "Two", "panels": {"first": kind, "second": kind}})
    shell = {"in a stack": two, "on a workbench": partial(kind, bench)}.get(owner, kind)
    panel = shell() if "workbench" in owner else shell(model)
    situation(panel.current_panel, wire)
    model.error = None  # whose traceback leads to the panel
    freed = [weakref.ref(panel), weakref.ref(panel.current_panel)]
    if "cell" in owner:
        here[1] = "2"
        newer = kind(model)
        assert panel.closed
        newer.close()
    else:
        panel.close()
    del panel
    model.gate.set()
    assert_freed(*freed)
    assert comms() == before


@pytest.mark.seconds
@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("name", TOOLS)
def test_every_kind(name: str, screen: bool, comms: Any, wire: Any) -> None:
    BokehSource.shared()
    before, models = comms(), (tiny_model("gpt2"), tiny_model("gpt2", seed=1))
    bench = Workbench(*models, prompt="a b", response=" c", live_seconds=0.1)
    made = bench.screen[name] if screen else TOOLS[name].load()(bench)
    if screen:
        bench.screen.show(name)
    freed = [weakref.ref(made)]
    for tab in getattr(made, "fitting", ()):
        made.open_tab(tab)
        freed.append(weakref.ref(made.current_panel))
    made.cancel()
    assert made.wait(LIMIT)
    bench.close()
    del made, bench
    assert_freed(*freed)
    assert comms() == before


def test_shared_code_of_charts_stays_open(monkeypatch: pytest.MonkeyPatch, wire: Any) -> None:
    monkeypatch.setattr(BokehSource, "_shared", None)
    LogitLensExplorer(tiny_model("gpt2"), prompt="a b").close()
    shared = BokehSource.shared()
    assert None not in (shared.comm, shared.layout.comm), "the next panel uses it"
    lifetime.close_one(shared)
