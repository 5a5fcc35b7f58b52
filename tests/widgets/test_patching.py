"""The patching panel without a browser: what it asks for, draws, selects, saves, and takes amiss."""

from __future__ import annotations

import dataclasses
import datetime
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp_widgets import PatchingPanel, Workbench, activation_patching, patched_prediction
from interp_widgets.analysis.patching import ActivationPatchingResult
from interp_widgets.compute.cache import results as cache
from interp_widgets.data.presets import preset
from interp_widgets.widgets.base.answers import Outcome
from interp_widgets.widgets.base.fields import hidden
from interp_widgets.widgets.base.opening import opening_of
from interp_widgets.widgets.base.prediction import WordSwap
from interp_widgets.widgets.patching.options import CLEAN, CORRUPTED, part
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.waiting import LIMIT
from tests.widgets.opening import opening, settle
from tests.widgets.test_opening import TEMPLATES, from_folder
from tests.widgets.trouble import cancelled_and_closed, complaint, told_of_broken_weights

pytestmark = pytest.mark.slow
LINES = [
    "The capital of France is | The capital of Italy is | Paris | Rome",
    "The capital of Spain is | The capital of Germany is | Madrid | Berlin",
]


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def patch(wire: Any) -> Iterator[Callable[..., PatchingPanel]]:
    """Opens panels; afterwards every worker and comm they opened must be gone."""
    with opening(PatchingPanel) as build:
        yield build
    assert wire.open() <= 2, "what the kernel shares (Bokeh's code) may stay, nothing else"


def matrix(panel: Any, name: str) -> Any:
    return panel.maps.maps[name].matrix


def differs(matched: Any) -> bool:
    """Whether tokens that belong together differ."""
    return any(matched.clean[one] != matched.corrupted[other] for one, other in matched.pairs)


# ---- map


def test_it_opens_with_the_country_and_the_last_token(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned)
    assert (panel.prompt, panel["map"].corrupted, panel.status.state) == (CLEAN, CORRUPTED, "done"), panel.status.error
    tab = panel["map"]
    assert (tab.result.answer_tokens, tab.result.foil_tokens) == ((" Paris",), (" Rome",))
    resid, attn = matrix(tab, "resid_pre"), matrix(tab, "attn")
    assert resid[0, 3] == pytest.approx(1, abs=1e-4)
    assert resid[1:, 4] == pytest.approx(1, abs=0.02)
    assert np.argwhere(attn > 0.5).tolist() == [[0, 4]]
    assert {(heat.vmin, heat.vmax) for heat in tab.maps.maps.values()} == {(-1.0, 1.0)}
    assert tab.maps.maps["mlp"].column_labels == ["The", " capital", " of", " France/Italy", " is"]
    assert tab.tokens.columns == [[at, at] for at in range(5)]
    assert "One pair of prompts has no interval" in tab.words.value


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_the_maps_are_what_the_function_gives(pair: Any, patch: Any, direction: Any) -> None:
    panel = patch(pair.base, direction=direction, metric="probability")
    found = activation_patching(pair.base, CLEAN, CORRUPTED, direction=direction, metric="probability")
    for site, values in found.recovered.items():
        np.testing.assert_allclose(matrix(panel["map"], site), values, atol=1e-5)


def test_a_cell_is_put_into_words_and_lists_next_tokens(pair: Any, patch: Any, wire: Any) -> None:
    tab = patch(pair.tuned)["map"]
    wire.type(tab.maps.maps["attn"], pinned=[0, 4])
    settle(tab)
    assert (tab.layer, tab.position, tab.picked_site) == (0, 4, "attn")
    assert "The clean attention output of layer 0 at “·is” (4) in the corrupted run recovers" in tab.cell_words.value
    wanted = patched_prediction(pair.tuned, CLEAN, CORRUPTED, "attn", 0, position=4, top=8)
    assert [row[3] for row in tab.next_token.table.rows] == pytest.approx(wanted.patched.tolist(), abs=1e-5)
    assert tab.next_token.table.rows[0][0] == "·Paris"
    tab.maps.on_pin("attn", -1, -1)
    assert tab.next_token.table.rows == []


