"""Similarity to the control model of every task, by layer, and the sections of layers that tuning changes."""

from __future__ import annotations

from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.layer_similarity import LayerSections, MossaResult, mossa_sections
from interp_widgets.figures.layer_similarity import TaskBoxes
from interp_widgets.figures.layer_similarity.boxes import BoxSeries
from interp_widgets.figures.static import Scene, stack_scenes

from ..base import pair_view
from ..base.answers import once_for
from ..base.controls import instruction
from ..base.description import Description, decimals
from ..base.fields import Bounds, field
from ..base.saving import as_one
from ..views import BokehFigure, Table
from ..views.table import RIGHT
from .options import UNSEEN, ClusterChoice, ControlOptions

DRAWN = 40
"""Rows of the table in a saved picture."""


class TaskSimilarity(ControlOptions):
    """Box plots over tasks by layer, with the fitted sections, and a table of the tasks at one layer."""

    title, tab_name = "Tasks in layers", "Tasks"
    cluster = field(str, redraws=True, label="Tasks", control=ClusterChoice)
    at_layer = field(
        Annotated[int, Bounds(1, lambda panel: panel.layers, slider=True)], 1, label="Layer", selects=True,
        help="Layer of the table: the stream entering this block; the last one is the input of the final norm",
    )  # fmt: skip

    def build(self) -> None:
        super().build()
        self.summary = W.HTML("")
        self.chart = TaskBoxes()
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        self.table = Table(empty="Nothing compared yet: press Run", height=320)
        self.arrange([self.summary, chart], below=[self.table])

    # what is drawn ----------------------------------------------------------------------------------------------------

    def chosen(self, result: MossaResult) -> Any:
        """(tasks,) whether each task is drawn."""
        if self.cluster == UNSEEN:
            return np.asarray(result.unseen)
        return result.of_cluster(self.cluster) & ~result.unseen if self.cluster else ~result.unseen

    def sections(self) -> LayerSections | None:
        """The sections fitted to both models over the drawn tasks; None for one model or too few tasks."""
        if len(self.results) < 2:
            return None
        base, tuned = self.estimated()
        unseen = self.cluster == UNSEEN
        if (self.cluster and not unseen) or (base.unseen == unseen).sum() < 2:
            return None
        key = ("layer sections", base.debiased, unseen)
        sections: LayerSections = once_for(self.results, key, lambda: mossa_sections(base, tuned, unseen=unseen))
        return sections

    def draw(self, results: tuple[MossaResult, ...], request: Any) -> None:
        at, estimated = pair_view.shown_indices(self), self.estimated()
        names = pair_view.labels(self) if len(results) > 1 else [""]
        series = []
        for i in at:
            if i < len(results):
                chosen = self.chosen(estimated[i])
                tasks = [task for task, own in zip(estimated[i].tasks, chosen, strict=True) if own]
                series.append(BoxSeries(names[i], tasks, estimated[i].layers.tolist(), estimated[i].cka[chosen], i))
        sections = self.sections() if len(at) > 1 else None
        kind = "debiased" if estimated[0].debiased else "biased"
        self.chart.update(
            series, sections=sections, title=f"CKA ({kind}) with the control model of each task",
            subtitle=f"{len(series[0].tasks)} tasks: {self.cluster or 'all that the tuned model was tuned on'}",
        )  # fmt: skip
        lines = [escape(estimated[0].warning)]
        if len(results) > 1:
            lines.append(self._sections_text(sections))
        self.summary.value = "<br>".join(line for line in lines if line)

    def _sections_text(self, sections: LayerSections | None) -> str:
        """What there is to say of the sections, as HTML."""
        if sections is not None:
            return escape(sections.summary())
        if self.cluster and self.cluster != UNSEEN:
            return "Sections are fitted over all tasks, or over those never tuned on: one cluster has too few."
        return instruction("Choose A beside B to see the sections of layers that tuning changes.")

    def draw_selection(self) -> None:
        if not self.results:
            return
        estimated = self.estimated()
        layers = estimated[0].layers.tolist()
        column = layers.index(self.at_layer) if self.at_layer in layers else len(layers) - 1
        several = len(estimated) > 1
        letters = "AB" if several else [""]
        heads: list[dict[str, Any]] = [{"label": "task"}, {"label": "cluster"}]
        heads += [{"label": f"CKA {letter}".strip(), **RIGHT} for letter in letters]
        if several:
            heads.append({"label": "B − A", **RIGHT})
        heads += [{"label": "texts", **RIGHT}, {"label": "words", **RIGHT, "title": "mean number of words per text"}]
        rows: list[list[Any]] = []
        for row in np.flatnonzero(self.chosen(estimated[0])).tolist():
            values = [float(result.cka[row, column]) for result in estimated]
            differences = [values[1] - values[0]] if several else []
            rows.append([
                estimated[0].tasks[row], estimated[0].clusters[row],
                *(None if np.isnan(value) else round(value, 3) for value in (*values, *differences)),
                int(estimated[0].texts[row]), round(float(estimated[0].words[row]), 1),
            ])  # fmt: skip
        by = 4 if several else 2
        rows.sort(key=lambda row: np.inf if row[by] is None else -row[by])
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = f"Tasks at layer {layers[column]}, by {heads[by]['label']}"

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        estimated = self.estimated()
        column = min(self.at_layer, len(estimated[0].layers)) - 1
        rows = [
            (
                "median CKA",
                *(decimals(float(np.nanmedian(result.cka[self.chosen(result), column]))) for result in estimated),
            )
        ]
        columns = ("", *(letter.strip() or "value" for letter in pair_view.letters(self.results)))
        return Description(f"Tasks at layer {self.at_layer}", columns=columns, rows=tuple(rows))

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> list[str]:
        if len(self.models) == 1:
            return super().last_lines()
        return ["mossa_sections(result_a, result_b).summary()"]

    def functions_used(self) -> set[str]:
        return {"mossa_sections"} if len(self.models) > 1 else set()

    def scene(self) -> Scene:
        return stack_scenes([self.chart.scene(), self.table.scene(most=DRAWN)], title=self.title)

    def stored(self) -> Result:
        parts: dict[str, Any] = dict(self.by_model())
        if len(parts) > 1:
            parts["sections"] = self.sections()
        return as_one(parts, self.tab_name)
