"""Your own probe: a typed function as a panel."""

from .decorator import probe
from .panel import ProbePanel
from .parameters import Head, Layer, Neuron, Position, Prompt, Response, Token
from .views import CurveView, HeadView, LayerView, MatrixView, ResultView, StripView, TableView, ValueView

__all__ = [
    "CurveView", "Head", "HeadView", "Layer", "LayerView", "MatrixView", "Neuron", "Position", "ProbePanel", "Prompt",
    "Response", "ResultView", "StripView", "TableView", "Token", "ValueView", "probe",
]  # fmt: skip
