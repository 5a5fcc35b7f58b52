"""Correlation of CKA over tasks with the readability, length and number of their texts, by layer."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.layer_similarity import MossaResult, TaskCorrelations, task_correlations
from interp_widgets.figures.bias.layers import ByLayer, LayerLine
from interp_widgets.figures.static import Scene, stack_scenes

from ..base import pair_view
from ..base.fields import Incomplete
from ..base.request import Request
from ..base.saving import as_one
from ..views import BokehFigure
from .dimensions import by_layer
from .options import ControlOptions

QUANTITIES = {
    "flesch_kincaid": "Flesch-Kincaid grade", "coleman_liau": "Coleman-Liau index", "words": "words per text",
    "texts": "texts per task",
}  # fmt: skip
LEAST = 4
"""Fewest tasks to correlate over."""


class TextCorrelations(ControlOptions):
    """A chart per quantity: Pearson's r over tasks with its interval, a line per model."""

    title, tab_name = "Texts and layers", "Texts"

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.charts = {
            name: ByLayer(f"correlation_{name}", f"CKA and {label}", "Pearson's r")
            for name, label in QUANTITIES.items()
        }
        for chart in self.charts.values():
            chart.figure.height = 240
        grid = W.VBox([W.VBox([BokehFigure(chart.figure, on_error=self.show_error)]) for chart in self.charts.values()])
        grid.add_class("iw-maps")
        self.plot.children = [self.summary, grid]

    def request(self) -> Request:
        count = len(self.task_list().read())
        if count < LEAST:
            raise Incomplete("tasks", f"a correlation over tasks needs at least {LEAST} of them, got {count}")
        return super().request()

    def draw(self, results: tuple[MossaResult, ...], request: Any) -> None:
        names, correlations = pair_view.labels(self), [task_correlations(result) for result in self.estimated()]
        at = [i for i in pair_view.shown_indices(self) if i < len(results)]
        for name, chart in self.charts.items():
            row = correlations[0].quantities.index(name)
            lines = [
                LayerLine(names[i], values[0], i, low=values[1], high=values[2])
                for i in at
                for own in [correlations[i]]
                for values in [[by_layer(own.layers, array[row]) for array in (own.r, own.low, own.high)]]
            ]
            if all(np.isnan(line.values).all() for line in lines):
                unknown = f"Some task has no {QUANTITIES[name]}, or all have the same."
                chart.say("All tasks have the same number of texts." if name == "texts" else unknown)
            else:
                chart.update(lines, ends=(-1.0, 0.0, 1.0))
        self.summary.value = (
            f"Pearson's r over {correlations[0].tasks} tasks, including those never tuned on, with 95% intervals; not "
            "corrected for the number of layers. Syllables are counted by rules for English."
        )

    def correlations(self) -> dict[str, TaskCorrelations]:
        """The correlations of the models in view, by letter."""
        return {letter: task_correlations(result) for letter, result in self.by_model().items()}

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> list[str]:
        result = "result" if len(self.models) == 1 else "result_b"
        return [f"task_correlations({result}).to_frame()"]

    def functions_used(self) -> set[str]:
        return {"task_correlations"}

    def frame(self) -> Any:
        return pair_view.joined({letter: result.to_frame() for letter, result in self.correlations().items()})

    def scene(self) -> Scene:
        return stack_scenes([chart.scene() for chart in self.charts.values() if not chart.message], columns=2,
                            title=self.title)  # fmt: skip

    def stored(self) -> Result:
        return as_one(self.correlations(), self.tab_name)
