"""The parts of the map of concepts, made once: dots, arrows, rings with names, tools, legend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bokeh.models import (
    Arrow,
    BoxSelectTool,
    ColumnDataSource,
    GlyphRenderer,
    HoverTool,
    LassoSelectTool,
    LegendItem,
    PanTool,
    Scatter,
    TapTool,
    VeeHead,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)

from interp_widgets.figures.chart import empty_source

MANY_POINTS = "many points"
"""Tag of a scatter that the page draws as one image instead of dot by dot; read by `views/bokeh_points.js`."""
NAMES = "names where there is room"
"""Tag of the rings, above which the page writes the points' names; read by `views/bokeh_map.js`, as is"""
EQUAL_ASPECT = "equal aspect"
"""the tag of a figure with equal aspect."""


def draw_points(figure: Any, source: ColumnDataSource) -> Any:
    """A dot for each concept."""
    points = figure.scatter(
        x="x", y="y", size=6, source=source, marker="shape", fill_color="color", line_color=None, fill_alpha=0.75,
        selection_fill_alpha=1.0, nonselection_fill_alpha=0.2, name="points",
    )  # fmt: skip
    points.tags = [MANY_POINTS]
    return points


def draw_arrows(figure: Any) -> ColumnDataSource:
    """Arrows from (x0, y0) to (x1, y1); their source."""
    source = empty_source("concept_map_arrows", ("x0", "y0", "x1", "y1", "color"))
    ends = {"x_start": "x0", "y_start": "y0", "x_end": "x1", "y_end": "y1"}
    head = VeeHead(size=8, line_color="color", fill_color="color")
    figure.add_layout(Arrow(source=source, end=head, line_color="color", line_width=1.5, **ends))
    return source


def draw_marks(figure: Any) -> ColumnDataSource:
    """Rings, and all names above them; their source."""
    source = empty_source("concept_map_marks", ("x", "y", "size", "color", "name", "chosen"))
    rings = figure.scatter(
        x="x", y="y", size="size", source=source, fill_color=None, line_color="color", line_width=2.5, name="marks"
    )
    rings.tags = [NAMES]
    return source


def add_tools(figure: Any, points: Any, tooltips: list[tuple[str, str]]) -> None:
    """Tools for the dots; dragging moves the map, and Ctrl with the wheel zooms, as on the heat maps."""
    pan, wheel, renderers = PanTool(), WheelZoomTool(modifiers={"ctrl": True}), [points]
    figure.add_tools(
        pan, wheel, ZoomInTool(), ZoomOutTool(), LassoSelectTool(renderers=renderers, continuous=False),
        BoxSelectTool(renderers=renderers), TapTool(renderers=renderers), "reset", "save",
        HoverTool(tooltips=tooltips, renderers=renderers, limit=6, name="hover"),
    )  # fmt: skip
    figure.toolbar.active_drag, figure.toolbar.active_scroll = pan, wheel
    figure.toolbar.autohide = False


def legend_items(figure: Any, looks: Iterable[tuple[str, str]]) -> list[LegendItem]:
    """A legend entry for each colour and shape, hidden until it has a label."""
    nowhere = ColumnDataSource({"x": [float("nan")], "y": [float("nan")]})  # a legend draws no glyph without a row
    dots = [
        GlyphRenderer(
            data_source=nowhere,
            glyph=Scatter(x="x", y="y", size=9, marker=shape, fill_color=color, line_color=None),
        )
        for color, shape in looks
    ]
    figure.renderers.extend(dots)
    return [LegendItem(label="", renderers=[dot], visible=False) for dot in dots]
