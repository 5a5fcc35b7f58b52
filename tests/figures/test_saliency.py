"""Saliency charts: made once, then only their data changes; every number drawn is the result's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import GlyphRenderer
from matplotlib.text import Text

from interp_widgets.analysis.saliency import FaithfulnessResult, SaliencyDatasetResult, SaliencyResult, saliency_dataset
from interp_widgets.data.cases import SaliencyCase
from interp_widgets.figures.chart import Chart
from interp_widgets.figures.labels import number
from interp_widgets.figures.saliency import (
    CONTEXT,
    SPECIAL,
    DensityBars,
    FaithfulnessCurves,
    GroupStrips,
    PositionProfile,
)
from interp_widgets.figures.static.scene import text_width
from interp_widgets.figures.theme import MARK, PALETTE8

RNG = np.random.default_rng(0)
WORDS = [
    "Write",
    "the",
    "plural",
    "of",
    "this",
    "word",
    "please",
    ".",
    "Here",
    "is",
    "the",
    "word",
    "that",
    "I",
    "mean",
    ":",
    "cat",
    ".",
]


def made_result(n: int = len(WORDS), seed: int = 0, **changes: Any) -> SaliencyResult:
    words = [WORDS[i % len(WORDS)] for i in range(n)]
    fields: dict[str, Any] = {
        "importance": np.random.default_rng(seed).exponential(size=(n, 9)) * np.where(np.arange(n) < 4, 3, 1)[:, None],
        "prompt_tokens": [" " + word for word in words],
        "response_tokens": ["r"] * 9,
        "prompt_ids": list(range(n)),
        "response_ids": list(range(9)),
        "prompt_special": [i == n - 1 for i in range(n)],
        "probability": np.ones(9),
        "method": "exact",
    }
    return SaliencyResult(**(fields | changes))


def made_dataset(**options: Any) -> SaliencyDatasetResult:
    sides = ([made_result(seed=i) for i in range(10)], [made_result(seed=100 + i) for i in range(10)])
    cases = [SaliencyCase("", label=bool(i % 2), name=f"case {i}") for i in range(10)]
    masks = [Masked(np.arange(len(WORDS)) < 4, case.label, case.name) for case in cases]
    return saliency_dataset(sides, masks, resamples=99, **{"names": ["base", "tuned"], **options})


def made_faithfulness(method: str = "exact", seed: int = 0, **changes: Any) -> FaithfulnessResult:
    rng = np.random.default_rng(seed)
    fields: dict[str, Any] = {
        "percent": np.array([1.0, 5, 10, 20, 50]),
        "comprehensiveness": rng.random(5),
        "sufficiency": rng.random(5),
        "random_comprehensiveness": rng.random((4, 5)),
        "random_sufficiency": rng.random((4, 5)),
        "fraction": np.linspace(0, 1, 7),
        "deletion": rng.random(7),
        "insertion": rng.random(7),
        "random_deletion": rng.random((4, 7)),
        "random_insertion": rng.random((4, 7)),
        "order": np.arange(9),
        "method": method,
        "target": "probability",
    }
    return FaithfulnessResult(**(fields | changes))


def one_model() -> tuple[list[SaliencyResult], list[Any]]:
    """Ten results of one model and their cases, every second one followed."""
    mask = np.arange(len(WORDS)) < 4
    return [made_result(seed=i) for i in range(10)], [Masked(mask, bool(i % 2), f"case {i}") for i in range(10)]


class Masked:
    """A case that gives its instruction tokens outright."""

    def __init__(self, mask: Any, label: bool | None, name: str) -> None:
        self.mask, self.label, self.name = mask, label, name


def missing_columns(chart: Chart) -> list[str]:
    """Columns that glyphs of the figure read but their sources do not have."""
    missing = []
    for renderer in chart.figure.select({"type": GlyphRenderer}):
        for name, spec in renderer.glyph.properties_with_values().items():
            field = getattr(spec, "field", None) or (spec.get("field") if isinstance(spec, dict) else None)
            if field is not None and field not in renderer.data_source.data:
                missing.append(f"{renderer.name}.{name}={field}")
    return missing


CHARTS: list[Any] = [
    (DensityBars, made_result),
    (lambda result=None: DensityBars(result, along="y"), made_result),
    (GroupStrips, made_dataset),
    (PositionProfile, made_dataset),
    (FaithfulnessCurves, lambda: [made_faithfulness(), made_faithfulness("first_order", 1)]),
    (lambda results=(): FaithfulnessCurves(results, kind="sufficiency"), lambda: [made_faithfulness()]),
]


@pytest.mark.parametrize(("make", "result"), CHARTS)
def test_updates_change_data_not_figures(make: Any, result: Any) -> None:
    chart = make()
    assert chart.message
    figure, parts, source = chart.figure, list(chart.figure.renderers), chart.source
    chart.update(result())
    assert chart.message == ""
    assert chart.figure is figure
    assert chart.source is source
    assert list(chart.figure.renderers) == parts
    assert len({len(column) for column in source.data.values()}) == 1
    assert len(source.data[next(iter(source.data))]) > 0
    assert missing_columns(chart) == []
    assert json_item(figure)["doc"]
    chart.update([] if isinstance(chart, FaithfulnessCurves) else None)
    assert chart.message
    assert all(len(column) == 0 for column in source.data.values())


@pytest.mark.parametrize(("make", "result"), CHARTS)
def test_every_chart_says_what_it_shows(make: Any, result: Any) -> None:
    chart = make(result())
    assert chart.figure.name
    assert chart.figure.title.text
    labels = [axis.axis_label for axis in chart.figure.axis if axis.visible]
    assert any(labels)
    assert chart.figure.select({"name": "hover"})
    assert chart.figure.sizing_mode.startswith("stretch")
    assert len({make().figure.name for make, _ in CHARTS}) == len(CHARTS)


def test_the_column_check_finds_a_missing_one() -> None:
    chart = DensityBars(made_result())
    chart.figure.scatter("position", "nonsense", source=chart.source, name="bad")
    del chart.source.data["color"]
    assert {"bad.y=nonsense", "bars.fill_color=color"} <= set(missing_columns(chart))


def test_density_bars_show_the_density_and_the_mark() -> None:
    result, mask = made_result(), np.arange(len(WORDS)) < 4
    chart = DensityBars(result, mask=mask)
    data = chart.source.data
    assert np.array_equal(data["density"], result.density())
    assert data["mark"] == ["instruction"] * 4 + ["context"] * (len(WORDS) - 5) + ["special"]
    assert list(dict.fromkeys(data["color"])) == [MARK, CONTEXT, SPECIAL]
    assert data["token"][0] == "·Write"
    assert chart.figure.xaxis[0].major_label_overrides[0] == "·Write"
    chart.update(result, mask=~mask, threshold=0)
    assert np.array_equal(chart.source.data["density"], result.density(threshold=0))
    assert chart.source.data["mark"][0] == "context"
    assert chart.figure.y_range.end > result.density(threshold=0).max()


def test_density_bars_show_a_signed_difference() -> None:
    one, other = made_result(seed=1), made_result(seed=2)
    chart = DensityBars(one, reference=other)
    assert np.allclose(chart.source.data["density"], one.density() - other.density())
    assert chart.figure.y_range.start < 0 < chart.figure.y_range.end
    assert "difference" in chart.figure.title.text
    with pytest.raises(ValueError, match="same prompt"):
        chart.update(one, reference=made_result(5))
    with pytest.raises(ValueError, match=r"one entry per prompt token \(18\), got \(3,\)"):
        chart.update(one, mask=[True] * 3)
    chart.update(one)
    assert chart.figure.y_range.start == 0


def test_density_bars_beside_a_map_run_downwards() -> None:
    chart = DensityBars(made_result(30), along="y")
    assert (chart.figure.y_range.start, chart.figure.y_range.end) == (29.5, -0.5)
    assert not chart.figure.yaxis[0].visible
    with pytest.raises(ValueError, match="along must be 'x' or 'y'"):
        DensityBars(along="z")  # type: ignore[arg-type]


def test_nothing_above_the_threshold_is_said() -> None:
    chart = DensityBars(made_result(importance=np.zeros((len(WORDS), 9))))
    assert "threshold of 7" in chart.message
    partial = made_result(importance=np.full((len(WORDS), 9), np.nan), partial=True)
    chart.update(partial)
    assert "stopped early" in chart._subtitle.text


def test_group_strips_show_every_case_and_the_tests_numbers() -> None:
    data = made_dataset()
    chart = GroupStrips(data, kind="models")
    test = data.test("models")
    rows = chart.source.data
    assert sorted(rows["score"]) == sorted(data.score.tolist())
    assert [data.score[i] for i in rows["row"]] == rows["score"]
    assert [data.names[i] for i in rows["row"]] == rows["name"]
    assert list(chart.summary.data["mean"]) == list(test.mean)
    assert list(zip(chart.summary.data["low"], chart.summary.data["high"], strict=True)) == list(test.interval)
    assert [factor[1] for factor in chart.figure.x_range.factors] == ["tuned (n 10)", "base (n 10)"]
    assert f"Welch p {test.welch_p:.2g}" in chart._subtitle.text
    assert f"d {test.cohens_d:.2f}".replace("-", "−") in chart._subtitle.text
    assert test.claim in chart._subtitle.text
    assert list(chart.summary.data["color"]) == [PALETTE8[1], PALETTE8[0]], "a model keeps its colour"
    chart.update(data, kind="followed")
    assert list(chart.summary.data["color"]) == [PALETTE8[2], PALETTE8[3]] * 2
    assert len(chart.figure.x_range.factors) == 4
    assert "followed" in chart.figure.title.text
    assert chart._subtitle.text.splitlines()[1].startswith("tuned · all cases: difference")
    chart.update(saliency_dataset(*one_model(), resamples=99))
    assert "Spearman p" in chart._subtitle.text
    assert all(abs(x[2]) <= 0.3 for x in chart.source.data["x"])


def test_group_strips_within_groups() -> None:
    data = made_dataset(groups=["plural"] * 5 + ["past"] * 5)
    chart = GroupStrips(data, kind="models")
    assert {factor[0] for factor in chart.figure.x_range.factors} == {"all cases", "plural", "past"}
    assert "Holm p" in chart._subtitle.text
    assert len(chart.source.data["score"]) == 40


def test_group_strips_give_the_reason_when_there_is_no_test() -> None:
    one = saliency_dataset(
        [made_result(seed=i) for i in range(3)],
        [Masked(np.arange(len(WORDS)) < 4, True, "") for _ in range(3)],
        resamples=9,
    )
    assert "there are 3 and 0" in GroupStrips(one).message
    assert GroupStrips(one, kind="models").message == GroupStrips.EMPTY
    with pytest.raises(ValueError, match="kind must be followed or models"):
        GroupStrips(one, kind="tuned")  # type: ignore[arg-type]


def test_position_profile_draws_shares_and_intervals() -> None:
    data = made_dataset()
    chart = PositionProfile(data)
    rows = chart.source.data
    assert np.allclose(np.reshape(rows["share"], (2, 4)), data.profile)
    assert np.allclose(np.reshape(rows["low"], (2, 4)), data.profile_interval[:, 0])
    assert list(chart.lines.data["model"]) == ["base", "tuned"]
    assert [sum(ys) for ys in chart.lines.data["ys"]] == pytest.approx([1, 1])
    assert "base 20" in chart._subtitle.text
    assert chart.figure.y_range.end > max(rows["high"])
    bare = saliency_dataset([RNG.random((6, 7))], [[True] * 3 + [False] * 3], resamples=9)
    chart.update(bare)
    assert chart.message == PositionProfile.EMPTY
    assert replace(data, partial=True).partial


@pytest.mark.parametrize("kind", ["deletion", "insertion", "comprehensiveness", "sufficiency"])
def test_faithfulness_curves_stand_beside_chance(kind: Any) -> None:
    results = [made_faithfulness(), made_faithfulness("first_order", 1)]
    chart = FaithfulnessCurves(results, kind=kind)
    for i, result in enumerate(results):
        assert chart.lines.data["ys"][i] == getattr(result, kind).tolist()
    chance = getattr(results[0], f"random_{kind}")
    assert np.array_equal(chart.band.data["low"], chance.min(axis=0))
    assert np.array_equal(chart.band.data["mean"], chance.mean(axis=0))
    assert chart.lines.data["method"] == ["exact", "first order"]
    assert len(set(chart.lines.data["color"])) == 2
    better = "higher" if kind in ("insertion", "comprehensiveness") else "lower"
    name = f"{kind}_area" if kind in ("insertion", "deletion") else f"aopc_{kind}"
    assert f"{better} is better: random {number(results[0].random_summary()[name][0])}\n" in chart._subtitle.text
    assert f"exact {number(getattr(results[0], name))}" in chart._subtitle.text
    assert max(chart.source.data["share"]) == (100 if kind in ("insertion", "deletion") else 50)


@pytest.mark.parametrize("kind", ["deletion", "sufficiency"])
def test_the_numbers_of_all_methods_fit_a_narrow_chart(kind: Any) -> None:
    methods = ("exact", "first_order", "integrated_gradients", "random")
    chart = FaithfulnessCurves([made_faithfulness(method, i) for i, method in enumerate(methods)], kind=kind)
    said = chart._subtitle.text
    assert all(f"{method.replace('_', ' ')} " in said for method in methods)
    assert max(text_width(line, 12) for line in said.splitlines()) < 380, said


def test_faithfulness_curves_of_different_things_are_refused() -> None:
    one = made_faithfulness()
    chart = FaithfulnessCurves()
    for changes in ({"target": "logit"}, {"token": 2}, {"fraction": np.linspace(0, 0.9, 7)}):
        with pytest.raises(ValueError, match="same prompt, target and response token"):
            chart.update([one, replace(one, **changes)])
    chart.update([replace(one, target="log_prob")])
    assert chart.figure.yaxis[0].axis_label == "mean log-probability (nats)"
    with pytest.raises(ValueError, match="kind must be one of deletion"):
        FaithfulnessCurves(kind="rise")  # type: ignore[arg-type]


# ---- static pictures


def written(axes: Any) -> str:
    """All that is written in a picture's figure."""
    return "\n".join(text.get_text() for text in axes.figure.findobj(Text))


