"""The tab of circuits without a browser: what it asks for, draws, selects, saves, and takes amiss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import CircuitResult, PatchingPanel, Workbench, circuit_faithfulness, greedy_circuit
from interp_widgets.widgets.base.fields import hidden
from interp_widgets.widgets.patching.circuit import beyond_chance, in_words, kept_in_words
from interp_widgets.widgets.patching.options import CLEAN, CORRUPTED, part
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import cancelled_and_closed, complaint

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
    """Opens panels on the tab; afterwards every worker and comm they opened must be gone."""
    with opening(PatchingPanel) as build:
        yield lambda *models, most_parts=3, **options: build(
            *models, tab="circuit", **options, **({"most_parts": most_parts} if most_parts else {})
        )
    assert wire.open() <= 2, "what the kernel shares (Bokeh's code) may stay, nothing else"


def test_the_curve_the_table_and_the_words_are_those_of_the_function(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned)
    tab = panel["circuit"]
    assert (tab.status.state, panel.hints) == ("done", {}), tab.status.error
    found = greedy_circuit(pair.tuned, CLEAN, CORRUPTED, " Paris", foil=" Rome", most=3)
    assert tab.result.parts == found.parts
    lines, band = tab.charts[0].lines.data, tab.charts[0].band.data
    np.testing.assert_allclose(lines["ys"], [found.faithfulness, found.without], atol=1e-5)
    np.testing.assert_allclose([band["low"], band["high"]], found.band, atol=1e-5)
    rows = tab.tables[0].rows
    assert [row[1] for row in rows] == ["none", *found.parts]
    assert [row[2] for row in rows] == pytest.approx(found.faithfulness.tolist(), abs=1e-5)
    assert [row[3] for row in rows] == pytest.approx(found.random.mean(0).tolist(), abs=1e-5)
    said = tab.verdicts[0].value
    assert f"<b>Smallest circuit beyond chance: 2 parts</b>, {', '.join(found.parts[:2])}." in said
    kept, chance = (part(float(values[2])) for values in (found.faithfulness, found.random.mean(0)))
    assert f"<b>{kept}</b> of the difference between the prompts, 20 random circuits like it keep {chance}" in said
    assert "Chosen and measured on one pair, which flatters it" in said
    assert "<b>13.5</b> clean, <b>−13.1</b> corrupted" in tab.words.value


def test_the_smallest_circuit_beyond_chance_stays_beyond_it() -> None:
    random = np.zeros((20, 5))
    random[:, 3] = 0.5
    result = greedy_circuit(tiny_model("llama", "bridge"), [5, 1, 8], [5, 2, 8], 7, foil=9, most=4)
    made = replace(result, faithfulness=np.array([0.0, 0.01, 0.3, 0.4, 0.8]), random=random)
    assert beyond_chance(made) == 4, "at three parts random circuits keep as much, so that two do not count"
    assert beyond_chance(replace(made, random=np.zeros((20, 5)))) == 2, "what keeps nothing is no circuit"
    assert beyond_chance(replace(made, random=np.ones((20, 5)))) == 0
    assert "No circuit beyond chance" in in_words(replace(made, random=np.ones((20, 5))))


def test_a_part_that_is_clicked_is_selected_everywhere(pair: Any, patch: Any, wire: Any) -> None:
    bench = Workbench(pair.tuned, prompt=CLEAN)
    panel = settle(PatchingPanel(bench, tab="circuit", most_parts=2))
    tab = panel["circuit"]
    try:
        assert tab.result.parts == ("head 0.1", "mlp 0")
        wire.type(tab.tables[0], selected=1)
        assert (bench.layer, bench.head, panel.picked_part) == (0, 1, "head 0.1")
        bench.select(layer=3)
        assert tab.tables[0].selected == 1
        wire.type(tab.tables[0], selected=0)
        assert (panel.picked_part, tab.tables[0].selected) == ("", -1)
        assert "Smallest circuit beyond chance" in tab.verdicts[0].value
        assert tab.described().sentences == (), "the panel says it once"
    finally:
        panel.close()
        bench.close()


def test_parts_are_kept_and_left_out(pair: Any, patch: Any, wire: Any) -> None:
    panel = patch(pair.tuned)
    tab = panel["circuit"]
    assert [row[-1] for row in tab.tables[0].rows] == ["", "✓", "✓", "✓"]
    assert hidden(tab.keep_button)
    wire.type(tab.tables[0], selected=2)
    assert tab.keep_button.description == "Leave out mlp 0"
    wire.click(tab.keep_button)
    settle(panel)
    assert (panel.kept, tab.keep_button.description) == ("head 0.1, head 0.0", "Keep mlp 0")
    assert [row[-1] for row in tab.tables[0].rows] == ["", "✓", "", "✓"]
    kept = ["head 0.1", "head 0.0"]
    found = circuit_faithfulness(pair.tuned, CLEAN, CORRUPTED, kept, " Paris", foil=" Rome", draws=20)
    assert tab.kept_words.value == kept_in_words(found)
    wire.click(tab.keep_button)
    settle(panel)
    assert "3 parts keep" in tab.kept_words.value
    assert part(float(tab.result.faithfulness[3])) in tab.kept_words.value
    panel.kept = "head 9.1"
    assert "layer must be in -6..5" in panel.hints["kept"]
    assert hidden(tab.kept_words)
    panel.kept = ""
    assert (panel.hints, hidden(tab.kept_words)) == ({}, True)


def test_pairs_of_the_list_of_which_some_are_held_out(pair: Any, patch: Any) -> None:
    panel = patch(pair.tuned, pairs=LINES, pairs_from="pairs", held_out=1, most_parts=2)
    tab = panel["circuit"]
    texts = [[line.split(" | ")[at] for line in LINES] for at in range(4)]
    answers, foils = ([f" {word}" for word in words] for words in texts[2:])
    found = greedy_circuit(pair.tuned, *texts[:2], answers, foil=foils, most=2, held_out=1)
    np.testing.assert_allclose(tab.result.faithfulness, found.faithfulness, atol=1e-5)
    assert "Measured on 1 pair held out" in tab.verdicts[0].value
    panel.kept = ", ".join(found.parts)
    settle(panel)
    assert f"<b>{part(float(found.faithfulness[2]))}</b>" in tab.kept_words.value
    assert all(hidden(part) for part in (tab.own_prompts, tab.tokens))
    panel.held_out = 2
    assert "held_out must leave a pair" in panel.hints["held_out"]
    panel.held_out = 0
    panel.pairs = LINES[:1]
    settle(panel)
    assert panel.hints == {}
    panel.pairs_from = "prompts"
    settle(panel)
    assert not hidden(tab.own_prompts)


@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"corrupted": "The capital of the Italy is"}, "corrupted", "must have equally many tokens"),
        ({"corrupted": "", "swap": "France → the Italy"}, "swap", "must have equally many tokens"),
        ({"layers": "0", "most_parts": 8}, "most_parts", "most must be at most 7"),
        ({"layers": "7"}, "layers", "layer must be in -6..5"),
        (
            {"pairs_from": "pairs", "pairs": ["The capital of Spain is | The capital in Spain is"]},
            "pairs",
            "of pair 0 ('The capital in Spain is') is answered by ' Madrid' too",
        ),
        ({"pairs_from": "pairs", "pairs": []}, "pairs", "there is no pair yet"),
        ({"pairs_from": "pairs", "pairs": ["Rome is | Paris of is"]}, "pairs", "must have equally many tokens"),
    ],
)
def test_what_does_not_fit_is_a_hint_at_its_box(pair: Any, patch: Any, options: Any, field: str, sentence: str) -> None:
    panel = patch(pair.tuned, **{"prompt": CLEAN, "corrupted": CORRUPTED, **options})
    assert list(panel.hints) == [field]
    assert sentence in complaint(panel)


def test_two_models_one_by_one_and_beside(pair: Any, patch: Any) -> None:
    panel = patch(pair, view="difference", most_parts=1)
    tab = panel["circuit"]
    assert [hidden(box) for box in tab.boxes] == [False, False], "there is no difference of two circuits"
    assert tab.charts[1].figure.title.text == "B · Faithfulness of the circuit"
    panel.view = "B"
    assert [hidden(box) for box in tab.boxes] == [True, False]
    assert len({result.answers for result in tab.results}) == 1


def test_it_is_saved_and_its_code_gives_the_same(pair: Any, patch: Any, tmp_path: Path) -> None:
    panel = patch(pair.tuned, most_parts=2, circuit_parts="mlp", circuit_draws=30)
    for suffix in ("csv", "svg", "html", "npz"):
        assert panel.save(tmp_path / f"circuit.{suffix}").stat().st_size > 200, suffix
    assert CircuitResult.load(tmp_path / "circuit.npz").equals(panel.result)
    names: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), names)
    assert names["result"].parts == panel.result.parts
    assert names["result"].random.shape == panel.result.random.shape == (30, 3)


def test_a_long_search_opens_on_fewer_parts(pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.base.panel.FIRST_BACKGROUND_SECONDS", 1e-9)
    panel = patch(pair.tuned, most_parts=0, live_seconds=0, target=" Paris", foil=" London")
    assert panel.most_parts == 5
    assert "most=5" in panel.current.code(panel.current.request())


def test_troubles(pair: Any, patch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tab = patch(pair.base, most_parts=1)["circuit"]
    cancelled_and_closed(tab, monkeypatch, lambda: setattr(tab, "most_parts", 2))
