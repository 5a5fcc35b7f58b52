"""Ablation: which parts of the model a prediction needs."""

from .panel import AblationPanel

__all__ = ["AblationPanel"]
