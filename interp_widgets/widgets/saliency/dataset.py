"""The data set: many prompts scored together, followed and A/B tests, and density by position in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.saliency import SaliencyDatasetResult, saliency_cost, saliency_dataset
from interp_widgets.data.case_files import parse_cases
from interp_widgets.data.cases import SaliencyCase, demo_cases
from interp_widgets.figures.saliency import GroupStrips, PositionProfile
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base.code import call, cell
from ..base.controls import ListOf, instruction, row, shown_if
from ..base.fields import Bounds, field, variant
from ..base.request import Request, model_variables
from ..views import BokehFigure, Table
from .attribution import TARGET_LABELS, DensityPanel, ResponsePanel

PROMPT_SHOWN = 48
"""Most characters of a prompt in the table."""
SHORTEST = 5
"""Minimum response length in the paper, in tokens."""
COLUMNS = ("score", "score without floor", "context score", "response tokens", "under floor")
"""Numeric columns of the table of cases."""
SAMPLED = 8
"""Number of cases from which the cost of all is estimated."""


@dataclass(frozen=True)
class Cases:
    """The cases to score: the user's own, else this many of the demo's."""

    own: tuple[SaliencyCase, ...]
    count: int

    @property
    def cases(self) -> list[SaliencyCase]:
        """The list of cases."""
        return list(self.own) or demo_cases(self.count)


def followed(case: SaliencyCase, response: str) -> bool | None:
    """Whether a generated response follows its case's instruction; None if the case cannot tell."""
    return case.follows(response) if case.follows is not None else None


