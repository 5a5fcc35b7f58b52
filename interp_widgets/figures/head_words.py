"""How much tuning changed the word pairs of attention heads, by layer group."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import LegendItem, Range1d, Whisker
from numpy.typing import NDArray

from interp_widgets.analysis.head_words import HeadComparison
from interp_widgets.figures.chart import QUIET, Chart, empty_source
from interp_widgets.figures.static.charts import Named, chart_scene
from interp_widgets.figures.static.scene import POINT, Scene, Sheet
from interp_widgets.figures.theme import PALETTE8

SERIES = {"dimension": "dimensions", "head": "heads"}
"""Columns of the change table, and the names of their bars."""
TITLE = "Change of the word pairs, 1 − M, by layer group"
AXES = ("layers", "1 − M: 0 the same pairs, 1 none in common")
WIDTH = 0.36
"""Width of a bar, as a share of its group."""
OTHER = "to another dimension or head"


class ChangeBars(Chart):
    """Two bars per layer group: the mean change of its dimensions' pairs and of its heads', each with its spread.

    The whiskers reach one population standard deviation to either side, cut at 0 and 1. A dashed line over a bar is
    the change to another dimension, or to another head of the layer. Source: From Language Modeling to Instruction
    Following (Wu et al. 2024), section 5.1, Figure 2.
    """

    EMPTY: ClassVar[str] = "No comparison yet: two complete results are needed."

    def __init__(self, comparison: HeadComparison | None = None) -> None:
        columns = ("at", "mean", "low", "high", "std", "count", "other", "left", "right", "layers", "series", "color")
        tips = [("layers", "@layers"), ("", "@series"), ("mean 1 − M", "@mean{0.000}"), ("std", "@std{0.000}"),
                ("number", "@count"), ("to another", "@other{0.000}")]  # fmt: skip
        self.start(
            "head_change", TITLE, AXES, columns=columns, tooltips=tips, height=400,
            x_range=Range1d(-0.5, 0.5), y_range=Range1d(0, 1.05),
        )  # fmt: skip
        self.hidden = [self.figure.xgrid[0]]
        bars = self.figure.vbar(
            x="at", top="mean", width=0.95 * WIDTH, source=self.source, fill_color="color", line_color=None, name="bars"
        )
        self.spread = empty_source("head_change_spread", ("at", "low", "high"))
        # in two colours, since the page may be light or dark and a whisker lies on its bar and above it
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
        """Show another comparison; None: the sentence."""
        if comparison is None or not any(np.isfinite(means).any() for means in _numbers(comparison)[0]):
            self.spread.data = {column: [] for column in self.spread.data}
            self.say(sentence or ("Neither model has a word pair." if comparison is not None else ""))
            return
        means, stds, counts, others = _numbers(comparison)
        names = [comparison.group_name(group) for group in range(comparison.n_groups)]
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        for index, series in enumerate(SERIES.values()):
            for group, name in enumerate(names):
                mean, std = float(means[index, group]), float(stds[index, group])
                low, high = max(0.0, mean - std), min(1.0, mean + std)
                at = group + _shift(index)
                values = (at, mean, low, high, std, int(counts[index, group]), float(others[index, group]),
                          at - WIDTH / 2, at + WIDTH / 2, name, series, PALETTE8[index])  # fmt: skip
                for column, value in zip(rows, values, strict=True):
                    rows[column].append(value)
        end = len(names) - 0.5
        self.reach(x=(-0.5, end))
        self.name_ticks(self.figure.xaxis[0], names)
        self.spread.data = {column: rows[column] for column in self.spread.data}
        rest = ", partial" if comparison.partial else ""
        self.fill(rows, subtitle=f"bars: means, whiskers: ± 1 standard deviation{rest}")


def change_scene(comparison: HeadComparison) -> Scene:
    """The bars of `ChangeBars` as a static picture."""
    means, stds, counts, others = _numbers(comparison)
    names = [comparison.group_name(group) for group in range(comparison.n_groups)]
    labels = [*SERIES.values(), "mean ± 1 standard deviation", OTHER]

    def draw(sheet: Sheet, axes: Any) -> Named:
        from matplotlib.patheffects import withStroke

        axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(0, 1.05))
        axes.set_xticks(range(len(names)), names)
        named: dict[str, Any] = {}
        for index, series in enumerate(SERIES.values()):
            groups = np.flatnonzero(np.isfinite(means[index]))
            if not groups.size:
                continue
            at, mean, std = groups + _shift(index), means[index, groups], stds[index, groups]
            bars = named[series] = axes.bar(at, mean, 0.95 * WIDTH, color=PALETTE8[index])
            for bar, group in zip(bars, groups.tolist(), strict=True):
                amount = f"{means[index, group]:.3f} ± {stds[index, group]:.3f} (n {counts[index, group]})"
                sheet.tip(bar, [f"layers {names[group]}, {series}: {amount}"])
            reach = np.minimum(std, mean), np.minimum(std, 1 - mean)
            whiskers = axes.errorbar(at, mean, reach, fmt="none", ecolor="#333333", elinewidth=1.5 * POINT,
                                     capsize=5 * POINT, capthick=1.5 * POINT)  # fmt: skip
            for line in whiskers.get_children():
                line.set_path_effects([withStroke(linewidth=4 * POINT, foreground="white")])
            dashes = axes.hlines(others[index, groups], at - WIDTH / 2, at + WIDTH / 2, colors=QUIET, lw=2.5 * POINT)
            dashes.set_linestyle((0, (2, 1)))
            named |= {labels[-2]: whiskers, labels[-1]: dashes}
        return [(label, named[label]) for label in labels if label in named]

    return chart_scene(labels, draw, title=TITLE, x_label=AXES[0], y_label=AXES[1], width=720, height=360)


def _shift(index: int) -> float:
    """Offset of a series' bars from the centre of their group."""
    return (index - (len(SERIES) - 1) / 2) * WIDTH


def _numbers(
    comparison: HeadComparison,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """(series, groups) means, standard deviations, counts, and means to others."""
    table = comparison.change_table()
    means, stds, others = (
        np.array([table[pattern.format(name)] for name in SERIES], dtype=np.float64)
        for pattern in ("{}_mean", "{}_std", "other_{}_mean")
    )
    return means, stds, np.array([table[f"n_{name}s"] for name in SERIES], dtype=np.int64), others
