"""Tuning a Mixture of Depths."""

from __future__ import annotations

from interp_widgets.analysis.mixture_of_depths import LateLayerLosses, ModAblations, ModGrid, ModReport

from .accuracy import ABLATIONS, mod_ablations, mod_grid
from .late_layers import late_layer_losses
from .trainer import ModStep
from .tune import tune_mod
from .untrained import untrained_mod

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
    "untrained_mod",
]
