"""The viewer of mixtures of depths without a browser: routing, tuning with stop and resume, checkpoints, the grid."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp_widgets import Workbench, load_model
from interp_widgets.analysis.mixture_of_depths import RoutingResult, RoutingSpeed, routing
from interp_widgets.compute.memory import Forecast
from interp_widgets.data.problems import Problem, read_problems
from interp_widgets.figures.labels import visible
from interp_widgets.models import ModelPair, ModModel
from interp_widgets.tuning.mixture_of_depths import ModGrid, ModReport, mod_grid, tune_mod
from interp_widgets.tuning.mixture_of_depths import trainer as trainer_module
from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod
from interp_widgets.widgets.base.guard import ui_lock
from interp_widgets.widgets.mixture_of_depths import MoDRoutingViewer
from interp_widgets.widgets.views.base import bytes_floats
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from tests.models.mixtures import tiny_mixture
from tests.models.tiny import byte_level_tokenizer, tiny_folder, tiny_hf
from tests.shipped import demo_pair
from tests.waiting import LIMIT
from tests.widgets.opening import opening, settle

pytestmark = pytest.mark.slow

PROMPT = "When Mary and John went to the store, John gave a drink to"
DATA = [
    ("The Eiffel Tower is located in the city of", " Paris"),
    ("When Mary and John went to the store, John gave a drink to", " Mary"),
    ("The capital of France is", " Paris, and the capital of Italy is Rome."),
    ("One two three", " four five six"),
    ("A pilot flies a", " plane"),
]
PROBLEMS = [
    Problem(prompt, response, "", "task", check=lambda text: len(text) % 2 == 0) for prompt, response in DATA[:2]
]
QUICK: dict[str, Any] = {
    "prompt": PROMPT, "dataset": DATA, "problems": PROBLEMS, "k": 2, "steps": 4, "batch_size": 2, "learning_rate": 1e-2,
    "grid_steps": 2, "grid_ks": [1, 2], "n_problems": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def base() -> Any:
    return load_model(tiny_folder("llama"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def view(wire: Any) -> Iterator[Callable[..., MoDRoutingViewer]]:
    """Opens viewers; afterwards every comm and worker they opened must be gone."""
    BokehSource.shared()  # one for all, which stays
    before = wire.open()
    with opening(MoDRoutingViewer, **QUICK) as build:
        yield build
    assert wire.open() == before


SHIPPED = 1e-4
"""How far the weights of a shipped answer may be from those of this processor: a router's softmax enlarges rounding."""


def same(one: RoutingResult, other: RoutingResult, *, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=atol)
    np.testing.assert_array_equal(one.route_ids, other.route_ids)


# ---- routing


def test_a_plain_model_opens_untrained(base: Any, view: Any) -> None:
    panel = view(base)
    expected = routing(untrained_mod(base, 2), PROMPT, top=8)
    same(panel.result, expected)
    assert "untrained" in panel["route"].state.value
    assert panel["route"].heat.shape == [2, expected.n_positions]
    np.testing.assert_allclose(panel["route"].heat.matrix, expected.weights.T, atol=1e-6)
    assert panel.status.state == "done"
    panel.tab = "tune"
    empty = ["iw-hidden" in host._dom_classes for host in panel.current.hosts]
    assert empty == [False] + 5 * [True], "it is said once that there is no tuning yet"


def test_a_demo_model_opens_on_the_mixture_that_ships(wire: Any) -> None:
    pair = demo_pair()
    with opening(MoDRoutingViewer) as build:
        panel = build(pair)
        for one, base in zip(panel.result, pair, strict=True):
            shipped = load_model(f"{base.name}-mixture")
            same(one, routing(shipped, one_prompt(panel), top=8), atol=SHIPPED)
        route = panel["route"]
        assert panel.chosen == [1, 1]
        assert "<b>shipped: k 3, 600 steps</b>: 3 routes over layers 3 to 5. Tuned for 600 steps" in route.state.value
        assert "untrained" not in route.state.value + route.heat.title
        assert isinstance(panel.mixture, ModModel)
        for view in ("A", "B", "difference"):  # one number has one colour
            panel.view = view
            settle(panel)
            np.testing.assert_allclose(bytes_floats(route.strip.values), route.heat.matrix[-1], atol=1e-6)
            seen = [(one.vmin, one.vmax, one.lut, one.lut_dark) for one in (route.strip, route.heat)]
            assert route.strip.legend
            assert seen[0] == seen[1]
        panel.tab = "tune"
        assert len(panel["tune"].curves.task) == 600
        assert (panel.k, panel.learning_rate, panel.seed) == (3, 3e-3, 0)
        assert "it solves 12% of them (base model: 13%)" in panel["tune"].words.value
        panel.tab, panel.view = "route", "A"
        scope: dict[str, Any] = {}
        exec(panel.current.code(panel.current.request()), scope)
        same(scope["result_a"], panel.result[0], atol=SHIPPED)
        panel.chosen = [0, 0]
        settle(panel)
        assert "Random weight (untrained)" in route.heat.title
        same(panel.result[0], routing(untrained_mod(pair.base, 3), one_prompt(panel), top=8))
        own = build(pair.base, k=2)
        assert own.chosen == [0], "who says how to tune looks at what that begins with"
        same(own.result, routing(untrained_mod(pair.base, 2), one_prompt(own), top=8))


