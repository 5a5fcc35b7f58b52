"""The workbench of bias: data, probes, neurons, edits, and what they cost."""

from .workbench import BiasWorkbench

__all__ = ["BiasWorkbench"]
