"""The Grid tab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.figures.static import Scene

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


class GridTab:
    """To come."""

    def __init__(self, panel: MoDRoutingViewer) -> None:
        self.panel = panel
        self.last: Any = None
        self.box = W.VBox([])

    def scene(self) -> Scene:
        raise ValueError("there is nothing to draw yet: press a button first")
