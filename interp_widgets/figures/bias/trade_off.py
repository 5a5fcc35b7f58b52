"""What edits win against bias, and what they cost in language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from bokeh.models import LegendItem, Range1d

from interp_widgets.analysis.bias import DebiasComparison
from interp_widgets.figures.chart import QUIET, DrawnChart
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

CostMeasure = Literal["lms", "perplexity"]
_MPL = {"diamond": "D", "circle": "o", "triangle": "^"}


class TradeOff(DrawnChart):
    """The distance of SS to 50, which an edit should make small, against LMS or the perplexity, with 95% intervals.

    The model as it is is a diamond, an edit a circle, and a random edit as large a triangle of the same colour.
    Source: Explainability in Large Language Models (Luo 2024), table 5.4.
    """

    SIZE: ClassVar[tuple[int, int]] = (720, 400)
    EMPTY: ClassVar[str] = "Nothing judged yet: press Run."
    AXES: ClassVar[dict[str, str]] = {
        "lms": "LMS (%), more is better", "perplexity": "perplexity, × as it is",
    }  # fmt: skip
    SPAN: ClassVar[dict[str, float]] = {"lms": 5.0, "perplexity": 0.05}
    """Least height of the plot, lest nothing be drawn as much."""

    def __init__(self) -> None:
        tips = [("", "@name"), ("|SS − 50|", "@x{0.0} (@left{0.0} to @right{0.0})"),
                ("price", "@y{0.00} (@low{0.00} to @high{0.00})")]  # fmt: skip
        self.start(
            "bias_trade_off", "Bias and language modelling", ("|SS − 50|, less is better", ""),
            columns=("x", "y", "left", "right", "low", "high", "name", "color", "marker"), tooltips=tips, height=300,
            x_range=Range1d(0, 50), y_range=Range1d(0, 100),
        )  # fmt: skip
        for start, end, x, y in (("left", "right", None, "y"), ("low", "high", "x", None)):
            self.figure.segment(
                x0=x or start, x1=x or end, y0=y or start, y1=y or end, source=self.source, line_color="color",
                line_width=1.5, line_alpha=0.6,
            )  # fmt: skip
        points = self.figure.scatter(
            x="x", y="y", size=11, marker="marker", source=self.source, fill_color="color", line_color=None,
            fill_alpha=0.9, name="points",
        )  # fmt: skip
        self.legend([LegendItem(label={"field": "name"}, renderers=[points])], columns=3)
        self.hover(points)
        self.say()

    def update(self, result: DebiasComparison | None, price: CostMeasure = "lms", *, name: str = "") -> None:
        """Show a comparison; None, or one without this price, shows a sentence instead."""
        if result is None:
            return self.say()
        if price == "perplexity" and result.rows[0].perplexity is None:
            return self.say("The perplexity needs ordinary texts.")
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        colors: dict[str, str] = {}
        for entry in result.rows:
            plain, random = entry is result.rows[0], is_random(entry.name)
            if not plain and not random:
                colors[entry.name] = PALETTE8[len(colors) % len(PALETTE8)]
            color = QUIET if plain else next(reversed(colors.values()))  # a control follows its edit
            overall = entry.stereoset[-1]
            left, right = label_offset(overall.ss_interval)
            value, ends = overall.lms, list(overall.lms_interval)
            if price == "perplexity":
                value, *ends = entry.perplexity_ratio or (1.0, 1.0, 1.0)
            marker = "diamond" if plain else "triangle" if random else "circle"
            own = (abs(overall.ss - 50), value, left, right, *ends, short_name(entry.name), color, marker)
            for column, cell in zip(rows, own, strict=True):
                rows[column].append(cell)
        low, high = min(rows["low"]), max(rows["high"])
        room = max(0.08 * (high - low), (self.SPAN[price] - (high - low)) / 2)
        self.reach(y=(low - room, high + room))
        end = max(rows["right"]) * 1.05 + 1
        self.reach(x=(-1, end))
        self.figure.yaxis[0].axis_label = self.AXES[price]
        self.figure.title.text = f"{name}: bias and language modelling" if name else "Bias and language modelling"
        self.fill(rows, subtitle="diamond: as it is; circles: edits; triangles: random edits as large")

    def drawing(self) -> Drawing:
        rows, names = dict(self.source.data), list(self.source.data["name"])
        ends = [(axis.start, axis.end) for axis in (self.figure.x_range, self.figure.y_range)]

        def draw(sheet: Sheet, axes: Any) -> Named:
            axes.hlines(rows["y"], rows["left"], rows["right"], colors=rows["color"], lw=1.5 * POINT, alpha=0.6)
            axes.vlines(rows["x"], rows["low"], rows["high"], colors=rows["color"], lw=1.5 * POINT, alpha=0.6)
            parts = [
                (name, axes.scatter([x], [y], s=(9 * POINT) ** 2, color=color, marker=_MPL[marker]))
                for name, x, y, color, marker in zip(
                    *(rows[one] for one in ("name", "x", "y", "color", "marker")), strict=True
                )
            ]
            axes.set(xlim=ends[0], ylim=ends[1])
            return parts

        return names, draw


_RANDOM = "Random, as large as "


def is_random(name: str) -> bool:
    """Whether a row of a comparison is the control of an edit."""
    return name.startswith(_RANDOM)


def short_name(name: str) -> str:
    """The name of a row, a control's behind its edit's.

    >>> short_name("Random, as large as INLP")
    'INLP, random'
    """
    return f"{name.removeprefix(_RANDOM)}, random" if is_random(name) else name


def label_offset(interval: Sequence[float]) -> tuple[float, float]:
    """The distances from 50 that an interval of SS allows.

    >>> label_offset((40, 55)), label_offset((60, 70))
    ((0.0, 10.0), (10.0, 20.0))
    """
    low, high = (float(end) - 50 for end in interval)
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))
