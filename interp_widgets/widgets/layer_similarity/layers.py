"""Every layer against every layer, of two models or of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.layer_similarity import LayerSimilarity, layer_similarity
from interp_widgets.analysis.layer_similarity.cka import MIN_INPUTS
from interp_widgets.analysis.layer_similarity.similarity import layer_similarity_cost
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model
from interp_widgets.models.pair import distinct_names

from ..base.code import cell
from ..base.fields import Incomplete, Lines, field
from ..base.request import FromModel, PerModel, Request
from ..views import Heatmap
from .options import ControlOptions, TaskList, TaskOptions

AGAINST = {"both": "A against B", "A": "A against itself", "B": "B against itself"}
POOLED = 20
"""Texts of each task to compare on if the user gives none."""


@dataclass(frozen=True)
class Pooled(PerModel):
    """The first texts of all tasks."""

    tasks: TaskList

    def read_by(self, model: Model) -> Any:
        return [text for task in self.tasks.read() for text in task.texts[:POOLED]]

    def code(self, name: str) -> tuple[list[str], str]:
        lines, tasks = self.tasks.code(name)
        return [*lines, f"texts = [text for task in {tasks} for text in task.texts[:{POOLED}]]"], "texts"


@dataclass(frozen=True)
class OtherModel(FromModel):
    """One of the panel's models as an argument."""

    def find(self, model: Model, check: Callable[[], None]) -> Any:
        return model

    def code(self) -> tuple[list[str], str]:
        return [], self.variable


class LayerMatrix(TaskOptions):
    """A heatmap of the CKA of every pair of layers, with a warning if there are too few texts."""

    title, tab_name, pair_views = "Layers against layers", "Layers", ()
    against = field(
        AGAINST, "both", label="Compare", help="The models whose layers are compared",
        shown_if=lambda panel: len(panel.models) > 1,
    )  # fmt: skip
    estimate = ControlOptions.estimate
    texts = field(
        Annotated[list, Lines(3)], (), label="Texts, one per line", more=True,
        placeholder="the first texts of every task", help="The states of their last tokens are compared",
    )  # fmt: skip

    @property
    def request_models(self) -> tuple[Any, ...]:
        return (self.models[1],) if self.against == "B" and len(self.models) > 1 else (self.models[0],)

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.heat = Heatmap(
            row_name="layer of A", column_name="layer of B", x_label="layer", y_label="layer", value_label="CKA",
            numbers_from=0.0, number_decimals=2, max_height=420, empty="No layers compared yet",
        )  # fmt: skip
        self.plot.children = [self.summary, self.heat]

    def request(self) -> Request:
        if self.texts and len(set(self.texts)) < MIN_INPUTS:
            raise Incomplete("texts", f"a comparison needs at least {MIN_INPUTS} different texts")
        texts = tuple(self.texts) or Pooled(self.task_list())
        names = ("model",) if len(self.models) == 1 else ("base", "tuned")
        index = 1 if len(self.models) > 1 and self.against != "A" else 0
        return Request.of(layer_similarity, {}, OtherModel(index, names[index]), texts)

    def cost(self, request: Any, model: Model) -> Cost:
        other, texts = request.inputs
        texts = texts.read_by(model) if isinstance(texts, PerModel) else texts
        some = texts[:: max(1, len(texts) // 64)]
        lengths = [max(1, len(ids)) for ids in model.token_lists(list(some))]
        mean = round(sum(lengths) / len(lengths))
        second = self.models[other.index] if isinstance(other, OtherModel) else other
        return layer_similarity_cost(model, second, [mean] * len(texts))

    def code(self, request: Any) -> str:
        at = 1 if self.request_models[0] is not self.models[0] else 0
        names = ("model",) if len(self.models) == 1 else ("base", "tuned")
        lines = request.lines_on(names[at], "result", "")
        used = {name for name in ("demo_task_texts", "layer_similarity") if any(f"{name}(" in line for line in lines)}
        return cell(used, self.models, [*lines, "result.to_frame()"])

    # drawing ----------------------------------------------------------------------------------------------------------

    def estimated(self) -> LayerSimilarity:
        """The result on the screen, with the chosen estimate of CKA."""
        result: LayerSimilarity = self.results[0]
        return result if self.estimate == "auto" else replace(result, debiased=self.estimate == "debiased")

    def draw(self, results: tuple[LayerSimilarity, ...], request: Any) -> None:
        result = self.estimated()
        letters = {"both": "AB", "A": "AA", "B": "BB"}[self.against] if len(self.models) > 1 else ("", "")
        first, second = (f"layer of {letter}" if letter else "layer" for letter in letters)
        self.heat.row_name, self.heat.y_label = first, first
        self.heat.column_name, self.heat.x_label = second, second
        rows = [str(layer) for layer in result.layers_a]
        columns = [str(layer) for layer in result.layers_b]
        self.heat.set_matrix(result.cka, rows=rows, columns=columns, vmin=0.0, vmax=1.0)
        kind = "debiased" if result.debiased else "biased"
        self.heat.title = f"CKA ({kind}) of {result.texts:,} texts"
        lines = [result.warning]
        if np.isnan(result.cka).any():
            empty = [str(layer) for layer, row in zip(result.layers_a, result.cka, strict=True) if np.isnan(row).all()]
            if empty:
                lines.append(
                    f"Layer {', '.join(empty)} does not vary over these texts, which all end in the same token: its "
                    "CKA is undefined."
                )
        if len(result.layers_a) == len(result.layers_b) and letters[0] != letters[1]:
            own = np.diag(result.cka)
            most, least = (int(result.layers_a[int(index)]) for index in (np.nanargmax(own), np.nanargmin(own)))
            names = distinct_names(self.models)
            lines.append(
                f"Corresponding layers of {names[0]} and {names[1]} are most similar at layer {most} "
                f"({np.nanmax(own):.2f}) and least similar at layer {least} ({np.nanmin(own):.2f})."
            )
        self.summary.value = "<br>".join(escape(line) for line in lines if line)

    # what is saved ----------------------------------------------------------------------------------------------------

    def frame(self) -> Any:
        return self.estimated().to_frame()

    def scene(self) -> Scene:
        return self.heat.scene()

    def stored(self) -> Result:
        return self.estimated()
