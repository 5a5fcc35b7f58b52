"""Attention: where the heads of a model look, what they are known to do, and what they write."""

from interp_widgets.analysis.attention.direct_attribution import DirectLogitAttribution, direct_logit_attribution
from interp_widgets.analysis.attention.head_measures import (
    HeadMeasure,
    HeadMeasures,
    head_measures,
    head_measures_cost,
)
from interp_widgets.analysis.attention.head_scores import HeadScores, Score, head_scores, head_scores_cost
from interp_widgets.analysis.attention.head_writes import HeadWrites, head_writes, head_writes_cost
from interp_widgets.analysis.attention.in_texts import (
    AttendedToken,
    AttentionInTexts,
    attention_in_texts,
    attention_in_texts_cost,
)
from interp_widgets.analysis.attention.massive import MassiveActivations, massive_activations
from interp_widgets.analysis.attention.patterns import AttentionPatterns, attention_patterns, attention_patterns_cost
from interp_widgets.analysis.attention.reasons import AttentionReasons, attention_reasons, attention_reasons_cost
from interp_widgets.analysis.attention.word_attention import (
    PairAttention,
    PairPlace,
    WeightsAgainstText,
    weights_against_text,
    weights_against_text_cost,
)