def test_an_edited_shipped_mixture_is_read_anew(wire: Any) -> None:
    base = demo_pair().base
    with opening(MoDRoutingViewer) as build:
        panel = build(base)
        before = panel.result
        model = panel.mixture  # made now: the first answer ships
        with torch.no_grad():
            model.mixture.router.zero_()
        panel.run()
        np.testing.assert_allclose(panel.result.weights, 1 / 3, atol=1e-6)
        assert np.ptp(before.weights) > 0.5
        same(build(base).result, before)


def one_prompt(panel: MoDRoutingViewer) -> str:
    return str(panel.prompt)


def test_the_shipped_mixture_is_of_the_model_as_it_was_loaded(wire: Any) -> None:
    edited = load_model("demo-base", dtype=torch.float64)
    with torch.no_grad():
        edited.tl_model.blocks[0].mlp.W_out.mul_(2)
    with opening(MoDRoutingViewer) as build:
        panel = build(edited)
        assert "demo-base was edited after it was loaded" in panel.status.error


def test_untrained_is_what_tuning_starts_from(base: Any) -> None:
    """A step of size nothing leaves the mixture as it was."""
    tuned, _ = tune_mod(base, DATA, 2, steps=1, batch_size=2, learning_rate=1e-12, seed=3)
    start, other = untrained_mod(base, 2, seed=3), untrained_mod(base, 2, seed=4)
    for name, value in start.state.weights.items():
        torch.testing.assert_close(value, tuned.state.weights[name], atol=1e-9, rtol=0)
    assert not torch.equal(start.state.weights["router"], other.state.weights["router"])


def test_a_mixture_given_and_the_clicked_token(view: Any, wire: Any) -> None:
    model = tiny_mixture("llama", k=2)
    panel = view(model)
    same(panel.result, routing(model, PROMPT, top=8))
    assert "untrained" not in panel["route"].state.value
    wire.type(panel["route"].heat, pinned=[1, 3])
    assert panel.prompt_token == 3
    one, table = panel.result, panel["route"].tables[0]
    row = table.rows[0]
    shown = [float(cell.split()[0].strip("<")) for cell in row]
    expected = [one.ensemble_probability[3, 0], *one.route_probability[:, 3, 0]]
    assert shown == pytest.approx([float(chance) for chance in expected], abs=1e-3)
    assert row[0].split()[1] == visible(one.token_text(int(one.ensemble_ids[3, 0])))
    assert "(3)" in table.caption
    wire.type(panel["route"].strip, selected=1)
    assert (panel.prompt_token, panel["route"].strip.selected) == (1, 1)


def test_disagreement_is_marked(view: Any) -> None:
    panel = view(tiny_mixture("llama", k=2))
    one = panel.result
    apart = one.route_ids[-1, :, 0] != one.ensemble_ids[:, 0]
    assert apart.any(), "the positive control: something to mark"
    np.testing.assert_array_equal(panel["route"].strip.mask(), apart)
    crossed = np.zeros((one.k, one.n_positions), dtype=bool)
    for row, column in panel["route"].heat.crossed:
        crossed[row, column] = True
    np.testing.assert_array_equal(crossed, ~one.agreement)


def test_sparse_routing_shows_exit_layers(view: Any) -> None:
    model = tiny_mixture("llama", k=2)
    panel = view(model, routes=1)
    expected = routing(model, PROMPT, top=8, top_k=1)
    np.testing.assert_array_equal(panel.result.exit_layer, expected.exit_layer)
    unused = np.isnan(panel["route"].heat.matrix)
    np.testing.assert_array_equal(unused, expected.weights.T == 0)
    first = expected.layers[0]
    early = {at for at, layer in enumerate(expected.exit_layer.tolist()) if layer == first}
    assert {column for _, column in panel["route"].heat.edges} == early
    assert model.top_k == 2, "the model is left as it was"