class DatasetSaliency(DensityPanel):
    """Instruction scores of many cases; a click on a row opens its case in the map."""

    title, tab_name = "Saliency of a data set", "Data set"
    manual_run = True
    cases = field(
        ListOf(SaliencyCase),
        control=lambda _: W.FileUpload(accept=".json,.jsonl,.csv", description="Open cases"),
    )  # fmt: skip
    """The list of :class:`SaliencyCase` to score; by default the demo's."""
    case_count = field(
        Annotated[int, Bounds(2, 2000)], 24, label="Cases", width="short",
        help="How many of the demo's cases to score", shown_if=lambda panel: not panel.cases,
    )  # fmt: skip
    # The paper leaves out responses under 5 tokens, which would be nearly all of the demo's one-word answers
    min_response = field(
        Annotated[int, Bounds(1, 1000)], 1, label="Shortest response", width="short",
        help="Cases with fewer response tokens are left out and counted: their density is unstable",
    )  # fmt: skip
    min_importance = variant(DensityPanel.min_importance, redraws=False)
    generate = field(
        bool,
        True,
        label="let each model write its responses",
        help="Generate new responses instead of using those of the cases",
    )
    max_new_tokens = variant(ResponsePanel.max_new_tokens, argument="", shown_if=lambda panel: panel.writes)
    levels = variant(DensityPanel.levels, redraws=False)
    density_threshold = variant(DensityPanel.density_threshold, redraws=False)
    p = variant(DensityPanel.p, redraws=False)

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return {"min_response": SHORTEST} if "cases" in keywords and "min_response" not in keywords else {}

    def build(self) -> None:
        super().build()
        first = self.controls.row("case_count", "min_response", "generate", "cases")
        scoring = self.controls.row("levels", "density_threshold", "p", "min_importance")
        self.inputs.children = [first, self.controls.fold(first, [scoring])]
        self.summary = W.HTML("")
        self.table = Table(
            caption="Cases", instruction="a click opens one in the explorer", columns=[{"label": "case"}], height=160,
            empty="No case scored yet: press Run. Open cases takes a .json, .jsonl or .csv file of your own "
            "(prompt, and where known response, instruction, label).",
        )  # fmt: skip
        self.followed = GroupStrips(None, kind="followed")
        self.pair = GroupStrips(None, kind="models")
        self.profile = PositionProfile()
        # Each in its own box: a view that is already on the page cannot be hidden itself
        self.figures = {
            name: W.VBox([BokehFigure(chart.figure, on_error=self.show_error)])
            for name, chart in (("followed", self.followed), ("models", self.pair), ("profile", self.profile))
        }
        for box in self.figures.values():
            box.add_class("iw-chart")
            shown_if(box, False)  # until there is something to draw
        for name in ("iw-chart", "iw-small"):
            self.summary.add_class(name)
        charts = row(*self.figures.values(), self.summary)
        charts.layout.align_items = "flex-start"
        self.plot.children = [charts, self.table]
        self.watch(self.controls["cases"], "value", self._uploaded)
        self.watch(self.table, "selected", self._picked)

    # what the panel asks for ------------------------------------------------------------------------------------------

    @property
    def request_models(self) -> tuple[Any, ...]:
        return self.models[:1]  # one result compares both

    def depends_on(self, request: Request, model: Model) -> tuple[Any, ...]:
        return self.models[1:]

    @property
    def writes(self) -> bool:
        """Whether models generate responses: all of them, or those that cases lack."""
        return self.generate or any(not case.response for case in self.cases)

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if name not in ("cases", "case_count")}

    def request(self) -> Request:
        self.require()
        cases = Cases(tuple(self.cases), 0 if self.cases else self.case_count)
        if not any(case.instruction for case in cases.cases):
            raise ValueError("no case has an instruction: give each one, as words of its prompt")
        return Request.of(saliency_dataset, self.arguments(), cases)

    def compute(self, request: Request, model: Model, **reports: Any) -> SaliencyDatasetResult:
        options = dict(request.arguments)
        models = self.models if len(self.models) > 1 else model
        judge = followed if options["generate"] else None
        return saliency_dataset(models, request.inputs[0].cases, **options, judge=judge, **reports)

    def cost(self, request: Request, model: Model) -> Cost:
        options, cases = dict(request.arguments), request.inputs[0].cases
        costs = []
        for case in cases[:SAMPLED]:
            written = options["generate"] or not case.response
            for each in self.models:
                after = options["max_new_tokens"] if written else len(each.tokens(case.response, prepend_bos=False))
                length = len(each.tokens(case.prompt))
                kept = {name: options[name] for name in ("steps", "draws") if name in options}
                costs.append(saliency_cost(each, length, after, options["method"], **kept))
        flops = sum(cost.flops for cost in costs) * len(cases) / len(cases[:SAMPLED])
        return Cost(flops, max(cost.bytes for cost in costs))

    def _uploaded(self, change: Any) -> None:
        if change.new:
            file = change.new[0]
            cases = parse_cases(bytes(file["content"]), file["name"])
            with self.batch_changes():
                self.cases, self.min_response = cases, SHORTEST
            self.summary.value = f"{len(cases)} cases read from {escape(file['name'])}{instruction(': press Run')}."

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[SaliencyDatasetResult, ...], request: Request) -> None:
        result, cases = results[0], request.inputs[0].cases
        self.followed.update(result, kind="followed")
        self.pair.update(result, kind="models")
        self.profile.update(result)
        for kind in ("followed", "models"):  # if a comparison cannot be made, the text beside says why
            shown_if(self.figures[kind], any(test.kind == kind for test in result.tests))
        shown_if(self.figures["profile"], True)
        # plain text, escaped, since names in it may be the user's
        target = dict(request.arguments)["target"]
        made = f"importance for the {TARGET_LABELS[target]}"
        paper = "" if target == "probability" else "; the paper's is for the probability"
        self.summary.value = "<br>".join(escape(line) for line in [made + paper, *result.summary().splitlines()])
        heads: list[dict[str, Any]] = [{"label": "case"}, {"label": "model"}, {"label": "prompt"}]
        heads += [{"label": name, "align": "right"} for name in COLUMNS]
        heads += [{"label": "followed"}, {"label": "remark"}]
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns = heads
            self.table.rows = [_row(result, index, cases) for index in range(len(result.names))]

    def _picked(self, change: Any) -> None:
        """Open a case in the map, with the response of that row's model."""
        if change.new < 0 or not self.results or self.stack is None:
            return
        result: SaliencyDatasetResult = self.results[0]
        case = self.shown_request.inputs[0].cases[int(result.case[change.new])]
        response = result.response[change.new] or case.response or ""
        view = {"view": "AB"[int(result.model[change.new])]} if len(self.models) > 1 else {}
        self.stack.open_tab("map", prompt=case.prompt, response=response, instruction=case.instruction, **view)

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        cases, names = request.inputs[0], model_variables(self.models)
        demo = [] if cases.own else ["demo_cases"]
        line = f"cases = demo_cases({cases.count})" if demo else "cases = cases  # those that the widget scores"
        options = [f"{name}={value!r}" for name, value in request.arguments]
        if dict(request.arguments)["generate"]:
            options.append("judge=lambda case, response: case.follows(response) if case.follows else None")
        models = names[0] if len(names) == 1 else f"({', '.join(names)})"
        lines = [line, f"result = {call('saliency_dataset', models, 'cases', *options)}", "print(result.summary())"]
        return cell([*demo, "saliency_dataset"], self.models, lines)

    def scene(self) -> Scene:
        charts = [chart for chart in (self.followed, self.pair, self.profile) if not chart.message]
        if not charts:
            raise ValueError(
                "there is no picture to save: these cases allow no comparison and no profile over sentences"
            )
        return stack_scenes([chart.scene() for chart in charts], columns=2, title=self.title)


def _row(result: SaliencyDatasetResult, index: int, cases: list[SaliencyCase]) -> list[Any]:
    case = cases[int(result.case[index])]
    label = {1: True, 0: False}.get(int(result.label[index]))
    short = "all under the floor" if result.all_under_floor[index] else "response too short"
    remark = result.error[index] or (short if result.dropped[index] else "")
    numbers = (result.score, result.score if result.paper_score is None else result.paper_score, result.context_score)
    scores = [float(of[index]) if np.isfinite(of[index]) else None for of in numbers]
    under = 0 if result.n_under_floor is None else int(result.n_under_floor[index])
    model = result.model_names[int(result.model[index])]
    prompt = case.prompt.replace("\n", " ⏎ ")[:PROMPT_SHOWN]
    return [result.names[index], model, prompt, *scores, int(result.n_response[index]), under, label, remark]
