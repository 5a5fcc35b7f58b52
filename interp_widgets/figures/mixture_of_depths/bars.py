"""Bars: accuracies of variants with their intervals, and which problems late layers solve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from bokeh.models import ColumnDataSource, NumeralTickFormatter, Range1d, Span, Whisker

from interp_widgets.analysis.mixture_of_depths import LateLayerLosses, ModAblations
from interp_widgets.figures.chart import QUIET, QUIET_TEXT, Chart
from interp_widgets.figures.theme import PALETTE8

_NUMBERS = {"text_font_size": "12px", "text_color": QUIET_TEXT, "name": "numbers"}
"""Values at the ends of bars, also for bars of length 0."""


class AblationBars(Chart):
    """Held-out accuracy of a tuning and of its variants, with 95% intervals if there are several seeds.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), Fig. 5.4.
    """

    EMPTY: ClassVar[str] = "No comparison yet."

    def __init__(self, result: ModAblations | None = None) -> None:
        tips = [
            ("", "@name"),
            ("solved", "@y{0.0%}"),
            ("trained", "@trained{0,0} parameters"),
            ("interval", "@interval"),
        ]
        self.start(
            "mod_ablations", "Accuracy without parts of the method", ("", "problems solved"),
            columns=("x", "y", "name", "trained", "interval", "color", "text"), tooltips=tips, height=320,
            x_range=Range1d(-0.5, 2.5), y_range=Range1d(0, 1),
        )  # fmt: skip
        self.spans = ColumnDataSource({"x": [], "low": [], "high": []}, name="mod_ablations_intervals")
        bars = self.figure.vbar(x="x", top="y", width=0.6, source=self.source, fill_color="color", line_color=None)
        self.figure.text(
            x="x", y="y", text="text", y_offset=-4, text_align="center", source=self.source, **_NUMBERS
        )  # fmt: skip
        self.figure.add_layout(
            Whisker(
                base="x",
                lower="low",
                upper="high",
                source=self.spans,
                line_color=QUIET,
                line_width=2,
                level="annotation",
            )
        )
        self.base = Span(
            location=0, dimension="width", line_color=QUIET, line_dash="dashed", line_width=2, visible=False
        )
        self.figure.add_layout(self.base)
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0%")
        self.hover(bars)
        self.update(result)

    def update(self, result: ModAblations | None) -> None:
        """Show `ModAblations`, complete or partial; None shows a sentence instead."""
        if result is None:
            self.spans.data = {"x": [], "low": [], "high": []}
            self.base.visible = False
            return self.say()
        names, means = list(result.variants), np.asarray(result.accuracy, dtype=np.float64)
        known = np.isfinite(means)
        mean = np.array([row[ok].mean() if ok.any() else np.nan for row, ok in zip(means, known, strict=True)])
        half = np.asarray(result.half_width, dtype=np.float64)
        at = np.flatnonzero(np.isfinite(mean))
        sure = [index for index in at if np.isfinite(half[index])]
        self.spans.data = {
            "x": sure,
            "low": [max(0.0, mean[index] - half[index]) for index in sure],
            "high": [min(1.0, mean[index] + half[index]) for index in sure],
        }
        self.base.location, self.base.visible = float(result.base_accuracy), True
        self.figure.x_range.update(start=-0.6, end=len(names) - 0.4)
        top = max([0.1, float(result.base_accuracy), *mean[at], *self.spans.data["high"]]) * 1.15
        self.reach(y=(0, top))
        self.name_ticks(self.figure.xaxis[0], names)
        seeds = len(result.seeds)
        self.fill(
            {
                "x": at.tolist(),
                "y": mean[at].tolist(),
                "name": [names[index] for index in at],
                "trained": [int(result.trained[index]) for index in at],
                "interval": [
                    f"± {half[p]:.1%} (95%, {seeds} seeds)" if np.isfinite(half[p]) else "one seed" for p in at
                ],
                "text": [f"{mean[index]:.0%}" for index in at],
                "color": [PALETTE8[0] if index == 0 else PALETTE8[4] for index in at],
            },
            subtitle=f"{result.n_problems} held-out problems, {seeds} seed{'s' if seeds > 1 else ''}; "
            f"dashed: the base model, {float(result.base_accuracy):.0%}",
        )


class OverlapBars(Chart):
    """Number of problems that exactly these layers solve, each layer read where it was tuned.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), Fig. 4.8.
    """

    EMPTY: ClassVar[str] = "Not counted yet."

    def __init__(self, result: LateLayerLosses | None = None) -> None:
        tips = [("solved by", "@name"), ("problems", "@y")]
        self.start(
            "mod_overlap", "Problems solved, by the layers that solve them", ("problems", ""),
            columns=("x", "y", "name", "color", "text"), tooltips=tips, height=320,
            x_range=Range1d(0, 1), y_range=Range1d(0, 1),
        )  # fmt: skip
        bars = self.figure.hbar(y="x", right="y", height=0.7, source=self.source, fill_color="color", line_color=None)
        self.figure.text(
            x="y", y="x", text="text", x_offset=5, text_baseline="middle", source=self.source, **_NUMBERS
        )  # fmt: skip
        self.figure.xaxis[0].ticker.min_interval = 1  # problems are integers
        self.figure.ygrid.visible = False
        self.hidden = [*self.figure.ygrid]
        self.hover(bars)
        self.update(result)

    def update(self, result: LateLayerLosses | None) -> None:
        """Show `LateLayerLosses` with problems; None shows a sentence instead."""
        if result is None or result.partial or not result.solved.shape[1]:
            return self.say("" if result is None or not result.partial else "All layers have to be tuned first.")
        sets = sorted(result.overlap().items(), key=lambda item: (-len(item[0]), item[0]))
        names = [_layers_text(layers, len(result.layers)) for layers, _ in sets]
        counts = [count for _, count in sets]
        self.figure.y_range.update(start=len(sets) - 0.4, end=-0.6)
        end = max(1.0, 1.1 * max(counts))
        self.reach(x=(0, end))
        self.name_ticks(self.figure.yaxis[0], names)
        colors = [
            QUIET if not layers else PALETTE8[0] if len(layers) == len(result.layers) else PALETTE8[4]
            for layers, _ in sets
        ]
        shares = ", ".join(
            f"layer {layer} {share:.0%}" for layer, share in zip(result.layers, result.accuracy, strict=True)
        )
        self.fill(
            {"x": list(range(len(sets))), "y": counts, "name": names, "color": colors, "text": list(map(str, counts))},
            subtitle=f"{result.solved.shape[1]} problems; solved by {shares}",
        )


def _layers_text(layers: Sequence[int], count: int) -> str:
    if not layers:
        return "none"
    if len(layers) == count:
        return "all"
    return ("only " if len(layers) == 1 else "") + " and ".join(map(str, layers))
