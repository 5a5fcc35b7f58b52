"""Patching: which values of one run bring the answer back in another."""

from .panel import PatchingPanel

__all__ = ["PatchingPanel"]