def test_cells_are_estimated_and_some_patched_beside_them(pair: Any, patch: Any, wire: Any, tmp_path: Path) -> None:
    panel = patch(pair, method="attribution_softmax", head_site="head_k", view="A", tab="heads")
    tab = panel["heads"]
    assert panel["map"].method == "attribution_softmax"
    result, heat = tab.results[0], tab.maps.maps["head"]
    tokens = {"answer": result.answers[0], "foil": result.foils[0]}
    options: Any = {"sites": "head_k", "positions": (-1,), "alignment": "ends", "method": "attribution_softmax"}
    found = activation_patching(pair.base, CLEAN, CORRUPTED, **options, **tokens)
    np.testing.assert_allclose(heat.matrix, found.estimated["head_k"][..., 0], atol=1e-5)
    assert "method='attribution_softmax'" in tab.code(tab.request())
    panel.tab, panel.method = "map", "attribution"
    settle(panel)
    tab, heat = panel["map"], panel["map"].maps.maps["attn"]
    whole = tab.results[0]
    few = np.where(np.arange(30).reshape(6, 5) % 7, np.nan, whole.recovered["attn"])
    tab.results = (dataclasses.replace(whole, recovered={**whole.recovered, "attn": few}), tab.results[1])
    tab.draw(tab.results, tab.shown_request)
    np.testing.assert_allclose(heat.matrix, whole.estimated["attn"], atol=1e-5)
    assert heat.crossed == np.argwhere(np.isfinite(few)).tolist()
    assert heat.notes[:2] == [f"patched {part(few[0, 0])}", "estimated"]
    assert "65 of 90 cells, drawn at random, are patched" in tab.words.value
    assert f"Attention output <b>{part(tab.results[0].correlation('attn'))}</b>" in tab.words.value
    assert f"Largest estimates: A <b>{part(whole.estimated['resid_pre'].max())}</b>" in tab.words.value
    wire.type(heat, pinned=[0, 4])
    settle(tab)
    assert f"is estimated to recover <b>{part(whole.estimated['attn'][0, 4])}</b>" in tab.cell_words.value
    wire.type(heat, pinned=[1, 2])
    settle(tab)
    assert f"The estimate was {part(whole.estimated['attn'][1, 2])}." in tab.cell_words.value
    panel.view = "difference"
    assert heat.title == "B − A · Attention output, estimated"
    assert "estimated" in pd.read_csv(panel.save(tmp_path / "map.csv")).columns
    panel.metric = "kl"  # whose gradient is 0
    settle(panel)
    assert hidden(tab.controls["method"])
    assert tab.results[0].estimated == {}
    assert (heat.crossed, panel.status.state) == ([], "done")


def test_a_partial_map_has_estimates_where_nothing_is_patched_yet(pair: Any, patch: Any, wire: Any) -> None:
    cache.clear()  # other tests have asked the same of this model
    panel = patch(pair.tuned)
    tab, whole = panel["map"], panel.result
    few = {site: np.where(np.arange(30).reshape(6, 5) % 7, np.nan, one) for site, one in whole.recovered.items()}
    guesses = {site: values / 2 for site, values in whole.recovered.items()}
    part_of = dataclasses.replace(
        whole, recovered=few, estimated=guesses, missing=75, strongest_first=True, partial=True
    )  # fmt: skip
    tab._put(Outcome(tab.shown_request, (part_of,), 0.0, partial=True, states=tab.shown_states))
    heat = tab.maps.maps["attn"]
    known = np.isfinite(few["attn"])
    np.testing.assert_allclose(heat.matrix, np.where(known, few["attn"], guesses["attn"]), atol=1e-6)
    assert (heat.crossed, heat.title) == (np.argwhere(known).tolist(), "Attention output, partial")
    assert "<b>15 of 90</b> cells patched (crosses), those first" in tab.words.value
    assert f"Largest so far: <b>{part(np.nanmax(few['resid_pre']))}</b>" in tab.words.value
    wire.type(heat, pinned=[0, 0])
    settle(tab)
    assert "recovers" in tab.cell_words.value
    assert "estimate" not in tab.cell_words.value
    wire.type(heat, pinned=[0, 4])
    settle(tab)
    assert f"is estimated to recover <b>{part(guesses['attn'][0, 4])}</b>" in tab.cell_words.value


