"""Control models: what is tuned, kept and taken again, on the demo's base and on tiny models of other kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interp_widgets as iw
from interp_widgets.atomic import other_files
from interp_widgets.tuning import adapter_training
from tests.models.tiny import tiny_folder
from tests.shipped import demo_pair

TASKS = iw.demo_task_texts(32, names=["plural", "capital"])


def tune(folder: Path, tasks: Any = TASKS, **options: Any) -> iw.ControlModels:
    keywords: dict[str, Any] = {"steps": 12, "batch_size": 4, "folder": folder, **options}
    return iw.tune_control_models(demo_pair().base, tasks, **keywords)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, iw.ControlModels]:
    folder = tmp_path_factory.mktemp("controls")
    return folder, tune(folder)


@pytest.mark.seconds
def test_each_learns_its_task_and_no_other(tuned: Any) -> None:
    _, controls = tuned
    assert list(controls) == ["plural", "capital"]
    for report in controls.reports.values():
        assert report.last_loss < 0.7 * report.first_loss
        assert report.examples == 32
    losses = {name: [_loss(controls[name], task) for task in TASKS] for name in controls}
    assert losses["plural"][0] < losses["capital"][0]
    assert losses["capital"][1] < losses["plural"][1]
    assert _loss(demo_pair().base, TASKS[0]) > losses["plural"][0]


def _loss(model: iw.Model, task: iw.TaskTexts) -> float:
    found = [
        iw.response_probabilities(model, text, answer)
        for text, answer in zip(task.texts[:6], task.responses[:6], strict=True)
    ]
    return -float(np.mean([np.log(one.probability).mean() for one in found]))


@pytest.mark.seconds
def test_the_base_stays_and_the_adapters_are_what_moves_the_weights(tuned: Any) -> None:
    _, controls = tuned
    base, control = demo_pair().base, controls["plural"]
    assert control.weight_hash != base.weight_hash
    assert control.name == "demo-base tuned on plural"
    names = ["blocks.0.hook_resid_pre", f"blocks.{base.n_layers - 1}.hook_resid_post"]
    runs = [model.run(base.tokens(TASKS[0].texts[0]), capture=names).activations for model in (base, control)]
    torch.testing.assert_close(runs[0][names[0]], runs[1][names[0]])  # embeddings are not tuned
    assert float((runs[0][names[1]] - runs[1][names[1]]).abs().max()) > 0.01


def test_what_is_finished_is_not_tuned_again(tuned: Any) -> None:
    folder, controls = tuned
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    seen: list[tuple[int, int]] = []
    again = tune(folder, progress=lambda *at: seen.append(at))
    assert again.reports == controls.reports
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert seen == [(12, 24), (24, 24)]


@pytest.mark.seconds
def test_the_seed_decides(tuned: Any, tmp_path: Path) -> None:
    _, controls = tuned
    same = tune(tmp_path / "same", TASKS[:1])["plural"]
    other = tune(tmp_path / "other", TASKS[:1], seed=1)["plural"]
    assert same.weight_hash == controls["plural"].weight_hash != other.weight_hash


@pytest.mark.seconds
def test_cancelled_in_the_second_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task's model is kept, and the next run goes on within the second, as if nothing had been."""
    monkeypatch.setattr(adapter_training, "KEPT_EVERY", 2)
    steps = 0

    def stop() -> None:
        nonlocal steps
        steps += 1
        if steps == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, steps=4, check=stop)
    plural, unfinished = sorted(other_files(tmp_path), reverse=True)
    assert plural.name.startswith("plural-")
    assert unfinished.name.startswith("capital-")
    assert unfinished.suffix == ".unfinished"
    seen: list[int] = []
    controls = tune(tmp_path, steps=4, progress=lambda done, _: seen.append(done))
    assert seen[:2] == [4, 7]
    assert sorted(controls.folders.values()) == other_files(tmp_path)
    straight = tune(tmp_path / "straight", TASKS[1:], steps=4)
    assert controls["capital"].weight_hash == straight["capital"].weight_hash
    told, expected = controls.reports["capital"], straight.reports["capital"]
    assert (told.first_loss, told.last_loss) == (expected.first_loss, expected.last_loss)


def test_random_generators_stay(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    tune(tmp_path, TASKS[:1], steps=1)
    torch.testing.assert_close(torch.rand(3), expected)


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_other_architectures(family: str, tmp_path: Path) -> None:
    """GPT-2 stores its linear maps transposed, GPT-NeoX query, key and value in one."""
    model = iw.load_model(tiny_folder(family, 0))
    task = iw.TaskTexts("t", ["one two", "two one", "one one two", "two two"], [" three"] * 4)
    controls = iw.tune_control_models(model, [task], steps=6, batch_size=4, folder=tmp_path, learning_rate=1e-2)
    assert controls.reports["t"].last_loss < controls.reports["t"].first_loss
    found = iw.mossa(model, controls, [task])
    assert np.isfinite(found.cka).all()
    assert (found.cka[0] < 1 - 1e-6).any()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tasks": [iw.TaskTexts("a", ["x"])]}, "task 'a' has no responses"),
        ({"tasks": []}, "tasks must be at least one"),
        ({"tasks": [TASKS[0], TASKS[0]]}, "each of another name, got plural, plural"),
        ({"steps": 0}, "steps must be 1 or more"),
        ({"rank": 0}, "rank must be 1 or more"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": 1e30}, "the loss of task 'plural' is not finite"),
    ],
)
def test_refusals(change: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        tune(tmp_path, **change)
    assert not list(tmp_path.iterdir())


def test_a_task_without_a_control(tuned: Any) -> None:
    with pytest.raises(KeyError, match="there is no control model of 'sum': plural, capital"):
        tuned[1]["sum"]
