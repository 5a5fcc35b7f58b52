"""Tuning a Mixture of Depths."""

from __future__ import annotations

from .accuracy import ABLATIONS, ModAblations, ModGrid, mod_ablations, mod_grid
from .report import ModReport
from .trainer import ModStep
from .tune import tune_mod

__all__ = ["ABLATIONS", "ModAblations", "ModGrid", "ModReport", "ModStep", "mod_ablations", "mod_grid", "tune_mod"]
