"""Lens charts: made once, then only their data changes; every number drawn is the result's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import GlyphRenderer, PlainText

from interp_widgets.analysis.logit_lens import LogitLensResult
from interp_widgets.figures.logit_lens import TRAJECTORIES, LensTrajectory
from interp_widgets.figures.theme import PALETTE8

TOKENS = ("The", " Eiffel", " Tower", " is", " in")


def made_result(layers: int = 6, seed: int = 0, **changes: Any) -> LogitLensResult:
    rng = np.random.default_rng(seed)
    shape = (layers + 1, len(TOKENS))
    fields: dict[str, Any] = {
        "tokens": TOKENS,
        "ids": range(len(TOKENS)),
        "special": [False] * len(TOKENS),
        "top_ids": rng.integers(0, 4, (*shape, 3)),
        "top_probability": rng.random((*shape, 3)),
        "entropy": 5 * rng.random(shape),
        "kl": 3 * rng.random(shape),
        "final_rank": rng.integers(0, 9, shape),
        "final_probability": rng.random(shape),
        "names": {i: f" word{i}" for i in range(9)},
        "target": 8,
        "target_rank": rng.integers(0, 3, shape) * rng.integers(0, 900, shape),
        "target_probability": rng.random(shape),
    }
    return LogitLensResult(**(fields | changes))


def without_target(**changes: Any) -> LogitLensResult:
    return made_result(target=None, target_rank=None, target_probability=None, **changes)


def missing_columns(chart: LensTrajectory) -> list[str]:
    """Columns that glyphs of the figure read but their sources do not have."""
    missing = []
    for renderer in chart.figure.select({"type": GlyphRenderer}):
        for spec in renderer.glyph.properties_with_values().values():
            field = getattr(spec, "field", None) or (spec.get("field") if isinstance(spec, dict) else None)
            if field is not None and field not in renderer.data_source.data:
                missing.append(field)
    return missing


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_every_number_drawn_is_the_results(kind: Any) -> None:
    results = [made_result(seed=0), made_result(seed=1)]
    chart = LensTrajectory(results, kind=kind, position=2, names=["base", "tuned"])
    shift = 1 if kind == "target_rank" else 0  # ranks from 1 on, so that the best has a logarithm
    wanted = [getattr(result, kind)[:, 2] + shift for result in results]
    assert chart.lines.data["model"] == ["base", "tuned"]
    for drawn, values in zip(chart.lines.data["ys"], wanted, strict=True):
        assert np.allclose(drawn, values)
    rows = chart.source.data
    assert np.allclose(rows["value"], np.concatenate(wanted))
    assert rows["row"][:7] == ["0", "1", "2", "3", "4", "5", "output"]
    for column, field in (("probability", "probability"), ("entropy", "entropy"), ("kl", "kl")):
        assert np.allclose(rows[column], np.concatenate([getattr(result, field)[:, 2] for result in results]))
    assert rows["rank"][3] == f"{results[0].target_rank[3, 2]:,}"  # type: ignore[index]
    assert rows["top"][4] == "·" + results[0].token_text(int(results[0].top_token[4, 2])).strip()
    assert chart.figure.x_range.end > 6
    low, high = sorted((chart.figure.y_range.start, chart.figure.y_range.end))
    assert low < min(rows["value"]) <= max(rows["value"]) < high
    assert missing_columns(chart) == []
    assert json_item(chart.figure)["doc"]


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_updates_change_data_not_figures(kind: Any) -> None:
    chart = LensTrajectory(kind=kind)
    assert chart.message == LensTrajectory.EMPTY
    figure, parts, source = chart.figure, list(chart.figure.renderers), chart.source
    chart.update([made_result()], 1)
    before = list(chart.source.data["value"])
    chart.update([made_result()], -1)
    assert chart.message == ""
    assert chart.source.data["value"] != before
    assert (chart.figure, chart.source, list(chart.figure.renderers)) == (figure, source, parts)
    assert len({len(column) for column in source.data.values()}) == 1
    chart.update([])
    assert chart.message == LensTrajectory.EMPTY
    for emptied in (chart.source, chart.lines, chart.commits, chart.losses):
        assert all(len(column) == 0 for column in emptied.data.values())


def test_names_of_charts_differ() -> None:
    charts = [LensTrajectory([made_result()], kind=kind) for kind in TRAJECTORIES]
    assert len({chart.figure.name for chart in charts}) == len({chart.source.name for chart in charts}) == len(charts)
    for chart in charts:
        assert chart.figure.title.text
        assert chart.figure.yaxis[0].axis_label
        assert chart.figure.select({"name": "hover"})
        assert chart.figure.sizing_mode.startswith("stretch")


def test_the_best_rank_is_on_top_of_a_log_scale() -> None:
    ranks = np.zeros((7, 5), dtype=int)
    ranks[:, 4] = [41000, 900, 30, 0, 2, 0, 1]
    chart = LensTrajectory([made_result(target_rank=ranks)])
    assert type(chart.figure.y_scale).__name__ == "LogScale"
    assert chart.figure.y_range.start > 41001 > chart.figure.y_range.end
    assert 0 < chart.figure.y_range.end < 1
    axis = chart.figure.yaxis[0]
    assert list(axis.ticker.ticks) == [1, 2, 11, 101, 1001, 10001]
    assert list(axis.major_label_overrides.values()) == ["0", "1", "10", "100", "1,000", "10,000"]
    chart.update([made_result(target_rank=np.zeros((7, 5), dtype=int))])
    assert list(axis.major_label_overrides.values()) == ["0", "1"]
    assert chart.figure.y_range.start == 3


def test_commit_layers_and_lost_targets_are_marked() -> None:
    top, ranks = np.zeros((7, 5, 3), dtype=int), np.full((7, 5), 9)
    top[:4, 4, 0] = [1, 2, 1, 2]
    ranks[:, 4] = [5, 0, 3, 0, 0, 2, 0]
    one = made_result(top_ids=top, target_rank=ranks)
    assert one.commit_layer[4] == 4
    chart = LensTrajectory([one])
    assert chart.commits.data["x"] == [4]
    assert chart.commits.data["color"] == [PALETTE8[0]]
    assert (chart.losses.data["x"], chart.losses.data["y"]) == ([2, 5], [4, 3])  # on the curve
    assert chart._lost.visible
    assert "commit layer 4" in chart._subtitle.text
    # two models that commit at one layer stand side by side
    chart.update([one, one], names=["base", "tuned"])
    first, second = chart.commits.data["x"]
    assert first < 4 < second < 4.2
    assert "commit layer base 4, tuned 4" in chart._subtitle.text
    chart.update([made_result(top_ids=top, target_rank=np.zeros((7, 5), dtype=int))])
    assert chart.losses.data["x"] == []
    assert not chart._lost.visible


def test_without_a_target_the_charts_say_so() -> None:
    for kind in TRAJECTORIES:
        chart = LensTrajectory([without_target()], kind=kind)
        if kind.startswith("target"):
            assert chart.message == "No target: set one to follow it through the layers."
        else:
            assert chart.message == ""
            assert set(chart.source.data["rank"]) == {"–"}


def test_many_layers_name_some_and_the_output() -> None:
    chart = LensTrajectory([made_result(layers=80)], kind="kl")
    labels = chart.figure.xaxis[0].major_label_overrides
    assert labels[80] == "output"
    assert 8 <= len(labels) <= 14
    assert all(labels[place] == str(place) for place in labels if place != 80)


def test_texts_of_tokens_stay_text() -> None:
    names = dict.fromkeys(range(9), "$$x$$")
    chart = LensTrajectory([made_result(names=names, tokens=["$$y$$"] * 5)])
    assert isinstance(chart.figure.title.text, PlainText)
    assert isinstance(chart._subtitle.text, PlainText)
    chart.update([made_result()])
    assert chart.figure.title.text == "Rank of the target “·word8”"


def test_what_does_not_fit_one_chart_is_refused() -> None:
    one = made_result()
    chart = LensTrajectory()
    with pytest.raises(ValueError, match="one or two models, got 3 results"):
        chart.update([one, one, one])
    with pytest.raises(ValueError, match="have different prompts"):
        chart.update([one, replace(one, ids=range(1, 6))])
    with pytest.raises(ValueError, match=r"position must be in -5\.\.4"):
        chart.update([one], 5)
    with pytest.raises(ValueError, match="one entry per result, got 1 for 2"):
        chart.update([one, one], names=["base"])
    with pytest.raises(ValueError, match="kind must be one of target_rank"):
        LensTrajectory(kind="rank")  # type: ignore[arg-type]
