"""The ablation panel without a browser: maps, picked cells, the list, text under it, tracing, links and bad input."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp_widgets import AblationPanel, Workbench
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis.ablation import (
    Ablation,
    AblationResult,
    CausalTraceResult,
    HeadAblationResult,
    ablate_heads,
    ablate_modules,
    ablated_prediction,
    ablation,
    causal_trace,
)
from interp_widgets.compute.cache import results as cache
from interp_widgets.compute.memory import Forecast, Speedometer
from interp_widgets.data.presets import PRESETS
from interp_widgets.widgets.ablation.ablation_spec import AblationSpec, at_token
from interp_widgets.widgets.ablation.maps import amount
from interp_widgets.widgets.ablation.tracing import PUT_BACK
from interp_widgets.widgets.base.answers import Outcome
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.shell import Shell
from interp_widgets.widgets.workbench.session import _answers
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import complaint, told_of_full_memory

pytestmark = pytest.mark.slow

PROMPT, TARGET = PRESETS[0].prompt, PRESETS[0].target
CORRUPTED, SUBJECT = PRESETS[0].corrupted, PRESETS[0].subject
TEXTS = ["The nurse said that she was late.", "Snow fell on the city."]
KINDS = ("attn", "mlp", "both", "attn_to_mlp")
LAST = 8
EXAMPLE = ("prompt", "target", "foil", "subject", "corrupted")


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def ablate(wire: Any) -> Iterator[Callable[..., AblationPanel]]:
    """Opens panels; afterwards every comm and worker they opened must be gone."""
    with opening(AblationPanel) as build:
        yield build
    assert wire.open() == 0


def pin(wire: Any, panel: AblationPanel, heat: Any, row: int, column: int) -> None:
    """The user clicks a cell."""
    wire.type(heat, pinned=[row, column], cross=[row, column])
    assert panel.wait(60)


def maps(panel: AblationPanel, tab: str = "modules") -> Any:
    return panel[tab].maps.maps


def table(panel: AblationPanel) -> dict[str, list[float]]:
    """The next-token table by token."""
    return {row[0]: row[1:] for row in panel.current.next_token.table.rows}


# ---- the maps of the modules


def test_opens_with_four_maps_of_its_first_example_on_one_scale(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base)
    assert isinstance(panel.result, AblationResult)
    expected = ablate_modules(pair.base, PROMPT, TARGET)
    for kind, heat in maps(panel).items():
        np.testing.assert_allclose(heat.matrix, expected.of(kind), atol=1e-5)
        assert heat.column_labels == list(expected.tokens)
        assert (heat.vmin, heat.vmax) == (-heat.vmax, pytest.approx(np.abs(expected.effect).max(), rel=1e-5))
    assert "log-probability of" in panel["modules"].words.value
    assert "4.41" in panel["modules"].words.value
    assert not np.allclose(expected.effect, ablate_modules(pair.tuned, PROMPT, TARGET).effect, atol=1e-2)


@pytest.mark.parametrize(
    ("traits", "options"),
    [
        ({"metric": "probability"}, {"metric": "probability"}),
        ({"metric": "kl"}, {"metric": "kl"}),
        ({"metric": "logit_difference", "foil": " Rome"}, {"metric": "logit_difference", "foil": " Rome"}),
        ({"replacement": "mean", "reference": TEXTS}, {"replacement": "mean", "reference": TEXTS}),
        ({"replacement": "resample", "metric": "log_prob"},
         {"replacement": "resample", "corrupted": CORRUPTED, "metric": "log_prob"}),
        ({"target": " London"}, {"target": " London"}),
    ],
)  # fmt: skip
def test_what_is_asked_is_computed(pair: Any, ablate: Any, traits: Any, options: Any) -> None:
    panel = ablate(pair.base)
    with panel.batch_changes():
        for name, value in traits.items():
            setattr(panel, name, value)
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    expected = ablate_modules(pair.base, PROMPT, **{"target": TARGET, **options})
    np.testing.assert_allclose(panel.result.effect, expected.effect, atol=1e-4)


@pytest.mark.parametrize("tab", ["modules", "heads"])
def test_with_the_logit_what_all_logits_share_stands_at_each_cell(pair: Any, ablate: Any, tab: str) -> None:
    panel = ablate(*pair, metric="logit", tab=tab, view="B")
    name, heat = next(iter(panel.current.maps.maps.items()))
    effect, common = (getattr(panel.current.results[1], part) for part in ("effect", "common"))
    cells = common if tab == "heads" else common[panel.current.results[1].kinds.index(name)]
    assert heat.notes == [f"all logits share {amount(float(x))} of it" for x in cells.ravel()]
    at = np.unravel_index(np.abs(effect).argmax(), effect.shape)
    assert f"<b>{amount(float(effect[at]))}</b> (all logits share {amount(float(common[at]))} of it)" in words(panel)
    panel.view = "difference"
    assert next(iter(panel.current.maps.maps.values())).notes[0].startswith("A all logits share")
    panel.metric = "log_prob"
    settle(panel)
    assert all(not heat.notes for heat in panel.current.maps.maps.values())
    assert "share" not in words(panel)


def words(panel: Any) -> str:
    """What the tab in front says above its maps."""
    text: str = panel.current.words.value
    return text


def test_controls_appear_with_what_they_are_for(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base)

    def hidden(name: str) -> bool:
        found = [w for w in descendants(panel) if getattr(w, "description", "").startswith(name)]
        return any("iw-hidden" in part._dom_classes for part in (found[0], *parents(panel, found[0])))

    assert [hidden(name) for name in ("Foil", "Corrupted", "Reference")] == [True, True, True]
    panel.metric = "logit_difference"
    panel.replacement = "resample"
    assert [hidden(name) for name in ("Foil", "Corrupted", "Reference")] == [False, False, True]
    panel.replacement = "mean"
    assert [hidden(name) for name in ("Foil", "Corrupted", "Reference")] == [False, True, False]
    panel.metric = "logit"
    assert hidden("Foil")


def descendants(box: Any) -> Iterator[Any]:
    for child in getattr(box, "children", ()):
        yield child
        yield from descendants(child)


def parents(box: Any, wanted: Any) -> Iterator[Any]:
    yield from (child for child in descendants(box) if wanted in descendants(child))


def test_slicing_never_runs_the_model(pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = ablate(pair.base)
    monkeypatch.setattr(panel.current, "compute", lambda *a, **k: pytest.fail("the model ran"))
    largest = maps(panel)["mlp"].vmax
    panel.color_range = 0.5
    assert maps(panel)["mlp"].vmax == pytest.approx(largest / 2)
    panel.threshold = 0.75
    assert maps(panel)["mlp"].numbers_from == pytest.approx(0.75 * largest)
    assert panel.status.state == "done"


def test_reference_texts_are_typed_line_by_line(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base, replacement="mean")
    box = next(w for w in descendants(panel) if getattr(w, "description", "").startswith("Reference"))
    assert box.value == "\n".join(one.prompt for one in PRESETS)
    wire.type(box, value=f"{TEXTS[0]}\n\n{TEXTS[1]}\n")
    settle(panel)
    assert panel.reference == TEXTS
    expected = ablate_modules(pair.base, PROMPT, TARGET, replacement="mean", reference=TEXTS)
    np.testing.assert_allclose(panel.result.effect, expected.effect, atol=1e-4)


def test_an_example_brings_foil_subject_and_corrupted_prompt(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base)
    wire.type(panel.texts.boxes.example, index=3)
    settle(panel)
    last = PRESETS[2]
    assert (panel.prompt, panel.foil, panel.subject, panel.corrupted) == (
        last.prompt, last.foil, last.subject, last.corrupted,
    )  # fmt: skip
    panel.foil = " they"
    panel.prompt = "The pilot said that"
    assert (panel.foil, panel.subject, panel.corrupted) == (" they", "", ""), "what was the example's own goes"
    panel.prompt = PROMPT
    assert (panel.subject, panel.corrupted) == (SUBJECT, CORRUPTED)


# ---- a picked cell


@pytest.mark.parametrize("replacement", ["zero", "mean", "resample"])
def test_the_table_of_a_cell_agrees_with_its_map(pair: Any, ablate: Any, wire: Any, replacement: str) -> None:
    panel = ablate(pair.base, metric="log_prob", replacement=replacement, reference=TEXTS)
    for kind, layer, position in (("attn", 0, LAST), ("mlp", 5, LAST), ("both", 1, 5), ("attn_to_mlp", 0, 1)):
        pin(wire, panel, maps(panel)[kind], layer, position)
        before, after, change = table(panel)["·Paris"]
        effect = panel.result.of(kind)[layer, position]
        assert np.log(before / after) == pytest.approx(effect, abs=2e-4), kind
        assert change == pytest.approx(after - before, abs=1e-7)
    panel.tab = "heads"
    settle(panel)
    for at in (False, True):
        panel["heads"].removed_at.value = at
        settle(panel)
        pin(wire, panel, maps(panel, "heads")["head"], 0, 4)
        before, after, _ = table(panel)["·Paris"]
        assert panel.result.position == (1 if at else None)
        assert np.log(before / after) == pytest.approx(panel.result.effect[0, 4], abs=2e-4)


def test_a_click_selects_and_another_lets_go(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base)
    assert panel.current.next_token.add.disabled
    assert maps(panel)["mlp"].cross == []
    pin(wire, panel, maps(panel)["mlp"], 0, LAST)
    assert (panel.kind, panel.layer, panel.position, panel.prompt_token) == ("mlp", 0, LAST, LAST)
    expected = ablated_prediction(pair.base, PROMPT, Ablation("mlp", 0, position=LAST))
    rows = panel.current.next_token.table.rows
    np.testing.assert_allclose([row[1:3] for row in rows], np.transpose([expected.before, expected.after]), rtol=1e-3)
    caption = panel.current.next_token.table.caption
    assert "MLP of layer 0 at “·of” (8), removed" in caption
    assert f"drops by {panel.result.of('mlp')[0, LAST]:.3g}" in caption
    pin(wire, panel, maps(panel)["attn"], 2, 1)
    assert [(name, heat.pinned) for name, heat in maps(panel).items() if heat.pinned] == [("attn", [2, 1])]
    assert all(heat.cross == [2, 1] for heat in maps(panel).values()), "one cursor for all maps"
    wire.type(maps(panel)["attn"], pinned=[], cross=[])
    assert (panel.kind, panel.position, panel.prompt_token, panel.current.next_token.table.rows) == ("", -1, -1, [])
    assert panel.current.next_token.add.disabled


def test_of_two_models_the_next_tokens_are_those_of_the_one_looked_at(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(*pair, view="B")
    pin(wire, panel, maps(panel)["mlp"], 0, LAST)
    assert panel.status.error == ""
    caption = panel.current.next_token.table.caption
    effect = float(panel.result[1].of("mlp")[0, LAST])
    assert f"B: log-probability {'drops' if effect >= 0 else 'rises'} by {abs(effect):.3g}" in caption
    assert "A: " not in caption


def test_a_known_cell_is_not_computed_again(pair: Any, ablate: Any, wire: Any, monkeypatch: Any) -> None:
    panel = ablate(pair.base)
    pin(wire, panel, maps(panel)["mlp"], 3, 4)
    rows = panel.current.next_token.table.rows
    pin(wire, panel, maps(panel)["mlp"], 3, 5)
    monkeypatch.setattr(
        "interp_widgets.widgets.ablation.removal.ablated_prediction", lambda *a, **k: pytest.fail("the model ran")
    )
    pin(wire, panel, maps(panel)["mlp"], 3, 4)
    assert panel.current.next_token.table.rows == rows
    assert panel.status.state == "done", panel.status.error


def test_arrow_keys_move_one_cursor_in_all_maps(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base)
    wire.type(maps(panel)["mlp"], cross=[4, 2])
    assert all(heat.cross == [4, 2] for heat in maps(panel).values())
    assert panel.kind == ""


def test_opens_on_a_cell(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base, kind="attn", layer=0, position=LAST, prompt="The capital of Japan is in the city of")
    assert maps(panel)["attn"].pinned == [0, LAST]
    assert panel.prompt_token == LAST
    assert "Attention of layer 0 at “·of” (8)" in panel.current.next_token.table.caption
    assert len(panel.current.next_token.table.rows) >= 10


# ---- the list, and text under it


def test_listed_ablations_act_together_while_the_model_writes(pair: Any, ablate: Any, wire: Any) -> None:
    model = pair.base
    panel = ablate(model)
    pin(wire, panel, maps(panel)["attn"], 0, LAST)
    wire.click(panel.current.next_token.add)
    pin(wire, panel, maps(panel)["mlp"], 4, 2)
    wire.click(panel.current.next_token.add)
    assert len(panel.ablations) == 2
    wire.click(panel.current.next_token.add)
    assert "in the list already" in panel.status.error
    panel.tab = "text"
    text = panel["text"]
    assert "2 of 2 switched on" in text.about.value
    wire.type(text.list.children[1].children[1], index=1)
    settle(panel)
    with ablation(model, [Ablation("attn", 0, position=LAST), Ablation("mlp", 4)]):
        expected = model.generate_ids(model.tokens(PROMPT), max_new_tokens=20)
    plain = model.generate_ids(model.tokens(PROMPT), max_new_tokens=20)
    (found,) = text.results
    assert (list(found.plain), list(found.ablated)) == (plain, expected)
    assert plain != expected, "attention of layer 0 at the last token carries the answer"
    left = panel["text"].strips[0]
    assert "".join(left.tokens) == model.decode(plain)
    assert left.marks, "tokens that differ are marked"
    assert "became" in panel["text"].words.value

    wire.type(text.list.children[0].children[0], value=False)
    assert "1 of 2 switched on" in text.about.value
    settle(panel)
    with ablation(model, [Ablation("mlp", 4)]):
        assert list(text.results[0].ablated) == model.generate_ids(model.tokens(PROMPT), max_new_tokens=20)
    wire.click(text.list.children[0].children[-1])
    assert [one.spec for one in panel.ablations] == [AblationSpec("mlp", 4, None)]
    wire.type(text.list.children[0].children[0], value=False)
    settle(panel)
    assert text.results[0].ablated == text.results[0].plain, "nothing is switched on"


def test_a_picked_part_can_be_switched_off_at_once(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base, max_new_tokens=3)
    pin(wire, panel, maps(panel)["attn"], 0, LAST)
    wire.click(panel.current.next_token.generate)
    settle(panel)
    (found,) = panel["text"].results
    assert "".join(found.plain_tokens).startswith(" Paris")
    assert "".join(found.ablated_tokens).startswith(" London")
    assert len(found.ablated) <= 3
    assert panel.tab == "text"
    panel.prompt = "The nurse said that"
    settle(panel)
    assert not "".join(panel["text"].results[0].plain_tokens).startswith(" Paris")


def test_text_goes_on_where_the_maps_look(pair: Any, ablate: Any, wire: Any) -> None:
    model = pair.base
    panel = ablate(model, prompt="The Eiffel Tower is located in", response=" the city of Paris", response_token=3)
    place = len(panel.texts.axis) - 1
    pin(wire, panel, maps(panel)["attn"], 0, place)
    wire.click(panel.current.next_token.generate)
    settle(panel)
    assert panel.texts.axis[-1] == " of"
    assert "".join(panel["text"].results[0].plain_tokens).startswith(" Paris")


def test_the_list_names_the_tokens_of_the_prompt_it_is_used_on(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base)
    pin(wire, panel, maps(panel)["mlp"], 1, 1)
    wire.click(panel.current.next_token.add)
    panel.tab = "text"

    def place() -> Any:
        (line,) = panel["text"].list.children
        return line.children[1]

    assert place().options[0][0] == "at “·Eiffel” (1)"
    wire.type(place(), index=1)
    panel.prompt = "The nurse said that"
    assert place().options[0][0] == "at “·nurse” (1)"
    assert panel.ablations[0].spec.position is None, "what was chosen stays"


def test_writing_can_be_cancelled(pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = ablate(pair.base)
    entered = threading.Event()

    def endless(ids: Any, *, check: Any, **options: Any) -> Any:
        entered.set()
        while True:
            check()

    monkeypatch.setattr(pair.base, "generate_ids", endless)
    panel.current.select(0, kind="mlp", position=2)
    panel.current.generate_without(panel.current.picked)
    panel.go()
    assert entered.wait(120)
    panel.cancel()
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert not panel["text"].results


# ---- heads


def test_heads(pair: Any, ablate: Any, wire: Any) -> None:
    bench = Workbench(pair.base)
    panel = ablate(bench)
    wire.type(panel.tabs, selected_index=1)
    settle(panel)
    assert isinstance(panel.result, HeadAblationResult)
    heat = maps(panel, "heads")["head"]
    np.testing.assert_allclose(heat.matrix, ablate_heads(pair.base, PROMPT, TARGET).effect, atol=1e-5)
    assert "head 4 of layer 0" in panel["heads"].words.value
    assert "Not compared with chance yet" in panel["heads"].words.value
    wire.click(panel["heads"].chance_button)
    settle(panel)
    beside = panel.result
    assert len(beside.null) == 19
    assert heat.muted == np.argwhere(np.asarray(beside.p) > 0.05).tolist()
    assert f"{beside.in_words()}; the others have no colour" in panel["heads"].words.value
    assert "not beyond chance" in heat.notes
    assert "draws=19" in panel["heads"].code(panel["heads"].shown_request)
    panel.null_cells = 5
    settle(panel)
    p = np.asarray(panel.result.p)
    assert np.isfinite(p).sum() == 5
    assert heat.muted == np.argwhere(~(p <= 0.05)).tolist()
    assert "not compared with chance" in heat.notes
    assert "compared=5" in panel["heads"].code(panel["heads"].shown_request)
    assert "iw-hidden" not in panel["heads"].all_button._dom_classes
    wire.click(panel["heads"].all_button)
    settle(panel)
    np.testing.assert_array_equal(panel.result.null, beside.null)
    assert "iw-hidden" in panel["heads"].all_button._dom_classes
    panel.null_draws = 0
    settle(panel)
    assert heat.muted == []
    pin(wire, panel, heat, 3, 2)
    assert (bench.layer, bench.head, panel.kind) == (3, 2, "head")
    assert "Head 2 of layer 3 at every token, removed" in panel.current.next_token.table.caption
    wire.click(panel.current.next_token.add)
    assert panel.ablations[0].spec.head == 2
    bench.layer, bench.head = 1, 5
    assert panel.wait(60)
    assert heat.pinned == [1, 5]
    assert "Head 5 of layer 1" in panel.current.next_token.table.caption
    bench.prompt_token = 4
    panel["heads"].removed_at.value = True
    settle(panel)
    assert panel.heads_at == 4
    expected = ablate_heads(pair.base, PROMPT, TARGET, position=4)
    np.testing.assert_allclose(heat.matrix, expected.effect, atol=1e-5)
    bench.prompt_token = -1
    settle(panel)
    assert panel.result.position == LAST, "without a selected token, the last"


def test_opens_on_heads_at_a_token(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base, tab="heads", heads_at=2)
    assert (panel.position, panel["heads"].removed_at.value, panel.result.position) == (2, True, 2)
    panel.heads_at = None
    settle(panel)
    assert (panel["heads"].removed_at.value, panel.result.position) == (False, None)


# ---- tracing


@pytest.fixture
def traced(pair: Any, ablate: Any) -> AblationPanel:
    panel = ablate(pair.base, tab="tracing", samples=3)
    assert panel.status.state == "done", panel.status.error
    return panel


def test_tracing_of_the_examples_subject(pair: Any, traced: AblationPanel) -> None:
    panel = traced
    expected = causal_trace(pair.base, PROMPT, SUBJECT, TARGET, samples=3)
    assert isinstance(panel.result, CausalTraceResult)
    for number, kind in enumerate(("state", "mlp", "attn")):
        heat = maps(panel, "tracing")[kind]
        np.testing.assert_allclose(heat.matrix, expected.effect[number], atol=1e-5)
        assert heat.column_marks == [[1, 3]]
        low, high = (f"{value:.3g}" for value in expected.interval[number, 0, LAST])
        assert heat.notes[LAST] == f"95% interval {low} to {high}"
    assert panel["tracing"].strip.marks == [[1, 3]]
    assert "has probability <b>0.999</b> in the clean run" in panel["tracing"].words.value
    assert "on “Eiffel Tower”" in panel["tracing"].words.value
    assert panel.window == 1


def test_a_first_token_that_carries_the_sink_sets_no_colours(
    pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prompt, "first_is_sink", True)
    panel = ablate(pair.base, prompt="Paris is the capital of the country", target=" of")  # in no cache
    modules, plain = panel["modules"], np.array(panel.result.effect)
    assert panel.result.sink
    plain[0, 2, 0] = 500.0
    result = replace(panel.result, effect=plain)
    for scaled, largest in ((False, np.abs(plain[..., 1:]).max()), (True, 500.0)):
        panel.first_token_scales = scaled
        modules.draw((result,), modules.shown_request)
        assert all(heat.vmax == pytest.approx(largest, rel=1e-5) for heat in maps(panel).values())
        assert "this token sets no colours" in words(panel)
        assert "Strongest: <b>500" not in words(panel)
    modules.draw((replace(result, sink=False),), modules.shown_request)
    assert "Strongest: <b>500" in words(panel)
    assert "sink" not in words(panel)


def test_a_subject_that_begins_the_text_takes_the_sink_away(
    pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prompt, "first_is_sink", True)
    panel = ablate(
        pair.base, tab="tracing", samples=1, prompt="Paris is the capital of", subject="Paris", target=" France"
    )
    assert "noise there takes the sink away too" in panel["tracing"].words.value
    panel.subject = "capital"
    settle(panel)
    assert "sink" not in panel["tracing"].words.value


def test_the_subject_is_marked_by_a_drag_or_typed(pair: Any, traced: AblationPanel, wire: Any) -> None:
    panel = traced
    wire.type(panel["tracing"].strip, marks=[[1, 3], [4, 7]])
    settle(panel)
    assert (panel.span, panel.subject, panel["tracing"].strip.marks) == ([4, 7], "located in the", [[4, 7]])
    assert tuple(panel.result.subject) == (4, 7)
    panel.subject = "Tower"
    settle(panel)
    assert (panel.span, panel["tracing"].strip.marks) == ([], [[2, 3]])
    assert tuple(panel.result.subject) == (2, 3)
    before = panel.result
    wire.type(panel["tracing"].strip, marks=[])
    assert panel.wait(120)
    assert "there is no subject yet" in complaint(panel)
    panel.subject = "Big Ben"
    assert panel.wait(120)
    assert "the subject 'Big Ben' is not in the prompt" in complaint(panel)
    assert panel.result is before


def test_a_traced_cell_in_words(pair: Any, traced: AblationPanel, wire: Any) -> None:
    panel = traced
    pin(wire, panel, maps(panel, "tracing")["state"], 2, LAST)
    assert (panel.layer, panel.position, panel.prompt_token) == (2, LAST, LAST)
    effect = panel.result.effect[0, 2, LAST]
    assert f"<b>{effect:.3g}</b>" in panel["tracing"].cell.value
    assert "95% interval" in panel["tracing"].cell.value
    wire.type(panel["tracing"].strip, selected=2)
    assert panel.prompt_token == 2
    assert maps(panel, "tracing")["mlp"].cross == [2, 2]
    assert "With 3 noise samples no cell can be told from chance: draw at least 6." in panel["tracing"].words.value
    panel.samples = 6
    settle(panel)
    muted = {kind: heat.muted for kind, heat in maps(panel, "tracing").items()}
    p = panel.result.p
    assert muted == {kind: np.argwhere(p[i] >= 0.05).tolist() for i, kind in enumerate(panel.result.kinds)}
    assert all(0 < len(cells) < p[0].size for cells in muted.values()), "some are beyond chance and some are not"
    assert [0, LAST] not in muted["state"]
    beyond = f"<b>{(p < 0.05).sum()} of {np.isfinite(p).sum()}</b> cells differ from 0 beyond chance"
    assert beyond in panel["tracing"].words.value
    panel.samples = 1
    settle(panel)
    assert "no interval" in panel["tracing"].cell.value
    assert "One noise sample: no interval and no test." in panel["tracing"].words.value


# ---- two models, linking


def test_two_models_share_one_scale_and_their_difference_is_about_zero(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair)
    a, b = (result.effect for result in panel.result)
    ranges = {}
    for view in ("A", "B", "difference"):
        panel.view = view
        assert ("drops more in B" in panel["modules"].words.value) == (view == "difference")
        heat = maps(panel)["both"]
        ranges[view] = heat.vmax
        expected = {"A": a, "B": b, "difference": b - a}[view][2]
        np.testing.assert_allclose(heat.matrix, expected, atol=1e-5)
        assert heat.vmin == -heat.vmax
        assert heat.muted == []
    assert ranges["A"] == ranges["B"] == pytest.approx(max(np.abs(a).max(), np.abs(b).max()), rel=1e-5)
    assert ranges["difference"] == pytest.approx(np.abs(b - a).max(), rel=1e-5)
    pin(wire, panel, maps(panel)["attn"], 0, LAST)
    assert [head["label"] for head in panel.current.next_token.table.columns][1::3] == ["A before", "B before"]
    found = [ablated_prediction(model, PROMPT, Ablation("attn", 0, position=LAST)) for model in (pair.base, pair.tuned)]
    assert table(panel)["·Paris"][1::3] == pytest.approx([one.after[0] for one in found])
    wire.click(panel.current.next_token.generate)
    settle(panel)
    assert len(panel["text"].results) == 2
    panel.tab = "modules"
    panel.view = "B"
    assert panel.wait(120)
    assert table(panel)["·Paris"][1] == pytest.approx(found[1].after[0])


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_tracing_opens_first_on_a_prompt_of_the_workbench_with_its_subject(
    pair: Any, ablate: Any, preset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example fills in the subject while the stack that has the texts is being made."""
    errors: list[BaseException] = []
    monkeypatch.setattr(Shell, "show_error", lambda _, error: errors.append(error))
    monkeypatch.setattr(Panel, "show_error", lambda _, error: errors.append(error))
    panel = ablate(Workbench(pair.tuned, prompt=preset.prompt), tab="tracing", samples=1, live_seconds=0)
    assert not errors
    assert panel.subject == panel["tracing"].subject == preset.subject
    assert panel["tracing"].strip.tokens == list(panel.texts.axis)
    assert panel["tracing"].strip.marks


