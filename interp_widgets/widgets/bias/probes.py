"""Probes of biased against benign texts in every layer: accuracy, geometry and generalization to other layers."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.bias import BiasProbes
from interp_widgets.figures.bias import BiasGeometry, ByLayer, probe_lines
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import instruction, shown_if
from ..base.description import Description, decimals
from ..base.fields import Refused, Share, field
from ..base.guard import guarded
from ..base.request import Request
from ..base.workbench import in_model
from ..views import BokehFigure, Heatmap
from .examples import ProbeOptions, cell_of

MEASURES = {"auc": "AUC", "accuracy": "accuracy"}


class ProbeSweep(ProbeOptions):
    """AUC or accuracy by layer, the texts along two probes of one layer, and each probe's AUC on every layer."""

    title, tab_name, pair_views = "Bias probes", "Probes", ("beside",)
    measure = field(MEASURES, "auc", label="Measured as", redraws=True)
    layer = field(in_model(), selects=True)
    """The layer whose texts are plotted."""
    threshold = field(
        Share, 0.9, label="A probe generalises above an AUC of", redraws=True,
        help="LoPE uses in each layer the set S of the probes with a larger AUC on that layer's states",
    )  # fmt: skip

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.chart = ByLayer("bias_probes", "Probes on held-out texts, by layer", "AUC")
        self.chart.source.selected.on_change("indices", guarded(self, self._point_clicked))
        self.geometries = [BiasGeometry() for _ in self.models]
        charts = (self.chart, *self.geometries)
        self.boxes = [W.VBox([BokehFigure(chart.figure, on_error=self.show_error)]) for chart in charts]
        self.maps: pair_view.SideBySide[Heatmap] = pair_view.SideBySide(self, self._new_map)
        grid = W.VBox([*self.boxes, *self.maps.boxes])
        grid.add_class("iw-maps-3")
        self.plot.children = [self.summary, grid]

    def _new_map(self) -> Heatmap:
        heat = Heatmap(
            row_name="states of layer", column_name="probe of layer", x_label="probe of layer",
            y_label="states of layer", value_label="AUC", numbers_from=0.0, number_decimals=2,
            max_height=220, empty="No probes yet",
        )  # fmt: skip
        return self.watch(heat, "pinned", lambda change: self._select(change.new[1]) if change.new else None)

    def request(self) -> Request:
        layers = min(model.n_layers for model in self.models)
        if self.layer >= layers:
            raise Refused("layer", f"layer must be in 0..{layers - 1} for these models, got {self.layer}")
        return self.probes_request()

    def code(self, request: Request) -> str:
        return cell_of(request, self.models, "result.to_frame()")

    def cost(self, request: Request, model: Model) -> Cost:
        return self.probes_cost(request, model)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[BiasProbes, ...], request: Request) -> None:
        self.summary.value = "<br>".join(
            start + self._summary(results[i])
            for start, i in zip(pair_view.starts(self), pair_view.shown_indices(self), strict=True)
        ) + instruction(" Click a layer in a chart to plot its texts.")
        for view, heat in self.maps.drawn():
            probes = results["AB".index(view)]
            layers = [str(layer) for layer in range(probes.n_layers)]
            matrix = probes.generalization.T
            heat.set_matrix(matrix, rows=layers, columns=layers, vmin=0.5, vmax=1.0)
            heat.crossed = [[row, column] for row, own in enumerate(matrix) for column, auc in enumerate(own)
                            if auc <= self.threshold]  # fmt: skip
            name = f"{view}: " if len(self.models) > 1 else ""
            heat.title = f"{name}AUC by layer; crossed: {self.threshold:g} or less"

    def draw_selection(self) -> None:
        if not self.results:
            return
        at, names = pair_view.shown_indices(self), pair_view.names(self)
        lines = [
            line
            for name, i in zip(names, at, strict=True)
            for line in probe_lines(self.results[i], self.measure, model=i, name=name if len(at) > 1 else "")
        ]
        self.chart.figure.yaxis[0].axis_label = MEASURES[self.measure]
        self.chart.update(lines, ends=(0.5, 1.0), layer=self.layer,
                          subtitle="means and ranges over the splits")  # fmt: skip
        for i, (geometry, box) in enumerate(zip(self.geometries, self.boxes[1:], strict=True)):
            shown_if(box, i in at)
            if i in at:
                geometry.update(self.results[i], self.layer, name="AB"[i] if len(self.models) > 1 else "")

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        rows = [
            (label, *(decimals(float(getattr(result, name)[self.layer].mean())) for result in self.results))
            for label, name in (("AUC", "auc"), ("second probe", "second_auc"), ("shuffled", "control_auc"))
        ]
        columns = ("", *(letter.strip() or "value" for letter in pair_view.letters(self.results)))
        return Description(f"Bias probe, layer {self.layer}", columns=columns, rows=tuple(rows))

    @staticmethod
    def _summary(probes: BiasProbes) -> str:
        auc, control = probes.auc.mean(axis=1), probes.control_auc.mean()
        best = int(auc.argmax())
        biased = int(probes.biased.sum())
        return (
            f"{biased:,} biased and {len(probes.texts) - biased:,} benign texts in {len(set(probes.groups)):,} groups. "
            f"Largest held-out AUC <b>{auc[best]:.2f}</b>, layer {best}; shuffled labels {control:.2f}, bag of words "
            f"{probes.bag_of_words.mean():.2f}, embedding {probes.embedding.mean():.2f}."
        )

    # what a user does -------------------------------------------------------------------------------------------------

    def _point_clicked(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self._select(int(self.chart.source.data["x"][new[0]]))

    def _select(self, layer: int) -> None:
        if layer >= 0:
            self.layer = layer

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        geometries = [self.geometries[i].scene() for i in pair_view.shown_indices(self)]
        return stack_scenes([self.chart.scene(), *geometries, self.maps.scene()], columns=2, title=self.title)