def test_the_cells_estimated_to_be_strongest_are_patched_first(
    pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = patch(pair.tuned)
    tab, parts = panel["map"], list[ActivationPatchingResult]()

    def in_small_chunks(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        def hand_on(part_of: ActivationPatchingResult) -> None:
            parts.append(part_of)
            on_partial(part_of)

        small = dataclasses.replace(request, arguments=(*request.arguments, ("batch_size", 2)))
        return small.answer(model, progress=progress, check=check, on_partial=hand_on)

    monkeypatch.setattr(tab, "compute", in_small_chunks)
    panel.direction = "noising"
    panel.run()
    ordered = [part_of for part_of in parts if part_of.strongest_first]
    assert np.isnan(ordered[0].recovered["attn"]).all(), "the estimates come first"
    for site, values in tab.result.recovered.items():
        known = [np.isfinite(part_of.recovered[site]) for part_of in ordered]
        np.testing.assert_allclose(ordered[-1].recovered[site][known[-1]], values[known[-1]], atol=1e-5)
        lost = np.abs(1 - ordered[0].estimated[site])  # noising: 1 is the clean run
        strongest = np.argsort(-lost, axis=None, kind="stable")[:10]
        complete = next(cells for cells in known if cells.sum() >= 10)
        assert complete.ravel()[strongest].all(), site
    assert not tab.result.strongest_first
    assert tab.maps.maps["attn"].crossed == []


def test_a_cancelled_map_stays_and_is_saved_and_opened(
    pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache.clear()  # other tests have asked the same of this model
    panel = patch(pair.tuned)
    tab, whole = panel["map"], panel.result
    few = {site: np.where(np.arange(30).reshape(6, 5) % 7, np.nan, one) for site, one in whole.recovered.items()}
    part_of = dataclasses.replace(
        whole, recovered=few, estimated=whole.recovered, missing=75, strongest_first=True, partial=True
    )  # fmt: skip
    entered = threading.Event()

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        on_partial(part_of)
        entered.set()
        while True:
            check()

    monkeypatch.setattr(tab, "compute", endless)
    panel.direction = "noising"
    panel.go()
    assert entered.wait(LIMIT)
    panel.cancel()
    assert panel.wait(LIMIT)
    assert (panel.status.state, panel.result.partial) == ("cancelled", True)
    assert tab.maps.maps["attn"].title == "Attention output, partial"
    again = ActivationPatchingResult.load(panel.save(tmp_path / "map.npz"))
    assert (again.partial, again.missing, again.strongest_first) == (True, 75, True)
    for site, values in few.items():
        np.testing.assert_array_equal(again.recovered[site], values)
        np.testing.assert_array_equal(again.estimated[site], whole.recovered[site])
    page = panel.save(tmp_path / "map.html").read_text()
    assert "15 of 90" in page
    assert "has no interval" in page
    assert "tab Pairs" not in page


def test_a_longer_prompt_is_aligned_from_both_ends(pair: Any, patch: Any, wire: Any) -> None:
    panel = patch(pair.tuned, corrupted="The capital of the Italy is")
    tab = panel["map"]
    assert (tab.result.positions, tab.result.source_positions) == ((0, 1, 2, 4, 5), (0, 1, 2, 3, 4))
    assert "not patched: “·the” (3) of the corrupted prompt." in tab.aligned.value
    assert tab.tokens.columns == [[0, 0], [1, 1], [2, 2], [-1, 3], [3, 4], [4, 5]]
    wire.type(tab.tokens, selected=3)
    assert tab.position == 3
    panel.alignment = "-1:-1 3:4"
    settle(panel)
    assert (tab.result.positions, tab.result.unaligned) == ((4, 5), (0, 1, 2, 3))
    assert tab.tokens.pairs == [[3, 4], [4, 5]]
    assert "alignment=[[-1, -1], [3, 4]]" in tab.code(tab.request())


def test_an_alignment_is_mended_on_the_tokens(pair: Any, patch: Any, wire: Any) -> None:
    panel = patch(*pair, corrupted="The capital of the Italy is", view="B")
    tab = panel["map"]
    assert hidden(tab.unmended)
    assert ["iw-asked" in view._dom_classes for view in tab.plot.children] == [True, True, True, False, False]
    mended = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 5]]
    wire.type(tab.tokens, pairs=mended)
    settle(panel)
    assert (panel.alignment, panel["heads"].alignment) == ("0:0 1:1 2:2 3:3 4:5",) * 2
    assert tab.tokens.columns == [[0, 0], [1, 1], [2, 2], [3, 3], [-1, 4], [4, 5]]
    for result, model in zip(tab.results, pair, strict=True):
        assert (result.positions, result.unaligned) == ((0, 1, 2, 3, 5), (4,))
        tokens = {"answer": result.answers[0], "foil": result.foils[0]}
        by_hand = activation_patching(model, CLEAN, "The capital of the Italy is", alignment=mended, **tokens)
        np.testing.assert_allclose(result.recovered["attn"], by_hand.recovered["attn"], atol=1e-5)
    assert f"alignment={mended}" in tab.code(tab.request())
    for one, other in (([3, 3], [4, 3]), ([3, 5], [4, 4]), ([4, 5], [5, 5])):
        wire.type(tab.tokens, pairs=[[0, 0], one, other])
        assert tab.tokens.pairs == mended, "a token twice, a crossing and one out of range are sent back"
    tab.unmended.click()
    settle(panel)
    assert (panel.alignment, tab.tokens.columns[3], hidden(tab.unmended)) == ("", [-1, 3], True)
    wire.type(tab.tokens, pairs=mended)
    wire.type(tab.tokens, pairs=[[0, 0], [1, 1], [2, 2], [3, 4], [4, 5]])
    assert panel.alignment == "", "mended back to both ends"
    panel.tab = "paths"
    settle(panel)
    assert "must have equally many tokens" in panel.hints["corrupted"]
    assert (panel["paths"].aligned.value, tab.aligned.value) == (
        "",
        "5 and 6 tokens. Aligned with none, and not patched: “·the” (3) of the corrupted prompt.",
    )
    assert hidden(panel["paths"].mending)
    assert not panel["paths"].tokens.writable


@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"corrupted": CLEAN}, "corrupted", "both prompts are the same"),
        ({"corrupted": ""}, "swap", "there is no corrupted prompt yet"),
        ({"corrupted": "", "swap": "France"}, "swap", "must be old → new, such as France → Italy, got 'France'"),
        ({"corrupted": "", "swap": "Spain -> Italy"}, "swap", "'Spain' does not occur in the clean prompt"),
        ({"corrupted": "", "swap": "of -> of"}, "swap", "both prompts are the same"),
        ({"corrupted": "The capital city of France is"}, "foil", "answered by ' Paris' too, so that it gives no foil"),
        ({"target": " Paris", "foil": " Paris"}, "foil", "must differ"),
        ({"foil": " Paris"}, "foil", "answer and foil are the same token, ' Paris'"),
        ({"foil": "two words"}, "foil", "the foil must be one token"),
        ({"target": "two words"}, "target", "the answer must be one token"),
        ({"alignment": "0-0"}, "alignment", "pairs clean:corrupted"),
        ({"alignment": "0:9"}, "alignment", "alignment's position in corrupted must be"),
        ({"alignment": "2:3 3:3"}, "alignment", "alignment has position 3 of the corrupted prompt twice"),
        ({"alignment": "0:0 3:4 4:3"}, "alignment", "the pairs 3:4 and 4:3 cross"),
    ],
)
def test_what_has_to_be_chosen_is_a_hint_at_its_box(
    pair: Any, patch: Any, options: Any, field: str, sentence: str
) -> None:
    panel = patch(pair.tuned, prompt=CLEAN, **{"corrupted": CORRUPTED, **options})
    assert list(panel.hints) == [field]
    assert sentence in complaint(panel)
    with panel.batch_changes():
        panel.prompt, panel.corrupted, panel.target, panel.foil, panel.alignment = CLEAN, CORRUPTED, "", "", ""
        panel.swap = ""
    settle(panel)
    assert (panel.hints, panel.status.state) == ({}, "done")


