"""Mixture of Depths: which layers each token's prediction is read from."""

from __future__ import annotations

from .result import RoutingResult
from .routing import routing
from .solving import SolveResult, solve
from .speed import RoutingSpeed, routing_speed

__all__ = ["RoutingResult", "RoutingSpeed", "SolveResult", "routing", "routing_speed", "solve"]
