"""Tuning a Mixture of Depths."""

from __future__ import annotations

from .accuracy import ABLATIONS, ModAblations, ModGrid, mod_ablations, mod_grid
from .late_layers import LateLayerLosses, late_layer_losses
from .report import ModReport
from .trainer import ModStep
from .tune import tune_mod

__all__ = [
    "ABLATIONS",
    "LateLayerLosses",
    "ModAblations",
    "ModGrid",
    "ModReport",
    "ModStep",
    "late_layer_losses",
    "mod_ablations",
    "mod_grid",
    "tune_mod",
]
