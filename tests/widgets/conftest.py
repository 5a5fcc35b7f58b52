"""Widgets without a browser: a recorded comm plays the front end, and a small panel computes on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import comm
import comm.base_comm
import ipywidgets as W
import pytest
import traitlets as T
from ipywidgets.widgets import widget as widget_module

from interp_widgets.compute.cache import results
from interp_widgets.compute.memory import speedometer
from interp_widgets.compute.worker import Worker, _workers
from interp_widgets.widgets.base import freshness
from interp_widgets.widgets.base.fields import field
from interp_widgets.widgets.base.panel import Panel
from tests.steady import steady_forecasts
from tests.waiting import LIMIT, join, until


class RecordedComm(comm.base_comm.BaseComm):
    """A comm that keeps what it would have sent."""

    sent: list[tuple[str, str, dict[str, Any]]]

    def publish_msg(
        self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
    ) -> None:
        self.sent.append((self.comm_id, msg_type, data or {}))


class Wire:
    """What went to the browser, and what comes from it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, dict[str, Any]]] = []

    def type(self, widget: W.Widget, **state: Any) -> None:
        """The user changes a control."""
        data = {"method": "update", "state": state, "buffer_paths": []}
        widget._handle_msg({"content": {"data": data}, "buffers": []})

    def event(self, widget: W.Widget, **content: Any) -> None:
        """A custom message, such as a click."""
        widget._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})

    def click(self, button: W.Button) -> None:
        self.event(button, event="click")

    def choose(self, menu: W.Widget, label: str) -> None:
        """An entry of a menu."""
        self.event(menu, event="choose", label=label)

    def states(self, widget: W.Widget, name: str) -> list[Any]:
        """The values of one trait in the order in which the browser saw them."""
        return [
            data["state"][name]
            for comm_id, kind, data in self.sent
            if widget.comm is not None and comm_id == widget.comm.comm_id
            if kind in ("comm_open", "comm_msg") and name in data.get("state", {})
        ]

    def open(self) -> int:
        """Comms that are open."""
        kinds = [kind for _, kind, _ in self.sent]
        return kinds.count("comm_open") - kinds.count("comm_close")


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()

    def create(*args: Any, **kwargs: Any) -> RecordedComm:
        comm_object = RecordedComm.__new__(RecordedComm)
        comm_object.sent = made.sent
        comm_object.__init__(*args, **kwargs)  # type: ignore[misc]
        return comm_object

    monkeypatch.setattr(comm, "create_comm", create)
    return made


@pytest.fixture(scope="module", autouse=True)
def nothing_of_other_files() -> None:
    """Which files share a process depends on how fast the others were: what they have asked is no answer here, and a
    panel that they left open is not compared with its models after every handler."""
    results.clear()
    freshness._open.clear()


@pytest.fixture(autouse=True)
def idle_workers() -> None:
    """Nothing of the test before is under way: beside a run, a panel opens in the background instead of at once."""
    for worker in list(_workers.values()):
        until(partial(idle, worker), f"the end of the run on {worker.device}")


def idle(worker: Worker) -> bool:
    return not worker.busy


