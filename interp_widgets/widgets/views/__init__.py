"""Browser views: token strip, heat map and the host of Bokeh figures."""

from __future__ import annotations

from interp_widgets.widgets.views.heatmap import Heatmap
from interp_widgets.widgets.views.token_strip import TokenStrip

__all__ = ["Heatmap", "TokenStrip"]
