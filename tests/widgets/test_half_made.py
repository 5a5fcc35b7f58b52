"""What cannot be made: its error comes through, and everything that was made for it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import ipywidgets as W
import pytest

import interp_widgets
from interp_widgets import Workbench
from interp_widgets.widgets.base import lifetime
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.saving import SaveRow
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.views import Table
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from interp_widgets.widgets.workbench.screen import Screen
from interp_widgets.widgets.workbench.selected import Selected
from interp_widgets.widgets.workbench.texts import Texts
from tests.models.tiny import tiny_model
from tests.widgets.opening import at_once


class BrokenError(Exception):
    """What went wrong."""


def broken(*_: Any, **__: Any) -> Any:
    raise BrokenError("this went wrong")


def after(work: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the work and then fails."""

    def failing(*args: Any, **options: Any) -> None:
        work(*args, **options)
        broken()

    return failing


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Texts, "build"), (Texts, "defaults"), (Screen, "_assemble"), (Screen, "_add_tab"), (Selected, "__init__"),
        (SaveRow, "__init__"), (Panel, "_observe"), (Panel, "_assemble"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("late", [False, True])
def test_a_screen(owner: Any, name: str, late: bool, comms: Any, monkeypatch: pytest.MonkeyPatch, wire: Any) -> None:
    BokehSource.shared()
    bench = Workbench(tiny_model("gpt2"), prompt="a b", response=" c")
    before = comms()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, after(getattr(owner, name)) if late else broken)
        with pytest.raises(BrokenError, match="this went wrong"):
            bench.screen
    assert (comms(), bench.panels) == (before, ())
    assert bench.show("logit_lens").wait(60), "nothing is in the way of the next try"
    bench.close()
    assert comms() == before


@pytest.mark.seconds
def test_a_tab_of_a_screen(comms: Any, monkeypatch: pytest.MonkeyPatch, wire: Any) -> None:
    BokehSource.shared()
    bench = Workbench(tiny_model("gpt2"), prompt="a b", response=" c")
    screen = bench.screen
    screen.show("logit_lens")
    assert screen.wait(60)
    before, panels = comms(), bench.panels
    for name in ("_card", "_make"):
        with monkeypatch.context() as patch:
            patch.setattr(Screen, name, after(getattr(Screen, name)))
            with pytest.raises(BrokenError):
                screen.show("ablation")
        assert (comms(), bench.panels, "ablation" in screen.panels) == (before, panels, False)
    screen.show("ablation")
    assert screen.wait(60)
    bench.close()


@pytest.mark.parametrize("kind", ["LogitLensExplorer", "AblationPanel", "SaliencyExplorer", "FFNConceptBrowser"])
def test_a_panel(kind: str, comms: Any, monkeypatch: pytest.MonkeyPatch, wire: Any) -> None:
    BokehSource.shared()
    before, panels = comms(), threading.active_count()
    made = getattr(interp_widgets, kind)
    for name in ("_assemble", "_observe"):
        for late in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(Panel, name, after(getattr(Panel, name)) if late else broken)
                with pytest.raises(BrokenError, match="this went wrong"):
                    made(tiny_model("gpt2"), prompt="a b")
            assert comms() == before, name
    assert threading.active_count() == panels


def test_a_tab_of_a_stack(comms: Any, model: Any, classes: Any, wire: Any) -> None:
    class Failing(classes.Toy):
        def build(self) -> None:
            super().build()
            self.beside = Table()  # in no box yet
            if self.fails:
                broken()

        fails = True

    class Two(Stack):
        panels: ClassVar[Any] = {"good": classes.Toy, "bad": Failing}

    before = comms()
    stack = Two(model)
    opened = comms()
    with pytest.raises(BrokenError):
        stack["bad"]
    assert (comms(), list(stack.opened_panels)) == (opened, ["good"])
    stack.tab = "bad"
    assert (stack.tab, stack.tabs.selected_index) == ("good", 0)
    assert "this went wrong" in stack.status.error
    Failing.fails = False
    assert stack["bad"].wait(60)
    stack.close()
    Failing.fails = True
    with pytest.raises(BrokenError):
        Two(model, tab="bad")
    assert comms() == before


def test_an_error_of_closing_does_not_hide_the_first(model: Any, classes: Any, comms: Any, wire: Any) -> None:
    class Failing(classes.Toy):
        def build(self) -> None:
            super().build()
            broken()

        def end(self) -> None:
            super().end()
            raise RuntimeError("closing failed too")

    before = comms()
    with pytest.raises(BrokenError):
        Failing(model)
    assert comms() == before


def test_other_threads_and_earlier_callbacks_keep_theirs(comms: Any, wire: Any) -> None:
    elsewhere: list[W.Widget] = []
    here: list[W.Widget] = []

    def make() -> None:
        with lifetime.making():
            at_once(lambda: elsewhere.append(W.Label()))
            here.append(W.Label())
            broken()

    with pytest.raises(BrokenError):
        make()
    assert here[0].comm is None
    assert elsewhere[0].comm is not None
    lifetime.close_one(elsewhere[0])
