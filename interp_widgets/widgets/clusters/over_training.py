"""Clusters of hidden states over a training run on the synthetic instruction task."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.clusters import ClusterTraining, clusters_over_training
from interp_widgets.data.instruction_task import InstructionInstance
from interp_widgets.figures.clusters import ScoreCurves, StatePlane
from interp_widgets.figures.labels import capitalised
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model
from interp_widgets.tuning.clusters import InstructionRun, read_instruction_run

from ..base.code import cell
from ..base.controls import row
from ..base.fields import Bounds, field, hint_at, variant
from ..base.request import File, Request
from ..views import BokehFigure
from .options import CHANCE, LABELS, SCORES, ClusterOptions, group_names, label_columns, percent

SETS = {"training subset": "training subset", "validation": "validation"}
CURVES = {
    "score": "agreement of clusters and labels",
    "within": "separation of tasks with the same input",
    "same_task": "nearest training instances with the same task",
    "knn_accuracy": "accuracy of the nearest training instances' answer",
}
PLAY = 900
"""Milliseconds per checkpoint."""
SCREEN_HEIGHT = 320
"""Pixels of the map on a workbench's screen."""
OPERATIONS = 4e11
"""Operations per checkpoint: states, clusters and neighbours of a run of the paper's sizes, 32 wide."""


def training_clusters(model: Model, *, run: str = "", progress: Any = None, check: Any = None) -> ClusterTraining:
    """The saved clusters of a training run, else computed from its checkpoints; the model is not used."""
    saved = read_instruction_run(run or None)
    try:
        return saved.clusters()
    except FileNotFoundError:
        return clusters_over_training(saved.checkpoints, saved.task, progress=progress, check=check)


@lru_cache(maxsize=2)
def _read(file: File | None) -> tuple[InstructionRun, dict[str, tuple[InstructionInstance, ...]]]:
    """A training run, and the instances of both sets."""
    run = read_instruction_run(_folder(file) or None)
    return run, {"training subset": run.task.training_subset(), "validation": run.task.validation()}


def _folder(file: File | None) -> str:
    return "" if file is None else file.path.removesuffix("/run.json")


