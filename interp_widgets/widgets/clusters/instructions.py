"""Clusters of a model's hidden states on natural instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Record, record
from interp_widgets.analysis.clusters import HiddenClusters, StateMap, cluster_hidden_states, state_map
from interp_widgets.analysis.hidden_states import last_states_cost
from interp_widgets.data.natural_instructions import demo_instructions, read_instructions
from interp_widgets.figures.bias.layers import ByLayer, LayerLine
from interp_widgets.figures.clusters import StatePlane
from interp_widgets.figures.labels import capitalised
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import cell
from ..base.controls import row, shown_if
from ..base.fields import field, hint_at, variant
from ..base.request import PerModel, Request
from ..views import BokehFigure
from .options import CHANCE, LABELS, SCORES, ClusterOptions, group_names, label_columns

METHODS = {"pca": "principal components", "tsne": "t-SNE"}
AXES = {"pca": "principal component {}", "tsne": "t-SNE {}"}
PHRASINGS, INPUTS = 6, 4
"""Phrasings and inputs of each of the demo's tasks."""
FIT = 3e9
"""Operations to cluster the states of one layer."""


@record
class ClustersAndMap(Record):
    """One model's clusters in every layer, and the map of one layer."""

    clusters: HiddenClusters
    places: StateMap


@dataclass(frozen=True)
class Instances(PerModel):
    """The demo's instructions, or those of a folder."""

    folder: str = ""

    def read(self) -> Any:
        """The instances; FileNotFoundError or ValueError if the folder has none."""
        if self.folder:
            return read_instructions(self.folder)
        return demo_instructions(phrasings_per_task=PHRASINGS, inputs=INPUTS)

    def read_by(self, model: Model) -> Any:
        return self.read()

    def code(self, name: str) -> tuple[list[str], str]:
        if self.folder:
            return [f"instances = read_instructions({self.folder!r})"], "instances"
        return [f"instances = demo_instructions(phrasings_per_task={PHRASINGS}, inputs={INPUTS})"], "instances"


class InstructionClusters(ClusterOptions):
    """A point per instruction at one layer, and the scores of all layers, a line per model."""

    title, tab_name, pair_views = "Clusters of instructions", "Instructions", ("beside",)
    task_folder = field(
        str, label="Tasks", placeholder="the demo's word tasks", width="grow", more=True,
        personal=True, help="A folder of NAME.json files with inputs and outputs; empty: the demo's tasks",
    )  # fmt: skip
    at_layer = variant(ClusterOptions.at_layer, redraws=False, argument="layer")
    method = field(METHODS, "pca", label="Map", help="Projection of the states to the plane")

    @property
    def last_layer(self) -> int:
        return min(int(model.n_layers) for model in self.models)

    def build(self) -> None:
        first = self.controls.row("labels", "score", "method", "at_layer")
        fold = self.controls.fold(first, [self.controls.row("task_folder")])
        self.inputs.children = [first, fold]
        self.planes = [StatePlane() for _ in self.models]
        self.boxes = [W.VBox([BokehFigure(plane.figure, on_error=self.show_error)]) for plane in self.planes]
        self.by_layer = ByLayer("cluster_layers", "", "")
        scores = W.VBox([BokehFigure(self.by_layer.figure, on_error=self.show_error)])
        for box in (*self.boxes, scores):
            box.add_class("iw-chart")
        charts = row(*self.boxes, scores)
        charts.layout.align_items = "flex-start"
        self.plot.children = [charts]

    def request(self) -> Request:
        instances = Instances(self.task_folder.strip())
        with hint_at("task_folder"):
            instances.read()
        layer = min(self.at_layer, self.last_layer)
        return Request.of(state_map, {"layer": layer, "method": self.method}, instances)

    def compute(self, request: Any, model: Model, *, progress: Any, check: Any, on_partial: Any) -> ClustersAndMap:
        clustering = Request.of(cluster_hidden_states, {}, *request.inputs)
        answer = partial(clustering.answer, model, progress=progress, check=check, on_partial=on_partial)
        clusters = self.answers.cached_or_compute(clustering, model, answer)
        return ClustersAndMap(clusters, request.answer(model, check=check))

    def cost(self, request: Any, model: Model) -> Cost:
        prompts = [instance.prompt for instance in request.inputs[0].read()]
        lengths = [max(1, len(ids)) for ids in model.token_lists(prompts)]
        states = last_states_cost(model, lengths, model.n_layers)
        return Cost(states.flops + FIT * (model.n_layers + 1), states.bytes)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ClustersAndMap, ...], request: Any) -> None:
        instances, shown, names = request.inputs[0].read(), pair_view.shown_indices(self), pair_view.labels(self)
        lines = []
        for i, (plane, box) in enumerate(zip(self.planes, self.boxes, strict=True)):
            shown_if(box, i in shown)
            if i not in shown or i >= len(results):
                continue
            places, clusters = results[i].places, results[i].clusters
            plane.update(
                places.xy, group_names(instances, self.labels), [instance.prompt for instance in instances],
                label_columns(instances), title=f"{names[i]}, layer {places.layer}", explained=places.explained,
                axes=AXES[places.method],
            )  # fmt: skip
            kind = list(clusters.labels).index(self.labels)
            lines.append(LayerLine(names[i], getattr(clusters, self.score)[kind], i))
            if self.score in CHANCE:
                lines.append(
                    LayerLine(f"{names[i]}, by chance", getattr(clusters, CHANCE[self.score])[kind], i, dash="dotted")
                )
        self.by_layer.figure.title.text = f"{capitalised(SCORES[self.score])} of clusters and {LABELS[self.labels]}"
        self.by_layer.figure.yaxis[0].axis_label = SCORES[self.score]
        self.by_layer.update(lines, ends=(0.0, 1.0), subtitle=f"{len(instances):,} instructions")

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Any) -> str:
        clustering = Request.of(cluster_hidden_states, {}, *request.inputs)
        reader = "read_instructions" if request.inputs[0].folder else "demo_instructions"
        end = "result.to_frame()" if len(self.models) == 1 else "result_b.to_frame()"
        return cell(["cluster_hidden_states", reader], self.models, [*clustering.lines(self.models), end])

    def table_of(self, result: Any) -> Any:
        return result.clusters.to_frame()

    def scene(self) -> Scene:
        planes = [self.planes[i].scene() for i in pair_view.shown_indices(self)]
        return stack_scenes([*planes, self.by_layer.scene()], columns=2, title=self.title)

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"clusters": result.clusters, "map": result.places}