@pytest.fixture(autouse=True)
def few_orders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a saliency map, which every one gets in the background, is of two random orders where a test is not
    about it (`all_orders`)."""
    if "all_orders" not in request.fixturenames:
        monkeypatch.setattr("interp_widgets.widgets.saliency.verdict.usual_orders", lambda tokens, few: 2)


@pytest.fixture
def all_orders() -> None:
    """For tests of the check of a saliency map: as many random orders as for users."""


@pytest.fixture(autouse=True)
def forecasts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts assume one speed where a test is not about what they learn (`learning`)."""
    if "learning" not in request.fixturenames:
        steady_forecasts(monkeypatch.setattr)


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of forecasts: they learn from the runs of the test, as for users."""
    monkeypatch.setattr(speedometer, "_runs", {})


@dataclass(frozen=True)
class Cost:
    flops: float = 1.0
    bytes: float = 1e6


@dataclass(frozen=True)
class Request:
    n: int
    text: str = ""


class FakeModel:
    """Stands in for a model: squares numbers in steps that the test can hold up, and fails on request."""

    dtype = "torch.float32"
    backend = "hooked"
    count = 0

    def __init__(self, name: str = "fake", factor: int = 1) -> None:
        FakeModel.count += 1
        self.name, self.factor = name, factor
        self.device = f"fake:{FakeModel.count}"  # a worker of its own
        self.weight_hash = f"hash {FakeModel.count}"
        self.gate = threading.Event()
        self.gate.set()
        self.deaf = False
        self.entered = threading.Event()
        self.error: BaseException | None = None
        self.computed: list[int] = []

    def hold(self, *, deaf: bool = False) -> None:
        """Let the next run stop at its first step until `gate.set()`, or, unless it is `deaf`, until its cancel."""
        self.deaf = deaf
        self.entered.clear()
        self.gate.clear()

    def square(
        self, n: int, progress: Callable[[int, int], None], check: Callable[[], None], on_partial: Callable[[Any], None]
    ) -> int:
        self.computed.append(n)
        for step in range(3):
            progress(step, 3)
            if step == 1:
                on_partial(-n)
                self.entered.set()
                if self.deaf:
                    assert self.gate.wait(LIMIT)
                while not self.gate.wait(0.002):
                    check()
                if self.error is not None:
                    raise self.error
        return self.factor * n * n


class Toy(Panel):
    """Squares a number."""

    title = "Toy"

    n = field(int, 3)
    scale = field(float, 1.0, redraws=True)
    prompt = field(str, "hello")
    kind = T.Enum(("good", "better"), default_value="good")
    layer = T.Int(0)
    seconds = T.Float(0.0)

    def build(self) -> None:
        self.painted: list[Any] = []
        self.label = W.Label()
        self.slider = self.bind(W.IntSlider(description="n", min=-10, max=1000), "n")
        self.box = self.bind(W.Text(description="kind"), "kind")
        self.inputs.children = [self.slider, self.box]
        self.plot.children = [self.label]

    def request(self) -> Request:
        if self.n < 0:
            raise ValueError(f"n must be 0 or more, got {self.n}")
        return Request(self.n, self.prompt)

    def cost(self, request: Request, model: FakeModel) -> Cost | None:
        return None

    def forecast(self, request: Any) -> Any:
        from interp_widgets.compute.memory import Forecast

        return Forecast(self.seconds, 300_000_000)

    def compute(self, request: Request, model: FakeModel, *, progress: Any, check: Any, on_partial: Any) -> int:
        return model.square(request.n, progress, check, on_partial)

    def draw(self, results: tuple[Any, ...], request: Request) -> None:
        self.painted.append((request.n, results))
        self.label.value = f"{self.shown} " + " ".join(f"{value * self.scale:g}" for value in results)

    def code(self, request: Request) -> str:
        return f"{request.n} ** 2"

    def frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame({"n": [self.n], "square": [self.results[0]]})


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def make(wire: Wire) -> Iterator[Callable[..., Toy]]:
    """Opens toy panels; afterwards everything they opened must be closed again."""
    opened: list[Toy] = []
    elsewhere = {owner for worker in _workers.values() for owner in worker._owners}  # left open by a test that failed

    def build(*args: Any, kind: type[Toy] = Toy, **traits: Any) -> Toy:
        opened.append(kind(*args, **traits))
        return opened[-1]

    yield build
    used = {(owner.worker, owner.worker._thread) for panel in opened for owner in panel.jobs._owners.values()}
    for panel in opened:
        for one in panel.models:
            one.gate.set()
        panel.close()
    for worker, thread in used:
        assert worker._owners <= elsewhere, "closing a panel must take its owner from the worker"
        if thread is not None and not worker._owners:
            join(thread)  # closing the last panel on a device must end its worker
    assert wire.open() == 0, "closing the panels must close every comm"


@pytest.fixture
def toy(make: Callable[..., Toy], model: FakeModel) -> Toy:
    return make(model)


@pytest.fixture
def classes() -> Any:
    """The example classes, for tests that make their own."""
    return type("Classes", (), {"FakeModel": FakeModel, "Toy": Toy, "Request": Request, "Cost": Cost})


@pytest.fixture
def comms() -> Callable[[], int]:
    """Counts the widgets that ipywidgets holds."""
    return lambda: len(widget_module._instances)
