"""The token decomposition explorer without a browser: what it asks for, draws, links, saves, and takes amiss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp_widgets import (
    TokenDecompositionExplorer,
    Workbench,
    decompose_logit,
    decompose_tokens,
    load_model,
)
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.data.presets import PRESETS
from interp_widgets.widgets.token_decomposition.rows import Rows
from interp_widgets.widgets.views.base import bytes_floats
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_model, tiny_tokenizer
from tests.shipped import demo_pair
from tests.widgets.opening import hooks_on, opening, settle
from tests.widgets.trouble import cancelled_and_closed, complaint, told_of_broken_weights

pytestmark = pytest.mark.slow

PROMPT, TARGET = PRESETS[0].prompt, PRESETS[0].target
RESPONSE = " Paris and"


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def explore(wire: Any) -> Iterator[Callable[..., TokenDecompositionExplorer]]:
    """Opens explorers; afterwards every worker and comm they opened must be gone."""
    with opening(TokenDecompositionExplorer) as build:
        yield build
    assert wire.open() <= 2, "what the kernel shares (Bokeh's code) may stay, nothing else"


def row_of(panel: TokenDecompositionExplorer, position: int | None) -> list[Any]:
    """The row of the table of sources for a position, or for the rest (None)."""
    return next(row for row in panel.about.sources.rows if row[0] == position)


# ---- what it shows


def test_it_opens_with_a_result_on_the_first_example(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    assert (panel.prompt, panel.target, panel.status.state) == (PROMPT, TARGET, "done"), panel.status.error
    tokens, logit = panel.result.tokens, panel.result.logit
    assert panel.map.heat.shape == [len(tokens.tokens) + 1, pair.base.n_layers + 1]
    assert panel.map.heat.row_labels == [*tokens.tokens, "BOS"], "LLaMA has no biases, and a BOS"
    assert "“·Paris”" in panel.map.sums.value
    assert len(panel.about.part.rows) == 10
    assert logit.target == tokens.target


def test_a_first_token_that_carries_the_sink_is_named(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sink" not in explore(pair.base).about.sources.caption
    monkeypatch.setattr(Prompt, "first_is_sink", True)
    panel = explore(pair.base, prompt="Paris is the capital of the country", target=" of")  # in no cache
    assert panel.result.logit.sink
    assert panel.about.sources.caption.endswith("its share is not that of its word alone.")
    assert "attention sink" in panel.describe_selection().sentences[0]


def test_the_map_is_what_the_functions_give(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, color="probability")
    tokens = decompose_tokens(pair.base, PROMPT, target=TARGET)
    logit = decompose_logit(pair.base, PROMPT, TARGET)
    there = tokens.top_token.T >= 0
    chances = np.where(there, tokens.probability.T, np.nan)
    np.testing.assert_allclose(panel.map.heat.matrix[:-1], chances, atol=1e-6)
    np.testing.assert_allclose(
        panel.map.heat.matrix[-1], np.where(tokens.bias_top_token >= 0, tokens.bias_probability, np.nan), atol=1e-6
    )
    np.testing.assert_allclose(bytes_floats(panel.map.heat.row_bars), [*logit.share, logit.bias], atol=1e-5)
    np.testing.assert_allclose(bytes_floats(panel.map.strip.values), logit.share, atol=1e-5)
    np.testing.assert_allclose(bytes_floats(panel.map.strip.density), tokens.norm_share[-1], atol=1e-6)
    assert (panel.map.heat.vmin, panel.map.heat.vmax) == (0, 1)
    other = decompose_tokens(pair.tuned, PROMPT, target=TARGET)
    assert not np.allclose(other.probability, tokens.probability, atol=1e-2), "another model must not give the same"


def test_the_token_that_the_answer_hangs_on_leads(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, color="probability")
    first = panel.about.sources.rows[0]
    assert first[1] == "·Eiffel"
    assert first[-2] == "·Paris"
    assert panel.about.part.rows[0][0] == "·Paris"
    assert "“·Eiffel” (1) at the output" in panel.about.part.caption
    last_column = panel.map.heat.texts[panel.map.heat.shape[1] - 1 :: panel.map.heat.shape[1]]
    assert last_column[1] == " Paris"


def test_the_sums_are_told(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    tokens, logit = panel.result.tokens, panel.result.logit
    assert tokens.error.max() < 1e-5
    assert f"{tokens.error.max():.0e}".replace("e-0", "e-") in panel.map.sums.value
    assert f"{logit.share.sum() + logit.bias:.2f}" in panel.map.sums.value
    assert f"sum {logit.share.sum() + logit.bias:.2f}" in panel.about.sources.caption
    total = sum(row[2] for row in panel.about.sources.rows)
    assert total == pytest.approx(logit.logit, abs=1e-4)


@pytest.mark.parametrize("color", ["probability", "norm_share", "target_probability", "target_logit"])
def test_colours(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch, color: str) -> None:
    panel = explore(pair.base, pair.tuned)
    monkeypatch.setattr(panel, "compute", lambda *a, **k: pytest.fail("the model ran"))
    panel.color = color
    a, b = (np.array(getattr(result.tokens, color).T) for result in panel.result)
    if color in ("probability", "target_probability"):
        a, b = (np.where(r.tokens.top_token.T >= 0, m, np.nan) for r, m in zip(panel.result, (a, b), strict=True))
    ranges = {}
    for view, expected in (("A", a), ("B", b), ("difference", b - a)):
        panel.view = view
        np.testing.assert_allclose(panel.map.heat.matrix[:-1], expected, atol=1e-5)
        ranges[view] = (panel.map.heat.vmin, panel.map.heat.vmax)
    assert ranges["A"] == ranges["B"], "one scale for both models"
    assert ranges["difference"][0] == -ranges["difference"][1]
    assert np.isnan(panel.map.heat.matrix[-1]).all() == (color in ("norm_share", "target_probability"))
    assert panel.status.state == "done", panel.status.error


def test_what_outshines_the_others_does_not_set_the_scale(
    pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = explore(pair.base)
    heat, shares = panel.map.heat, panel.result.tokens.target_logit.T
    assert panel.color == "target_logit"
    assert not any(heat.texts), "a part's likeliest token says nothing about this logit"
    assert heat.vmax == pytest.approx(np.abs(shares[:, 1:]).max())
    logit = replace(panel.result.logit, sink=True)
    panel.rows = (Rows(replace(panel.result, logit=logit)),)
    panel.map.paint()
    usual, largest = np.abs(shares[1:, 1:]).max(), np.nanmax(np.abs(heat.matrix))
    assert heat.vmax == pytest.approx(usual)
    assert (f"beyond the scale up to {largest:.2f}" in heat.title) == (largest > usual)
    panel.color = "norm_share"
    assert "beyond" not in heat.title


def test_the_threshold_chooses_labels_without_a_run(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.base, color="probability")
    panel.wait(120)
    monkeypatch.setattr(panel, "compute", lambda *a, **k: pytest.fail("the model ran"))
    monkeypatch.setattr(panel.jobs, "start", lambda *a, **k: pytest.fail("a part was read again"))
    chance = panel.map.heat.matrix.ravel()
    for threshold in (0.0, 0.2, 0.5, 1.0):
        panel.threshold = threshold
        labelled = np.array([bool(text) for text in panel.map.heat.texts])
        np.testing.assert_array_equal(labelled, np.nan_to_num(chance, nan=-1) >= threshold)


def test_bars(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned)
    shares = [np.append(r.logit.share, r.logit.bias) for r in panel.result]
    tops = set()
    for view, expected in (("A", shares[0]), ("B", shares[1])):
        panel.view = view
        np.testing.assert_allclose(bytes_floats(panel.map.heat.row_bars), expected, atol=1e-5)
        tops.add((panel.map.heat.row_bars_max, panel.map.heat.row_bars_signed))
    assert len(tops) == 1, "one scale for both models"
    panel.view = "difference"
    np.testing.assert_allclose(bytes_floats(panel.map.heat.row_bars), shares[1] - shares[0], atol=1e-5)
    panel.view, panel.bars = "A", "norm"
    np.testing.assert_allclose(
        bytes_floats(panel.map.heat.row_bars)[:-1], panel.result[0].tokens.norm_share[-1], atol=1e-6
    )
    panel.bars = "none"
    assert panel.map.heat.row_bars == b""


def test_charts_follow_the_view_and_no_slider(pair: Any, explore: Any) -> None:
    panel = explore(pair)
    norms, logit = panel.about.charts
    assert set(norms.source.data["model"]) == {"A: demo-base"}
    rows = dict(zip(norms.lines.data["source"], norms.lines.data["ys"], strict=True))
    np.testing.assert_allclose(rows["·Eiffel (1)"], panel.result[0].tokens.norm_share[:, 1], atol=1e-6)
    assert "·Paris" in str(logit.figure.title.text)
    before = norms.lines.data
    panel.threshold, panel.color = 0.6, "norm_share"
    assert norms.lines.data is before
    left_out = next(i for i in range(9) if not any(f"({i})" in name for name in before["source"]))
    panel.source = left_out
    colors = [dict(zip(c.lines.data["source"], c.lines.data["color"], strict=True)) for c in (norms, logit)]
    tokens = panel.result[0].tokens.tokens
    for name in ("·Eiffel (1)", f"{tokens[left_out].replace(' ', '·')} ({left_out})"):
        assert colors[0][name] == colors[1][name], "one token, one colour, and the selected has its line"
    panel.view = "difference"
    assert set(norms.source.data["model"]) == {"A: demo-base", "B: demo-tuned"}
    panel.prompt = "The cat"
    settle(panel)
    assert len({result.logit.target for result in panel.result}) == 2, "the models go on differently here"
    assert "a typed target is used for both" in logit.message
    panel.target = " was"
    settle(panel)
    assert logit.message == ""


def test_two_models_and_their_difference(pair: Any, explore: Any) -> None:
    panel = explore(pair)
    panel.view = "difference"
    settle(panel)
    a, b = panel.result
    assert len(panel.about.sources.columns) == 8
    for row in panel.about.sources.rows:
        assert row[4] == pytest.approx(row[3] - row[2])
    place = panel.about.listed_source
    assert place == int(np.argmax(np.abs(b.logit.share - a.logit.share))), "what differs most"
    assert [column["label"] for column in panel.about.part.columns] == [
        "A token", "A probability", "B token", "B probability",
    ]  # fmt: skip
    panel.color = "probability"
    assert any("→" in text for text in panel.map.heat.texts)
    assert panel.map.heat.title.startswith("B − A")


def test_models_of_other_depth_have_no_difference_map(explore: Any, tmp_path: Path) -> None:
    tiny_hf("gpt2", n_layers=2).save_pretrained(tmp_path)
    tiny_tokenizer("gpt2").save_pretrained(tmp_path)
    deep, shallow = tiny_model("gpt2", "hooked"), load_model(tmp_path, backend="hooked")
    panel = explore(deep, shallow, prompt="The capital of France is", column=3)
    assert panel.map.heat.shape[1] == 4
    panel.view = "B"
    settle(panel)
    assert panel.map.heat.shape[1] == 3
    assert panel.map.heat.cross == [-1, 2]
    panel.view = "difference"
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    assert panel.map.heat.shape == [0, 0]
    assert "these have 3 and 2: choose A beside B" in panel.map.heat.empty
    assert len(panel.about.part.rows) == 10
    panel.view = "A"
    assert panel.map.heat.shape[1] == 4


def test_every_cell_has_its_numbers_in_words(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned)
    assert panel.map.heat.notes[0] == "nothing yet", "the first token has not reached the last position"
    note = panel.map.heat.notes[1 * 7 + 6]
    tokens = panel.result[0].tokens
    assert note.startswith("alone “·Paris” 0.945, norm ")
    assert f"{tokens.norm_share[6, 1]:.1%}" in note
    panel.view = "difference"
    assert panel.map.heat.notes[1 * 7 + 6].startswith("A: alone “·Paris” 0.945, ")
    assert "; B: alone “·Paris” 0.997" in panel.map.heat.notes[1 * 7 + 6]


# ---- what it is asked


def test_options_reach_the_functions(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    panel.lens = "frozen"
    settle(panel)
    expected = decompose_tokens(pair.base, PROMPT, target=TARGET, lens="frozen")
    np.testing.assert_allclose(panel.result.tokens.probability, expected.probability, atol=1e-6)
    panel.foil = " Rome"
    settle(panel)
    against = decompose_logit(pair.base, PROMPT, TARGET, foil=" Rome")
    np.testing.assert_allclose(panel.result.logit.share, against.share, atol=1e-6)
    assert "minus that of “·Rome”" in panel.map.sums.value
    panel.biases = "spread"
    settle(panel)
    assert panel.result.tokens.biases == "spread"
    assert not np.any(panel.result.tokens.bias - panel.result.tokens.bos)
    assert "spread over them + BOS equal" in panel.map.sums.value


def test_spread_biases_are_still_a_share_of_the_logit(explore: Any) -> None:
    panel = explore(tiny_model("gpt2", "hooked"), prompt="The capital of France is", biases="spread")
    assert panel.map.heat.row_labels[-1] == "biases"
    panel.color = "probability"
    assert np.isnan(panel.map.heat.matrix[-1]).all()
    assert bytes_floats(panel.map.heat.row_bars)[-1] == pytest.approx(panel.result.logit.bias)
    assert "spread over them equal" in panel.map.sums.value


def test_an_example_brings_its_target_and_drops_the_foil(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base, foil=" Rome")
    assert panel.result.logit.foil_token == " Rome"
    wire.type(panel.texts.boxes.example, index=2)
    settle(panel)
    assert (panel.prompt, panel.target, panel.foil) == (PRESETS[1].prompt, PRESETS[1].target, "")
    assert panel.result.logit.target_token == PRESETS[1].target


def test_without_a_target_the_likeliest_is_followed(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, prompt="The capital of Japan is")
    assert panel.target == ""
    assert panel.result.logit.target_token == " Tokyo"
    assert "“·Tokyo”" in panel.map.sums.value


def test_a_response_token_is_decomposed_where_it_is_predicted(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base, prompt=PROMPT, response=RESPONSE)
    ids, response = pair.base.split(PROMPT, RESPONSE)
    assert panel.result.logit.target == response[0]
    panel.response_token = 1
    settle(panel)
    assert panel.result.tokens.position == len(ids) - 1
    assert panel.result.tokens.tokens[-1] == " Paris"
    assert panel.result.logit.target == response[1]
    expected = decompose_logit(pair.base, [*ids, response[0]], response[1])
    np.testing.assert_allclose(panel.result.logit.share, expected.share, atol=1e-6)
    assert panel.position_control.slider.max == len(ids) - 1


def test_the_position_slider_looks_elsewhere(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base)
    last = len(panel.result.tokens.tokens) - 1
    assert (panel.position, panel.position_control.slider.value, panel.position_control.slider.max) == (-1, last, last)
    wire.type(panel.position_control.slider, value=3)
    settle(panel)
    assert (panel.position, panel.result.tokens.position) == (3, 3)
    assert panel.map.heat.row_labels == [*panel.result.tokens.tokens[:4], "BOS"], "what comes later brings nothing"
    assert panel.map.strip.tokens == list(panel.result.tokens.tokens[:4])
    assert "3 of 0 to 8: <b>·is</b>" in panel.position_control.label.value
    expected = decompose_logit(pair.base, PROMPT, TARGET, position=3)
    np.testing.assert_allclose(panel.result.logit.share, expected.share, atol=1e-6)
    wire.type(panel.position_control.slider, value=last)
    settle(panel)
    assert panel.position == -1
    assert panel.status.text.endswith("(from cache)")


def test_another_text_is_looked_at_its_end(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    panel.position = 3
    panel.prompt = "The capital of Japan is"
    settle(panel)
    assert panel.position == -1
    assert panel.result.tokens.position == panel.position_control.slider.max == len(panel.result.tokens.tokens) - 1


def test_at_another_position_the_responses_token_is_not_the_target(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, prompt=PROMPT, response=RESPONSE, position=3)
    expected = decompose_logit(pair.base, PROMPT, None, position=3)
    assert panel.result.logit.target == expected.target
    panel.position = panel.position_control.slider.max
    settle(panel)
    assert panel.result.logit.target == pair.base.split(PROMPT, RESPONSE)[1][0]


# ---- selection and linking


def test_a_clicked_cell_is_read(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base)
    wire.type(panel.map.heat, pinned=[2, 5], cross=[2, 5])
    settle(panel)
    assert (panel.source, panel.column, panel.layer, panel.prompt_token) == (2, 5, 5, 2)
    assert panel.map.strip.selected == 2
    assert "“·Tower” (2) entering layer 5" in panel.about.part.caption
    tokens = panel.result.tokens
    assert panel.about.part.rows[0][1] == pytest.approx(tokens.probability[5, 2], abs=1e-6)
    assert row_of(panel, 2)[-3] == pytest.approx(tokens.norm_share[5, 2])
    assert panel.about.sources.rows[panel.about.sources.selected][0] == 2
    wire.type(panel.map.heat, pinned=[9, 6], cross=[9, 6])
    settle(panel)
    assert (panel.source, panel.layer, panel.prompt_token) == (9, 5, -1), "the rest is no prompt token"
    assert panel.map.strip.selected == -1
    assert panel.about.part.caption == "Alone, BOS at the output predicts:"
    assert panel.about.part.rows[0][1] == pytest.approx(tokens.bias_probability[6], abs=1e-6)
    wire.type(panel.map.heat, pinned=[], cross=[])
    assert panel.source == -1


def test_a_part_that_is_not_there_yet_says_so(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base)
    wire.type(panel.map.heat, pinned=[1, 0], cross=[1, 0])
    settle(panel)
    assert panel.about.part.rows == []
    assert "zero here" in panel.about.part.empty


def test_strip_table_and_map_select_the_same(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base)
    wire.type(panel.map.strip, selected=4)
    settle(panel)
    assert panel.source == 4
    assert panel.map.heat.cross == panel.map.heat.pinned == [4, 6]
    place = next(i for i, row in enumerate(panel.about.sources.rows) if row[0] == 5)
    wire.type(panel.about.sources, selected=place)
    settle(panel)
    assert panel.source == panel.map.strip.selected == panel.prompt_token == 5
    assert "“·in” (5)" in panel.about.part.caption
    wire.type(panel.map.strip, selected=-1)
    assert panel.source == panel.prompt_token == -1
    assert panel.map.heat.cross == []


def test_the_selection_stays_with_its_token(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    panel.source = 2
    panel.threshold = 0.5
    panel.color = "target_logit"
    assert panel.source == panel.map.strip.selected == 2
    panel.position = 4
    settle(panel)
    assert panel.source == 2
    assert panel.map.heat.cross == [2, 6]
    panel.source = 5
    panel.position = 3
    settle(panel)
    assert panel.source == 4, "the rest is the last row still"
    panel.position = 1
    panel.source = 1
    panel.prompt = "Something else altogether"
    settle(panel)
    assert panel.source == -1


def test_on_a_workbench(pair: Any, explore: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT, response=RESPONSE, prompt_token=1, layer=4)
    one, other = explore(bench), explore(bench)
    assert (one.source, one.column) == (1, 4)
    assert one.map.heat.cross == [1, 4]
    bench.response_token = 1
    for panel in (one, other):
        settle(panel)
        assert panel.result.tokens.tokens[-1] == " Paris"
    one.position = 2
    settle(one)
    assert other.position == -1, "a position is a panel's own"
    bench.select(prompt_token=2, layer=3)
    assert (other.source, other.column) == (2, 3)
    other.select(0, 6)
    assert (bench.prompt_token, bench.layer) == (0, 5)
    assert other.column == 6, "the last column stays, though there is no such layer"
    bench.response_token = 0
    settle(one)
    assert one.position == -1, "a token chosen elsewhere is looked at where it is predicted"


# ---- what goes wrong


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"target": "Eiffel Tower"}, "the target must be one token, 'Eiffel Tower' is"),
        ({"target": " Eiffel Tower"}, "(' Eiffel', ' Tower')"),
        ({"foil": "a b"}, "the foil must be one token"),
        ({"foil": TARGET}, "target and foil must differ"),
        ({"prompt": "word " * 3000}, "shorten it by at least"),
    ],
)
def test_bad_input_is_a_sentence_and_loses_nothing(pair: Any, explore: Any, change: Any, sentence: str) -> None:
    panel = explore(pair.base)
    good, cells = panel.result, panel.map.heat.shape
    for name, value in change.items():
        setattr(panel, name, value)
    panel.go()
    assert panel.wait(120)
    assert sentence in complaint(panel)
    assert panel.hints, "a box that is not filled in is no failure"
    assert panel.result is good
    assert panel.map.heat.shape == cells
    assert hooks_on(pair.base) == 0


@pytest.mark.parametrize("position", [99, -99])
def test_a_position_that_is_not_there_is_a_sentence_and_loses_nothing(pair: Any, explore: Any, position: int) -> None:
    panel = explore(pair.base)
    panel.position = 4
    settle(panel)
    good, cells = panel.result, panel.map.heat.shape
    panel.position = position
    assert panel.wait(120)
    assert "position must be in -9..8" in complaint(panel)
    assert (panel.result, panel.position, panel.map.heat.shape) == (good, 4, cells)
    panel.go()
    assert panel.wait(120)
    assert (panel.status.error, panel.result) == ("", good)


def test_an_error_goes_when_its_cause_goes(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    panel.position = 99
    assert "position must be" in panel.status.error
    panel.position = 5
    settle(panel)
    assert (panel.status.state, panel.result.tokens.position) == ("done", 5)


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "hooked", torch.float32), ("gpt2", "bridge", torch.float32), ("gpt_neox", "hooked", torch.float32),
     ("llama", "hooked", torch.bfloat16)],
)  # fmt: skip
def test_opens_on_either_backend_and_in_half_precision(explore: Any, family: str, backend: Any, dtype: Any) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = explore(model, prompt="The capital of France is")
    assert panel.status.state == "done", panel.status.error
    assert panel.map.heat.row_labels[-1] == ("biases" if model.normalization == "LayerNorm" else panel.rows[0].rest)
    assert np.isfinite(bytes_floats(panel.map.heat.row_bars)).all()
    assert len(panel.about.part.rows) == 10


@pytest.mark.parametrize("prompt", ["שלום 😀 <img src=x onerror=alert(1)> مرحبا", "a\n\n\tb  c", "x"])
def test_odd_texts_are_shown_as_they_are(pair: Any, explore: Any, prompt: str) -> None:
    panel = explore(pair.base, prompt=prompt)
    assert panel.status.state == "done", panel.status.error
    assert pair.base.decode(list(panel.result.tokens.ids)) == prompt
    assert "<img" not in panel.map.sums.value + panel.position_control.label.value


def test_weights_that_are_not_finite_are_an_error(pair: Any, explore: Any) -> None:
    told_of_broken_weights(explore(pair.base), pair.base, r"(?i)nan|finite|add up")


def test_partial_results_are_drawn(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.base)
    parts: list[Any] = []
    request = panel.request()
    monkeypatch.setattr("interp_widgets.analysis.token_decomposition.decomposition.chunk_rows", lambda model, n: 1)
    request.answer(pair.base, progress=lambda *_: None, check=lambda: None, on_partial=parts.append)
    assert parts, "several chunks give partial results"
    panel.results = (parts[0],)
    monkeypatch.setattr(panel.jobs, "start", lambda *a, **k: pytest.fail("a part was read that is not there"))
    panel.draw((parts[0],), request)
    assert "partial" in panel.map.heat.title
    assert "not computed yet" in panel.map.sums.value
    assert np.isnan(panel.map.heat.matrix).any()


def test_cancel_and_close_during_a_run(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.base)
    cancelled_and_closed(panel, monkeypatch, lambda: setattr(panel, "lens", "frozen"))


def test_200_moves_of_the_threshold_end_where_they_end(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base, color="probability")
    slider = panel.controls["threshold"]
    assert slider.description == "Labels from"
    for step in range(200):
        wire.type(slider, value=(step % 20) / 20)
    assert panel.threshold == slider.value == 0.95
    labelled = [bool(text) for text in panel.map.heat.texts]
    np.testing.assert_array_equal(labelled, np.nan_to_num(panel.map.heat.matrix.ravel(), nan=-1) >= 0.95)
    assert panel.status.state == "done"


def test_forecast_grows_with_the_text(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    short = panel.request()
    panel.position = 2
    settle(panel)
    early = panel.request()
    panel.prompt = PROMPT + " the great and old and" * 8
    settle(panel)
    long = panel.request()
    flops = [panel.cost(request, pair.base).flops for request in (early, short, long)]
    assert flops == sorted(flops)
    assert len(set(flops)) == 3


# ---- what is taken away


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target": "", "biases": "spread", "lens": "frozen"},
        {"foil": " Rome", "position": 4},
        {"response": RESPONSE, "response_token": 1, "target": ""},
        {"response": RESPONSE, "position": 3, "target": ""},
    ],
)
def test_copied_code_reproduces_the_result(
    pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("interp_widgets.load_model", {"demo-base": pair.base, "demo-tuned": pair.tuned}.__getitem__)
    panel = explore(pair.base, pair.tuned, **{"prompt": PROMPT, "target": TARGET, **options})
    space: dict[str, Any] = {}
    exec(panel.code(panel.request()), space)
    for letter, result in zip("ab", panel.result, strict=True):
        np.testing.assert_allclose(space[f"parts_{letter}"].parts, result.tokens.parts, atol=1e-5)
        np.testing.assert_allclose(space[f"parts_{letter}"].probability, result.tokens.probability, atol=1e-5)
        np.testing.assert_allclose(space[f"shares_{letter}"].share, result.logit.share, atol=1e-5)


def test_copied_code_of_one_model_shows_a_table(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    source = panel.code(panel.request())
    space: dict[str, Any] = {}
    exec(source, space)
    assert source.splitlines()[-1] == "parts.to_frame()"
    np.testing.assert_allclose(space["parts"].parts, panel.result.tokens.parts, atol=1e-5)


def test_saving(pair: Any, explore: Any, tmp_path: Path) -> None:
    panel = explore(pair)
    for suffix in (".csv", ".parquet", ".svg", ".png", ".html"):
        assert panel.save(tmp_path / f"parts{suffix}").stat().st_size > 500
    table = pd.read_csv(tmp_path / "parts.csv")
    a, _ = panel.result
    cells = a.tokens.probability.size + len(a.tokens.error)
    assert len(table) == 2 * cells
    of_a = table[(table.model == "A") & (table.position >= 0)]
    np.testing.assert_allclose(of_a.norm_share, a.tokens.norm_share.ravel(), atol=1e-6)
    np.testing.assert_allclose(of_a.target_logit, a.tokens.target_logit.ravel(), atol=1e-5)
    last = table[(table.model == "A") & (table.layer == pair.base.n_layers)]
    assert last.logit_share.sum() == pytest.approx(a.logit.logit, abs=1e-4)
    assert "·Eiffel" in (tmp_path / "parts.svg").read_text(encoding="utf-8")


def test_closing_leaves_no_comm(pair: Any, wire: Any) -> None:
    before = wire.open()
    panel = TokenDecompositionExplorer(pair.base)
    panel.wait(120)
    panel.close()
    left = wire.open() - before
    again = TokenDecompositionExplorer(pair.base)
    again.close()
    assert wire.open() - before == left <= 2


def test_shares_are_compared_with_chance_on_demand(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    assert "Not compared with chance yet" in panel.map.sums.value
    assert "iw-hidden" not in panel.chance_button._dom_classes
    assert not panel.map.heat.muted
    panel.chance_button.click()
    settle(panel)
    logit = panel.result.logit
    beyond = logit.p[: panel.rows[0].sources] <= 0.05
    assert 0 < beyond.sum() < len(beyond)
    assert "iw-hidden" in panel.chance_button._dom_classes
    assert f"{beyond.sum()} of {len(beyond)} tokens" in panel.map.sums.value
    assert (np.isfinite(bytes_floats(panel.map.strip.values)) == beyond).all()
    assert {row for row, _ in panel.map.heat.muted} == set(np.flatnonzero(~beyond).tolist())
    assert "draws=199" in panel.code(panel.request())
    panel.color = "norm_share"
    assert not panel.map.heat.muted


def test_two_models_are_compared_with_chance_each_by_itself(pair: Any, explore: Any) -> None:
    panel = explore(pair, view="difference", share_draws=19)
    said = panel.map.sums.value
    assert all(f"{escape(result.logit.in_words())}; the others have no colour." in said for result in panel.result)
    assert "B − A is not tested: each model's p compares" in said
    panel.view = "B"
    assert "B − A is not tested" not in panel.map.sums.value
