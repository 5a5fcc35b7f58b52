"""Which parts of a model a prediction needs: parts taken out, and states put back."""

from interp_widgets.analysis.ablation.interventions import (
    Ablation,
    Filling,
    Part,
    ablation,
    mean_ablation,
    resample_ablation,
)
from interp_widgets.analysis.ablation.prediction import AblatedPrediction, ablated_prediction
from interp_widgets.analysis.ablation.tracing import causal_trace, causal_trace_cost, default_window
from interp_widgets.analysis.ablation.tracing_result import CausalTraceResult, TracedKind

__all__ = [
    "AblatedPrediction",
    "Ablation",
    "CausalTraceResult",
    "Filling",
    "Part",
    "TracedKind",
    "ablated_prediction",
    "ablation",
    "causal_trace",
    "causal_trace_cost",
    "default_window",
    "mean_ablation",
    "resample_ablation",
]
