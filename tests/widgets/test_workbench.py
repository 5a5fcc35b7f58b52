"""The selection that panels share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import traitlets as T

from interp_widgets.widgets.base.guard import handling
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.workbench import Workbench
from tests.waiting import join, provoke

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(model: Any) -> Workbench:
    return Workbench(model)


def test_panels_share_a_prompt(bench: Workbench, make: Callable[..., Any]) -> None:
    one, two = make(bench), make(bench)
    assert bench.prompt == "hello", "the first panel's default prompt counts if nobody said another"
    one.prompt = "from one"
    assert (bench.prompt, two.prompt) == ("from one", "from one")
    bench.prompt = "from the bench"
    assert (one.prompt, two.prompt) == ("from the bench", "from the bench")
    assert one.wait(120)
    assert two.wait(120)
    assert bench.panels == (one, two)


def test_what_is_given_counts_then_what_is_there(model: Any, make: Callable[..., Any]) -> None:
    bench = Workbench(model, prompt="said")
    assert make(bench).prompt == "said"
    late = make(bench, prompt="newer")
    assert [panel.prompt for panel in bench.panels] == ["newer", "newer"]
    late.close()


def test_a_closed_panel_is_unlinked(bench: Workbench, make: Callable[..., Any]) -> None:
    one, two = make(bench), make(bench)
    two.close()
    one.prompt = "after"
    assert two.prompt == "hello"
    assert bench.panels == (one,)
    two.prompt = "from the dead"
    assert bench.prompt == "after"


def test_a_value_set_while_another_thread_draws_is_kept(bench: Workbench, make: Callable[..., Any]) -> None:
    one, read = make(bench), threading.Event()
    assert one.wait(120)

    def draw() -> None:
        with handling():
            kept = one.prompt
            read.set()
            provoke()
            one.prompt = ""
            one.prompt = kept

    for owner in (bench, one):
        drawing = threading.Thread(target=draw)
        drawing.start()
        assert read.wait(120)
        owner.prompt = f"set on {type(owner).__name__}"
        join(drawing)
        assert bench.prompt == one.prompt == f"set on {type(owner).__name__}"
        read.clear()


def test_clicks_in_two_panels_make_no_loop(bench: Workbench, make: Callable[..., Any], classes: Any) -> None:
    class Clamped(classes.Toy):
        @T.validate("layer")
        def _clamp(self, proposal: Any) -> int:
            return min(int(proposal.value), 2)

    one, two = make(bench), make(bench, kind=Clamped)
    seen: list[int] = []
    one.observe(lambda change: seen.append(change.new), "layer")
    one.layer = 9
    assert seen == [9]
    assert (bench.layer, two.layer) == (9, 2)


def test_selecting_several_things_asks_each_panel_once(bench: Workbench, make: Callable[..., Any], model: Any) -> None:
    panel = make(bench)
    before = len(model.computed)
    bench.select(prompt="both", layer=1)
    assert panel.wait(120)
    assert len(model.computed) == before + 1
    assert (panel.prompt, panel.layer) == ("both", 1)
    with pytest.raises(TypeError, match="does not share 'colour'"):
        bench.select(colour=1)


def test_bounds_of_the_model(model: Any) -> None:
    model.n_layers = 6
    bench = Workbench(model)
    with pytest.raises(T.TraitError, match=r"layer must be in 0..5 for fake, got 9"):
        bench.layer = 9
    bench.layer = 5


def test_a_panel_shows_what_the_bench_refuses(model: Any, make: Callable[..., Any]) -> None:
    model.n_layers = 6
    panel = make(Workbench(model))
    panel.layer = 9
    assert panel.status.error == "layer must be in 0..5 for fake, got 9"


def test_opening(model: Any, classes: Any, make: Callable[..., Any]) -> None:
    pair = SimpleNamespace(base=model, tuned=classes.FakeModel("tuned"))
    bench = Workbench(pair)
    assert repr(bench) == "Workbench(fake, tuned)"
    assert make(bench).models == (pair.base, pair.tuned)
    assert make(model, workbench=Workbench(model)).models == (model,)
    with pytest.raises(ValueError, match="opened on other models"):
        make(classes.FakeModel(), workbench=bench)
    with pytest.raises(TypeError, match="has its models already"):
        make(bench, model)
    with pytest.raises(TypeError, match="unknown keyword 'promt'"):
        Workbench(model, promt="x")


@pytest.fixture
def two_tabs(make: Callable[..., Any], classes: Any) -> Callable[..., Any]:
    """Opens a stack whose first tab has none of what panels share."""

    class Silent(Panel):
        has_request = False

    class TwoTabs(Stack):
        panels: ClassVar = {"silent": Silent, "toy": classes.Toy}

    return lambda *args, **options: make(*args, kind=TwoTabs, **options)


def test_a_stack_follows_the_bench_also_for_tabs_not_opened_yet(
    bench: Workbench, make: Callable[..., Any], two_tabs: Callable[..., Any]
) -> None:
    stack = two_tabs(bench)
    assert (stack.prompt, bench.prompt, bench.given) == ("hello", "", frozenset()), "nobody has said anything"
    one = make(bench, prompt="from one")
    assert stack.prompt == "from one"
    bench.select(prompt="from the bench", layer=1)
    assert (stack.prompt, stack.layer) == ("from the bench", 1)
    stack.prompt = "from the stack"
    assert (bench.prompt, one.prompt) == ("from the stack", "from the stack")
    stack.tab = "toy"
    assert (stack["toy"].prompt, stack["toy"].layer) == ("from the stack", 1)
    stack["toy"].prompt = "from its tab"
    assert (stack.prompt, bench.prompt, one.prompt) == ("from its tab",) * 3
    assert bench.panels == (stack, one), "a stack counts once"
    late = two_tabs(bench)
    assert late.prompt == "from its tab"
    given = two_tabs(bench, prompt="given")
    assert {panel.prompt for panel in (stack, late, given, one, bench, stack["toy"])} == {"given"}
    bench.close()
    assert stack.closed
    assert late.closed


def test_what_a_tab_starts_with_is_the_benchs_once_it_is_open(bench: Workbench, two_tabs: Callable[..., Any]) -> None:
    stack = two_tabs(bench)
    stack.tab = "toy"
    assert (bench.prompt, {"prompt", "layer"} <= bench.given) == ("hello", True)


def test_closing_the_bench_closes_its_panels(bench: Workbench, make: Callable[..., Any]) -> None:
    panels = [make(bench), make(bench)]
    bench.close()
    assert all(panel.closed for panel in panels)