def test_runs_that_agree_leave_every_cell_hatched_and_say_so(patch: Any) -> None:
    model = tiny_model("gpt2", "bridge")
    panel = patch(model, prompt="ab", corrupted="ac", target="a", foil="b", tab="map")
    tab = panel["map"]
    good = tab.result
    gone = ActivationPatchingResult(
        recovered={site: np.full_like(values, np.nan) for site, values in good.recovered.items()},
        each={site: np.full_like(values, np.nan) for site, values in good.each.items()},
        low={}, high={}, layers=good.layers, positions=good.positions, source_positions=good.source_positions,
        unaligned=(), source_unaligned=(), prompt_tokens=good.prompt_tokens, source_tokens=good.source_tokens,
        clean=good.clean, corrupted=good.clean, undefined=(0,), answers=good.answers,
        answer_tokens=good.answer_tokens, metric=good.metric, direction=good.direction,
    )  # fmt: skip
    tab.results = (gone,)
    tab.draw((gone,), tab.shown_request)
    assert "there is nothing to recover, and every cell is hatched" in tab.words.value
    assert np.isnan(matrix(tab, "attn")).all()
    assert "Largest" not in tab.words.value


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_some_layers_and_positions(pair: Any, patch: Any, wire: Any, direction: Any) -> None:
    longer = "Yes, the capital of Italy is"
    panel = patch(*pair, corrupted=longer, direction=direction, layers="0 3-4", positions="of France", view="A")
    tab = panel["map"]
    whole = activation_patching(
        pair.base, CLEAN, longer, alignment="ends", direction=direction, answer=tab.results[0].answers[0],
        foil=tab.results[0].foils[0],
    )  # fmt: skip
    clean = whole.source_positions if direction == "denoising" else whole.positions
    columns = [list(clean).index(at) for at in (2, 3)]
    for site, values in whole.recovered.items():
        np.testing.assert_allclose(matrix(tab, site), values[[0, 3, 4]][:, columns], atol=1e-4)
    heat = tab.maps.maps["attn"]
    assert heat.row_labels == ["0", "3", "4"]
    wire.type(heat, pinned=[1, 1])
    settle(tab)
    assert (tab.layer, tab.position, heat.pinned) == (3, 3, [1, 1])
    assert "layer 3 at “·France/Italy” (3)" in tab.cell_words.value
    assert part(float(whole.recovered["attn"][3, columns[1]])) in tab.cell_words.value
    panel.view = "difference"
    assert heat.row_labels == ["0", "3", "4"]


