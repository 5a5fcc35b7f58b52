"""Makes the training run on the synthetic instruction task that ships, and the clusters of its checkpoints."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from interp_widgets.analysis.clusters import clusters_over_training
from interp_widgets.data.instruction_task import InstructionTask, make_instruction_task
from interp_widgets.tuning.clusters import train_instruction_model
from interp_widgets.tuning.clusters.runs import CLUSTERS, DEMO_RUN

BUILD = Path("build/clusters")


def make_clusters(
    folder: Path = DEMO_RUN, *, build: Path = BUILD, task: InstructionTask | None = None, **options: Any
) -> dict[str, Any]:
    """Train or resume, analyse every checkpoint, install both; returns accuracies, bytes and seconds."""
    task = make_instruction_task(seed=0) if task is None else task
    began = time.perf_counter()
    run = train_instruction_model(task, build, **options)
    trained = time.perf_counter()
    clusters = clusters_over_training(run.checkpoints, run.task)
    clusters.save(build / CLUSTERS)
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(build, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o644)
    return {
        "training_seconds": round(trained - began),
        "analysis_seconds": round(time.perf_counter() - trained),
        "bytes": sum(path.stat().st_size for path in files),
        "subset_accuracy": float(run.history.subset_accuracy[-1]),
        "validation_accuracy": float(run.history.validation_accuracy[-1]),
    }
