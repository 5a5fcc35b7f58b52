"""Charts of clusters of hidden states."""

from interp_widgets.figures.clusters.curves import ScoreCurves
from interp_widgets.figures.clusters.states import StatePlane

__all__ = ["ScoreCurves", "StatePlane"]
