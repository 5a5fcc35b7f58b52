"""Box plots over tasks, a box per layer and model, with fitted sections of layers behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from bokeh.models import LabelSet, LegendItem, Range1d
from numpy.typing import NDArray

from interp_widgets.analysis.layer_similarity import LayerSections
from interp_widgets.analysis.layer_similarity.sections import NAMES
from interp_widgets.figures.chart import QUIET, DrawnChart, empty_source, place_ticks
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

_SHADES = (PALETTE8[4], PALETTE8[3], PALETTE8[5])
_WHISKER = 1.5


@dataclass(frozen=True)
class BoxSeries:
    """The numbers of one model."""

    name: str
    tasks: Sequence[str]
    layers: Sequence[int]
    values: NDArray[np.floating[Any]]
    """(tasks, layers) NaN where there is none."""
    model: int = 0
    """The first model or the second, which has another colour."""


@dataclass(frozen=True)
class Box:
    """One box: quartiles, the ends of the whiskers, and the tasks beyond them."""

    layer: int
    q1: float
    median: float
    q3: float
    low: float
    high: float
    beyond: tuple[tuple[str, float], ...]
    count: int


def boxes_of(series: BoxSeries) -> list[Box]:
    """A box per layer with a number; whiskers end at the last task within 1.5 times the height of the box.

    >>> one = boxes_of(BoxSeries("", list("abcde"), [3], np.array([[1.0], [2.0], [3.0], [4.0], [40.0]])))[0]
    >>> one.median, one.low, one.high, one.beyond
    (3.0, 1.0, 4.0, (('e', 40.0),))
    """
    boxes = []
    for layer, column in zip(series.layers, np.asarray(series.values, dtype=np.float64).T, strict=True):
        known = np.isfinite(column)
        if not known.any():
            continue
        numbers = column[known]
        q1, median, q3 = np.quantile(numbers, [0.25, 0.5, 0.75]).tolist()
        room = _WHISKER * (q3 - q1)
        within = (column >= q1 - room) & (column <= q3 + room)
        beyond = tuple((series.tasks[i], float(column[i])) for i in np.flatnonzero(known & ~within).tolist())
        ends = column[within]
        boxes.append(Box(int(layer), q1, median, q3, float(ends.min()), float(ends.max()), beyond, len(numbers)))
    return boxes


class TaskBoxes(DrawnChart):
    """CKA over tasks by layer, a box per model; the fitted sections shaded, the intervals of their ends hatched.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    figures 2, 3 and 7.
    """

    SIZE: ClassVar[tuple[int, int]] = (760, 380)
    EMPTY: ClassVar[str] = "Nothing compared yet: press Run."

    def __init__(self) -> None:
        columns = ("x", "left", "right", "q1", "median", "q3", "low", "high", "layer", "name", "color", "tasks")
        tips = [
            ("", "@name"), ("layer", "@layer"), ("median", "@median{0.000}"),
            ("middle half", "@q1{0.000} to @q3{0.000}"), ("tasks", "@tasks"),
        ]  # fmt: skip
        self.start(
            "task_boxes", "CKA with the control model of each task", ("layer", "CKA"), columns=columns, tooltips=tips,
            height=340, x_range=Range1d(0, 1), y_range=Range1d(0, 1),
        )  # fmt: skip
        self.shades = empty_source("task_boxes_sections", ("left", "right", "low", "high", "color", "name", "x"))
        self.unsure = empty_source("task_boxes_intervals", ("left", "right", "low", "high"))
        self.points = empty_source("task_boxes_points", ("x", "y", "name", "task", "layer", "color"))
        quad = {"left": "left", "right": "right", "bottom": "low", "top": "high", "line_color": None}
        self.figure.quad(**quad, source=self.shades, fill_color="color", fill_alpha=0.12)
        self.figure.quad(
            **quad, source=self.unsure, fill_color=None, hatch_pattern="right_diagonal_line", hatch_color=QUIET,
            hatch_alpha=0.5, hatch_scale=8,
        )  # fmt: skip
        for start, end in (("low", "q1"), ("q3", "high")):
            self.figure.segment(x0="x", x1="x", y0=start, y1=end, source=self.source, line_color="color")
        boxes = self.figure.quad(
            left="left", right="right", bottom="q1", top="q3", source=self.source, fill_color="color", fill_alpha=0.45,
            line_color="color", name="boxes",
        )  # fmt: skip
        self.figure.segment(
            x0="left", x1="right", y0="median", y1="median", source=self.source, line_color="color", line_width=3
        )
        points = self.figure.scatter(
            x="x", y="y", size=6, source=self.points, fill_color=None, line_color="color", name="beyond"
        )
        self.figure.add_layout(
            LabelSet(
                x="x", y="high", text="name", source=self.shades, text_align="center", text_baseline="top", y_offset=-4,
                text_font_size="11px", text_color=QUIET,
            )
        )  # fmt: skip
        self.legend([LegendItem(label={"field": "name"}, renderers=[boxes])])
        self.hover(boxes)
        self.tooltips = [("task", "@task"), ("", "@name"), ("layer", "@layer"), ("CKA", "@y{0.000}")]
        self.hover(points)
        self.series: tuple[BoxSeries, ...] = ()
        self.sections: LayerSections | None = None
        self.say()

    def update(
        self, series: Sequence[BoxSeries], *, sections: LayerSections | None = None, title: str = "", subtitle: str = ""
    ) -> None:
        """Show the boxes of these models; sections are shaded where they are clear. None shows a sentence instead."""
        self.series = tuple(series)
        self.sections = sections if sections is not None and sections.clear else None
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        beyond: dict[str, list[Any]] = {column: [] for column in self.points.data}
        for place, left, right, own, box in self._placed():
            color = PALETTE8[own.model]
            values = (place, left, right, box.q1, box.median, box.q3, box.low, box.high, box.layer, own.name, color,
                      box.count)  # fmt: skip
            for column, value in zip(rows, values, strict=True):
                rows[column].append(value)
            for task, value in box.beyond:
                for column, entry in zip(beyond, (place, value, own.name, task, box.layer, color), strict=True):
                    beyond[column].append(entry)
        self.points.data = beyond
        if not rows["x"]:
            self.shades.data, self.unsure.data = (
                {column: [] for column in one.data} for one in (self.shades, self.unsure)
            )
            return self.say()
        low, high = self._ends(rows, beyond)
        first, last = min(rows["layer"]), max(rows["layer"])
        self.reach(x=(first - 0.6, last + 0.6), y=(low, high))
        place_ticks(self.figure.xaxis[0], range(first, last + 1, max(1, -(-(last - first) // 16))))
        shades, unsure = self._shading(low, high)
        self.shades.data, self.unsure.data = shades, unsure
        self.figure.title.text = title or "CKA with the control model of each task"
        return self.fill(rows, subtitle=subtitle)

    @staticmethod
    def _ends(rows: dict[str, list[Any]], beyond: dict[str, list[Any]]) -> tuple[float, float]:
        low, high = min(0.0, *rows["low"], *beyond["y"]), max(1.0, *rows["high"], *beyond["y"])
        return low - 0.03 * (low < 0), high + 0.04

    def _placed(self) -> list[tuple[float, float, float, BoxSeries, Box]]:
        """Every box with its middle and its sides; the models of a layer side by side."""
        count = len(self.series)
        width = 0.7 / max(count, 1)
        placed = []
        for number, own in enumerate(self.series):
            for box in boxes_of(own):
                place = box.layer + (number - (count - 1) / 2) * width
                placed.append((place, place - 0.42 * width, place + 0.42 * width, own, box))
        return placed

    def _shading(self, low: float, high: float) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The sections, and the intervals of the change points around which they end."""
        shades: dict[str, list[Any]] = {column: [] for column in self.shades.data}
        unsure: dict[str, list[Any]] = {column: [] for column in self.unsure.data}
        found = self.sections
        if found is not None:
            ends = [int(found.layers[0]), *found.change_points, int(found.layers[-1]) + 1]
            for start, stop, color, name in zip(ends, ends[1:], _SHADES, NAMES, strict=False):
                own = (start - 0.5, stop - 0.5, low, high, color, name, (start + stop - 1) / 2)
                for column, value in zip(shades, own, strict=True):
                    shades[column].append(value)
            for first, last in found.change_intervals:
                for column, value in zip(unsure, (first - 0.6, last - 0.4, low, high), strict=True):
                    unsure[column].append(value)
        return shades, unsure

    def drawing(self) -> Drawing:
        names = [own.name for own in self.series]
        placed, shades, unsure = self._placed(), dict(self.shades.data), dict(self.unsure.data)
        ends, span = (self.figure.y_range.start, self.figure.y_range.end), self.figure.x_range
        limits = span.reset_start, span.reset_end

        def draw(sheet: Sheet, axes: Any) -> Named:
            for left, right, color, name, middle in zip(
                *(shades[column] for column in ("left", "right", "color", "name", "x")), strict=True
            ):
                axes.axvspan(left, right, color=color, alpha=0.12, lw=0)
                axes.text(middle, ends[1], name, ha="center", va="top", fontsize=11 * POINT, color=QUIET)
            for left, right in zip(unsure["left"], unsure["right"], strict=True):
                axes.axvspan(left, right, fill=False, hatch="///", edgecolor=QUIET, alpha=0.5, lw=0)
            parts: dict[str, Any] = {}
            for place, left, right, own, box in placed:
                color = PALETTE8[own.model]
                axes.vlines([place, place], [box.low, box.q3], [box.q1, box.high], colors=color, lw=POINT)
                parts[own.name] = axes.bar(
                    [place], [box.q3 - box.q1], right - left, bottom=box.q1, color=color, alpha=0.45, edgecolor=color
                )
                axes.hlines([box.median], left, right, colors=color, lw=3 * POINT)
                if box.beyond:
                    numbers = [value for _, value in box.beyond]
                    axes.scatter(
                        [place] * len(numbers), numbers, s=(5 * POINT) ** 2, facecolors="none", edgecolors=color
                    )
            axes.set(ylim=ends, xlim=limits)
            return list(parts.items())

        return names, draw
