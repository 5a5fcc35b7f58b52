"""Browser views: token strip, heat map, table and the host of Bokeh figures."""

from __future__ import annotations

from interp_widgets.widgets.views.bokeh_figure import BokehFigure
from interp_widgets.widgets.views.heatmap import Heatmap
from interp_widgets.widgets.views.table import Table
from interp_widgets.widgets.views.token_strip import TokenStrip

__all__ = ["BokehFigure", "Heatmap", "Table", "TokenStrip"]