def test_heads_and_pairs_of_some_layers(pair: Any, patch: Any, wire: Any) -> None:
    panel = patch(pair.tuned, tab="heads", layers="2 0")
    tab = panel["heads"]
    found = activation_patching(pair.tuned, CLEAN, CORRUPTED, sites=["head"], positions=[-1]).recovered["head"][..., 0]
    np.testing.assert_allclose(matrix(tab, "head"), found[[2, 0]], atol=1e-4)
    layer, head = np.unravel_index(found[[2, 0]].argmax(), (2, 6))
    assert f"<b>{part(float(found[[2, 0]].max()))}</b>, {(2, 0)[layer]}.{head}" in tab.words.value
    wire.type(tab.maps.maps["head"], pinned=[1, 3])
    settle(tab)
    assert (tab.layer, tab.head) == (0, 3)
    assert part(float(found[0, 3])) in tab.cell_words.value
    panel.tab = "pairs"
    tab = panel["pairs"]
    tab.pairs = LINES
    settle(panel)
    assert tab.maps.maps["pairs"].row_labels == ["2", "0"]
    wire.type(tab.maps.maps["pairs"], pinned=[1, 3])
    settle(tab)
    assert "recovered at layer 0, token 3" in tab.table.caption
    each = tab.result.each["resid_pre"][:, 1, 3]
    assert [row[-1] for row in tab.table.rows] == pytest.approx(each.tolist(), abs=1e-5)
    tab.layers = "9"
    settle(tab)
    assert "layer must be in -6..5" in tab.controls.hints["layers"]


def test_positions_that_are_aligned_with_none_are_a_hint(pair: Any, patch: Any) -> None:
    panel = patch(pair.base, prompt="Yes, the capital of France is", corrupted=CORRUPTED, positions="Yes")
    assert "aligned with none in the other prompt" in panel["map"].controls.hints["positions"]


