"""How much tuning changed the word pairs of attention heads, layer group by layer group."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import LegendItem, Range1d, Whisker
from numpy.typing import NDArray

from interp_widgets.analysis.head_words import HeadComparison
from interp_widgets.figures.chart import QUIET, Chart, empty_source
from interp_widgets.figures.scene import INK, RULE, Item, Line, Rect, Scene, Text
from interp_widgets.figures.theme import PALETTE8

SERIES = {"dimension": "dimensions", "head": "heads"}
"""Columns of the change table, and what their bars are called."""
TITLE = "Change of the word pairs, 1 − M, by layer group"
AXES = ("layers", "1 − M: 0 the same pairs, 1 none in common")
WIDTH = 0.36
"""Of a bar, where a group takes 1."""
OTHER = "to another dimension or head"


class ChangeBars(Chart):
    """Two bars per layer group: the mean change of its dimensions' pairs and of its heads', each with its spread.

    The whiskers reach one population standard deviation to either side, cut at 0 and 1. A dashed line over a bar is
    the change to another dimension, or to another head of the layer. Source: From Language Modeling to Instruction
    Following (Wu et al. 2024), section 5.1, Figure 2.
    """

    EMPTY: ClassVar[str] = "No comparison yet: it needs two complete results."

    def __init__(self, comparison: HeadComparison | None = None) -> None:
        columns = ("at", "mean", "low", "high", "std", "count", "other", "left", "right", "layers", "series", "color")
        tips = [("layers", "@layers"), ("", "@series"), ("mean 1 − M", "@mean{0.000}"), ("std", "@std{0.000}"),
                ("number", "@count"), ("to another one", "@other{0.000}")]  # fmt: skip
        self.start(
            "head_change", TITLE, AXES, columns=columns, tooltips=tips, height=400,
            x_range=Range1d(-0.5, 0.5), y_range=Range1d(0, 1.05),
        )  # fmt: skip
        self.hidden = [self.figure.xgrid[0]]
        bars = self.figure.vbar(
            x="at", top="mean", width=0.95 * WIDTH, source=self.source, fill_color="color", line_color=None, name="bars"
        )
        self.spread = empty_source("head_change_spread", ("at", "low", "high"))
        # in two colours, for the page may be light or dark and a whisker lies on its bar and above it
        for color, width in (("#ffffff", 4.0), ("#333333", 1.5)):
            whisker = Whisker(
                base="at", lower="low", upper="high", source=self.spread, line_color=color, level="overlay"
            )
            whisker.line_width = width
            for end in (whisker.upper_head, whisker.lower_head):
                end.line_color, end.line_width, end.size = color, width, 8
            self.figure.add_layout(whisker)
        line: dict[str, Any] = {"line_color": QUIET, "line_dash": "dashed", "line_width": 2.5}
        other = self.figure.segment(
            x0="left", x1="right", y0="other", y1="other", source=self.source, name="others", **line
        )
        self.legend(
            [LegendItem(label={"field": "series"}, renderers=[bars]), LegendItem(label=OTHER, renderers=[other])]
        )
        self.hover(bars)
        self.update(comparison)

    def update(self, comparison: HeadComparison | None, *, sentence: str = "") -> None:
        """Show another comparison; none: the sentence."""
        if comparison is None or not any(np.isfinite(one).any() for one in _numbers(comparison)[0]):
            self.spread.data = {column: [] for column in self.spread.data}
            self.say(sentence or ("Neither model has a word pair." if comparison is not None else ""))
            return
        means, stds, counts, others = _numbers(comparison)
        names = [comparison.group_name(group) for group in range(comparison.n_groups)]
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        for place, series in enumerate(SERIES.values()):
            for group, name in enumerate(names):
                mean, std = float(means[place, group]), float(stds[place, group])
                low, high = max(0.0, mean - std), min(1.0, mean + std)
                at = group + _shift(place)
                values = (at, mean, low, high, std, int(counts[place, group]), float(others[place, group]),
                          at - WIDTH / 2, at + WIDTH / 2, name, series, PALETTE8[place])  # fmt: skip
                for column, value in zip(rows, values, strict=True):
                    rows[column].append(value)
        end = len(names) - 0.5
        self.figure.x_range.update(start=-0.5, end=end, reset_start=-0.5, reset_end=end)
        self.name_ticks(self.figure.xaxis[0], names)
        self.spread.data = {column: rows[column] for column in self.spread.data}
        rest = ", partial" if comparison.partial else ""
        self.fill(rows, subtitle=f"bars: means, whiskers: ± 1 standard deviation{rest}")


def change_scene(comparison: HeadComparison, *, width: float = 720, height: float = 360) -> Scene:
    """The bars of `ChangeBars` as a static picture."""
    means, stds, counts, others = _numbers(comparison)
    left, top, right, bottom = 56.0, 64.0, 16.0, 64.0
    wide, tall, foot = width - left - right, height - top - bottom, height - bottom

    def level(value: float) -> float:
        return foot - tall * min(1.0, max(0.0, value)) / 1.05

    items: list[Item] = [
        Text(left, 18, TITLE, size=14, bold=True),
        Text(left, 40, "bars: means, whiskers: ± 1 standard deviation", size=11),
        Text(14, top + tall / 2, AXES[1], size=11, anchor="middle", rotate=-90),
        Text(left + wide / 2, height - 12, AXES[0], size=12, anchor="middle"),
    ]
    for tick in np.linspace(0, 1, 6):
        y = level(float(tick))
        items += [Line(left, y, left + wide, y, RULE), Text(left - 6, y, f"{tick:.1f}", size=11, anchor="end")]
    room = wide / comparison.n_groups
    for group in range(comparison.n_groups):
        middle = left + (group + 0.5) * room
        items.append(Text(middle, foot + 16, comparison.group_name(group), size=11, anchor="middle"))
        for place, series in enumerate(SERIES.values()):
            mean, std = float(means[place, group]), float(stds[place, group])
            if not np.isfinite(mean):
                continue
            x, bar = middle + _shift(place) * room, 0.95 * WIDTH * room
            tip = f"layers {comparison.group_name(group)}, {series}: {mean:.3f} ± {std:.3f} (n {counts[place, group]})"
            items.append(Rect(x - bar / 2, level(mean), bar, foot - level(mean), fill=PALETTE8[place], tip=tip))
            low, high = level(mean - std), level(mean + std)
            for color, thick in (("#ffffff", 4.0), ("#333333", 1.5)):
                items.append(Line(x, low, x, high, color, thick))
                items += [Line(x - 5, y, x + 5, y, color, thick) for y in (low, high)]
            if np.isfinite(others[place, group]):
                y, piece = level(float(others[place, group])), WIDTH * room / 9
                starts = (x - WIDTH * room / 2 + 2 * k * piece for k in range(5))
                items += [Line(start, y, start + piece, y, QUIET, 2.5) for start in starts]
    items.append(Line(left, foot, left + wide, foot, INK))
    for place, series in enumerate(SERIES.values()):
        x = width - right - 330 + 90 * place
        items += [Rect(x, 34, 12, 12, fill=PALETTE8[place]), Text(x + 18, 40, series, size=11)]
    x = width - right - 330 + 180
    items += [
        Line(x, 40, x + 6, 40, QUIET, 2.5),
        Line(x + 9, 40, x + 15, 40, QUIET, 2.5),
        Text(x + 20, 40, OTHER, size=11),
    ]
    return Scene(width, height, tuple(items), title=TITLE)


def _shift(place: int) -> float:
    """Of a series' bars from the middle of their group."""
    return (place - (len(SERIES) - 1) / 2) * WIDTH


def _numbers(
    comparison: HeadComparison,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """(series, groups) means, standard deviations, numbers, and means to others."""
    table = comparison.change_table()
    means, stds, others = (
        np.array([table[pattern.format(name)] for name in SERIES], dtype=np.float64)
        for pattern in ("{}_mean", "{}_std", "other_{}_mean")
    )
    return means, stds, np.array([table[f"n_{name}s"] for name in SERIES], dtype=np.int64), others
