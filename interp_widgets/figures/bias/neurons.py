"""The bias neurons of every probe: in which layers they are, and how much along the probe they write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from bokeh.models import Range1d

from interp_widgets.analysis.bias import BiasNeurons
from interp_widgets.figures.chart import QUIET, place_ticks
from interp_widgets.figures.picked_dots import PickedDots
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import VIRIDIS256


class NeuronDots(PickedDots):
    """A dot per neuron: across the probe that names it, upwards its own layer, colour and size its cosine with the
    probe; grey is no more than a random direction reaches. A tap selects a row with ``layer`` and ``neuron``.

    Source: Explainability in Large Language Models (Luo 2024), section 4.3.1, figure 4.10.
    """

    SIZE: ClassVar[tuple[int, int]] = (560, 360)
    EMPTY: ClassVar[str] = "No neurons yet."

    def __init__(self) -> None:
        tips = [("probe of layer", "@probe"), ("neuron", "@neuron of layer @layer"), ("cosine", "@cosine{0.000}"),
                ("a random direction", "@chance{0.000}")]  # fmt: skip
        columns = ("x", "y", "probe", "layer", "neuron", "cosine", "chance", "size", "color")
        self.start_dots(
            "bias_neurons", "Neurons that write along the probes", ("probe of layer", "layer of the neuron"),
            columns=columns, size="size", color_title="cosine", tooltips=tips, height=300, x_range=Range1d(0, 1),
            y_range=Range1d(0, 1),
        )  # fmt: skip

    def update(
        self, result: BiasNeurons | None, picked: tuple[int, ...] = (), *, name: str = "",
        scale: Iterable[BiasNeurons] = (),
    ) -> None:  # fmt: skip
        """Show these neurons, one of them, (layer, neuron), ringed; None shows a sentence instead.

        The colours span the cosines of all neurons of `scale`; without it those of `result`.
        """
        self.picked.data = {"x": [], "y": []}
        if result is None:
            return self.say()
        probes, k = result.cosine.shape
        layer, neuron, cosine = (values.ravel() for values in (result.layer, result.neuron, result.cosine))
        probe, chance = np.repeat(np.arange(probes), k), np.repeat(result.chance, k)
        x, y = _spread(probe, layer)
        spanned = list(scale) or [result]
        self.colors.low = float(min(min(one.chance.min(), one.cosine.min()) for one in spanned))
        self.colors.high = float(max(one.cosine.max() for one in spanned))
        share = (cosine - self.colors.low) / max(self.colors.high - self.colors.low, 1e-12)
        above = cosine > chance
        shades = [VIRIDIS256[round(255 * own)] if more else QUIET for own, more in zip(share, above, strict=True)]
        for range_, count in ((self.figure.x_range, probes), (self.figure.y_range, result.n_layers)):
            range_.update(start=-0.6, end=count - 0.4, reset_start=-0.6, reset_end=count - 0.4)
        for axis, count in ((self.figure.xaxis[0], probes), (self.figure.yaxis[0], result.n_layers)):
            place_ticks(axis, range(0, count, max(1, -(-count // 14))))
        self.figure.title.text = f"{f'{name}: ' if name else ''}neurons that write along the probes"
        numbers = (x, y, probe, layer, neuron, cosine, chance, np.where(above, 7 + 6 * share, 6))
        rows: dict[str, Any] = dict(zip(self.source.data, (one.tolist() for one in numbers), strict=False))
        self.fill(
            {**rows, "color": shades},
            subtitle=f"{int(above.sum())} of {len(cosine)} above {chance.mean():.2f}, the most by chance (grey: not)",
        )
        if picked:
            self.ring(layer=picked[0], neuron=picked[1])

    def drawing(self) -> Drawing:
        rows = dict(self.source.data)
        ends = [(axis.start, axis.end) for axis in (self.figure.x_range, self.figure.y_range)]

        def draw(sheet: Sheet, axes: Any) -> Named:
            sizes = [(0.8 * size * POINT) ** 2 for size in rows["size"]]
            dots = axes.scatter(rows["x"], rows["y"], s=sizes, c=rows["color"], lw=0)
            each = zip(rows["neuron"], rows["layer"], rows["cosine"], strict=True)
            sheet.tip(dots, [f"neuron {neuron} of layer {layer}: {cosine:.3f}" for neuron, layer, cosine in each])
            axes.set(xlim=ends[0], ylim=ends[1])
            return []

        return [], draw


def _spread(x: Any, y: Any) -> tuple[Any, Any]:
    """Places of dots so that those of one cell stand beside each other, up to five in a row."""
    x, y = np.asarray(x, dtype=np.float64).copy(), np.asarray(y, dtype=np.float64).copy()
    cells: dict[tuple[float, float], list[int]] = {}
    for index, cell in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        cells.setdefault(cell, []).append(index)
    for members in cells.values():
        lines = -(-len(members) // 5)
        for order, index in enumerate(members):
            line, column = divmod(order, 5)
            in_line = min(5, len(members) - 5 * line)
            x[index] += 0.16 * (column - (in_line - 1) / 2)
            y[index] += 0.8 / lines * ((lines - 1) / 2 - line) if lines > 1 else 0.0
    return x, y
