"""Your own probe: a typed function as a panel."""

from .decorator import probe
from .panel import ProbePanel
from .parameters import Head, Layer, Neuron, Position, Prompt, Response, Token

__all__ = ["Head", "Layer", "Neuron", "Position", "ProbePanel", "Prompt", "Response", "Token", "probe"]
