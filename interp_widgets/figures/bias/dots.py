"""Scores in percent with their intervals: a row per domain, a mark per score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bokeh.models import LegendItem, Range1d, Span

from interp_widgets.analysis.bias import CrowsResult, StereoSetResult
from interp_widgets.figures.chart import QUIET, DrawnChart, empty_source
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

MARKERS = ("circle", "square", "triangle")
_MPL = {"circle": "o", "square": "s", "triangle": "^"}
_ROW, _MARK = 10, 11
"""Pixels between two rows, and that a mark takes."""


@dataclass(frozen=True)
class Dot:
    """One score."""

    row: str
    """The domain."""
    score: str
    """Which score."""
    value: float
    interval: Sequence[float]
    series: int = 0
    """Which model it is of, or which state of one."""
    note: str = ""


@dataclass(frozen=True)
class Series:
    """What the dots of one model, or of one state of it, are called and coloured."""

    name: str = ""
    color: str = PALETTE8[0]


class IntervalDots(DrawnChart):
    """Scores between 0 and 100 with their 95% intervals, a row per domain; dotted is 50, no preference."""

    EMPTY: ClassVar[str] = "No scores yet."
    TITLE: ClassVar[str] = "What the model prefers, by domain"
    COLUMNS: ClassVar[tuple[str, ...]] = ("x", "y", "low", "high", "row", "score", "series", "color", "note")

    def __init__(self, name: str = "bias_scores") -> None:
        tips = [("", "@row @series"), ("@score", "@x{0.0}%"), ("95% interval", "@low{0.0} to @high{0.0}"),
                ("", "@note")]  # fmt: skip
        self.start(
            name, self.TITLE, ("percent (dotted line: 50, no preference)", ""), columns=self.COLUMNS, tooltips=tips,
            height=240, x_range=Range1d(-2, 102), y_range=Range1d(1, 0),
        )  # fmt: skip
        self.figure.add_layout(
            Span(location=50, dimension="height", line_dash="dotted", line_color=QUIET, line_width=1.5)
        )
        self.figure.ygrid.visible = False
        self.hidden = [*self.figure.ygrid]
        self.figure.segment(x0="low", x1="high", y0="y", y1="y", source=self.source, line_color="color", line_width=3)
        self.sources = {marker: empty_source(f"{name}_{marker}", self.COLUMNS) for marker in MARKERS}
        self.marks = [
            self.figure.scatter(
                x="x", y="y", size=10, marker=marker, source=source, fill_color="color", line_color=None, name=marker
            )
            for marker, source in self.sources.items()
        ]
        self.box = self.legend()
        self.hover(*self.marks)
        self.dots: tuple[Dot, ...] = ()
        self.series: dict[int, Series] = {}
        self.say()

    def update(self, dots: Sequence[Dot], series: Mapping[int, Series] | None = None, *, subtitle: str = "") -> None:
        """Show these scores, by the number of their series; none shows a sentence instead."""
        self.dots, self.series = tuple(dots), dict(series or {0: Series()})
        rows, scores = self.names("row"), self.names("score")
        tables: dict[str, dict[str, list[Any]]] = {
            marker: {column: [] for column in self.COLUMNS} for marker in MARKERS
        }
        for dot, y in zip(self.dots, self.places(), strict=True):
            own = (dot.value, y, *dot.interval, dot.row, dot.score, self.series[dot.series].name,
                   self.series[dot.series].color, dot.note)  # fmt: skip
            for column, value in zip(self.COLUMNS, own, strict=True):
                tables[MARKERS[scores.index(dot.score) % len(MARKERS)]][column].append(value)
        for marker, source in self.sources.items():
            source.data = tables[marker]
        if not dots:
            return self.say()
        self.box.items = [
            LegendItem(label=score, renderers=[mark]) for score, mark in zip(scores, self.marks, strict=False)
        ]
        if len(self.series) > 1:
            self.box.items = [*self.box.items, LegendItem(label={"field": "series"}, renderers=[self.marks[0]])]
        self.figure.height = 110 + len(rows) * (_ROW + _MARK * len(scores) * len(self.series))
        self.figure.y_range.update(start=len(rows) - 0.5, end=-0.5)
        self.name_ticks(self.figure.yaxis[0], rows)
        self.fill({name: [v for table in tables.values() for v in table[name]] for name in self.COLUMNS},
                  subtitle=subtitle)  # fmt: skip

    def names(self, part: str) -> list[str]:
        """The rows or the scores in the order in which they come."""
        return list(dict.fromkeys(getattr(dot, part) for dot in self.dots))

    def places(self) -> list[float]:
        """Where each dot stands, rows being one apart."""
        rows, scores, series = self.names("row"), self.names("score"), list(self.series)
        count = len(scores) * len(series)
        return [
            rows.index(dot.row)
            + 0.7 * ((scores.index(dot.score) * len(series) + series.index(dot.series) + 0.5) / count - 0.5)
            for dot in self.dots
        ]

    @property
    def size(self) -> tuple[int, int]:
        return 720, self.figure.height + 40

    def drawing(self) -> Drawing:
        dots, places, scores = self.dots, self.places(), self.names("score")
        names = [
            score if len(self.series) == 1 else f"{score}, {own.name}"
            for score in scores
            for own in self.series.values()
        ]

        def draw(sheet: Sheet, axes: Any) -> Named:
            axes.axvline(50, color=QUIET, lw=1.5 * POINT, ls=":")
            parts: dict[str, Any] = {}
            for dot, y in zip(dots, places, strict=True):
                own = self.series[dot.series]
                name = dot.score if len(self.series) == 1 else f"{dot.score}, {own.name}"
                color, marker = own.color, _MPL[MARKERS[scores.index(dot.score) % len(MARKERS)]]
                axes.hlines([y], dot.interval[0], dot.interval[1], colors=color, lw=3 * POINT)
                parts[name] = axes.scatter([dot.value], [y], s=(9 * POINT) ** 2, color=color, marker=marker)
            axes.set(xlim=(-2, 102), ylim=(len(self.names("row")) - 0.5, -0.5))
            axes.set_yticks(range(len(self.names("row"))), self.names("row"))
            return [(name, parts[name]) for name in names if name in parts]

        return names, draw


def score_dots(result: StereoSetResult | CrowsResult, series: int = 0) -> list[Dot]:
    """SS, LMS and ICAT of every domain; of CrowS-Pairs how often the disadvantaged group's sentence is likelier."""
    if isinstance(result, CrowsResult):
        return [
            Dot(entry.domain, "likelier", entry.preferred, entry.interval, series, f"{entry.n} pairs")
            for entry in result.metrics
        ]
    return [
        Dot(entry.domain, name.upper(), getattr(entry, name), getattr(entry, f"{name}_interval"), series,
            f"{entry.n} examples, {entry.n_targets} terms")
        for entry in result.metrics for name in ("ss", "lms", "icat")
    ]  # fmt: skip