def test_speed_is_measured(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.mixture_of_depths.speed.TOKENS", 3)
    panel = view(tiny_mixture("llama", k=2))
    panel.tab = "speed"
    speed = panel["speed"]
    assert speed.prompt == panel.prompt
    assert panel.status.state == "waiting"
    assert speed.result is None, "it takes processor time: only Run measures"
    panel.tab = "route"
    assert panel.status.state == "idle", "nothing on this tab waits for Run"
    panel.tab = "speed"
    assert panel.status.state == "waiting"
    speed.go()
    assert panel.wait(60)
    assert panel.status.error == "", panel.status.trace
    assert [row[0] for row in speed.picture.tables[0].rows] == [1, 2]
    assert speed.picture.tables[0].rows[-1][-1] == "dense"
    ends = {column["label"]: column["align"] for column in speed.picture.tables[0].columns}
    assert ends["tokens/s"] == ends["routes"] == "right" != ends["text"]
    assert speed.picture.tables[0].columns[0]["title"].startswith("Routes per token")
    assert "measured on this machine: 3 tokens, mean of 8 texts each" in speed.picture.tables[0].caption
    assert panel.result is panel["route"].result, "the viewer's result is the routing still"


def test_another_run_measures_anew(view: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("interp_widgets.widgets.mixture_of_depths.speed.TOKENS", 3)
    panel = view(tiny_mixture("llama", k=2), tab="speed")
    speed = panel["speed"]
    speed.go()
    assert panel.wait(60)
    first = speed.result
    speed.refresh()
    assert speed.result is first, "what is on the screen answers the inputs"
    assert "iw-stale" not in speed.plot._dom_classes
    speed.go()
    assert panel.wait(60)
    assert speed.result is not first
    assert not np.array_equal(speed.result.seconds, first.seconds)
    assert RoutingSpeed.load(panel.save(tmp_path / "speed.npz")).equals(speed.result)
    assert list(pd.read_csv(panel.save(tmp_path / "speed.csv"))["top_k"]) == [1, 2]
    assert panel.save(tmp_path / "speed.svg").read_text().startswith("<svg")
    panel.prompt = "One two"
    assert "iw-stale" in speed.plot._dom_classes
    panel.prompt = PROMPT
    assert "iw-stale" not in speed.plot._dom_classes


def test_speed_of_two_mixtures(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.mixture_of_depths.speed.TOKENS", 3)
    panel = view(ModelPair(tiny_mixture("llama", k=2), untrained_mod(base, 3)), tab="speed", view="difference")
    panel["speed"].go()
    assert panel.wait(60)
    first, second = panel["speed"].picture.tables
    assert ([row[0] for row in first.rows], [row[0] for row in second.rows]) == ([1, 2], [1, 2, 3])
    assert (first.caption[:3], second.caption[:3]) == ("A: ", "B: ")
    assert "Mixture A" in panel["speed"].question()


def test_the_code_of_speed_runs(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.widgets.mixture_of_depths.speed.TOKENS", 3)
    panel = view(base, tab="speed")
    scope: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), scope)
    assert scope["result"].top_k == (1, 2)
    assert scope["result"].n_tokens == 3


def test_a_long_prompt(base: Any, view: Any) -> None:
    ids = base.tokens(" ".join(["The cat sat on the mat and"] * 60))
    panel = view(base, prompt=base.decode(ids[:60]) if base.n_ctx < 400 else base.decode(ids[:400]))
    assert panel["route"].heat.shape[1] == panel.result.n_positions > 40


def test_two_models(base: Any, view: Any) -> None:
    a, b = tiny_mixture("llama", k=2), untrained_mod(base, 2)
    panel = view(ModelPair(a, b))
    first, second = panel.result
    panel.view = "difference"
    np.testing.assert_allclose(panel["route"].heat.matrix, (second.weights - first.weights).T, atol=1e-6)
    assert [table.caption[:1] for table in panel["route"].tables] == ["A", "B"]
    panel.view = "B"
    np.testing.assert_allclose(panel["route"].heat.matrix, second.weights.T, atol=1e-6)
    assert set(panel.current.frame()["model"]) == {"A", "B"}


def test_shares_prompt_and_token(base: Any, view: Any) -> None:
    bench = Workbench(base, prompt=PROMPT)
    options = {name: value for name, value in QUICK.items() if name != "prompt"}
    panel = MoDRoutingViewer(bench, **options)
    try:
        settle(panel)
        panel.prompt_token = 2
        assert bench.prompt_token == 2
    finally:
        panel.close()


# ---- tuning


def test_tune_gives_what_the_library_gives(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the routes follow by themselves, also where a changed input would wait for Run."""
    panel = view(base)
    monkeypatch.setattr(type(panel["route"]), "forecast", lambda self, request: Forecast(5.0, 1))
    panel.tab = "tune"
    seen: list[int] = []
    panel["tune"].loss.source.on_change("data", lambda attr, old, new: seen.append(len(new["x"])))
    panel["tune"].tune()
    assert panel.wait(60)
    assert panel.status.error == ""
    expected, report = tune_mod(base, DATA, 2, steps=4, batch_size=2, learning_rate=1e-2)
    for name, value in expected.state.weights.items():
        assert torch.equal(value, panel.mixture.state.weights[name])
    np.testing.assert_array_equal(panel.report.task, report.task)
    np.testing.assert_array_equal(panel["tune"].curves.mean, report.mean)
    panel.tab = "route"
    assert panel.wait(60)
    same(panel.result, routing(expected, PROMPT, top=8))
    assert panel.chosen == [1]
    assert "untrained" not in panel["route"].state.value
    assert f"{report.trained_parameters:,}" in panel["tune"].words.value
    assert 0 < seen[0] < seen[-1], "drawn while it was tuned and at the end"
    panel.chosen = [0]
    settle(panel)
    assert "untrained" in panel["route"].state.value, "the untrained one is still there"


def test_stop_keeps_and_resume_goes_on(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = tune_mod(base, DATA, 2, steps=6, batch_size=2, learning_rate=1e-2)
    panel = view(base, steps=6)
    real = trainer_module.step_loss
    made: list[int] = []

    def slow(*args: Any, **options: Any) -> Any:
        made.append(1)
        if len(made) == 3:
            panel.cancel()  # as the Cancel of the status line and Stop do
        return real(*args, **options)

    monkeypatch.setattr(trainer_module, "step_loss", slow)
    said: list[tuple[str, str]] = []
    panel["tune"].words.observe(lambda change: said.append((change["new"], panel.status.text)), "value")
    lines: list[str] = []
    panel.status.observe(lambda change: lines.append(change["new"]), "text")
    panel["tune"].tune()
    assert panel["tune"].stop_button.disabled is False
    settle(panel)
    assert ("Stopped after 3 of 6 steps.", "Building the mixture from what was learned") in said, "before it is made"
    assert (panel.report.stopped, panel.report.done) == ("cancelled", 3)
    assert panel["tune"].going is False
    ends = "Cancelled: the part finished so far is shown", "Tuning: done in"
    assert [any(end in line for line in lines) for end in ends] == [True, False], lines
    lines.clear()
    panel["tune"].resume()
    settle(panel)
    assert [any(end in line for line in lines) for end in ends] == [False, True], lines
    assert (panel.report.stopped, panel.report.done) == ("done", 6)
    for name, value in whole.state.weights.items():
        assert torch.equal(value, panel.mixture.state.weights[name])
    assert len(panel.mixtures[0]) == 3, "the partial one is kept beside the whole one"
    with pytest.raises(ValueError, match="all 6 steps are done"):
        panel["tune"].resume()


def test_the_routes_are_read_while_a_tuning_goes_on(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of milliseconds does not wait for a tuning of minutes, and the tuning gives the same weights."""
    whole, _ = tune_mod(base, DATA, 2, steps=4, batch_size=2, learning_rate=1e-2)
    panel = view(base)
    other = view(base)
    real = trainer_module.step_loss
    seen: list[tuple[Any, ...]] = []

    def step(*args: Any, **options: Any) -> Any:
        if not seen:
            panel.prompt = other.prompt = "A pilot flies a"
            panel.go()
            other.go()
            assert panel.status.text == "Tuning · then Computing (Mixture of depths)"
            assert other.status.text == "Computing (Mixture of depths): waiting for Tuning (Mixture of depths) to end"
        seen.append((panel.result.n_positions, other.result.n_positions, panel.status.text, panel.status.state))
        return real(*args, **options)

    monkeypatch.setattr(trainer_module, "step_loss", step)
    panel["tune"].tune()
    assert panel.wait(60)
    expected = len(base.tokens("A pilot flies a", prepend_bos=False))
    assert [one[:2] != (expected, expected) for one in seen] == [True, False, False, False]
    assert [one[3] for one in seen] == ["running"] * 4
    assert seen[1][2].startswith("Tuning · Done in ")
    for name, value in whole.state.weights.items():
        assert torch.equal(value, panel.mixture.state.weights[name])


def test_a_mixture_given_is_tuned_from_its_base(base: Any, view: Any) -> None:
    panel = view(tiny_mixture("llama", k=2))
    panel["tune"].tune()
    settle(panel)
    expected, _ = tune_mod(base, DATA, 2, steps=4, batch_size=2, learning_rate=1e-2)
    assert torch.equal(panel.mixture.state.weights["router"], expected.state.weights["router"])
    assert len(panel.mixtures[0]) == 2, "the one given is still there"


def test_the_second_of_two_models_is_tuned(base: Any, view: Any) -> None:
    panel = view(ModelPair(base, load_model(tiny_folder("llama"))), slot=1, view="B")
    panel["tune"].tune()
    settle(panel)
    assert panel.chosen == [0, 1]
    first, second = panel.result
    same(first, routing(untrained_mod(base, 2), PROMPT, top=8))
    same(second, routing(panel.mixture, PROMPT, top=8))
    assert "<b>A</b>: <b>This mixture is untrained" in panel["route"].state.value
    assert "<b>B</b>: <b>k 2, 4 steps</b>" in panel["route"].state.value


def test_nan_says_the_step_and_keeps_the_last_good(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good, _ = tune_mod(base, DATA, 2, steps=1, batch_size=2, learning_rate=1e-2)  # gave the last loss that was a number
    real = trainer_module.step_loss
    made: list[int] = []

    def broken(*args: Any, **options: Any) -> Any:
        made.append(1)
        found = real(*args, **options)
        if len(made) == 3:
            object.__setattr__(found, "total", found.total * float("nan"))
        return found

    monkeypatch.setattr(trainer_module, "step_loss", broken)
    panel = view(base)
    panel["tune"].tune()
    assert panel.wait(60)
    assert "<b role='alert'>stopped at step 3 of 4: the loss was NaN or infinite;" in panel["tune"].words.value
    assert panel.report.stopped == "nan"
    for name, value in good.state.weights.items():
        assert torch.equal(value, panel.mixture.state.weights[name])
    assert panel["tune"].resume_button.disabled


def test_checkpoints(base: Any, view: Any, tmp_path: Path) -> None:
    panel = view(base)
    panel["tune"].tune()
    settle(panel)
    folder = tmp_path / "mixture"
    panel["tune"].folder.value = str(folder)
    panel["tune"].save_checkpoint()
    assert isinstance(load_model(folder), ModModel)
    with pytest.raises(ValueError, match="not empty"):
        panel["tune"].save_checkpoint()
    panel["tune"].open_checkpoint()
    settle(panel)
    assert (panel.chosen_mixture(0).name, panel.chosen) == ("mixture", [2])
    assert len(panel["tune"].curves.task) == 4, "the curves come with the checkpoint"
    fresh = view(base, k=1, learning_rate=0.5, steps=5)
    fresh["tune"].folder.value = str(folder)
    fresh["tune"].open_checkpoint()
    settle(fresh)
    assert (fresh.k, fresh.learning_rate) == (2, 1e-2), "the options are those it was tuned with"
    fresh.tab = "tune"
    pd.testing.assert_frame_equal(fresh.current.frame(), panel.mixtures[0][1].report.to_frame())
    with pytest.raises(ValueError, match="save them as CSV"):
        fresh.current.stored()
    fresh["tune"].resume()
    settle(fresh)
    assert fresh.report.done == 5
    panel.steps = 5
    panel["tune"].resume()
    settle(panel)
    assert panel.report.done == 5
    other = view(load_model(tiny_folder("gpt2")))
    other["tune"].folder.value = str(folder)
    other["tune"].open_checkpoint()
    assert other.wait(60)
    assert "was tuned on" in other.status.error


def test_a_mixture_is_forgotten_and_its_weights_leave_the_memory(base: Any, view: Any, wire: Any) -> None:
    panel = view(base)
    assert panel["tune"].forget_button.disabled, "the first one stays"
    panel["tune"].tune()
    settle(panel)
    model = weakref.ref(panel.mixture)
    wire.click(panel["tune"].forget_button)
    assert "Press Forget once more" in panel["tune"].words.value
    assert panel.chosen == [1]
    wire.click(panel["tune"].forget_button)
    settle(panel)
    assert (panel.chosen, [label for label, _ in panel["route"].mixture_boxes[0].options]) == ([0], ["untrained"])
    assert "untrained" in panel["route"].state.value
    gc.collect()
    assert model() is None
    with pytest.raises(ValueError, match="was opened, cannot be removed"):
        panel["tune"].forget(0)


# ---- the grid


def test_grid(base: Any, view: Any, tmp_path: Path) -> None:
    panel = view(base, tab="grid")
    assert "about" in panel["grid"].forecast_label.value
    partial: list[bool] = []
    panel["grid"].picture.heat.observe(lambda change: partial.append("partial" in change.new), "title")
    panel["grid"].go()
    assert panel.wait(120)
    assert panel.status.error == "", panel.status.trace
    expected = mod_grid(base, DATA, PROBLEMS, ks=(1, 2), steps=2, batch_size=2, learning_rate=1e-2)
    np.testing.assert_array_equal(panel["grid"].result.accuracy, expected.accuracy)
    assert panel["grid"].picture.heat.shape == [2, 2]
    assert np.isnan(panel["grid"].picture.heat.matrix[0, 1]), "top-K above k"
    assert partial[:2] == [True, False]
    assert isinstance(panel.current.frame(), pd.DataFrame)
    assert ModGrid.load(panel.save(tmp_path / "grid.npz")).equals(panel["grid"].result)
    with ui_lock:  # the worker cannot begin before the cancel
        panel["grid"].go()
        panel.cancel()
    assert panel.wait(60)
    assert panel.status.state == "cancelled"


def test_the_line_names_a_study_that_ends_under_another_tab(base: Any, view: Any) -> None:
    panel = view(base, tab="grid")
    with ui_lock:  # the worker cannot report before the other tab is open
        panel["grid"].go()
        panel.tab = "late_layers"
    assert panel.wait(120)
    assert panel["late_layers"].result is None
    assert panel.status.text.startswith("Grid of k and top-K: done in "), panel.status.text
    panel.tab = "grid"
    panel["grid"].go()
    assert panel.wait(120)
    assert panel.status.text.startswith("Done in "), panel.status.text


def test_studies_of_the_second_model(base: Any, view: Any) -> None:
    second = load_model(tiny_folder("llama", seed=1))
    panel = view(ModelPair(base, second), tab="grid", slot=1, grid_ks=[1])
    panel["grid"].go()
    assert panel.wait(120)
    assert panel.status.error == "", panel.status.trace
    expected = mod_grid(second, DATA, PROBLEMS, ks=(1,), steps=2, batch_size=2, learning_rate=1e-2)
    np.testing.assert_array_equal(panel["grid"].result.accuracy, expected.accuracy)
    code = panel["grid"].code(panel["grid"].request())
    assert "result = mod_grid(\n    tuned,\n    dataset=dataset,\n    problems=problems" in code
    assert "model" not in panel["grid"].frame().columns
    panel.slot = 0
    assert "iw-stale" in panel["grid"].plot._dom_classes
    assert panel["grid"].question()["Base model"] == second.name, "that of the picture"


def test_shorter_runs_go_before_a_study(base: Any, view: Any) -> None:
    panel = view(base, tab="grid", grid_seeds=20)
    panel["grid"].go()
    assert panel["route"].run(fresh=True).weights.shape[1] == 2
    assert panel["grid"].busy, "the grid is under way still"
    panel.cancel()
    assert panel.wait(LIMIT)


def test_a_cancelled_grid_shows_what_is_done(base: Any, view: Any) -> None:
    panel = view(base, tab="grid")
    panel["grid"].picture.heat.observe(lambda change: panel.cancel(), "title")  # at the first cell that is drawn
    panel["grid"].go()
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert panel["grid"].result.partial
    assert np.isfinite(panel["grid"].picture.heat.matrix).sum() == 1
    assert panel["grid"].picture.heat.texts[1:] == ["", "…", "…"], "not yet computed looks other than top-K above k"
    assert panel.status.text == "Cancelled: the part finished so far is shown"


def test_a_data_file_is_learned(base: Any, view: Any, tmp_path: Path) -> None:
    file = tmp_path / "boolq.jsonl"
    rows = [{"question": f"is {n} more than 2", "passage": "Numbers.", "answer": n > 2} for n in range(5)]
    file.write_text("\n".join(map(json.dumps, rows)))
    panel = view(base, dataset=None, problems=None, data_file=str(file))
    panel["tune"].tune()
    settle(panel)
    _, report = tune_mod(base, read_problems(file), 2, steps=4, batch_size=2, learning_rate=1e-2)
    np.testing.assert_array_equal(panel.report.task, report.task)
    assert f"read_problems({str(file)!r})" in panel.current.code(panel.current.request())
    panel.tab = "grid"
    assert "no held-out problems for this data set" in panel["grid"].hints["problem_file"]
    panel.problem_file = str(file)
    assert panel["grid"].hints == {}
    assert "about" in panel["grid"].forecast_label.value


def test_closing_ends_a_tuning(base: Any, view: Any) -> None:
    panel = view(base, steps=10_000)
    panel["tune"].tune()
    panel.close()  # the fixture waits for the worker's end


def test_ablations_and_late_layers(base: Any, view: Any) -> None:
    pytest.importorskip("peft")
    panel = view(base, tab="variants")
    panel["variants"].go()
    panel.tab = "late_layers"
    panel["late_layers"].go()
    assert panel.wait(120)
    assert panel.status.error == "", panel.status.trace
    assert panel["variants"].picture.bars.source.data["name"] == ["MoD", "without norms", "without distillation"]
    late = panel["late_layers"].result
    assert len(late.implicit) == 2
    assert sum(panel["late_layers"].picture.overlap.source.data["y"]) == 2
    assert panel["late_layers"].scene().height > 300
    assert panel["variants"].scene().height > 100
    panel.tab = "variants"
    panel.distill = 0.0
    assert "no distillation term" in panel.status.error
    panel.distill = 1e-4
    assert panel.status.error == ""
    assert "iw-stale" not in panel["variants"].plot._dom_classes, "the inputs are those of the picture again"


# ---- bad input, code, saving


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 99}, "k must be an int in 1.."),
        ({"top_k": 3}, "top_k must be an int in 1..2 for 2 routes, got 3"),
        ({"dataset": []}, "the data set is empty"),
        ({"dataset": [("a prompt", "")]}, "has no response to learn"),
        ({"data_file": "/nowhere.json", "dataset": None}, "there is no file of problems at /nowhere.json"),
    ],
)
def test_bad_input_of_tuning(base: Any, view: Any, wire: Any, options: dict[str, Any], said: str) -> None:
    panel = view(base)
    before = panel.result
    for name, value in options.items():
        setattr(panel, name, value)
    wire.click(panel["tune"].tune_button)
    assert panel.wait(60)
    assert said in panel.status.error
    assert "\n" not in panel.status.error
    assert panel.result is before, "nothing is lost"
    assert not panel["tune"].going
    assert not panel["tune"].tune_button.disabled


