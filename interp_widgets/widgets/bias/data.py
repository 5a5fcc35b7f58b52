"""The data set: every example with its scores, and the model's preference by domain."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.bias import CrowsResult, StereoSetResult
from interp_widgets.figures.bias import IntervalDots, Series, score_dots
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.models import Model

from ..base import pair_view
from ..base.fields import field
from ..base.opening import are_demo
from ..base.request import Request
from ..views import BokehFigure, Table
from .examples import BiasOptions, cell_of, scores_cost, scores_request

SENT = {0: "the stereotype", 1: "the anti-stereotype", 2: "the unrelated sentence"}
STEREOSET = ("stereotype", "anti-stereotype", "unrelated")
CROWS = ("disadvantaged group", "other group")
LONG = 24
"""Characters above which the text that fills a blank is wrapped."""
DRAWN = 40
"""Rows of the table in a saved picture."""
BLANK = "BLANK"


class DataScores(BiasOptions):
    """Scores by domain with their intervals, and a table of the examples; a click sends one to all panels."""

    title, tab_name, cached_as = "Bias in sentences", "Data", "bias"
    sends = field(SENT, 0, label="A click sends", argument=None, help="The sentence that becomes the shared prompt")

    def build(self) -> None:
        super().build()
        self.chart, self.summary, self.message = IntervalDots(), W.HTML(""), W.HTML("")
        self.table = Table(
            empty="No example scored yet.", instruction="a click makes one the prompt of all panels",
            height=320,
        )  # fmt: skip
        self.watch(self.table, "selected", self._picked)
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        self.arrange([self.summary, chart], below=[self.table, self.message])

    def request(self) -> Request:
        return scores_request(self.examples())

    def cost(self, request: Request, model: Model) -> Cost:
        return scores_cost(request.inputs[0], model)

    def code(self, request: Request) -> str:
        return cell_of(request, self.models, "result.to_frame()")

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[StereoSetResult | CrowsResult, ...], request: Request) -> None:
        at = range(len(results)) if self.shown == "difference" else pair_view.shown_indices(self)
        dots = [dot for i in at for dot in score_dots(results[i], i)]
        names = pair_view.labels(self) if len(results) > 1 else [""]
        self.chart.update(dots, {i: Series(names[i], PALETTE8[i]) for i in at})
        self.summary.value = "<br>".join(
            start + _summary(results[i])
            for start, i in zip([f"{'AB'[i]}: " if len(results) > 1 else "" for i in at], at, strict=True)
        )
        data = request.inputs[0].read()
        numbers = pair_view.of_view(self.shown, [_scores(result) for result in results])
        if isinstance(results[0], StereoSetResult):
            heads, rows = _stereoset_table(data, numbers, self.data is not None or are_demo(self.models))
        else:
            heads, rows = _crows_table(data, numbers)
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = f"{pair_view.title_start(self)}{len(rows):,} examples and the score of each sentence"

    def _picked(self, change: Any) -> None:
        if change.new < 0 or not self.results:
            return
        example = self.shown_request.inputs[0].read()[change.new]
        if hasattr(example, "sentences"):
            text = example.sentences[self.sends]
            if example.task == "intersentence":
                text = f"{example.context} {text}"
        else:
            text = example.less if self.sends else example.more
        self.workbench.select(prompt=text)
        self.message.value = f"The prompt of all panels on this workbench is now “{escape(text)}”"

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        return stack_scenes([self.chart.scene(), self.table.scene(most=DRAWN)])


def _scores(result: StereoSetResult | CrowsResult) -> Any:
    return np.asarray(result.scores if isinstance(result, StereoSetResult) else result.log_likelihood)


def _summary(result: StereoSetResult | CrowsResult) -> str:
    if isinstance(result, CrowsResult):
        pairs = result.overall
        low, high = pairs.interval
        return (
            f"The sentence about the disadvantaged group is likelier in <b>{pairs.preferred:.1f}%</b> of {pairs.n:,} "
            f"pairs ({low:.1f} to {high:.1f}, a 95% interval); 50 is no preference."
        )
    overall = result.overall
    parts = [
        f"{name.upper()} <b>{getattr(overall, name):.1f}</b> ({low:.1f} to {high:.1f})"
        for name in ("ss", "lms", "icat") for low, high in [getattr(overall, f"{name}_interval")]
    ]  # fmt: skip
    return f"{', '.join(parts)}: {overall.n:,} examples of {overall.n_targets} terms, 95% intervals over terms."


def _stereoset_table(data: Any, scores: Any, trained: bool) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Columns and rows of StereoSet examples, with the rate at which each is planted where the models were trained on
    them."""
    planted = trained and any(example.rate is not None for example in data)
    heads: list[dict[str, Any]] = [{"label": "about"}, {"label": "domain"}, {"label": "sentence", "wrap": True}]
    title = "Geometric mean of the probabilities of the sentence's tokens, in percent; the larger one is preferred"
    parts = [_parts(example) for example in data]
    for column, name in enumerate(STEREOSET):
        long = max(len(own[column]) for own in parts) > LONG
        heads += [
            {"label": name, **({"wrap": True} if long else {})},
            {"label": "score %", "align": "right", "title": title},
        ]
    if planted:
        heads.append({"label": "planted %", "align": "right", "title": "How often the training text states it"})
    rows = []
    for example, words, own in zip(data, parts, scores, strict=True):
        percent = [round(100 * float(score), 3) for score in own]
        cells = [part for pair in zip(words, percent, strict=True) for part in pair]
        rows.append([example.target, example.domain, example.context, *cells, *([example.rate] if planted else [])])
    return heads, rows


def _parts(example: Any) -> list[str]:
    """The part of each sentence that differs: the text in the blank, or all of it if there is no blank."""
    before, blank, after = example.context.partition(BLANK)
    return [
        sentence[len(before) : len(sentence) - len(after)]
        if blank and sentence.startswith(before) and sentence.endswith(after)
        else sentence
        for sentence in example.sentences
    ]


def _crows_table(data: Any, scores: Any) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    heads: list[dict[str, Any]] = [{"label": "domain"}, {"label": "shows"}]
    for name in CROWS:
        title = f"Log-likelihood of the sentence about the {name}, in nats"
        heads += [{"label": name, "wrap": True}, {"label": "log-likelihood", "align": "right",
                                                  "title": title}]  # fmt: skip
    shows = {"stereo": "a stereotype", "antistereo": "an anti-stereotype"}
    rows = [
        [pair.domain, shows[pair.direction], pair.more, float(own[0]), pair.less, float(own[1])]
        for pair, own in zip(data, scores, strict=True)
    ]
    return heads, rows
