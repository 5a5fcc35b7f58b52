"""Charts of prompt saliency: densities, faithfulness, groups of scores, position in the sentence.

Each class makes its figure once; `update` shows another result in it. Nothing here runs a model.
"""

from interp_widgets.figures.saliency.density import CONTEXT, SPECIAL, DensityBars
from interp_widgets.figures.saliency.faithfulness import Curve, FaithfulnessCurves, method_color
from interp_widgets.figures.saliency.groups import GroupStrips
from interp_widgets.figures.saliency.profile import PositionProfile

__all__ = [
    "CONTEXT",
    "SPECIAL",
    "Curve",
    "DensityBars",
    "FaithfulnessCurves",
    "GroupStrips",
    "PositionProfile",
    "method_color",
]
