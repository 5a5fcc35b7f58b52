"""Scores of groups of responses side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import FactorRange, LegendItem, TapTool
from numpy.typing import NDArray

from interp_widgets.analysis.saliency import GroupComparison, SaliencyDatasetResult
from interp_widgets.figures.chart import Chart, empty_source
from interp_widgets.figures.static.charts import legend, legend_room, plot, subtitle_room
from interp_widgets.figures.static.scene import POINT, Scene, Sheet, shorten
from interp_widgets.figures.theme import PALETTE8

_MOST_LINES = 6
PARTS = ("one response", "middle half", "mean and its 95 % interval")
"""What the parts of the chart are called."""


class GroupStrips(Chart):
    """Scores of two groups side by side: every case as a point, the quartiles as a box, the mean with its interval.

    Shows one kind of comparison of a data set: ``followed`` (followed against unfollowed responses, per model) or
    ``models`` (second model against first), with the p-values under the title. A tapped point selects its row of the
    source, whose column `row` is the row of the data set's result.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), Tables 1 and 2.
    """

    EMPTY: ClassVar[str] = "No comparison yet: score a data set with labels or with two models."
    TITLES: ClassVar[dict[str, str]] = {
        "followed": "Instruction score, followed or not",
        "models": "Instruction score of the two models",
    }

    def __init__(
        self, result: SaliencyDatasetResult | None = None, *, kind: Literal["followed", "models"] = "followed"
    ) -> None:
        columns = ("group", "x", "score", "name", "row", "color")
        tips = [("case", "@name"), ("group", "@group"), ("instruction score", "@score{0.000}")]
        self.start(
            "group_strips", self.TITLES["followed"], ("", "instruction score"), columns=columns, tooltips=tips,
            height=280, x_range=FactorRange(factors=[], group_padding=0.6, factor_padding=0.1),
        )  # fmt: skip
        self.figure.xaxis.group_text_font_size = "12px"
        self.hidden = [self.figure.xgrid[0]]
        bounds = ("x", "mean", "low", "high", "quarter", "three", "color")
        self.summary = empty_source("group_summary", bounds)
        wide: dict[str, Any] = {"x": "x", "width": 0.66, "source": self.summary, "fill_color": "color"}
        boxes = self.figure.vbar(
            bottom="quarter", top="three", fill_alpha=0.1, line_color="color", line_alpha=0.4, name="boxes", **wide
        )
        points = self.figure.scatter(
            x="x", y="score", size=6, source=self.source, fill_color="color", fill_alpha=0.65, line_color=None,
            nonselection_fill_alpha=0.2, selection_fill_alpha=1.0, name="points",
        )  # fmt: skip
        band = self.figure.vbar(bottom="low", top="high", fill_alpha=0.4, line_color=None, name="intervals", **wide)
        line = self.figure.vbar(bottom="mean", top="mean", line_color="color", line_width=3, name="means", **wide)
        parts = zip(PARTS, ([points], [boxes], [band, line]), strict=True)
        self.legend([LegendItem(label=label, renderers=renderers) for label, renderers in parts])
        self.figure.add_tools(TapTool(renderers=[points]))
        self.hover(points)
        self.update(result, kind=kind)

    def update(self, result: SaliencyDatasetResult | None, *, kind: Literal["followed", "models"] = "followed") -> None:
        """Show a data set's comparisons of that kind; the reason in words where there is none."""
        if kind not in self.TITLES:
            raise ValueError(f"kind must be followed or models, got {kind!r}")
        self.figure.title.text = self.TITLES[kind]
        tests = [test for test in result.tests if test.kind == kind] if result is not None else []
        if result is None or not tests:
            self.summary.data = {column: [] for column in self.summary.data}
            self.figure.x_range.factors = [""]
            notes = result.notes if result is not None else ()
            self.say(next((note for note in notes if note.startswith("followed") == (kind == "followed")), ""))
            return
        factors: list[tuple[str, str]] = []
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        summary: dict[str, list[Any]] = {column: [] for column in self.summary.data}
        for test in tests:
            where = _where(test)
            for side, members in enumerate(result.rows_of(test)):
                factor = (where, f"{test.names[side]} (n {len(members)})")
                factors.append(factor)
                self._add_group(test, side, members, result, factor, rows, summary)
        self.figure.x_range.factors = factors
        self.summary.data = summary
        self.fill(rows, subtitle=_verdicts(tests))

    def scene(self, *, width: float = 620, height: float = 380) -> Scene:
        """The groups on the screen as a static picture; ValueError where there is no comparison."""
        if self.message:
            raise ValueError(f"there is no comparison to draw: {self.message}")
        texts, points, groups = self.described, dict(self.source.data), dict(self.summary.data)
        factors: list[tuple[str, str]] = list(self.figure.x_range.factors)
        height += legend_room(PARTS, width) + subtitle_room(texts["subtitle"])

        def draw(sheet: Sheet) -> None:
            axes = plot(sheet, width, height, PARTS, **texts)
            at, color = range(len(factors)), groups["color"]
            low, high, quarter, three = (np.asarray(groups[name]) for name in ("low", "high", "quarter", "three"))
            boxes = axes.bar(at, three - quarter, 0.66, bottom=quarter, color=color, alpha=0.2)
            band = axes.bar(at, high - low, 0.66, bottom=low, color=color, alpha=0.4)
            axes.hlines(groups["mean"], np.subtract(at, 0.33), np.add(at, 0.33), colors=color, lw=3 * POINT)
            x = [factors.index((where, group)) + offset for where, group, offset in points["x"]]
            dots = axes.scatter(x, points["score"], s=(5 * POINT) ** 2, c=points["color"], alpha=0.65, lw=0)
            tips = zip(points["name"], points["group"], points["score"], strict=True)
            sheet.tip(dots, [f"{name}, {group}: {score:.3f}" for name, group, score in tips])
            room = (width - 80) / len(factors)
            labels = ["\n".join(shorten(part, room, 11) for part in reversed(factor)) for factor in factors]
            axes.set_xticks(at, labels)
            axes.set_xlim(-0.6, len(factors) - 0.4)
            legend(axes, list(zip(PARTS, (dots, boxes, band), strict=True)), width)

        return Scene(width, height, draw, title=texts["title"])

    @staticmethod
    def _add_group(
        test: GroupComparison,
        side: int,
        members: Sequence[int],
        result: SaliencyDatasetResult,
        factor: tuple[str, str],
        rows: dict[str, list[Any]],
        summary: dict[str, list[Any]],
    ) -> None:
        scores, color = np.asarray(test.values[side]), PALETTE8[side]
        rows["x"] += [(*factor, float(offset)) for offset in _spread(scores)]
        rows["score"] += scores.tolist()
        rows["group"] += [factor[1]] * len(scores)
        rows["name"] += [result.names[i] for i in members]
        rows["row"] += list(members)
        rows["color"] += [color] * len(scores)
        quarters = np.quantile(scores, [0.25, 0.75])
        values = (factor, test.mean[side], *test.interval[side], *quarters, color)
        for column, value in zip(summary, values, strict=True):
            summary[column].append(value)


