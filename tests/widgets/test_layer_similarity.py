"""Layer similarity without a browser: tasks, layers, projections, dimensions, texts; the demo's and one's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traitlets as T

from interp_widgets import (
    LayerSimilarityExplorer,
    MossaResult,
    Results,
    TaskTexts,
    Workbench,
    demo_task_texts,
    layer_projections,
    layer_sections,
    layer_similarity,
    mossa,
    mossa_sections,
    task_correlations,
)
from interp_widgets.data.task_texts import CLUSTERS
from interp_widgets.figures.layer_similarity.boxes import BoxSeries, TaskBoxes, boxes_of
from interp_widgets.widgets.layer_similarity import explorer, options
from tests.models.tiny import tiny_model
from tests.pictures import texts as drawn
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle
from tests.widgets.saved_pages import instructions

pytestmark = pytest.mark.slow

NAMES = ("plural", "capital", "sum", "story", "second")
TASKS = demo_task_texts(12, names=NAMES)
CONTROLS = dict.fromkeys(NAMES, "demo-tuned")
"""Not tuned on one task each, but as good as any to be compared with."""


@pytest.fixture
def view(wire: Any) -> Iterator[Callable[..., LayerSimilarityExplorer]]:
    with opening(LayerSimilarityExplorer) as build:
        yield build


@pytest.fixture
def own(view: Any) -> Callable[..., LayerSimilarityExplorer]:
    """With few tasks and given control models."""
    pair = demo_pair()
    controls = dict.fromkeys(NAMES, pair.tuned)

    def build(*models: Any, **traits: Any) -> Any:
        return view(*(models or (pair,)), **{"tasks": TASKS, "control_models": controls, **traits})

    return build


def run_code(panel: Any, **scope: Any) -> dict[str, Any]:
    exec(panel.current.code(panel.current.request()), scope)
    return scope


# ---- the demo pair


def test_the_demo_pair_opens_on_what_ships(view: Any) -> None:
    panel = view(demo_pair())
    assert "shipped with the demo models" in panel.status.text
    base, tuned = panel.result
    assert isinstance(base, MossaResult)
    assert len(base.tasks) == 27
    assert "the debiased CKA is shown" in panel["tasks"].summary.value
    sections = mossa_sections(base, tuned)
    assert panel["tasks"].sections().equals(sections)
    assert sections.summary() in panel["tasks"].summary.value.replace("&#x27;", "'")
    for tab in ("layers", "projections", "dimensions", "texts"):
        panel.tab = tab
        settle(panel)
        assert panel.status.error == ""
        assert "shipped" in panel.status.text or "cache" in panel.status.text


def test_options_that_nothing_ships_for_wait_for_run(view: Any) -> None:
    with opening(LayerSimilarityExplorer, wait=False) as build:
        panel = build(demo_pair(), texts_per_task=20)
        assert panel.status.state == "waiting"
        assert panel.result is None
        assert "Nothing compared yet" in panel["tasks"].chart.message


# ---- tasks


def test_boxes_table_and_sections_are_of_the_results(own: Any) -> None:
    panel = own()
    pair, tab = demo_pair(), panel["tasks"]
    base, tuned = (mossa(model, dict.fromkeys(NAMES, pair.tuned), TASKS) for model in pair)
    for found, expected in zip(panel.result, (base, tuned), strict=True):
        np.testing.assert_allclose(found.cka, expected.cka, atol=1e-6)
    seen = [np.asarray(series.values) for series in tab.chart.series]
    np.testing.assert_allclose(seen, [base.cka[:4], tuned.cka[:4]], atol=1e-6)  # the last one is unseen
    rows = tab.chart.source.data
    medians = {
        (name, layer): middle
        for name, layer, middle in zip(*(rows[key] for key in ("name", "layer", "median")), strict=True)
    }
    assert medians["A: demo-base", 3] == pytest.approx(np.median(base.cka[:4, 2]))
    panel.at_layer = 4
    listed = {row[0]: row for row in tab.table.rows}
    assert set(listed) == set(NAMES[:4])
    for number, name in enumerate(NAMES[:4]):
        own_cka = [base.cka[number, 3], tuned.cka[number, 3]]
        np.testing.assert_allclose(listed[name][2:5], [*own_cka, own_cka[1] - own_cka[0]], atol=6e-4)
    assert [row[4] for row in tab.table.rows] == sorted((row[4] for row in tab.table.rows), reverse=True)
    assert mossa_sections(base, tuned).summary()[:20] in tab.summary.value


def test_estimate_cluster_and_view_only_draw(own: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    panel = own()
    monkeypatch.delattr(options.ControlOptions, "compute")  # nothing may be computed
    tab, base = panel["tasks"], panel.result[0]
    panel.estimate = "biased"
    np.testing.assert_allclose(tab.chart.series[0].values, base.biased[:4])
    assert "(biased)" in tab.chart.figure.title.text
    assert "does not have this bias" in tab.summary.value
    panel.cluster = "facts"
    assert [series.tasks for series in tab.chart.series] == [["capital"], ["capital"]]
    assert "one cluster has too few" in tab.summary.value
    panel.cluster = options.UNSEEN
    assert tab.chart.series[0].tasks == ["second"]
    panel.cluster = ""
    panel.view = "B"
    assert [series.model for series in tab.chart.series] == [1]
    assert "Choose A beside B" in tab.summary.value
    assert instructions(panel.save(tmp_path / "page.html")) == []


def test_sections_are_shaded_where_they_are_clear() -> None:
    rng = np.random.default_rng(0)
    levels = np.repeat([0.0, 0.5, 0.2], [4, 3, 5]) + 0.02 * rng.normal(size=(10, 12))
    chart, layers = TaskBoxes(), list(range(1, 13))
    names = [f"t{i}" for i in range(10)]
    series = BoxSeries("B", names, layers, levels)
    sections = layer_sections(levels, layers=layers)
    chart.update([series], sections=sections)
    assert chart.shades.data["name"] == ["shared", "transition", "refinement"]
    assert (chart.shades.data["left"], chart.shades.data["right"]) == ([0.5, 4.5, 7.5], [4.5, 7.5, 12.5])
    assert len(chart.unsure.data["left"]) == 2
    chart.update([series], sections=layer_sections(rng.normal(size=(10, 12)), layers=layers))
    assert chart.shades.data["name"] == []
    chart.update([])
    assert chart.message == "Nothing compared yet: press Run."


def test_boxes_are_quartiles() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(30, 2))
    values[3, 1] = 40.0
    values[4, 0] = np.nan
    first, second = boxes_of(BoxSeries("A", [str(i) for i in range(30)], [5, 6], values))
    assert (first.layer, first.count) == (5, 29)
    np.testing.assert_allclose((first.q1, first.median, first.q3), np.nanquantile(values[:, 0], [0.25, 0.5, 0.75]))
    assert ("3", 40.0) in second.beyond
    inside = values[np.abs(values[:, 1]) < 30, 1]
    assert second.high == max(v for v in inside if v <= second.q3 + 1.5 * (second.q3 - second.q1))


def test_one_model_has_no_sections(own: Any) -> None:
    panel = own(demo_pair().base)
    assert panel["tasks"].sections() is None
    assert [column["label"] for column in panel["tasks"].table.columns][:3] == ["task", "cluster", "CKA"]
    scope = run_code(panel, tasks=TASKS, control_models={name: demo_pair().tuned for name in NAMES})
    np.testing.assert_allclose(scope["result"].cka, panel.result.cka, atol=1e-6)


# ---- control models tuned on demand


def test_control_models_are_tuned_on_demand(view: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(options, "STEPS", 2)
    panel = view(demo_pair().base, tasks=TASKS[:2])
    assert len(list((tmp_path / "interp_widgets" / "controls").iterdir())) == 2
    assert panel.result.tasks == NAMES[:2]
    assert (panel.result.cka < 1).all()
    scope: dict[str, Any] = {"tasks": TASKS[:2]}
    code = panel.current.code(panel.current.request()).replace(
        "tune_control_models(model, tasks)", "tune_control_models(model, tasks, steps=2)"
    )
    exec(code, scope)
    np.testing.assert_allclose(scope["result"].cka, panel.result.cka, atol=1e-5)


def test_a_large_model_is_compared_on_one_task_of_each_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "LARGE", 1_000)
    with opening(LayerSimilarityExplorer, wait=False) as build:
        panel = build(demo_pair().base, live_seconds=0.0, tab="layers")
        few, cost = panel["tasks"].request(), panel["tasks"].cost
        assert [task.cluster for task in few.inputs[1].read()] == list(CLUSTERS)
        assert [task.name for task in few.inputs[0].tasks] == [task.name for task in few.inputs[1].read()]
        assert "names=['plural'," in panel["tasks"].code(few)
        assert "steps=30" in panel["tasks"].code(few)
        assert {task.cluster for task in panel["projections"].request().inputs[0].read()} == set(CLUSTERS)
        panel.spread = "all"
        assert cost(few, panel.models[0]).flops < 0.1 * cost(panel["tasks"].request(), panel.models[0]).flops


def test_cancel_while_tuning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wire: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun = threading.Event()
    with opening(LayerSimilarityExplorer, wait=False) as build:
        panel = build(demo_pair().base, tasks=TASKS[2:4])
        tune = options.tune_control_models

        def slow(*args: Any, check: Any, **keywords: Any) -> Any:
            def looked() -> None:
                begun.set()
                check()

            return tune(*args, check=looked, **{**keywords, "steps": 10_000})

        monkeypatch.setattr(options, "tune_control_models", slow)
        panel.go()
        assert begun.wait(60)
        panel.cancel()
        assert panel.wait(60)
        assert panel.result is None
        assert panel.status.state == "cancelled"
        assert not (tmp_path / "interp_widgets" / "controls").exists() or not list(
            (tmp_path / "interp_widgets" / "controls").glob("[!.]*")
        )


def test_tasks_without_responses_need_control_models(view: Any) -> None:
    panel = view(demo_pair().base, tasks=[TaskTexts("a", TASKS[0].texts)])
    assert panel.status.error.startswith("task 'a' has no responses to tune a control model on")


@pytest.mark.parametrize(
    ("traits", "says"),
    [
        ({"tasks": "text"}, "tasks must be a list of TaskTexts, got 'text'"),
        ({"tasks": []}, "tasks must be a list of TaskTexts"),
        ({"control_models": [1]}, "control_models must be a mapping of task to model"),
    ],
)
def test_traits_of_another_kind(traits: Any, says: str) -> None:
    with pytest.raises(T.TraitError, match=says):
        LayerSimilarityExplorer(demo_pair().base, **traits)


def test_a_task_without_a_control(own: Any) -> None:
    panel = own(demo_pair().base, control_models={"plural": demo_pair().tuned})
    assert "controls must have a model for every task: there is none for 'capital'" in panel.status.error


# ---- the other tabs


def test_layers_of_two_models_and_of_one(own: Any) -> None:
    pair, texts = demo_pair(), [text for task in TASKS for text in task.texts]
    panel = own(tab="layers")
    tab = panel["layers"]
    for against, models in (("both", pair), ("A", (pair.base, pair.base)), ("B", (pair.tuned, pair.tuned))):
        panel.against = against
        settle(panel)
        expected = layer_similarity(*models, texts)
        np.testing.assert_allclose(panel.result.cka, expected.cka, atol=1e-6)
        np.testing.assert_allclose(tab.heat.matrix, expected.cka, atol=1e-6)
        assert tab.heat.row_name == f"layer of {'B' if against == 'B' else 'A'}"
        assert {f"{value:.2f}" for value in expected.cka.ravel() if np.isfinite(value)} <= set(drawn(tab.scene()))
        assert "Layer 0 does not vary" in tab.summary.value
        scope = run_code(panel, tasks=TASKS)
        np.testing.assert_allclose(scope["result"].cka, expected.cka, atol=1e-6)
    panel.estimate = "biased"
    np.testing.assert_allclose(tab.heat.matrix, expected.biased, atol=1e-6)
    panel.texts = ["The cat sat", "A dog ran away", "Paris is in France"]
    assert panel.hints == {"texts": "a comparison needs at least 4 different texts"}
    panel.texts = ["The cat sat", "A dog ran away", "Paris is in France", "He said"]
    settle(panel)
    assert panel.result.texts == 4
    assert np.isfinite(panel.result.cka).all()


def test_projections_follow_the_layer(own: Any) -> None:
    panel = own(tab="projections")
    tab = panel["projections"]
    expected = layer_projections(demo_pair().tuned, TASKS)
    panel.at_layer = 5
    np.testing.assert_allclose(tab.charts[1].source.data["x"], expected.xy[4, :, 0], atol=1e-3)
    assert tab.charts[1].source.data["task"] == list(expected.task)
    assert set(tab.charts[1].source.data["group"]) == {"word forms", "facts", "reasoning", "writing", "unseen"}
    assert "layer 5" in tab.charts[0].figure.title.text
    panel.method = "tsne"
    settle(panel)
    assert panel.result[0].method == "tsne"


def test_dimensions_and_correlations_take_the_same_answer(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = own()
    found = panel.result
    monkeypatch.delattr(options.ControlOptions, "compute")  # nothing may be computed
    for tab in ("dimensions", "texts"):
        panel.tab = tab
        settle(panel)
        assert panel.status.error == ""
        assert panel.result[0] is found[0]
    lines = panel["dimensions"].chart.lines
    np.testing.assert_allclose(lines[1].values[1:], found[1].dimensions.mean(axis=0))
    assert np.isnan(lines[1].values[0])
    expected = task_correlations(found[1])
    line = panel["texts"].charts["coleman_liau"].lines[1]
    np.testing.assert_allclose(line.values[1:], expected.r[1])
    np.testing.assert_allclose(line.low[1:], expected.low[1])
    assert panel["texts"].charts["coleman_liau"].figure.x_range.start == 0.6, "no layer 0, which has no number"
    assert panel["texts"].charts["texts"].message == "All tasks have the same number of texts."


def test_too_few_tasks_for_a_correlation(own: Any) -> None:
    panel = own(tasks=TASKS[:3], tab="texts")
    assert "a correlation over tasks needs at least 4 of them, got 3" in panel.status.error


def test_a_model_of_ones_own_opens_on_its_layers(view: Any) -> None:
    """Control models for each of the demo's tasks would take hours."""
    assert view(tiny_model("gpt2")).tab == "layers"
    assert view(tiny_model("gpt2"), tab="tasks").tab == "tasks"


@pytest.mark.parametrize("tab", ["tasks", "layers", "projections", "dimensions", "texts"])
def test_every_format_is_saved(tab: str, own: Any, tmp_path: Path) -> None:
    panel = own(tab=tab)
    for shown in ("A", "beside"):
        panel.view = shown
        for suffix in (".csv", ".svg", ".html", ".npz"):
            assert panel.save(tmp_path / f"{tab}-{shown}{suffix}").stat().st_size > 100
    if tab == "tasks":
        again = Results.load(tmp_path / "tasks-beside.npz")
        assert again.names == ("A", "B", "sections")
        assert again["B"].equals(panel.result[1])


def test_on_a_workbench(own: Any) -> None:
    bench = Workbench(demo_pair())
    panel = own(bench)
    assert panel.result is not None
    bench.close()
