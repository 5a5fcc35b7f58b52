"""The chart of a probe's curves."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import LegendItem, Range1d

from interp_widgets.analysis.probe import Curves
from interp_widgets.figures.chart import Chart, empty_source, plain_label, visible_token
from interp_widgets.figures.static import Scene, curves_scene
from interp_widgets.figures.theme import PALETTE8

MOST_NAMED = 12
"""Most curves that get a legend; with more, only the tooltips name them."""


class CurveChart(Chart):
    """Named lines over a common axis."""

    EMPTY: ClassVar[str] = "No curves yet."

    def __init__(self) -> None:
        tips = [("", "@name"), ("x", "@x"), ("value", "@y{0.0000}")]
        self.start(
            "probe_curves", "", ("", ""), columns=("x", "y", "name", "color"), tooltips=tips, height=320,
            x_range=Range1d(0, 1), y_range=Range1d(0, 1),
        )  # fmt: skip
        self.lines = empty_source("probe_lines", ("xs", "ys", "name", "color"))
        drawn = self.figure.multi_line(xs="xs", ys="ys", source=self.lines, line_color="color", line_width=2)
        points = self.figure.scatter(
            x="x", y="y", size=6, source=self.source, fill_color="color", line_color=None, name="points"
        )
        self._legend = self.legend([LegendItem(label={"field": "name"}, renderers=[drawn])], columns=4)
        self.hover(points)
        self.say()

    def update(self, curves: Curves, *, title: str = "", ends: tuple[float, float] | None = None) -> None:
        """Draw curves, on a scale that includes both `ends`."""
        names = [visible_token(name, longest=24) for name in curves.names]
        colors = [PALETTE8[number % len(PALETTE8)] for number in range(len(names))]
        xs, count = curves.places, len(curves.places)
        self.figure.title.text = plain_label(title)
        self.figure.xaxis[0].axis_label, self.figure.yaxis[0].axis_label = curves.x_label, curves.unit
        numbers = [*curves.values.ravel().tolist(), *(ends or ())]
        self._reach(self.figure.y_range, min(numbers), max(numbers))
        self._reach(self.figure.x_range, float(xs.min()), float(xs.max()))
        self.lines.data = {
            "xs": [xs.tolist()] * len(names), "ys": curves.values.tolist(), "name": names, "color": colors,
        }  # fmt: skip
        self.hidden = [self._legend] if len(names) > MOST_NAMED else []
        self.fill({
            "x": np.tile(xs, len(names)).tolist(), "y": curves.values.ravel().tolist(),
            "name": np.repeat(names, count).tolist(), "color": np.repeat(colors, count).tolist(),
        })  # fmt: skip

    def clear(self, sentence: str = "") -> None:
        """Show a sentence in place of curves."""
        self.lines.data = {column: [] for column in self.lines.data}
        self.say(sentence)

    def _reach(self, axis: Any, low: float, high: float) -> None:
        room = 0.04 * ((high - low) or 1.0)
        axis.update(start=low - room, end=high + room, reset_start=low - room, reset_end=high + room)


def probe_curves_scene(curves: Curves, *, title: str = "") -> Scene:
    """The curves as a static picture."""
    lines = [(name, values, True) for name, values in zip(curves.names, curves.values, strict=True)]
    return curves_scene(lines, title=title, x_label=curves.x_label, y_label=curves.unit, at=curves.places)
