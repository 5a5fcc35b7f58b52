"""Token decomposition: the contribution of each token of a prompt to a prediction, layer by layer."""

from interp_widgets.analysis.token_decomposition.decomposition import Biases, decompose_tokens, decomposition_cost
from interp_widgets.analysis.token_decomposition.decomposition_result import LogitShareResult, TokenDecompositionResult
from interp_widgets.analysis.token_decomposition.logit_shares import decompose_logit
from interp_widgets.analysis.token_decomposition.part_lens import Lens, PartTokens, part_tokens