def test_two_models_share_answer_and_foil_and_scale(pair: Any, patch: Any) -> None:
    panel = patch(pair, view="difference")
    tab = panel["map"]
    assert len({result.answers for result in tab.results}) == 1
    a, b = (result.recovered["mlp"] for result in tab.results)
    np.testing.assert_allclose(matrix(tab, "mlp"), b - a, atol=1e-5)
    panel.view = "beside"
    assert [heat.vmax for heat in tab.maps.pairs["mlp"].shown] == [1, 1]
    tab.select(0, picked_site="mlp", position=4)
    settle(panel)
    assert len(tab.next_token.table.columns) == 7
    assert "answer = int(tuned.run(" in tab.code(tab.request())
    assert "foil = int(tuned.run(tuned.tokens('The capital of Italy is'))" in tab.code(tab.request())


# ---- heads


def test_the_heads_at_the_last_token_and_at_another(pair: Any, patch: Any, wire: Any) -> None:
    panel = patch(pair.tuned, tab="heads")
    tab = panel["heads"]
    found = activation_patching(pair.tuned, CLEAN, CORRUPTED, sites="head", positions=[-1])
    np.testing.assert_allclose(matrix(tab, "head"), found.recovered["head"][:, :, 0], atol=1e-5)
    tab.maps.on_pin("head", 0, 1)
    settle(panel)
    assert "output of head 1 of layer 0 at “·is” (4) in the corrupted run recovers <b>0.7" in tab.cell_words.value
    assert tab.next_token.table.rows
    tab.position = 3
    wire.type(tab.place, index=1)
    settle(panel)
    assert (tab.patched_at, tab.result.positions) == (3, (3,))
    panel.head_site = "pattern"
    settle(panel)
    assert tab.maps.maps["head"].title == "Attention pattern of each head, at all tokens"
    assert tab.result.recovered["pattern"].shape == (6, 6)


def test_shared_keys_are_named_in_the_axis(patch: Any) -> None:
    model = tiny_model("llama", "bridge")
    options: Any = {"target": " the", "foil": " a", "tab": "heads", "head_site": "head_k"}
    panel = patch(model, prompt="ab", corrupted="ac", **options)
    heat = panel["heads"].maps.maps["head"]
    assert (heat.x_label, heat.shape) == ("key/value head", [model.n_layers, model.n_kv_heads])


# ---- pairs


def test_pairs_are_tested_and_the_rest_is_muted(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned, tab="pairs")
    tab = panel["pairs"]
    assert tab.result.n_pairs == 15
    heat = tab.maps.maps["pairs"]
    kept = [[row, at] for row in range(6) for at in range(5) if [row, at] not in heat.muted]
    assert kept == [[0, 3], *([row, 4] for row in range(1, 6))]
    assert "<b>6 of 30</b> cells differ from 0 beyond chance" in tab.words.value
    np.testing.assert_allclose(tab.holm[0], tab.result.holm_p("resid_pre"))
    assert "95% interval 1.00 to 1.00, p" in heat.notes[3]
    tab.maps.on_pin("pairs", 0, 3)
    assert tab.table.columns[-1]["label"] == "recovered"
    assert tab.table.rows[0][:4] == [CLEAN, CORRUPTED, " Paris", " Rome"]
    assert {"p", "holm_p"} <= set(tab.frame().columns)


def test_few_pairs_cannot_be_beyond_chance_and_one_has_no_interval(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned, tab="pairs", pairs=LINES)
    tab = panel["pairs"]
    assert "With so few pairs no cell can" in tab.words.value
    assert len(tab.maps.maps["pairs"].muted) == 30
    panel.pairs = LINES[:1]
    settle(panel)
    assert "no interval and no test" in tab.words.value
    assert tab.maps.maps["pairs"].muted == []
    assert set(tab.maps.maps["pairs"].notes) == {"one pair, no interval"}
    assert "low" not in tab.frame().columns


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "there is no pair yet"),
        (["The capital of France is"], "line 1 must be clean | corrupted"),
        ([LINES[0], "Rome is | Rome is | x | y"], "line 2 are the same"),
        ([LINES[0], "Rome is | Paris is | x | y"], "need as many tokens"),
        ([LINES[0], LINES[1].rpartition(" | ")[0]], "some pairs have a foil and others have none"),
        ([LINES[0].replace("Rome", "Paris")], "answer and foil of line 1 are the same token"),
        (
            [
                "The capital of France is | The capital of Italy is",
                "The capital of Spain is | The capital in Spain is",
            ],
            "the corrupted prompt of pair 1 ('The capital in Spain is') is answered by ' Madrid' too",
        ),
    ],
)
def test_pairs_that_do_not_fit_are_a_hint(pair: Any, patch: Any, lines: list[str], sentence: str) -> None:
    panel = patch(pair.tuned, tab="pairs", pairs=lines)
    assert list(panel.hints) == ["pairs"]
    assert sentence in complaint(panel)
    panel.pairs = LINES
    settle(panel)
    assert panel.hints == {}


