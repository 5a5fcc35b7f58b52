"""The texts of all tasks, projected to the plane, by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.layer_similarity import LayerProjections, layer_projections
from interp_widgets.analysis.layer_similarity.projections import layer_projections_cost
from interp_widgets.figures.layer_similarity import ProjectionChart
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import cell
from ..base.controls import shown_if
from ..base.fields import Seed, field
from ..base.request import Request
from ..views import BokehFigure
from .options import OneOfEach, TaskList, TaskOptions
from .tasks import TaskSimilarity

METHODS = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}
PROJECTED = 30
"""Texts of each task that are projected."""


@dataclass(frozen=True)
class FirstTexts(TaskList):
    """The tasks, each with its first texts."""

    count: int = PROJECTED

    def read(self) -> Any:
        return tuple(
            replace(task, texts=task.texts[: self.count], responses=task.responses[: self.count])
            for task in super().read()
        )

    def code(self, name: str) -> tuple[list[str], str]:
        lines, tasks = super().code(name)
        each = f"TaskTexts(task.name, task.texts[:{self.count}], (), task.cluster, task.unseen)"
        return [*lines, f"tasks = [{each} for task in tasks]"], tasks


@dataclass(frozen=True)
class FirstTextsOfEach(FirstTexts, OneOfEach):
    """One task from each cluster, with its first texts."""


class TextProjections(TaskOptions):
    """A point per text at one layer, coloured by cluster."""

    title, tab_name, pair_views = "Texts in the plane", "Projections", ("beside",)
    method = field(METHODS, "pca", label="Method", help="Projection of the states to the plane")
    seed = field(Seed, 0, label="Seed", width="short", more=True, help="Seed of t-SNE and UMAP")
    at_layer = TaskSimilarity.at_layer

    def build(self) -> None:
        super().build()
        self.charts = [ProjectionChart() for _ in self.models]
        self.boxes = [W.VBox([BokehFigure(chart.figure, on_error=self.show_error)]) for chart in self.charts]
        grid = W.VBox(self.boxes)
        grid.add_class("iw-maps")
        self.plot.children = [grid]

    def request(self) -> Request:
        listed = self.task_list()
        kind = FirstTextsOfEach if isinstance(listed, OneOfEach) else FirstTexts
        tasks = kind(listed.own, listed.texts)
        return Request.of(layer_projections, {"method": self.method, "seed": self.seed}, tasks)

    def cost(self, request: Any, model: Model) -> Cost:
        texts = [text for task in request.inputs[0].read() for text in task.texts]
        some = texts[:: max(1, len(texts) // 64)]
        lengths = [max(1, len(ids)) for ids in model.token_lists(some)]
        mean = round(sum(lengths) / len(lengths))
        return layer_projections_cost(model, [mean] * len(texts), dict(request.arguments)["method"])

    def code(self, request: Any) -> str:
        lines = [*request.lines(self.models), "result.to_frame()" if len(self.models) == 1 else "result_b.to_frame()"]
        used = {"layer_projections", "TaskTexts", *(["demo_task_texts"] if self.tasks is None else [])}
        return cell(used, self.models, lines)

    def draw_selection(self) -> None:
        at = pair_view.shown_indices(self)
        for i, (chart, box) in enumerate(zip(self.charts, self.boxes, strict=True)):
            shown_if(box, i in at)
            if i in at and i < len(self.results):
                places: LayerProjections = self.results[i]
                layer = min(self.at_layer, int(places.layers[-1]))
                chart.update(places, layer, name="AB"[i] if len(self.models) > 1 else "")

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        charts = [self.charts[i].scene() for i in pair_view.shown_indices(self)]
        return stack_scenes(charts, columns=2, title=self.title)
