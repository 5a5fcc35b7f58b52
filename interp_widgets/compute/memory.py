"""A memory budget, and forecasts of memory and time learned from finished runs."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median
from typing import Protocol, runtime_checkable

import psutil

BUDGET_SHARE = 0.6
"""Share of the free memory that a run may plan to use."""


@runtime_checkable
class Cost(Protocol):
    """Cost of a run, known before it starts."""

    @property
    def flops(self) -> float:
        """Floating-point operations."""

    @property
    def bytes(self) -> float:
        """Bytes at the peak, beyond the model."""


@dataclass(frozen=True)
class Forecast:
    """Predicted time and memory of a run."""

    seconds: float
    """Seconds."""
    bytes: int
    """Bytes at the peak, beyond the model."""

    def __add__(self, other: Forecast) -> Forecast:
        """The forecast of two consecutive runs."""
        return Forecast(self.seconds + other.seconds, max(self.bytes, other.bytes))

    def describe(self) -> str:
        """The forecast in words.

        >>> Forecast(1.234, 300_000_000).describe()
        'about 1.2 s, 300 MB'
        """
        memory = f", {describe_bytes(self.bytes)}" if self.bytes > 0 else ""
        return f"about {describe_seconds(self.seconds)}{memory}"


def describe_seconds(seconds: float) -> str:
    """A duration with two significant digits.

    >>> [describe_seconds(s) for s in (0.0123, 1.26, 42, 150, 7300)]
    ['12 ms', '1.3 s', '42 s', '2 min 30 s', '2 h 1 min']
    """
    if seconds < 0.9995:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def describe_bytes(count: float) -> str:
    """A number of bytes in decimal units.

    >>> [describe_bytes(n) for n in (1_500, 300e6, 2.5e9)]
    ['2 kB', '300 MB', '2.5 GB']
    """
    if count < 1e6:
        return f"{max(1, math.ceil(count / 1e3))} kB"
    if count < 1e9:
        return f"{round(count / 1e6)} MB"
    return f"{count / 1e9:.1f} GB"


def free_bytes(device: str = "cpu") -> int:
    """Bytes that are free on a device."""
    if device.startswith("cuda"):
        import torch

        torch_device = torch.device(device)
        # reserved by torch but unused
        cached = torch.cuda.memory_reserved(torch_device) - torch.cuda.memory_allocated(torch_device)
        return int(torch.cuda.mem_get_info(torch_device)[0]) + int(cached)
    return int(psutil.virtual_memory().available)


def budget(device: str = "cpu", *, share: float = BUDGET_SHARE) -> int:
    """Bytes that a run on `device` may plan to use: a share of what is free; ValueError unless 0 < share <= 1."""
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    return int(free_bytes(device) * share)


class Speedometer:
    """Speed of a device for each kind of run, learned from finished runs.

    The time of a run is modelled as a start-up time plus operations over speed. The speed depends more on the device
    than on the kind: the first run of a kind determines its start-up time, and until its own runs determine a speed,
    that of the other kinds and of a quick trial is used. Beside other work the trial may be 20 times too slow: a new
    kind is not taken to be slower than most finished runs of other kinds were, start-up included.
    """

    def __init__(self, memory: int = 16) -> None:
        self._lock = threading.Lock()
        self._memory = memory
        self._runs: dict[tuple[Hashable, str], deque[tuple[float, float]]] = {}
        self._trials: dict[str, float] = {}

    def learn(self, kind: Hashable, device: str, flops: float, seconds: float) -> None:
        """Record a finished run."""
        if flops >= 0 and seconds > 0:
            with self._lock:
                self._runs.setdefault((kind, device), deque(maxlen=self._memory)).append((float(flops), float(seconds)))

    def knows(self, kind: Hashable, device: str) -> bool:
        """Whether a run of this kind has finished."""
        return (kind, device) in self._runs

    def seconds(self, kind: Hashable, device: str, flops: float, *, own_speed: bool = False) -> float:
        """Predicted seconds of a run of this kind.

        With `own_speed`, the speed of other kinds is ignored: generation and training take many small steps that wait
        for Python, a layout multiplies no matrices. Twice the operations then take twice the time after one run.
        """
        with self._lock:
            all_runs = {key: list(runs) for key, runs in self._runs.items() if key[1] == device}
        runs = all_runs.pop((kind, device), [])
        if not flops and not any(done for done, _ in runs):  # of a kind that counts no operations
            return _fit_line(runs, 0.0)[0] if runs else 0.0
        trial = 1 / self._trial(device)
        slopes = [_fit_line(others, trial)[1] for others in all_runs.values() if _determine_speed(others)]
        expected = math.exp(median(map(math.log, [trial, *slopes])))
        counted = [[(done, took) for done, took in others if done] for others in all_runs.values()]
        if most := [min(took / done for done, took in others) for others in counted if others]:
            expected = min(expected, median(most))
        if not runs:
            return flops * expected
        if own_speed:
            expected = sum(seconds for _, seconds in runs) / max(1.0, sum(done for done, _ in runs))
        start, slope = _fit_line(runs, expected)
        return start + slope * flops

    def forecast(self, kind: Hashable, device: str, cost: Cost) -> Forecast:
        """Predicted seconds and bytes of a run of this kind and cost."""
        return Forecast(self.seconds(kind, device, float(cost.flops)), int(cost.bytes))

    def _trial(self, device: str) -> float:
        """Operations per second: four tenths of those in a small matrix product, since models do more than multiply."""
        if device not in self._trials:
            self._trials[device] = 0.4 * _matmul_speed(device)
        return self._trials[device]


START, SPEED_ERROR = 0.5, 0.4
"""Typical start-up seconds, and typical relative deviation of a kind's speed from the device's."""
SHORT, SLOWEST = 2.0, 10.0
"""A first run that should have taken so many seconds is not taken to be more than so many times slower: the first of a
model compares its routes, and other work may have been under way."""


def _determine_speed(runs: list[tuple[float, float]]) -> bool:
    """Whether the runs differ enough in size and time to determine a speed."""
    sizes, times = zip(*runs, strict=True)
    return bool(max(sizes) > 3 * min(sizes) and max(times) > 2 * min(times))


def _fit_line(runs: list[tuple[float, float]], expected: float) -> tuple[float, float]:
    """Start-up seconds and seconds per operation, both non-negative, with least squared relative error.

    Runs that do not determine a speed are treated as one; the time beyond the expected seconds per operation is
    start-up time if that is likelier than another speed.
    """
    weights = [1 / (seconds * seconds) for _, seconds in runs]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, runs, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, runs, strict=True)) / total
    if mean_x == 0:
        return mean_y, expected
    if _determine_speed(runs):
        spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, runs, strict=True))
        slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, runs, strict=True)) / spread
        start = mean_y - slope * mean_x
        if slope > 0:
            return (start, slope) if start >= 0 else (0.0, mean_y / mean_x)
    beyond = max(0.0, mean_y - expected * mean_x)
    start = min(beyond * START**2 / (START**2 + (SPEED_ERROR * expected * mean_x) ** 2), 2 * START)
    slope = (mean_y - start) / mean_x
    if len(runs) == 1 and expected * mean_x < SHORT:
        slope = min(slope, SLOWEST * expected)
    return start, slope


def _matmul_speed(device: str) -> float:
    """Operations per second in the fastest of many products: beside other work most can take 50 times as long."""
    import torch

    size = 2048 if device.startswith("cuda") else 256
    matrix = torch.ones(size, size, device=device)
    best, begun = math.inf, time.perf_counter()
    for turn in range(50):
        started = time.perf_counter()
        if turn >= 3 and started - begun > 0.1:
            break
        float((matrix @ matrix)[0, 0])  # reading a number waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / max(best, 1e-9)


speedometer = Speedometer()
"""The speedometer shared by all widgets of a process."""
