"""Tuning a Mixture of Depths."""

from __future__ import annotations

from .report import ModReport
from .tune import tune_mod

__all__ = ["ModReport", "tune_mod"]
