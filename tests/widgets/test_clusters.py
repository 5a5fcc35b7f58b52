"""The cluster explorer without a browser: the training that ships, one's own, and the instructions of two models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    ClusterExplorer,
    ClusterTraining,
    Results,
    cluster_hidden_states,
    demo_instructions,
    make_instruction_task,
    read_instruction_run,
    train_instruction_model,
)
from interp_widgets.widgets.clusters.options import LABELS, SCORES
from interp_widgets.widgets.clusters.over_training import CURVES
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def view(wire: Any) -> Iterator[Callable[..., ClusterExplorer]]:
    with opening(ClusterExplorer) as build:
        yield build


def test_it_opens_on_the_training_that_ships(view: Any, pair: Any) -> None:
    panel = view(pair).current
    stored, run = read_instruction_run().clusters(), read_instruction_run()
    assert panel.result.equals(stored)
    assert "This is the model of the run that ships, not demo-base. Step 3,350" in panel.summary.value
    assert "85% of the training subset and 60% of the validation set" in panel.summary.value
    xy = np.column_stack([panel.plane.source.data[axis] for axis in "xy"])
    np.testing.assert_array_equal(xy, stored.subset_xy[-1, 6])
    assert panel.plane.source.data["task"] == [one.task for one in run.task.training_subset()]
    assert len(panel.lines.lines.data["name"]) == 8  # seven layers and chance


def test_a_model_of_ones_own_opens_on_its_own_clusters(view: Any) -> None:
    """A training run is about the model that was trained in it."""
    model = tiny_model("gpt2")
    assert view(model).tab == "instructions"
    for asked in ({"tab": "training"}, {"checkpoint": 3}):
        explorer = view(model, **asked)
        assert explorer.tab == "training"
        assert f"of the run that ships, not {model.name}." in settle(explorer).current.summary.value


def test_every_curve_is_what_was_stored(view: Any, pair: Any) -> None:
    panel, stored = view(pair, at_layer=4, checkpoint=7).current, read_instruction_run().clusters()
    for instances in stored.sets:
        which = list(stored.sets).index(instances)
        expected = {
            "within": stored.f1_within_input[:, which], "same_task": stored.same_task,
            "knn_accuracy": stored.knn_accuracy,
        }  # fmt: skip
        for curves in CURVES:
            for labels in LABELS if curves == "score" else ["task"]:
                for score in SCORES if curves == "score" else ["f1_matched"]:
                    panel.curves, panel.labels, panel.score, panel.instances = curves, labels, score, instances
                    assert panel.wait(60)
                    values = expected.get(curves)
                    if values is None:
                        values = getattr(stored, score)[:, which, list(stored.labels).index(labels)]
                    np.testing.assert_allclose(panel.lines.lines.data["ys"][:7], values.T)
                    assert f"{values[7, 4]:.2f} now" in panel.summary.value
    assert panel.lines.mark.location == 7


def test_play_runs_through_the_checkpoints(view: Any, pair: Any) -> None:
    panel, stored = view(pair).current, read_instruction_run().clusters()
    panel.play.value = 2
    assert panel.wait(60)
    assert panel.checkpoint == 2
    assert f"step {stored.steps[2]}" in panel.plane.figure.title.text


def test_ones_own_training(view: Any, pair: Any, tmp_path: Path) -> None:
    """Computed where nothing is saved with it; tasks that share no inputs have no curves within one."""
    task = make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)
    train_instruction_model(task, tmp_path / "run", width=16, layers=1, heads=2, steps=2, checkpoints=2)
    panel = view(pair.base, run_folder=str(tmp_path / "run"), curves="same_task").current
    assert panel.result.steps.tolist() == [0, 2]
    assert panel.last_checkpoint == 1
    assert panel.status.error == ""
    scope: dict[str, Any] = {}
    exec(panel.code(panel.shown_request), scope)
    assert scope["result"].f1_matched.shape == panel.result.f1_matched.shape


def test_a_folder_without_a_training_is_a_hint(view: Any, pair: Any) -> None:
    panel = view(pair.base, run_folder="/nowhere")
    assert "/nowhere/run.json" in " ".join(panel.hints.values())


def test_what_is_asked_anew_follows_its_controls(view: Any, pair: Any) -> None:
    panel = view(pair.base)
    panel.run_folder = "/nowhere"
    assert "/nowhere/run.json" in " ".join(panel["training"].hints.values())
    panel.run_folder = ""
    panel.tab = "instructions"
    settle(panel)
    panel.at_layer = 3
    settle(panel)
    assert panel["instructions"].shown_request.arguments == (("layer", 3), ("method", "pca"))
    panel.task_folder = "/nowhere"
    assert "/nowhere" in " ".join(panel["instructions"].hints.values())


def test_instructions_of_two_models(view: Any, pair: Any) -> None:
    panel = settle(view(pair, tab="instructions", view="beside", at_layer=4))
    instances = demo_instructions(phrasings_per_task=6, inputs=4)
    for model, result in zip(pair, panel.results, strict=True):
        alone = cluster_hidden_states(model, instances)
        np.testing.assert_allclose(result.clusters.f1_matched, alone.f1_matched)
        assert result.places.layer == 4
    current = panel.current
    names = [line.name for line in current.by_layer.lines]
    assert names == [
        "A: demo-base", "A: demo-base, by chance", "B: demo-tuned", "B: demo-tuned, by chance",
    ]  # fmt: skip
    current.score = "ari"
    settle(panel)
    assert len(current.by_layer.lines) == 2
    scope: dict[str, Any] = {}
    exec(current.code(current.shown_request), scope)
    np.testing.assert_allclose(scope["result_b"].f1_matched, panel.results[1].clusters.f1_matched)
    assert list(current.frame()["model"].unique()) == ["A", "B"]


def test_what_is_shown_can_be_saved(view: Any, pair: Any, tmp_path: Path) -> None:
    panel = view(pair.base)
    for tab in ("training", "instructions"):
        panel.tab = tab
        settle(panel)
        for suffix in ("html", "svg", "csv", "npz"):
            assert panel.save(tmp_path / f"{tab}.{suffix}").stat().st_size > 500
    assert ClusterTraining.load(tmp_path / "training.npz").equals(read_instruction_run().clusters())
    assert Results.load(tmp_path / "instructions.npz").names == ("clusters", "map")
