"""Charts of mixtures of depths: curves of a tuning, accuracies, and losses of late layers."""

from __future__ import annotations

from .bars import AblationBars, OverlapBars
from .lines import Distillation, LateLayerCurves, RouteLosses, RouteStatistic, StepCurves, TuningLoss

__all__ = [
    "AblationBars",
    "Distillation",
    "LateLayerCurves",
    "OverlapBars",
    "RouteLosses",
    "RouteStatistic",
    "StepCurves",
    "TuningLoss",
]
