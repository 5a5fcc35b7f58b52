"""The data set explorer: one analysis on every row of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.figures.labels import number
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.figures.strips import Strip, Strips
from interp_widgets.models import Model
from interp_widgets.sweeps.result import SweepResult
from interp_widgets.sweeps.running import sweep

from ..base import pair_view
from ..base.code import cell
from ..base.controls import row
from ..base.description import Description
from ..base.fields import Bounds, Incomplete, field
from ..base.guard import guarded
from ..base.jobs import Derived
from ..base.opening import are_demo
from ..base.panel import Panel
from ..base.request import Request, model_variables, suffixes
from ..views import BokehFigure, Table
from .analyses import ANALYSES, ChosenAnalysis
from .rows import PROMPT, TARGET, DataRows, Rows, columns_of, first_of, grouping_columns, uploaded_rows
from .tables import case_table, readable, same_rows, statistics_of, strips_of, verdict

SAMPLED = 8
"""Rows whose cost stands for that of all."""
DRAWN = 40
"""Rows of a table in a saved picture."""
SCREEN_HEIGHT = 190
"""Pixels of the chart on a workbench's screen."""
NONE = "none"


class DataSetExplorer(Panel):
    """An analysis of the other panels on every row of a data set: numbers per row, compared, with intervals.

    At which layer a prediction is settled, which part it needs, which token it depends on: for forty prompts or ten
    thousand. The chart shows one of the numbers by model or by group. The first table lists all of them with 95%
    bootstrap intervals; two models or groups are compared by a permutation test (two-sided, Holm over the numbers) and
    Cohen's d. A click on a row opens that case in all panels on the same workbench.

    ``DataSetExplorer(model)``, ``(base, tuned)``, ``(pair)`` or ``(workbench)``. `rows` takes what `sweep` takes: a
    list of rows or prompts, a DataFrame, a data set of Hugging Face or a file; without it, some facts.
    Every trait below is a keyword too. `run()` computes and returns the :class:`SweepResult` (a pair of them with two
    models).

    Example:
        >>> panel = DataSetExplorer(model, rows=["The Eiffel Tower is in the city of", "The capital of Italy is"])
        >>> panel.run().texts("top_token")
        (' Paris', ' Rome')
        >>> panel.close()
    """

    title = "Data set"
    study = field(
        {name: one.label for name, one in ANALYSES.items()}, "lens", label="Analysis", width="grow",
        help="Runs on every row",
    )  # fmt: skip
    rows = field(
        DataRows(), personal=lambda value: not isinstance(value, tuple | list),  # the name of a file
        control=lambda _: W.FileUpload(
            accept=".csv,.json,.jsonl,.parquet,.txt", description="Open a file",
            tooltip="Rows with a column of prompts, or a .txt file with a prompt per line",
        ),
    )  # fmt: skip
    """The rows to analyse; without any, facts as an example."""
    row_count = field(
        Annotated[int, Bounds(2, 2000)], 40, label="Rows", width="short",
        help="Number of example facts", shown_if=lambda panel: not panel.rows,
    )  # fmt: skip
    prompt_column = field(
        str, "", label="Prompts in", more=True, control=lambda _: W.Dropdown(description="Prompts in")
    )
    target_column = field(
        str, "", label="Answers in", more=True,
        control=lambda _: W.Dropdown(
            description="Answers in", tooltip="The answer to analyse; none: the likeliest next token"
        ),
    )  # fmt: skip
    subject_column = field(
        str, "", label="Subjects in", more=True, control=lambda _: W.Dropdown(description="Subjects in"),
        shown_if=lambda panel: ANALYSES[panel.study].needs_subject,
    )  # fmt: skip
    group = field(
        str, "", label="Compare by", redraws=True,
        control=lambda _: W.Dropdown(description="Compare by", tooltip="A column whose values are the groups"),
    )  # fmt: skip
    measure = field(
        str, "", label="Show", redraws=True,
        control=lambda _: W.Dropdown(description="Show", tooltip="The number in the chart"),
    )  # fmt: skip

    def build(self) -> None:
        self._sizes: tuple[int, ...] = ()
        first = self.controls.row("study", "row_count", "rows")
        second = self.controls.row("measure", "group")
        fold = self.controls.fold(first, [self.controls.row("prompt_column", "target_column", "subject_column")])
        self.inputs.children = [first, fold, second]
        self.read = W.HTML("")
        self.strips = Strips("data_set", "", "")
        self.strips.clear("No row analysed yet: press Run.")
        figure = BokehFigure(self.strips.figure, on_error=self.show_error)
        self.figure = W.VBox([figure])
        self.summary = Table(empty="No statistics yet.", height=300)
        self.table = Table(
            empty="No row analysed yet: press Run. “Open a file” reads rows with a column of prompts (.csv, .json, "
            ".jsonl, .parquet), or a prompt per line (.txt).",
            instruction="a click opens one in the panels on this workbench", height=320,
        )  # fmt: skip
        self.opened = W.HTML("")
        for text in (self.read, self.opened):
            text.add_class("iw-chart")
            text.add_class("iw-small")
        if self.screen is not None:  # where room is short
            self.strips.figure.height = SCREEN_HEIGHT
            self.table.add_class("iw-tall")
            self.plot.children = [self.figure, self.table, self.opened]
            self.details.children = [self.read, self.summary]
        else:
            side = W.VBox([self.summary])
            for box, width in ((self.figure, 420), (side, 560)):
                box.layout.flex, box.layout.min_width = f"1 1 {width}px", "0"
            charts = row(self.figure, side)
            charts.layout.align_items = "flex-start"
            self.plot.children = [self.read, charts, self.table, self.opened]
        self._offer_columns()
        self._offer("measure", [], self.measure)
        for name in ("prompt_column", "target_column", "subject_column", "group", "measure"):
            self.bind(self.controls[name], name)
        self.watch(self.controls["rows"], "value", self._uploaded)
        self.watch(self, ["rows", "row_count"], lambda _: self._offer_columns())
        self.watch(self.table, "selected", self._picked)
        self.strips.source.selected.on_change("indices", guarded(self, self._tapped))
        self._compared: Any = None
        self._statistics = Derived(self, self._draw_statistics, title="Comparing", channel="statistics", quiet=True)

    # the request ------------------------------------------------------------------------------------------------------

    def _offer_columns(self) -> None:
        """Offer the columns of these rows, and choose those with the usual names."""
        rows = self.rows_asked_for().rows
        columns = columns_of(rows)
        usual = {
            "prompt_column": first_of(PROMPT, columns) or next(iter(columns), ""),
            "target_column": first_of(TARGET, columns),
            "subject_column": first_of(("subject",), columns),
        }
        for name, chosen in usual.items():
            self._offer(name, columns, chosen, none=name == "target_column")
        groups = grouping_columns(rows)
        self._offer("group", groups, "wording" if not self.rows and "wording" in groups else "", none=True)
        many = ""
        if not self.rows:
            trained = " of the demo world: half in wordings the models were trained on, half held out"
            many = trained if are_demo(self.models) else " with facts about places, people and things, as an example"
        self.read.value = f"{len(rows):,} rows{many}."

    def _offer(self, name: str, values: Sequence[str], usual: str, *, none: bool = False) -> None:
        """Offer values in a list; the chosen one stays chosen if it is among them, else the usual one is, which is
        offered too."""
        chosen = getattr(self, name) if getattr(self, name) in values else usual
        values = [*values, *([chosen] if chosen and chosen not in values else [])]
        with self.batch_changes():
            empty = [(NONE, "")] if none or not chosen else []
            self.controls[name].options = [*empty, *((readable(value), value) for value in values)]
            setattr(self, name, chosen)
            self.controls[name].value = chosen

    def _uploaded(self, change: Any) -> None:
        if change.new:
            file = change.new[0]
            self.rows = uploaded_rows(bytes(file["content"]), file["name"])

    def request(self) -> Request:
        analysis = ANALYSES[self.study]
        if not self.prompt_column:
            raise Incomplete("rows", "no row has a text: open a file with a column of prompts")
        if analysis.needs_subject and not self.subject_column:
            raise Incomplete("study", "causal tracing needs a column with the words of the prompt to corrupt")
        subject = self.subject_column if analysis.needs_subject else ""
        chosen = ChosenAnalysis(self.study, self.prompt_column, self.target_column, subject)
        return Request.of(analysis.function, {"chosen": chosen}, self.rows_asked_for())

    def rows_asked_for(self) -> Rows:
        """The user's rows or the examples."""
        return Rows.of(self.rows, self.row_count, are_demo(self.models))

    def compute(self, request: Request, model: Model, **reports: Any) -> SweepResult:
        chosen: ChosenAnalysis = dict(request.arguments)["chosen"]
        result = sweep(chosen.on(model), request.inputs[0].rows, **reports)
        if result.failed.all():
            raise ValueError(f"no row has a result; row 0: {result.errors[0]}")
        return result

    def cost(self, request: Request, model: Model) -> Cost:
        chosen: ChosenAnalysis = dict(request.arguments)["chosen"]
        rows, analysis = request.inputs[0].rows, ANALYSES[chosen.study]
        known = [row for row in rows if isinstance(row.get(chosen.prompt), str)][:SAMPLED]
        costs = [analysis.cost(model, len(model.tokens(row[chosen.prompt]))) for row in known if row[chosen.prompt]]
        flops = sum(cost.flops for cost in costs) / max(1, len(costs)) * len(rows)
        return Cost(flops, max((cost.bytes for cost in costs), default=0))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[SweepResult, ...], request: Request) -> None:
        names = results[0].number_measures
        if self.measure not in names:
            with self.without_rerun():
                self._offer("measure", names, next(iter(names), ""))
        elif tuple(value for _, value in self.controls["measure"].options) != names:
            with self.without_rerun():
                self._offer("measure", names, self.measure)
        chosen = dict(request.arguments)["chosen"]
        shown = pair_view.shown_indices(self)
        heads, rows = case_table(same_rows([results[i] for i in shown]), request.inputs[0].rows, chosen)
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            failed = max(results[i].n_failed for i in shown)
            none = f", {failed:,} without a result" if failed else ""
            self.table.caption = f"{pair_view.title_start(self)}{len(rows):,} rows in the order of the data{none}"
        with self.summary.hold_sync():
            self.summary.rows = []
        self._draw_strips("")
        view, group = self.shown, self.group
        self._compared = (tuple(map(id, results)), view, group)
        self._statistics.ask(self._compared, lambda _: statistics_of(results, view, group))
        self._draw_statistics()

    def _draw_statistics(self) -> None:
        found = self._statistics.of(self._compared)
        if found is None:
            return
        with self.summary.hold_sync():
            self.summary.rows = []
            self.summary.caption, self.summary.columns, self.summary.rows = found.caption, found.columns, found.rows
        self._draw_strips("" if found.comparison is None else verdict(found.comparison, self.measure))

    def _draw_strips(self, subtitle: str) -> None:
        """The chosen number, a strip per model and group."""
        if not self.measure:
            return self.strips.clear("No row has a number: see the errors in the table.")
        shown, labels = pair_view.shown_indices(self), pair_view.labels(self)
        strips: list[Strip] = []
        for index in shown:
            result = self.results[index]
            strips += strips_of(result, self.measure, self.group, labels[index], index, both=len(shown) > 1)
        if not strips:
            return self.strips.clear("No row has this number: see the errors in the table.")
        start = "" if len(shown) > 1 else pair_view.title_start(self)
        self.strips.figure.title.text = f"{start}{readable(self.measure)}"
        self.strips.figure.yaxis[0].axis_label = readable(self.measure)
        return self.strips.show(strips, subtitle=subtitle)

    def describe_selection(self) -> Description | None:
        if not self.results or not self.measure:
            return None
        lines = []
        for start, result in zip(pair_view.all_starts(self.results), self.results, strict=True):
            known = result.numbers(self.measure)[np.isfinite(result.numbers(self.measure))]
            if len(known):
                lines.append(
                    f"{start}{readable(self.measure)} {number(known.mean())} on average over {len(known)} rows"
                )
        return Description(self.title, tuple(lines))

    # the selected case ------------------------------------------------------------------------------------------------

    def _tapped(self, _: str, __: list[int], chosen: list[int]) -> None:
        if chosen:
            self.table.selected = int(self.strips.source.data["row"][chosen[0]])

    def _picked(self, change: Any) -> None:
        """Make a row the prediction of all panels on the workbench."""
        if change.new < 0 or not self.results:
            return
        chosen: ChosenAnalysis = dict(self.shown_request.arguments)["chosen"]
        prompt, target, _ = chosen.parts(self.shown_request.inputs[0].rows[change.new])
        self.workbench.select(prompt=prompt, response=target, response_token=0 if target else -1, prompt_token=-1)
        about = f" with its answer “{escape(target.strip())}”" if target else ""
        self.opened.value = f"Row {change.new} is now the prompt of all panels on this workbench{about}."

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        chosen: ChosenAnalysis = dict(request.arguments)["chosen"]
        rows, analysis = request.inputs[0], ANALYSES[chosen.study]
        demo = [] if rows.own else ["demo_prompts"]
        lines = ["rows = rows  # the rows of the widget" if rows.own else f"rows = demo_prompts({rows.count})"]
        names = model_variables(self.models)
        for name, suffix in zip(names, suffixes(self.models), strict=True):
            lines += ["", *analysis.lines(chosen.columns, f"ask{suffix}", name), ""]
            lines.append(f"result{suffix} = sweep(ask{suffix}, rows)")
        compared = len(names) > 1
        lines.append("compare_sweeps(result_b, result_a).to_frame()" if compared else "result.summary()")
        functions = [*demo, "sweep", analysis.function.__name__, *(["compare_sweeps"] if compared else [])]
        return cell(functions, self.models, lines)

    def scene(self) -> Scene:
        parts = [self.summary.scene(), self.table.scene(most=DRAWN)]
        return stack_scenes(([] if self.strips.message else [self.strips.scene()]) + parts, title=self.title)
