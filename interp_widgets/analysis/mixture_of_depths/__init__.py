"""Mixture of Depths: which layers each token's prediction is read from, how fast it writes, and results of tunings."""

from .routes import RoutingResult, routing
from .solving import SolveResult, solve
from .speed import RoutingSpeed, routing_speed
from .tuning_results import LateLayerLosses, ModAblations, ModGrid, ModReport
