"""Prompt saliency: the importance of each prompt token for each response token."""

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.statistics import GroupComparison, compare_groups, compare_many, holm
from interp_widgets.analysis._core.targets import Target
from interp_widgets.analysis.saliency.attribution import prompt_saliency, saliency_cost
from interp_widgets.analysis.saliency.dataset import saliency_dataset
from interp_widgets.analysis.saliency.dataset_result import ResponseLength, SaliencyDatasetResult
from interp_widgets.analysis.saliency.density import (
    FLOOR,
    importance_density,
    instruction_score,
    normalize_importance,
    position_profile,
    sentence_profiles,
    sentence_spans,
)
from interp_widgets.analysis.saliency.faithfulness import (
    FaithfulnessResult,
    RankAgreement,
    faithfulness,
    rank_agreement,
)
from interp_widgets.analysis.saliency.saliency_result import Method, SaliencyResult, spans_to_mask
