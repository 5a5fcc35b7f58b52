"""Forecasts that do not depend on how busy the machine is.

A panel answers a change by itself if the run is forecast to be short, and otherwise waits for *Run*. The forecast
learns from how long earlier runs took, here those of all tests in a process: beside other work, or after other tests,
the same panel would wait where it answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from interp_widgets.compute.memory import Speedometer, speedometer

SPEED = 2e10
"""Operations per second, about those of one core."""
START = 0.01
"""Seconds that a run takes besides."""


def steady_forecasts(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let every forecast of this process assume one speed, whatever runs took and take.

    `replace` sets an attribute; that of a `MonkeyPatch` undoes it after the test.
    """

    def learn(kind: Hashable, device: str, flops: float, seconds: float) -> None:
        Speedometer.learn(speedometer, kind, device, flops, START + flops / SPEED)

    replace(speedometer, "_runs", {})
    replace(speedometer, "_trial", lambda device: SPEED)
    replace(speedometer, "learn", learn)
