"""The curves of a tuning while it runs."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from interp_widgets.figures.mixture_of_depths.lines import STATISTICS, StepCurves
from interp_widgets.tuning.mixture_of_depths import ModStep

INTERVAL = 1.0
"""Seconds between redraws of the curves, at least."""


class Live:
    """The curves of a run as they grow; the worker adds, the panel draws copies."""

    def __init__(self, before: Any, layers: tuple[int, ...]) -> None:
        names = ("task", "distillation", "routes", *STATISTICS)
        self.layers = layers
        self.steps: dict[str, list[Any]] = {
            name: [] if before is None else np.asarray(getattr(before, name)).tolist() for name in names
        }
        self._drawn = float("-inf")

    def add(self, step: ModStep) -> None:
        """Add a step; the steps of an earlier run without a report are NaN."""
        for name, values in self.steps.items():
            value = getattr(step, name)
            unknown = (math.nan,) * len(value) if isinstance(value, tuple) else math.nan
            values += [unknown] * (step.step - len(values))
            values.append(value)

    def due(self) -> bool:
        """Whether it is time to draw again."""
        now = time.monotonic()
        if now - self._drawn < INTERVAL:
            return False
        self._drawn = now
        return True

    def curves(self) -> StepCurves:
        """A copy to draw."""
        k = len(self.layers)
        arrays = {name: np.array(values, dtype=np.float64) for name, values in self.steps.items()}
        routes, sparsity, mean, variance = (arrays[name].reshape(-1, k) for name in ("routes", *STATISTICS))
        return StepCurves(arrays["task"], arrays["distillation"], routes, sparsity, mean, variance, self.layers)
