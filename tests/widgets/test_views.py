"""The views without a browser: what they send, what they refuse, and what comes back from the page."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets as W
import numpy as np
import pandas as pd
import pytest
from bokeh.io import curdoc
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure
from traitlets import TraitError

from interp_widgets.figures.static import render_png, render_svg
from interp_widgets.figures.theme import DIVERGING256, DIVERGING_DARK256, lut
from interp_widgets.version import __version__
from interp_widgets.widgets.base.export import export_html, html_page
from interp_widgets.widgets.base.shell import Shell
from interp_widgets.widgets.views import BokehFigure, Heatmap, Table, TokenStrip
from interp_widgets.widgets.views.base import bytes_floats, check_spans, data_range, float_bytes
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from tests.pictures import differs, pieces, texts
from tests.widgets.opening import at_once

VIEWS = Path(__file__).parents[2] / "interp_widgets" / "widgets" / "views"


def updates(wire: Any, widget: W.Widget) -> list[dict[str, Any]]:
    """What was sent about a widget after it was opened."""
    return [data for comm_id, kind, data in wire.sent if comm_id == widget.comm.comm_id and kind == "comm_msg"]


# ---- token strip


def test_values_travel_as_float32_and_recolouring_sends_nothing_else(wire: Any) -> None:
    strip = TokenStrip(label="Prompt")
    strip.set_tokens(["a", " b", "\n"], special=[True, False, False])
    before = len(updates(wire, strip))
    strip.set_values([0.25, np.nan, -1.0], vmin=-1, vmax=1)
    sent = updates(wire, strip)[before:]
    assert len(sent) == 1, "one message for one recolouring"
    assert set(sent[0]["state"]) | {path[0] for path in sent[0]["buffer_paths"]} <= {"values", "vmin", "vmax"}
    assert ["values"] in sent[0]["buffer_paths"]
    np.testing.assert_array_equal(bytes_floats(strip.values), np.float32([0.25, np.nan, -1.0]))


def test_strip_range_and_scale() -> None:
    strip = TokenStrip(tokens=["a", "b", "c"])
    strip.set_values([1.0, 3.0, np.nan])
    assert (strip.vmin, strip.vmax) == (1.0, 3.0)
    plain = strip.lut
    strip.set_values([-1.0, 3.0, 0.0], signed=True)
    assert (strip.vmin, strip.vmax) == (-3.0, 3.0)
    assert strip.lut != plain
    assert strip.lut_dark == b""
    strip.set_values(None)
    assert strip.values == b""
    strip.set_density([1, 2, 3], maximum=4)
    assert bytes_floats(strip.density).tolist() == [1, 2, 3]
    strip.set_marks([[0, 2]])
    assert strip.mask().tolist() == [True, True, False]
    strip.set_tokens(["x"])
    assert (strip.values, strip.density, strip.marks, strip.selected) == (b"", b"", [], -1)


def test_the_browser_sets_selection_brush_and_marks(wire: Any) -> None:
    strip = TokenStrip(tokens=["a", "b", "c"])
    seen: list[Any] = []
    strip.observe(lambda change: seen.append((change.name, change.new)), ["selected", "brush", "marks", "hovered"])
    wire.type(strip, selected=2)
    wire.type(strip, brush=[0, 2])
    wire.type(strip, marks=[[1, 3]])
    assert seen == [("selected", 2), ("brush", [0, 2]), ("marks", [[1, 3]])]


def test_what_a_reader_has_picked_is_answered_once(wire: Any) -> None:
    table, picked = Table(columns=[{"label": "word"}], rows=[["a"], ["b"], ["c"]]), []

    def drawn_again(change: Any) -> None:
        picked.append(change.new)
        table.selected = -1
        table.selected = change.new

    table.on_user("selected", drawn_again)
    table.on_user("selected", lambda change: picked.append(-change.new))
    table.set_state({"selected": 2})
    assert picked == [2, -2]
    table.selected = 0
    assert picked == [2, -2], "the program is no reader"
    table.set_state({"selected": 2})
    assert picked == [2, -2, 2, -2]
    table.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.set_values([1.0]), r"values must be one number for each of the 2 tokens, got \(1,\)"),
        (lambda s: s.set_density([[1.0, 2.0]]), r"density must be one number for each of the 2 tokens"),
        (
            lambda s: s.set_marks([[1, 3]]),
            r"marks must be spans \[start, end\) with 0 <= start < end <= 2, got \[1, 3\]",
        ),
        (lambda s: s.set_marks([[1, 1]]), "start < end"),
        (lambda s: s.set_arcs([(0, 2, 0.5)]), r"arcs must be \(from, to, width\) of tokens 0..1"),
        (lambda s: s.set_tokens(["a", "b"], special=[True]), "one flag for each of the 2 tokens, got 1"),
    ],
)
def test_a_strip_says_what_does_not_fit(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(TokenStrip(tokens=["a", "b"]))


# ---- heat map


def test_map_sends_one_message_per_matrix(wire: Any) -> None:
    heat = Heatmap()
    before = len(updates(wire, heat))
    heat.set_matrix(np.ones((64, 300)))
    sent = updates(wire, heat)[before:]
    assert len(sent) == 1
    assert ["data"] in sent[0]["buffer_paths"]
    assert len(heat.data) == 64 * 300 * 4
    np.testing.assert_array_equal(heat.matrix, np.ones((64, 300), np.float32))


def test_map_keeps_what_still_fits() -> None:
    heat = Heatmap()
    heat.set_matrix([[1.0, 2.0], [3.0, np.nan]], rows=["a", "b"], columns=["x", "y"])
    heat.set_row_bars([1, 2], label="density")
    heat.set_row_marks([[0, 1]])
    heat.cross, heat.window = [1, 1], [0.0, 0.0, 1.0, 1.0]
    assert (heat.vmin, heat.vmax) == (1.0, 3.0)
    heat.set_matrix([[-2.0, 1.0], [0.0, 0.0]], signed=True)
    assert (heat.lut, heat.lut_dark) == (lut(DIVERGING256), lut(DIVERGING_DARK256)), "no glare on a dark page"
    assert (heat.row_labels, heat.cross, heat.row_marks) == (["a", "b"], [1, 1], [[0, 1]])
    assert (heat.vmin, heat.vmax) == (-2.0, 2.0)
    heat.set_matrix([[1.0, 2.0, 3.0]])
    assert (heat.row_labels, heat.column_labels, heat.cross, heat.window) == ([], [], [], [])
    assert (heat.row_bars, heat.row_marks) == (b"", [])
    heat.set_matrix(None)
    assert heat.shape == [0, 0]
    assert heat.matrix.shape == (0, 0)


def test_map_bars_of_both_signs() -> None:
    heat = Heatmap()
    heat.set_matrix(np.zeros((2, 2)))
    heat.set_row_bars([-1.0, 2.0], maximum=4.0)
    assert (bytes_floats(heat.row_bars).tolist(), heat.row_bars_max, heat.row_bars_signed) == ([-1.0, 2.0], 4.0, False)
    heat.set_row_bars([1.0, 2.0], signed=True)
    assert (heat.row_bars_max, heat.row_bars_signed) == (0.0, True)
    with_bars = heat.scene()
    heat.set_row_bars(None)
    assert differs(heat.scene(), with_bars)


def test_map_notes_and_numbers() -> None:
    heat = Heatmap()
    heat.set_matrix([[0.1234, -20.04]], notes=["low", ""], vmin=-900, vmax=900)
    assert heat.notes == ["low", ""]
    plain = set(texts(heat.scene()))
    heat.numbers_from = 1.0
    assert set(texts(heat.scene())) - plain == {"−20"}
    heat.number_decimals = 2
    assert set(texts(heat.scene())) - plain == {"−20.04"}
    heat.set_matrix([[1.0]])
    assert heat.notes == []


def test_map_of_ranks_with_marked_cells() -> None:
    heat = Heatmap(scale="log", reverse=True)
    heat.set_matrix([[0.0, 10.0], [100.0, 1000.0]])
    plain = heat.scene()
    heat.edges, heat.crossed = [[0, 1]], [[1, 0]]
    marked = heat.scene()
    assert differs(marked, plain)
    heat.scale, heat.reverse = "linear", False
    assert [cell.fill for cell in pieces(heat.scene())] != [cell.fill for cell in pieces(marked)]
    heat.set_matrix([[1.0]])
    assert heat.edges == heat.crossed == []
    with pytest.raises(TraitError):
        heat.scale = "square"  # type: ignore[assignment]


def test_map_of_words_that_repeat_down_a_column() -> None:
    heat = Heatmap(joined=True, heads_name="word\nfrom")
    heat.set_matrix(np.eye(3), texts=["sea", "a", "", "sea", "b", "c", "sea", "b", "c"])
    heat.heads, heat.muted = ["sea\n0", "b\n1", "c\n1"], [[0, 1]]
    found = texts(heat.scene())
    assert (found.count("sea"), found.count("b"), found.count("c")) == (2, 2, 2), "once as a head, once in the cells"
    assert {"word", "from"} <= set(found)
    heat.joined = False
    assert texts(heat.scene()).count("sea") == 4
    assert heat.scene().width < 500
    heat.column_width = 200
    assert heat.scene(width=300).width > 600, "every column of a saved picture is as wide"
    heat.set_matrix([[1.0]])
    assert heat.heads == heat.muted == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: h.set_matrix([1.0, 2.0]), r"\(rows, columns\) matrix, got shape \(2,\)"),
        (lambda h: h.set_matrix([[1.0]], rows=["a", "b"]), "one label for each of the 1 rows, got 2"),
        (lambda h: h.set_matrix([[1.0]], columns=[]), "one label for each of the 1 columns, got 0"),
        (lambda h: h.set_matrix([[1.0]], texts=["a", "b"]), "one string for each of the 1 cells, got 2"),
        (lambda h: h.set_matrix([[1.0]], notes=["a", "b"]), "one string for each of the 1 cells, got 2"),
        (lambda h: h.set_row_bars([1.0]), "each of the 0 rows"),
        (lambda h: h.set_row_marks([[0, 1]]), "<= 0"),
    ],
)
def test_a_map_says_what_does_not_fit(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Heatmap())


def test_ranges() -> None:
    assert data_range(np.array([np.nan, np.inf])) == (0.0, 1.0)
    assert data_range(np.array([2.0, 2.0])) == (2.0, 3.0)
    assert data_range(np.zeros(3), signed=True) == (-1.0, 1.0)
    assert check_spans([(0, 1)], 1, "x") == [[0, 1]]
    assert float_bytes([1.0]) == np.float32(1).tobytes()


# ---- all views


@pytest.mark.parametrize("kind", [TokenStrip, Heatmap])
def test_unknown_keywords_are_refused_and_closing_closes_all(kind: type, wire: Any) -> None:
    with pytest.raises(TypeError, match="'tokenz'"):
        kind(tokenz=[])
    view = kind()
    assert repr(view).startswith(kind.__name__ + "(")
    assert wire.open() > 0
    view.close()
    view.close()
    assert wire.open() == 0


def test_pictures_without_a_browser() -> None:
    strip = TokenStrip(label="t")
    strip.set_tokens(["a", "b"])
    strip.set_values([0.0, 1.0])
    strip.set_density([1.0, 2.0])
    heat = Heatmap(title="m")
    heat.set_matrix([[0.0, 1.0]], rows=["a"], columns=["x", "y"])
    heat.set_row_bars([1.0])
    for scene in (strip.scene(width=500), heat.scene(width=500), Heatmap().scene()):
        assert render_png(scene)[1:4] == b"PNG"
        assert render_svg(scene).startswith("<svg")
    assert strip.scene(width=500).width == 500


def test_tokens_become_text_never_markup() -> None:
    """The modules make no HTML from strings, so no token can become a tag."""
    for path in VIEWS.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", path.read_text()), path.name


# ---- Bokeh


@pytest.fixture
def plot() -> Any:
    source = ColumnDataSource({"x": [1, 2], "y": [1, 2]})
    made = figure(name="plot")
    made.scatter("x", "y", source=source)
    made.tags = [source]
    return made


def looked_at(wire: Any, plot: Any, **options: Any) -> BokehFigure:
    """A host whose figure a page has asked for."""
    host = BokehFigure(plot, **options)
    wire.event(host, kind="want")
    return host


def from_page(wire: Any, host: BokehFigure, content: dict[str, Any]) -> None:
    wire.event(host, kind="events", contents=[content])


def documents(wire: Any, host: BokehFigure) -> list[Any]:
    """The figures that were sent whole."""
    contents = [data.get("content", {}) for data in updates(wire, host)]
    return [json.loads(content["document"]) for content in contents if content.get("kind") == "document"]


def test_a_figure_is_written_out_when_somebody_looks_at_it(wire: Any, plot: Any) -> None:
    host = BokehFigure(plot)
    plot.title.text = "before"
    assert plot.document is None
    assert wire.states(host, "_document") == [""]
    assert not documents(wire, host)
    wire.event(host, kind="want")
    plot.title.text = "behind"
    assert "before" in json.dumps(documents(wire, host))
    assert "behind" in updates(wire, host)[-1]["content"]["patch"]
    wire.event(host, kind="want")  # another page
    first, second = documents(wire, host)
    assert "behind" not in json.dumps(first)
    assert "behind" in json.dumps(second)
    host.close()


def test_charts_go_ahead_of_the_panel_that_is_displayed(wire: Any, plot: Any, model: Any) -> None:
    panel, host = Shell(model, None, None, {}), BokehFigure(plot)
    panel.children = [W.VBox([host])]
    assert not documents(wire, host)
    shown, _ = panel._repr_mimebundle_()
    assert shown["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id
    name, sentence = shown["text/plain"].split("\n")
    assert name == repr(panel)
    assert sentence.startswith("A live panel: run this cell in Jupyter"), "for where no widget can live"
    assert len(documents(wire, host)) == 1, "a page that asks waits for the kernel, which may run the next cell"
    panel.close()


def test_a_view_says_where_it_can_be_seen(plot: Any) -> None:
    for view in (Heatmap(), TokenStrip(), Table(), BokehFigure(plot)):
        name, sentence = view._repr_mimebundle_()[0]["text/plain"].split("\n")
        assert (name, sentence) == (repr(view), "A live view: run this cell in Jupyter to see it.")
        view.close()


def test_colab_is_told_what_the_views_in_a_panel_need(monkeypatch: Any, plot: Any, model: Any) -> None:
    panel, host = Shell(model, None, None, {}), BokehFigure(plot)
    panel.children = [W.VBox([host])]
    assert panel._repr_mimebundle_()[1] == {}
    colab = SimpleNamespace(
        enable_custom_widget_manager=lambda: None, _widgets=SimpleNamespace(_installed_url="https://manager")
    )
    monkeypatch.setitem(sys.modules, "google.colab.output", colab)
    (described,) = panel._repr_mimebundle_()[1].values()
    assert described == {"colab": {"custom_widget_manager": {"url": "https://manager"}}}
    assert host._source == BokehSource.shared().model_id, "Colab makes only the models that a page asks for"
    panel.close()


def test_a_tap_calls_back_once_and_is_not_sent_back(wire: Any, plot: Any) -> None:
    source, hits = plot.tags[0], []
    source.selected.on_change("indices", lambda attr, old, new: hits.append(list(new)))
    host = looked_at(wire, plot)
    before = len(wire.sent)
    event = {"kind": "ModelChanged", "model": {"id": source.selected.id}, "attr": "indices", "new": [1]}
    from_page(wire, host, event)
    assert hits == [[1]]
    assert source.selected.indices == [1]
    assert len(wire.sent) == before, "the browser knows already"
    source.data = {"x": [1, 2], "y": [5, 6]}
    assert len(wire.sent) == before + 1
    assert wire.sent[-1][2]["content"]["kind"] == "patch"
    host.close()


def test_a_page_that_loads_later_gets_the_figure_as_it_is(wire: Any, plot: Any) -> None:
    host = BokehFigure(plot)
    assert "later" not in host.get_state()["_document"]
    plot.title.text = "later"
    assert "later" in host.get_state()["_document"]
    assert len(host._document) < 10_000, "the figure only, no BokehJS"
    host.close()


def test_bokeh_code_is_a_message_not_state(wire: Any, plot: Any) -> None:
    BokehSource.shared().close()  # one of an earlier test
    host = BokehFigure(plot)
    source = BokehSource.shared()
    assert source is BokehSource.shared()
    assert sum(len(json.dumps(value)) for value in source.get_state().values() if isinstance(value, str)) < 30_000
    sent = len([data for data in updates(wire, source) if data.get("content") == {"kind": "code"}])
    wire.event(source, kind="want")
    assert len([data for data in updates(wire, source) if data.get("content") == {"kind": "code"}]) == sent + 1
    host.close()
    source.close()


def test_a_figure_belongs_to_one_host_until_it_closes(wire: Any, plot: Any) -> None:
    host = BokehFigure(plot)
    with pytest.raises(ValueError, match="already shown by a BokehFigure"):
        BokehFigure(plot)
    host.close()
    before = len(wire.sent)
    plot.title.text = "nobody listens"
    assert len(wire.sent) == before
    again = BokehFigure(plot)
    assert "nobody listens" in again.get_state()["_document"]
    again.close()
    with pytest.raises(TypeError, match="shows a Bokeh figure or layout, got int"):
        BokehFigure(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [True, False])
def test_an_event_that_fails_does_not_swallow_those_behind_it(wire: Any, plot: Any, told: bool) -> None:
    errors: list[Exception] = []
    source = plot.tags[0]

    def fail(attr: str, old: Any, new: Any) -> None:
        raise ValueError("from the callback")

    source.selected.on_change("indices", fail)
    host = looked_at(wire, plot, on_error=errors.append if told else None)
    changed = {"kind": "ModelChanged", "model": {"id": source.selected.id}, "attr": "indices", "new": [1]}
    moved = {"kind": "ModelChanged", "model": {"id": plot.x_range.id}, "attr": "start", "new": -7.0}
    message = {"kind": "events", "contents": [changed, moved]}
    if told:
        host._receive(host, message, [])
        assert [str(error) for error in errors] == ["from the callback"]
    else:
        with pytest.raises(ValueError, match="from the callback"):
            host._receive(host, message, [])
    assert plot.x_range.start == -7.0
    host.close()


def test_an_error_in_a_callback_reaches_its_owner(wire: Any, plot: Any) -> None:
    errors: list[Exception] = []
    source = plot.tags[0]

    def fail(attr: str, old: Any, new: Any) -> None:
        raise ValueError("from the callback")

    source.selected.on_change("indices", fail)
    host = looked_at(wire, plot, on_error=errors.append)
    event = {"kind": "ModelChanged", "model": {"id": source.selected.id}, "attr": "indices", "new": [1]}
    from_page(wire, host, event)
    assert [str(error) for error in errors] == ["from the callback"]
    assert curdoc() is not plot.document, "Bokeh's current document must not stay the failed figure's"
    gone = {"kind": "ModelChanged", "model": {"id": "p0"}, "attr": "indices", "new": [1]}
    from_page(wire, host, gone)
    assert len(errors) == 1, "an event about a model that is gone is no error"
    host.close()


def test_threads_send_whole_patches(wire: Any, plot: Any) -> None:
    source = plot.tags[0]
    host = looked_at(wire, plot)
    before = len(wire.sent)

    def write(k: int) -> None:
        for i in range(100):
            source.patch({"y": [(k, 1000 * k + i)]})

    at_once(*(partial(write, k) for k in range(2)))
    patches = [json.loads(data["content"]["patch"]) for _, _, data in wire.sent[before:]]
    assert sum(len(patch["events"]) for patch in patches) == 200
    assert source.data["y"] == [99, 1099]
    host.close()


# ---- a saved page


def test_saved_page_holds_state_numbers_and_provenance(tmp_path: Path, plot: Any) -> None:
    strip = TokenStrip(label="</script><b>")
    strip.set_tokens(["</script>", "<!--"])
    heat = Heatmap(title="m")
    heat.set_matrix([[0.5, np.nan], [1.0, 2.0]])
    answer = TokenStrip(tokens=["a", "b"])
    heat.strips = (strip, answer)
    host = BokehFigure(plot)
    box = W.VBox(
        [W.Label("not a view"), W.Tab([W.VBox([strip, answer]), heat, W.VBox([host])], titles=["T", "M", "B"])]
    )
    table = pd.DataFrame({"token": ["<i>", "b"], "score": [0.123456789, float("nan")]})
    path = export_html("A & B", [box, strip], tmp_path / "page.html", provenance={"model": "<m>"}, table=table)
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["T", "M", "B"]
    assert text.count(' id="view-') == 4, "a view that stands twice is shown once"
    assert "not a view" in text, "texts between the views stay"
    assert "<title>A &amp; B</title>" in text
    assert f'<meta name="generator" content="interp_widgets {__version__}">' in text
    assert "<td>&lt;m&gt;</td>" in text
    assert '<td>&lt;i&gt;</td><td class="number">0.123457</td>' in text
    assert "default-src 'none'" in text
    # nothing in the data may end or comment out the script
    assert len(re.findall(r"</script", text, re.IGNORECASE)) == len(re.findall(r"<script", text, re.IGNORECASE))
    states = json.loads(
        re.search(r"const views = (.*?);\nconst links", text, re.DOTALL)[1]
        .replace("<\\/", "</")
        .replace("<\\!--", "<!--")
    )  # type: ignore[index]
    assert [state["module"] for state in states] == ["TokenStrip", "TokenStrip", "Heatmap", "BokehFigure"]
    assert states[0]["values"]["tokens"] == ["</script>", "<!--"]
    host.close()


def test_saved_page_leaves_out_what_waits_to_be_filled() -> None:
    chart = W.VBox([TokenStrip(tokens=["zebra"])])
    chart.add_class("iw-hidden")
    filled, empty = Table(columns=[{"label": "n"}], rows=[[1]]), Table(columns=[{"label": "n"}], empty="press Check")
    tabs = W.Tab([W.VBox([filled]), W.VBox([empty, chart]), W.VBox([])], titles=["Map", "Check", "Nothing"])
    page = html_page("t", [tabs])
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Map"]
    assert "zebra" not in page
    assert "press Check" not in page
    chart.remove_class("iw-hidden")
    assert re.findall(r"<h2>(.*?)</h2>", html_page("t", [tabs])) == ["Map", "Check"]
    chart.add_class("iw-hidden")
    assert "zebra" in html_page("t", [chart.children[0]])


def test_saved_page_needs_a_view() -> None:
    with pytest.raises(ValueError, match="nothing to save"):
        html_page("t", [W.VBox([W.Label("x")])])


def test_a_page_lays_its_parts_out_as_the_screen_does() -> None:
    strip, chart = TokenStrip(tokens=["a"]), TokenStrip(tokens=["b"])
    chart.add_class("iw-chart")
    box = W.HBox([W.VBox([strip], layout={"flex": "3 1 480px", "align_items": "flex-start"}), chart])
    box.add_class("iw-row")
    page = html_page("t", [box])
    assert '<div class="jupyter-widgets widget-box iw-row">' in page
    assert '<div class="jupyter-widgets widget-box" style="flex: 3 1 480px; align-items: flex-start">' in page
    assert '<div class="jupyter-widgets view" id="view-0">' in page
    assert '<div class="jupyter-widgets view iw-chart" id="view-1">' in page


def test_long_table_is_cut_but_downloads_whole() -> None:
    table = pd.DataFrame({"n": np.arange(1200)})
    page = html_page("t", [TokenStrip(tokens=["a"])], table=table)
    assert page.count("<tr>") == 501
    assert "the first 500 of 1200 rows" in page
    assert 'download="data.csv"' in page
