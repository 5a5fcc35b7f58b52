"""Heads by two measures: does a head that looks like something do something?"""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.analysis.attention import HeadMeasures, head_measures, head_measures_cost
from interp_widgets.analysis.attention.direct_attribution import heads_in_words
from interp_widgets.analysis.attention.head_scores import check_length
from interp_widgets.figures.attention import HeadScatter
from interp_widgets.figures.labels import fixed, visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import row, shown_if
from ..base.description import Description, decimals
from ..base.fields import Incomplete, field, hint_at, variant
from ..base.guard import guarded
from ..base.prediction import PredictionPanel, checked
from ..base.request import Request
from ..base.workbench import in_model
from ..views import BokehFigure, Table
from .known_heads import HEAD_STEPS, SCORES, KnownHeads, usual_length

MEASURES = {name: f"{label} score" for name, label in SCORES.items()} | {
    "direct_attribution": "direct attribution",
    "ablation_effect": "drop without it",
}
"""What a head is measured by."""
UNITS = {"direct_attribution": "logit", "ablation_effect": "nats"}
"""The unit of a measure; those of the others are mean attention."""
LISTED = 10
"""Heads in the table."""


class HeadsCompared(PredictionPanel):
    """Every head as a dot by two of its measures, and whether heads high in one are high in the other."""

    title, tab_name = "Heads compared", "Compare"
    analysis = staticmethod(head_measures)
    pair_views = ("beside",)
    x_measure = field(
        MEASURES, "previous_token", label="Across", argument="measures", help="What heads are measured by, across"
    )
    y_measure = field(
        MEASURES, "ablation_effect", label="Up", argument="measures", help="What heads are measured by, upwards"
    )
    length = variant(KnownHeads.length, more=True, shown_if=lambda panel: panel.scored)
    sequences = variant(KnownHeads.sequences, more=True, shown_if=lambda panel: panel.scored)
    seed = variant(KnownHeads.seed, shown_if=lambda panel: panel.scored)
    layer = field(in_model(), selects=True)
    """The selected layer."""
    head = field(in_model(), selects=True)
    """The selected head of that layer."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return usual_length(self.models, keywords) | super().defaults(keywords)

    # what the panel asks for ------------------------------------------------------------------------------------------

    @property
    def scored(self) -> bool:
        """Whether one of the measures is a score on random tokens."""
        return bool({self.x_measure, self.y_measure} & set(SCORES))

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.about = W.HTML("")
        self.charts = [HeadScatter() for _ in self.models]
        for chart in self.charts:
            chart.source.selected.on_change("indices", guarded(self, partial(self._dot_clicked, chart)))
        self.boxes = [W.VBox([BokehFigure(chart.figure, on_error=self.show_error)]) for chart in self.charts]
        for index, box in enumerate(self.boxes):
            box.add_class("iw-chart")
            shown_if(box, index == 0)
        self.table = Table(empty="No heads yet.", height=320, instruction="click one to select it")
        self._rows: list[tuple[int, int]] = []
        self.on_user(self.table, "selected", self._picked)
        self.arrange([row(*self.boxes), self.about], beside=[self.table], width=420)

    def request(self) -> Request:
        if self.x_measure == self.y_measure:
            raise Incomplete("y_measure", "both axes show the same measure: choose another one")
        prediction = self.prediction()
        checked(prediction, self.models[0])
        options: dict[str, Any] = {"measures": (self.x_measure, self.y_measure)}
        if self.scored:
            with hint_at("length"):
                for model in self.models:
                    check_length(model, self.length)
            options |= {"length": self.length, "sequences": self.sequences, "seed": self.seed}
        return Request.of(head_measures, options, prediction.ids, prediction.answer)

    def cost(self, request: Request, model: Model) -> Cost:
        options = dict(request.arguments)
        options.pop("seed", None)
        return head_measures_cost(model, len(request.inputs[0].read_by(model)), **options)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[HeadMeasures, ...], request: Request) -> None:
        shown, names = pair_view.shown_indices(self), pair_view.names(self)
        axes = self._axis(self.x_measure), self._axis(self.y_measure)
        for index, (chart, box) in enumerate(zip(self.charts, self.boxes, strict=True)):
            shown_if(box, index in shown)
            if index in shown:
                result = results[index]
                name = names[list(shown).index(index)] if len(shown) > 1 else ""
                grey = None if result.p is None else result.p > BEYOND
                chart.update(result.of(self.x_measure), result.of(self.y_measure), axes, name=name, grey=grey)
        starts = pair_view.all_starts(results)
        sentences = map(self._sentence, results)
        self.about.value = "<br>".join(start + said for start, said in zip(starts, sentences, strict=True))
        self._draw_table()

    def _axis(self, name: str) -> str:
        return f"{MEASURES[name]}, {UNITS.get(name, 'mean attention')}"

    def _sentence(self, result: HeadMeasures) -> str:
        """Whether the two measures go together, as HTML."""
        count = result.values[0].size
        if result.partial:
            known = int(np.isfinite(result.values).all(0).sum())
            order = "the strongest expected first" if result.strongest_first else "layer by layer"
            return f"<b>{known} of {count}</b> heads so far, {order}.{self._chance(result)}"
        rho, p = result.correlation(self.x_measure, self.y_measure)
        if not np.isfinite(rho):
            alike = f"One of the measures is the same for all {count} heads, so there is no correlation."
            return alike + self._chance(result)
        together = "not beyond chance" if p > 0.05 else "beyond chance"
        target = f" The target is “{escape(visible(result.target_token))}”." if result.target_token else ""
        return (
            f"Rank correlation over {count} heads: <b>{fixed(rho, 2, '+')}</b>, p = {p:.2g}, <b>{together}</b>; "
            f"heads of one layer are not independent, so p is a rough guide.{target}{self._chance(result)}"
        )

    @staticmethod
    def _chance(result: HeadMeasures) -> str:
        """Which heads write the target beyond chance, as HTML; empty where they are not measured by it."""
        if result.p is None:
            return ""
        return f"<br>{escape(heads_in_words(result.p, result.of('direct_attribution')))}; the others are grey."

    def _shown_results(self) -> list[HeadMeasures]:
        return [self.results[index] for index in pair_view.shown_indices(self) if index < len(self.results)]

    def _draw_table(self) -> None:
        results = self._shown_results()
        letters = [letter.strip() for letter in pair_view.letters(results)]
        first = np.abs(results[0].of(self.y_measure))
        order = np.argsort(-first, axis=None, kind="stable")[:LISTED]
        self._rows = [divmod(int(flat), first.shape[1]) for flat in order if np.isfinite(first.flat[flat])]
        columns: list[dict[str, Any]] = [{"label": "head", "title": "layer.head"}]
        for letter in letters:
            for name in (self.x_measure, self.y_measure):
                columns.append({"label": f"{MEASURES[name]} {letter}".strip(), "align": "right"})
        rows = [[f"{layer}.{head}", *(value for r in results for value in self._values(r, layer, head))]
                for layer, head in self._rows]  # fmt: skip
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = columns, rows
            of_first = " of A" if len(letters) > 1 else ""
            so_far = " so far" if results[0].partial else ""
            self.table.caption = f"Largest by {MEASURES[self.y_measure]}{of_first}{so_far}"

    def _values(self, result: HeadMeasures, layer: int, head: int) -> list[float | None]:
        _, layers, heads = result.values.shape
        if layer >= layers or head >= heads:
            return [None, None]
        values = (float(result.of(name)[layer, head]) for name in (self.x_measure, self.y_measure))
        return [value if np.isfinite(value) else None for value in values]

    def draw_selection(self) -> None:
        for index in pair_view.shown_indices(self):
            if not self.charts[index].message:
                self.charts[index].ring(layer=self.layer, head=self.head)
        self.table.selected = next((i for i, row in enumerate(self._rows) if row == (self.layer, self.head)), -1)

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        results = self._shown_results()
        names = [letter.strip() or "value" for letter in pair_view.letters(results)]
        values = [self._values(result, self.layer, self.head) for result in results]
        words = [["–" if value is None else decimals(value) for value in own] for own in values]
        rows = tuple(
            (MEASURES[name], *(own[i] for own in words)) for i, name in enumerate((self.x_measure, self.y_measure))
        )
        return Description(f"Head {self.layer}.{self.head}", (), ("measure", *names), rows, HEAD_STEPS)

    # what a user does -------------------------------------------------------------------------------------------------

    def _dot_clicked(self, chart: HeadScatter, _: str, __: Any, indices: list[int]) -> None:
        if indices:
            with self.batch_changes():
                self.layer, self.head = (int(chart.source.data[name][indices[0]]) for name in ("layer", "head"))

    def _picked(self, change: Any) -> None:
        if change.new >= 0:
            with self.batch_changes():
                self.layer, self.head = self._rows[change.new]

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        return request.code(self.models, "result.to_frame()")

    def scene(self) -> Scene:
        shown = pair_view.shown_indices(self)
        return stack_scenes([*(self.charts[index].scene() for index in shown), self.table.scene()])
