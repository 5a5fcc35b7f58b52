"""Whether tasks whose texts are harder to read, longer or more are more alike, by layer."""

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
    "flesch_kincaid": "Flesch-Kincaid grade", "coleman_liau": "Coleman-Liau index", "words": "words of a text",
    "texts": "texts of a task",
}  # fmt: skip
LEAST = 4


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
        grid = W.VBox([W.VBox([BokehFigure(one.figure, on_error=self.show_error)]) for one in self.charts.values()])
        grid.add_class("iw-maps")
        self.plot.children = [self.summary, grid]

    def request(self) -> Request:
        count = len(self.task_list().read())
        if count < LEAST:
            raise Incomplete("tasks", f"a correlation over tasks needs at least {LEAST} of them, got {count}")
        return super().request()

    def draw(self, results: tuple[MossaResult, ...], request: Any) -> None:
        names, found = pair_view.labels(self), [task_correlations(one) for one in self.estimated()]
        at = [i for i in pair_view.shown_indices(self) if i < len(results)]
        for name, chart in self.charts.items():
            row = found[0].quantities.index(name)
            lines = [
                LayerLine(names[i], values[0], i, low=values[1], high=values[2])
                for i in at
                for values in [
                    [by_layer(found[i].layers, one[row]) for one in (found[i].r, found[i].low, found[i].high)]
                ]
            ]
            if all(np.isnan(line.values).all() for line in lines):
                chart.say("It is the same for all tasks." if name == "texts" else "It is not known for all tasks.")
            else:
                chart.update(lines, ends=(-1.0, 0.0, 1.0))
        self.summary.value = (
            f"Pearson's r over {found[0].tasks} tasks, those never tuned on included, with 95 % intervals; not "
            "corrected for the number of layers. Syllables are counted by rules for English."
        )

    def correlations(self) -> dict[str, TaskCorrelations]:
        """Those looked at, by letter."""
        return {letter: task_correlations(result) for letter, result in self.by_model().items()}

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> list[str]:
        result = "result" if len(self.models) == 1 else "result_b"
        return [f"task_correlations({result}).to_frame()"]

    def functions_used(self) -> set[str]:
        return {"task_correlations"}

    def frame(self) -> Any:
        tables = [one.to_frame() for one in self.correlations().values()]
        return tables[0] if len(self.models) == 1 else pair_view.joined(tables)

    def scene(self) -> Scene:
        return stack_scenes([chart.scene() for chart in self.charts.values() if not chart.message], columns=2,
                            title=self.title)  # fmt: skip

    def stored(self) -> Result:
        return as_one(self.correlations(), self.tab_name)
