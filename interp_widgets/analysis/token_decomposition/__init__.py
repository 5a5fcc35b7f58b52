"""What each token of a prompt brought to a prediction, layer by layer."""

from interp_widgets.analysis.token_decomposition.cost import decomposition_cost
from interp_widgets.analysis.token_decomposition.decompose import decompose_tokens
from interp_widgets.analysis.token_decomposition.lens import Lens
from interp_widgets.analysis.token_decomposition.logit import decompose_logit
from interp_widgets.analysis.token_decomposition.parts import Biases
from interp_widgets.analysis.token_decomposition.reading import PartTokens, part_tokens
from interp_widgets.analysis.token_decomposition.result import LogitShareResult, TokenDecompositionResult

__all__ = [
    "Biases",
    "Lens",
    "LogitShareResult",
    "PartTokens",
    "TokenDecompositionResult",
    "decompose_logit",
    "decompose_tokens",
    "decomposition_cost",
    "part_tokens",
]
