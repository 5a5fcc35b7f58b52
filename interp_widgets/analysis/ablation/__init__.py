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

__all__ = [
    "AblatedPrediction",
    "Ablation",
    "Filling",
    "Part",
    "ablated_prediction",
    "ablation",
    "mean_ablation",
    "resample_ablation",
]
