"""The workbench of bias without a browser: data, probes, neurons, with the demo's sentences and with one's own."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import traitlets as T

from interp_widgets import (
    BiasWorkbench,
    CrowsPair,
    LabeledTexts,
    LogitLensExplorer,
    SentencePair,
    Workbench,
    bias_neuron_activity,
    compare_debiasing,
    demo_bias_texts,
    demo_stereoset,
    leace_edit,
    load_model,
    rank_bias_neurons,
    score_crows,
    score_stereoset,
    subtraction_edit,
    train_bias_probes,
)
from interp_widgets.widgets.base.guard import handling
from interp_widgets.widgets.bias.neurons import NeuronResult
from tests.models.tiny import tiny_folder
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle

pytestmark = pytest.mark.slow

JOBS = ("pilot", "nurse", "soldier", "plumber", "teacher", "doctor", "farmer", "cook", "lawyer", "singer", "artist")
PAIRS = [
    SentencePair(f"The {job} said that he was late.", f"The {job} said that she was late.", job, "work") for job in JOBS
]
CROWS = [
    CrowsPair(f"The {job} said that she was late.", f"The {job} said that he was late.", way, domain)  # type: ignore[arg-type]
    for job, way, domain in zip(JOBS, ("stereo", "antistereo") * 6, ("gender", "age") * 6, strict=False)
]


@pytest.fixture(scope="module")
def base() -> Any:
    return demo_pair().base


@pytest.fixture
def view(wire: Any) -> Iterator[Callable[..., BiasWorkbench]]:
    with opening(BiasWorkbench) as build:
        yield build


def run_code(panel: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), scope)
    return scope


def stereoset_file(path: Path, domains: tuple[str, ...] = ("gender", "race")) -> Path:
    rows = [
        {
            "id": f"{domain}-{job}", "target": job, "bias_type": domain, "context": f"The {job} is BLANK.",
            "sentences": [
                {"sentence": f"The {job} is {word}.", "gold_label": label}
                for word, label in (("strong", "stereotype"), ("weak", "anti-stereotype"), ("green", "unrelated"))
            ],
        }
        for domain in domains for job in JOBS[:3]
    ]  # fmt: skip
    path.write_text(json.dumps({"data": {"intrasentence": rows}}))
    return path


# ---- data


def test_the_demo_is_scored_with_the_planted_rates_beside_it(base: Any, view: Any) -> None:
    panel = view(base)
    own, data = panel["data"], demo_stereoset()
    expected = score_stereoset(base, data)
    np.testing.assert_allclose(panel.result.scores, expected.scores, rtol=1e-5)
    assert [entry.ss for entry in panel.result.metrics] == [entry.ss for entry in expected.metrics]
    labels = [column["label"] for column in own.table.columns]
    assert labels[-1] == "planted %"
    for row, example, scores in zip(own.table.rows, data, expected.scores, strict=True):
        assert (row[0], row[1], row[-1]) == (example.target, example.domain, example.rate)
        assert [row[2].replace("BLANK", row[column]) for column in (3, 5, 7)] == list(example.sentences)
        np.testing.assert_allclose([row[column] for column in (4, 6, 8)], 100 * scores, atol=6e-4)
    dots = {(dot.row, dot.score): (dot.value, tuple(dot.interval)) for dot in own.chart.dots}
    for entry in expected.metrics:
        assert dots[entry.domain, "SS"] == (entry.ss, tuple(entry.ss_interval))
        assert dots[entry.domain, "ICAT"] == (entry.icat, tuple(entry.icat_interval))
    np.testing.assert_allclose(run_code(panel)["result"].scores, expected.scores, rtol=1e-5)


def test_a_click_makes_an_example_the_prompt_of_all_panels(base: Any, view: Any, wire: Any) -> None:
    bench = Workbench(base)
    panel = view(bench)
    example = demo_stereoset()[3]
    wire.type(panel["data"].table, selected=3)
    assert bench.prompt == example.stereotype
    panel.sends = 2
    wire.type(panel["data"].table, selected=-1)
    wire.type(panel["data"].table, selected=3)
    assert bench.prompt == example.unrelated
    assert example.unrelated in panel["data"].message.value
    bench.close()


def test_two_models(view: Any) -> None:
    pair = demo_pair()
    panel = view(pair)
    own = panel["data"]
    scores = [score_stereoset(model, demo_stereoset()).scores for model in pair]
    for name, expected in (("A", scores[0]), ("B", scores[1]), ("difference", scores[1] - scores[0])):
        panel.view = name
        np.testing.assert_allclose([row[4] for row in own.table.rows], 100 * expected[:, 0], atol=6e-4)
        assert {dot.series for dot in own.chart.dots} == {"A": {0}, "B": {1}, "difference": {0, 1}}[name]


def test_a_file_of_stereoset_and_one_of_its_domains(base: Any, view: Any, tmp_path: Path) -> None:
    path = stereoset_file(tmp_path / "dev.json")
    panel = view(base, data_file=str(path))
    assert [entry.domain for entry in panel.result.metrics] == ["gender", "race", "overall"]
    assert "planted %" not in [column["label"] for column in panel["data"].table.columns]
    panel.domain = "race"
    settle(panel)
    assert set(panel.result.domains) == {"race"}
    assert set(run_code(panel)["result"].domains) == {"race"}
    kept = panel.result
    panel.domain = "religion"
    assert panel.hints == {"domain": "the domain must be one of gender, race, got 'religion'"}
    assert panel.result is kept
    panel.domain = ""
    settle(panel)
    assert panel.hints == {}
    stereoset_file(path, ("age",))  # the same name, another file
    panel.run()
    assert panel.result.overall.n == 3


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("no.json", None, "there is no file of sentences about bias at .*no.json: check the path"),
        ("a.csv", "one,two\n1,2\n", "a.csv has the fields 'one', 'two': StereoSet has 'data', CrowS-Pairs 'sent_more'"),
        ("a.csv", "biased,benign\nx,\n", "pair 0 of .*a.csv: 'benign' is empty"),
        ("a.json", '{"rows": []}', "a.json has no 'data': its fields are 'rows'"),
        ("a.csv", "sent_more,sent_less,stereo_antistereo,bias_type\na,b,maybe,age\n", "pair 0 .*'stereo_anti"),
    ],
)  # fmt: skip
def test_a_file_of_the_wrong_layout(
    name: str, text: str | None, says: str, base: Any, view: Any, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    panel = view(base, domain="gender")
    kept = panel.result
    panel.data_file = str(tmp_path / name)
    assert list(panel.hints) == ["data_file"]
    with pytest.raises(ValueError, match=says):
        raise ValueError(panel.hints["data_file"])
    assert (panel.result, panel.status.error) == (kept, "")


def test_crows_pairs_and_pairs_of_ones_own(base: Any, view: Any) -> None:
    panel = view(base, data=CROWS)
    expected = score_crows(base, CROWS)
    np.testing.assert_allclose(panel.result.log_likelihood, expected.log_likelihood, rtol=1e-5)
    assert [(dot.row, dot.value) for dot in panel["data"].chart.dots] == [
        (entry.domain, entry.preferred) for entry in expected.metrics
    ]
    assert panel["data"].table.rows[1][1:3] == ["an anti-stereotype", CROWS[1].more]
    panel.data = PAIRS
    settle(panel)
    assert panel.result.more == tuple(pair.biased for pair in PAIRS)
    scope = {"data": PAIRS}
    exec(panel.current.code(panel.current.request()), scope)
    np.testing.assert_allclose(scope["result"].log_likelihood, panel.result.log_likelihood, rtol=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [3, "text", [3], [*CROWS, *PAIRS], []])
def test_data_of_another_kind(data: Any, base: Any) -> None:
    with pytest.raises(T.TraitError, match="data must be a list of StereoSetExample, of CrowsPair or of SentencePair"):
        BiasWorkbench(base, data=data)


# ---- probes


def test_probes_beside_their_controls(base: Any, view: Any) -> None:
    panel = view(base, tab="probes", splits=2)
    own, expected = panel["probes"], train_bias_probes(base, demo_bias_texts("train"), pool="last", splits=2)
    np.testing.assert_allclose(panel.result.auc, expected.auc, atol=1e-6)
    assert (panel.layer, panel.pool) == (base.n_layers - 1, "last")
    lines = {line.name: line.values for line in own.chart.lines}
    np.testing.assert_allclose(lines["probe"], expected.auc.mean(axis=1))
    np.testing.assert_allclose(lines["shuffled labels"], expected.control_auc.mean(axis=1))
    np.testing.assert_allclose(lines["bag of words"], expected.bag_of_words.mean())
    np.testing.assert_allclose(own.maps.views[0].matrix, expected.generalization.T, atol=1e-6)
    panel.threshold = float(np.median(expected.generalization))
    crossed = {tuple(cell) for cell in own.maps.views[0].crossed}
    held = {(layer, probe) for layer in range(6) for probe in expected.generalizing(layer, panel.threshold)}
    assert crossed | held == {(row, column) for row in range(6) for column in range(6)}
    assert not crossed & held
    panel.measure = "accuracy"
    lines = {line.name: line.values for line in own.chart.lines}
    assert list(lines) == ["probe", "second probe", "shuffled labels"]
    np.testing.assert_allclose(lines["second probe"], expected.second_accuracy.mean(axis=1))
    np.testing.assert_allclose(run_code(panel)["result"].auc, expected.auc, atol=1e-6)


def test_a_layer_is_chosen_for_all_panels(base: Any, view: Any, wire: Any) -> None:
    bench = Workbench(base)
    panel = view(bench, tab="probes", splits=2)
    chart, result = panel["probes"].geometries[0], panel.result
    wire.type(panel["probes"].maps.views[0], pinned=[3, 2])
    assert (panel.layer, bench.layer) == (2, 2)
    np.testing.assert_allclose(chart.source.data["x"], result.projection[2, :, 0])
    np.testing.assert_allclose(chart.source.data["y"], result.projection[2, :, 1])
    assert [kind == "biased" for kind in chart.source.data["kind"]] == result.biased.tolist()
    panel["probes"].chart.source.selected.indices = [1]
    assert bench.layer == 1
    bench.close()


def test_texts_that_no_probe_can_be_trained_on(base: Any, view: Any) -> None:
    panel = view(base, tab="probes", splits=2)
    kept = panel.result
    texts = tuple(pair.biased for pair in PAIRS)
    panel.data = LabeledTexts(texts, (True,) * len(texts), texts)
    assert panel.status.error == "the texts are all biased: a probe needs biased and benign ones"
    panel.data = PAIRS[:4]
    assert panel.status.error == "an accuracy of 4 groups says nothing: give 10"
    assert panel.result is kept
    panel.tab = "data"
    settle(panel)
    assert panel.status.state == "done"
    panel.data = LabeledTexts(texts, (True, False) * 5 + (True,), texts)
    assert "labelled texts are not pairs to compare: use them on the Probes tab" in panel.status.error


# ---- neurons


def test_neurons_and_their_activity(base: Any, view: Any) -> None:
    panel = view(base, tab="neurons", splits=2, k=4)
    own, texts = panel["neurons"], demo_bias_texts("train")
    probes = train_bias_probes(base, texts, pool="last", splits=2)
    neurons = rank_bias_neurons(base, probes, k=4)
    activity = bias_neuron_activity(base, neurons, texts)
    assert isinstance(panel.result, NeuronResult)
    np.testing.assert_array_equal(panel.result.neurons.neuron, neurons.neuron)
    rows = own.charts[0].source.data
    assert sorted(zip(rows["probe"], rows["layer"], rows["neuron"], strict=True)) == sorted(
        (probe, int(layer), int(number))
        for probe in range(6) for layer, number in zip(neurons.layer[probe], neurons.neuron[probe], strict=True)
    )  # fmt: skip
    assert {(row[0], row[1]) for row in own.table.rows} == {
        (int(a), int(b)) for a, b in zip(neurons.layer.ravel(), neurons.neuron.ravel(), strict=True)
    }
    lines = own.activity["mean"].lines
    np.testing.assert_allclose(lines[0].values, activity.mean[:, 0], atol=1e-6)
    np.testing.assert_allclose(lines[1].values, activity.mean[:, 1], atol=1e-6)
    scope = run_code(panel)
    np.testing.assert_array_equal(scope["neurons"].neuron, neurons.neuron)


def test_a_click_selects_a_neuron_for_all_panels(base: Any, view: Any, wire: Any) -> None:
    bench = Workbench(base)
    panel = view(bench, tab="neurons", splits=2, k=4)
    own = panel["neurons"]
    rows = own.charts[0].source.data
    own.charts[0].source.selected.indices = [5]
    assert (bench.layer, bench.neuron) == (rows["layer"][5], rows["neuron"][5]) == panel.picked
    assert own.table.rows[own.table.selected][:2] == list(panel.picked)
    assert len(own.charts[0].picked.data["x"]) >= 1
    wire.type(own.table, selected=2)
    assert [bench.layer, bench.neuron] == own.table.rows[2][:2]
    bench.close()


def test_neurons_of_two_models_in_one_table(view: Any, wire: Any) -> None:
    panel = view(demo_pair(), tab="neurons", splits=2, k=4, view="beside")
    table = panel["neurons"].table
    assert [column["label"] for column in table.columns][:3] == ["model", "layer", "neuron"]
    assert list(dict.fromkeys(row[0] for row in table.rows)) == ["A", "B"]
    assert table.caption == "Bias neurons, by model and cosine"
    last = len(table.rows) - 1
    wire.type(table, selected=last)
    assert panel.picked == tuple(table.rows[last][1:3])
    panel.view = "B"
    assert table.caption == "Bias neurons, by cosine"
    assert tuple(table.rows[table.selected][:2]) == panel.picked


def test_probes_are_trained_once_for_both_tabs(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = view(base, tab="probes", splits=3)
    from interp_widgets.widgets.bias import examples

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    for model in panel.models:
        monkeypatch.setattr(type(model), "embed", refused)
    with pytest.raises(AssertionError, match="trained again"):
        examples.train_bias_probes(base, demo_bias_texts(), splits=3)
    monkeypatch.undo()
    found = panel.result
    panel.tab = "neurons"
    settle(panel)
    assert panel.result.probes is found


def test_more_neurons_than_there_are(base: Any, view: Any) -> None:
    panel = view(base, tab="neurons", splits=2, k=4)
    kept = panel.result
    most = base.n_layers * base.d_mlp
    panel.k = most + 1
    assert panel.status.error == f"k must be in 1..{most} for the neurons of these models, got {most + 1}"
    assert (panel.k, panel.result) == (4, kept)


@pytest.mark.parametrize("tab", ["data", "probes", "neurons", "debias"])
def test_every_format_is_saved(tab: str, view: Any, tmp_path: Path) -> None:
    panel = view(demo_pair(), tab=tab, splits=2)
    for view_name in ("A", "beside"):
        panel.view = view_name
        for suffix in (".csv", ".svg", ".html", ".npz"):
            assert panel.save(tmp_path / f"{tab}-{view_name}{suffix}").stat().st_size > 100


# ---- debias


def heading(panel: Any) -> str:
    return str(panel.heading.value)


def test_an_edit_and_the_scores_without_it_and_with_it(base: Any, view: Any) -> None:
    panel = view(base, tab="debias", method="leace")
    found, data = panel.result, demo_stereoset()
    edit = leace_edit(base, demo_bias_texts("train"), layer=range(1, 7), pool="last")
    np.testing.assert_allclose(found.edit.streams[6].read, edit.streams[6].read, atol=1e-5)
    before = score_stereoset(base, data)
    with edit.applied(base):
        after = score_stereoset(base, data)
    assert (found.before.overall.ss, found.after.overall.ss) == (before.overall.ss, after.overall.ss)
    assert after.overall.ss < before.overall.ss
    dots = {(dot.row, dot.score, dot.series): dot.value for dot in panel["debias"].chart.dots}
    assert dots["gender", "SS", 0] == before.domain("gender").ss
    assert dots["gender", "SS", 1] == after.domain("gender").ss
    assert panel["debias"].table.rows[-1][0] == "stream entering layer 6"
    np.testing.assert_allclose(run_code(panel)["result"].scores, after.scores, rtol=1e-5)
    assert base.edits == ()


@pytest.mark.parametrize("method", ["lope", "subtraction", "inlp", "suppression", "ethos", "leace"])
def test_every_method_asks_for_its_own_edit(method: str, base: Any, view: Any) -> None:
    panel = view(base, tab="debias", method="leace", splits=2)
    panel.live_seconds = 0.0
    panel.method = method
    text = panel.current.code(panel.current.request())
    assert f"{method} = {method}_edit(" in text
    for name in (f"{method}_edit", "score_stereoset"):
        assert name in text.splitlines()[0]
    if method in ("lope", "subtraction", "inlp"):
        assert settle(panel).result.edit.settings["method"] == method


def test_more_rounds_than_the_stream_is_wide(base: Any, view: Any) -> None:
    panel = view(base, tab="debias", method="inlp", rounds=2)
    panel.rounds = 500
    assert panel.status.error == f"rounds must be in 1..{base.d_model - 1} for the width of these models, got 500"
    assert panel.rounds == 2


def test_the_switch_acts_on_every_panel_of_the_workbench(base: Any, view: Any) -> None:
    bench = Workbench(base)
    lens = LogitLensExplorer(bench, prompt="Many believe that pilots should be")
    panel = settle(view(bench, tab="debias", method="leace"))
    plain, weights = lens.result, base.weight_hash
    panel.tab = "data"
    settle(panel)
    unedited = panel.result
    panel.tab = "debias"
    edited = panel.result.after
    panel.on = True
    settle(panel)
    settle(lens)
    assert base.edits == ("LEACE",)
    for shown in (heading(lens), heading(panel)):
        assert "edited: LEACE" in shown
    assert "<b>Applied</b>" in panel["debias"].summary.value
    assert not np.allclose(lens.result.probability, plain.probability)
    panel.tab = "data"
    settle(panel)
    np.testing.assert_allclose(panel.result.scores, edited.scores, rtol=1e-5)
    assert "edited: LEACE" in heading(panel)
    assert panel["data"].question()["Edited"] == "demo-base: LEACE"

    panel.tab = "debias"
    panel.on = False
    settle(panel)
    settle(lens)
    np.testing.assert_array_equal(lens.result.probability, plain.probability)
    panel.tab = "data"
    settle(panel)
    np.testing.assert_array_equal(panel.result.scores, unedited.scores)
    assert (base.edits, base.weight_hash) == ((), weights)
    assert "edited" not in heading(lens) + heading(panel)
    assert "Edited" not in panel["data"].question()
    bench.close()


def test_an_edit_made_while_another_workbench_had_edited_the_model_is_dimmed(base: Any, view: Any) -> None:
    first = settle(view(Workbench(base), tab="debias", method="leace"))
    first.on = True
    settle(first)
    second = settle(view(Workbench(base), tab="debias", splits=2, k=4))
    marked = second["debias"].plot._dom_classes
    assert "iw-stale" not in marked, "it is about the model as it was"
    first.on = False
    settle(first)
    with handling():  # at the end of which all panels are compared with their models
        pass
    assert "iw-stale" in marked or "iw-stale" in second["debias"].plot._dom_classes
    assert "model has changed" in second["debias"].forecast_label.value
    before = second.result.edit
    second.go()
    settle(second)
    assert "iw-stale" not in second["debias"].plot._dom_classes
    assert any(
        len(before.layers.get(layer, one).neurons) != len(one.neurons)
        or not torch.equal(before.layers.get(layer, one).after, one.after)
        for layer, one in second.result.edit.layers.items()
    )


def test_other_settings_and_a_closed_panel_take_the_edit_back(base: Any, view: Any, wire: Any) -> None:
    panel, weights = view(base, tab="debias", splits=2, k=4), base.weight_hash
    wire.type(panel["debias"].switch.button, value=True)
    settle(panel)
    assert (panel.on, base.edits) == (True, ("LoPE",))
    assert base.weight_hash != weights
    assert panel["debias"].switch.button.description == "Switch the edit off"
    panel.k = 5
    settle(panel)
    assert (panel.on, base.edits, base.weight_hash) == (False, (), weights)
    assert panel.result.edit.settings["k"] == 5
    panel.on = True
    settle(panel)
    other = view(panel.workbench, tab="debias", splits=2)
    assert other["debias"].hints == {
        "method": "the edit LoPE is applied to the models: switch it off on the Debias tab"
    }
    other.close()
    assert base.edits == ("LoPE",)
    panel.close()
    assert (base.edits, base.weight_hash) == ((), weights)


def test_an_edit_waits_for_a_model_that_computes(base: Any, view: Any) -> None:
    panel = view(base, tab="debias", method="leace")
    held, go_on = threading.Event(), threading.Event()

    def compute() -> None:
        with base.lock:
            held.set()
            go_on.wait(60)

    thread = threading.Thread(target=compute)
    thread.start()
    assert held.wait(60)
    panel.on = True
    assert base.edits == ()
    assert "Not applied" in panel["debias"].summary.value
    go_on.set()
    thread.join(60)
    settle(panel)
    assert base.edits == ("LEACE",)
    assert "<b>Applied</b>" in panel["debias"].summary.value


def test_an_edit_of_another_model_is_not_put_in_force(base: Any, view: Any) -> None:
    panel = view(base, tab="debias", method="lope", splits=2, k=4)
    weights = base.weight("W_out", 0)
    with torch.no_grad():
        before = weights[:].clone()
        weights += 1.0
    panel.on = True
    assert panel.wait(60)
    with torch.no_grad():
        weights.copy_(before)
    assert "was made for other weights than those of demo-base" in panel.status.error
    assert (panel.on, base.edits) == (False, ())


def test_an_edit_is_saved_and_loaded(base: Any, view: Any, tmp_path: Path, wire: Any) -> None:
    panel = view(base, tab="debias", method="leace")
    own = panel["debias"]
    own.path.value = str(tmp_path / "own")
    own.hint.of(own._save_edit)()
    assert own.hint.sentence == f"Saved {tmp_path / 'own.safetensors'}, for demo-base"
    edited = load_model("demo-base", edits=[tmp_path / "own.safetensors"])
    np.testing.assert_allclose(score_stereoset(edited, demo_stereoset()).scores, panel.result.after.scores, rtol=1e-5)
    own.path.value = str(tmp_path)
    own.hint.of(own._save_edit)()
    assert own.hint.sentence == f"{tmp_path} is a folder: type the name of a file in it"
    own.path.value = str(tmp_path / "nowhere" / "own")
    own.hint.of(own._save_edit)()
    assert "nowhere does not exist: make it or choose another" in own.hint.sentence


def test_two_models_have_an_edit_each(view: Any) -> None:
    pair = demo_pair()
    panel = view(pair, tab="debias", method="leace")
    panel.on = True
    settle(panel)
    assert [model.edits for model in pair] == [("LEACE",), ("LEACE",)]
    panel.view = "difference"
    assert {dot.row for dot in panel["debias"].chart.dots} == {"overall"}
    assert len(panel["debias"].chart.series) == 4
    assert list(dict.fromkeys(row[0] for row in panel["debias"].table.rows)) == ["A", "B"]
    panel.on = False
    settle(panel)
    assert [model.edits for model in pair] == [(), ()]


def test_texts_with_labels_make_an_edit_that_is_not_scored(base: Any, view: Any) -> None:
    panel = view(base, tab="debias", data=demo_bias_texts("train"), method="leace", pool="last")
    assert panel.result.before is None
    assert "cannot be scored" in panel["debias"].chart.message
    panel.method = "suppression"
    assert "labelled texts are not pairs" in panel.status.error


# ---- judge

BRIEF: dict[str, Any] = {
    "tab": "judge", "methods": ("leace", "subtraction"), "splits": 2, "prompts": ["Many believe that pilots should be"],
    "texts": ["The sun was warm.", "A bird sang in the tree."], "max_new_tokens": 3,
}  # fmt: skip


def test_edits_are_judged_beside_random_ones(base: Any, view: Any) -> None:
    panel = view(base, **BRIEF)
    probes = train_bias_probes(base, demo_bias_texts("train"), pool="last", splits=2)
    edits = [leace_edit(base, demo_bias_texts("train"), pool="last"), subtraction_edit(base, probes, k=10)]
    expected = compare_debiasing(
        base, edits, demo_stereoset(), texts=BRIEF["texts"], prompts=BRIEF["prompts"], max_new_tokens=3
    )
    assert [row.name for row in panel.result.rows] == [row.name for row in expected.rows]
    for own, other in zip(panel.result.rows, expected.rows, strict=True):
        assert own.stereoset[-1].ss == other.stereoset[-1].ss
        np.testing.assert_allclose(own.perplexity, other.perplexity, rtol=1e-5)
    judge = panel["judge"]
    dots = judge.charts[0].source.data
    assert dots["x"] == [abs(row.stereoset[-1].ss - 50) for row in expected.rows]
    np.testing.assert_allclose(
        dots["y"],
        [1.0, *(row.perplexity_ratio[0] for row in expected.rows[1:])],
        rtol=1e-5,  # type: ignore[index]
    )
    assert dots["marker"] == ["diamond", "circle", "triangle", "circle", "triangle"]
    assert dots["color"][1] == dots["color"][2] != dots["color"][3] == dots["color"][4]
    assert dots["name"][1:3] == ["LEACE", "LEACE, random"]
    assert [column["label"] for column in judge.continuations.columns] == ["prompt", "as it is", "LEACE", "Subtraction"]
    assert judge.continuations.rows[0][1] == expected.rows[0].continuations[0]
    panel.price = "lms"
    assert judge.charts[0].source.data["y"] == [row.stereoset[-1].lms for row in expected.rows]
    panel.by_domain = True
    assert len(judge.table.rows) == 5 * len(expected.rows[0].stereoset)
    assert [row.name for row in run_code(panel)["result"].rows] == [row.name for row in expected.rows]
    assert base.edits == ()


def test_what_is_judged_by_and_what_is_missing(base: Any, view: Any, tmp_path: Path) -> None:
    panel = view(base, **BRIEF, judge_file=str(stereoset_file(tmp_path / "dev.json")), control=False)
    assert [entry.domain for entry in panel.result.rows[0].stereoset] == ["gender", "race", "overall"]
    assert len(panel.result.rows) == 3
    kept = panel.result
    for options, hints in (
        ({"methods": ()}, {"methods": "choose at least one method, or saved edits"}),
        ({"methods": ("leace",), "bbq_file": str(tmp_path / "dev.json")}, {"bbq_file": "cannot read questions from"}),
        ({"bbq_file": "", "judge_file": "/nowhere.json"}, {"judge_file": "there is no file of examples at"}),
    ):
        for name, value in options.items():  # type: ignore[attr-defined]
            setattr(panel, name, value)
        assert list(panel.hints) == list(hints)
        assert panel.hints[next(iter(hints))].startswith(next(iter(hints.values())))
    assert panel.result is kept
    with pytest.raises(T.TraitError, match=r"methods may have 'lope', 'subtraction', .*, got 'magic' in it"):
        panel.methods = ("magic",)


def test_saved_edits_are_judged_beside_the_methods(base: Any, view: Any, tmp_path: Path) -> None:
    edit = leace_edit(base, demo_bias_texts("train"), layer=-1, pool="last")
    path = edit.save(tmp_path / "own.safetensors")
    panel = view(base, **BRIEF | {"methods": ("leace",)}, edit_files=[str(path)], control=False)
    assert [row.name for row in panel.result.rows] == ["as it is", "LEACE", "LEACE (own)"]
    with edit.applied(base):
        assert panel.result.rows[2].stereoset[-1].ss == score_stereoset(base, demo_stereoset()).overall.ss
    assert panel["judge"].continuations.rows[0][3] == panel.result.rows[2].continuations[0]
    assert [row.name for row in run_code(panel)["result"].rows] == [row.name for row in panel.result.rows]
    kept = panel.result
    (tmp_path / "other").mkdir()
    same = edit.save(tmp_path / "other" / "own.safetensors")
    (tmp_path / "no.safetensors").write_text("no edit")
    for files, hint in (
        (
            [str(tmp_path / "nowhere.safetensors")],
            "there is no file of an edit at .*nowhere.safetensors: check the path",
        ),
        ([str(tmp_path / "no.safetensors")], "no.safetensors is not a safetensors file"),
        (
            [str(path), str(same)],
            r"two of the saved edits are named LEACE \(own\): rename one of the files",
        ),
    ):
        panel.edit_files = files
        assert list(panel.hints) == ["edit_files"]
        assert re.search(hint, panel.hints["edit_files"])
    assert panel.result is kept
    panel.methods, panel.edit_files = (), []
    assert panel.hints == {"methods": "choose at least one method, or saved edits under More"}
    edit.save(path)  # the same name, another file
    panel.edit_files = [str(path)]
    assert [row.name for row in settle(panel).result.rows] == ["as it is", "LEACE (own)"]


def test_a_saved_edit_is_judged_on_the_model_that_it_was_made_for(view: Any, tmp_path: Path) -> None:
    pair = demo_pair()
    files = [
        str(leace_edit(model, demo_bias_texts("train"), layer=-1, pool="last").save(tmp_path / f"{name}.safetensors"))
        for name, model in zip("ab", pair, strict=True)
    ]
    panel = view(pair, **BRIEF | {"methods": ("leace",)}, edit_files=files, control=False)
    assert [row.name for row in panel.result[0].rows] == ["as it is", "LEACE", "LEACE (a)"]
    assert [row.name for row in panel.result[1].rows] == ["as it is", "LEACE", "LEACE (b)"]
    panel.view = "beside"
    labels = [column["label"] for column in panel["judge"].continuations.columns]
    assert labels == ["model", "prompt", "as it is", "LEACE", "LEACE (a)", "LEACE (b)"]
    assert [bool(cell) for cell in panel["judge"].continuations.rows[0]] == [True] * 5 + [False]
    assert [row.name for row in run_code(panel)["result_b"].rows] == ["as it is", "LEACE", "LEACE (b)"]
    panel.methods, panel.edit_files = (), files[:1]
    assert panel.hints == {"methods": f"choose at least one method: no saved edit is for {pair.tuned.name}"}
    other = load_model(tiny_folder("gpt2"))
    alone = view(other, **BRIEF | {"methods": (), "edit_files": files[:1]})
    assert "it was made for another model" in alone.hints["edit_files"]


def test_the_forecast_counts_all_that_is_judged(base: Any, view: Any, tmp_path: Path) -> None:
    panel = view(base, **BRIEF | {"methods": ("leace",)}, control=False)
    own = panel["judge"]

    def flops() -> float:
        return own.cost(own.request(), base).flops

    plain = flops()
    pairs = "".join(f"The {job} is a tall woman.,The {job} is a tall man.,stereo,gender\n" for job in JOBS)
    (tmp_path / "pairs.csv").write_text(f"sent_more,sent_less,stereo_antistereo,bias_type\n{pairs}")
    panel.crows_file = str(tmp_path / "pairs.csv")
    with_pairs = flops()
    question = {
        "context": "A pilot and a nurse met.", "question": "Who flies?", "ans0": "The pilot", "ans1": "Not known",
        "ans2": "The nurse", "label": 1, "question_polarity": "neg", "context_condition": "ambig", "category": "Jobs",
        "answer_info": {"ans0": ["pilot"], "ans1": ["unknown"], "ans2": ["nurse"]}, "question_index": "1",
        "additional_metadata": {"stereotyped_groups": ["pilot"]},
    }  # fmt: skip
    (tmp_path / "bbq.jsonl").write_text("\n".join(json.dumps(question) for _ in range(5)))
    panel.bbq_file = str(tmp_path / "bbq.jsonl")
    assert plain < with_pairs < flops()
    assert settle(panel).result.rows[1].bbq is not None
    assert panel.result.rows[1].crows is not None


def test_no_edit_is_judged_on_an_edited_model(base: Any, view: Any) -> None:
    panel = view(base, **BRIEF | {"tab": "debias", "method": "leace"})
    panel.on = True
    settle(panel)
    panel.tab = "judge"
    assert panel.hints == {"methods": "the edit LEACE is applied to the models: switch it off on the Debias tab"}


def test_a_change_that_rounds_to_zero_has_no_sign() -> None:
    from interp_widgets.widgets.bias.edit_comparison import _interval

    assert _interval(0.0, (0.0, -0.0), sign="+") == "0.0 (0.0 to 0.0)"
    assert _interval(-0.01, (-1.5, 2.0), sign="+") == "0.0 (−1.5 to +2.0)"
    assert _interval(0.0, (-0.001, 10.0), digits=2) == "0.00 (0.00–10.00)"


def test_methods_are_checked_in_boxes(base: Any, view: Any, wire: Any) -> None:
    panel = view(base, **BRIEF)
    boxes = panel["judge"].controls["methods"].children
    assert [box.value for box in boxes] == [False, True, False, False, False, True]
    wire.type(boxes[0], value=True)
    assert panel.methods == ("lope", "subtraction", "leace")
    assert panel["judge"].fields()["methods"].text(panel.methods) == "LoPE · Subtraction · LEACE"
    panel.methods = ("inlp",)
    assert [box.description for box in boxes if box.value] == ["INLP"]


def test_a_tab_of_the_screen_and_its_session(base: Any, wire: Any, tmp_path: Path) -> None:
    bench = Workbench(base)
    screen = bench.screen
    screen.show("bias")
    panel = screen["bias"]
    panel.open_tab("debias", method="leace")
    assert screen.wait(60)
    panel.on = True
    assert screen.wait(60)
    assert "edited: LEACE" in screen.heading.value
    panel.on = False
    assert screen.wait(60)
    assert "edited" not in screen.heading.value
    path = bench.save(tmp_path / "session.npz")
    bench.close()
    again = Workbench.load(path, base)
    assert again.screen["bias"].method == "leace"
    again.close()
