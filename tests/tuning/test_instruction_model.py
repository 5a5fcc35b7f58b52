"""Training on the synthetic task: checkpoints load, a stopped run goes on bit for bit, the task is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from interp_widgets import (
    InstructionTask,
    load_model,
    make_instruction_task,
    read_instruction_run,
    train_instruction_model,
)
from interp_widgets.tuning.clusters.instruction_model import checkpoint_steps
from interp_widgets.tuning.clusters.network import Instances, new_network, task_tokenizer

SIZES: dict[str, Any] = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "batch_size": 16,
    "learning_rate": 1e-2,
    "embedding_rate": 1.0,
}


@pytest.fixture(scope="module")
def task() -> InstructionTask:
    return make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.seconds
def test_checkpoints_are_models_and_the_task_is_learned(task: InstructionTask, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    run = train_instruction_model(
        task, tmp_path / "run", **SIZES, steps=150, checkpoints=4, evaluations=3, progress=lambda *s: steps.append(s)
    )
    assert steps[-1] == (150, 150)
    assert run.done
    assert list(run.checkpoints) == [0, 1, 12, 150] == list(checkpoint_steps(150, 4))
    assert run.history.step.tolist() == [0, 1, 12, 50, 100, 150]
    assert np.isnan(run.history.loss[0])
    assert run.history.loss[-1] < 0.7 * run.history.loss[1]
    assert run.history.subset_accuracy[0] < 0.3
    assert run.history.subset_accuracy[-1] > 0.6
    model = run.load(150)
    assert (model.n_layers, model.d_model, model.n_heads, model.d_mlp) == (1, 16, 2, 32)
    instance = task.training_subset()[0]
    assert len(model.tokens(instance.prompt)) == len(instance.prompt)
    logits = model.run(model.tokens(instance.prompt)).logits[0, -1]
    held = Instances(task, [instance])
    own = new_network(task, width=16, layers=1, heads=2, mlp_width=32, dropout=0, seed=0).eval()
    own.load_state_dict(weights(run.checkpoints[150]), strict=False)
    right = held.accuracy(own)
    assert right == float(model.tokenizer.decode([int(logits.argmax())]) == instance.output)
    assert not list((tmp_path / "run").glob("state-*")), "what a finished training does not need is removed"
    assert run.history.to_frame().shape == (6, 5)


@pytest.mark.seconds
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_stopped_training_goes_on_bit_for_bit(task: InstructionTask, tmp_path: Path, dropout: float) -> None:
    options = {**SIZES, "steps": 30, "checkpoints": 3, "evaluations": 3, "dropout": dropout}
    whole = train_instruction_model(task, tmp_path / "whole", **options)

    class Stopped(Exception):
        pass

    calls = iter(range(1000))

    def stop() -> None:
        if next(calls) == 17:
            raise Stopped

    with pytest.raises(Stopped):
        train_instruction_model(task, tmp_path / "parts", **options, check=stop)
    part = read_instruction_run(tmp_path / "parts")
    assert not part.done
    assert part.history.step[-1] < 17
    torch.manual_seed(99)
    before = torch.get_rng_state()
    ended = train_instruction_model(task, tmp_path / "parts", **options)
    assert torch.equal(torch.get_rng_state(), before), "the global seed stays as it is"
    assert ended.history.equals(whole.history)
    for one, other in zip(weights(whole.checkpoints[30]).items(), weights(ended.checkpoints[30]).items(), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
    again = train_instruction_model(task, tmp_path / "parts", **options, check=stop)
    assert again.history.equals(whole.history), "a finished training is given back"
    other = train_instruction_model(task, tmp_path / "other", **{**options, "seed": 1})
    assert not other.history.equals(whole.history), "positive control"


def test_another_training_in_the_folder_is_refused(task: InstructionTask, tmp_path: Path) -> None:
    train_instruction_model(task, tmp_path, **SIZES, steps=2, checkpoints=2)
    with pytest.raises(ValueError, match="another training is kept in"):
        train_instruction_model(task, tmp_path, **SIZES, steps=3, checkpoints=2)
    with pytest.raises(ValueError, match="another training is kept in"):
        train_instruction_model(make_instruction_task(seed=5), tmp_path, **SIZES, steps=2, checkpoints=2)


def test_the_folder_is_no_file(task: InstructionTask, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"folder must be a folder, got .*file, where a file is: give another one"):
        train_instruction_model(task, tmp_path / "file", **SIZES, steps=2, checkpoints=2)


def test_damaged_folders_are_told_of(task: InstructionTask, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no training at"):
        read_instruction_run(tmp_path)
    run = train_instruction_model(task, tmp_path, **SIZES, steps=2, checkpoints=2)
    header = tmp_path / "run.json"
    content = json.loads(header.read_text())
    for change, message in [
        ({"format": 1}, "was not written by train_instruction_model"),
        ({"version": 5}, "has version 5, this program reads 1"),
        ({"history": [[1]]}, "history of .* must have rows of step, epoch"),
        ({"checkpoints": ["a"]}, "checkpoints of .* must be steps"),
        ({"done": 3}, "done of .* must be a bool, got 3"),
    ]:
        header.write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=message):
            read_instruction_run(tmp_path)
    header.write_text(json.dumps(content))
    (run.checkpoints[2] / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        read_instruction_run(tmp_path)
    with pytest.raises(ValueError, match="step must be one of 0, 2, got 1"):
        run.load(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 30}, "width must be a multiple of heads, got 30 and 8"),
        ({"dropout": 1.0}, "dropout must be in 0..0.9, got 1.0"),
        ({"checkpoints": 1}, "checkpoints must be 2 or more, got 1"),
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be in 1e-08..1, got 0.0"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], message: str, task: InstructionTask, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train_instruction_model(task, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_the_sizes_of_the_paper() -> None:
    """Parameters in table 6: 55 thousand, 23 million (counted without memory for their values)."""
    paper = make_instruction_task()
    small = new_network(paper, width=32, layers=6, heads=8, mlp_width=64, dropout=0, seed=0)
    assert round(sum(weight.numel() for weight in small.parameters()) / 1000) in (54, 55)
    with torch.device("meta"):
        large = new_network(paper, width=768, layers=6, heads=8, mlp_width=1024, dropout=0, seed=0)
    assert 23e6 < sum(weight.numel() for weight in large.parameters()) < 24e6


def test_one_token_per_symbol_and_nothing_added(task: InstructionTask) -> None:
    tokenizer = task_tokenizer(task)
    ids = tokenizer("a0Z" + task.symbols[-1])["input_ids"]
    assert len(ids) == 4
    assert ids[2] == len(task.symbols), "Z is no symbol of 25"
    assert tokenizer.decode(tokenizer(task.symbols)["input_ids"]) == task.symbols


def test_the_output_counts_more_in_the_loss(task: InstructionTask) -> None:
    data = Instances(task, task.training()[:5])
    model = new_network(task, width=16, layers=1, heads=2, mlp_width=32, dropout=0, seed=0)
    rows = torch.arange(5)
    plain, only = data.loss(model, rows), data.loss(model, rows, 1e9)
    logits = model(input_ids=data.tokens[:, :-1]).logits.log_softmax(-1)
    chosen = [-logits[row, place, data.tokens[row, place + 1]] for row in rows for place in range(data.lengths[row])]
    last = [-logits[row, data.lengths[row] - 1, data.tokens[row, data.lengths[row]]] for row in rows]
    torch.testing.assert_close(plain, torch.stack(chosen).mean())
    torch.testing.assert_close(only, torch.stack(last).mean(), rtol=1e-4, atol=1e-4)


def test_a_checkpoint_is_a_plain_folder(task: InstructionTask, tmp_path: Path) -> None:
    run = train_instruction_model(task, tmp_path, **SIZES, steps=1, checkpoints=2)
    assert load_model(run.checkpoints[1]).d_vocab >= len(task.symbols)
