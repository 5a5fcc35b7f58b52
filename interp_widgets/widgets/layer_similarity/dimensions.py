"""Number of dimensions that explain 99% of the variance of a task's texts, by layer."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.layer_similarity import MossaResult
from interp_widgets.figures.bias.layers import ByLayer, LayerLine
from interp_widgets.figures.static import Scene

from ..base import pair_view
from ..base.fields import variant
from ..base.saving import as_one
from ..views import BokehFigure
from .options import ControlOptions


def by_layer(layers: Any, values: Any) -> Any:
    """(layers,) values indexed by layer, from 0 on; NaN for layers without one."""
    placed = np.full(int(np.max(layers)) + 1, np.nan)
    placed[np.asarray(layers)] = values
    return placed


class LayerDimensions(ControlOptions):
    """Mean over tasks, and the range of the middle half of them, by layer."""

    title, tab_name = "Dimensions in layers", "Dimensions"
    estimate = variant(ControlOptions.estimate, label="")

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.chart = ByLayer("layer_dimensions", "Dimensions that explain 99% of the variance", "dimensions")
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        self.plot.children = [self.summary, chart]

    def draw(self, results: tuple[MossaResult, ...], request: Any) -> None:
        names, lines = pair_view.labels(self), []
        for i in pair_view.shown_indices(self):
            if i < len(results):
                result = results[i]
                low, high = np.quantile(result.dimensions, [0.25, 0.75], axis=0)
                mean, low, high = (
                    by_layer(result.layers, values) for values in (result.dimensions.mean(axis=0), low, high)
                )
                lines.append(LayerLine(names[i], mean, i, low=low, high=high))
        self.chart.update(lines, ends=(0.0,), subtitle="mean and middle half of the tasks")
        least = int(results[0].texts.min())
        self.summary.value = (
            f"A task of {least} texts has at most {least - 1} dimensions, whatever the width of the model "
            f"({results[0].d_model}): compare layers and models, not the number itself."
        )

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        return self.chart.scene()

    def stored(self) -> Result:
        return as_one(self.by_model(), self.tab_name)