def test_panels_on_one_workbench_follow_each_other(pair: Any, ablate: Any, wire: Any) -> None:
    bench = Workbench(pair.base, prompt="The Eiffel Tower is located in", response=" the city of Paris")
    one, other = ablate(bench), ablate(bench, layer=2)
    assert one.layer == 2
    assert maps(one)["mlp"].cross == [2, -1]
    bench.response_token = 3
    for panel in (one, other):
        settle(panel)
        ids, response = pair.base.split(bench.prompt, bench.response)
        expected = ablate_modules(pair.base, [*ids, *response[:3]], response[3])
        np.testing.assert_allclose(panel.result.effect, expected.effect, atol=1e-5)
        assert panel.result.target_token == " Paris"
    pin(wire, one, maps(one)["mlp"], 4, 1)
    assert (other.position, other.layer, maps(other)["attn"].cross) == (1, 4, [4, 1])
    assert maps(other)["mlp"].pinned == [], "only the place is shared, not the kind"
    inside = len(one.texts.axis) - 1
    pin(wire, one, maps(one)["mlp"], 5, inside)
    assert (one.position, bench.prompt_token, bench.response_token) == (inside, -1, 3)
    assert other.position == -1
    bench.response_token = 1
    for panel in (one, other):
        settle(panel)
    assert one.position == -1, "that token has not been read any more"