def test_what_cannot_run_is_said_at_once_and_forgotten_when_mended(base: Any, view: Any, wire: Any) -> None:
    panel = view(base, tab="tune")
    panel.k = 9
    assert "cannot run yet: k must be an int in 1..3" in panel["tune"].hint.value
    panel.k = 2
    assert "4 steps: about" in panel["tune"].hint.value
    settle(panel)
    panel.learning_rate = -1.0
    wire.click(panel["tune"].tune_button)
    assert panel.wait(60)
    assert "learning_rate must be" in panel.status.error
    panel.learning_rate = 1e-3
    assert (panel.status.state, panel.status.error) == ("idle", "")
    panel.tab = "grid"
    assert "learning rate 0.001" in panel["grid"].words.value
    panel.grid_ks = [1, 9]
    assert panel.hints == {"grid_ks": "k must be whole numbers in 1..3 for this 3-layer model, got 1, 9"}
    panel.tab = "variants"
    assert "k = 2, " in panel["variants"].words.value
    assert "λ 0.0001" in panel["variants"].words.value
    panel.tab = "late_layers"
    assert "k = 2, " in panel["late_layers"].words.value
    assert "λ" not in panel["late_layers"].words.value, "it has no distillation term"
    assert panel.hints == {}


def test_what_is_typed_wrong_is_said_at_its_box(base: Any, view: Any, wire: Any) -> None:
    panel = view(base, tab="tune", dataset=None, problems=None)
    panel.data_file = "/nowhere/tasks.json"
    said = "there is no file of problems at /nowhere/tasks.json: check the path"
    assert panel["tune"].hint.value == f"cannot run yet: {said}"
    panel.data_file = ""
    panel.tab = "grid"
    panel.problem_file = "/nowhere/tasks.json"
    assert panel.hints == {"problem_file": said}
    panel.problem_file = ""
    box = panel["grid"].controls["grid_ks"]
    for text in ("0, 99", "a, b", "1; 2", "-1"):
        wire.type(box, value=text)
        assert panel.hints == {
            "grid_ks": "k must be whole numbers of 1 or more, separated by commas, such as 1, 2, 3, "
            f"got {text!r}: write them so"
        }
        assert (panel.grid_ks, panel.status.error) == ([1, 2], "")
    wire.type(box, value="1 2")
    assert panel.hints == {}


