"""The attention explorer without a browser: thumbnails, one head's pattern, tokens, scores, links and bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp_widgets import (
    AttentionExplorer,
    AttentionPatterns,
    HeadScores,
    Workbench,
    ablation_null,
    attention_in_texts,
    attention_patterns,
    attention_reasons,
    demo_texts,
    head_measures,
    head_scores,
    head_word_pairs,
    head_writes,
    load_circuit,
    weights_against_text,
    words_read,
)
from interp_widgets.analysis.attention.standing_out import standing_out
from interp_widgets.compute.cache import results as cache
from interp_widgets.data.presets import PRESETS, preset
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.labels import fixed
from interp_widgets.widgets.attention import patterns
from interp_widgets.widgets.attention.known_heads import SCORES
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.waiting import LIMIT
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import complaint

pytestmark = pytest.mark.slow

PROMPT = PRESETS[0].prompt
SMALL: dict[str, Any] = {"length": 10, "sequences": 3}


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def attend(wire: Any) -> Iterator[Callable[..., AttentionExplorer]]:
    """Opens panels; afterwards every comm and worker they opened must be gone."""
    BokehSource.shared()  # one for all figures of a kernel, which stays
    before = wire.open()
    with opening(AttentionExplorer) as build:
        yield build
    assert wire.open() == before


def drawn(panel: AttentionExplorer, part: str) -> list[Any]:
    """The views of a part of the patterns that are on the screen."""
    return [view for _, view in getattr(panel["patterns"], part).drawn()]


# ---- patterns


def test_opens_with_all_heads_and_the_pattern_of_one(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, layer=3, head=1)
    expected = attention_patterns(pair.base, PROMPT)
    assert isinstance(panel.result, AttentionPatterns)
    np.testing.assert_allclose(panel.result.patterns, expected.patterns, atol=1e-6)
    (grid,), (heat,), (strip,) = (drawn(panel, part) for part in ("grids", "maps", "strips"))
    seen = np.tril(np.ones((10, 10), dtype=bool))
    assert (grid.count, grid.columns, grid.selected) == (36, 6, 19)
    np.testing.assert_allclose(grid.tiles[19][seen], expected.pattern(3, 1)[seen], atol=0.003)
    np.testing.assert_allclose(heat.matrix[seen], expected.pattern(3, 1)[seen], atol=1e-6)
    assert np.isnan(heat.matrix[~seen]).all()
    assert heat.row_labels == heat.column_labels == list(expected.tokens)
    assert (heat.vmin, heat.vmax) == (0, 1)
    assert strip.tokens == list(expected.tokens)
    assert strip.selected == 9
    share = expected.first_token[3, 1]
    assert f"<b>{share:.0%}</b>" in panel["patterns"].about.value
    assert "equal attention to all tokens would pay it 21%" in panel["patterns"].about.value


def test_a_cancelled_run_keeps_the_first_layers(pair: Any, attend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.analysis.attention.patterns._LARGE", 1)
    monkeypatch.setattr("interp_widgets.analysis.attention.patterns._PARTS", 2)
    panel = attend(pair.base, layer=3, head=1)
    of_heads, entered = panel["patterns"], threading.Event()
    compute = of_heads.compute

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        def then_wait(part: Any) -> None:
            on_partial(part)
            entered.set()
            while True:
                check()

        return compute(request, model, progress=progress, check=check, on_partial=then_wait)

    whole = panel.result
    monkeypatch.setattr(of_heads, "compute", endless)
    cache.clear()
    panel.go()
    assert entered.wait(120)
    panel.cancel()
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert panel.result.partial
    (grid,), (heat,), (strip,) = (drawn(panel, part) for part in ("grids", "maps", "strips"))
    assert (grid.count, grid.selected) == (18, -1)
    assert "the first layers so far" in grid.title
    assert heat.matrix.size == 0
    assert heat.empty == "Head 3.1 is not computed yet"
    assert of_heads.describe_selection() is None
    panel.layer = 1
    seen = np.tril(np.ones((10, 10), dtype=bool))
    np.testing.assert_allclose(heat.matrix[seen], whole.pattern(1, 1)[seen], atol=1e-6)
    assert grid.names[grid.selected] == "head 1.1"
    assert strip.arcs


def test_opens_on_the_head_of_a_known_circuit(attend: Any) -> None:
    circuit, _ = load_circuit("induction")  # head 1.1 is the induction head, head 0.0 the previous-token head
    panel = attend(circuit, prompt="beta eta psi rho mu beta eta psi rho mu")
    (grid,), (heat,) = (drawn(panel, part) for part in ("grids", "maps"))
    assert (panel.layer, panel.head, grid.names[grid.selected]) == (1, 1, "head 1.1")
    assert heat.title.endswith("attends most to the token after an earlier occurrence of the same one")
    assert "Opened on head 1.1: of all heads it attends most" in panel["patterns"].about.value
    panel.head = 2  # another head is not what it opened on
    assert "attends most" not in heat.title + panel["patterns"].about.value
    assert (attend(circuit, prompt="beta eta psi rho mu beta eta psi rho mu").head, panel.head) == (1, 2)


@pytest.mark.parametrize(
    ("options", "expected"), [({"layer": 0, "head": 3}, (0, 3)), ({"layer": 0}, (0, 0)), ({"head": 2}, (1, 2))]
)
def test_a_head_that_was_chosen_stays(attend: Any, options: Any, expected: tuple[int, int]) -> None:
    circuit, _ = load_circuit("induction")
    panel = attend(circuit, prompt="beta eta psi rho mu beta eta psi rho mu", **options)
    assert (panel.layer, panel.head) == expected
    for among in ("of all heads",) if len(options) < 2 else ("Opened on",):
        assert among not in panel["patterns"].about.value


def test_the_head_it_opens_on_moves_no_row_of_another_panel(pair: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT)
    try:
        screen = bench.screen
        screen.show("logit_lens", "attention")
        assert screen.wait(120)
        opened = screen["attention"].layer
        assert opened > 0
        assert bench.chosen & {"layer", "head"} == set()
        assert screen["decomposition"].wait(120)
        assert [screen["logit_lens"].lens_layer, screen["decomposition"].column] == [-1, -1]
        screen["attention"].layer = opened - 1
        assert screen["logit_lens"].lens_layer == opened - 1, "a choice does"
    finally:
        bench.close()


def test_a_head_is_removed_compared_and_patched_in_one_click(pair: Any, wire: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT)
    try:
        screen = bench.screen
        screen.show("attention")
        assert screen.wait(120)
        bench.select(layer=2, head=1)
        steps = screen.selected.steps
        wire.click(steps["patching"])
        assert screen.wait(120)
        assert (screen["patching"].tab, screen["patching"].layer, screen["patching"].head) == ("heads", 2, 1)
        wire.click(steps["attention"])
        assert screen.wait(120)
        assert screen["attention"].tab == "needed"
        assert screen["attention"].result.parts == ("head 2.1",)
    finally:
        bench.close()


def test_a_session_keeps_its_head(pair: Any, tmp_path: Path) -> None:
    bench = Workbench(pair.base, prompt=PROMPT)
    again = None
    try:
        screen = bench.screen
        screen.show("attention")
        assert screen.wait(120)
        first = standing_out(attention_patterns(pair.base, [*screen["attention"].result.ids]))
        assert first is not None
        assert (bench.layer, bench.head) == (first.layer, first.head)
        bench.select(layer=0, head=0)
        bench.save(tmp_path / "a.npz")
        again = Workbench.load(tmp_path / "a.npz", pair.base)
        assert again.screen.wait(120)
        assert (again.screen["attention"].layer, again.screen["attention"].head) == (0, 0)
    finally:
        for one in (bench, again):
            if one is not None:
                one.close()


def test_a_head_a_cell_and_a_token_are_selected(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(pair.base)
    (grid,), (heat,), (strip,) = (drawn(panel, part) for part in ("grids", "maps", "strips"))
    wire.type(grid, selected=20)
    assert (panel.layer, panel.head) == (3, 2)
    assert heat.title == "Head 3.2, query × key"
    wire.type(grid, selected=-1)
    assert grid.selected == 20, "one head is always selected"
    wire.type(heat, pinned=[4, 2], cross=[4, 2])
    assert (panel.position, panel.attended, strip.selected) == (3, 2, 4)
    result = panel.result
    row = np.frombuffer(strip.values, "<f4")
    np.testing.assert_allclose(row[:5], result.pattern(3, 2)[4, :5], atol=1e-6)
    assert np.isnan(row[5:]).all()
    order = np.argsort(-row[:5], kind="stable")
    kept = [int(key) for key in order if row[key] > 0.05 * row[order[0]]]
    assert [(int(query), int(key)) for query, key, _ in strip.arcs] == [(4, key) for key in kept]
    np.testing.assert_allclose([share for *_, share in strip.arcs], row[kept] / row.max(initial=0, where=row > 0), 1e-5)
    wire.type(strip, selected=6)
    assert panel.position == panel.prompt_token == 5
    assert heat.cross[0] == 6
    wire.type(strip, selected=0)
    assert panel.position == -1
    wire.type(heat, pinned=[])
    assert panel.attended == -1


def test_without_the_sink_and_weighted_say_so(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, layer=4, head=1, without_sink=True)
    (grid,), (heat,) = drawn(panel, "grids"), drawn(panel, "maps")
    expected = panel.result.pattern(4, 1, without_sink=True)
    np.testing.assert_allclose(
        heat.matrix[1:][np.tril_indices(9, k=1)], expected[1:][np.tril_indices(9, k=1)], atol=1e-6
    )
    assert np.isnan(heat.matrix[0]).all()
    assert "rows renormalised over the other keys" in heat.title
    assert "rows renormalised over the other keys" in grid.title
    panel.without_sink, panel.weighted = False, True
    expected = panel.result.pattern(4, 1, weighted=True)
    seen = np.tril(np.ones((10, 10), dtype=bool))
    np.testing.assert_allclose(heat.matrix[seen], expected[seen], rtol=1e-5)
    assert "weighted by the norm of the value moved" in heat.title
    assert heat.value_label == "attention × value norm"
    assert "pattern(4, 1, weighted=True)" in panel.current.code(panel.current.request())


def test_heads_sorted_by_a_score(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, sort="previous_token")
    (grid,) = drawn(panel, "grids")
    scores = head_scores(pair.base)
    best = [f"head {layer}.{head}" for layer, head in scores.top("previous_token", 5)]
    assert grid.names[:5] == best
    assert grid.captions[0] == best[0].removeprefix("head ")
    assert "by previous token score" in grid.title
    assert grid.notes[0].startswith("previous token score 0.")
    assert "control" in grid.notes[0]
    assert grid.names[grid.selected] == f"head {panel.layer}.{panel.head}"
    for name, unit in (("direct_attribution", "logit"), ("ablation_effect", "nats")):
        panel.sort = name
        panel.wait()
        values = head_measures(pair.base, PROMPT, measures=name).of(name)
        assert grid.names == [f"head {at // 6}.{at % 6}" for at in np.argsort(-values, axis=None, kind="stable")]
        assert (unit in grid.notes[0], "control" in grid.notes[0]) == (True, False)
    panel.target = " dog"
    panel.wait()
    values = head_measures(pair.base, PROMPT, " dog", measures=name).of(name)
    assert grid.names == [f"head {at // 6}.{at % 6}" for at in np.argsort(-values, axis=None, kind="stable")]
    panel.sort = "layer"
    assert grid.names[:2] == ["head 0.0", "head 0.1"]
    assert grid.captions == []


def test_two_models_and_their_difference(pair: Any, attend: Any) -> None:
    panel = attend(pair, layer=3, head=0, view="difference")
    (grid,), (heat,) = drawn(panel, "grids"), drawn(panel, "maps")
    a, b = (result.pattern(3, 0) for result in panel.result)
    seen = np.tril(np.ones((10, 10), dtype=bool))
    np.testing.assert_allclose(heat.matrix[seen], (b - a)[seen], atol=1e-6)
    assert heat.vmin == -heat.vmax
    assert grid.vmin == -grid.vmax
    assert heat.title.startswith("B − A · ")
    panel.view = "beside"
    assert [heat.title[:4] for heat in drawn(panel, "maps")] == ["A · ", "B · "]
    assert panel["patterns"].about.value.count("equal attention") == 2


def test_the_cursors_of_two_models_move_together(pair: Any, attend: Any) -> None:
    panel = attend(pair, view="beside")
    a, b = drawn(panel, "maps")
    b.set_state({"cross": [4, 2]})
    assert a.cross == [4, 2]
    a.set_state({"pinned": [5, 3]})
    assert a.pinned == b.pinned == [5, 3]
    b.set_state({"pinned": [2, 6]})
    assert (panel.position, panel.attended) == (1, -1), "no head sees a later key"


def test_a_long_prompt_is_drawn_in_blocks(pair: Any, attend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (patterns, __import__("interp_widgets.figures.attention", fromlist=[""])):
        monkeypatch.setattr(module, "MOST_CELLS", 20)
    panel = attend(pair.base, prompt=" ".join(["The cat sat on the mat."] * 10), layer=2, head=3)
    (heat,) = drawn(panel, "maps")
    n = len(panel.result.tokens)
    side = -(-n // 20)
    assert side > 1
    assert heat.shape[0] == -(-n // side) <= 20
    assert f"each cell is the largest of {side} × {side} tokens" in heat.title
    pattern = panel.result.pattern(2, 3)
    assert heat.matrix[-1, 0] == pytest.approx(pattern[(n - 1) // side * side :, :side].max(), abs=1e-6)
    heat.set_state({"pinned": [5, 2]})
    assert (panel.position + 1, panel.attended) == (5 * side, 2 * side)


def test_the_table_is_of_the_selected_head(pair: Any, attend: Any, tmp_path: Path) -> None:
    panel = attend(pair.base, layer=5, head=2)
    table = pd.read_csv(panel.save(tmp_path / "head.csv"))
    assert set(table["layer"]) == {5}
    assert set(table["head"]) == {2}
    assert len(table) == 100
    again = AttentionPatterns.load(panel.save(tmp_path / "all.npz"))
    assert again.patterns.shape == (6, 6, 10, 10)


# ---- what a head writes


def test_the_words_a_head_writes_are_what_the_function_gives(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(*pair, tab="writes", layer=3, head=1, ends=4, view="beside")
    part = panel["writes"]
    for model, table, result in zip(pair, (view for _, view in part.tables.drawn()), panel.result, strict=True):
        expected = head_writes(model, PROMPT, 3, 1, top=4)
        assert result.raised_ids == expected.raised_ids
        assert [row[0].replace("·", " ") for row in table.rows] == list(expected.raised_tokens)
        np.testing.assert_allclose([-row[3] for row in table.rows], expected.lowered, atol=1e-5)
    assert "Direct effect only" in part.about.value
    assert "At “·of” (9) head 3.1 raises" in part.about.value
    assert "head_writes(base, prompt, layer=3, head=1, top=4)" in part.code(part.request())
    wire.type(part.strip, selected=4)
    settle(panel)
    assert (panel.position, part.strip.selected, panel.result[0].position) == (3, 4, 4)
    assert panel.result[0].raised_ids == head_writes(pair.base, PROMPT, 3, 1, position=4, top=4).raised_ids
    wire.type(part.strip, selected=-1)
    settle(panel)
    assert (panel.position, panel.result[0].position) == (-1, 9)
    assert part.describe_selection().heading == "Head 3.1 writes"


# ---- heads of a known kind


@pytest.mark.parametrize("score", SCORES)
def test_find_lists_the_highest_scores_with_interval_and_control(pair: Any, attend: Any, score: Any) -> None:
    panel = attend(pair.base, tab="find", score=score, **SMALL)
    expected = head_scores(pair.base, length=10, sequences=3)
    assert isinstance(panel.result, HeadScores)
    part = panel["find"]
    np.testing.assert_allclose(part.maps.views[0].matrix, getattr(expected, score), atol=1e-6)
    for row, (layer, head) in zip(part.table.rows, expected.top(score, 10), strict=True):
        low, high = expected.interval(score)[:, layer, head]
        assert row[0] == f"{layer}.{head}"
        assert row[1] == pytest.approx(getattr(expected, score)[layer, head], abs=1e-6)
        assert row[2] == f"{low:.3f} to {high:.3f}"
        assert row[3] == pytest.approx(expected.control(score)[layer, head], abs=1e-6)
    assert "Equal attention to all tokens would score" in part.about.value


def test_find_opens_on_the_score_of_the_strongest_head(pair: Any, attend: Any) -> None:
    panel = attend(pair, tab="find", **SMALL)
    assert (panel.score, panel["find"].table.caption) == ("previous_token", "Highest previous token scores")
    panel.score = "induction"
    panel.length = 12
    settle(panel)
    assert panel.score == "induction", "what was chosen stays"
    circuit, truth = load_circuit("induction")
    assert attend(circuit, prompt=truth.cases[0].prompt, tab="find").score == "induction"


def test_a_found_head_is_selected_in_the_patterns(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(pair.base, tab="find", score="induction", **SMALL)
    assert (panel.prompt, panel.target) == (preset("knowledge").prompt, preset("knowledge").target)
    part = panel["find"]
    wire.type(part.table, selected=2)
    layer, head = panel.result.top("induction", 3)[2]
    assert (panel.layer, panel.head) == (layer, head)
    assert part.maps.views[0].pinned == [layer, head]
    wire.type(part.maps.views[0], pinned=[1, 4])
    assert (panel.layer, panel.head) == (1, 4)
    panel.tab = "patterns"
    settle(panel)
    assert drawn(panel, "grids")[0].selected == 10


def test_two_models_differ_most_at_the_top(pair: Any, attend: Any) -> None:
    panel = attend(pair, tab="find", view="difference", score="induction", **SMALL)
    part = panel["find"]
    a, b = (result.induction for result in panel.result)
    layer, head = divmod(int(np.abs(b - a).argmax()), 6)
    assert part.table.rows[0][0] == f"{layer}.{head}"
    assert part.table.caption == "Largest differences, B − A"
    assert len(part.table.columns) == 7


# ---- why here, and is it needed


def test_the_reasons_of_a_score_add_up_to_it(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(pair.base, layer=3, head=0, tab="why")
    key = int(attention_patterns(pair.base, PROMPT).pattern(3, 0)[-1].argmax())
    expected = attention_reasons(pair.base, PROMPT, 3, 0, -1, key)
    part = panel["why"]
    (heat,) = (view for _, view in part.maps.drawn())
    np.testing.assert_allclose(heat.matrix, expected.parts, atol=1e-4)
    assert heat.matrix.sum() + expected.position_bias == pytest.approx(expected.score, abs=1e-3)
    assert heat.row_labels == list(expected.query_sources)
    assert "where equal attention would be 10%" in part.about.value
    wire.type(part.key_strips.views[0], selected=2)
    settle(panel)
    assert (panel.attended, panel.result.key) == (2, 2)
    wire.type(part.query_strips.views[0], selected=1)
    settle(panel)
    assert (panel.position, panel.attended, panel.result.query) == (0, -1, 1), "a key after the query is forgotten"
    wire.type(part.key_strips.views[0], selected=5)
    assert "comes after the query, which does not see it" in complaint(panel)
    assert part.key_strips.views[0].selected == panel.result.key
    names = np.frombuffer(part.query_strips.views[0].values, "<f4")
    np.testing.assert_allclose(names[:2], panel.result.parts.sum(1)[:-1], atol=1e-5)


def test_reasons_of_two_models_on_different_keys_have_no_difference(pair: Any, attend: Any) -> None:
    panel = attend(pair, layer=3, head=1, tab="why", view="difference")
    a, b = panel.result
    (heat,) = (view for _, view in panel["why"].maps.drawn())
    if a.parts.shape == b.parts.shape:
        np.testing.assert_allclose(heat.matrix, b.parts - a.parts, atol=1e-4)
    else:
        assert "same query and key" in heat.empty
    panel.attended = 1
    settle(panel)
    a, b = panel.result
    np.testing.assert_allclose(heat.matrix, b.parts - a.parts, atol=1e-4)


@pytest.mark.parametrize("matched", ["layer", "model"])
def test_removing_a_head_stands_beside_removing_others(pair: Any, attend: Any, matched: Any) -> None:
    panel = attend(pair.base, layer=2, head=3, tab="needed", matched=matched)
    expected = ablation_null(pair.base, PROMPT, [(2, 3)], PRESETS[0].target, matched=matched)
    part = panel["needed"]
    (heat,) = (view for _, view in part.maps.drawn())
    effects = np.array([expected.effect, *expected.null])
    np.testing.assert_allclose(heat.matrix[0], np.sort(effects)[::-1], atol=1e-5)
    assert heat.column_labels[heat.pinned[1]] == "2.3"
    assert f"p = {expected.p:.2g}" in part.about.value
    assert ("not beyond chance" in part.about.value) == (expected.p > 0.05)
    assert ("p cannot be below 0.17" in part.about.value) == (matched == "layer")
    panel.head = 1
    settle(panel)
    assert panel.result.parts == ("head 2.1",)


def test_heads_are_compared_by_two_measures(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(pair.base, tab="compare")
    part = panel["compare"]
    measures = ("previous_token", "ablation_effect")
    expected = head_measures(pair.base, PROMPT, PRESETS[0].target, measures=measures)
    (chart,) = part.charts
    np.testing.assert_allclose(chart.source.data["x"], expected.of("previous_token").ravel(), atol=1e-5)
    np.testing.assert_allclose(chart.source.data["y"], expected.of("ablation_effect").ravel(), atol=1e-5)
    rho, p = expected.correlation(*measures)
    assert f"<b>{fixed(rho, 2, '+')}</b>, p = {p:.2g}, <b>{'not ' * (p > 0.05)}beyond chance</b>" in part.about.value
    best = np.unravel_index(expected.of("ablation_effect").argmax(), expected.values[0].shape)
    assert part.table.rows[0][0] == "{}.{}".format(*best)
    chart.source.selected.indices = [15]
    assert (panel.layer, panel.head) == (2, 3)
    assert chart.picked.data["x"] == [chart.source.data["x"][15]]
    wire.type(part.table, selected=0)
    assert (panel.layer, panel.head) == best
    panel.y_measure = "previous_token"
    assert "both axes show the same measure" in settle(panel).hints["y_measure"]
    panel.x_measure = "induction"
    settle(panel)
    assert panel.result.names == ("induction", "previous_token")
    assert part.scene().height > 0
    panel.length = 400
    assert "length must be at most" in settle(panel).hints["length"]
    panel.x_measure, panel.y_measure = "direct_attribution", "ablation_effect"
    assert not settle(panel).hints, "no measure is a score on random tokens"
    assert panel.result.names == ("direct_attribution", "ablation_effect")
    p = np.asarray(panel.result.p).ravel()
    (chart,) = part.charts
    assert [shade == QUIET for shade in chart.source.data["color"]] == (p > 0.05).tolist()
    assert f"<br>{int((p <= 0.05).sum())} of 36 heads" in part.about.value
    assert "the others are grey" in part.about.value


def test_heads_compared_so_far_are_drawn_and_kept_on_cancel(pair: Any, attend: Any, monkeypatch: Any) -> None:
    panel = attend(pair.base, tab="compare", x_measure="direct_attribution")
    tab, values = panel["compare"], np.array(panel.result.values)
    values[1, :, 2:] = np.nan
    part = replace(panel.result, values=values, partial=True, strongest_first=True)
    entered = threading.Event()

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        on_partial(part)
        entered.set()
        while True:
            check()

    monkeypatch.setattr(tab, "compute", endless)
    panel.target = " London"
    panel.go()
    assert entered.wait(LIMIT)
    panel.cancel()
    assert panel.wait(LIMIT)
    assert panel.status.state == "cancelled"
    assert panel.result is part
    (chart,) = tab.charts
    assert np.isfinite(chart.source.data["y"]).tolist() == np.isfinite(values[1]).ravel().tolist()
    assert "<b>12 of 36</b> heads so far, the strongest expected first." in tab.about.value
    assert "correlation" not in tab.about.value
    assert tab.table.caption.endswith("so far")
    assert all(None not in row for row in tab.table.rows)
    with panel.batch_changes():
        panel.layer, panel.head = 0, 5
    assert tab.table.selected == -1
    assert tab.scene().height > 0


def test_every_tab_opens_on_a_model_of_few_words(attend: Any) -> None:
    model, truth = load_circuit("induction")
    for tab in ("patterns", "find", "compare", "why", "needed"):
        panel = attend(model, prompt=truth.cases[0].prompt, tab=tab)
        assert panel.status.state == "done", (tab, panel.status.error)
    for tab, field, sentence in (
        ("words", "word_list", "can write none of these 1,674 words"),
        ("texts", "sample_texts", "the vocabulary has no words for the demo's texts"),
    ):
        assert sentence in settle(attend(model, prompt=truth.cases[0].prompt, tab=tab)).hints[field]


def test_forecasts_grow_with_what_is_asked(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, **SMALL)
    for tab in ("patterns", "why", "needed"):
        panel.tab, panel.prompt = tab, PROMPT
        settle(panel)
        part, (model,) = panel[tab], panel.models
        short = part.cost(part.request(), model)
        panel.prompt = PROMPT * 3
        settle(panel)
        long = part.cost(part.request(), model)
        assert long.flops > 2 * short.flops, tab
        assert long.bytes > short.bytes > 0, tab


# ---- links and bad input


def test_layer_head_and_token_are_the_workbench_s(pair: Any, attend: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT)
    panel = attend(bench)
    bench.select(layer=2, head=5, prompt_token=3)
    assert (panel.layer, panel.head, panel.position) == (2, 5, 3)
    assert drawn(panel, "grids")[0].selected == 17
    panel.head = 1
    assert bench.head == 1


def test_on_the_screen_it_shades_the_prompt_and_describes_the_head(pair: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT, layer=3, head=0)
    try:
        screen = bench.screen
        screen.show("attention")
        assert screen.wait(120)
        strip = screen.texts.prompt_strip
        assert strip.label == "Prompt: attention of ‘·of’ in head 3.0"
        values = np.frombuffer(strip.values, "<f4")
        np.testing.assert_allclose(values, screen["attention"].result.pattern(3, 0)[-1, 1:], atol=1e-6)
        assert "Attention of head 3.0" in screen.selected.text.value
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"position": 99}, "position must be in 0..8 for the tokens that the model has read, got 99"),
        ({"attended": 99}, "attended must be in 0..9 for the tokens that the model has read with its BOS, got 99"),
        (
            {"tab": "why", "position": 1, "attended": 5},
            "attended, the key, must not come after the query, which is at 2, got 5",
        ),
        ({"tab": "find", "length": 400}, "length must be at most 255, half of the 512 tokens"),
    ],
)
def test_bad_input_is_one_sentence(pair: Any, attend: Any, options: Any, message: str) -> None:
    panel = attend(pair.base, **options)
    assert message in complaint(panel)


def test_a_head_that_does_not_exist_is_refused(pair: Any, attend: Any) -> None:
    with pytest.raises(Exception, match=r"head must be in 0\.\.5 for demo-base, got 6"):
        attend(pair.base, head=6)


def test_a_model_of_few_positions_gets_shorter_sequences(attend: Any) -> None:
    model = tiny_model("gpt2")
    panel = attend(model, tab="find", prompt="a b c")
    assert panel.status.state == "done", panel.status.error
    assert panel.result.length <= model.n_ctx // 2


# ---- words and texts

TEXTS = [
    "The capital of France is Paris and the capital of Italy is Rome.",
    "Mary gave the key to John.",
    "One day, Mary found a key near the river.",
]


def test_words_stand_beside_the_attention_that_they_pay(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(pair.base, layer=4, head=0, tab="words", text_count=40)
    pairs = head_word_pairs(pair.base, words=words_read(pair.base), layers=[4], keep=1000)
    expected = weights_against_text(pair.base, [PROMPT, *demo_texts(40)], pairs)
    part, reading = panel["words"], panel.result
    np.testing.assert_array_equal(reading.found.control, expected.control)
    (table,), (heat,) = ([view for _, view in views.drawn()] for views in (part.tables, part.maps))
    assert {row[0] for row in table.rows} <= {f"{pair.query} → {pair.key}" for pair in pairs.pairs(4, 0)}
    assert table.caption.endswith(f"{len(table.rows)} of {len(pairs.pairs(4, 0)):,}")
    occurring = [row for row in table.rows if row[2]]
    assert [row[3] for row in occurring] == [pair.attention for pair in expected.pairs(4, 0)]
    assert table.rows[: len(occurring)] == occurring, "those that occur come first"
    assert [row[3:6] for row in table.rows[len(occurring) :]] == [[None] * 3] * 50
    known = np.isfinite(expected.interval[0, 0])
    np.testing.assert_allclose(heat.matrix[0], np.where(known, expected.auc[0], np.nan), atol=1e-6)
    assert known.any()
    assert ("★" in heat.column_labels[0]) == expected.beyond_chance(4, 0)
    assert "<b>not beyond chance</b>" in part.about.value or not expected.in_words(4, 0).endswith("chance")
    assert (heat.notes, part.describe_selection().sentences) == ([], ()), "the panel says its sentence once"
    other = int(np.nanargmax(expected.auc[0]))
    wire.type(heat, pinned=[0, other])
    settle(panel)
    assert panel.head == other
    assert table.caption.startswith(f"Word pairs of head 4.{other} ")
    assert f"AUC {expected.auc[0, other]:.2f}" in part.about.value


def test_beyond_chance_is_said_where_the_interval_says_so(pair: Any, attend: Any, monkeypatch: Any) -> None:
    panel = attend(pair.base, layer=4, head=0, tab="words", text_count=40)
    found = panel.result.found
    for verdict in (True, False):
        monkeypatch.setattr(type(found), "beyond_chance", lambda *_, verdict=verdict: verdict)
        panel["words"].draw_selection()
        assert ("<b>beyond chance</b>" in panel["words"].about.value) == verdict


def test_own_words_and_texts_in_which_nothing_occurs(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, layer=0, head=1, tab="words", words=["dog", "cat", "key", "river"], sample_texts=TEXTS)
    assert panel.status.state == "done", panel.status.error
    assert "so there is no AUC" in panel["words"].about.value
    assert panel.result.found.n_texts == 4


@pytest.mark.parametrize("two", [False, True])
def test_copied_code_of_words_and_texts_repeats_them(pair: Any, attend: Any, two: bool) -> None:
    panel = attend(pair if two else pair.base, layer=3, head=2, tab="words", sample_texts=TEXTS)
    for tab in ("words", "texts"):
        panel.tab = tab
        settle(panel)
        part = panel[tab]
        namespace: dict[str, Any] = {}
        exec(part.code(part.request()), namespace)
        results = panel.result if two else (panel.result,)
        for end, result in zip(("_a", "_b") if two else ("",), results, strict=True):
            if tab == "words":
                np.testing.assert_array_equal(namespace[f"found{end}"].auc, result.found.auc)
            else:
                np.testing.assert_array_equal(namespace[f"result{end}"].keys, result.keys)


def test_the_strongest_attention_and_some_of_every_tenth(pair: Any, attend: Any, wire: Any) -> None:
    panel = attend(pair.base, layer=3, head=1, tab="texts", text_count=40, per_decile=2)
    part, expected = panel["texts"], attention_in_texts(pair.base, demo_texts(40), layer=3)
    (table,) = (view for _, view in part.tables.drawn())
    listed = [*expected.top(1, 5), *expected.sample(1, 2)]
    assert [row[1] for row in table.rows] == [event.attention for event in listed]
    assert [row[0] for row in table.rows] == ["strongest"] * 5 + [f"tenth {event.decile}" for event in listed[5:]]
    panel.head = 4
    settle(panel)
    assert table.rows[0][1] == expected.top(4, 1)[0].attention
    panel.per_decile = 1
    assert len(table.rows) == 15
    event = expected.top(4, 2)[1]
    wire.type(table, selected=1)
    settle(panel)
    assert (panel.prompt, panel.prompt_token) == (demo_texts(40)[event.text], event.query)
    assert f"Text {event.text} is now the prompt" in part.opened.value
    panel.tab = "patterns"
    settle(panel)
    assert panel.position == event.query
    assert panel.result.tokens[1:] == expected.text_tokens(event.text)


def test_texts_of_two_models(pair: Any, attend: Any) -> None:
    panel = attend(pair, tab="texts", view="beside", layer=3, head=1, sample_texts=TEXTS)
    tables = [table for _, table in panel["texts"].tables.drawn()]
    for table, model in zip(tables, (pair.base, pair.tuned), strict=True):
        assert table.rows[0][1] == attention_in_texts(model, TEXTS, layer=3).top(1, 1)[0].attention
    assert [table.caption[:4] for table in tables] == ["A · ", "B · "]


def test_forecasts_of_words_and_texts_grow(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, layer=1, tab="words", sample_texts=TEXTS)
    for tab in ("words", "texts"):
        panel.tab = tab
        costs = []
        for texts in (TEXTS, TEXTS * 10):
            panel.sample_texts = texts
            settle(panel)
            costs.append(panel[tab].cost(panel[tab].request(), pair.base))
        assert costs[1].flops > 1.5 * costs[0].flops > 0, tab


@pytest.mark.parametrize("tab", ["words", "texts"])
def test_a_text_that_is_too_long_is_a_hint(pair: Any, attend: Any, tab: str) -> None:
    panel = attend(pair.base, tab=tab, sample_texts=["The dog", "dog " * 600])
    assert "the text number 1 has 602 tokens and the model reads 512" in panel.hints["sample_texts"]


def test_words_need_a_prompt_but_texts_do_not(pair: Any, attend: Any) -> None:
    panel = attend(pair.base, prompt="", tab="texts", sample_texts=TEXTS)
    assert panel.status.state == "done", panel.status.error
    panel.tab = "words"
    assert "the prompt is empty" in complaint(panel)


@pytest.mark.parametrize("tab", ["words", "texts"])
def test_a_session_keeps_words_and_texts(pair: Any, tmp_path: Path, tab: str) -> None:
    bench, again = Workbench(pair.base, prompt=PROMPT, layer=3, head=1), None
    try:
        screen = bench.screen
        screen.show("attention")
        screen["attention"].open_tab(tab, sample_texts=TEXTS)
        assert screen.wait(120)
        before = screen["attention"].result
        bench.save(tmp_path / "a.npz")
        again = Workbench.load(tmp_path / "a.npz", pair.base)
        assert again.screen.wait(120)
        panel = again.screen["attention"]
        assert (panel.tab, panel.layer, panel.head, panel.sample_texts) == (tab, 3, 1, TEXTS)
        same = (lambda x: x.found.auc) if tab == "words" else (lambda x: x.attention)
        np.testing.assert_array_equal(same(panel.result), same(before))
    finally:
        for one in (bench, again):
            if one is not None:
                one.close()


@pytest.mark.parametrize("tab", ["words", "texts"])
def test_words_and_texts_are_saved(pair: Any, attend: Any, tmp_path: Path, tab: str) -> None:
    panel = attend(pair.base, layer=3, head=1, tab=tab, sample_texts=TEXTS)
    assert len(pd.read_csv(panel.save(tmp_path / "table.csv"))) > 5
    for name in ("picture.svg", "numbers.npz", "page.html"):
        assert panel.save(tmp_path / name).stat().st_size > 2000
