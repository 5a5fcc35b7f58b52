"""The door of every view: what a page sends that is behind the kernel, or malformed, changes nothing."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bokeh.events import SelectionGeometry
from bokeh.models import ColumnDataSource, FactorRange
from bokeh.plotting import figure

import interp_widgets
from interp_widgets.widgets.base.code import CodeBox
from interp_widgets.widgets.base.status import StatusLine
from interp_widgets.widgets.views import AlignedTokens, BokehFigure, Heatmap, Table, TextBox, TokenStrip
from tests.shipped import demo_pair
from tests.widgets.messages import NAN, ODD, RAW, nothing_in_the_log, odd_messages, send


def strip() -> TokenStrip:
    return TokenStrip(tokens=["a", "b", "c"])


def aligned() -> AlignedTokens:
    return AlignedTokens(upper=["a", "b", "c"], lower=["a", "c"], pairs=[[0, 0]])


def heat() -> Heatmap:
    made = Heatmap()
    made.set_matrix(np.ones((3, 2)))
    return made


def table() -> Table:
    return Table(columns=[{"label": "a"}], rows=[[1], [2], [3]])


def chart() -> BokehFigure:
    return BokehFigure(figure(height=100))


ACCEPTED: tuple[tuple[Callable[[], Any], str, tuple[Any, ...]], ...] = (
    (strip, "selected", (-1, 0, 1, 2)),
    (strip, "hovered", (-1, 0, 1, 2)),
    (strip, "brush", ([], [0, 1], [0, 3])),
    (strip, "marks", ([], [[0, 1]], [[0, 1], [1, 3]])),
    (aligned, "selected", (-1, 0, 1, 2)),
    (aligned, "pairs", ([[0, 1]], [[0, 0], [2, 1]])),
    (heat, "cross", ([], [0, 1], [2, 1])),
    (heat, "pinned", ([], [0, 1], [2, 1])),
    (heat, "hovered", ([], [0, 1], [2, 1])),
    (heat, "window", ([], [0, 0, 1, 1], [0.25, 0.5, 3.0000000001, 2])),
    (table, "selected", (-1, 0, 1, 2)),
    (TextBox, "value", ("", "x", "a\nb")),
    (CodeBox, "visible", (True, False)),
    (chart, "_picture", ("data:image/png;base64,AAAA",)),
)
BEYOND: dict[str, tuple[Any, ...]] = {
    "selected": (3, -2, [1], "1"),
    "hovered": (3, [3, 0], [0], [0, 0, 0]),
    "brush": ([0, 4], [2, 1], [1, 1], [0, True], [0], [[0, 1]]),
    "marks": ([[0, 4]], [[1, 2], [0, 1]], [[0, 2], [1, 3]], [0, 1], [[0]]),
    "pairs": ([], [[0, 2]], [[3, 0]], [[0, 0], [0, 1]], [[0, 1], [1, 0]], [[]], [0, 1], [[0, True]]),
    "cross": ([3, 0], [0, 2], [-1, 0], [0]),
    "pinned": ([3, 0], [0, 2], [-1, 0], [0]),
    "window": ([0, 0, 4, 1], [-1, 0, 1, 1], [1, 0, 1, 1], [0, 0, 1], ["0", 0, 1, 1]),
    "value": (), "visible": (0, 1), "_picture": ("http://elsewhere/x.png", "data:text/html,x"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "name", "fits"), ACCEPTED)
def test_what_does_not_fit_is_ignored_and_the_state_is_sent_back(
    make: Callable[[], Any], name: str, fits: tuple[Any, ...], wire: Any
) -> None:
    view, changes = make(), []
    view.observe(changes.append, name)
    for value in fits:
        wire.type(view, **{name: value})
        assert getattr(view, name) == value
    stays = copy.deepcopy(getattr(view, name))
    changes.clear()
    for value in (*ODD, *BEYOND[name]):
        if any(type(value) is type(one) and value == one for one in fits) or (
            name == "value" and isinstance(value, str)
        ):
            continue
        sent = len(wire.states(view, name))
        wire.type(view, **{name: value})
        assert getattr(view, name) == stays, value
        assert wire.states(view, name)[sent:] == [stays], "the page gets the state as it is"
    assert not changes
    view.close()


@pytest.mark.parametrize("make", [strip, heat, table, TextBox, CodeBox, StatusLine, chart])
def test_what_only_the_kernel_sets_no_page_changes(make: Callable[[], Any], wire: Any) -> None:
    view = make()
    before = view.get_state()
    for name in view.keys:
        if view.trait_metadata(name, "from_page") is None:
            for value in (5, "x", [], None):
                wire.type(view, **{name: value})
    assert view.get_state() == before
    for state in (None, 5, [], "x", {"no_such_trait": 1}):
        view.set_state(state)
    for content in ODD:
        send(view, {"method": "custom", "content": content})
    view.close()


@pytest.fixture
def tapped(wire: Any) -> Any:
    source = ColumnDataSource({"x": [1, 2], "y": [3, 4]})
    plot = figure(height=100, x_range=(0, 5), y_range=(0, 5))
    plot.scatter("x", "y", source=source)
    errors: list[Exception] = []
    seen: list[Any] = []
    source.selected.on_change("indices", lambda attr, old, new: seen.append(list(new)))
    plot.on_event(SelectionGeometry, lambda event: seen.append(event.geometry))
    host = BokehFigure(plot, on_error=errors.append)
    wire.event(host, kind="want")
    yield host, plot, source, seen, errors
    host.close()


def test_a_selection_that_the_source_does_not_have_is_sent_back(tapped: Any, wire: Any) -> None:
    host, _, source, seen, errors = tapped
    change = {"kind": "ModelChanged", "model": {"id": source.selected.id}, "attr": "indices"}
    wire.event(host, kind="events", contents=[{**change, "new": [1]}])
    for new in ([2], [10**9], [2**70], [-1], [True], ["a"], [0.5], 5, None, "x", [[0]], {"a": 1}):
        sent = len(wire.sent)
        wire.event(host, kind="events", contents=[{**change, "new": new}])
        assert wire.sent[sent][2]["content"]["patch"].count('"indices"') == 1, new
    assert (source.selected.indices, seen, errors) == ([1], [[1]], [])


def test_events_that_are_none_are_ignored(tapped: Any, wire: Any) -> None:
    host, plot, source, seen, errors = tapped

    def picked(**geometry: Any) -> dict[str, Any]:
        shape = {"type": "map", "entries": [*geometry.items()]}
        values = [("model", {"id": plot.id}), ("geometry", shape), ("final", True)]
        event = {"type": "event", "name": "selectiongeometry", "values": {"type": "map", "entries": values}}
        return {"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": event}

    start = {"kind": "ModelChanged", "model": {"id": plot.x_range.id}, "attr": "start"}
    contents = [
        *ODD, {}, {"kind": "ModelChanged"}, {**start, "attr": 5, "new": 1}, {**start, "attr": "none", "new": 1}, start,
        {**start, "model": 5, "new": 1}, {**start, "model": {"id": "gone"}, "new": 1}, {**start, "new": NAN},
        {**start, "new": "a"}, {"kind": []}, {"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": 5},
        {"kind": "ColumnsStreamed", "model": {"id": source.id}, "data": 5},
        {"kind": "ColumnsPatched", "model": {"id": plot.id}, "patches": {}},
        {"type": "ndarray"}, {"type": "object", "name": "Nothing", "id": "p1"},
        picked(), picked(type="point"), picked(type="point", x=NAN, y=1), picked(type="point", x="a", y=1),
    ]  # fmt: skip
    wire.event(host, kind="events", contents=contents)
    for content in (None, 5, {}, "x"):
        wire.event(host, kind="events", contents=content)
    assert (plot.x_range.start, source.data, seen, errors) == (0, {"x": [1, 2], "y": [3, 4]}, [], [])
    wire.event(host, kind="events", contents=[picked(type="point", x=1, y=2.5), {**start, "new": 1.5}])
    assert ([one["y"] for one in seen], plot.x_range.start) == ([2.5], 1.5)
    plot.x_range = FactorRange("a", "b")
    wire.event(host, kind="events", contents=[picked(type="point", x="a", y=2)])
    assert len(seen) == 2


PANELS = (
    "LogitLensExplorer", "SaliencyExplorer", "AblationPanel", "PatchingPanel", "TokenDecompositionExplorer",
    "DataSetExplorer",
    "ConceptBrowser", "HeadWordBrowser", "FFNConceptBrowser", "BiasWorkbench", "ClusterExplorer",
    "LayerSimilarityExplorer", "MoDRoutingViewer", "AttentionExplorer", "CircuitBoard", "Workbench",
)  # fmt: skip
QUICK = ("LogitLensExplorer", "AblationPanel", "PatchingPanel", "TokenDecompositionExplorer", "Workbench")
"""Those whose results take a moment to compute again."""
MESSAGES = 40
"""For each panel."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", PANELS)
def test_no_message_of_a_browser_breaks_a_panel(kind: str, wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    usual: dict[str, Any] = {"live_seconds": 2.0}  # what takes longer waits for Run
    bench = interp_widgets.Workbench(demo_pair(), response=" Paris.", **usual) if kind == "Workbench" else None
    opened = bench.screen if bench is not None else getattr(interp_widgets, kind)(demo_pair(), **usual)
    with contextlib.closing(bench or opened), nothing_in_the_log(caplog):
        assert opened.wait(300)
        for widget, message in odd_messages(opened, f"1 {kind}", MESSAGES):
            send(widget, message)
            assert opened.wait(300), message
            assert not RAW.search(opened.status.error), (type(widget).__name__, message, opened.status.trace)
        panel = opened["logit_lens"] if kind == "Workbench" else opened
        if kind not in QUICK or panel.status.state in ("failed", "waiting") or panel.hints:
            return
        shown = panel.current_panel.frame()
        panel.run(fresh=True)
        pd.testing.assert_frame_equal(shown, panel.current_panel.frame(), check_exact=False, rtol=1e-4, atol=1e-6)
