"""Faithfulness curves of saliency scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import LegendItem
from numpy.typing import NDArray

from interp_widgets.analysis.saliency import FaithfulnessResult
from interp_widgets.figures.chart import QUIET, DrawnChart, empty_source
from interp_widgets.figures.labels import number
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

Curve = Literal["deletion", "insertion", "comprehensiveness", "sufficiency"]
"""The curves of a faithfulness result."""

CHANCE = "random orders: mean and range"
"""Name of the band of random orders."""


class FaithfulnessCurves(DrawnChart):
    """One of the four faithfulness curves, a line per saliency method with the band of random orders.

    ``deletion`` and ``insertion`` run over the share of the prompt deleted or kept, ``comprehensiveness`` and
    ``sufficiency`` over the few shares at which they are evaluated.
    Source: ERASER (DeYoung et al. 2020), section 4.1; RISE (Petsiuk et al. 2018), section 4.3.
    """

    EMPTY: ClassVar[str] = "Not checked yet: run the check to see whether the scores can be trusted."
    TITLES: ClassVar[dict[str, str]] = {
        "deletion": "Deletion: most important tokens first",
        "insertion": "Insertion: most important tokens first",
        "comprehensiveness": "Comprehensiveness: without the top tokens",
        "sufficiency": "Sufficiency: with the top tokens only",
    }
    AXES: ClassVar[dict[str, str]] = {
        "deletion": "prompt tokens deleted (%)",
        "insertion": "prompt tokens kept (%)",
        "comprehensiveness": "top tokens deleted (%)",
        "sufficiency": "top tokens kept (%)",
    }
    UNITS: ClassVar[dict[str, str]] = {
        "probability": "mean probability",
        "log_prob": "mean log-probability (nats)",
        "logit": "mean logit",
        "logit_difference": "mean logit difference",
    }

    def __init__(self, results: Sequence[FaithfulnessResult] = (), *, kind: Curve = "deletion") -> None:
        if kind not in self.TITLES:
            raise ValueError(f"kind must be one of {', '.join(self.TITLES)}, got {kind!r}")
        self.kind = kind
        columns = ("x", "value", "share", "method", "color")
        tips = [("order", "@method"), ("share of the prompt", "@share{0.#}%"), ("value", "@value{0.0000}")]
        self.start(
            f"faithfulness_{kind}", self.TITLES[kind], (self.AXES[kind], "mean probability"), columns=columns,
            tooltips=tips, height=272,
        )  # fmt: skip
        self.band = empty_source("random_band", ("x", "low", "high", "mean"))
        self.lines = empty_source("method_lines", ("xs", "ys", "method", "color"))
        area = self.figure.varea(x="x", y1="low", y2="high", source=self.band, fill_color=QUIET, fill_alpha=0.25)
        mean = self.figure.line(x="x", y="mean", source=self.band, line_color=QUIET, line_width=2, line_dash="dashed")
        drawn = self.figure.multi_line(xs="xs", ys="ys", source=self.lines, line_color="color", line_width=2.5)
        points = self.figure.scatter(
            x="x", y="value", size=7, source=self.source, fill_color="color", line_color=None, name="points"
        )
        self.legend(
            [
                LegendItem(label={"field": "method"}, renderers=[drawn]),
                LegendItem(label=CHANCE, renderers=[area, mean]),
            ],
            columns=2,
        )
        self.hover(points)
        self.update(results)

    def update(self, results: Sequence[FaithfulnessResult]) -> None:
        """Show the curves of these results, one per method; the band of random orders is the first result's.

        Raises ValueError for results of different targets or different shares of the prompt.
        """
        if not results:
            self.lines.data = {column: [] for column in self.lines.data}
            self.band.data = {column: [] for column in self.band.data}
            self.say()
            return
        first, share = results[0], self._share(results[0])
        for other in results[1:]:
            if (other.target, other.token) != (first.target, first.token) or not np.array_equal(
                self._share(other), share
            ):
                raise ValueError("curves of one chart must be of the same prompt, target and response token")
        x = np.arange(len(share), dtype=float) if self._listed else share
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        for index, result in enumerate(results):
            values = getattr(result, self.kind).tolist()
            name, color = result.method.replace("_", " "), method_color(result.method, index)
            for column, column_values in (("x", x.tolist()), ("value", values), ("share", share.tolist())):
                rows[column] += column_values
            rows["method"] += [name] * len(values)
            rows["color"] += [color] * len(values)
            for column, value in (("xs", x.tolist()), ("ys", values), ("method", name), ("color", color)):
                lines[column].append(value)
        chance = getattr(first, f"random_{self.kind}")
        self.lines.data = lines
        self.band.data = {"x": x, "low": chance.min(axis=0), "high": chance.max(axis=0), "mean": chance.mean(axis=0)}
        if self._listed:
            self.name_ticks(self.figure.xaxis[0], [f"{q:g}" for q in share])
        unit = self.UNITS.get(first.target, first.target)
        self.figure.yaxis[0].axis_label = f"loss of {unit}" if self._listed else unit
        self.fill(rows, subtitle=self._numbers(results))

    def drawing(self) -> Drawing:
        lines, band = dict(self.lines.data), dict(self.band.data)
        ticks = self._listed and dict(self.figure.xaxis[0].major_label_overrides)
        names = [*lines["method"], CHANCE]

        def draw(sheet: Sheet, axes: Any) -> Named:
            area = axes.fill_between(band["x"], band["low"], band["high"], color=QUIET, alpha=0.25, lw=0)
            axes.plot(band["x"], band["mean"], color=QUIET, lw=2 * POINT, ls="--")
            drawn = [
                axes.plot(xs, ys, color=color, lw=2.5 * POINT, marker="o", markersize=5 * POINT)[0]
                for xs, ys, color in zip(lines["xs"], lines["ys"], lines["color"], strict=True)
            ]
            if ticks:
                axes.set_xticks(list(ticks), list(ticks.values()))
            return list(zip(names, [*drawn, area], strict=True))

        return names, draw

    @property
    def _listed(self) -> bool:
        """Whether the curve is over a few shares only."""
        return self.kind in ("comprehensiveness", "sufficiency")

    def _share(self, result: FaithfulnessResult) -> NDArray[np.float64]:
        return np.asarray(result.percent if self._listed else 100 * result.fraction, dtype=np.float64)

    def _numbers(self, results: Sequence[FaithfulnessResult]) -> str:
        """The curve's summary value for every method and for chance, and which direction is better."""
        name = f"aopc_{self.kind}" if self._listed else f"{self.kind}_area"
        scores = [f"{result.method.replace('_', ' ')} {number(getattr(result, name))}" for result in results]
        chance = results[0].random_summary()[name][0]
        better = "higher" if self.kind in ("insertion", "comprehensiveness") else "lower"
        what = "mean" if self._listed else "area"
        lines = [" · ".join(scores[start : start + 2]) for start in range(0, len(scores), 2)]
        return "\n".join([f"{what}, {better} is better: random {number(chance)}", *lines])


def method_color(method: str, index: int = 0) -> str:
    """The colour of a saliency method, the same in every chart; `index` picks one for other methods."""
    known = {"exact": 0, "first_order": 1, "integrated_gradients": 2}
    if method == "random":
        return QUIET
    return PALETTE8[known.get(method, 3 + index % 3)]
