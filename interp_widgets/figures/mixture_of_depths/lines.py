"""Lines over the steps of a tuning: its loss, the statistics of its routes, and the losses of late layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import LegendItem, Range1d
from numpy.typing import NDArray

from interp_widgets.analysis.mixture_of_depths import LateLayerLosses, ModReport
from interp_widgets.figures.chart import QUIET, Chart, empty_source
from interp_widgets.figures.theme import PALETTE8

Numbers = NDArray[np.floating[Any]]
Statistic = Literal["sparsity", "mean", "variance"]
STATISTICS: tuple[Statistic, ...] = ("sparsity", "mean", "variance")
MOST = 600
"""Most points per line; with more steps, evenly spaced ones are drawn."""
WINDOW = 10
"""Window of the running mean of the loss, in steps."""
NOISY = 100
"""Steps above which the statistics are smoothed too, since single batches would fill the plot."""


@dataclass(frozen=True)
class StepCurves:
    """The curves of a tuning so far; a `ModReport` has the same fields."""

    task: Numbers
    """(n,) nats."""
    distillation: Numbers
    """(n,) nats; NaN if the term is left out."""
    routes: Numbers
    """(n, k) nats: each route's own loss; NaN if the routes were not read out alone."""
    sparsity: Numbers
    """(n, k) share of weights below 1e-5."""
    mean: Numbers
    """(n, k) mean weight."""
    variance: Numbers
    """(n, k) variance of the weight."""
    layers: Sequence[int]
    """(k,) the layer of each route."""


@dataclass(frozen=True)
class Drawn:
    """One line."""

    name: str
    values: Numbers
    """One number per step, from step 1 on."""
    color: str
    width: float = 2.0
    dash: str = "solid"


def running_mean(values: Numbers, window: int = WINDOW) -> Numbers:
    """The mean of the last ``window`` numbers (of fewer at the start); NaN is left out.

    >>> running_mean(np.array([1.0, 3.0, 5.0]), 2).tolist()
    [1.0, 2.0, 4.0]
    """
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    held = counts[ends] - counts[starts]
    means: Numbers = np.where(held > 0, (sums[ends] - sums[starts]) / np.maximum(held, 1), np.nan)
    return means


class StepLines(Chart):
    """Named lines over steps; derived classes define the quantity."""

    def __init__(self, name: str, title: str, y_label: str, *, form: str = "0.000", height: int = 240) -> None:
        tips = [("", "@name"), ("step", "@x"), (y_label, f"@y{{{form}}}")]
        self.start(
            name, title, ("step", y_label), columns=("x", "y", "name", "color"), tooltips=tips, height=height,
            x_range=Range1d(0, 1), y_range=Range1d(0, 1),
        )  # fmt: skip
        self.figure.xaxis[0].ticker.min_interval = 1  # steps are integers
        self.lines = empty_source(f"{name}_lines", ("xs", "ys", "name", "color", "width", "dash"))
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_width="width", line_dash="dash", name="lines"
        )
        points = self.figure.scatter(
            x="x", y="y", size=7, source=self.source, fill_color="color", line_color=None, fill_alpha=0.0,
            hover_fill_alpha=1.0, name="points",
        )  # fmt: skip
        self.drawn: tuple[Drawn, ...] = ()
        """The lines with all their steps, of which the figure draws some."""
        self.legend([LegendItem(label={"field": "name"}, renderers=[drawn])], columns=4)
        self.hover(points)

    def put(self, lines: Sequence[Drawn], steps: int, *, ends: Sequence[float] = (), subtitle: str = "") -> None:
        """Draw lines on an axis of this many steps, on a scale that includes all their values and ``ends``."""
        held: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        self.drawn = tuple(lines)
        numbers = list(ends)
        for line in lines:
            at = _places(len(line.values))
            xs, ys = (at + 1).tolist(), np.asarray(line.values, dtype=np.float64)[at]
            numbers += ys[np.isfinite(ys)].tolist()
            entries = {"xs": xs, "ys": ys.tolist(), "name": line.name, "color": line.color, "width": line.width}
            for column, entry in (entries | {"dash": line.dash}).items():
                held[column].append(entry)
            known = np.isfinite(ys)
            rows["x"] += (at[known] + 1).tolist()
            rows["y"] += ys[known].tolist()
            rows["name"] += [line.name] * int(known.sum())
            rows["color"] += [line.color] * int(known.sum())
        self.lines.data = held
        low, high = min(numbers), max(numbers)
        room = 0.04 * ((high - low) or 1.0)
        self.reach(y=(low - room, high + room))
        last = max(steps, 2) + 0.02 * max(steps, 2)
        first = 1 - 0.02 * max(steps, 2)
        self.reach(x=(first, last))
        self.fill(rows, subtitle=subtitle)

    def clear(self, sentence: str = "") -> None:
        """Show a sentence in place of lines."""
        self.drawn = ()
        self.lines.data = {column: [] for column in self.lines.data}
        self.say(sentence)


