"""Where texts stand along a probe and along the second one, at right angles to it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import DataRange1d, LegendItem

from interp_widgets.analysis.bias import BiasProbes
from interp_widgets.figures.chart import DrawnChart
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet
from interp_widgets.figures.theme import PALETTE8

KINDS = {True: ("biased", PALETTE8[5], "circle"), False: ("benign", PALETTE8[2], "triangle")}
_LONGEST = 120


class BiasGeometry(DrawnChart):
    """The texts' states of one layer along its probe θ and the second probe θ′, from their mean; axes on one scale.

    Source: Explainability in Large Language Models (Luo 2024), section 4.3.1, figure 4.9.
    """

    SIZE: ClassVar[tuple[int, int]] = (460, 340)
    EMPTY: ClassVar[str] = "No probes yet."

    def __init__(self) -> None:
        tips = [("", "@kind"), ("text", "@text"), ("about", "@group")]
        self.start(
            "bias_geometry", "Texts along both probes", ("along θ", "along θ′"),
            columns=("x", "y", "text", "group", "kind", "color", "marker"), tooltips=tips, height=280,
            x_range=DataRange1d(), y_range=DataRange1d(), match_aspect=True,
        )  # fmt: skip
        points = self.figure.scatter(
            x="x", y="y", size=7, marker="marker", source=self.source, fill_color="color", fill_alpha=0.65,
            line_color=None, name="points",
        )  # fmt: skip
        self.legend([LegendItem(label={"field": "kind"}, renderers=[points])])
        self.hover(points)
        self.say()

    def update(self, probes: BiasProbes | None, layer: int = -1, *, name: str = "") -> None:
        """Show one layer of these probes; None shows a sentence instead."""
        if probes is None:
            return self.say()
        sides = [KINDS[bool(biased)] for biased in probes.biased]
        along = probes.projection[layer]
        rows: dict[str, Any] = {
            "x": along[:, 0].tolist(), "y": along[:, 1].tolist(), "group": list(probes.groups),
            "text": [text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…" for text in probes.texts],
            "kind": [side[0] for side in sides], "color": [side[1] for side in sides],
            "marker": [side[2] for side in sides],
        }  # fmt: skip
        number = layer % probes.n_layers
        self.figure.title.text = f"{f'{name}: ' if name else ''}texts along both probes, layer {number}"
        first, second = probes.auc[number].mean(), probes.second_auc[number].mean()
        self.fill(rows, subtitle=f"held-out AUC {first:.2f}, of θ′ {second:.2f}")

    def drawing(self) -> Drawing:
        rows, names = dict(self.source.data), [kind for kind, _, _ in KINDS.values()]

        def draw(sheet: Sheet, axes: Any) -> Named:
            axes.set_aspect("equal", adjustable="datalim")
            x, y, kinds = np.asarray(rows["x"]), np.asarray(rows["y"]), np.asarray(rows["kind"])
            parts = []
            for kind, color, marker in KINDS.values():
                own, shape = kinds == kind, {"circle": "o", "triangle": "^"}[marker]
                part = axes.scatter(x[own], y[own], s=(6 * POINT) ** 2, c=color, marker=shape, alpha=0.65, lw=0)
                parts.append((kind, part))
            return parts

        return names, draw
