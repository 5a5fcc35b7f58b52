"""The concept browser without a browser: list, map, quality, reading, steering, two models, own concepts, bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp_widgets import Results, Workbench
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis.concepts import (
    ConceptSet,
    concept_directions,
    decompose_prompt,
    dispersion,
    neighbors,
    projection,
    read_prompt_concepts,
    word_aucs,
)
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE
from interp_widgets.analysis.concepts.steered import compare_steering, steering_sweep
from interp_widgets.compute.cache import results as cache
from interp_widgets.compute.memory import Forecast
from interp_widgets.data.concepts import Concept, demo_concepts
from interp_widgets.widgets.concepts import ConceptBrowser
from interp_widgets.widgets.concepts.directions import PROMPT
from interp_widgets.widgets.concepts.steer import Mixed
from interp_widgets.widgets.views.base import bytes_floats
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair
from tests.waiting import LIMIT
from tests.widgets.opening import at_once, opening, settle
from tests.widgets.trouble import complaint

pytestmark = pytest.mark.slow

ALL = demo_concepts()
FEW = tuple(
    Concept(one.name, one.stimuli[:6], one.held_out[:2], one.group)
    for one in ALL
    if one.group in ("animals", "colours", "tools")
)
MANY = tuple(Concept(one.name, one.stimuli[:4], one.held_out[:1], one.group) for one in ALL[::3])
PARROT = [
    "Anna saw a parrot near the river.", "The parrot was in the garden.", "There was a parrot in the park.",
    "John asked Mary about the parrot.", "One day, Tom found a parrot at the farm.", "Here is a parrot.",
]  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture(scope="module")
def own(pair: Any) -> ConceptSet:
    """What the browser must show of the tuned model."""
    return concept_directions(pair.tuned, FEW, layer=3)


@pytest.fixture
def browse(wire: Any) -> Iterator[Callable[..., ConceptBrowser]]:
    """Opens browsers; afterwards every comm and worker they opened must be gone."""
    BokehSource.shared()  # one for all, which stays
    before = wire.open()
    with opening(ConceptBrowser, concepts=FEW) as build:
        yield build
    assert wire.open() == before


def look(panel: ConceptBrowser, tab: str) -> ConceptBrowser:
    """Open a tab and wait for what it shows."""
    panel.tab = tab
    assert panel.wait(60)
    assert panel.status.state == "done", panel.status.error
    return panel


def written(panel: ConceptBrowser) -> list[Any]:
    """What the models that the view shows write."""
    return [answer.comparison for answer in panel["steer"].shown_results]


def code_of(panel: ConceptBrowser) -> str:
    return panel.current.code(panel.current.request())


def names_of(table: Any) -> list[str]:
    return [row[0] for row in table.view.rows]


# ---- what is asked and shown


def test_opens_with_list_and_map(pair: Any, browse: Any, own: ConceptSet) -> None:
    panel = browse(pair.tuned)
    found = panel.result.concepts
    np.testing.assert_allclose(found.directions, own.directions, atol=1e-6)
    np.testing.assert_allclose(found.shuffled_auc, own.shuffled_auc, atol=1e-6)
    assert names_of(panel.listing.table) == list(own.names)
    assert [row[2] for row in panel.listing.table.view.rows] == pytest.approx(list(own.auc))
    assert (panel.concept, panel.stream) == ("lion", 3)
    assert panel["map"].chart.places is panel.result.map
    assert panel.result.map.method == "pca"
    expected = neighbors(own, "lion", 12)
    assert [row[0] for row in panel["map"].near.view.rows] == [name for name, _ in expected]
    assert [row[2] for row in panel["map"].near.view.rows] == pytest.approx(
        [cosine for _, cosine in expected], abs=1e-5
    )
    assert panel["map"].chart.chosen == own.index("lion")
    assert "Concept: <b>lion</b>" in panel.listing.heading.value


@pytest.mark.parametrize("method", ["mean_difference", "pca", "discriminant"])
def test_methods_and_layers(pair: Any, browse: Any, method: str) -> None:
    panel = browse(pair.tuned, layer=2, method=method)
    expected = concept_directions(pair.tuned, FEW, layer=2, method=method, shuffles=1)
    np.testing.assert_allclose(panel.result.concepts.directions, expected.directions, atol=1e-4)
    assert panel.result.concepts.method == method


def test_the_layer_slider_reads_no_stimulus_again(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    panel = browse(pair.tuned)
    monkeypatch.setattr(
        "interp_widgets.analysis.concepts.state_cache.last_states", lambda *a, **k: pytest.fail("the model ran")
    )
    drafts: list[bool] = []

    def drawn(change: Any) -> None:
        drafts.append(bool(np.isnan(change.new.concepts.shuffled_auc).all()))

    panel.current.observe(drawn, "result")
    panel.stream = 2
    assert panel.status.state != "waiting", "no forecast to press Run for"
    assert panel.wait(60)
    assert (panel.result.concepts.layer, panel.layer) == (2, 2)
    assert drafts == [True, False], "the directions at once, the control behind"
    panel.method = "discriminant"
    assert panel.wait(60)
    assert panel.result.concepts.method == "discriminant"
    assert panel.status.state == "done", panel.status.error


def test_a_fresh_run_makes_the_directions_once_more_and_once(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interp_widgets.widgets.concepts import directions

    panel = browse(pair.base, pair.tuned)
    made: list[str] = []
    real = directions.concept_directions

    def counted(model: Any, *args: Any, **options: Any) -> Any:
        made.append(model.name)
        return real(model, *args, **options)

    monkeypatch.setattr(directions, "concept_directions", counted)
    panel.run()
    assert made == [], "what is in the cache"
    before = panel.result
    panel.run(fresh=True)
    assert set(made) == {"demo-base", "demo-tuned"}
    assert made.count("demo-base") == made.count("demo-tuned"), "the map of both needs the base's, and has them"
    for old, new in zip(before, panel.result, strict=True):
        assert new.concepts is not old.concepts
        np.testing.assert_allclose(new.concepts.directions, old.concepts.directions, atol=1e-6)


@pytest.mark.parametrize(("keywords", "layer"), [({"layer": 0}, 0), ({"layer": 2}, 2), ({}, 3), ({"stream": 1}, 1)])
def test_the_layer_to_start_with(pair: Any, browse: Any, keywords: Any, layer: int) -> None:
    panel = browse(pair.tuned, **keywords)
    assert panel.stream == layer
    if layer:
        assert panel.result.concepts.layer == layer
    else:
        assert "the last token, which is the same in every text" in panel.hints["stream"]


def test_drafts_come_before_the_whole(pair: Any, browse: Any, wire: Any) -> None:
    seen: list[int] = []
    cache.clear()
    panel = browse(pair.tuned, concepts=MANY)
    panel.current.observe(lambda change: seen.append(len(change.new.concepts.names)), "result")
    panel.run(fresh=True)
    assert seen == [10, 37, 74], "everything is read again"
    panel.method = "discriminant"
    settle(panel)
    assert not panel.result.partial


def test_cancel_keeps_what_is_read_and_run_goes_on(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.analysis.concepts import state_cache

    monkeypatch.setattr(state_cache, "SLICE", 64)
    cache.clear()
    panel = browse(pair.tuned, layer=3)
    read = len(panel.store.states[id(pair.tuned)])
    assert read == sum(len(one.stimuli) + len(one.held_out) for one in FEW)

    def stop(change: Any) -> None:
        if len(change.new.concepts.names) == 10:
            panel.cancel()

    panel.current.observe(stop, "result")
    panel.concepts = MANY
    panel.go()
    assert panel.wait(60)
    panel.current.unobserve(stop, "result")
    assert panel.status.state == "cancelled"
    assert panel.result.partial
    assert "10 of 74 concepts so far" in panel.listing.table.view.caption
    kept_now = len(panel.store.states[id(pair.tuned)])
    assert read < kept_now < read + 5 * 74
    panel.go()
    assert panel.wait(60)
    assert len(panel.result.concepts.names) == 74


def test_search_filters_by_name_and_group(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.tuned)
    wire.type(panel.listing.box.children[1], value="anim b")
    assert names_of(panel.listing.table) == ["bird", "rabbit", "bear"]
    assert panel.listing.table.view.caption == "3 of 31 concepts"
    panel.search = "nothing like it"
    assert panel.listing.table.view.rows == []
    panel.search = ""
    wire.type(panel.listing.table.view, selected=2)
    assert panel.concept == FEW[2].name


# ---- map


def test_click_centres_and_lasso_selects(pair: Any, browse: Any, own: ConceptSet) -> None:
    panel = browse(pair.tuned)
    panel["map"]._clicked(own.index("red"))
    assert panel.concept == "red"
    assert names_of(panel["map"].near)[0] == neighbors(own, "red", 1)[0][0]
    chart = panel["map"].chart
    middle = (chart.figure.x_range.start + chart.figure.x_range.end) / 2
    assert middle == pytest.approx(float(chart.xy[own.index("red"), 0]))
    panel["map"]._lassoed((0, 3))
    assert panel.chosen == [own.names[0], own.names[3]]
    assert names_of(panel["map"].selected) == panel.chosen
    assert panel["map"].selected.view.caption == "2 selected"
    panel["map"].clear.click()
    assert (panel.chosen, chart.selected) == ([], ())


def test_tsne_is_asked_for(pair: Any, browse: Any) -> None:
    panel = browse(pair.tuned, map_method="tsne")
    assert panel.result.map.method == "tsne"
    directions = panel.result.concepts
    panel.map_method = "pca"
    settle(panel)
    assert panel.result.map.method == "pca"
    assert panel.result.concepts is directions, "another map, the same directions"


def test_a_slow_map_waits_for_run(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = browse(pair.tuned)
    monkeypatch.setattr("interp_widgets.widgets.concepts.direction_map.map_forecast", lambda *_: Forecast(40.0, 0))
    panel.map_method = "umap"
    assert panel.wait(60)
    assert panel.status.state == "waiting"
    assert "about 40 s" in panel.status.text
    assert panel["map"].chart.places.method == "pca", "the old map stays"


# ---- quality


def test_quality_says_shares_and_the_control(pair: Any, browse: Any, own: ConceptSet) -> None:
    panel = look(browse(pair.tuned), "quality")
    words = panel["quality"].words.value
    assert f"<b>{(own.auc >= 0.9).mean():.0%}</b> of 31 tested concepts" in words
    assert f"Shuffled labels: {own.shuffled_auc.mean():.2f} on average" in words
    row = panel["quality"].table.view.rows[own.index("lion")]
    at = own.index("lion")
    counted = word_aucs(FEW)
    expected = [own.auc[at], own.group_auc[at], own.shuffled_auc[at], counted[at], own.gap[at]]
    assert row[:2] == ["lion", "animals"]
    assert row[2:] == pytest.approx([float(value) for value in expected], rel=1e-4)
    assert f"A list of words alone: <b>{(counted >= 0.9).mean():.0%}</b>" in words
    np.testing.assert_array_equal(panel.current.frame()["word_auc"], counted)
    assert "word_aucs(concepts)" in code_of(panel)


def test_words_alone_are_one_column_for_two_models(pair: Any, browse: Any) -> None:
    panel = look(browse(pair, view="difference"), "quality")
    heads = [head["label"] for head in panel["quality"].table.view.columns]
    assert heads.count("words alone") == 1
    assert [head for head in heads if head.startswith("gap")] == ["gap A", "gap B"]
    assert all(len(row) == len(heads) for row in panel["quality"].table.view.rows)


def test_layer_0_is_a_hint(pair: Any, browse: Any) -> None:
    panel = browse(pair.tuned)
    shown = panel.result
    panel.stream = 0
    assert panel.wait(60)
    assert "the last token, which is the same in every text" in panel.hints["stream"]
    assert (panel.status.error, panel.result is shown) == ("", True)
    panel.stream = 3
    assert settle(panel).hints == {}


def test_base_and_tuned_follows_the_search(pair: Any, browse: Any) -> None:
    panel = look(browse(pair), "compare")
    assert len(names_of(panel["compare"].table)) == len(FEW)
    panel.search = "colours"
    assert {row[1] for row in panel["compare"].table.view.rows} == {"colours"}
    assert len(panel.current.frame()) == len(FEW), "what is saved is all"
    panel.search = "zzz"
    assert names_of(panel["compare"].table) == []
    assert panel["compare"].table.view.empty == "No concept matches."


# ---- read


def test_a_first_token_that_carries_the_sink_sets_no_colours_of_a_reading(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prompt, "first_is_sink", True)
    projected = projection.residual_streams

    def long_at_first(*args: Any) -> Any:
        streams = projected(*args)
        streams[:, :2] *= 50  # the BOS and the first token that is shown
        return streams

    monkeypatch.setattr(projection, "residual_streams", long_at_first)
    panel = look(browse(pair.tuned, prompt="The dog was near the blue lamp."), "read")  # in no cache
    heat, strip = panel["read"].heat, panel["read"].strips[0]
    assert heat.vmax == pytest.approx(np.abs(heat.matrix[:, 1:]).max(), rel=1e-4) == strip.vmax
    assert np.abs(heat.matrix[:, 0]).max() > 2 * heat.vmax
    assert "sets no colours" in panel["read"].words.value


def test_reads_the_prompt_in_the_template(pair: Any, browse: Any, own: ConceptSet) -> None:
    panel = look(browse(pair.tuned, prompt="The cat was near the red hammer."), "read")
    text = NEUTRAL_TEMPLATE.replace("<stimulus>", panel.prompt)
    reading = read_prompt_concepts(pair.tuned, own, text)
    gaps = reading.projection / own.gap
    assert panel["read"].strips[0].tokens == list(reading.tokens)
    strip, heat = panel["read"].strips[0], panel["read"].maps.views[0]
    assert strip.legend
    assert (strip.vmin, strip.vmax) == (heat.vmin, heat.vmax), "the same number has one scale"
    np.testing.assert_allclose(bytes_floats(panel["read"].strips[0].values), gaps[:, own.index("lion")], atol=1e-4)
    heat = panel["read"].heat
    assert heat.row_labels[0] == "lion"
    strongest = [own.names[i] for i in np.argsort(-gaps[-1])[:8]]
    assert [name for name in heat.row_labels if name in strongest] == [one for one in heat.row_labels if one != "lion"]
    np.testing.assert_allclose(heat.matrix[0], gaps[:, own.index("lion")], atol=1e-4)
    parts = decompose_prompt(pair.tuned, own, text, n_concepts=8)
    assert [row[0] for row in panel["read"].sums[0].view.rows] == list(parts.names)
    weights = [weight / own.gap[own.index(name)] for name, weight in zip(parts.names, parts.weights, strict=True)]
    assert [row[1] for row in panel["read"].sums[0].view.rows] == pytest.approx(weights, rel=1e-3)
    assert f"{parts.error:.0%} of its norm" in panel["read"].sums[0].view.caption
    assert "Strongest at" in panel["read"].words.value


def test_a_clicked_token_is_taken_apart(pair: Any, browse: Any, own: ConceptSet, wire: Any) -> None:
    panel = look(browse(pair.tuned, prompt="The cat was near the red hammer."), "read")
    tokens = panel["read"].strips[0].tokens
    place = tokens.index(" cat")
    wire.type(panel["read"].strips[0], selected=place)
    assert panel.wait(60)
    first = panel["read"].results[0].span[0]
    assert panel.prompt_token == place - first
    text = NEUTRAL_TEMPLATE.replace("<stimulus>", panel.prompt)
    parts = decompose_prompt(pair.tuned, own, text, position=place, n_concepts=8)
    assert names_of(panel["read"].sums[0]) == list(parts.names)
    panel.in_template = False
    assert panel.wait(60)
    assert panel["read"].strips[0].tokens == list(pair.tuned.token_strings(pair.tuned.tokens(panel.prompt)))[1:]
    assert panel["read"].strips[0].selected == panel.prompt_token
    wire.type(panel["read"].heat, pinned=[1, 2])
    assert panel.wait(60)
    assert (panel.concept, panel.prompt_token) == (panel["read"].heat.row_labels[0], 2)


def test_rows_of_the_map_of_a_prompt(pair: Any, browse: Any, own: ConceptSet) -> None:
    panel = look(browse(pair.tuned), "read")
    panel.read_rows = "nearest"
    assert panel["read"].heat.row_labels == ["lion", *(name for name, _ in neighbors(own, "lion", 8))]
    panel.read_rows = "chosen"
    assert panel["read"].heat.shape == [0, 0]
    panel.chosen = ["red", "saw"]
    assert panel["read"].heat.row_labels == ["red", "saw"]
    panel.n_concepts, panel.solver = 3, "elastic_net"
    assert panel.wait(60)
    assert panel.status.state == "done", panel.status.error


# ---- steer


def test_steering_beside_its_controls(pair: Any, browse: Any, own: ConceptSet, wire: Any) -> None:
    panel = look(browse(pair.tuned, max_new_tokens=6), "steer")
    expected = compare_steering(pair.tuned, own, "lion", PROMPT, strength=1.0, max_new_tokens=6)
    assert [strip.tokens for strip in panel["steer"].strips] == [list(some) for some in expected.written]
    assert panel["steer"].strips[1].marks, "the concept's word is marked"
    assert " lion" in "".join(panel["steer"].strips[1].tokens)
    assert "Probability that the next token is “·lion”" in panel["steer"].words.value
    assert "0 raise it as much: p = 0.05, beyond chance." in panel["steer"].words.value
    assert "iw-by-chance" not in panel["steer"].grids[0].children[1]._dom_classes
    rows = panel["steer"].tables[0].rows
    shown = [pytest.approx(list(map(float, one)), rel=1e-3) for one in expected.top_probability.T]
    assert [row[1:] for row in rows] == shown
    panel.strength = -1.0
    assert panel.wait(60)
    assert written(panel)[0].strength == pytest.approx(-expected.strength, rel=1e-4)
    panel.strength = 0.0  # as random directions of length 0 do
    assert panel.wait(60)
    assert "p = 1, not beyond chance" in panel["steer"].words.value
    assert panel["steer"].strips[1].label.endswith("(not beyond chance)")
    assert "iw-by-chance" in panel["steer"].grids[0].children[1]._dom_classes
    assert not panel["steer"].strips[1].marks
    with panel.batch_changes():
        panel.mode, panel.steer_from, panel.steer_on = "erase", 4, True
    assert panel.wait(60)
    assert (written(panel)[0].mode, written(panel)[0].layers.tolist()) == ("erase", [4, 5, 6])
    panel.concept = "red"
    assert panel.wait(60)
    assert written(panel)[0].concept == "red"


def test_several_concepts_mixed(pair: Any, browse: Any, own: ConceptSet, wire: Any) -> None:
    panel = look(browse(pair.tuned, max_new_tokens=4), "steer")
    steering = panel["steer"]
    wire.click(steering.add_button)
    assert panel.mixed == (Mixed("lion", 1.0),)
    assert steering.add_button.disabled
    panel.concept = "red"
    assert settle(panel).mixed == (Mixed("lion", 1.0),)
    expected = compare_steering(pair.tuned, own, "red", PROMPT, strength=1.0, mixed=[("lion", 1.0)], max_new_tokens=4)
    assert written(panel)[0].written == expected.written
    assert "“red” +1.00 gaps, “lion” +1.00" in steering.strips[1].label
    assert panel.current.question()["Mixed with"] == "lion +1"
    assert "mixed=(('lion', 1.0),)" in code_of(panel)
    wire.type(steering.list.children[0].children[1], value=-2.0)
    assert written(settle(panel))[0].mixed == pytest.approx({"lion": -2 * own.gap[own.index("lion")]})
    wire.type(steering.list.children[0].children[0], value=False)
    alone = compare_steering(pair.tuned, own, "red", PROMPT, strength=1.0, max_new_tokens=4)
    assert written(settle(panel))[0].written == alone.written
    wire.click(steering.list.children[0].children[2])
    assert (panel.mixed, steering.list.children) == ((), ())
    assert not steering.add_button.disabled


def test_a_sweep_is_a_row_of_texts(pair: Any, browse: Any, own: ConceptSet, tmp_path: Path) -> None:
    panel = look(browse(pair.tuned, max_new_tokens=3), "steer")
    panel.mode = "sweep"
    sweep = steering_sweep(pair.tuned, own, "lion", PROMPT, max_new_tokens=3)
    assert written(settle(panel))[0].written == sweep.written
    steering = panel["steer"]
    strips = [box.children[0] for box in steering.sweeps[0].children]
    assert [strip.tokens for strip in strips] == [list(text) for text in sweep.written]
    assert [strip.label.partition(" (")[0] for strip in strips] == [
        f"α {at}" for at in ["−4", "−2", "−1", "0", "+1", "+2", "+4"]
    ]
    faint = ["not beyond chance" in strip.label for strip in strips]
    assert faint == [bool(at) and p > 0.05 for at, p in zip(sweep.strengths, sweep.p, strict=True)]
    assert ["iw-by-chance" in box._dom_classes for box in steering.sweeps[0].children] == faint
    assert f"{sweep.in_words()}; the other texts are faint" in steering.words.value
    rows = steering.tables[0].rows
    assert [row[1] for row in rows] == pytest.approx(sweep.word_probability.tolist(), rel=1e-3)
    np.testing.assert_allclose([row[2:5] for row in rows], np.stack(sweep.band, axis=1), rtol=1e-3)
    assert [row[5] for row in rows] == sweep.p.tolist()
    assert "iw-hidden" in steering.grids[0]._dom_classes
    assert "steering_sweep(" in code_of(panel)
    assert len(panel.current.frame()) == len(sweep.strengths)
    assert panel.save(tmp_path / "sweep.svg").stat().st_size > 1000
    panel.mode = "add"
    settle(panel)
    assert "iw-hidden" not in steering.grids[0]._dom_classes
    assert "iw-hidden" in steering.sweeps[0]._dom_classes


def test_slow_writing_waits_for_run(pair: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = look(browse(pair.tuned, max_new_tokens=2), "steer")
    twice = pytest.approx(2 * panel.sets[0].gap[panel.sets[0].index("lion")])
    steering = panel["steer"]
    monkeypatch.setattr(steering, "own_forecast", lambda *_: Forecast(60.0, 0))
    panel.strength = 2.0
    assert panel.wait(60)
    assert written(panel)[0].strength != twice
    assert (panel.status.state, steering.run_button.button_style) == ("waiting", "primary")
    assert steering.forecast_label.value == "about 1 min 0 s"
    wire.click(steering.run_button)
    assert panel.wait(60)
    assert steering.run_button.button_style == ""
    assert written(panel)[0].strength == twice


def test_an_empty_prompt_is_said(pair: Any, browse: Any) -> None:
    panel = look(browse(pair.tuned, max_new_tokens=2), "steer")
    panel.prompt = ""
    assert "the prompt is empty" in complaint(panel)
    panel.prompt = "The dog"
    assert panel.wait(60)
    assert (panel.status.error, panel.hints) == ("", {})


# ---- two models


def test_a_saved_comparison_holds_what_its_table_shows(pair: Any, browse: Any, own: ConceptSet, tmp_path: Path) -> None:
    panel = look(browse(pair), "compare")
    parts = Results.load(panel.save(tmp_path / "compare.npz"))
    assert parts.names == ("A", "B", "dispersion")
    assert parts["B"].equals(panel.sets[1])
    moved = 1 - (parts["A"].directions * parts["B"].directions).sum(axis=1)
    shown = {row[0]: row[2] for row in panel["compare"].table.view.rows}
    assert [shown[name] for name in parts["A"].names] == pytest.approx(moved.tolist(), abs=1e-6)
    assert f"A <b>{parts['dispersion'].value:.3f}</b>" in panel["compare"].words.value
    panel.path = str(own.save(tmp_path / "own.npz"))
    look(panel, "compare")
    assert "nothing to compare" in panel["compare"].words.value
    assert Results.load(panel.save(tmp_path / "same.npz")).names == ("A", "B")


def test_two_models(pair: Any, browse: Any, own: ConceptSet) -> None:
    panel = browse(pair, max_new_tokens=2)
    base, tuned = panel.result
    np.testing.assert_allclose(tuned.concepts.directions, own.directions, atol=1e-6)
    assert not np.allclose(base.concepts.directions, own.directions, atol=0.1)
    assert tuned.map.other_xy is not None
    assert base.map.equals(tuned.map), "one map of both, never a draft as the result of the first"
    moved = 1 - (base.concepts.directions * tuned.concepts.directions).sum(axis=1)
    look(panel, "compare")
    expected = dispersion(base.concepts, tuned.concepts, pairs="group")
    words = panel["compare"].words.value
    assert f"A <b>{expected.value:.3f}</b>" in words
    assert f"B <b>{expected.other:.3f}</b>" in words
    order = np.argsort(-moved, kind="stable")
    assert names_of(panel["compare"].table) == [own.names[i] for i in order]
    assert panel["compare"].table.view.rows[0][2] == pytest.approx(float(moved.max()), abs=1e-5)
    panel.view = "difference"
    assert panel.wait(60)
    assert [head["label"] for head in panel.listing.table.view.columns] == ["concept", "AUC A", "AUC B"]
    assert panel["map"].chart.side == "a"
    look(panel, "map")
    assert panel["map"].chart.side == "both"
    look(panel, "read")
    assert len(panel["read"].shown_results) == 2
    of_a, of_b = (read.gaps[:, own.index("lion")] for read in panel["read"].shown_results)
    np.testing.assert_allclose(panel["read"].heat.matrix[0], of_b - of_a, atol=1e-4)
    look(panel, "steer")
    assert len(written(panel)) == 2
    panel.view = "A"
    assert panel.wait(60)
    np.testing.assert_allclose(written(panel)[0].strength, base.concepts.gap[own.index("lion")], rtol=1e-4)


# ---- the user's own


def test_adds_a_concept_of_ones_own(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.tuned)
    library = panel.library
    wire.type(library.name, value="parrot")
    wire.type(library.stimuli, value="\n".join([*PARROT, "", PARROT[0]]))
    wire.click(library.add_button)
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    assert panel.concept == "parrot"
    added = panel.concepts[-1]
    assert (added.name, added.group, len(added.stimuli) + len(added.held_out)) == ("parrot", "own", 6)
    assert "parrot" in panel.result.concepts.names
    assert library.stimuli.value == ""
    code = code_of(panel)
    assert "Concept('parrot'" in code
    wire.click(library.remove_button)
    settle(panel)
    assert "parrot" not in panel.result.concepts.names
    wire.click(library.reset_button)
    assert panel.concepts == ALL
    panel.cancel()
    assert panel.wait(60)


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("two", ["One.", "Two."], "'two' has 2 stimuli"),
        ("lion", PARROT, "two concepts are called 'lion'"),
        ("", PARROT, "empty name"),
        ("long", [*PARROT, "word " * 3000], "tokens long with its template"),
    ],
)
def test_what_cannot_be_added_is_said_and_kept(
    pair: Any, browse: Any, wire: Any, name: str, lines: list[str], words: str
) -> None:
    panel = browse(pair.tuned)
    panel.library.name.value, panel.library.stimuli.value = name, "\n".join(lines)
    wire.click(panel.library.add_button)
    assert words in complaint(panel)
    assert "\n" not in complaint(panel)
    assert panel.status.state == "done", "a hint beside the boxes, and no failure"
    assert panel.library.stimuli.value == "\n".join(lines), "nothing that was typed is lost"
    assert (panel.concepts, panel.result.concepts.names) == (FEW, tuple(one.name for one in FEW))


def test_what_is_removed_is_named_and_comes_back(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.tuned)
    library = panel.library
    assert library.remove_button.description == "Remove “lion”"
    assert "iw-hidden" in library.undo_button._dom_classes
    panel["map"]._clicked(own_place(panel, "red"))
    assert library.remove_button.description == "Remove “red”"
    look(panel, "quality")
    wire.type(panel["quality"].table.view, selected=own_place(panel, "saw"))
    assert library.remove_button.description == "Remove “saw”"
    assert "Concept: <b>saw</b>" in panel.listing.heading.value
    wire.click(library.remove_button)
    assert [one for one in FEW if one not in panel.concepts] == [one for one in FEW if one.name == "saw"]
    assert library.undo_button.description == "Undo: bring back “saw”"
    settle(panel)
    assert (panel.concept, library.remove_button.description) == ("lion", "Remove “lion”")
    panel.concept = "red"
    wire.click(library.undo_button)
    settle(panel)
    assert {one.name for one in panel.concepts} == {one.name for one in FEW}
    assert panel.concept == "saw"
    assert "saw" in panel.result.concepts.names
    assert "iw-hidden" in library.undo_button._dom_classes


def own_place(panel: ConceptBrowser, name: str) -> int:
    return panel.sets[-1].index(name)


def test_back_to_the_demos_says_what_it_removes(pair: Any, browse: Any, wire: Any, tmp_path: Path) -> None:
    parrot = Concept("parrot", PARROT[:4], PARROT[4:], "own")
    panel = browse(pair.tuned, concepts=(*FEW, parrot))
    library = panel.library
    # the few have fewer stimuli than the demo's, which would take their place
    assert library.reset_button.description == f"Back to the demo's (removes {len(FEW) + 1} concepts)"
    panel.concepts = (*ALL, parrot)
    assert library.reset_button.description == "Back to the demo's (removes “parrot”)"
    library.keep.value = False
    assert library.open_button.description == f"Open in place of {len(ALL) + 1} concepts"
    library.keep.value = True
    assert library.open_button.description == "Open"
    wire.click(library.reset_button)
    assert (panel.concepts, library.undo_button.description) == (ALL, "Undo: bring back “parrot”")
    assert library.reset_button.description == "Back to the demo's"
    wire.click(library.undo_button)
    assert panel.concepts == (*ALL, parrot)
    panel.cancel()
    assert panel.wait(60)


def test_a_draft_lets_go_of_nothing(pair: Any, browse: Any) -> None:
    kept = [MANY[0].name, MANY[1].name]
    panel = browse(pair.tuned, concepts=MANY, chosen=kept, concept=MANY[1].name)
    seen: list[tuple[int, str, list[str], str]] = []
    panel.current.observe(
        lambda change: seen.append(
            (len(change.new.concepts.names), panel.concept, panel.chosen, panel.current.shown_concept)
        ),
        "result",
    )
    panel.run(fresh=True)
    assert [count for count, *_ in seen] == [10, 37, 74]
    assert all((concept, chosen) == (MANY[1].name, kept) for _, concept, chosen, _ in seen)
    assert seen[0][3] in {one.name for one in MANY[::8]}, "the draft does not have it: another stands in"
    assert seen[-1][3] == MANY[1].name


def test_the_tabs_read_the_stimuli_once(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = browse(pair.tuned, max_new_tokens=2)
    monkeypatch.setattr(
        "interp_widgets.analysis.concepts.directions.concept_directions", lambda *_, **__: pytest.fail("made again")
    )
    monkeypatch.setattr(
        "interp_widgets.widgets.concepts.directions.concept_directions", lambda *_, **__: pytest.fail("made again")
    )
    for tab in ("quality", "read", "steer"):
        look(panel, tab)
        assert panel.result.concepts is panel["map"].result.concepts
    panel.search = "anim"
    assert names_of(panel.listing.table) == names_of(look(panel, "quality")["quality"].table)


def test_a_tab_that_waits_shows_what_is_chosen_beside_it(
    pair: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interp_widgets.widgets.concepts.steer import Steering

    monkeypatch.setattr(Steering, "own_forecast", lambda *_: Forecast(600.0, 0))
    panel = browse(pair.tuned)
    panel.tab = "steer"
    assert (panel.status.state, panel.result) == ("waiting", None)
    panel.search = "colours"
    wire.type(panel.listing.table.view, selected=names_of(panel.listing.table).index("red"))
    assert "Concept: <b>red</b> <span class='iw-hint'>colours</span>" in panel.listing.heading.value
    assert (panel.concept, panel.library.remove_button.description) == ("red", "Remove “red”")
    panel.tab = "map"
    assert panel["map"].near.view.caption == "Nearest to “red”"


def test_messages_in_threads_of_their_own(pair: Any, browse: Any, wire: Any) -> None:
    """As in JupyterLab: while one message opens tabs, others choose concepts, search and move a slider."""
    panel = browse(pair.tuned, max_new_tokens=1)

    def tabs() -> None:
        for tab in ("quality", "read", "steer", "map", "read", "quality", "map"):
            panel.tab = tab

    def concepts() -> None:
        for name in ("red", "saw", "lion", "cat", "blue", "bird"):
            panel.concept = name

    def searches() -> None:
        for words in ("a", "an", "ani", "anim", ""):
            panel.search = words

    at_once(tabs, concepts, searches)
    settle(panel)
    for tab in ("read", "steer", "quality", "map"):
        panel.tab = tab
        settle(panel)
        assert panel.status.state == "done", (tab, panel.status.error)
        assert {panel.concept, panel.current.concept, panel.current.shown_concept} == {"bird"}
        assert panel.library.remove_button.description == "Remove “bird”"
        assert "Concept: <b>bird</b>" in panel.listing.heading.value
    assert panel["steer"].results[0].comparison.concept == "bird"
    assert panel["read"].heat.row_labels[0] == "bird"
    assert panel["map"].chart.chosen == own_place(panel, "bird")


def test_a_folder_a_text_file_and_an_upload(pair: Any, browse: Any, wire: Any, tmp_path: Path) -> None:
    (tmp_path / "concept").mkdir()
    for name, thing in (("parrot", "parrot"), ("eagle", "eagle")):
        texts = [line.replace("parrot", thing) for line in PARROT]
        (tmp_path / "concept" / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
    panel = browse(pair.tuned)
    library = panel.library
    library.path.value = str(tmp_path)
    wire.click(library.open_button)
    settle(panel)
    assert [one.name for one in panel.concepts[-2:]] == ["eagle", "parrot"]
    assert f"read_concepts({str(tmp_path)!r})" in code_of(panel)
    wire.click(library.open_button)
    assert "two concepts are called" in complaint(panel), "they are there already"
    library.keep.value = False
    assert not panel.hints, "what was wrong has changed"
    wire.click(library.open_button)
    settle(panel)
    assert panel.result.concepts.names == ("eagle", "parrot")
    assert panel.result.map is None
    assert panel["map"].chart.message
    library.path.value = str(tmp_path / "concept" / "parrot.txt")
    wire.click(library.open_button)
    assert (library.name.value, library.stimuli.value.splitlines()) == ("parrot", PARROT)
    (tmp_path / "latin.txt").write_bytes("Élan.".encode("latin-1"))
    library.path.value = str(tmp_path / "latin.txt")
    wire.click(library.open_button)
    assert "latin.txt is not UTF-8 text" in complaint(panel)
    library.path.value = str(tmp_path / "nowhere")
    wire.click(library.open_button)
    assert "there is no folder or text file" in complaint(panel)
    library.name.value = ""
    library._uploaded(type("Change", (), {"new": [{"name": "owl.txt", "content": b"An owl.\nOwls.\nThe owl."}]}))
    assert (library.name.value, library.stimuli.value) == ("owl", "An owl.\nOwls.\nThe owl.")


def test_saves_and_opens_a_set(
    pair: Any, browse: Any, own: ConceptSet, wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    panel = browse(pair.tuned)
    wire.click(panel.library.save_button)
    written = list(tmp_path.glob("*.npz"))
    assert [path.name for path in written] == ["concepts-demo-tuned-layer-3-mean-difference.npz"]
    assert ConceptSet.load(written[0]).equals(panel.result.concepts)
    panel.stream = 2
    settle(panel)
    panel.library.path.value = str(written[0])
    wire.click(panel.library.open_button)
    settle(panel)
    assert panel.opened
    assert panel.result.concepts.layer == 3
    assert "ConceptSet.load(" in code_of(panel)
    look(panel, "read")
    look(panel, "steer")
    two = browse(pair, path=str(written[0]), tab="compare", view="difference", max_new_tokens=2)
    assert "nothing to compare" in two["compare"].words.value
    for tab in ("read", "steer", "quality", "map"):
        look(two, tab)


def test_a_set_that_does_not_fit_is_said_and_nothing_is_lost(
    pair: Any, browse: Any, own: ConceptSet, wire: Any, tmp_path: Path
) -> None:
    tiny = tiny_model("llama")
    small = concept_directions(tiny, FEW[:3], layer=2, shuffles=1).save(tmp_path / "tiny.npz")
    saved = own.save(tmp_path / "tuned.npz")
    text = tmp_path / "broken.npz"
    text.write_text("no archive", encoding="utf-8")
    panel = browse(pair.base)
    for path, words in (
        (small, "these directions have width"), (saved, "with other weights"), (text, "is not a readable .npz archive"),
        (tmp_path / "none.npz", "there is no file of directions"),
    ):  # fmt: skip
        panel.library.path.value = str(path)
        wire.click(panel.library.open_button)
        assert panel.wait(LIMIT)
        assert words in complaint(panel)
        assert "\n" not in complaint(panel)
        assert panel.path == ""
        assert panel.result.concepts.names == tuple(one.name for one in FEW)


# ---- shared, saved, other models


def test_a_workbench_shares_prompt_token_and_layer(pair: Any, browse: Any) -> None:
    bench = Workbench(pair.tuned, prompt="The cat was near the red hammer.", layer=2)
    panel = browse(bench)
    assert (panel.prompt, panel.stream) == (bench.prompt, 2)
    bench.layer = 3
    settle(panel)
    assert panel.result.concepts.layer == 3
    look(panel, "read")
    bench.prompt_token = 1
    assert panel.wait(60)
    assert panel["read"].strips[0].tokens[panel["read"].strips[0].selected] == " cat"
    panel.stream = panel.deepest
    settle(panel)
    assert (bench.layer, panel.result.concepts.layer) == (5, 6)
    bench.prompt = "Another one."
    assert panel.wait(60)
    assert (panel.prompt, panel.prompt_token) == ("Another one.", -1)


@pytest.mark.parametrize("tab", ["map", "quality", "read", "steer", "compare"])
def test_the_code_repeats_what_is_shown(pair: Any, browse: Any, tab: str) -> None:
    panel = look(browse(pair, max_new_tokens=2, view="B"), tab)
    # the few concepts of this test are half of nothing that has a name: they are written out
    code = code_of(panel)
    scope: dict[str, Any] = {}
    exec(code.replace("load_model('demo-base')", "base").replace("load_model('demo-tuned')", "tuned"),
         scope | {}, scope := {"base": pair.base, "tuned": pair.tuned})  # fmt: skip
    np.testing.assert_allclose(scope["directions_b"].directions, panel.result[1].concepts.directions, atol=1e-5)
    np.testing.assert_allclose(scope["places"].other_xy, panel["map"].results[1].map.other_xy, atol=1e-4)
    assert [name for name, _ in scope["near"]] == [row[0] for row in panel["map"].near.view.rows] or tab != "map"


def test_saves_numbers_picture_and_page(pair: Any, browse: Any, tmp_path: Path) -> None:
    panel = browse(pair, max_new_tokens=2)
    table = pd.read_csv(panel.save(tmp_path / "concepts.csv"))
    assert len(table) == 2 * len(FEW)
    assert set(table["model"]) == {"A", "B"}
    assert (tmp_path / "map.svg").name == panel.save(tmp_path / "map.svg").name
    assert "lion" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert panel.save(tmp_path / "map.png").stat().st_size > 5000
    assert panel.save(tmp_path / "page.html").stat().st_size > 5000
    panel.search, panel.concept = "anim", "red"
    look(panel, "quality")
    panel.search = "colours"
    page = panel.save(tmp_path / "quality.html").read_text(encoding="utf-8")
    assert {"Concept": "red", "Search": "colours", "Layer": "3"}.items() <= panel.current.question().items()
    assert "<dt>Concept</dt><dd>red</dd>" in page
    assert "<dt>Search</dt><dd>colours</dd>" in page
    assert '"rabbit"' not in page.split("const views")[1], "the table of the page is the one on the screen"
    for tab, columns in (("read", ["model", "token", "lion"]), ("steer", ["model", "run", "text"])):
        look(panel, tab)
        saved = pd.read_csv(panel.save(tmp_path / f"{tab}.csv"))
        assert set(columns) <= set(saved.columns)
        assert panel.save(tmp_path / f"{tab}.png").stat().st_size > 5000
    moved = pd.read_csv(look(panel, "compare").save(tmp_path / "compare.csv"))
    assert list(moved.columns) == ["concept", "group", "moved", "AUC A", "AUC B"]
    assert moved["moved"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "hooked", torch.float32), ("llama", "bridge", torch.float32), ("gpt_neox", "hooked", torch.bfloat16)],
)
def test_other_models(browse: Any, family: str, backend: str, dtype: torch.dtype) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = browse(model, concepts=FEW[:6], prompt="The dog was", max_new_tokens=2)
    assert panel.result.concepts.directions.shape == (6, model.d_model)
    for tab in ("quality", "read", "steer"):
        look(panel, tab)
    assert np.isfinite(panel["read"].heat.matrix).all()


@pytest.mark.parametrize("tab", ["map", "quality", "read", "steer"])
def test_a_concept_that_is_not_there_is_told_on_every_tab(pair: Any, browse: Any, tab: str) -> None:
    panel = look(browse(pair.tuned, max_new_tokens=2), tab)
    result = panel.result
    for wrong in ({"concept": "zzz"}, {"chosen": ["zzz"]}) if tab != "steer" else ({"concept": "zzz"},):
        for name, value in wrong.items():
            setattr(panel, name, value)
            assert panel.wait(60)
            assert f"{name} must be one of the 31 concepts here, got 'zzz'" in panel.status.error
            assert panel.result is result
            setattr(panel, name, "red" if name == "concept" else ["red"])
            assert panel.wait(60)
            assert panel.status.error == ""
    assert panel.current.shown_concept == "red"


def test_wrong_traits_are_said(pair: Any, browse: Any) -> None:
    panel = browse(pair.tuned)
    with pytest.raises(Exception, match="Concept objects"):
        panel.concepts = ["cat"]
    panel.concepts = FEW[:1]
    assert panel.wait(60)
    assert "at least 2 concepts" in panel.status.error
    assert panel.result.concepts.names == tuple(one.name for one in FEW)
    panel.concepts = FEW
    settle(panel)
    with pytest.raises(Exception, match=r"stream must be in 0\.\.6"):
        panel.stream = 9
    with pytest.raises(TypeError, match="did you mean 'method'"):
        browse(pair.tuned, metod="pca")
