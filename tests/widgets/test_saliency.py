"""The saliency explorer without a browser: what it asks for, draws, links, saves, and how it takes bad input."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp_widgets import SaliencyCase, SaliencyExplorer, SaliencyResult, Workbench
from interp_widgets.analysis._core.prompts import Prompt, single_token
from interp_widgets.analysis.saliency import FLOOR, faithfulness, prompt_saliency, rank_agreement
from interp_widgets.analysis.saliency.faithfulness import usual_orders
from interp_widgets.compute.memory import Speedometer
from interp_widgets.figures.labels import visible
from interp_widgets.widgets.base.guard import ui_lock
from interp_widgets.widgets.saliency.rows import MOST_FLOPS
from interp_widgets.widgets.saliency.saliency_map import SaliencyMap
from interp_widgets.widgets.saliency.verdict import ORDERS
from interp_widgets.widgets.views import TokenStrip
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair
from tests.waiting import until
from tests.widgets.opening import hooks_on, opening, settle
from tests.widgets.trouble import (
    cancelled_and_closed,
    complaint,
    told_of_a_failing_hook,
    told_of_broken_weights,
    told_of_full_memory,
)

pytestmark = pytest.mark.slow

PROMPT = "Instruction: Please give the plural of the word.\nInput: cat\nResponse:"
RESPONSE = " cats"


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def explore(wire: Any) -> Iterator[Callable[..., SaliencyExplorer]]:
    """Opens explorers on the paper's target; afterwards every comm and worker they opened must be gone."""
    with opening(SaliencyExplorer, wait=False, prompt=PROMPT, response=RESPONSE, target="probability") as build:
        yield build


def test_opens_with_a_result_on_its_default_prompt(pair: Any, wire: Any) -> None:
    panel = settle(SaliencyExplorer(pair.tuned))  # a slow machine may wait for Run
    assert isinstance(panel.result, SaliencyResult)
    assert panel.response, "the response that the model wrote stands in its box"
    assert panel["map"].heat.shape == list(panel.result.importance.shape)
    assert panel["map"].mask().any(), "the default prompt comes with its instruction marked"
    assert "Instruction score" in panel["map"].scores.value
    panel.close()


def test_opens_with_a_result_where_the_context_leaves_little_room(
    pair: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.tuned, "n_ctx", 50)
    panel = SaliencyExplorer(pair.tuned)
    try:
        assert settle(panel).status.state == "done", panel.status.error
        assert 0 < len(panel.result.response_ids) <= 50 - len(panel.result.prompt_ids) < panel.max_new_tokens
        panel.prompt = "the " * 50
        assert "shorten it by at least" in settle(panel).hints["prompt"]
    finally:
        panel.close()