def test_pairs_come_from_a_file(pair: Any, patch: Any, wire: Any) -> None:
    panel = patch(pair.tuned, tab="pairs", pairs=LINES[:1])
    content = "clean,corrupted,answer,foil\nThe capital of Japan is,The capital of China is,Tokyo,Beijing\n"
    file = {"name": "p.csv", "content": content.encode(), "type": "", "size": 1}
    panel["pairs"].upload.value = ({**file, "last_modified": datetime.datetime.now(datetime.UTC)},)
    settle(panel)
    assert panel.pairs == ["The capital of Japan is | The capital of China is | Tokyo | Beijing"]
    assert panel["pairs"].result.answer_tokens == (" Tokyo",)


def test_the_difference_of_two_models_is_tested_pair_by_pair(pair: Any, patch: Any) -> None:
    panel = patch(pair, tab="pairs", view="difference", pair_site="mlp")
    tab = panel["pairs"]
    a, b = (result.recovered["mlp"] for result in tab.results)
    np.testing.assert_allclose(matrix(tab, "pairs"), b - a, atol=1e-5)
    assert all("(Holm)" in note for note in tab.maps.maps["pairs"].notes)


# ---- saving, sessions, trouble


def test_what_is_saved(pair: Any, patch: Any, tmp_path: Path) -> None:
    panel = patch(pair.base)
    for tab in ("map", "heads", "pairs"):
        panel.tab = tab
        settle(panel)
        for suffix in ("csv", "parquet", "svg", "png", "html", "npz"):
            assert panel.save(tmp_path / f"{tab}.{suffix}").stat().st_size > 200, (tab, suffix)
        again = ActivationPatchingResult.load(tmp_path / f"{tab}.npz")
        assert again.sites == panel.result.sites
    table = pd.read_csv(tmp_path / "map.csv")
    assert set(table.site) == {"resid_pre", "attn", "mlp"}
    assert len(table) == 3 * 6 * 5


def test_copied_code_gives_the_same(pair: Any, patch: Any) -> None:
    for tab in ("map", "heads", "pairs"):
        panel = patch(pair.tuned, tab=tab)
        names: dict[str, Any] = {}
        exec(panel.current.code(panel.current.request()), names)
        for site, values in panel.result.recovered.items():
            np.testing.assert_allclose(names["result"].recovered[site], values, atol=1e-5)


def test_on_a_workbench_the_prompt_is_shared_and_an_example_pair_offered(pair: Any, wire: Any) -> None:
    bench = Workbench(pair.tuned, prompt="The capital of Japan is")
    panel = PatchingPanel(bench)
    tab = panel["map"]
    try:
        assert panel.hints.keys() == {"swap"}
        assert not hidden(tab.example_button)
        wire.click(tab.example_button)
        settle(panel)
        assert (bench.prompt, panel.corrupted, panel.status.state) == (CLEAN, CORRUPTED, "done")
        assert hidden(tab.example_button)
        bench.select(prompt_token=3)
        assert panel.position == 3
    finally:
        panel.close()
        bench.close()