class TrainingClusters(ClusterOptions):
    """A point per instance at a checkpoint and layer, and scores at every checkpoint, a line per layer."""

    title, tab_name, pair_views = "Clusters over a training", "Training", ()
    run_folder = field(
        str, label="Training", placeholder="the one that ships: 32 wide, 50 epochs", width="grow",
        more=True, personal=True, help="A folder written by train_instruction_model; empty: the run that ships",
    )  # fmt: skip
    checkpoint = field(
        Annotated[int, Bounds(0, lambda panel: panel.last_checkpoint, slider=True)], 15, label="Checkpoint",
        redraws=True, help="Checkpoints are denser early in training; Play runs through them",
    )  # fmt: skip
    instances = field(
        SETS, "training subset", label="Instances", redraws=True,
        help="Training instances, or instances with instructions that the model has never seen",
    )  # fmt: skip
    score = variant(ClusterOptions.score, shown_if=lambda panel: panel.curves == "score")
    curves = field(CURVES, "within", label="Curves", redraws=True, help="What the curves over the training are")

    @property
    def last_checkpoint(self) -> int:
        return len(self.results[0].steps) - 1 if self.results else 15

    @property
    def last_layer(self) -> int:
        return int(self.results[0].layers[-1]) if self.results else 6

    @property
    def request_models(self) -> tuple[Any, ...]:
        return self.models[:1]  # the result is about the models of the run

    def build(self) -> None:
        first = self.controls.row("instances", "labels", "curves", "score")
        self.play = W.Play(min=0, max=15, interval=PLAY, description="Play")
        self.bind(self.play, "checkpoint")
        second = self.controls.row(self.play, "checkpoint", "at_layer")
        fold = self.controls.fold(first, [self.controls.row("run_folder")])
        self.inputs.children = [first, fold, second]
        self.summary = W.HTML("")
        self.plane, self.lines = StatePlane(), ScoreCurves()
        boxes = []
        for chart in (self.plane, self.lines):
            box = W.VBox([BokehFigure(chart.figure, on_error=self.show_error)])
            box.add_class("iw-chart")
            boxes.append(box)
        for name in ("iw-chart", "iw-small"):
            self.summary.add_class(name)
        if self.screen is not None:  # where space is short
            self.plane.figure.height = SCREEN_HEIGHT
            self.arrange([self.summary, boxes[0]], below=[boxes[1]])
            return
        charts = row(*boxes)
        charts.layout.align_items = "flex-start"
        self.plot.children = [self.summary, charts]

    def _file(self) -> File | None:
        with hint_at("run_folder"):
            return File.at(f"{self.run_folder.strip().rstrip('/')}/run.json") if self.run_folder.strip() else None

    def request(self) -> Request:
        return Request.of(training_clusters, {"run": self._file()})

    def compute(
        self, request: Any, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Any,
    ) -> ClusterTraining:  # fmt: skip
        folder = _folder(dict(request.arguments)["run"])
        return training_clusters(model, run=folder, progress=progress, check=check)

    def cost(self, request: Any, model: Model) -> Cost:
        run, _ = _read(dict(request.arguments)["run"])
        saved = (run.folder / "clusters.npz").is_file()
        return Cost(1e6 if saved else OPERATIONS * len(run.checkpoints), 2e8)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ClusterTraining, ...], request: Any) -> None:
        result = results[0]
        run, sets = _read(dict(request.arguments)["run"])
        at, layer = min(self.checkpoint, len(result.steps) - 1), min(self.at_layer, int(result.layers[-1]))
        self.play.max = len(result.steps) - 1
        instances, which = sets[self.instances], list(result.sets).index(self.instances)
        self.plane.update(
            result.xy(self.instances)[at, layer], group_names(instances, self.labels),
            [instance.prompt for instance in instances], label_columns(instances),
            title=f"{capitalised(self.instances)}, step {result.steps[at]:,}, layer {layer}",
            explained=float(result.explained(self.instances)[at, layer]),
        )  # fmt: skip
        values, chance, unit = self._curves(result, which)
        names = [f"L{number}" for number in result.layers]
        own = values[layer]
        if chance is not None:
            names, values = [*names, "chance"], np.vstack([values, chance])
        finite = np.isfinite(values).all(axis=1)
        if not finite.any():
            self.summary.value = "The tasks of this run share no inputs: choose other curves."
            return self.lines.clear("The tasks of this run share no inputs.")
        names, values = [name for name, keep in zip(names, finite, strict=True) if keep], values[finite]
        self.lines.show(
            names, values, places=[f"{step:,}" for step in result.steps], x_label="training step of the checkpoint",
            unit=unit, title=f"{capitalised(CURVES[self.curves])}, {self._scope()}", at=at,
        )  # fmt: skip
        accuracy = run.history
        seen = int(np.searchsorted(accuracy.step, result.steps[at], side="right")) - 1
        self.summary.value = (
            f"{self._whose()} Step {result.steps[at]:,}: the model solves "
            f"{percent(accuracy.subset_accuracy[seen])} of the training "
            f"subset and {percent(accuracy.validation_accuracy[seen])} of the validation set. {capitalised(unit)} at "
            f"layer {layer}: {own[0]:.2f} before training, {own[at]:.2f} now"
            + ("" if chance is None else f", {chance[at]:.2f} by chance")
            + "."
        )

    def _whose(self) -> str:
        """Which model the picture is about: not the one in the title."""
        folder = self.run_folder.strip()
        run = f"of {folder}" if folder else "that ships"
        return escape(f"This is the model of the run {run}, not {self.models[0].name}.")

    def _scope(self) -> str:
        if self.curves == "score":
            return f"{LABELS[self.labels]}, {self.instances}"
        return "validation" if self.curves != "within" else (
            "all training instances" if self.instances == "training subset" else "validation"
        )  # fmt: skip

    def _curves(self, result: ClusterTraining, which: int) -> tuple[Any, Any, str]:
        """Values (layers, checkpoints), their chance level (checkpoints,) or None, and their name."""
        if self.curves == "within":
            chance = result.f1_within_input_chance[:, which].mean(axis=1)
            return result.f1_within_input[:, which].T, chance, "matched F1"
        if self.curves in ("same_task", "knn_accuracy"):
            level = result.same_task_chance if self.curves == "same_task" else result.knn_accuracy_chance
            unit = "share" if self.curves == "same_task" else "accuracy"
            return getattr(result, self.curves).T, np.full(len(result.steps), level), unit
        kind = list(result.labels).index(self.labels)
        values = getattr(result, self.score)[:, which, kind].T
        chance = getattr(result, CHANCE[self.score])[:, which, kind].mean(axis=1) if self.score in CHANCE else None
        return values, chance, SCORES[self.score]

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Any) -> str:
        file = dict(request.arguments)["run"]
        saved = (_read(file)[0].folder / "clusters.npz").is_file()
        lines = [f"run = read_instruction_run({repr(_folder(file)) if file else ''})"]
        lines.append(
            "result = run.clusters()" if saved else "result = clusters_over_training(run.checkpoints, run.task)"
        )
        used = ["read_instruction_run", *([] if saved else ["clusters_over_training"])]
        return cell(used, [], [*lines, "result.to_frame()"])

    def scene(self) -> Scene:
        return stack_scenes([self.plane.scene(), self.lines.scene()], columns=2, title=self.title)