def _places(count: int) -> NDArray[np.int64]:
    """The steps to draw: all, or if there are many, evenly spaced ones and the last."""
    step = max(1, -(-count // MOST))
    steps = np.arange(count - 1, -1, -step)[::-1]
    return steps.astype(np.int64)


class TuningLoss(StepLines):
    """The loss of a tuning, batch by batch and smoothed.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.1.
    """

    EMPTY: ClassVar[str] = "No tuning yet: press Tune."

    def __init__(self) -> None:
        super().__init__("mod_loss", "Loss of the ensemble", "nats per token")
        self.update(None)

    def update(self, curves: StepCurves | ModReport | None, steps: int = 0) -> None:
        """Show the curves so far of a tuning of this many steps; None shows a sentence instead."""
        if curves is None or not len(curves.task):
            return self.clear("The first step is under way." if curves is not None else "")
        task = np.asarray(curves.task)
        lines = [
            Drawn("each batch", task, QUIET, 1.0),
            Drawn(f"mean of {WINDOW} batches", running_mean(task), PALETTE8[0], 2.5),
        ]
        last = float(running_mean(task)[-1])
        self.put(
            lines,
            max(steps, len(task)),
            subtitle=f"step {len(task)}: {last:.3f} nats (mean of {min(WINDOW, len(task))})",
        )


class RouteLosses(StepLines):
    """The loss of each route read alone beside that of the ensemble, smoothed.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.1.
    """

    EMPTY: ClassVar[str] = "No tuning yet: press Tune."
    TITLE: ClassVar[str] = "Loss of each layer read alone"

    def __init__(self) -> None:
        super().__init__("mod_routes", self.TITLE, "nats per token")
        self.update(None)

    def update(self, curves: StepCurves | ModReport | None, steps: int = 0) -> None:
        """Show the curves so far of a tuning of this many steps; None shows a sentence instead."""
        if curves is None or not len(curves.task):
            return self.clear("The first step is under way." if curves is not None else "")
        if not np.isfinite(curves.routes).any():
            return self.clear("With λ = 0 no layer is read alone.")
        lines = [
            Drawn(f"layer {layer}", running_mean(curves.routes[:, route]), PALETTE8[route % len(PALETTE8)])
            for route, layer in enumerate(curves.layers)
        ]
        lines.append(Drawn("ensemble", running_mean(np.asarray(curves.task)), QUIET, 2.5, "dashed"))
        self.put(lines, max(steps, len(curves.task)), subtitle=f"means of {WINDOW} batches")


class Distillation(StepLines):
    """The distillation term: how far the earlier routes are from the last one.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.1.
    """

    EMPTY: ClassVar[str] = "No tuning yet: press Tune."
    TITLE: ClassVar[str] = "Divergence of earlier layers from the last"

    def __init__(self) -> None:
        super().__init__("mod_distillation", self.TITLE, "nats per token")
        self.update(None)

    def update(self, curves: StepCurves | ModReport | None, steps: int = 0) -> None:
        """Show the curves so far of a tuning of this many steps; None shows a sentence instead."""
        if curves is None or not len(curves.task):
            return self.clear("The first step is under way." if curves is not None else "")
        if not np.isfinite(curves.distillation).any():
            return self.clear("The distillation term is left out: λ = 0.")
        lines = [Drawn("sum over layers", running_mean(np.asarray(curves.distillation)), PALETTE8[1])]
        self.put(
            lines, max(steps, len(curves.task)), ends=(0.0,),
            subtitle=f"KL, means of {WINDOW} batches; λ times this is added to the loss",
        )  # fmt: skip


class RouteStatistic(StepLines):
    """One statistic of every route's weight over the steps of a tuning.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), Fig. 5.2
    (sparsity) and Fig. C.1 (mean, variance).
    """

    EMPTY: ClassVar[str] = "No tuning yet: press Tune."
    TITLES: ClassVar[dict[str, str]] = {
        "sparsity": "Sparsity: tokens with a weight below 1e-5",
        "mean": "Mean weight of each route",
        "variance": "Variance of each route's weight",
    }
    AXES: ClassVar[dict[str, str]] = {"sparsity": "share of tokens", "mean": "weight", "variance": "weight²"}
    MOST: ClassVar[dict[str, float]] = {"sparsity": 0.1, "mean": 1.0, "variance": 0.05}

    def __init__(self, kind: Statistic) -> None:
        if kind not in STATISTICS:
            raise ValueError(f"kind must be one of {', '.join(STATISTICS)}, got {kind!r}")
        self.kind = kind
        super().__init__(f"mod_{kind}", self.TITLES[kind], self.AXES[kind])
        self.update(None)

    def update(self, curves: StepCurves | ModReport | None, steps: int = 0) -> None:
        """Show the curves so far of a tuning of this many steps; None shows a sentence instead."""
        if curves is None or not len(curves.task):
            return self.clear("The first step is under way." if curves is not None else "")
        values = np.asarray(getattr(curves, self.kind))
        smooth = len(values) >= NOISY
        lines = [
            Drawn(
                f"layer {layer}", running_mean(values[:, route]) if smooth else values[:, route],
                PALETTE8[route % len(PALETTE8)],
            )
            for route, layer in enumerate(curves.layers)
        ]  # fmt: skip
        subtitle = f"means of {WINDOW} batches" if smooth else ""
        self.put(lines, max(steps, len(values)), ends=(0.0, self.MOST[self.kind]), subtitle=subtitle)


class LateLayerCurves(StepLines):
    """Loss of each late layer: solid in a tuning of its own, dashed while the last layer is tuned.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.2,
    Fig. 4.7.
    """

    EMPTY: ClassVar[str] = "No curves yet."

    def __init__(self) -> None:
        super().__init__("mod_late_layers", "Loss of late layers", "nats per token", height=320)
        self.update(None)

    def update(self, result: LateLayerLosses | None) -> None:
        """Show `LateLayerLosses`, whole or partial; None shows a sentence instead."""
        if result is None:
            return self.clear()
        lines = []
        for index, layer in enumerate(result.layers):
            color = PALETTE8[index % len(PALETTE8)]
            for name, dash, values in (("tuned", "solid", result.explicit), ("not tuned", "dashed", result.implicit)):
                last = index == len(result.layers) - 1
                if np.isfinite(values[:, index]).any() and not (last and name == "not tuned"):
                    lines.append(Drawn(f"layer {layer}, {name}", running_mean(values[:, index]), color, 2.0, dash))
        tuned = [index for index in range(len(result.layers)) if np.isfinite(result.explicit[:, index]).all()]
        so_far = (
            "" if len(tuned) == len(result.layers) else f" · {len(tuned)} of {len(result.layers)} layers tuned so far"
        )
        self.put(
            lines,
            len(result.implicit),
            subtitle=f"means of {WINDOW} batches; not tuned: read while the last layer is tuned{so_far}",
        )
