"""Points in the plane, their groups as colours and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from bokeh.models import DataRange1d, LegendItem
from numpy.typing import ArrayLike

from interp_widgets.figures.chart import DrawnChart
from interp_widgets.figures.concepts.groups import LOOKS, SHAPES, group_looks
from interp_widgets.figures.static.charts import Drawing, Named
from interp_widgets.figures.static.scene import POINT, Sheet

_LONGEST = 160


class Plane(DrawnChart):
    """A point per text; its group as colour and shape, its text and other values on hover."""

    SIZE: ClassVar[tuple[int, int]] = (520, 460)
    TIPS: tuple[str, ...] = ()
    """Tooltip columns of a point besides its text."""

    def __init__(self, name: str, title: str, *, height: int = 380) -> None:
        tips = [*((tip.replace("_", " "), f"@{tip}") for tip in self.TIPS), ("text", "@text")]
        self.start(
            name, title, ("", ""), columns=("x", "y", "text", *self.TIPS, "group", "color", "shape"), tooltips=tips,
            height=height, x_range=DataRange1d(), y_range=DataRange1d(), match_aspect=True,
        )  # fmt: skip
        points = self.figure.scatter(
            x="x", y="y", size=6, marker="shape", source=self.source, fill_color="color", fill_alpha=0.65,
            line_color=None, name="points",
        )  # fmt: skip
        self.legend([LegendItem(label={"field": "group"}, renderers=[points])], columns=4)
        self.hover(points)
        self.groups: dict[str, tuple[str, str]] = {}
        self.say()

    def place(
        self, xy: ArrayLike, groups: Sequence[str], texts: Sequence[str], more: Mapping[str, Sequence[str]],
        *, axes: str, subtitle: str = "",
    ) -> None:  # fmt: skip
        """Show points (points, 2) of these groups; `axes` names an axis, with ``{}`` for its number."""
        places = np.asarray(xy, dtype=np.float64)
        looks, labels = group_looks(list(groups))
        self.groups = {labels[i]: (LOOKS[i].colour, LOOKS[i].shape) for i in dict.fromkeys(looks.tolist())}
        rows: dict[str, Any] = {
            "x": places[:, 0].tolist(), "y": places[:, 1].tolist(),
            **{name: list(values) for name, values in more.items()},
            "text": [text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :] for text in texts],
            "group": [labels[i] for i in looks], "color": [LOOKS[i].colour for i in looks],
            "shape": [LOOKS[i].shape for i in looks],
        }  # fmt: skip
        for number, axis in enumerate((self.figure.xaxis[0], self.figure.yaxis[0]), start=1):
            axis.axis_label = axes.format(number)
        self.fill(rows, subtitle=subtitle)

    def drawing(self) -> Drawing:
        rows, groups = dict(self.source.data), dict(self.groups)

        def draw(sheet: Sheet, axes: Any) -> Named:
            axes.set_aspect("equal", adjustable="datalim")
            x, y, named = np.asarray(rows["x"]), np.asarray(rows["y"]), np.asarray(rows["group"])
            parts = []
            for name, (color, shape) in groups.items():
                members = named == name
                part = axes.scatter(
                    x[members], y[members], s=(5 * POINT) ** 2, c=color, marker=SHAPES[shape], alpha=0.65, lw=0
                )
                parts.append((name, part))
            return parts

        return list(groups), draw
