"""Charts of mixtures of depths: the numbers drawn are those of the results, long and partial ones too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interp_widgets.figures.mixture_of_depths import (
    AblationBars,
    Distillation,
    LateLayerCurves,
    OverlapBars,
    RouteLosses,
    RouteStatistic,
    StepCurves,
    TuningLoss,
)
from interp_widgets.figures.mixture_of_depths.lines import MOST, STATISTICS, running_mean
from interp_widgets.tuning.mixture_of_depths import LateLayerLosses, ModAblations

NAN = float("nan")


def curves(steps: int, k: int = 3, *, distilled: bool = True) -> StepCurves:
    rng = np.random.default_rng(0)
    per_route = [rng.random((steps, k)) for _ in STATISTICS]
    apart = 20 * rng.random(steps) if distilled else np.full(steps, NAN)
    alone = rng.random((steps, k)) if distilled else np.full((steps, k), NAN)
    return StepCurves(rng.random(steps), apart, alone, *per_route, tuple(range(3, 3 + k)))


def lines_of(chart: Any) -> dict[str, list[float]]:
    return dict(zip(chart.lines.data["name"], chart.lines.data["ys"], strict=True))


def naive_mean(values: list[float], window: int) -> list[float]:
    found = []
    for end in range(1, len(values) + 1):
        held = [v for v in values[max(0, end - window) : end] if v == v]
        found.append(sum(held) / len(held) if held else NAN)
    return found


def test_running_mean() -> None:
    values = [1.0, 5.0, NAN, 2.0, 8.0, 3.0, NAN, NAN, NAN]
    for window in (1, 2, 3, 10):
        np.testing.assert_allclose(running_mean(np.array(values), window), naive_mean(values, window))
    assert not np.allclose(running_mean(np.array(values[:2]), 2), naive_mean(values[:2], 1)), "the window counts"


def test_loss() -> None:
    chart, given = TuningLoss(), curves(40)
    assert "press Tune" in chart.message
    chart.update(given, 100)
    drawn = lines_of(chart)
    np.testing.assert_allclose(drawn["each batch"], given.task)
    np.testing.assert_allclose(drawn["mean of 10 batches"], naive_mean(given.task.tolist(), 10))
    assert (chart.message, chart.figure.x_range.end > 100) == ("", True)
    assert chart.figure.y_range.end < 1.1, "the divergence, which is many times larger, does not flatten the loss"
    chart.update(curves(0))
    assert "first step" in chart.message
    assert lines_of(chart) == {}


def test_losses_of_layers_and_their_divergence() -> None:
    routes, apart, given = RouteLosses(), Distillation(), curves(40)
    routes.update(given)
    apart.update(given)
    drawn = lines_of(routes)
    assert list(drawn) == ["layer 3", "layer 4", "layer 5", "ensemble"]
    for route, layer in enumerate(given.layers):
        np.testing.assert_allclose(drawn[f"layer {layer}"], naive_mean(given.routes[:, route].tolist(), 10))
    np.testing.assert_allclose(drawn["ensemble"], naive_mean(given.task.tolist(), 10))
    np.testing.assert_allclose(lines_of(apart)["sum over layers"], naive_mean(given.distillation.tolist(), 10))
    for chart in (routes, apart):
        chart.update(curves(40, distilled=False))
        assert lines_of(chart) == {}
        assert "λ = 0" in chart.message, "what is left out is told"


@pytest.mark.parametrize("kind", STATISTICS)
def test_statistics(kind: Any) -> None:
    chart, given = RouteStatistic(kind), curves(7)
    chart.update(given)
    drawn = lines_of(chart)
    assert list(drawn) == ["layer 3", "layer 4", "layer 5"]
    for route, layer in enumerate(given.layers):
        np.testing.assert_allclose(drawn[f"layer {layer}"], getattr(given, kind)[:, route])


def test_unknown_statistic() -> None:
    with pytest.raises(ValueError, match="kind must be one of sparsity, mean, variance, got 'median'"):
        RouteStatistic("median")  # type: ignore[arg-type]


def test_long_runs_are_thinned_and_keep_the_last_step() -> None:
    chart, given = RouteStatistic("mean"), curves(5 * MOST + 3)
    chart.update(given)
    xs, ys = chart.lines.data["xs"][0], chart.lines.data["ys"][0]
    assert len(xs) <= MOST
    smooth = np.array(naive_mean(given.mean[:, 0].tolist(), 10))
    assert xs[-1] == 5 * MOST + 3
    np.testing.assert_allclose(ys, smooth[np.array(xs) - 1])
    np.testing.assert_allclose(chart.drawn[0].values, smooth)
    assert chart._subtitle.text == "means of 10 batches"


def ablations(*, partial: bool = False) -> ModAblations:
    accuracy = np.array([[0.5, 0.6, 0.7], [0.4, 0.4, 0.4], [NAN, NAN, NAN] if partial else [0.1, 0.2, 0.3]])
    return ModAblations(
        ("MoD", "without norms", "without distillation"), accuracy, np.array([30, 20, 30]), 0.05, 1000, (0, 1, 2), 50,
        partial=partial,
    )  # fmt: skip


def test_ablations() -> None:
    chart, found = AblationBars(), ablations()
    assert chart.message == "No comparison yet."
    chart.update(found)
    np.testing.assert_allclose(chart.source.data["y"], found.mean)
    np.testing.assert_allclose(chart.spans.data["high"][0], 0.6 + found.half_width[0])
    assert chart.base.location == 0.05
    chart.update(ablations(partial=True))
    assert chart.source.data["name"] == ["MoD", "without norms"]


def late(*, partial: bool = False) -> LateLayerLosses:
    rng = np.random.default_rng(1)
    implicit, explicit = rng.random((6, 2)), rng.random((6, 2))
    explicit[:, 1] = implicit[:, 1]
    if partial:
        explicit[:, 0] = NAN
    solved = np.array([[True, False, True, False], [True, True, False, False]])
    return LateLayerLosses((4, 5), implicit, explicit, solved, partial=partial)


def test_late_layers() -> None:
    chart, found = LateLayerCurves(), late()
    chart.update(found)
    drawn = lines_of(chart)
    assert list(drawn) == ["layer 4, tuned", "layer 4, not tuned", "layer 5, tuned"]
    np.testing.assert_allclose(drawn["layer 4, not tuned"], naive_mean(found.implicit[:, 0].tolist(), 10))
    assert chart.lines.data["dash"] == ["solid", "dashed", "solid"]
    chart.update(late(partial=True))
    assert list(lines_of(chart)) == ["layer 4, not tuned", "layer 5, tuned"]


def test_overlap() -> None:
    chart = OverlapBars()
    chart.update(late())
    drawn = dict(zip(chart.source.data["name"], chart.source.data["y"], strict=True))
    assert drawn == {"all": 1, "only 4": 1, "only 5": 1, "none": 1}
    chart.update(late(partial=True))
    assert "tuned first" in chart.message
