"""The texts of several tasks in the plane at one layer, coloured by cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import DataRange1d, LegendItem

from interp_widgets.analysis.layer_similarity import LayerProjections
from interp_widgets.figures.chart import Chart
from interp_widgets.figures.concepts.groups import LOOKS, SHAPES, group_looks
from interp_widgets.figures.static.charts import legend, legend_room, plot, subtitle_room
from interp_widgets.figures.static.scene import POINT, Scene, Sheet

_LONGEST = 160
AXES = {"pca": "principal component {}", "tsne": "t-SNE {}", "umap": "UMAP {}"}


class ProjectionChart(Chart):
    """A point per text; its cluster (its task, where there are no clusters) as colour and shape, its text on hover.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    figure 4.
    """

    EMPTY: ClassVar[str] = "No picture yet: press Run."

    def __init__(self) -> None:
        tips = [("task", "@task"), ("cluster", "@cluster"), ("text", "@text")]
        self.start(
            "layer_projection", "Texts in the plane", ("", ""),
            columns=("x", "y", "text", "task", "cluster", "group", "color", "shape"), tooltips=tips, height=380,
            x_range=DataRange1d(), y_range=DataRange1d(), match_aspect=True,
        )  # fmt: skip
        points = self.figure.scatter(
            x="x", y="y", size=6, marker="shape", source=self.source, fill_color="color", fill_alpha=0.65,
            line_color=None, name="points",
        )  # fmt: skip
        self.legend([LegendItem(label={"field": "group"}, renderers=[points])], columns=4)
        self.hover(points)
        self.groups: dict[str, tuple[str, str]] = {}
        self.say()

    def update(self, places: LayerProjections | None, layer: int = -1, *, name: str = "") -> None:
        """Show one layer, of those placed; None shows a sentence instead."""
        if places is None:
            return self.say()
        row = int(np.flatnonzero(places.layers == layer)[0])
        xy = places.xy[row]
        if not np.isfinite(xy).all():
            return self.say(f"Layer {layer} does not vary over these texts: they all end in the same token.")
        named = [cluster or task for cluster, task in zip(places.cluster, places.task, strict=True)]
        looks, labels = group_looks(named)
        self.groups = {labels[i]: (LOOKS[i].colour, LOOKS[i].shape) for i in dict.fromkeys(looks.tolist())}
        rows: dict[str, Any] = {
            "x": xy[:, 0].tolist(), "y": xy[:, 1].tolist(), "task": list(places.task), "cluster": list(places.cluster),
            "text": [text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :] for text in places.texts],
            "group": [labels[i] for i in looks], "color": [LOOKS[i].colour for i in looks],
            "shape": [LOOKS[i].shape for i in looks],
        }  # fmt: skip
        self.figure.title.text = f"{f'{name}: ' if name else ''}texts in the plane, layer {layer}"
        for number, axis in enumerate((self.figure.xaxis[0], self.figure.yaxis[0]), start=1):
            axis.axis_label = AXES[places.method].format(number)
        return self.fill(rows)

    def scene(self, *, width: float = 520, height: float = 460) -> Scene:
        """The points on the screen as a static picture; ValueError where there are none."""
        if self.message:
            raise ValueError(f"there is nothing to draw: {self.message}")
        texts, rows, groups = self.described, dict(self.source.data), dict(self.groups)
        height += legend_room(list(groups), width) + subtitle_room(texts["subtitle"])

        def draw(sheet: Sheet) -> None:
            axes = plot(sheet, width, height, list(groups), **texts)
            axes.set_aspect("equal", adjustable="datalim")
            x, y, named = np.asarray(rows["x"]), np.asarray(rows["y"]), np.asarray(rows["group"])
            parts = []
            for name, (color, shape) in groups.items():
                own = named == name
                part = axes.scatter(x[own], y[own], s=(5 * POINT) ** 2, c=color, marker=SHAPES[shape], alpha=0.65, lw=0)
                parts.append((name, part))
            legend(axes, parts, width)

        return Scene(width, height, draw, title=texts["title"])