def test_no_error_passes_by_while_a_new_prompt_is_drawn(
    pair: Any, explore: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    for kind in (SaliencyExplorer, SaliencyMap):
        monkeypatch.setattr(kind, "show_error", lambda _, error: errors.append(error))
    panel = settle(explore(pair.tuned))
    for prompt, response in (("The nurse said that", " she"), ("The", " cat sat on the mat.")):
        wire.type(panel["map"].prompt_strip, selected=1)
        wire.type(panel["map"].response_strip, selected=0)
        with panel.batch_changes():
            panel.prompt, panel.response = prompt, response
        assert settle(panel).status.state == "done"
    assert not errors


def test_run_gives_what_the_function_gives(pair: Any, explore: Any) -> None:
    panel = explore(pair.tuned)
    expected = prompt_saliency(pair.tuned, PROMPT, RESPONSE)
    np.testing.assert_allclose(panel.run(fresh=True).importance, expected.importance, atol=1e-6)
    np.testing.assert_allclose(panel["map"].heat.matrix, scores(expected), atol=1e-6)
    wrong = prompt_saliency(pair.base, PROMPT, RESPONSE)
    assert not np.allclose(wrong.importance, expected.importance, atol=1e-3), "another model must not give the same"


def test_a_clicked_response_token_shades_the_prompt_by_its_column(pair: Any, explore: Any, wire: Any) -> None:
    panel = settle(explore(pair.tuned, response=" cats."))
    whole = np.frombuffer(panel["map"].prompt_strip.values, "<f4")
    np.testing.assert_allclose(whole, panel.result.density(min_importance=FLOOR), atol=1e-5)
    wire.type(panel["map"].response_strip, selected=0)
    assert panel.response_token == 0
    column = np.frombuffer(panel["map"].prompt_strip.values, "<f4")
    np.testing.assert_allclose(column, scores(panel.result)[:, 0], atol=1e-5)
    assert "response token 0" in panel["map"].table.caption
    assert next(row[0] for row in panel["map"].table.rows) == int(column.argmax())


def test_brushed_prompt_tokens_shade_the_response_by_their_rows(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.tuned)
    wire.type(panel["map"].prompt_strip, brush=[2, 6])
    rows = scores(panel.result)[2:6].mean(axis=0)
    np.testing.assert_allclose(np.frombuffer(panel["map"].response_strip.values, "<f4"), rows, atol=1e-5)


def test_rounding_is_no_difference_in_the_table(pair: Any, explore: Any) -> None:
    panel = explore(*pair, prompt="The capital of Italy is", response=" Rome.")
    differences = [row[-1] for row in panel["map"].table.rows]
    assert differences
    assert all(value == 0 or abs(value) > 1e-6 for value in differences), differences


def test_marks_give_the_instruction_score(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.tuned)
    assert "No instruction marked" in panel["map"].scores.value
    wire.type(panel["map"].prompt_strip, marks=[[2, 9]])
    mask = np.zeros(len(panel.result.prompt_tokens), dtype=bool)
    mask[2:9] = True
    floored, paper = (panel.result.instruction_score(mask, min_importance=floor) for floor in (FLOOR, 0.0))
    assert f"Instruction score <b>{floored:.3f}</b>" in panel["map"].scores.value
    assert (f"(without the floor {paper:.3f})" in panel["map"].scores.value) == (floored != paper)
    assert panel["map"].heat.row_marks == [[2, 9]]
    panel.prompt = PROMPT.replace("cat", "lamp")  # in no cache
    settle(panel)
    assert panel.marks == [], "marks of another prompt mean nothing here"


LONG = "Mary gave a book to John. The sky is blue. Tom lives in Paris. " * 9 + "Tom lives in"


def test_a_long_prompt_opens_by_sentence_and_a_sentence_is_looked_into(pair: Any, explore: Any, wire: Any) -> None:
    panel = settle(explore(pair.tuned, prompt=LONG, response=" Paris"))
    if panel.status.state != "done":  # a slow machine may wait for Run
        panel.run()
    result, part = panel.result, panel["map"]
    wanted = prompt_saliency(pair.tuned, LONG, " Paris", spans="sentences")
    assert len(wanted.prompt_ids) > 128
    np.testing.assert_allclose(result.importance, wanted.importance, atol=1e-6)
    assert part.heat.shape == [28, 1]
    assert part.heat.row_labels[1] == " The sky is blue."
    assert "sentence" in part.heat.title
    assert "replaced together" in part.heat.title
    # every token of the strip is shaded by its sentence, and says which that is
    assert len(part.prompt_strip.tokens) == len(wanted.prompt_ids)
    shades = np.frombuffer(part.prompt_strip.values, "<f4")
    for row, (start, end) in enumerate(wanted.spans or ()):
        assert np.unique(shades[start:end]).size == 1
        assert all(f"sentence {row + 1} of 28" in said for said in part.prompt_strip.labels[start:end])
    # a click on a row selects a token of it, and one on a token its row
    start, end = (wanted.spans or ())[1]
    wire.type(part.heat, pinned=[1, 0])
    assert panel.prompt_token == start
    wire.type(part.prompt_strip, selected=start + 2)
    assert part.heat.cross == [1, 0]
    wire.type(part.heat, pinned=[])
    wire.type(part.heat, pinned=[1, 0])
    assert panel.prompt_token == start + 2, "a token of that row is selected already"
    wire.click(part.inside)
    settle(panel)
    inside = prompt_saliency(pair.tuned, LONG, " Paris", within=(start, end))
    np.testing.assert_allclose(panel.result.importance, inside.importance, atol=1e-6)
    assert part.heat.shape == [end - start, 1]
    assert panel.prompt_token == start + 2
    assert part.heat.cross == [2, 0]
    assert part.table.rows[0][0] == start + int(scores(inside)[:, 0].argmax())
    assert np.isnan(np.frombuffer(part.prompt_strip.values, "<f4")[:start]).all()
    assert part.heat.notes[0].startswith(f"prompt token {start}; ")
    assert "replaced together" not in part.heat.title
    # strips of a screen are shaded like those of the panel
    strips = TokenStrip(tokens=part.prompt_strip.tokens), TokenStrip(tokens=part.response_strip.tokens)
    assert part.shade_texts(*strips)
    assert strips[0].values == part.prompt_strip.values
    wire.type(part.response_strip, selected=0)
    assert part.describe_selection().columns[0] == "prompt token"
    wire.click(part.outside)
    assert settle(panel)["map"].heat.shape == [28, 1]
    panel.prompt = "The sky is"
    assert settle(panel)["map"].heat.shape[0] == len(panel.result.prompt_ids) < 10


def test_a_prompt_whose_sentences_take_long_opens_by_passage(
    pair: Any, explore: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST_FLOPS, "cpu", 1e6)
    panel = explore(pair.tuned, prompt=LONG, response=" Paris")
    panel.run()
    settle(panel)
    part = panel["map"]
    wanted = prompt_saliency(pair.tuned, LONG, " Paris", spans="passages")
    assert part.heat.shape[0] == len(wanted.spans) < 10
    np.testing.assert_allclose(panel.result.importance, wanted.importance, atol=1e-6)
    assert "of each prompt passage" in part.heat.title
    assert "spans='passages'" in part.code(part.request())
    wire.type(part.heat, pinned=[1, 0])
    wire.click(part.inside)
    settle(panel)
    assert part.heat.shape[0] == int(np.diff(wanted.spans[1])[0]), "a short passage opens by token"


@pytest.mark.parametrize("rule", ["together", "sum", "mean", "maximum"])
@pytest.mark.parametrize("kind", ["words", "sentences", "marks"])
def test_rows_are_spans_replaced_or_put_together(pair: Any, explore: Any, wire: Any, kind: str, rule: str) -> None:
    panel = explore(pair.tuned, marks=[[2, 9]])
    tokens = panel.result
    with panel.batch_changes():
        panel.rows, panel.span_rule = kind, rule
    settle(panel)
    spans: Any = [(0, 2), (2, 9), (9, len(tokens.prompt_ids))] if kind == "marks" else kind
    together = prompt_saliency(pair.tuned, PROMPT, RESPONSE, spans=spans)
    wanted = together if rule == "together" else tokens.by_spans(spans, how=rule)
    heat = panel["map"].heat
    np.testing.assert_allclose(heat.matrix, scores(wanted), atol=1e-5)
    assert panel["map"].frame()["prompt_token"].tolist() == [
        text for text in wanted.prompt_tokens for _ in wanted.response_tokens
    ]
    if rule != "together":
        assert panel.result is tokens, "held results are put together without a run"
        assert not np.allclose(together.importance, wanted.importance, atol=1e-3), "that is another quantity"
    marked = [row for row, (a, b) in enumerate(wanted.spans or ()) if a < 9 and b > 2]
    assert heat.row_marks == [[marked[0], marked[-1] + 1]]


def test_rows_that_a_prompt_does_not_have_are_hints(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.tuned)
    panel.rows = "roles"
    assert "this prompt is a text" in settle(panel).hints["rows"]
    panel.rows = "marks"
    assert "mark spans of the prompt first" in settle(panel).hints["rows"]
    wire.type(panel["map"].prompt_strip, marks=[[0, 2]])
    settle(panel)
    assert not panel.hints
    assert panel["map"].heat.shape[0] == 2


def test_copied_code_of_spans_gives_their_map(pair: Any, explore: Any) -> None:
    for options in ({"rows": "words"}, {"rows": "sentences", "span_rule": "mean"}, {"within": [3, 7]}):
        panel = settle(explore(pair.tuned, **options))
        variables: dict[str, Any] = {}
        exec(panel["map"].code(panel["map"].request()), variables)
        made = variables["result"]
        np.testing.assert_allclose(scores(made), panel["map"].heat.matrix, atol=1e-5)


def test_the_map_says_what_its_check_found(pair: Any, explore: Any, all_orders: None) -> None:
    panel = settle(explore(pair.tuned, method="first_order"))
    part, exact = panel["map"], prompt_saliency(pair.tuned, PROMPT, RESPONSE)
    agreement = rank_agreement(panel.result, exact).mean
    many: Any = {"random_orders": usual_orders(len(panel.result.prompt_ids), ORDERS)}
    measured = faithfulness(pair.tuned, panel.result, **many)
    spoken = f"{agreement:.2f}".replace("-", "−")
    assert f"(rank correlation {spoken})" in part.verdict.text.value
    verdict = measured.verdict.split(":")[0]
    assert f"It is {verdict}" in part.verdict.text.value
    assert ("agrees poorly with exact" in part.verdict.text.value) == (agreement < 0.4)
    panel.method = "exact"
    settle(panel)
    best = faithfulness(pair.tuned, panel.result, **many).verdict.split(":")[0]
    brief, full = f"This map is {best.partition(' (')[0]}.", f"Exact is {best}"
    assert part.verdict.text.value.startswith(f"<details><summary>{brief}</summary>{full}")
    assert part.prompt_strip.legend
    panel.method = "random"
    settle(panel)
    assert "Random agrees poorly with exact here" in part.verdict.text.value
    assert not any(word in part.heat.title for word in ("agrees", "random order"))  # what is drawn, and no verdict
    panel.rows = "words"
    assert "which this is not" in settle(panel)["map"].verdict.text.value


def test_a_map_that_cannot_rank_its_tokens_says_so(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the contrast that can, with the likeliest other token as its foil unless another is typed."""
    panel = settle(explore(pair.tuned))
    assert "cannot rank" not in panel["map"].verdict.text.value
    monkeypatch.setattr(SaliencyResult, "saturated", property(lambda self: np.ones(len(self.response_ids), bool)))
    panel.levels = 5
    assert "cannot rank them: the logit difference to another token" in panel["map"].verdict.text.value
    monkeypatch.undo()
    panel.target = "logit_difference"
    settle(panel)
    assert not panel["map"].hints
    expected = prompt_saliency(pair.tuned, PROMPT, RESPONSE, target="logit_difference", foil="runner_up")
    np.testing.assert_allclose(panel.result.importance, expected.importance, atol=1e-4)
    assert panel.result.foil == expected.foil
    assert "foil='runner_up'" in panel["map"].code(panel["map"].request())
    names = [
        visible(pair.tuned.single_token_strings([one])[0])
        for one in np.broadcast_to(expected.foil, len(expected.response_ids)).tolist()
    ]
    assert all(f"compared with “{name}”" in note for name, note in zip(names, panel["map"].heat.notes, strict=False))
    panel.response_token = 0
    assert f"“·cats” rather than “{names[0]}”" in panel["map"].table.caption
    assert ("to each runner-up" if len(set(names)) > 1 else f"to “{names[0]}”") in panel["map"].heat.title


def test_a_first_token_that_carries_the_sink_is_marked(
    pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = settle(explore(pair.tuned))
    words = panel["map"].verdict.text
    assert "sink" not in words.value + "".join(panel["map"].heat.notes)
    monkeypatch.setattr(Prompt, "first_is_sink", True)
    panel.prompt = PROMPT.replace("cat", "window")  # in no cache
    settle(panel)
    assert panel.result.sink
    assert words.value.count("carries the model&#x27;s attention sink") == 1
    notes, columns = panel["map"].heat.notes, len(panel.result.response_tokens)
    assert all("; this token carries the model's attention sink" in note for note in notes[:columns])
    assert "sink" not in "".join(notes[columns:])
    panel.rows = "words"
    settle(panel)
    assert all(
        "; its first token carries the model's attention sink" in note for note in panel["map"].heat.notes[:columns]
    )


def test_two_models_are_compared_with_one_foil(pair: Any, explore: Any) -> None:
    """Each has a runner-up of its own, and a difference of logit differences to two tokens means nothing."""
    panel = settle(explore(pair.base, pair.tuned))
    panel.target = "logit_difference"
    settle(panel)
    options: dict[str, Any] = {"target": "logit_difference"}
    first = prompt_saliency(pair.base, PROMPT, RESPONSE, foil="runner_up", **options)
    own = prompt_saliency(pair.tuned, PROMPT, RESPONSE, foil="runner_up", **options)
    assert own.foil != first.foil, "else this test cannot tell whose runner-up it is"
    second = prompt_saliency(pair.tuned, PROMPT, RESPONSE, foil=first.foil, **options)
    for result, expected in zip(panel.result, (first, second), strict=True):
        assert result.foil == first.foil
        np.testing.assert_allclose(result.importance, expected.importance, atol=1e-4)
    cell = panel["map"].code(panel["map"].request())
    assert "foil='runner_up'" in cell
    assert "foil=result_a.foil" in cell
    panel.foil = " dog"
    settle(panel)
    assert panel.result[0].foil == panel.result[1].foil == single_token(pair.base, " dog", what="foil")


@pytest.mark.parametrize("both", [False, True])
def test_opens_on_what_speaks_for_each_response_token_rather_than_for_the_runner_up(
    pair: Any, wire: Any, both: bool
) -> None:
    models = (pair.base, pair.tuned) if both else (pair.tuned,)
    with opening(SaliencyExplorer, wait=False, prompt=PROMPT) as build:
        panel = settle(build(*models))
        assert (panel.target, panel.baseline, panel.foil, panel.values) == (
            "logit_difference", "mean", "", "importance"
        )  # fmt: skip
        results = panel.result if both else (panel.result,)
        first = prompt_saliency(
            models[0], PROMPT, panel.response, target="logit_difference", foil="runner_up", baseline="mean"
        )
        assert {result.foil for result in results} == {first.foil}
        np.testing.assert_allclose(results[0].importance, first.importance, atol=1e-4)
        variables = dict(zip(("base", "tuned") if both else ("model",), models, strict=True))
        code = "\n".join(
            line for line in panel["map"].code(panel["map"].request()).splitlines() if "load_model" not in line
        )
        exec(code, variables | {"prompt_saliency": prompt_saliency}, variables)
        made = [variables[name] for name in (("result_a", "result_b") if both else ("result",))]
        for result, again in zip(results, made, strict=True):
            assert again.foil == result.foil
            np.testing.assert_allclose(again.importance, result.importance, atol=1e-4)


def test_a_foil_that_the_response_has_is_compared_with_itself(pair: Any, explore: Any) -> None:
    panel = settle(explore(pair.tuned, target="logit_difference", foil=" cats", response=" cats."))
    assert not panel.result.importance[:, 0].any()
    assert "compared with itself, which is always 0" in panel["map"].heat.notes[0]
    assert "compared with “·cats”" in panel["map"].heat.notes[1]
    panel.response_token = 0
    assert "“·cats” compared with itself" in panel["map"].table.caption
    panel.values = "importance"
    assert "(no density or score: no prompt token adds as much)" in panel["map"].scores.value


def test_a_data_set_says_what_its_importance_is_of(pair: Any, wire: Any) -> None:
    with opening(SaliencyExplorer, wait=False, tab="data_set", case_count=2, generate=False) as build:
        panel = build(pair.tuned)
        panel.run()
        assert "importance for the logit difference; the paper" in panel["data_set"].summary.value
        panel.target = "probability"
        panel.run()
        assert panel["data_set"].summary.value.startswith("importance for the probability<br>")


def test_a_target_that_is_given_is_taken_as_the_paper_has_it(pair: Any, explore: Any) -> None:
    panel = settle(explore(pair.tuned))
    assert (panel.target, panel.result.baseline, panel.values) == ("probability", "zero", "score")


def test_the_check_of_two_models_compares_with_the_foils_of_the_first(pair: Any, wire: Any) -> None:
    with opening(SaliencyExplorer, wait=False, prompt=PROMPT, response=RESPONSE, tab="check", steps=2) as build:
        panel = build(pair.base, pair.tuned)
        first, second = panel.run()
        assert first["exact"].foil == second["exact"].foil
        alone = prompt_saliency(pair.base, PROMPT, RESPONSE, target="logit_difference", foil="runner_up")
        assert first["exact"].foil == alone.foil
        assert "foil=results_base['exact'].foil" in panel["check"].code(panel["check"].request())


def test_the_first_map_of_the_demo_pair_is_checked(
    pair: Any, wire: Any, all_orders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interp_widgets.widgets.saliency.verdict.speedometer", Speedometer())  # knows no check yet
    with opening(SaliencyExplorer, wait=False) as build:
        part = build(pair.base, pair.tuned)["map"]
        until(lambda: part.results, "the map")
        with ui_lock:  # it is drawn
            assert part.verdict.text.value != "This map has not been checked."


def test_a_long_check_is_a_button_away(pair: Any, explore: Any, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.saliency.verdict.QUICK_SECONDS", 0.0)
    panel = settle(explore(pair.base, pair.tuned))
    part = panel["map"]
    assert "has not been checked" in part.verdict.text.value
    wire.click(part.verdict.button)
    assert panel.tab == "check"


def scores(result: SaliencyResult, **options: Any) -> np.ndarray[Any, Any]:
    """(prompt, response) the scores that the map shows: none under the floor."""
    return np.where(result.under_floor(), np.nan, result.normalized(**options))


def test_columns_under_the_floor_are_hatched_and_left_out(pair: Any, explore: Any, wire: Any) -> None:
    faint = " is of blue"
    panel = explore(pair.tuned, prompt="Here is a sentence. The sky is", response=faint, marks=[[0, 3]])
    heat, result = panel["map"].heat, panel.result
    largest = result.importance.max(axis=0)
    floor = float(np.sort(largest)[:2].mean())  # one response token is under it
    panel.min_importance = floor
    under = largest < floor
    assert under.sum() == 1
    assert np.array_equal(np.isnan(heat.matrix), np.broadcast_to(under, heat.matrix.shape))
    told = panel["map"].scores.value
    assert f"under the floor of {floor:g} (hatched): 1 of {len(under)} response tokens" in told
    mask = np.arange(len(result.prompt_tokens)) < 3
    floored, paper = (result.instruction_score(mask, min_importance=each) for each in (floor, 0.0))
    assert f"Instruction score <b>{floored:.3f}</b>" in told
    assert (f"(without the floor {paper:.3f})" in told) == (floored != paper)
    np.testing.assert_allclose(
        np.frombuffer(panel["map"].prompt_strip.values, "<f4"), result.density(min_importance=floor), atol=1e-5
    )
    cell = int(np.flatnonzero(under)[0])
    assert f"no score: under the floor of {floor:g}" in heat.notes[cell]
    corner = heat.notes[-len(under)]  # the last prompt token, for the first response token
    assert [note for note in heat.notes if "also the query" in note] == [corner]
    assert heat.notes[cell].endswith(
        f", probability {result.probability[cell]:.3g}; no score: under the floor of {floor:g}"
    )
    assert f"min_importance={floor!r}" in panel["map"].code(panel["map"].shown_request)
    panel.values = "importance"
    np.testing.assert_allclose(heat.matrix, result.importance, atol=1e-6)  # raw numbers are all there
    with panel.batch_changes():
        panel.values, panel.min_importance = "score", 2.0
    assert np.isnan(heat.matrix).all()
    assert "Instruction score <b>none</b>" in panel["map"].scores.value
    panel.min_importance = 0.0
    np.testing.assert_allclose(heat.matrix, result.normalized(), atol=1e-6)
    assert "floor" not in panel["map"].scores.value


def test_embeddings_are_replaced_by_what_is_chosen(pair: Any, explore: Any) -> None:
    panel = explore(pair.tuned)
    assert "baseline" not in panel["map"].code(panel["map"].shown_request)
    once = panel["map"].cost(panel["map"].request(), pair.tuned).flops
    with panel.batch_changes():
        panel.baseline, panel.draws, panel.random_seed = "resample", 3, 5
    assert settle(panel).status.state == "done", panel.status.error
    expected = prompt_saliency(pair.tuned, PROMPT, RESPONSE, baseline="resample", draws=3, seed=5)
    np.testing.assert_allclose(panel.result.importance, expected.importance, atol=1e-6)
    assert "(exact, baseline resample, probability)" in panel["map"].heat.title
    assert "baseline='resample', draws=3" in panel["map"].code(panel["map"].shown_request)
    assert 2 * once < panel["map"].cost(panel["map"].request(), pair.tuned).flops < 3.1 * once
    with panel.batch_changes():  # a method without a baseline is not asked for one
        panel.method = "first_order"
    assert settle(panel).status.state == "done", panel.status.error
    assert panel.result.baseline == "zero"


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "hooked", torch.float32), ("gpt2", "bridge", torch.float32), ("llama", "hooked", torch.bfloat16),
     ("gemma", "bridge", torch.float32)],
)  # fmt: skip
def test_opens_on_either_backend_and_in_half_precision(explore: Any, family: str, backend: Any, dtype: Any) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = explore(model, prompt="The capital of France is", response=" Paris and Rome")
    assert panel.status.state == "done", panel.status.error
    assert np.isfinite(panel.result.importance).all()
    assert backend in panel.children[0].value
    assert str(dtype).removeprefix("torch.") in panel.children[0].value


def test_slicing_never_runs_the_model(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.tuned)
    monkeypatch.setattr(panel["map"], "compute", lambda *a, **k: pytest.fail("the model ran"))
    panel.threshold = 3.0
    np.testing.assert_allclose(panel["map"].heat.matrix, scores(panel.result, threshold=3.0), atol=1e-6)
    panel.levels = 5
    assert panel.density_threshold == 5.0, "a threshold above the levels comes down with them"
    assert panel["map"].heat.vmax == 5.0
    panel.values = "importance"
    np.testing.assert_allclose(panel["map"].heat.matrix, panel.result.importance, atol=1e-6)
    panel.p = 2.0
    assert panel.status.state != "failed"


def test_two_models_share_one_scale_and_their_difference_is_about_zero(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned, values="importance")
    ranges = {}
    for view in ("A", "B", "difference"):
        panel.view = view
        ranges[view] = (panel["map"].heat.vmin, panel["map"].heat.vmax)
        a, b = (result.importance for result in panel.result)
        expected = {"A": a, "B": b, "difference": b - a}[view]
        np.testing.assert_allclose(panel["map"].heat.matrix, expected, atol=1e-6)
    assert ranges["A"] == ranges["B"]
    assert ranges["difference"][0] == -ranges["difference"][1]


def test_generate_writes_a_response(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.tuned, max_new_tokens=5)
    panel.generate_response()
    assert panel.wait(120)
    assert panel.response == pair.tuned.generate(PROMPT, max_new_tokens=5)
    assert panel.result.importance.shape[1] == len(panel["map"].response_strip.tokens)
    panel.prompt = "The Eiffel Tower is located in the city of"
    settle(panel)
    assert panel.response == pair.tuned.generate(panel.prompt, max_new_tokens=5)


def test_the_written_response_is_answered_already(pair: Any, explore: Any) -> None:
    panel = explore(pair.tuned, response="", max_new_tokens=4)
    assert panel.wait(120)
    before = panel.result
    panel.run()
    assert panel.status.text.endswith("(from cache)")
    np.testing.assert_array_equal(panel.result.importance, before.importance)


def test_a_response_of_another_writer_is_not_taken_from_the_cache(pair: Any, explore: Any) -> None:
    prompt = PROMPT.replace("cat", "horse")
    written = []
    for second in (pair.tuned, pair.base):
        panel = explore(pair.base, second, prompt=prompt, response="", max_new_tokens=6)
        assert panel.wait(120)
        written.append(second.generate(prompt, max_new_tokens=6))
        assert panel.response == written[-1]
        for result in panel.result:
            assert pair.base.decode(list(result.response_ids)) == written[-1]
    assert written[0] != written[1], "else the test says nothing"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"target": "logit_difference", "foil": "New York"}, "the foil must be one token, 'New York' is"),
        ({"prompt": "word " * 3000}, "shorten it by at least"),
        ({"response": " word" * 3000}, "shorten"),
    ],
)
def test_bad_input_is_a_sentence_and_loses_nothing(pair: Any, explore: Any, change: Any, sentence: str) -> None:
    panel = explore(pair.tuned, regenerate=False)
    good = panel.result
    with panel.batch_changes():  # one change: the target alone is complete, and another test may have cached its answer
        for name, value in change.items():
            setattr(panel, name, value)
    panel.go()
    assert panel.wait(120)
    assert sentence in complaint(panel)
    assert panel.hints, "what is not filled in, or does not fit, is said at its box and is no failure"
    assert panel.result is good
    assert panel["map"].heat.shape == list(good.importance.shape)
    assert hooks_on(pair.tuned) == 0


@pytest.mark.parametrize("prompt", ["שלום 😀 <img src=x onerror=alert(1)> مرحبا", "a\n\n\tb  c", "<|eos|> Paris"])
def test_odd_texts_are_shown_as_they_are(pair: Any, explore: Any, prompt: str) -> None:
    panel = explore(pair.tuned, prompt=prompt)
    assert panel.status.state == "done", panel.status.error
    assert pair.tuned.decode(list(panel.result.prompt_ids)) == prompt
    assert len(panel["map"].prompt_strip.tokens) == len(panel.result.prompt_ids)


def test_weights_that_are_not_finite_are_an_error(pair: Any, explore: Any) -> None:
    told_of_broken_weights(explore(pair.tuned), pair.tuned, r"(?i)nan|finite|number")


def test_an_exception_in_a_users_hook_is_shown_and_leaves_no_hook(pair: Any, explore: Any) -> None:
    told_of_a_failing_hook(explore(pair.tuned), pair.tuned)


def test_out_of_memory_is_a_sentence(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told_of_full_memory(explore(pair.tuned), monkeypatch, "interp_widgets.analysis.saliency.methods.encode")


def test_cancel_and_close_during_a_run(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.tuned)
    cancelled_and_closed(panel.current, monkeypatch, lambda: setattr(panel, "method", "first_order"))


def test_200_rapid_moves_of_a_slider_end_where_they_end(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.tuned)
    slider = panel["map"].controls["threshold"]
    assert slider.description == "Map threshold"
    for step in range(200):
        wire.type(slider, value=(step % 20) / 2)
    assert panel.threshold == slider.value == 9.5
    np.testing.assert_allclose(panel["map"].heat.matrix, scores(panel.result, threshold=9.5), atol=1e-6)
    assert panel.status.state == "done"


def test_a_second_click_during_a_run_takes_its_place(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.tuned, regenerate=False)
    entered, stopped = threading.Event(), threading.Event()
    real = panel["map"].compute

    def slow(request: Any, model: Any, *, check: Any, **reports: Any) -> Any:
        if dict(request.arguments)["method"] != "first_order":
            return real(request, model, check=check, **reports)
        entered.set()
        try:
            while True:
                check()
        finally:
            stopped.set()

    monkeypatch.setattr(panel["map"], "compute", slow)
    panel.method = "first_order"
    panel.go()
    assert entered.wait(120)
    panel.method = "random"
    panel.go()
    assert stopped.wait(120), "the run before must be asked to stop"
    assert panel.wait(120)
    assert panel.status.state == "done", panel.status.error
    assert panel.result.method == "random"


def test_copied_code_reproduces_the_result(pair: Any, explore: Any) -> None:
    panel = explore(pair.base, pair.tuned, marks=[[2, 9]], method="first_order")
    source = panel.current.code(panel.current.request())
    space: dict[str, Any] = {}
    exec(source, space)
    for name, result in zip(("result_a", "result_b"), panel.result, strict=True):
        np.testing.assert_allclose(space[name].importance, result.importance, atol=1e-6)
    assert space["mask"][2:9] == [True] * 7


def test_saving(pair: Any, explore: Any, tmp_path: Path) -> None:
    panel = settle(explore(pair.base, pair.tuned, marks=[[2, 9]]))
    for suffix in (".csv", ".parquet", ".svg", ".png", ".html"):
        assert panel.save(tmp_path / f"map{suffix}").stat().st_size > 500
    table = pd.read_csv(tmp_path / "map.csv")
    a, b = panel.result
    assert len(table) == a.importance.size + b.importance.size
    np.testing.assert_allclose(table[table.model == "B"].importance, b.importance.ravel(), atol=1e-6)
    assert table.marked.sum() == 7 * (a.importance.shape[1] + b.importance.shape[1])


def test_a_saved_page_says_what_its_result_depends_on_and_nothing_else(pair: Any, explore: Any) -> None:
    panel = settle(explore(pair.tuned, temperature=0.5, seed=3))
    assert panel.current.question() == {
        "Prompt": PROMPT, "Response": RESPONSE, "Method": "exact", "Target": "probability",
        "Replaced by": "default", "Floor": "0.01",
        "Rows": "automatic", "Show": "scores", "Levels": "10",
        "Map threshold": "0.0", "Density threshold": "7.0", "Density norm": "4",
    }  # fmt: skip
    cases = [SaliencyCase(PROMPT, f" the {word}", (13, 48), True, word) for word in ("cats", "dogs")]
    with panel.batch_changes():
        panel.cases, panel.generate, panel.method, panel.tab = cases, False, "first_order", "data_set"
    assert settle(panel).status.state == "done", panel.status.error
    asked = panel.current.question()
    assert (asked["Method"], asked["Levels"]) == ("first order", "10")
    assert not {"Prompt", "Response", "Most tokens", "Temperature"} & set(asked), "nothing was written"
    panel.generate = True
    assert settle(panel).status.state == "done", panel.status.error
    assert panel.current.question()["Most tokens"] == "40"


def test_two_explorers_on_one_workbench_share_prompt_and_selection(pair: Any, explore: Any) -> None:
    bench = Workbench(pair.tuned)
    first, second = explore(bench), explore(bench)
    first.response_token = 0
    assert second.response_token == bench.response_token == 0
    first.close()
    bench.response_token = -1
    assert second.response_token == -1


def test_a_tab_without_texts_shows_the_texts_of_the_workbench(pair: Any, explore: Any) -> None:
    bench = Workbench(pair.tuned, prompt=PROMPT, response=RESPONSE)
    panel = SaliencyExplorer(bench, tab="data_set", marks=[[2, 9]])
    assert (panel.prompt, panel.controls["prompt"].value, panel.response) == (PROMPT, PROMPT, RESPONSE)
    bench.prompt = "Paris is in"
    assert (panel.controls["prompt"].value, panel.response, panel.marks) == ("Paris is in", "", [])
    bench.close()
    panel = SaliencyExplorer(pair.tuned, tab="data_set")
    own = panel.prompt
    assert panel.controls["prompt"].value == own != ""
    panel.prompt, panel.tab = PROMPT, "map"
    assert settle(panel).status.state == "done"
    assert not panel["map"].mask().any(), "the instruction was the other prompt's"
    panel.close()


def test_data_set_tab_scores_cases_and_opens_one(pair: Any, explore: Any, wire: Any) -> None:
    cases = [
        SaliencyCase(PROMPT.replace("cat", word), f" the {word}s are here today", (13, 48), label, word)
        for word, label in (("cat", True), ("dog", True), ("book", False), ("house", False))
    ]
    panel = explore(pair.base, pair.tuned, cases=cases)
    panel.tab, panel.generate = "data_set", False
    panel.go()
    assert panel.wait(120)
    assert panel.status.state == "done", panel.status.error
    assert len(panel["data_set"].table.rows) == 2 * len(cases)
    charts, table = panel["data_set"].plot.children
    assert table is panel["data_set"].table, "the charts come first, the table of cases below them"
    assert charts.children == (*panel["data_set"].figures.values(), panel["data_set"].summary)
    # responses that the models would not write: for some no prompt token matters by the floor
    assert "dropped (no response token of importance 0.01)" in panel["data_set"].summary.value
    assert {row[-1] for row in panel["data_set"].table.rows} == {"", "all under the floor"}
    panel.min_importance = 0.0
    panel.go()
    assert panel.wait(120)
    assert len(panel["data_set"].table.rows) == 2 * len(cases)
    assert "8 scored" in panel["data_set"].summary.value
    assert "min_importance=0.0" in panel["data_set"].code(panel["data_set"].shown_request)
    wire.type(panel["data_set"].table, selected=5)
    assert panel.wait(120)
    assert panel.prompt == cases[1].prompt
    assert panel.response == cases[1].response
    assert panel.view == "B"
    assert panel.tab == "map"
    assert panel.tabs.selected_index == 0
    settle(panel)
    assert panel["map"].mask().any()


def test_a_case_file_is_read_or_refused_in_a_sentence(pair: Any, explore: Any, wire: Any) -> None:
    panel = explore(pair.tuned)

    def upload(name: str, content: bytes) -> None:
        file = {"name": name, "type": "", "size": len(content), "content": memoryview(content)}
        panel["data_set"].controls["cases"].value = ({**file, "last_modified": datetime.now(tz=UTC)},)

    rows = [{"prompt": PROMPT, "response": RESPONSE, "instruction": "give the plural", "label": True}]
    upload("mine.json", json.dumps(rows).encode())
    assert len(panel.cases) == 1
    assert PROMPT[slice(*panel.cases[0].instruction)] == "give the plural"
    upload("mine.txt", b"nothing")
    assert "must end in .json, .jsonl or .csv" in panel["data_set"].status.error


def test_check_tab_compares_the_methods(pair: Any, explore: Any) -> None:
    panel = explore(pair.tuned)
    panel.tab = "check"
    panel.go()
    assert panel.wait(120)
    assert panel.status.state == "done", panel.status.error
    methods = [row[0].replace(" ", "_") for row in panel["check"].table.rows]
    assert {"exact", "first_order", "integrated_gradients", "random"} <= set(methods)
    panel.threshold = 2.0
    assert panel["check"].table.rows, "slicing the map does not touch the check"
    panel.tab, panel.target = "map", "logit"
    panel.go()
    assert panel.wait(120)
    panel.tab = "check"
    assert not panel["check"].table.rows, "a check of another result is not left standing"
    assert panel.result is None
    panel.go()
    assert panel.wait(120)
    assert panel["check"].table.caption == "Faithfulness, target logit"


def test_the_check_removes_by_the_baseline_chosen(pair: Any, explore: Any) -> None:
    panel = explore(pair.tuned, baseline="mean")
    panel.tab = "check"
    panel.go()
    assert panel.wait(120)
    assert panel.status.state == "done", panel.status.error
    part, found = panel["check"], panel.result
    assert "embedding set to the mean" in part.about.value
    assert found["exact"].baseline == "mean"
    assert {found[f"{method} faithfulness"].baseline for method in ("exact", "first_order", "random")} == {"mean"}
    variables: dict[str, Any] = {}
    exec(part.code(part.shown_request), variables)
    for method, measured in variables["faithful"].items():
        assert measured.aopc_comprehensiveness == pytest.approx(
            found[f"{method} faithfulness"].aopc_comprehensiveness, abs=1e-6
        )
    same = faithfulness(pair.tuned, found["exact"])
    assert same.aopc_comprehensiveness != pytest.approx(found["exact faithfulness"].aopc_comprehensiveness, abs=1e-6)


def test_a_tab_that_opens_during_a_change_is_no_error(pair: Any, explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(pair.tuned)
    hold = panel["map"].hold

    def opening_another() -> Any:
        monkeypatch.undo()
        assert panel["check"].title == "Saliency check"
        return hold()

    monkeypatch.setattr(panel["map"], "hold", opening_another)
    panel.target = "logit"
    assert panel["map"].target == panel["check"].target == "logit"


def test_closing_leaves_no_comm(pair: Any, wire: Any) -> None:
    before = wire.open()
    panel = SaliencyExplorer(pair.tuned, prompt=PROMPT, response=RESPONSE)
    panel.close()
    left = wire.open() - before
    again = SaliencyExplorer(pair.tuned, prompt=PROMPT, response=RESPONSE)
    again.close()
    # What the kernel shares (Bokeh's code) may stay, but only once
    assert wire.open() - before == left <= 2


def test_a_prompt_that_does_not_fit_is_a_hint_at_its_box_and_the_map_is_dim(pair: Any, explore: Any, wire: Any) -> None:
    panel = settle(explore(pair.tuned, regenerate=False))
    shown, plot = panel.result, panel["map"].plot
    for text, says in (("word " * 600, "the model reads 512: shorten it"), ("", "prompt is empty")):
        panel.prompt = text
        assert panel.wait(60)
        assert says in panel.hints["prompt"]
        assert (panel.result is shown, panel.status.state, "iw-stale" in plot._dom_classes) == (True, "idle", True)
        panel.prompt = PROMPT
        settle(panel)
        assert (panel.hints, panel.result is shown, "iw-stale" in plot._dom_classes) == ({}, True, False)


def test_the_table_says_whose_probability_it_is_and_prints_none_under_rounding(
    pair: Any, explore: Any, wire: Any
) -> None:
    panel = settle(explore(pair.base, pair.tuned, prompt=PROMPT, response=" yen"))
    panel["map"].response_token = 0
    low = [result.probability[0] for result in panel.results]
    assert max(low) < 0.0005
    assert "(probability A < 0.001, B < 0.001)" in panel["map"].table.caption
