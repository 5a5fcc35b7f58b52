"""Budgets and forecasts."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

import pytest

from interp_widgets.compute.memory import Forecast, Speedometer, budget, free_bytes


@dataclass(frozen=True)
class Cost:
    flops: float
    bytes: float


def test_budget_is_a_share_of_what_is_free() -> None:
    whole = budget(share=1.0)
    assert 0 < budget() < whole
    assert budget(share=0.1) < budget(share=0.5)
    with pytest.raises(ValueError, match="share must be above 0"):
        budget(share=0)


def test_free_memory_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    real, plain = builtins.__import__, free_bytes()

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "psutil":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert free_bytes() == pytest.approx(plain, rel=0.5)


def test_speed_is_learned_from_finished_runs() -> None:
    speed = Speedometer()
    assert not speed.knows("map", "cpu")
    for flops in (1e9, 4e9, 2e9):
        speed.learn("map", "cpu", flops, 0.1 + flops / 1e10)
    assert speed.seconds("map", "cpu", 8e9) == pytest.approx(0.9)
    forecast = speed.forecast("map", "cpu", Cost(0, 123))
    assert (forecast.seconds, forecast.bytes) == (pytest.approx(0.1), 123)
    assert not speed.knows("map", "cuda:0")


@pytest.mark.parametrize(
    ("runs", "flops", "seconds"),
    [
        ([(1e9, 2.0)], 2e9, 4.0),
        ([(1e9, 2.0), (1e9, 2.0)], 3e9, 6.0),
        ([(0.0, 0.5)], 0.0, 0.5),
        ([(1e9, 2.0), (2e9, 1.0)], 5e9, 1.2),  # noise: no speed can be seen, the weighted mean remains
    ],
)
def test_forecast_with_little_to_go_by(runs: list[tuple[float, float]], flops: float, seconds: float) -> None:
    speed = Speedometer()
    for run in runs:
        speed.learn("k", "cpu", *run)
    assert speed.seconds("k", "cpu", flops) == pytest.approx(seconds)


def test_first_forecast_comes_from_a_trial() -> None:
    speed = Speedometer()
    assert 0 < speed.seconds("new", "cpu", 1e9) < 1000
    assert speed.seconds("new", "cpu", 2e9) == pytest.approx(2 * speed.seconds("new", "cpu", 1e9))


def test_forecasts_add_up() -> None:
    total = Forecast(1.0, 100) + Forecast(2.0, 50)
    assert total == Forecast(3.0, 100)
    assert Forecast(0.05, 0).describe() == "about 50 ms"
