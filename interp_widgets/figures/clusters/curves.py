"""Scores of clusters over training or over layers, a line each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bokeh.models import Span
from numpy.typing import ArrayLike

from interp_widgets.analysis.probe import Curves
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.probe import CurveChart, probe_curves_scene
from interp_widgets.figures.static import Scene


class ScoreCurves(CurveChart):
    """Lines over the places of a training or over layers, from 0 to 1, with a mark at the place that is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = Span(location=0, dimension="height", line_dash="dotted", line_color=QUIET, line_width=1.5)
        self.figure.add_layout(self.mark)
        self.figure.height = 280
        self._curves: Curves | None = None

    def show(
        self, names: Sequence[str], values: ArrayLike, *, places: Sequence[str], x_label: str, unit: str, title: str,
        at: int,
    ) -> None:  # fmt: skip
        """Show values (lines, places) with the names of the places on the axis."""
        numbers = np.asarray(values, dtype=np.float64)
        self._curves = Curves(numbers, list(names), x=np.arange(numbers.shape[1]), x_label=x_label, unit=unit)
        self.update(self._curves, title=title, ends=(0.0, 1.0))
        self.name_ticks(self.figure.xaxis[0], list(places), most=8)
        self.mark.location = at

    def scene(self) -> Scene:
        """The lines on the screen as a static picture; ValueError where there are none."""
        if self._curves is None:
            raise ValueError("there is nothing to draw: press Run first")
        return probe_curves_scene(self._curves, title=str(self.figure.title.text))
