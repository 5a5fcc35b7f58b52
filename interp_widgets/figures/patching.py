"""The curve of a circuit: how much of the behaviour it keeps at each size, beside random circuits."""

from __future__ import annotations

from typing import Any, ClassVar

from bokeh.models import LegendItem

from interp_widgets.analysis.patching import CircuitResult
from interp_widgets.figures.chart import QUIET, DrawnChart, empty_source
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

CIRCUIT, WITHOUT, RANDOM = "the circuit alone", "the model without it", "random circuits: mean and middle 95%"


class CircuitCurve(DrawnChart):
    """Faithfulness by number of parts: the circuit, the model without it, and the band of random circuits.

    Source: Interpretability in the Wild (Wang et al. 2023), section 4.
    """

    EMPTY: ClassVar[str] = "No circuit yet."

    def __init__(self, *, color: str = PALETTE8[0]) -> None:
        self.color = color
        columns = ("x", "y", "name", "part")
        tips = [("", "@name"), ("parts", "@x"), ("the last one", "@part"), ("faithfulness", "@y{0.000}")]
        self.start(
            "circuit", "Faithfulness of the circuit", ("number of parts", "faithfulness"), columns=columns,
            tooltips=tips, height=300,
        )  # fmt: skip
        self.figure.xaxis[0].ticker.min_interval = 1
        self.band = empty_source("circuit_band", ("x", "low", "high", "mean"))
        self.lines = empty_source("circuit_lines", ("xs", "ys", "name", "dash"))
        area = self.figure.varea(x="x", y1="low", y2="high", source=self.band, fill_color=QUIET, fill_alpha=0.25)
        mean = self.figure.line(x="x", y="mean", source=self.band, line_color=QUIET, line_width=2, line_dash="dashed")
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color=color, line_width=2.5, line_dash="dash"
        )
        points = self.figure.scatter(
            x="x", y="y", size=7, source=self.source, fill_color=color, line_color=None, name="points"
        )
        self.legend(
            [
                LegendItem(label={"field": "name"}, renderers=[drawn]),
                LegendItem(label=RANDOM, renderers=[area, mean]),
            ],
            columns=2,
        )
        self.hover(points)
        self.say()

    def update(self, result: CircuitResult, *, title: str = "") -> None:
        """Show the curve of a circuit, with a prefix of its title."""
        xs = list(range(len(result.faithfulness)))
        low, high = result.band
        values = {CIRCUIT: result.faithfulness.tolist(), WITHOUT: result.without.tolist()}
        self.figure.title.text = f"{title}Faithfulness of the circuit"
        self.lines.data = {
            "xs": [xs] * 2, "ys": list(values.values()), "name": list(values), "dash": ["solid", "dotted"]
        }  # fmt: skip
        self.band.data = {"x": xs, "low": low, "high": high, "mean": result.random.mean(0)}
        parts = ["", *result.parts]
        rows: dict[str, list[Any]] = {"x": xs * 2, "y": [y for ys in values.values() for y in ys], "part": parts * 2}
        rows["name"] = [name for name in values for _ in xs]
        self.fill(rows)

    def drawing(self) -> Drawing:
        lines, band = dict(self.lines.data), dict(self.band.data)
        names = [*lines["name"], RANDOM]

        def draw(sheet: Sheet, axes: Any) -> Named:
            from matplotlib.ticker import MaxNLocator

            area = axes.fill_between(band["x"], band["low"], band["high"], color=QUIET, alpha=0.25, lw=0)
            axes.plot(band["x"], band["mean"], color=QUIET, lw=2 * POINT, ls="--")
            drawn = [
                axes.plot(xs, ys, color=self.color, lw=2.5 * POINT, ls=dash, marker="o", markersize=5 * POINT)[0]
                for xs, ys, dash in zip(lines["xs"], lines["ys"], lines["dash"], strict=True)
            ]
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            return list(zip(names, [*drawn, area], strict=True))

        return names, draw
