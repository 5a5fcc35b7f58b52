"""Budgets and forecasts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from interp_widgets.compute.memory import Forecast, Speedometer, _matmul_speed, budget


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


def test_speed_is_learned_from_finished_runs() -> None:
    speed = Speedometer()
    assert not speed.knows("map", "cpu")
    speed._trials["cpu"] = 1e10
    for flops in (1e9, 4e9, 2e9):
        speed.learn("map", "cpu", flops, 0.1 + flops / 1e10)
    assert speed.seconds("map", "cpu", 8e9) == pytest.approx(0.9)
    forecast = speed.forecast("map", "cpu", Cost(0, 123))
    assert forecast.seconds == pytest.approx(0.1)
    assert forecast.bytes == 123
    assert not speed.knows("map", "cuda:0")


def speed_of(trial: float) -> Speedometer:
    """One for a device that the trial would find to make so many operations a second."""
    speed = Speedometer()
    speed._trials["cpu"] = trial
    return speed


@pytest.mark.parametrize("start", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("rate", [0.8e10, 1e10, 1.3e10])
def test_one_small_run_tells_the_start_up_time_and_the_device_the_rest(start: float, rate: float) -> None:
    """Where a kind's speed is near the device's, forecasts hold for runs of a hundred thousand times the size."""
    speed = speed_of(1e10)
    speed.learn("map", "cpu", 1e8, start + 1e8 / rate)
    for flops in (1e7, 1e8, 1e9, 1e11, 1e13):
        true = start + flops / rate
        assert true / 1.5 < speed.seconds("map", "cpu", flops) < true * 1.5 + 0.005
        if start and flops > 1e9:
            assert (start + 1e8 / rate) / 1e8 * flops > 3 * true, "a line through zero would be far off"


@pytest.mark.parametrize("rate", [1e8, 1e9, 1e11])
def test_one_long_run_tells_the_speed(rate: float) -> None:
    speed = speed_of(1e10)
    speed.learn("map", "cpu", 1e12, 0.1 + 1e12 / rate)
    for flops in (1e12, 3e12, 1e14):
        assert speed.seconds("map", "cpu", flops) == pytest.approx(flops / rate, rel=0.1)


def test_own_runs_of_several_sizes_outweigh_the_device() -> None:
    speed = speed_of(1e10)
    for flops in (1e9, 1e10, 1e11):
        speed.learn("slow", "cpu", flops, 0.2 + flops / 1e9)
    assert speed.seconds("slow", "cpu", 5e11) == pytest.approx(500.2, rel=0.05)


def test_a_device_that_the_trial_misjudges_is_known_by_other_kinds() -> None:
    speed = speed_of(1e10)
    for kind in ("a", "b", "c"):
        for flops in (1e9, 1e11):
            speed.learn(kind, "cpu", flops, 0.1 + flops / 2e9)
    assert speed.seconds("new", "cpu", 1e11) == pytest.approx(50, rel=0.1)
    speed.learn("new", "cpu", 1e8, 0.3)
    assert speed.seconds("new", "cpu", 1e11) == pytest.approx(50.3, rel=0.1)
    speed._trials["other"] = 1e10
    assert speed.seconds("new", "other", 1e11) == pytest.approx(10), "of another device nothing is known"


def test_a_trial_beside_other_work_is_corrected_by_single_runs_of_other_kinds() -> None:
    """As on a laptop that was busy when a panel opened: four kinds ran once, at 20 times the trial's speed."""
    speed = speed_of(2e9)
    for number, flops in enumerate((1e10, 1e11, 2e11, 4e11)):
        speed.learn(number, "cpu", flops, 0.3 + flops / 4e10)
    assert speed.seconds("new", "cpu", 6e11) == pytest.approx(15, rel=0.25)
    speed.learn("uncounted", "cpu", 0.0, 0.1)
    assert speed.seconds("new", "cpu", 6e11) == pytest.approx(15, rel=0.25)
    fast = speed_of(1e11)
    fast.learn("small", "cpu", 1e8, 0.3)
    assert fast.seconds("new", "cpu", 1e11) == pytest.approx(1), "a start-up time says nothing against the trial"


def test_a_short_first_run_beside_other_work_does_not_keep_the_next_from_starting() -> None:
    speed = speed_of(2e10)
    speed.learn("texts", "cpu", 1e10, 31.0)
    assert speed.seconds("texts", "cpu", 1e10) < 7, "0.5 s by the trial, ten times that and a start-up time at most"
    speed.learn("texts", "cpu", 1e10, 30.0)
    assert speed.seconds("texts", "cpu", 1e10) == pytest.approx(30, rel=0.05), "it is slow"
    quick = speed_of(2e10)
    for seconds in (31.0, 2.0):
        quick.learn("texts", "cpu", 1e10, seconds)
    assert quick.seconds("texts", "cpu", 1e10) == pytest.approx(2, rel=0.1)


def test_steps_that_wait_for_python_have_a_speed_of_their_own() -> None:
    speed = speed_of(1e10)
    speed.learn("writing", "cpu", 1e6, 0.5)
    assert speed.seconds("writing", "cpu", 6e6, own_speed=True) == pytest.approx(3.0)
    assert speed.seconds("writing", "cpu", 6e6) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("runs", "flops", "low", "high"),
    [
        ([(1e9, 2.0), (1e9, 2.0)], 1e9, 2.0, 2.0),
        ([(0.0, 0.5)], 0.0, 0.5, 0.5),
        ([(1e8, 0.4), (8e8, 0.3)], 1e9, 0.3, 0.5),  # noise: no speed can be seen
        ([(1e8, 0.3), (1.01e8, 0.4)], 1e9, 0.3, 0.5),  # sizes that are nearly the same tell no speed either
    ],
)
def test_forecast_with_little_to_go_by(runs: list[tuple[float, float]], flops: float, low: float, high: float) -> None:
    speed = speed_of(1e10)
    for run in runs:
        speed.learn("k", "cpu", *run)
    assert low - 1e-9 <= speed.seconds("k", "cpu", flops) <= high + 1e-9


def test_first_forecast_comes_from_a_trial() -> None:
    speed = Speedometer()
    assert 0 < speed.seconds("new", "cpu", 1e9) < 1000
    assert speed.seconds("new", "cpu", 2e9) == pytest.approx(2 * speed.seconds("new", "cpu", 1e9))


def test_the_trial_outlasts_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that wait for other threads at first do not count."""
    steps = iter([0.0, *[0.0, 0.02] * 4, *[0.0, 0.0004] * 100])
    now = [0.0]

    def clock() -> float:
        now[0] += next(steps)
        return now[0]

    monkeypatch.setattr("interp_widgets.compute.memory.time.perf_counter", clock)
    assert _matmul_speed("cpu") == pytest.approx(2 * 256**3 / 0.0004)


def test_forecasts_add_up() -> None:
    total = Forecast(1.0, 100) + Forecast(2.0, 50)
    assert total == Forecast(3.0, 100)
    assert Forecast(0.05, 0).describe() == "about 50 ms"
