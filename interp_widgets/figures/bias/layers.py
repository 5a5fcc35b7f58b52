"""Probe accuracy by layer, with its controls, and how active neurons are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import LegendItem, Range1d
from numpy.typing import NDArray

from interp_widgets.analysis.bias import BiasActivity, BiasProbes
from interp_widgets.figures.chart import DrawnChart, empty_source, place_ticks
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

Measure = Literal["auc", "accuracy"]
SPARSE = "2 8"
"""Dash of a line beside one that is dotted and dashed."""
_DASHES: dict[str, Any] = {"solid": "-", "dashed": "--", "dotted": ":", "dotdash": "-.", SPARSE: (0, (1, 4))}


@dataclass(frozen=True)
class LayerLine:
    """One number per layer."""

    name: str
    values: NDArray[np.float64]
    """(layers,) NaN where there is none."""
    model: int = 0
    """The first model or the second, which has another colour."""
    dash: str = "solid"
    low: NDArray[np.float64] | None = None
    """(layers,) lower ends of the ranges around the values."""
    high: NDArray[np.float64] | None = None


class ByLayer(DrawnChart):
    """Lines over layers, a colour per model, a dash per kind; a tap on a point selects its row, whose column ``x`` is
    the layer."""

    SIZE: ClassVar[tuple[int, int]] = (620, 320)
    EMPTY: ClassVar[str] = "Nothing computed yet."

    def __init__(self, name: str, title: str, y_label: str) -> None:
        tips = [("", "@name"), ("layer", "@x"), (y_label, "@y{0.000}")]
        self.start(
            name, title, ("layer", y_label), columns=("x", "y", "name", "color"), tooltips=tips, height=280,
            x_range=Range1d(0, 1), y_range=Range1d(0, 1), tools="pan,xwheel_zoom,box_zoom,reset,save,tap",
        )  # fmt: skip
        self.drawn = empty_source(f"{name}_lines", ("xs", "ys", "name", "color", "dash", "entry"))
        self.spans = empty_source(f"{name}_spans", ("x", "low", "high", "color"))
        self.mark = empty_source(f"{name}_mark", ("x", "low", "high"))
        self.figure.segment(x0="x", x1="x", y0="low", y1="high", source=self.mark, line_width=14, line_alpha=0.12)
        ends: dict[str, Any] = {"x0": "x", "x1": "x", "y0": "low", "y1": "high", "source": self.spans}
        self.figure.segment(**ends, line_color="color", line_width=2, line_alpha=0.6)
        lines = self.figure.multi_line(
            xs="xs", ys="ys", source=self.drawn, line_color="color", line_dash="dash", line_width=2.5, name="lines"
        )
        points = self.figure.scatter(
            x="x", y="y", size=7, source=self.source, fill_color="color", line_color=None, name="points",
            nonselection_fill_alpha=1.0,
        )  # fmt: skip
        self.lines: tuple[LayerLine, ...] = ()
        self.legend([LegendItem(label={"field": "entry"}, renderers=[lines])], columns=3)
        self.hover(points)
        self.say()

    def update(
        self, lines: Sequence[LayerLine], *, ends: Sequence[float] = (), layer: int = -1, subtitle: str = ""
    ) -> None:
        """Show these lines from the first layer with a number, on a scale with ``ends`` on it, one layer marked; none
        shows a sentence instead.
        """
        self.lines = tuple(lines)
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        drawn: dict[str, list[Any]] = {column: [] for column in self.drawn.data}
        spans: dict[str, list[Any]] = {column: [] for column in self.spans.data}
        for line in lines:
            at, color = np.flatnonzero(np.isfinite(line.values)), PALETTE8[line.model]
            rows["x"] += at.tolist()
            rows["y"] += line.values[at].tolist()
            rows["name"] += [line.name] * len(at)
            rows["color"] += [color] * len(at)
            kind = line.name.rpartition(": ")[-1]
            entry = kind if color in drawn["color"] else line.name  # the first line of a model says whose colour it is
            whole = (list(range(len(line.values))), line.values.tolist(), line.name, color, line.dash, entry)
            for column, value in zip(drawn, whole, strict=True):
                drawn[column].append(value)
            if line.low is not None and line.high is not None:
                spans["x"] += at.tolist()
                spans["low"] += line.low[at].tolist()
                spans["high"] += line.high[at].tolist()
                spans["color"] += [color] * len(at)
        self.drawn.data, self.spans.data = drawn, spans
        if not rows["y"]:
            self.mark.data = {column: [] for column in self.mark.data}
            return self.say()
        numbers = [*rows["y"], *spans["low"], *spans["high"], *ends]
        low, high = min(numbers), max(numbers)
        first, last = min(rows["x"]), max(len(line.values) for line in lines) - 1
        room = 0.05 * ((high - low) or 1.0)
        bounds = {"start": low - room, "end": high + room}
        self.figure.y_range.update(**bounds, reset_start=low - room, reset_end=high + room)
        self.reach(x=(first - 0.4, last + 0.4))
        place_ticks(self.figure.xaxis[0], range(first, last + 1, max(1, -(-(last - first) // 14))))
        marked = [layer] if first <= layer <= last else []
        self.mark.data = {"x": marked, "low": [bounds["start"]] * len(marked), "high": [bounds["end"]] * len(marked)}
        self.fill(rows, subtitle=subtitle)

    def drawing(self) -> Drawing:
        lines, names = self.lines, [line.name for line in self.lines]
        ends = self.figure.y_range.start, self.figure.y_range.end

        def draw(sheet: Sheet, axes: Any) -> Named:
            parts = []
            for line in lines:
                at, color = np.arange(len(line.values)), PALETTE8[line.model]
                if line.low is not None and line.high is not None:
                    axes.vlines(at, line.low, line.high, colors=color, lw=2 * POINT, alpha=0.6)
                (part,) = axes.plot(
                    at, line.values, color=color, lw=2.5 * POINT, ls=_DASHES[line.dash], marker="o",
                    markersize=6 * POINT, clip_on=False,
                )  # fmt: skip
                parts.append((line.name, part))
            axes.set(ylim=ends)
            return parts

        return names, draw


_PROBES = {"": "solid", "second_": "dashed", "control_": "dotted"}
_NAMES = {"": "probe", "second_": "second probe", "control_": "shuffled labels"}


def probe_lines(probes: BiasProbes, measure: Measure = "auc", *, model: int = 0, name: str = "") -> list[LayerLine]:
    """What the probes of every layer reach, the range over the splits around it; beside it the second probe, the
    control, and for the AUC the readers of tokens alone.
    """
    start = f"{name}: " if name else ""
    lines = []
    for kind, dash in _PROBES.items():
        values = getattr(probes, f"{kind}{measure}")
        lines.append(
            LayerLine(start + _NAMES[kind], values.mean(axis=1), model, dash, values.min(axis=1), values.max(axis=1))
        )
    if measure == "auc":
        for label, values, dash in (
            ("bag of words", probes.bag_of_words, "dotdash"), ("embedding", probes.embedding, SPARSE),
        ):  # fmt: skip
            lines.append(LayerLine(start + label, np.full(probes.n_layers, values.mean()), model, dash))
    return lines


def activity_lines(
    activity: BiasActivity, what: Literal["share_active", "mean"], *, model: int = 0, name: str = ""
) -> list[LayerLine]:
    """How active the bias neurons of every layer are on biased texts and on benign ones."""
    start, values = (f"{name}: " if name else ""), getattr(activity, what)
    return [
        LayerLine(start + kind, values[:, column], model, dash)
        for column, (kind, dash) in enumerate((("biased texts", "solid"), ("benign texts", "dashed")))
    ]
