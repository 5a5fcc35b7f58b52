"""Charts of mixtures of depths: curves of a tuning, accuracies, and what late layers lose."""

from __future__ import annotations

from .bars import AblationBars, OverlapBars
from .lines import LateLayerCurves, RouteStatistic, StepCurves, TuningLoss

__all__ = ["AblationBars", "LateLayerCurves", "OverlapBars", "RouteStatistic", "StepCurves", "TuningLoss"]
