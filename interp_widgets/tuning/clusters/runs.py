"""`InstructionRun`: a training on the synthetic task, kept in a folder: the task, the checkpoints, the curves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.clusters import ClusterTraining
from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path, whole_file
from interp_widgets.data.files import parse_json, read_text, short
from interp_widgets.data.instruction_task import InstructionTask
from interp_widgets.models import Model, load_model
from interp_widgets.models.hub_files import DEMO
from interp_widgets.releases import refusal, stamped

HEADER = "run.json"
TASK = "task.json"
FORMAT = "interp_widgets instruction run"
VERSION = 1
CLUSTERS = "clusters.npz"
DEMO_RUN = DEMO.parent / "clusters"
"""The training that ships with the package."""
CURVES = ("step", "epoch", "loss", "subset_accuracy", "validation_accuracy")


@record
class InstructionHistory(Result):
    """Loss and task accuracy during a training on the synthetic task."""

    step: Ints = with_axes("evaluations")
    """(evaluations,) Steps of training done."""

    epoch: Floats = with_axes("evaluations")
    """(evaluations,) The same in passes over the training data."""

    loss: Floats = with_axes("evaluations")
    """(evaluations,) Mean cross-entropy of every next token, in nats, over the steps since the evaluation
    before; NaN before the first step."""

    subset_accuracy: Floats = with_axes("evaluations")
    """(evaluations,) Share of the training subset's instances whose output is the model's first choice."""

    validation_accuracy: Floats = with_axes("evaluations")
    """(evaluations,) The same for instances with unseen instructions."""

    def to_frame(self) -> DataFrame:
        """One row per evaluation."""
        return table({"step": self.step}, {name: getattr(self, name) for name in CURVES[1:]})


@dataclass(frozen=True)
class InstructionRun:
    """A training on the synthetic task: where it is kept, its task, its checkpoints and its curves.

    Example:
        >>> import tempfile
        >>> task = make_instruction_task(tasks=3, subset_tasks=2, validation_tasks=1, hard_tasks=1, max_distributions=1)
        >>> run = train_instruction_model(task, tempfile.mkdtemp(), width=16, layers=1, heads=2, steps=4, checkpoints=2)
        >>> sorted(run.checkpoints), run.load(4).n_layers
        ([0, 4], 1)
    """

    folder: Path
    task: InstructionTask
    checkpoints: Mapping[int, Path]
    """By step, a folder that `load_model` takes; the first ones are those before training."""
    history: InstructionHistory
    settings: Mapping[str, Any]
    """Sizes and options of the training."""
    done: bool
    """Whether the training has come to its end."""

    def load(self, step: int) -> Model:
        """The model of a checkpoint."""
        if step not in self.checkpoints:
            raise ValueError(f"step must be one of {', '.join(map(str, self.checkpoints))}, got {step}")
        return load_model(self.checkpoints[step])

    def clusters(self) -> ClusterTraining:
        """What `clusters_over_training` gave of it, where that was saved in its folder as clusters.npz."""
        path = self.folder / CLUSTERS
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no {CLUSTERS} in {self.folder}: call clusters_over_training(run.checkpoints, run.task) and "
                "save its result there"
            )
        return ClusterTraining.load(path)


@checked
def read_instruction_run(folder: str | Path | None = None) -> InstructionRun:
    """Read a training from the folder in which `train_instruction_model` keeps it, finished or not.

    Args:
        folder: by default the training that ships: the paper's task, a model of width 32, its defaults otherwise.

    Raises:
        FileNotFoundError: no such folder, or a checkpoint that is not there.
        ValueError: a folder of something else, or damaged.

    Example:
        >>> run = read_instruction_run()
        >>> run.done, len(run.checkpoints), run.load(0).d_model
        (True, 16, 32)
        >>> run.clusters().f1_matched.shape
        (16, 2, 3, 7)
    """
    source = DEMO_RUN if folder is None else named_path(folder, "folder")
    content = read_header(source)
    task = InstructionTask.load(source / TASK)
    checkpoints = {}
    for step in content["checkpoints"]:
        path = checkpoint_folder(source, step)
        if not (path / "model.safetensors").is_file():
            raise FileNotFoundError(f"there is no checkpoint at {path}: train again, or copy the whole folder")
        checkpoints[step] = path
    return InstructionRun(
        source, task, checkpoints, history_of(content["history"]), content["settings"], bool(content["done"])
    )


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:06d}"


def history_of(rows: list[list[float | None]]) -> InstructionHistory:
    """The curves as rows of the header hold them."""
    columns = list(zip(*rows, strict=True)) or [()] * len(CURVES)
    values = [[float("nan") if value is None else value for value in column] for column in columns]
    rest = [np.array(column, dtype=np.float64) for column in values[1:]]
    return InstructionHistory(np.array(values[0], dtype=np.int64), rest[0], rest[1], rest[2], rest[3])


def read_header(folder: Path) -> dict[str, Any]:
    """What the header of a run holds; its parts are those that `write_header` wrote."""
    path = folder / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"there is no training at {folder}: give the folder of train_instruction_model(...)")
    content = parse_json(read_text(path, "a training"), str(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} was not written by train_instruction_model(...)")
    if content.get("version") != VERSION:
        other = f"{path} has version {short(content.get('version'))}, this program reads {VERSION}: train again"
        raise ValueError(refusal(folder, content, other))
    kinds = {"settings": dict, "checkpoints": list, "history": list, "done": bool}
    for name, kind in kinds.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"{name} of {path} must be a {kind.__name__}, got {short(content.get(name))}")
    if not all(isinstance(step, int) for step in content["checkpoints"]):
        raise ValueError(f"checkpoints of {path} must be steps, got {short(content['checkpoints'])}")
    for row in content["history"]:
        if not isinstance(row, list) or len(row) != len(CURVES):
            raise ValueError(f"history of {path} must have rows of {', '.join(CURVES)}, got {short(row)}")
    return content


def write_header(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the header, which names the other files, once they are there."""
    with whole_file(folder / HEADER) as draft:
        draft.write_text(json.dumps(stamped({"format": FORMAT, "version": VERSION, **content}), indent=1) + "\n")
