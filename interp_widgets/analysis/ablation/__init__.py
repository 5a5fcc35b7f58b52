"""Which parts of a model a prediction needs: ablation removes parts, causal tracing restores clean states."""

from interp_widgets.analysis.ablation.ablated_prediction import AblatedPrediction, ablated_prediction
from interp_widgets.analysis.ablation.ablated_writing import AblatedTextResult, ablated_text
from interp_widgets.analysis.ablation.contexts import (
    Ablation,
    Part,
    ReplacementKind,
    ablation,
    mean_ablation,
    resample_ablation,
)
from interp_widgets.analysis.ablation.map_results import AblationResult, HeadAblationResult, NeuronAblationResult
from interp_widgets.analysis.ablation.maps import Kind, ablate_heads, ablate_modules, ablate_neurons, ablation_cost
from interp_widgets.analysis.ablation.metric import Metric
from interp_widgets.analysis.ablation.replacement import Replacement
from interp_widgets.analysis.ablation.tracing import (
    CausalTraceResult,
    TracedKind,
    causal_trace,
    causal_trace_cost,
    default_window,
)
