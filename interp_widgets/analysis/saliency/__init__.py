"""Which prompt tokens made the model write which response tokens."""

from interp_widgets.analysis.saliency.density import (
    importance_density,
    instruction_score,
    normalise_importance,
    position_profile,
    sentence_profiles,
    sentence_spans,
)
from interp_widgets.analysis.saliency.result import Method, SaliencyResult, Target, spans_to_mask

__all__ = [
    "Method",
    "SaliencyResult",
    "Target",
    "importance_density",
    "instruction_score",
    "normalise_importance",
    "position_profile",
    "sentence_profiles",
    "sentence_spans",
    "spans_to_mask",
]