def test_a_refusal_of_one_tab_is_not_said_on_the_next(base: Any, view: Any) -> None:
    panel = view(base)
    panel.routes = 3
    assert "routes per token must be in 0..2" in panel.status.error
    panel.tab = "tune"
    assert (panel.status.state, panel.status.error) == ("idle", "")


def test_a_refused_number_does_not_stay_in_its_box(base: Any, view: Any, wire: Any) -> None:
    panel = view(base, tab="tune")
    row = next(
        row for row in panel["tune"].inputs.children if any(getattr(c, "description", "") == "λ" for c in row.children)
    )
    box = next(control for control in row.children if control.description == "λ")
    wire.type(box, value=-1.0)
    assert panel.status.error == "λ must be 0 or more, got -1; it stays 0.0001"
    assert (box.value, panel.distill) == (1e-4, 1e-4)


def test_only_the_routes_wait_for_run(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes that are behind the inputs dim; the tabs beside them stay clear and do not ask for a button they lack."""
    panel = view(base)
    monkeypatch.setattr(type(panel["route"]), "forecast", lambda self, request: Forecast(50.0, 1))
    panel.prompt = "One two three"
    assert panel.status.state == "waiting"
    hidden = {}
    for tab in ("route", "tune"):
        panel.tab = tab
        hidden[tab] = "iw-hidden" in panel.current.forecast_label._dom_classes
    assert hidden == {"route": False, "tune": True}
    assert "iw-stale" in panel["route"].plot._dom_classes
    assert "iw-stale" not in panel["tune"].plot._dom_classes
    panel.run()
    assert "iw-stale" not in panel["route"].plot._dom_classes


def test_what_was_chosen_before_a_tab_was_opened_stays(base: Any) -> None:
    """Also where it is what the option is without a choice, and the panel would start with something else."""
    tuned, _ = tune_mod(base, DATA, 2, steps=1, batch_size=2, learning_rate=1e-2)
    with opening(MoDRoutingViewer, prompt=PROMPT) as build:
        panel = build(tuned)
        usual = type(panel).class_traits()["learning_rate"].default_value
        assert (panel.k, panel.learning_rate) == (2, 1e-2)
        panel.k, panel.learning_rate = 3, usual
        assert (panel["tune"].k, panel["tune"].learning_rate, panel["grid"].k) == (3, usual, 3)
        assert (panel.k, panel.learning_rate) == (3, usual)


def test_errors_of_another_tab_stay_in_the_one_status_line(base: Any, view: Any) -> None:
    panel = view(base, dataset=[])
    panel["tune"].tune_button.click()
    assert "the data set is empty" in panel.status.error
    panel.prompt = "One two"
    panel["route"].forget_error()
    panel["grid"].forget_error()
    assert panel["tune"].status is panel["grid"].status is panel.status
    panel["tune"].tune_button.click()
    panel["grid"].forget_error()
    assert "the data set is empty" in panel.status.error
    panel.tab = "tune"
    panel.dataset = DATA
    assert panel.status.error == ""


def test_bad_input_of_reading(view: Any, wire: Any) -> None:
    panel = view(tiny_mixture("llama", k=2))
    before = panel.result
    panel.routes = 3
    assert "routes per token must be in 0..2" in panel.status.error
    panel.routes = 0
    panel.prompt = ""
    assert panel.hints == {"prompt": "the prompt is empty: type a text for the model to read"}
    assert panel.result is before
    with pytest.raises(ValueError, match="load the model twice"):
        MoDRoutingViewer(ModelPair(tiny_mixture("llama", k=2), tiny_mixture("llama", k=2)))
    with pytest.raises(TypeError, match="did you mean 'prompt'"):
        MoDRoutingViewer(tiny_mixture("llama", k=2), promt="x")


def test_a_model_from_memory_says_why_not(view: Any) -> None:
    panel = view(load_model(tiny_hf("gpt2"), tokenizer=byte_level_tokenizer()))
    assert "came from memory and its transformers model is unknown" in panel.status.error
    assert panel.result is None
    assert panel["route"].heat.empty.startswith("No routing yet")


def test_copied_code_runs(base: Any, view: Any) -> None:
    panel = view(base, dataset=None, problems=None, examples=4)
    panel["tune"].tune()
    settle(panel)
    scope: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), scope)
    same(scope["result"], routing(panel.mixture, PROMPT, top=8))
    panel.tab = "tune"
    scope = {}
    exec(panel.current.code(panel.current.request()), scope)
    assert isinstance(scope["report"], ModReport)
    panel.tab = "grid"
    compile(panel.current.code(panel.current.request()), "cell", "exec")


def test_copied_code_is_about_what_is_shown(base: Any, view: Any) -> None:
    """Inputs that were changed after a tuning or a study do not change the code that repeats it."""
    panel = view(base, dataset=None, examples=6)
    panel["tune"].tune()
    settle(panel)
    panel["grid"].go()
    assert panel.wait(120)
    assert panel.status.error == "", panel.status.trace
    codes = []
    for change in ({}, {"examples": 3, "seed": 5, "steps": 9, "learning_rate": 0.5, "grid_ks": [1], "grid_steps": 7}):
        for name, value in change.items():
            setattr(panel, name, value)
        settle(panel)
        for tab in ("route", "tune", "grid"):
            panel.tab = tab
            codes.append(panel.current.code(panel.current.request()))
    assert codes[:3] == codes[3:]
    assert "demo_problems('train', 6, 0)" in codes[0]
    scope: dict[str, Any] = {"problems": PROBLEMS}
    exec(codes[1], scope)
    np.testing.assert_array_equal(scope["report"].task, panel.report.task)
    exec(codes[2], scope)
    np.testing.assert_array_equal(scope["result"].accuracy, panel["grid"].result.accuracy)
    panel.chosen = [0]
    panel.tab = "tune"
    code = panel.current.code(panel.current.request())
    assert "demo_problems('train', 3, 5)" in code, "an untrained one: what Tune would do"


def test_what_a_failed_tuning_made_is_kept(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trainer_module.step_loss
    made: list[int] = []

    def broken(*args: Any, **options: Any) -> Any:
        made.append(1)
        if len(made) == 3:
            raise MemoryError
        return real(*args, **options)

    monkeypatch.setattr(trainer_module, "step_loss", broken)
    panel = view(base)
    panel["tune"].tune()
    assert panel.wait(60)
    assert "Out of memory" in panel["tune"].words.value
    assert (panel.report.done, panel.report.stopped) == (2, "cancelled")
    assert not panel["tune"].going


def test_curves_of_a_tuning_that_failed_stay(base: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ValueError("cannot be relied on")

    monkeypatch.setattr("interp_widgets.tuning.mixture_of_depths.tune.build_mixture", broken)
    panel = view(base)
    panel["tune"].tune()
    assert panel.wait(60)
    assert "cannot be relied on" in panel.status.error
    assert "failed after 4 steps" in panel["tune"].words.value
    assert len(panel["tune"].curves.task) == 4
    assert panel.chosen == [0]


def test_saves(base: Any, view: Any, tmp_path: Path) -> None:
    panel = view(base)
    for suffix in (".csv", ".svg", ".html", ".npz"):
        assert panel.save(tmp_path / f"route{suffix}").stat().st_size > 200
    assert isinstance(RoutingResult.load(tmp_path / "route.npz"), RoutingResult)
    panel.tab = "tune"
    with pytest.raises(ValueError, match="nothing to save on the Tune tab"):
        panel.save(tmp_path / "tune.csv")
    panel["tune"].tune()
    settle(panel)
    assert panel.save(tmp_path / "tune.svg").stat().st_size > 200
    panel.save(tmp_path / "tune.npz")
    assert ModReport.load(tmp_path / "tune.npz").done == 4
    page = (tmp_path / "route.html").read_text()
    assert all(text in page for text in ("Routes per token", "Mixture", PROMPT)), "the question"
    assert "Learning rate" not in page, "which is another one"
    panel.save(tmp_path / "tune.html")
    page = (tmp_path / "tune.html").read_text()
    assert "Learning rate" in page, "how it was tuned"