# ---- take away


CASES: list[dict[str, Any]] = [
    {},
    {"metric": "logit_difference", "replacement": "mean", "reference": TEXTS},
    {"metric": "kl", "replacement": "resample", "tab": "heads"},
    {"tab": "heads", "heads_at": 3},
    {"tab": "tracing", "samples": 2, "noise": 2.0, "noise_seed": 1},
    {"tab": "tracing", "samples": 2, "layers": "0 2-3", "positions": "last"},
    {"prompt": "The Eiffel Tower is located in", "response": " the city of Paris", "response_token": 2,
     "replacement": "resample", "corrupted": "The Burj Khalifa is located in"},
    {"prompt": "The Eiffel Tower is located in", "response": " the city of Paris", "response_token": 2,
     "tab": "tracing", "subject": "Eiffel Tower", "samples": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", CASES)
def test_copied_code_reproduces_the_result(pair: Any, ablate: Any, wire: Any, options: Any) -> None:
    panel = ablate(pair.base, **options)
    assert panel.status.state == "done", panel.status.error
    space: dict[str, Any] = {}

    def run_code() -> None:
        source = panel.current.code(panel.current.request())
        if options:  # one case loads the model as it stands there
            space["given"], source = pair.base, source.replace("load_model('demo-base')", "given")
        exec(source, space)

    if panel.tab != "tracing":
        heat = maps(panel, panel.tab)["head" if panel.tab == "heads" else "attn"]
        pin(wire, panel, heat, 0, 4)
        wire.click(panel.current.next_token.add)
    run_code()
    np.testing.assert_allclose(space["result"].effect, panel.result.effect, atol=1e-4)
    if panel.tab != "tracing":
        np.testing.assert_allclose(space["next_tokens"].after, panel.current.next_token.predictions[0].after, atol=1e-5)
        panel.tab = "text"
        settle(panel)
        run_code()
        assert space["text"] == pair.base.decode(list(panel.results[0].ablated))


def test_copied_code_of_two_models(pair: Any, ablate: Any) -> None:
    panel = ablate(pair, response=" Paris")
    space: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), space)
    for name, result in zip(("result_a", "result_b"), panel.result, strict=True):
        np.testing.assert_allclose(space[name].effect, result.effect, atol=1e-4)


