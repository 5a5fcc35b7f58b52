"""Mixture of Depths: routing weights of every token, generation speed, and results of tuning."""

from .routes import RoutingResult, routing
from .solving import SolveResult, solve
from .speed import RoutingSpeed, routing_speed
from .tuning_results import LateLayerLosses, ModAblations, ModGrid, ModReport
