"""The data set tab: many prompts scored at once, followed and A/B tests, and where in a sentence density lies."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.saliency import SaliencyDatasetResult, saliency_dataset
from interp_widgets.data.case_files import parse_cases
from interp_widgets.data.cases import SaliencyCase, demo_cases
from interp_widgets.figures.saliency import GroupStrips, PositionProfile

from ..base.controls import row, shown_if
from ..views import BokehFigure, Table

if TYPE_CHECKING:
    from .explorer import SaliencyExplorer

PROMPT_SHOWN = 60
"""Characters of a prompt in the table."""


def followed(case: SaliencyCase, response: str) -> bool | None:
    """Whether a written response follows its case's instruction, where the case can tell."""
    return case.follows(response) if case.follows is not None else None


class DatasetTab:
    """Scores of many cases; a click on a row opens it in the explorer."""

    def __init__(self, panel: SaliencyExplorer) -> None:
        self.panel = panel
        self.result: SaliencyDatasetResult | None = None
        self.opened = list(panel.cases)
        self.number = W.BoundedIntText(description="Cases", value=24, min=2, max=2000)
        self.written = W.Checkbox(description="let each model write its responses", value=True, indent=False)
        # The paper leaves out responses under 5 tokens; the demo's one-word answers would nearly all go
        self.shortest = W.BoundedIntText(
            description="Shortest response", value=5 if self.opened else 1, min=1, max=1000,
            tooltip="Cases with fewer response tokens are left out and counted: their density is not stable",
        )  # fmt: skip
        self.upload = W.FileUpload(accept=".json,.jsonl,.csv", description="Open cases")
        self.run_button = panel.on_click(W.Button(description="Score cases"), self.run)
        self.summary = W.HTML("")
        self.table = Table(
            caption="Cases: a click opens one in the explorer", columns=[{"label": "case"}], height=300,
            empty="No case scored yet: press Score cases. Open cases takes a .json, .jsonl or .csv file of your own "
            "(prompt, and where known response, instruction, label).",
        )  # fmt: skip
        self.followed = GroupStrips(None, kind="followed")
        self.pair = GroupStrips(None, kind="models")
        self.profile = PositionProfile()
        # Each in a box of its own: a view that is on the page already cannot be hidden itself
        self.figures = {
            name: W.VBox([BokehFigure(chart.figure, on_error=panel.show_error)])
            for name, chart in (("followed", self.followed), ("models", self.pair), ("profile", self.profile))
        }
        for box in self.figures.values():
            box.add_class("iw-chart")
        self.charts = row(*self.figures.values())
        controls = row(self.run_button, self.number, self.shortest, self.written, self.upload)
        self.box = W.VBox([controls, self.summary, self.table, self.charts])
        self.box.add_class("iw-column")
        for box in (self.number, self.shortest):
            box.add_class("iw-short")
        panel.watch(self.upload, "value", self._uploaded)
        panel.watch(self.table, "selected", self._picked)
        shown_if(self.number, not self.opened)
        shown_if(self.charts, False)  # until there is something to draw

    @property
    def cases(self) -> list[SaliencyCase]:
        """The cases to score: the user's own, else as many of the demo's as asked for."""
        return self.opened or demo_cases(self.number.value)

    def run(self) -> None:
        """Score the cases in the background."""
        panel, cases, written = self.panel, self.cases, self.written.value
        if not any(case.instruction for case in cases):
            raise ValueError("no case says where its instruction is: give each an instruction, words of its prompt")
        options = panel.request().options()
        options |= {"min_response": self.shortest.value, "max_new_tokens": panel.max_new_tokens}
        shape = {"levels": panel.levels, "threshold": panel.density_threshold, "p": panel.p}
        models = panel.models if len(panel.models) > 1 else panel.models[0]

        def work(job: Any) -> SaliencyDatasetResult:
            return saliency_dataset(
                models, cases, **options, **shape, generate=written, judge=followed if written else None,
                progress=job.progress, check=job.check, on_partial=job.partial,
            )  # fmt: skip

        panel.jobs.start(
            work, lambda result: self.show(result, cases), title="Scoring cases", channel="data set",
            on_partial=lambda result: self.show(result, cases),
        )  # fmt: skip

    def show(self, result: SaliencyDatasetResult, cases: Sequence[SaliencyCase]) -> None:
        """Draw a data set's scores."""
        self.result, self._cases = result, list(cases)
        self.followed.update(result, kind="followed")
        self.pair.update(result, kind="models")
        self.profile.update(result)
        for kind in ("followed", "models"):  # where a comparison cannot be made, the lines above say why
            shown_if(self.figures[kind], any(test.kind == kind for test in result.tests))
        shown_if(self.charts, True)
        # One line of plain text each; the names in it may be the user's
        lines = result.summary().splitlines()
        self.summary.value = "<br>".join(escape(line) for line in lines)
        heads: list[dict[str, Any]] = [{"label": "case"}, {"label": "model"}, {"label": "prompt"}]
        heads += [{"label": name, "align": "right"} for name in ("score", "context score", "response tokens")]
        heads += [{"label": "followed"}, {"label": "remark"}]
        rows = [self._row(result, index) for index in range(len(result.names))]
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows

    def _row(self, result: SaliencyDatasetResult, index: int) -> list[Any]:
        case = self._cases[int(result.case[index])]
        label = {1: True, 0: False}.get(int(result.label[index]))
        remark = result.error[index] or ("response too short" if result.dropped[index] else "")
        number = [float(x) if np.isfinite(x) else None for x in (result.score[index], result.context_score[index])]
        model = result.model_names[int(result.model[index])]
        prompt = case.prompt.replace("\n", " ⏎ ")[:PROMPT_SHOWN]
        return [result.names[index], model, prompt, *number, int(result.n_response[index]), label, remark]

    def _picked(self, change: Any) -> None:
        if change.new < 0 or self.result is None:
            return
        case = self._cases[int(self.result.case[change.new])]
        response = self.result.response[change.new] or case.response
        if len(self.panel.models) > 1:
            self.panel.view = "AB"[int(self.result.model[change.new])]
        self.panel.open_case(case.prompt, response, case.instruction)

    def _uploaded(self, change: Any) -> None:
        if change.new:
            file = change.new[0]
            self.opened = parse_cases(bytes(file["content"]), file["name"])
            self.shortest.value = 5
            shown_if(self.number, False)
            self.summary.value = f"{len(self.opened)} cases read from {escape(file['name'])}: press Score cases."