def test_saving_every_tab(pair: Any, ablate: Any, tmp_path: Path) -> None:
    panel = ablate(pair, samples=2)
    for tab in ("modules", "heads", "tracing", "text"):
        panel.tab = tab
        settle(panel)
        for suffix in (".csv", ".svg", ".png", ".html"):
            assert panel.save(tmp_path / f"{tab}{suffix}").stat().st_size > 100
        frame = pd.read_csv(tmp_path / f"{tab}.csv")
        assert sorted(set(frame.model)) == ["A", "B"]
        if tab == "text":
            continue
        np.testing.assert_allclose(
            frame[(frame.model == "B") & (frame.layer >= 0)].effect, panel.result[1].effect.ravel(), atol=1e-6
        )


def test_a_saved_page_is_the_tab_with_its_question(pair: Any, ablate: Any, tmp_path: Path) -> None:
    panel = ablate(pair, metric="logit_difference", foil=" Rome", view="B", color_range=0.5)
    page = panel.save(tmp_path / "page.html").read_text(encoding="utf-8")
    asked = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert asked == {
        "Prompt": PROMPT, "Target": TARGET, "Foil": " Rome", "Replaced by": "zero",
        "Measured": "logit difference", "Full colour at": "50%", "Numbers from": "20%",
        "Random directions": "0", "First token sets the scale": "no", "View": "B: demo-tuned",
    }  # fmt: skip
    assert page.count(' id="view-') == 4, "the four maps, and no table that waits for a click"
    assert "iw-maps" in page, "side by side as on the screen"
    assert panel["modules"].words.value in page
    for told in ("press Run", "Click a cell", "Add to the list"):
        assert told not in page.split("<script>")[0]
    panel.foil = ""
    assert dict(panel.current.question())["Foil"] == " Rome", "what the picture answers, not what is being typed"


