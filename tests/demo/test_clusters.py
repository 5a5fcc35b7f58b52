"""What ships of the synthetic instruction task is made by one call, and replaces what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from interp_widgets import make_instruction_task, read_instruction_run
from interp_widgets.demo.clusters import make_clusters


@pytest.mark.seconds
def test_a_training_and_its_clusters_are_put_in_place(tmp_path: Path) -> None:
    task = make_instruction_task(tasks=4, subset_tasks=2, validation_tasks=2, hard_tasks=1, max_distributions=1)
    folder = tmp_path / "clusters"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    sizes = {"width": 16, "layers": 1, "heads": 2, "steps": 3, "checkpoints": 3}
    made = make_clusters(folder, build=tmp_path / "build", task=task, **sizes)
    run = read_instruction_run(folder)
    assert run.task == task
    assert run.done
    assert run.clusters().steps.tolist() == list(run.checkpoints)
    assert made["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert made["validation_accuracy"] == run.history.validation_accuracy[-1]
    assert not (folder / "old.txt").exists()
