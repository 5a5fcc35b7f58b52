"""Charts of bias: the numbers drawn are those of the results, and what is no more than chance is grey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bokeh.models import ColorBar

from interp_widgets.analysis.bias import BiasActivity, BiasNeurons, stereoset_metrics
from interp_widgets.figures.bias import ByLayer, Dot, IntervalDots, NeuronDots, Series, TradeOff, activity_lines
from interp_widgets.figures.bias.trade_off import label_offset
from interp_widgets.figures.chart import QUIET, QUIET_TEXT
from interp_widgets.figures.static import render_svg
from interp_widgets.figures.theme import contrast

NAN = float("nan")


def test_every_score_has_a_place_of_its_own() -> None:
    chart = IntervalDots()
    assert chart.message == "No scores yet."
    dots = [
        Dot(row, score, value, (value - 1, value + 1), series)
        for row in ("age", "race")
        for score, value in (("SS", 60.0), ("LMS", 90.0))
        for series in (0, 1)
    ]
    chart.update(dots, {0: Series("as it is"), 1: Series("edited", "#d55e00")})
    places = chart.places()
    assert len(set(places)) == len(dots)
    assert [round(place) for place in places] == [0] * 4 + [1] * 4
    rows = chart.source.data
    assert sorted(rows["x"]) == sorted(dot.value for dot in dots)
    assert set(rows["color"]) == {Series().color, "#d55e00"}
    assert render_svg(chart.scene()).count("<path") > 8
    chart.update([])
    with pytest.raises(ValueError, match="nothing to draw: No scores"):
        chart.scene()


def test_neurons_that_are_no_more_than_chance_are_grey() -> None:
    found = BiasNeurons(
        layer=np.array([[0, 1], [1, 1]]), neuron=np.array([[3, 5], [5, 7]]), cosine=np.array([[0.5, 0.2], [0.4, 0.1]]),
        chance=np.array([0.25, 0.25]), n_layers=2, provenance={},
    )  # fmt: skip
    chart = NeuronDots()
    (bar,) = chart.figure.select(ColorBar)
    assert {bar.title_text_color, bar.major_label_text_color} == {QUIET_TEXT}, "it takes no colour from the page"
    assert min(contrast(QUIET_TEXT, page) for page in ("#ffffff", "#111111")) > 4
    chart.update(found, (1, 5))
    rows = chart.source.data
    grey = {(probe, neuron) for probe, neuron, color in zip(rows["probe"], rows["neuron"], rows["color"], strict=True)
            if color == QUIET}  # fmt: skip
    assert grey == {(0, 5), (1, 7)}
    assert len(chart.picked.data["x"]) == 2, "both probes name it"
    assert [round(x) for x in rows["x"]] == rows["probe"]
    assert [round(y) for y in rows["y"]] == rows["layer"]
    stronger = replace(found, cosine=2 * found.cosine)
    chart.update(found, scale=(found, stronger))
    assert (chart.colors.low, chart.colors.high) == (0.1, 1.0), "one scale for both models"
    assert max(chart.source.data["size"]) < max(rows["size"]), "the weaker model looks weaker"


def test_a_layer_without_neurons_has_no_point() -> None:
    values = np.array([[0.5, 0.25], [NAN, NAN], [1.0, -1.0]])
    activity = BiasActivity(share_active=values, mean=values, neurons=np.array([2, 0, 1]), provenance={})
    chart = ByLayer("some_lines", "Lines", "mean")
    chart.update(activity_lines(activity, "mean"), layer=2)
    assert chart.source.data["x"] == [0, 2, 0, 2]
    assert chart.source.data["y"] == [0.5, 1.0, 0.25, -1.0]
    assert chart.mark.data["x"] == [2]
    chart.update([])
    assert chart.message


def test_the_distance_of_an_interval_to_fifty() -> None:
    assert label_offset((30, 45)) == (5.0, 20.0)
    assert label_offset((45, 52)) == (0.0, 5.0)
    metrics = stereoset_metrics([[3, 2, 1], [2, 3, 1]] * 10, [str(i) for i in range(20)])
    low, high = label_offset(metrics.ss_interval)
    assert low == 0.0 < high
    assert "press Run" in TradeOff().message