@pytest.mark.parametrize("kind", ["deletion", "comprehensiveness"])
def test_the_picture_of_faithfulness_curves_draws_their_numbers(kind: Any) -> None:
    results = [made_faithfulness(), made_faithfulness("first_order", 1)]
    chart = FaithfulnessCurves(results, kind=kind)
    axes = chart.scene(name="A: ").figure().axes[0]
    chance = getattr(results[0], f"random_{kind}")
    drawn = [line.get_ydata().tolist() for line in axes.lines]
    assert drawn == [chance.mean(axis=0).tolist(), *(getattr(result, kind).tolist() for result in results)]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (chance.min(), chance.max())
    words = written(axes)
    assert f"A: {chart.TITLES[kind]}" in words
    assert all(line in words for line in chart._subtitle.text.splitlines())
    assert {"exact", "first order", "random orders: mean and range"} <= set(words.splitlines())
    if kind == "comprehensiveness":
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "5", "10", "20", "50"]
    with pytest.raises(ValueError, match="nothing to draw"):
        FaithfulnessCurves(kind=kind).scene()


@pytest.mark.parametrize("kind", ["models", "followed"])
def test_the_picture_of_group_strips_draws_every_case(kind: Any) -> None:
    chart = GroupStrips(made_dataset(), kind=kind)
    axes = chart.scene().figure().axes[0]
    points = axes.collections[-1].get_offsets()
    assert points[:, 1].tolist() == chart.source.data["score"]
    factors = chart.figure.x_range.factors
    assert np.rint(points[:, 0]).astype(int).tolist() == [factors.index(x[:2]) for x in chart.source.data["x"]]
    boxes, bands = axes.containers
    assert [bar.get_y() for bar in bands] == chart.summary.data["low"]
    assert np.allclose([bar.get_y() + bar.get_height() for bar in boxes], chart.summary.data["three"])
    assert chart._subtitle.text.splitlines()[0] in written(axes)
    with pytest.raises(ValueError, match="nothing to draw: No comparison"):
        GroupStrips().scene()


def test_the_picture_of_a_position_profile_draws_its_shares() -> None:
    data = made_dataset()
    axes = PositionProfile(data).scene().figure().axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines[1:]] == data.profile.tolist()
    ends = np.array([segment[:, 1] for segment in axes.collections[0].get_segments()])
    assert np.allclose(ends.reshape(2, 4, 2), np.moveaxis(data.profile_interval, 1, 2))
    assert {"first quarter", "base", "tuned"} <= set(written(axes).splitlines())
    with pytest.raises(ValueError, match="nothing to draw: No position profile"):
        PositionProfile().scene()
