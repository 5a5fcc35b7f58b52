"""Which parts of a model a prediction needs: parts taken out, and states put back."""

from interp_widgets.analysis.ablation.cost import ablation_cost
from interp_widgets.analysis.ablation.heads import ablate_heads
from interp_widgets.analysis.ablation.interventions import (
    Ablation,
    Filling,
    Part,
    ablation,
    mean_ablation,
    resample_ablation,
)
from interp_widgets.analysis.ablation.modules import Kind, ablate_modules
from interp_widgets.analysis.ablation.neurons import ablate_neurons
from interp_widgets.analysis.ablation.prediction import AblatedPrediction, ablated_prediction
from interp_widgets.analysis.ablation.question import Metric
from interp_widgets.analysis.ablation.replacement import Replacement
from interp_widgets.analysis.ablation.result import AblationResult, HeadAblationResult, NeuronAblationResult
from interp_widgets.analysis.ablation.tracing import causal_trace, causal_trace_cost, default_window
from interp_widgets.analysis.ablation.tracing_result import CausalTraceResult, TracedKind

__all__ = [
    "AblatedPrediction",
    "Ablation",
    "AblationResult",
    "CausalTraceResult",
    "Filling",
    "HeadAblationResult",
    "Kind",
    "Metric",
    "NeuronAblationResult",
    "Part",
    "Replacement",
    "TracedKind",
    "ablate_heads",
    "ablate_modules",
    "ablate_neurons",
    "ablated_prediction",
    "ablation",
    "ablation_cost",
    "causal_trace",
    "causal_trace_cost",
    "default_window",
    "mean_ablation",
    "resample_ablation",
]
