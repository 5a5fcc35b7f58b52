"""The logit lens explorer without a browser: what it asks for, draws, links, saves, and how it takes bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp_widgets import SaliencyExplorer, Workbench, load_model, logit_lens
from interp_widgets.analysis.logit_lens import LogitLensResult, save_translators
from interp_widgets.compute.cache import results as cache
from interp_widgets.data.presets import PRESETS
from interp_widgets.widgets.base.prediction import Likeliest, Prediction
from interp_widgets.widgets.base.request import Request
from interp_widgets.widgets.logit_lens import LogitLensExplorer
from interp_widgets.widgets.logit_lens.cells import COLOR_LABELS, RANKS
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_model, tiny_tokenizer
from tests.pictures import texts
from tests.shipped import demo_pair
from tests.widgets.opening import hooks_on, opening, settle
from tests.widgets.trouble import (
    cancelled_and_closed,
    complaint,
    told_of_a_failing_hook,
    told_of_broken_weights,
    told_of_full_memory,
)

pytestmark = pytest.mark.slow

PROMPT, RESPONSE = "The Eiffel Tower is located in", " the city of Paris"


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def explore(wire: Any) -> Iterator[Callable[..., LogitLensExplorer]]:
    """Opens explorers; afterwards every worker they opened must be gone."""
    with opening(LogitLensExplorer) as build:
        yield build


def no_runs(panel: LogitLensExplorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "compute", lambda *a, **k: pytest.fail("the model ran"))


def label_of(panel: LogitLensExplorer, row: int, column: int) -> str:
    return str(panel.map.heat.texts[row * panel.map.heat.shape[1] + column])


# ---- what it shows


def test_opens_with_the_first_example_and_what_the_function_gives(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    first = PRESETS[0]
    assert (panel.prompt, panel.target) == (first.prompt, first.target)
    expected = logit_lens(pair.base, first.prompt, target=first.target)
    assert isinstance(panel.result, LogitLensResult)
    np.testing.assert_allclose(panel.result.target_probability, expected.target_probability, atol=1e-6)
    np.testing.assert_allclose(panel.map.heat.matrix, expected.final_probability, atol=1e-6)
    assert panel.map.heat.row_labels == [*map(str, range(6)), "output"]
    assert panel.map.heat.column_labels == list(expected.tokens)
    assert (panel.map.heat.vmin, panel.map.heat.vmax) == (0.0, 1.0)
    last = expected.n_positions - 1
    assert panel.cell == (6, last), "the model's own prediction is looked at"
    assert label_of(panel, 6, last) == "·Paris"
    for row, chances in enumerate(expected.probability):
        for column, chance in enumerate(chances):
            assert bool(label_of(panel, row, column)) == (chance >= panel.threshold or row == 6)


def test_the_map_marks_where_predictions_settle_and_targets_are_lost(pair: Any, explore: Any) -> None:
    prompt = "When Mary and John went to the store, John gave a drink to"
    panel = explore(pair.base, prompt=prompt, target=" John")
    result = panel.result
    assert panel.map.heat.edges == [[int(row), column] for column, row in enumerate(result.commit_layer)]
    assert panel.map.heat.crossed == np.argwhere(result.interference).tolist() != []
    row, column = panel.map.heat.crossed[0]
    panel.select_cell(row, column)
    assert (
        f"Interference: the target “·John” is likeliest at layer {row - 1}, lost at layer {row}"
        in panel.map.description.value
    )
    assert "lost here" in panel.map.heat.notes[row * result.n_positions + column]


def test_above_each_column_stand_its_final_word_and_the_layer_it_stays_from(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned, view="A")
    heat = panel.map.heat
    assert heat.joined
    assert heat.column_width > 40, "columns in which a word can be read, however long the text"
    shown = {}
    for view, result in zip("AB", panel.result, strict=True):
        panel.view = view
        assert heat.heads_name.split("\n") == ["final word", "from layer"]
        shown[view] = heat.heads
        for column, head in enumerate(heat.heads):
            word, layer = head.split("\n")
            assert word == result.token_text(int(result.top_token[-1, column])).replace(" ", "·")
            commit = int(result.commit_layer[column])
            assert layer == ("output" if commit == 6 else str(commit))
            assert (result.top_token[commit:, column] == result.top_token[-1, column]).all()
    panel.view = "difference"
    assert heat.heads == [f"{a}\n{b}" for a, b in zip(shown["A"], shown["B"], strict=True)]
    assert heat.heads_name.split("\n") == ["A final word", "from layer", "B final word", "from layer"]


def test_layers_that_say_the_token_just_read_are_grey_and_the_key_says_why(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    result, heat = panel.result, panel.map.heat
    assert heat.muted
    for row, column in heat.muted:
        assert result.top_token[row, column] == result.ids[column] != result.top_token[-1, column]
        assert "repeats the token just read" in heat.notes[row * result.n_positions + column]
    grey = {(row, column) for row, column in heat.muted}
    for row, column in np.argwhere(result.top_token == np.array(result.ids)).tolist():
        assert ((row, column) in grey) == (result.final_rank[row, column] > 0)
    assert "the token just read" in panel.map.key.value
    panel.prompt = "to to to"
    settle(panel)
    assert heat.shape[1] == panel.result.n_positions, "cells of another text are not grey"
    assert all(column < panel.result.n_positions for _, column in heat.muted)


def test_the_story_of_a_position(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    result, column = panel.result, panel.cell[1]
    commit = int(result.commit_layer[column])
    assert 0 < commit < result.n_layers, "else the sentence below is another"
    said = f"“·Paris” ({result.probability[-1, column]:.3f}) becomes the likeliest token at layer {commit} and stays"
    assert said in panel.map.description.value
    assert "nterference" not in panel.map.description.value
    panel.target = " Rome"
    settle(panel)
    best = int(panel.result.target_rank[:, column].min())
    assert f"“·Rome” is never the likeliest: its best rank is {best}" in panel.map.description.value


def test_each_colouring_shows_its_numbers(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.base, pair.tuned)
    no_runs(panel, monkeypatch)
    a, b = panel.result
    heat = panel.map.heat
    for color in COLOR_LABELS:
        panel.color = color
        ranges = set()
        for view, result in (("A", a), ("B", b)):
            panel.view = view
            np.testing.assert_allclose(heat.matrix, getattr(result, color), atol=1e-5)
            ranges.add((heat.vmin, heat.vmax))
            assert heat.title.startswith(f"{view} · Logit lens")
            assert COLOR_LABELS[color] in heat.title
        assert len(ranges) == 1, "A and B stand on one scale"
        assert (heat.scale, heat.reverse) == (("log", True) if color in RANKS else ("linear", False))
        if color in RANKS:
            assert max(getattr(one, color).max() for one in (a, b)) > heat.vmax == 1000
            assert "1,000 or more" in heat.title
        panel.view = "difference"
        assert heat.vmin == -heat.vmax < 0
        assert (heat.scale, heat.reverse) == ("linear", False)
        expected = getattr(b, color).astype(float) - getattr(a, color)
        if color in RANKS:
            expected = np.log10((1 + getattr(a, color)) / (1 + getattr(b, color)))
        np.testing.assert_allclose(heat.matrix, expected, atol=1e-5)


def test_the_difference_names_both_tokens_where_they_differ(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned, view="difference")
    a, b = panel.result
    texts = np.array(panel.map.heat.texts, dtype=object).reshape(a.entropy.shape)
    reached = (a.probability >= panel.threshold) | (b.probability >= panel.threshold)
    reached[-1] = True
    assert ((texts != "") == (reached & (a.top_token != b.top_token))).all()
    row, column = np.argwhere(texts != "")[0]
    names = [result.token_text(int(result.top_token[row, column])).replace(" ", "·") for result in (a, b)]
    assert texts[row, column] == " → ".join(names)
    assert panel.map.heat.edges == panel.map.heat.crossed == []


def test_a_move_of_the_threshold_only_relabels(
    pair: Any, explore: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = explore(pair.base)
    no_runs(panel, monkeypatch)
    slider = panel.controls["threshold"]
    assert slider.description == "Labels from"
    before = len(wire.states(panel.map.heat, "shape"))
    for step in range(200):
        wire.type(slider, value=(step % 20) / 20)
    assert panel.threshold == 0.95
    shown = sum(bool(text) for text in panel.map.heat.texts)
    assert shown == int((panel.result.probability[:-1] >= 0.95).sum()) + panel.result.n_positions
    assert len(wire.states(panel.map.heat, "shape")) == before, "the numbers do not travel again"
    assert panel.status.state == "done"


# ---- the chosen cell


def test_a_click_lists_the_cell_and_draws_its_position(pair: Any, explore: Any, wire: Any, monkeypatch: Any) -> None:
    panel = explore(pair.base)
    no_runs(panel, monkeypatch)
    wire.type(panel.map.heat, pinned=[2, 3], cross=[2, 3])
    assert (panel.lens_layer, panel.position, panel.layer, panel.prompt_token) == (2, 3, 2, 3)
    assert [(row[1], row[2]) for row in panel.about.table.rows] == [
        (token.replace(" ", "·"), chance) for token, chance in panel.result.top(2, 3)
    ]
    assert "after “·is” (3) at layer 2" in panel.about.table.caption
    ranks = panel.about.charts[0]
    assert ranks.source.data["value"] == (panel.result.target_rank[:, 3] + 1).tolist()
    # the output's row is a layer that the workbench does not have
    wire.type(panel.map.heat, pinned=[6, 4], cross=[6, 4])
    assert (panel.lens_layer, panel.layer) == (6, 5)
    assert "at the output" in panel.about.table.caption
    # and a second click lets go
    wire.type(panel.map.heat, pinned=[], cross=[])
    assert panel.cell == (6, panel.result.n_positions - 1)
    assert panel.map.heat.pinned == list(panel.cell)


def test_the_list_follows_pointer_and_arrows(pair: Any, explore: Any, wire: Any, monkeypatch: Any) -> None:
    panel = explore(pair.base, pair.tuned)
    no_runs(panel, monkeypatch)
    wire.type(panel.map.heat, hovered=[1, 2])
    a, b = (result.top(1, 2) for result in panel.result)
    row = panel.about.table.rows[4]
    assert row == [4, a[4][0].replace(" ", "·"), a[4][1], b[4][0].replace(" ", "·"), b[4][1]]
    assert panel.position == -1, "looking is not choosing"
    wire.type(panel.map.heat, hovered=[])
    assert "at the output" in panel.about.table.caption
    wire.type(panel.map.heat, cross=[0, 1])
    assert "(1) at layer 0" in panel.about.table.caption
    panel.top = 3
    assert len(panel.about.table.rows) == 3
    assert "A: target" in panel.about.numbers.value
    assert "B: target" in panel.about.numbers.value


def test_a_longer_list_takes_a_run(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    panel.top = 30
    settle(panel)
    assert len(panel.about.table.rows) == 30
    assert panel.result.top_ids.shape[-1] == 30


def test_a_token_of_the_list_becomes_the_target(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.base, pair.tuned, view="B")
    token = panel.result[1].top(6, panel.cell[1])[2][0]
    wire.type(panel.about.table, selected=2)
    settle(panel)
    assert panel.target == token
    assert [result.target_token for result in panel.result] == [token, token]
    assert token.strip() in str(panel.about.charts[0].figure.title.text)
    part = next(i for i in range(pair.base.d_vocab) if "�" in pair.base.token_strings([i])[0])
    with pytest.raises(ValueError, match="its text alone is tokenized differently"):
        panel.follow(part)


# ---- target, response, linking


def test_without_a_target_the_likeliest_token_is_followed(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned, prompt="The capital of Japan is")
    a, b = panel.result
    assert panel.target == ""
    assert a.target == b.target == int(b.top_token[-1, -1])
    one = explore(pair.base, prompt="The capital of Japan is")
    assert one.result.target == int(a.top_token[-1, -1])


def test_a_result_with_anothers_likeliest_token_is_not_taken_from_the_cache(explore: Any) -> None:
    models = [tiny_model("gpt2", seed=seed) for seed in range(3)]
    targets = []
    for other in models[1:]:
        panel = explore(models[0], other, prompt="one two three")
        a, b = panel.result
        assert a.target == b.target == int(b.top_token[-1, -1])
        targets.append(b.target)
    assert targets[0] != targets[1], "else the test says nothing"


def test_the_lens_reads_prompt_and_response_at_once(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pair.base
    panel = explore(model, prompt=PROMPT, response=RESPONSE)
    prompt, response = model.split(PROMPT, RESPONSE)
    shown = len(prompt) - 1
    assert prompt[0] == model.bos_token_id, "which is fed and on no axis"
    assert panel.result.ids == (*prompt[1:], *response)
    assert panel.result.target == response[0], "the response's own first token"
    assert panel.cell[1] == shown - 1
    assert panel.map.heat.column_marks == [[shown, shown + len(response)]]
    panel.response_token = 3
    settle(panel)
    assert panel.result.target == response[3]
    assert panel.cell[1] == shown + 2, "the column that predicts it"
    assert panel.map.heat.cross == [6, shown + 2]
    panel.target = " Paris"
    settle(panel)
    no_runs(panel, monkeypatch)
    for place in (0, 1, 2):
        panel.select_cell(4, shown - 1 + place)
        assert panel.response_token == place
        assert panel.target == " Paris", "a click looks elsewhere, it does not ask for another token"
    panel.select_cell(4, shown + len(response) - 1)
    assert (panel.position, panel.response_token) == (shown + len(response) - 1, 2), "nothing is predicted there"


def test_another_text_forgets_the_position(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    panel.select_cell(2, 1)
    panel.prompt = "The nurse said that"
    settle(panel)
    assert panel.position == -1
    assert panel.cell == (2, panel.result.n_positions - 1)
    assert panel.target == ""


def test_a_response_token_chosen_in_another_panel_moves_the_column(pair: Any, explore: Any, wire: Any) -> None:
    bench = Workbench(pair.tuned, prompt=PROMPT, response=RESPONSE)
    lens, saliency = explore(bench), SaliencyExplorer(bench)
    try:
        assert saliency.wait(60)
        wire.type(saliency["map"].response_strip, selected=2)
        settle(lens)
        count = len(pair.tuned.tokens(PROMPT, prepend_bos=False))
        assert lens.map.heat.cross[1] == count + 1
        assert lens.result.target == pair.tuned.split(PROMPT, RESPONSE)[1][2]
        wire.type(saliency["map"].prompt_strip, selected=1)
        assert lens.map.heat.cross[1] == 1
        bench.layer = 3
        assert lens.map.heat.cross == [3, 1]
        wire.type(lens.map.heat, pinned=[5, 4], cross=[5, 4])
        assert (saliency.prompt_token, bench.layer) == (4, 5)
        wire.type(lens.map.heat, pinned=[5, count + 2], cross=[5, count + 2])
        assert saliency.response_token == 3
    finally:
        saliency.close()


def test_what_a_workbench_has_counts_from_the_start(pair: Any, explore: Any) -> None:
    panel = explore(Workbench(pair.base, prompt=PROMPT, prompt_token=2, layer=4))
    assert panel.map.heat.cross == [4, 2]


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "bridge", torch.float32), ("llama", "hooked", torch.bfloat16), ("gpt_neox", "hooked", torch.float64)],
)  # fmt: skip
def test_opens_on_either_backend_and_precision(explore: Any, family: str, backend: Any, dtype: Any) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = explore(model, prompt="one two three", response=" four five")
    assert panel.status.state == "done", panel.status.error
    assert panel.result.entropy.shape == (model.n_layers + 1, panel.result.n_positions)
    assert len(panel.result.ids) == len(panel.map.heat.column_labels)
    panel.select_cell(0, panel.n_prompt_tokens)
    assert panel.response_token == 1, "a BOS is fed and is on no axis"


def test_models_of_different_depth(explore: Any, pair: Any) -> None:
    shallow = tiny_model("gpt2")
    deep = load_model(tiny_hf("gpt2", n_layers=4), tokenizer=tiny_tokenizer("gpt2"), device="cpu")
    panel = explore(shallow, deep, prompt="one two three", view="B", lens_layer=4)
    assert panel.map.heat.shape[0] == 5
    assert panel.layer <= shallow.n_layers - 1
    panel.view = "A"
    assert panel.map.heat.shape[0] == shallow.n_layers + 1
    panel.view = "difference"
    assert panel.map.heat.shape == [0, 0]
    assert "models with the same number of layers" in panel.map.heat.empty
    assert panel.status.state == "done", panel.status.error


# ---- tuned lens


def test_translators_make_a_tuned_lens(pair: Any, explore: Any, tmp_path: Path) -> None:
    model, generator = pair.base, torch.Generator().manual_seed(0)
    weights = [0.05 * torch.randn(192, 192, generator=generator) for _ in range(6)]
    path = save_translators(tmp_path / "lens.safetensors", weights, [torch.zeros(192)] * 6)
    panel = explore(model)
    plain = panel.result
    panel.translators = str(path)
    settle(panel)
    assert panel.result.lens == "tuned"
    assert panel.map.heat.title.startswith("Tuned lens")
    expected = logit_lens(model, panel.prompt, target=panel.target, translators=path)
    np.testing.assert_allclose(panel.result.probability, expected.probability, atol=1e-6)
    np.testing.assert_allclose(panel.result.probability[-1], plain.probability[-1], atol=1e-6)
    assert not np.allclose(panel.result.probability[3], plain.probability[3], atol=1e-3)
    # another file under the same name is read anew
    save_translators(path, [0 * weight for weight in weights], [torch.zeros(192)] * 6)
    panel.run()
    np.testing.assert_allclose(panel.result.probability, plain.probability, atol=1e-5)


def test_unreadable_translators_are_a_sentence_and_the_map_stays(pair: Any, explore: Any, tmp_path: Path) -> None:
    panel = explore(pair.base)
    good, shape = panel.result, panel.map.heat.shape
    wrong = tmp_path / "wrong.safetensors"
    wrong.write_bytes(b"no tensors")
    small = save_translators(tmp_path / "small.safetensors", [torch.eye(4)], [torch.zeros(4)])
    for path, sentence in (
        (tmp_path / "none.safetensors", "there is no file of translators at"),
        (tmp_path, "there is no file of translators at"),
        (wrong, "not a safetensors file"),
        (small, "give translators that were made for this model"),
    ):
        panel.translators = str(path)
        settle(panel)
        assert sentence in complaint(panel)
        assert panel.result is good
        assert panel.map.heat.shape == shape
    panel.translators = ""
    settle(panel)
    assert panel.status.state == "done"


# ---- bad input and bad luck


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "word " * 3000}, "shorten it by at least"),
        ({"response": " word" * 3000}, "the prompt with its response has"),
        ({"target": " Paris and Rome"}, "must be one token, ' Paris and Rome' is 3 (' Paris', ' and', ' Rome')"),
        ({"target": "Paris"}, "with a space in front, ' Paris', it is one"),
        ({"translators": "/nowhere/lens"}, "there is no file of translators at /nowhere/lens"),
        ({"prompt": "word " * 3000, "target": ""}, "shorten it by at least"),
    ],
)
def test_bad_input_is_a_sentence_and_loses_nothing(pair: Any, explore: Any, change: Any, sentence: str) -> None:
    panel = explore(pair.base)
    good = panel.result
    with panel.batch_changes():
        for name, value in change.items():
            setattr(panel, name, value)
    assert not panel.busy, "said at once, without a run"
    assert sentence in complaint(panel)
    assert panel.hints, "a box that is not filled in is no failure"
    assert panel.result is good
    assert panel.map.heat.shape == list(good.entropy.shape)
    assert hooks_on(pair.base) == 0


@pytest.mark.parametrize("prompt", ["שלום 😀 <img src=x onerror=alert(1)> مرحبا", "a\n\n\tb  c", "<|eos|> Paris"])
def test_odd_texts_are_shown_as_they_are(pair: Any, explore: Any, prompt: str) -> None:
    panel = explore(pair.base, prompt=prompt)
    assert panel.status.state == "done", panel.status.error
    for column in range(panel.result.n_positions):
        panel.select_cell(1, column)
        assert "<img" not in panel.map.description.value
        assert "<|eos" not in panel.about.numbers.value
    assert panel.map.heat.column_labels == list(panel.result.tokens)


def test_weights_that_are_not_finite_are_an_error(pair: Any, explore: Any) -> None:
    told_of_broken_weights(explore(pair.base), pair.base, "is not finite")


def test_an_exception_in_a_users_hook_is_shown_and_leaves_no_hook(pair: Any, explore: Any) -> None:
    told_of_a_failing_hook(explore(pair.base), pair.base)


def test_out_of_memory_is_a_sentence(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told_of_full_memory(explore(pair.base), monkeypatch, "interp_widgets.analysis.logit_lens.lens.residual_streams")


@pytest.mark.parametrize("two", [False, True])
def test_a_cancelled_run_keeps_the_tokens_that_it_has_read(
    pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch, two: bool
) -> None:
    panel = explore(pair if two else pair.base, prompt="A cat sat on the mat")
    panel.view = "difference" if two else "A"
    monkeypatch.setattr("interp_widgets.analysis.logit_lens.lens._block_size", lambda *_: (8, 64))
    parts: list[Any] = []
    whole = panel.results[-1]
    logit_lens(panel.models[-1], "A cat sat on the mat", target=whole.target, on_partial=parts.append)
    entered = threading.Event()
    compute = panel.compute

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        if model is not panel.models[-1]:
            return compute(request, model, progress=progress, check=check, on_partial=on_partial)
        on_partial(parts[0])
        entered.set()
        while True:
            check()

    monkeypatch.setattr(panel, "compute", endless)
    cache.clear()
    panel.go()
    assert entered.wait(120)
    panel.cancel()
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    heat, there = panel.map.heat, parts[0].computed
    assert "partial" in heat.title
    assert np.isnan(heat.matrix[:, ~there]).all()
    assert np.isfinite(heat.matrix[:, there]).all()
    of_last_model = ["".join(text.split("\n")[-2:]) for text in heat.heads]
    assert [bool(text) for text in of_last_model] == there.tolist()
    assert {column for _, column in heat.edges} == (set() if two else set(np.flatnonzero(there).tolist()))
    panel.select_cell(0, 0)
    assert "not computed yet" in panel.about.numbers.value
    assert "not computed yet" in panel.map.description.value
    assert not any(line[-1] is not None for line in panel.about.table.rows), "of two models, A has all tokens"
    assert all("Not read yet" in chart.message for chart in panel.about.charts)
    panel.select_cell(0, whole.n_positions - 1)
    assert panel.about.table.rows
    assert "not computed yet" not in panel.about.numbers.value
    assert all(len(chart.source.data["layer"]) for chart in panel.about.charts), "drawn once it is read"


def test_cancel_and_close_during_a_run(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.base)
    cancelled_and_closed(panel, monkeypatch, lambda: setattr(panel, "target", " Rome"))


def test_cost_and_keywords(pair: Any, explore: Any) -> None:
    panel = explore(pair.base)
    short = panel.cost(panel.request(), pair.base)
    panel.response = " Paris, which is far away from here"
    settle(panel)
    assert 0 < short.flops < panel.cost(panel.request(), pair.base).flops
    with pytest.raises(TypeError, match="did you mean 'threshold'"):
        LogitLensExplorer(pair.base, treshold=0.5)
    panel.threshold = 0.5
    with pytest.raises(Exception, match="threshold"):
        panel.threshold = 1.5


# ---- what is taken away


@pytest.mark.parametrize("options", [{}, {"prompt": PROMPT, "response": RESPONSE}, {"target": ""}])
def test_copied_code_reproduces_the_result(pair: Any, explore: Any, options: Any) -> None:
    panel = explore(pair.base, pair.tuned, **options)
    space: dict[str, Any] = {}
    exec(panel.code(panel.request()), space)
    for name, result in zip(("result_a", "result_b"), panel.result, strict=True):
        found = space[name]
        assert found.ids == result.ids
        assert found.target == result.target
        np.testing.assert_array_equal(found.target_rank, result.target_rank)
        np.testing.assert_allclose(found.probability, result.probability, atol=1e-6)


@pytest.mark.parametrize("response", ["", RESPONSE])
def test_code_copied_before_a_run_finds_the_likeliest_token_itself(pair: Any, explore: Any, response: str) -> None:
    panel = explore(pair.base, pair.tuned)
    asked = Likeliest.after(Prediction(PROMPT, response).texts, panel.models)
    request = Request.of(logit_lens, {"target": asked}, Prediction(PROMPT, response).texts)
    code = panel.code(request)
    space: dict[str, Any] = {}
    exec(code, space)
    assert code.count("likeliest = int(tuned.run(") == 1
    found = space["result_b"]
    assert space["result_a"].target == found.target == int(found.top_token[-1, -1])
    assert found.ids == tuple(asked.ids.read_by(pair.tuned)[1:])


def test_saving(pair: Any, explore: Any, tmp_path: Path) -> None:
    panel = explore(pair.base, pair.tuned, view="B")
    for suffix in (".csv", ".parquet", ".svg", ".png", ".html"):
        assert panel.save(tmp_path / f"lens{suffix}").stat().st_size > 500
    table = pd.read_csv(tmp_path / "lens.csv")
    a, b = panel.result
    assert len(table) == 2 * a.entropy.size
    np.testing.assert_allclose(table[table.model == "B"].entropy, b.entropy.ravel(), atol=1e-5)
    assert set(table.target) == {" Paris"}
    last = table[(table.model == "B") & (table.layer == 6)]
    assert last.commit_layer.tolist() == b.commit_layer.tolist()
    assert last.final_token.tolist() == [b.token_text(token) for token in b.top_token[-1].tolist()]
    assert {"output", "·Paris", "last token read", "final word", "from layer"} <= set(texts(panel.scene()))
    page = (tmp_path / "lens.html").read_text(encoding="utf-8")
    assert all(f"module_{kind}" in page for kind in ("Heatmap", "Table", "BokehFigure"))


def test_closing_leaves_no_comm(pair: Any, wire: Any) -> None:
    before = wire.open()
    panel = LogitLensExplorer(pair.base)
    panel.close()
    left = wire.open() - before
    again = LogitLensExplorer(pair.base)
    again.close()
    # What the kernel shares (Bokeh's code) may stay, but only once
    assert wire.open() - before == left <= 2