def test_a_refusal_outlives_a_forecast_that_is_corrected(
    pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is first thought to be long and then starts by itself; not of one that is asked for."""
    prompt = "The Burj Khalifa is located in the city of"
    for by_itself in (True, False):
        cache.clear()
        panel = ablate(pair.base, prompt=prompt)
        with monkeypatch.context() as slow:
            slow.setattr(Speedometer, "seconds", lambda self, kind, device, flops, **_: 1000.0)
            with panel.batch_changes():
                panel.tab, panel.heads_at = "heads", 40
            settle(panel)
            assert "must be in" in complaint(panel)
            assert panel.heads_at is None
        heads = panel["heads"]
        if by_itself:
            heads._answer(heads.live_seconds)
        else:
            heads.go()
        settle(panel)
        assert heads.results
        assert ("must be in" in panel.status.error) == by_itself


def test_a_tab_without_a_result_has_nothing_to_save(pair: Any, ablate: Any, tmp_path: Path) -> None:
    panel = ablate(pair.base, prompt="A cat")
    panel.tab = "tracing"
    assert "there is no subject yet" in complaint(panel)
    with pytest.raises(ValueError, match="nothing to save yet"):
        panel.save(tmp_path / "map.csv")


# ---- what can go wrong


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"target": " Paris and Rome"}, r"the target must be one token, ' Paris and Rome' is 3 \(' Paris', ' and', "),
        ({"metric": "logit_difference", "foil": ""}, "the logit difference needs a foil"),
        ({"metric": "logit_difference", "foil": " New York"}, r"the foil must be one token, ' New York' is"),
        ({"metric": "logit_difference", "foil": " Paris"}, "target and foil must differ, both are ' Paris'"),
        ({"replacement": "resample", "corrupted": "The Burj"}, "must have as many tokens as the prompt, 9, got"),
        ({"replacement": "resample", "corrupted": ""}, "there is no corrupted prompt yet"),
        ({"replacement": "mean", "reference": []}, "the mean needs reference texts"),
        ({"tab": "heads", "heads_at": 40}, r"(position|heads_at) must be in (-9|0)\.\.8"),
        ({"tab": "tracing", "span": [4, 30]}, r"span must be \[start, end\) with 0 <= start < end <= 9"),
    ],
)
def test_bad_input_is_a_sentence_and_the_maps_stay(pair: Any, ablate: Any, traits: Any, message: str) -> None:
    panel = ablate(pair.base)
    good, before = panel.result, {name: getattr(panel, name) for name in (*traits, *EXAMPLE)}
    with panel.batch_changes():
        for name, value in traits.items():
            setattr(panel, name, value)
    settle(panel)
    assert re.search(message, complaint(panel))
    assert bool(panel.hints) == (not {"heads_at", "span"} & set(traits)), "a box that is not filled in is no failure"
    if "heads_at" in traits:
        assert panel.heads_at is None, "an index that is not there is not kept"
    else:
        with pytest.raises(ValueError, match=message):
            panel.run()
    assert panel["modules"].result is good
    with panel.batch_changes():
        for name, value in before.items():
            setattr(panel, name, value)
    settle(panel)
    assert panel.status.state == "done", panel.status.error


def test_weights_that_are_not_finite_are_an_error(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base)
    good = panel.result
    weight = pair.base.tl_model.blocks[2].mlp.W_out
    kept = weight.data.clone()
    try:
        with torch.no_grad():
            weight[0, 0] = float("nan")
        with pytest.raises(ValueError, match=r"not (all )?finite"):
            panel.run(fresh=True)
        panel.current.select(3, kind="mlp", position=2)
        assert panel.wait(120)
        assert "not finite" in panel.status.error
        assert panel.current.next_token.table.rows == []
        assert panel.result is good
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_an_exception_in_a_users_hook_is_shown_and_leaves_no_hook(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base)

    def broken(activation: Any, hook: Any) -> Any:
        raise RuntimeError("the user's hook failed")

    with pair.base.tl_model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", broken)]):
        with pytest.raises(RuntimeError, match="the user's hook failed"):
            panel.run(fresh=True)
        panel.current.select(0, kind="attn", position=LAST)
        panel.current.generate_without(panel.current.picked)
        panel.go()
        assert panel.wait(120)
        assert "the user's hook failed" in panel.status.error
    assert not any(point.fwd_hooks for point in pair.base.tl_model.hook_dict.values())
    panel.tab = "modules"
    panel.run(fresh=True)
    assert panel.status.state == "done"


def test_out_of_memory_is_a_sentence(pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = ablate(pair.base, prompt="A cat")  # few cells: every halving collects garbage
    told_of_full_memory(panel, monkeypatch, "interp_widgets.analysis.ablation.cells.patched")


def test_cancel_keeps_partial_maps_and_closing_ends_the_run(pair: Any, ablate: Any, monkeypatch: Any) -> None:
    cache.clear()  # other tests have asked the same of this model
    panel = ablate(pair.base)
    effect = panel.result.effect.copy()
    effect[:, 3:] = np.nan
    part = replace(panel.result, effect=effect, partial=True)
    entered, stopped = threading.Event(), threading.Event()

    def endless(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        on_partial(part)
        entered.set()
        try:
            while True:
                check()
        finally:
            stopped.set()

    monkeypatch.setattr(panel.current, "compute", endless)
    panel.metric = "kl"
    panel.go()
    assert entered.wait(120)
    panel.cancel()
    assert stopped.wait(120)
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert "partial" in maps(panel)["mlp"].title
    assert np.isnan(maps(panel)["mlp"].matrix[3:]).all()
    assert np.isfinite(maps(panel)["mlp"].matrix[:3]).all()
    counted = f"Layer by layer: {np.isfinite(effect).sum()} of {effect.size} cells exact, the largest so far: <b>"
    assert counted in panel["modules"].words.value
    entered.clear()
    stopped.clear()
    panel.go()
    assert entered.wait(120)
    panel.close()
    assert stopped.wait(120)


@pytest.mark.parametrize("tab", ["modules", "heads", "tracing"])
def test_a_partial_result_without_numbers_is_drawn_and_not_saved(wire: Any, pair: Any, ablate: Any, tab: str) -> None:
    panel = ablate(pair.base, tab=tab, **({"samples": 2} if tab == "tracing" else {"metric": "logit"}))
    current, whole = panel.current, panel.result
    assert _answers(current, "")
    values = "restored" if tab == "tracing" else "effect"
    nothing = {name: np.full_like(getattr(whole, name), np.nan) for name in (values, *(["common"][: tab != "tracing"]))}
    part = replace(whole, **nothing, strongest_first=True, partial=True)
    current._put(Outcome(current.shown_request, (part,), 0.0, partial=True, states=current.shown_states))
    pin(wire, panel, next(iter(maps(panel, tab).values())), 1, 2)
    texts = [text for heat in maps(panel, tab).values() for text in (heat.title, *heat.notes)]
    texts.append(current.words.value)
    texts.append(current.cell.value if tab == "tracing" else current.next_token.table.caption)
    assert not [text for text in texts if re.search(r"\bnan\b", text, re.IGNORECASE)]
    assert all("partial" in heat.title and np.isnan(heat.matrix).all() for heat in maps(panel, tab).values())
    size = whole.effect.size if tab != "tracing" else whole.effect[..., whole.subject[0] :].size
    assert f"Strongest expected first: 0 of {size} cells exact." in current.words.value
    if tab == "tracing":
        assert "not computed yet" in current.cell.value
    assert not _answers(current, "")


def test_a_partial_map_names_the_largest_exact_cell(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base, pair.tuned)
    current, results = panel.current, panel.results
    assert "Strongest: A <b>" in current.words.value
    effect = np.full_like(results[0].effect, np.nan)
    effect[1, 2, 3], effect[0, 1, 4] = -4.5, 2.0
    parts = replace(results[0], effect=effect, strongest_first=True, partial=True), results[1]
    current._put(Outcome(current.shown_request, parts, 0.0, partial=True, states=current.shown_states))
    size = f"{effect.size:,}"
    first, second = current.words.value.split("<br>")[1:3]
    assert first.startswith(
        f"A: Strongest expected first: 2 of {size} cells exact, the largest so far: <b>−4.5</b>, MLP"
    )
    assert "MLP of layer 2 at" in first
    assert second.strip().startswith(f"B: Complete: {size} of {size} cells exact, the largest: <b>")
    sentence = current.describe_selection().sentences[0]
    assert "cells exact, the largest so far: −4.5, MLP of layer 2" in sentence
    assert ". B: Complete" in sentence


def test_a_trace_names_the_strongest_cell_beside_the_last_state(pair: Any, ablate: Any) -> None:
    panel = ablate(pair.base, tab="tracing", samples=2)
    result, words = panel.result, panel.current.words.value
    effect = np.abs(result.effect)
    effect[result.kinds.index("state"), :, -1] = 0
    kind, layer, position = np.unravel_index(int(effect.argmax()), effect.shape)
    assert "Strongest: <b>" in words
    layers, restored = result.layers_of(result.kinds[kind], int(layer)), PUT_BACK[result.kinds[kind]]
    assert f"{restored[0].lower()}{restored[1:]} layer{'' if layers[1] - layers[0] == 1 else 's'} {layers[0]} " in words
    assert f"({position})" in words.split("Strongest: ")[1]
    restored = np.full_like(result.restored, np.nan)
    restored[..., : result.subject[0], :] = result.corrupted
    part = replace(result, restored=restored, strongest_first=True, partial=True)
    panel.current._put(
        Outcome(panel.current.shown_request, (part,), 0.0, partial=True, states=panel.current.shown_states)
    )
    assert "cells exact.<br>" in panel.current.words.value, "before the subject nothing can be the largest"


# ---- a part of the maps


@pytest.mark.parametrize(
    ("positions", "columns"),
    [("last", [8]), ("last 2", [7, 8]), ("Eiffel Tower", [1, 2]), ("2-4 0", [2, 3, 4, 0]), ("-1", [8])],
)
def test_modules_of_some_layers_and_positions(pair: Any, ablate: Any, wire: Any, positions: str, columns: Any) -> None:
    panel = ablate(*pair, layers="1-2 -1", positions=positions, view="A")
    whole = ablate_modules(pair.base, PROMPT, TARGET).effect[:, [1, 2, 5]][:, :, columns]
    result, tab = panel.results[0], panel["modules"]
    assert (result.layers, result.positions) == ((1, 2, 5), tuple(columns))
    np.testing.assert_allclose(result.effect, whole, atol=1e-4)
    heat = maps(panel)["mlp"]
    assert heat.row_labels == ["1", "2", "5"]
    assert heat.column_labels == list(result.tokens)
    pin(wire, panel, heat, 2, len(columns) - 1)
    assert (panel.layer, panel.position, panel.kind) == (5, columns[-1], "mlp")
    assert heat.pinned == [2, len(columns) - 1]
    assert f"MLP of layer 5 at {at_token(columns[-1], result.prompt_tokens)}" in tab.next_token.table.caption
    assert "log-probability" in tab.next_token.table.caption, "the effect is that of the picked cell"
    panel.position = 6
    assert heat.pinned == []
    assert heat.cross == [2, -1]
    assert f"layers=[1, 2, 5], positions={columns}" in panel.current.code(panel.current.request())
    panel.view = "difference"
    assert heat.row_labels == ["1", "2", "5"]
    kind, row, column = np.unravel_index(np.abs(result.effect).argmax(), result.effect.shape)
    spec = AblationSpec(result.kinds[kind], result.layers[row], result.positions[column])
    assert spec.where(result.prompt_tokens) in tab.words.value
    with panel.batch_changes():
        panel.layers = panel.positions = ""
    settle(panel)
    assert maps(panel)["mlp"].shape == [6, 9]
    assert "layers" not in panel.current.code(panel.current.request())


def test_heads_of_some_layers(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base, tab="heads", layers="4-5")
    np.testing.assert_allclose(panel.result.effect, ablate_heads(pair.base, PROMPT, TARGET).effect[4:], atol=1e-4)
    heat = maps(panel, "heads")["head"]
    pin(wire, panel, heat, 1, 3)
    assert (panel.layer, panel["heads"].head, heat.pinned) == (5, 3, [1, 3])
    assert "head 3 of layer 5" in panel.current.next_token.table.caption.lower()
    row, head = np.unravel_index(np.abs(panel.result.effect).argmax(), (2, 6))
    assert f"head {head} of layer {4 + row}" in words(panel)
    assert not hasattr(panel["heads"], "positions"), "heads have a position of their own"


def test_tracing_of_some_layers_and_positions(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(*pair, tab="tracing", samples=2, layers="3 1", positions="Tower is located", view="A")
    result, whole = panel.results[0], causal_trace(pair.base, PROMPT, SUBJECT, TARGET, samples=2)
    np.testing.assert_allclose(result.effect, whole.effect[:, [3, 1]][:, :, 2:5], atol=1e-4)
    heat = maps(panel, "tracing")["mlp"]
    assert heat.column_marks == [[0, 1]], "of the subject one token is in the map"
    pin(wire, panel, heat, 1, 2)
    assert (panel.layer, panel.position) == (1, 4)
    effect = float(whole.effect[whole.kinds.index("mlp"), 1, 4])
    assert f"The clean MLP output of layer 1 at {at_token(4, result.tokens)} restores <b>{amount(effect)}</b>" in (
        panel.current.cell.value
    )
    panel.view = "difference"
    assert heat.row_labels == ["3", "1"]


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("layers", "first", "the layers must be numbers such as 20-29 or 3 7 -1, got 'first'"),
        ("layers", "5-3", "the layers must be numbers"),
        ("layers", "6", "layer must be in -6..5 for this 6-layer model, got 6"),
        ("positions", "Berlin", "positions 'Berlin' is not in the prompt"),
        ("positions", "9", "position must be in -9..8 for this prompt of 9 tokens, got 9"),
        ("positions", "4-2", "a span must begin before it ends"),
        ("positions", "1 1", "positions must be different, got 1 twice"),
    ],
)
def test_a_part_that_is_not_there_is_a_hint(pair: Any, ablate: Any, option: str, value: str, hint: str) -> None:
    panel = ablate(pair.base)
    setattr(panel, option, value)
    settle(panel)
    assert hint in panel["modules"].controls.hints[option]


def more_buttons(box: Any) -> list[bool]:
    """Whether each More button in a box is pressed."""
    inner = [value for child in getattr(box, "children", ()) for value in more_buttons(child)]
    return [box.value, *inner] if getattr(box, "description", "") == "More" else inner


def test_a_long_map_opens_on_its_last_tokens_and_says_so(
    pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interp_widgets.widgets.base.panel.FIRST_BACKGROUND_SECONDS", 0.0)
    prompt = f"{PROMPT} Paris. {PROMPT}"  # nothing that ships or that another test has asked, which takes no time
    long = ablate(pair.base, prompt=prompt, live_seconds=0)
    tab = long["modules"]
    assert tab.positions == "last 8"
    assert len(long.result.positions) == 8
    assert "Only the last 8 tokens" in tab.forecast_label.value
    assert more_buttons(long["tracing"].inputs) == [False], "a part that nobody has chosen opens no More"
    tab.positions = ""
    assert tab.positions == "", "the whole is one change away"
    assert ablate(pair.base, prompt=prompt, positions="last", live_seconds=0)["modules"].positions == "last"
    monkeypatch.setattr("interp_widgets.widgets.base.panel.FIRST_BACKGROUND_SECONDS", 60.0)
    short = ablate(pair.base, prompt=f"{PROMPT} Rome. {PROMPT}")
    assert (short["modules"].positions, short["modules"].forecast_label.value) == ("", "")


def test_a_long_trace_opens_with_its_subject(pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.base.panel.FIRST_BACKGROUND_SECONDS", 0.0)
    prompt = f"Berlin is not far. {PROMPT} Paris. {PROMPT}"
    tab = ablate(pair.base, prompt=prompt, subject="Berlin", samples=1, tab="tracing", live_seconds=0)["tracing"]
    end = len(tab.strip.tokens)
    assert tab.positions == "last 8"
    assert tuple(tab.result.positions) == (*range(*tab.result.subject), *range(end - 8, end))
    assert "Only the subject and the last 8 tokens" in tab.forecast_label.value
    tab.positions = "last"
    settle(tab)
    assert tuple(tab.result.positions) == (end - 1,), "what is chosen is what is traced"


def test_a_part_of_a_long_map_takes_a_part_of_its_time(pair: Any, ablate: Any) -> None:
    prompt = " ".join([PROMPT] * 30)
    panel = ablate(pair.base, live_seconds=0)
    panel.prompt = prompt
    assert panel.status.state == "waiting", "only the forecast is asked for"
    for tab in ("modules", "tracing"):
        current = panel[tab]
        if tab == "tracing":
            current.subject = SUBJECT
        whole = current.cost(current.request(), pair.base).flops
        current.positions = "last"
        few = current.cost(current.request(), pair.base).flops
        current.layers = "-1"
        assert whole > (20 if tab == "modules" else 2) * few
        assert few > current.cost(current.request(), pair.base).flops
        with panel.batch_changes():
            panel.layers = panel.positions = ""


def test_a_dear_run_waits_for_run(pair: Any, ablate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()  # other tests have asked the same of this model
    panel = ablate(pair.base)
    monkeypatch.setattr(panel["heads"], "forecast", lambda request: Forecast(420.0, 300_000_000))
    panel.tab = "heads"
    assert panel.status.state == "waiting"
    assert "300 MB · a part takes less: Layers under More" in panel.current.forecast_label.value
    assert panel.result is None
    panel.tab = "modules"
    assert panel.wait(120)
    assert panel.status.state == "done", "what is in the cache needs no run"


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "bridge", torch.float32), ("llama", "hooked", torch.bfloat16), ("gpt_neox", "hooked", torch.float32)],
)
def test_other_models(ablate: Any, wire: Any, family: str, backend: Any, dtype: Any) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = ablate(model, prompt="The capital of France is", subject="France", samples=2)
    assert panel.status.state == "done", panel.status.error
    assert np.isfinite(panel.result.effect).all()
    parallel = family == "gpt_neox"
    assert ("0 everywhere" in maps(panel)["attn_to_mlp"].title) == parallel
    pin(wire, panel, maps(panel)["attn_to_mlp"], 0, 1)
    change = [abs(row[3]) for row in panel.current.next_token.table.rows]
    assert (max(change) == 0) == parallel
    for tab in ("heads", "tracing"):
        panel.tab = tab
        settle(panel)
        assert panel.status.state == "done", panel.status.error


def test_two_hundred_moves_end_where_they_end(pair: Any, ablate: Any, wire: Any) -> None:
    panel = ablate(pair.base)
    heat = maps(panel)["mlp"]
    for step in range(200):
        wire.type(heat, pinned=[step % 6, step % 9], cross=[step % 6, step % 9])
    assert panel.wait(60)
    assert (panel.layer, panel.position) == (199 % 6, 199 % 9)
    assert "MLP of layer 1 at “·Eiffel” (1)" in panel.current.next_token.table.caption
    assert panel.status.state == "done", panel.status.error
