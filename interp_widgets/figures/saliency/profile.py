"""Positions of important tokens in their sentences."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import LegendItem, NumeralTickFormatter, Range1d, Span

from interp_widgets.analysis.saliency import SaliencyDatasetResult
from interp_widgets.figures.chart import QUIET, DrawnChart, empty_source
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8


class PositionProfile(DrawnChart):
    """Share of a sentence's density in each of its quarters, one line per model, with 95% intervals.

    A uniform density gives 25% everywhere; a U shape means that the middle of a sentence counts less.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), appendix B.3, Fig. 6.
    """

    EMPTY: ClassVar[str] = "No position profile yet: score prompts with sentences of four tokens or more."
    QUARTERS: ClassVar[tuple[str, ...]] = ("first quarter", "second", "third", "last quarter")

    def __init__(self, result: SaliencyDatasetResult | None = None) -> None:
        columns = ("x", "share", "low", "high", "segment", "model", "color")
        tips = [("model", "@model"), ("part", "@segment"), ("share", "@share{0.0%}"),
                ("95% interval", "@low{0.0%} to @high{0.0%}")]  # fmt: skip
        self.start(
            "position_profile", "Density by part of the sentence",
            ("part of the sentence", "share of the density (%)"), columns=columns, tooltips=tips, height=280,
            x_range=Range1d(-0.4, 3.4), y_range=Range1d(0, 0.5),
        )  # fmt: skip
        self.hidden = [self.figure.xgrid[0]]
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0%")
        self.name_ticks(self.figure.xaxis[0], self.QUARTERS)
        self.figure.add_layout(
            Span(location=0.25, dimension="width", line_dash="dotted", line_color=QUIET, line_width=1.5)
        )
        self.lines = empty_source("profile_lines", ("xs", "ys", "model", "color"))
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_width=2.5, name="lines"
        )
        self.figure.segment(x0="x", x1="x", y0="low", y1="high", source=self.source, line_color="color", line_width=3)
        points = self.figure.scatter(
            x="x", y="share", size=9, source=self.source, fill_color="color", line_color=None, name="points"
        )
        self.legend([LegendItem(label={"field": "model"}, renderers=[drawn])])
        self.hover(points)
        self.update(result)

    def update(self, result: SaliencyDatasetResult | None) -> None:
        """Show a data set's profile."""
        models = [] if result is None else [model for model, n in enumerate(result.profile_sentences) if n]
        if result is None or not models:
            self.lines.data = {column: [] for column in self.lines.data}
            self.say()
            return
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        for index, model in enumerate(models):
            xs = (np.arange(len(self.QUARTERS)) + 0.08 * (index - (len(models) - 1) / 2)).tolist()
            low, high = result.profile_interval[model]
            columns = {"x": xs, "share": result.profile[model].tolist(), "low": low.tolist(), "high": high.tolist()}
            columns |= {"segment": list(self.QUARTERS), "model": [result.model_names[model]] * 4}
            columns["color"] = [PALETTE8[model]] * 4
            for column, values in columns.items():
                rows[column] += values
            for column, value in (("xs", xs), ("ys", columns["share"]), ("model", result.model_names[model])):
                lines[column].append(value)
            lines["color"].append(PALETTE8[model])
        top = max(0.3, 1.1 * max(rows["high"]))
        self.figure.y_range.update(end=top, reset_end=top)
        self.lines.data = lines
        counts = ", ".join(f"{result.model_names[model]} {result.profile_sentences[model]}" for model in models)
        self.fill(rows, subtitle=f"sentences: {counts}\nbars: 95% interval over prompts · dotted: no preference")

    def drawing(self) -> Drawing:
        lines, points = dict(self.lines.data), dict(self.source.data)
        top, names = self.figure.y_range.end, list(lines["model"])

        def draw(sheet: Sheet, axes: Any) -> Named:
            axes.axhline(0.25, color=QUIET, lw=1.5 * POINT, ls=":")
            drawn = [
                axes.plot(xs, ys, color=color, lw=2.5 * POINT, marker="o", markersize=9 * POINT, clip_on=False)[0]
                for xs, ys, color in zip(lines["xs"], lines["ys"], lines["color"], strict=True)
            ]
            axes.vlines(points["x"], points["low"], points["high"], colors=points["color"], lw=3 * POINT)
            axes.set(xlim=(-0.4, 3.4), ylim=(0, top))
            axes.set_xticks(range(len(self.QUARTERS)), list(self.QUARTERS))
            axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
            return list(zip(names, drawn, strict=True))

        return names, draw
