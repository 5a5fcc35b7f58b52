"""Numbers of groups side by side: a point per case, a box for the middle half, the mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from bokeh.models import FactorRange, LegendItem, TapTool
from numpy.typing import ArrayLike, NDArray

from interp_widgets.figures.chart import DrawnChart, empty_source
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet, shorten
from interp_widgets.figures.theme import PALETTE8


@dataclass(frozen=True)
class Strip:
    """One group."""

    where: str
    """Common label of several strips, written below them; may be empty."""
    name: str
    values: ArrayLike
    """(cases,) without NaN."""
    cases: Sequence[str]
    """Name of each case."""
    rows: Sequence[int]
    """Table row of each case."""
    mean: float
    interval: Sequence[float]
    """95% interval of the mean."""
    color: str = PALETTE8[0]


class Strips(DrawnChart):
    """Groups of numbers side by side; a tapped point selects its row of the source, whose column `row` is the case."""

    SIZE: ClassVar[tuple[int, int]] = (620, 380)
    PARTS: ClassVar[tuple[str, ...]] = ("one case", "middle half", "mean and its 95% interval")
    """Names of the parts of the chart."""

    def __init__(self, name: str, title: str, measure: str) -> None:
        columns = ("group", "x", "score", "name", "row", "color")
        tips = [("case", "@name"), ("group", "@group"), (measure, "@score{0.000}")]
        self.start(
            name, title, ("", measure), columns=columns, tooltips=tips,
            height=280, x_range=FactorRange(factors=[], group_padding=0.6, factor_padding=0.1),
        )  # fmt: skip
        self.figure.xaxis.group_text_font_size = "12px"
        self.hidden = [self.figure.xgrid[0]]
        bounds = ("x", "mean", "low", "high", "quarter", "three", "color")
        self.summary = empty_source(f"{name}_summary", bounds)
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
        parts = zip(self.PARTS, ([points], [boxes], [band, line]), strict=True)
        self.legend([LegendItem(label=label, renderers=renderers) for label, renderers in parts])
        self.figure.add_tools(TapTool(renderers=[points]))
        self.hover(points)

    def clear(self, reason: str = "") -> None:
        """Clear the chart and show the reason."""
        self.summary.data = {column: [] for column in self.summary.data}
        self.figure.x_range.factors = [""]
        self.say(reason)

    def show(self, strips: Sequence[Strip], *, subtitle: str = "") -> None:
        """Show these groups."""
        factors: list[tuple[str, str]] = []
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        summary: dict[str, list[Any]] = {column: [] for column in self.summary.data}
        for strip in strips:
            scores = np.asarray(strip.values, dtype=np.float64)
            factor = (strip.where, f"{strip.name} (n {len(scores)})")
            factors.append(factor)
            rows["x"] += [(*factor, float(offset)) for offset in _spread(scores)]
            rows["score"] += scores.tolist()
            rows["group"] += [factor[1]] * len(scores)
            rows["name"] += strip.cases
            rows["row"] += strip.rows
            rows["color"] += [strip.color] * len(scores)
            quarters = np.quantile(scores, [0.25, 0.75])
            values = (factor, strip.mean, *strip.interval, *quarters, strip.color)
            for column, value in zip(summary, values, strict=True):
                summary[column].append(value)
        self.figure.x_range.factors = factors
        self.summary.data = summary
        self.fill(rows, subtitle=subtitle)

    def drawing(self) -> Drawing:
        points, groups = dict(self.source.data), dict(self.summary.data)
        factors: list[tuple[str, str]] = list(self.figure.x_range.factors)

        def draw(sheet: Sheet, axes: Any) -> Named:
            at, color = range(len(factors)), groups["color"]
            low, high, quarter, three = (np.asarray(groups[name]) for name in ("low", "high", "quarter", "three"))
            boxes = axes.bar(at, three - quarter, 0.66, bottom=quarter, color=color, alpha=0.2)
            band = axes.bar(at, high - low, 0.66, bottom=low, color=color, alpha=0.4)
            axes.hlines(groups["mean"], np.subtract(at, 0.33), np.add(at, 0.33), colors=color, lw=3 * POINT)
            x = [factors.index((where, group)) + offset for where, group, offset in points["x"]]
            dots = axes.scatter(x, points["score"], s=(5 * POINT) ** 2, c=points["color"], alpha=0.65, lw=0)
            tips = zip(points["name"], points["group"], points["score"], strict=True)
            sheet.tip(dots, [f"{name}, {group}: {score:.3f}" for name, group, score in tips])
            room = axes.bbox.width / len(factors)
            labels = ["\n".join(shorten(part, room, 11) for part in reversed(factor)) for factor in factors]
            axes.set_xticks(at, labels)
            axes.set_xlim(-0.6, len(factors) - 0.4)
            return list(zip(self.PARTS, (dots, boxes, band), strict=True))

        return self.PARTS, draw


def _spread(scores: NDArray[np.float64], width: float = 0.3) -> NDArray[np.float64]:
    """Deterministic sideways offsets for the points of a strip, so that similar scores do not overlap."""
    offsets = np.empty(len(scores))
    offsets[np.argsort(scores, kind="stable")] = (np.arange(len(scores)) * 0.6180339887) % 1
    return (2 * offsets - 1) * width
