"""What the paper found, on the stored numbers of the training that ships, and that these numbers are the code's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    ClusterTraining,
    InstructionRun,
    cluster_hidden_states,
    read_instruction_run,
)
from interp_widgets.tuning.clusters.network import Instances

SUBSET, VALIDATION = 0, 1
TASK, DISTRIBUTION, WITH_MAPPING = 0, 1, 2


@pytest.fixture(scope="module")
def run() -> InstructionRun:
    return read_instruction_run()


@pytest.fixture(scope="module")
def stored(run: InstructionRun) -> ClusterTraining:
    return run.clusters()


def test_the_papers_task_was_trained_on(run: InstructionRun) -> None:
    assert run.task.settings == type(run.task.settings)()
    assert run.done
    assert run.settings["width"] == 32
    assert run.settings["layers"] == 6
    assert run.settings["heads"] == 8


def test_all_that_ships_is_small(run: InstructionRun) -> None:
    assert sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file()) < 8 * 2**20


def test_accuracy_stays_near_zero_and_then_rises_while_the_loss_falls_from_the_start(run: InstructionRun) -> None:
    history = run.history
    early = history.epoch <= 5
    assert history.subset_accuracy[early].max() < 0.1
    assert history.validation_accuracy[early].max() < 0.1
    assert history.subset_accuracy[-1] > 0.8
    assert history.validation_accuracy[-1] > 0.55
    assert history.loss[early][-1] < history.loss[1] - 0.5
    in_between = (history.epoch > 5) & (history.epoch <= 25)
    gain = history.subset_accuracy[in_between][-1] - history.subset_accuracy[early][-1]
    assert gain > 0.6 * (history.subset_accuracy[-1] - history.subset_accuracy[early][-1]), "most of it in a fifth more"


@pytest.mark.parametrize("group", [SUBSET, VALIDATION])
def test_instructions_with_their_mapping_cluster_above_layer_0_and_more_so_during_training(
    stored: ClusterTraining, group: int
) -> None:
    for scores in (stored.f1_matched, stored.ari, stored.ami):
        values = scores[:, group, WITH_MAPPING]
        assert (values[-1, 1:6] > values[0, 1:6] + 0.2).all()
        assert (values[-1, 1:6] > values[-1, 0] + 0.15).all(), "layer 0 is left behind"
    matched = stored.f1_matched[:, group, WITH_MAPPING]
    assert np.ptp(matched[:, 0]) < 0.15, "flat"
    assert (matched[-1, 1:6] > stored.f1_matched_chance[-1, group, WITH_MAPPING, 1:6] + 0.25).all()


@pytest.mark.parametrize("row", [0, 1], ids=["training", "validation"])
def test_tasks_cluster_among_instances_of_one_input(stored: ClusterTraining, row: int) -> None:
    values, chance = stored.f1_within_input[:, row], stored.f1_within_input_chance[:, row]
    assert np.ptp(values[:, 0]) < 0.1, "layer 0 is flat"
    assert values[-1, 4:].min() > values[0, 4:].max() + 0.15, "upper layers rise through training"
    assert values[-1, 4:].min() > values[-1, 0] + 0.15, "and with depth"
    assert values[-1, 4:].min() > chance[-1, 4:].max() + 0.15
    assert np.corrcoef(np.arange(7), values[-1])[0, 1] > 0.6


def test_whole_states_cluster_by_task_in_the_top_layer_of_the_subset_only(stored: ClusterTraining) -> None:
    """Unlike in the paper's larger models, the input outweighs the task in these 32 numbers; so it is said."""
    assert stored.f1_matched[-1, SUBSET, TASK, 6] > stored.f1_matched[0, SUBSET, TASK, 6] + 0.08
    assert stored.f1_matched[-1, VALIDATION, TASK].max() < 0.4
    assert stored.f1_matched[-1, VALIDATION, DISTRIBUTION].max() < 0.4


def test_neighbours_are_of_the_same_task_more_and_more_and_layer_0_never(stored: ClusterTraining) -> None:
    for values, chance in (
        (stored.same_task, stored.same_task_chance),
        (stored.knn_accuracy, stored.knn_accuracy_chance),
    ):
        assert np.ptp(values[:, 0]) < 0.02, "layer 0 knows the input alone"
        assert (values[-1, 1:] > values[0, 1:] + 0.25).all()
        assert values[-1, 4:6].min() > values[-1, 1], "upper layers more than the first"
        assert values[-1, 1] > values[-1, 0] + 0.25
        assert values[-1].min() > chance + 0.1
    assert stored.knn_accuracy[-1].max() > 0.7


def test_neighbours_answer_better_than_the_model_itself(run: InstructionRun, stored: ClusterTraining) -> None:
    assert stored.knn_accuracy[-1, 1:].min() > run.history.validation_accuracy[-1] + 0.05


# the numbers are the code's own -----------------------------------------------------------------------------------


@pytest.mark.seconds
def test_stored_accuracies_are_those_of_the_checkpoints(run: InstructionRun) -> None:
    step = max(run.checkpoints)
    model = run.load(step)
    group = run.task.validation()[::7]
    right = [
        model.tokenizer.decode([int(model.run(model.tokens(item.prompt)).logits[0, -1].argmax())]) == item.output
        for item in group
    ]
    from transformers import GPT2LMHeadModel

    plain = GPT2LMHeadModel.from_pretrained(run.checkpoints[step]).eval()
    assert Instances(run.task, group).accuracy(plain) == pytest.approx(np.mean(right), abs=1.5 / len(group))
    whole = Instances(run.task, run.task.validation()).accuracy(plain)
    assert whole == pytest.approx(run.history.validation_accuracy[-1], abs=2 / len(run.task.validation()))


@pytest.mark.seconds
def test_stored_scores_are_what_the_code_computes_from_a_checkpoint(
    run: InstructionRun, stored: ClusterTraining
) -> None:
    """One checkpoint, one kind of labels; KMeans may end elsewhere by a rounding, hence the room."""
    place = len(stored.steps) - 1
    model = run.load(int(stored.steps[place]))
    again: Any = cluster_hidden_states(model, run.task.validation(), labels=["distribution_mapping"], layers=[0, 4])
    np.testing.assert_allclose(
        again.f1_matched[0], stored.f1_matched[place, VALIDATION, WITH_MAPPING, [0, 4]], atol=0.06
    )
    np.testing.assert_allclose(again.ami[0], stored.ami[place, VALIDATION, WITH_MAPPING, [0, 4]], atol=0.06)


def test_steps_and_labels_fit_the_run(run: InstructionRun, stored: ClusterTraining) -> None:
    assert stored.steps.tolist() == list(run.checkpoints)
    assert stored.xy("validation").shape == (16, 7, len(run.task.validation()), 2)
    assert stored.xy("training subset").shape == (16, 7, len(run.task.training_subset()), 2)