@pytest.mark.parametrize("response_token", [0, 2])
def test_words_are_swapped_in_the_prompt_and_in_the_response_so_far(pair: Any, patch: Any, response_token: int) -> None:
    question, answer = "Q: Where is France? A: The capital of", " France is Paris"
    panel = patch(
        pair.tuned,
        prompt=question,
        response=answer,
        response_token=response_token,
        swap="France -> Italy",
        foil=" Rome",
    )
    assert (panel.hints, panel.status.state) == ({}, "done")
    prompt_ids, response_ids = pair.tuned.split(question, answer)
    swapped = question.replace("France", "Italy"), ["", " Italy is"][response_token > 0]
    others = [token for part in pair.tuned.split(*swapped) for token in part]
    found = activation_patching(
        pair.tuned, [*prompt_ids, *response_ids[:response_token]], others, response_ids[response_token], foil=" Rome",
        sites=("resid_pre", "attn", "mlp"),
    )  # fmt: skip
    for site, values in found.recovered.items():
        np.testing.assert_allclose(panel.result.recovered[site], values, atol=1e-5)
    names: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), names)
    np.testing.assert_allclose(names["result"].recovered["attn"], found.recovered["attn"], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "old", "swapped"),
    [
        ("a cat and a man", "a", "X cat and X man"),
        ("a cat's a cat", "cat's", "a X a cat"),
        ("in a.b, not in a.bc", "a.b", "in X, not in a.bc"),
        ("Mary, Maryland", "Mary,", "X Maryland"),
        ("Only Maryland", "Mary", "Only Xland"),
        ("法国的首都是", "法国", "X的首都是"),
    ],
)
def test_whole_words_are_swapped_where_there_are_any(text: str, old: str, swapped: str) -> None:
    swap = WordSwap.of(old, "X", text)
    assert swap.swapped(text) == eval(swap.code(repr(text)), {"re": re}) == swapped
    back = WordSwap.of(old, r"\1", text)
    assert back.swapped(text) == eval(back.code(repr(text)), {"re": re}) == swapped.replace("X", r"\1")


def test_a_chat_opens_with_the_country_swapped(tmp_path: Path) -> None:
    model = from_folder(tmp_path, TEMPLATES["chat"])
    bench = Workbench(model, prompt=opening_of([model]).prompt)
    panel = PatchingPanel(bench)
    try:
        assert (panel.swap, panel.corrupted) == ("France → Italy", "")
        assert panel.hints == {}
        assert differs(panel["map"].matched)
        bench.prompt = "What is France known for?"
        assert panel.swap == "France → Italy"
        bench.prompt = "Another text"
        assert panel.swap == ""
        assert "there is no corrupted prompt yet" in panel.hints["swap"]
        bench.prompt = opening_of([model]).prompt
        panel.swap = "capital → currency"
        bench.prompt = "Another text"
        assert panel.swap == "capital → currency", "what was typed stays"
        assert "does not occur in the clean prompt" in panel.hints["swap"]
    finally:
        panel.close()
        bench.close()


def test_a_chat_is_swapped_for_two_models_of_which_one_has_a_template(patch: Any, tmp_path: Path) -> None:
    plain, chat = (from_folder(tmp_path / name, TEMPLATES[name]) for name in ("plain", "chat"))
    panel = patch(plain, chat, prompt=opening_of([plain, chat]).prompt, swap="France → Italy", metric="log_prob")
    assert (panel.hints, panel.status.state) == ({}, "done")
    assert differs(panel["map"].matched)
    both = patch(chat, prompt=CLEAN, corrupted=CORRUPTED, swap="France → Spain")
    shown = [hidden(both["map"].controls[name]) for name in ("corrupted", "swap")]
    assert shown == [False, True], "the prompt that is typed as a whole counts, and is in sight"


def test_the_prompt_of_an_example_brings_its_partner(pair: Any) -> None:
    example = preset("indirect object")
    bench = Workbench(pair.tuned, prompt=example.prompt)
    panel = PatchingPanel(bench)
    try:
        assert panel.corrupted == example.corrupted
        panel.corrupted = ""
        assert panel.hints.keys() == {"swap"}, "a box that was cleared stays empty"
        bench.prompt = CLEAN
        assert panel.corrupted == CORRUPTED
        bench.prompt = "The capital of Japan is"
        assert panel.corrupted == CORRUPTED, "what is there stays"
    finally:
        panel.close()
        bench.close()


def test_troubles(pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = patch(pair.base)
    told_of_broken_weights(panel, pair.base, "the largest logit of the clean prompt is not finite")
    panel.run(fresh=True)
    tab = panel["map"]
    cancelled_and_closed(tab, monkeypatch, lambda: setattr(tab, "direction", "noising"))
