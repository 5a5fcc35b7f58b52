"""The bias workbench: data, probes, neurons, debiasing edits, and their evaluation."""

from .workbench import BiasWorkbench

__all__ = ["BiasWorkbench"]
