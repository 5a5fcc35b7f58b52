"""Mixture of Depths: which layers each token's prediction is read from, how fast it writes, and results of tunings."""

from __future__ import annotations

from .accuracy_result import ModAblations, ModGrid
from .late_layers_result import LateLayerLosses
from .result import RoutingResult
from .routes import routing
from .solving import SolveResult, solve
from .speed import RoutingSpeed, routing_speed
from .tuning_results import ModReport

__all__ = [
    "LateLayerLosses",
    "ModAblations",
    "ModGrid",
    "ModReport",
    "RoutingResult",
    "RoutingSpeed",
    "SolveResult",
    "routing",
    "routing_speed",
    "solve",
]