def _verdicts(tests: Sequence[GroupComparison]) -> str:
    """The comparisons in numbers and the side of their p-values: a few lines for one, a short one each for several."""
    if len(tests) == 1:
        test = tests[0]
        p_values = f"Welch p {test.welch_p:.2g} · permutation p {test.permutation_p:.2g} ({test.claim})"
        p_values += f"\nSpearman p {test.spearman_p:.2g} (two-sided)" if test.kind == "followed" else ""
        return f"{_difference(test)} · d {test.cohens_d:.2f}\n{p_values}"
    lines = []
    for test in tests[:_MOST_LINES]:
        p_value = f"Welch p {test.welch_p:.2g}" if test.holm_p is None else f"Holm p {test.holm_p:.2g}"
        lines.append(f"{_where(test)}: {_difference(test)} · {p_value}")
    return "\n".join([*lines, f"p-values {tests[0].claim}"])


def _where(test: GroupComparison) -> str:
    return " · ".join(filter(None, (test.model, "all cases" if test.group == "all" else test.group)))


def _difference(test: GroupComparison) -> str:
    low, high = test.difference_interval
    return f"difference {test.difference:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "\u2212")


def _spread(scores: NDArray[np.float64], width: float = 0.3) -> NDArray[np.float64]:
    """Sideways places for points of a strip, always the same: neighbours in score stand apart."""
    offsets = np.empty(len(scores))
    offsets[np.argsort(scores, kind="stable")] = (np.arange(len(scores)) * 0.6180339887) % 1
    return (2 * offsets - 1) * width
