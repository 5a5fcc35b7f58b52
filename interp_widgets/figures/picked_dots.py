"""Dots coloured by a value, of which one is ringed: the base of the charts of heads and of neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColorBar, LinearColorMapper, TapTool

from interp_widgets.figures.chart import QUIET_TEXT, DrawnChart, empty_source
from interp_widgets.figures.theme import MARK, VIRIDIS256


class PickedDots(DrawnChart):
    """Dots at ``x`` and ``y`` with a ``color``, a colour bar, and a ring; a tap selects a row of the source."""

    def start_dots(
        self, name: str, title: str, axes: tuple[str, str], *, columns: Sequence[str], color_title: str,
        size: float | str, tooltips: Sequence[tuple[str, str]], height: int, **ranges: Any,
    ) -> None:  # fmt: skip
        """`Chart.start`, and the glyphs; ``size`` is that of all dots or the column of their sizes."""
        self.start(name, title, axes, columns=columns, tooltips=tooltips, height=height, **ranges)
        self.colors = LinearColorMapper(palette=list(VIRIDIS256), low=0, high=1)
        self.picked = empty_source(f"{name}_picked", ("x", "y"))
        dots = self.figure.scatter(
            x="x", y="y", size=size, source=self.source, fill_color="color", line_color=None, fill_alpha=0.9,
            nonselection_fill_alpha=0.9, name=f"{name}_dots",
        )  # fmt: skip
        self.figure.scatter(
            x="x", y="y", size=18, source=self.picked, fill_color=None, line_color=MARK, line_width=2.5, name="picked"
        )
        self.figure.add_layout(
            ColorBar(
                color_mapper=self.colors, width=10, title=color_title, background_fill_alpha=0,
                title_text_font_style="normal", title_text_color=QUIET_TEXT, major_label_text_color=QUIET_TEXT,
            ),
            "right",
        )  # fmt: skip
        self.figure.add_tools(TapTool(renderers=[dots]))
        self.hover(dots)
        self.say()

    def ring(self, **values: int) -> None:
        """Ring the dots with these values in the columns of the same names."""
        rows = self.source.data
        columns = zip(*(rows[name] for name in values), strict=True)
        own = [i for i, place in enumerate(columns) if place == tuple(values.values())]
        self.picked.data = {"x": [rows["x"][i] for i in own], "y": [rows["y"][i] for i in own]}
