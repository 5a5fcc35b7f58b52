"""Charts of a decomposition: made once, then only their data changes; every number drawn is the result's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import GlyphRenderer

from interp_widgets.analysis.token_decomposition import LogitShareResult, TokenDecompositionResult
from interp_widgets.figures.chart import QUIET, Chart
from interp_widgets.figures.token_decomposition import LogitShareBars, PartTrajectories, rest_name

WORDS = ["The", " Eiffel", " Tower", " is", " located", " in", " the", " city", " of", " $$later$$"]


def made_parts(seed: int = 0, *, sources: int = 10, layers: int = 4, **changes: Any) -> TokenDecompositionResult:
    """A random decomposition at the last token but one."""
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(layers + 1, sources, 3)) * rng.exponential(size=(sources, 1))
    parts[:, -1] = 0
    bias = rng.normal(size=(layers + 1, 3))
    logit = rng.normal(size=(layers + 1, sources))
    logit[:, -1] = 0
    fields: dict[str, Any] = {
        "parts": parts,
        "bias": bias,
        "residual": parts.sum(1) + bias,
        "error": np.zeros(layers + 1),
        "tokens": WORDS[-sources:],
        "ids": list(range(sources)),
        "special": [False] * sources,
        "position": sources - 2,
        "target": 7,
        "target_token": " Paris",
        "target_logit": logit,
        "target_bias": rng.normal(size=layers + 1),
        "provenance": {"model": f"model-{seed}"},
    }
    return TokenDecompositionResult(**(fields | changes))


def made_shares(seed: int = 0, sources: int = 10, **changes: Any) -> LogitShareResult:
    rng = np.random.default_rng(seed)
    share = np.append(rng.normal(size=sources - 1), 0.0)
    fields: dict[str, Any] = {
        "share": share,
        "bias": 0.5,
        "logit": float(share.sum()) + 0.5,
        "error": 0.0,
        "tokens": WORDS[-sources:],
        "ids": list(range(sources)),
        "special": [False] * sources,
        "position": sources - 2,
        "target": 7,
        "target_token": " Paris",
        "provenance": {"model": f"model-{seed}"},
    }
    return LogitShareResult(**(fields | changes))


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
    (PartTrajectories, made_parts),
    (lambda results=(): PartTrajectories(results, kind="target_logit"), made_parts),
    (LogitShareBars, made_shares),
]


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize(("make", "result"), CHARTS)
def test_updates_change_data_not_figures(make: Any, result: Any, models: int) -> None:
    chart = make()
    assert chart.message.endswith(" yet.")
    figure, parts, source = chart.figure, list(chart.figure.renderers), chart.source
    chart.update([result(seed) for seed in range(models)])
    assert chart.message == ""
    assert chart.figure is figure
    assert chart.source is source
    assert list(chart.figure.renderers) == parts
    assert len({len(column) for column in source.data.values()}) == 1
    assert len(source.data["color"]) > 0
    assert set(source.data["model"]) == {f"model-{seed}" for seed in range(models)}
    assert missing_columns(chart) == []
    assert json_item(figure)["doc"]
    chart.update([])
    assert chart.message
    assert all(len(column) == 0 for column in source.data.values())


@pytest.mark.parametrize(("make", "result"), CHARTS)
def test_every_chart_says_what_it_shows(make: Any, result: Any) -> None:
    chart = make([result()])
    assert chart.figure.name
    assert getattr(chart.figure.title.text, "text", chart.figure.title.text)
    assert all(axis.axis_label for axis in chart.figure.axis)
    assert chart.figure.select({"name": "hover"})
    assert chart.figure.sizing_mode.startswith("stretch")
    assert "·of" in chart._subtitle.text
    assert len({make().figure.name for make, _ in CHARTS}) == len(CHARTS)


def test_lines_of_the_norms_sum_to_one() -> None:
    result = made_parts()
    chart = PartTrajectories([result])
    ys = np.array(chart.lines.data["ys"])
    assert len(ys) == PartTrajectories.LARGEST + 1
    np.testing.assert_allclose(ys.sum(0), 1)
    named = dict(zip(chart.lines.data["source"], ys, strict=True))
    sizes = result.norm_share[1:].max(axis=0)
    largest = sorted(np.argsort(-sizes)[: PartTrajectories.LARGEST].tolist())
    assert list(named)[:-1] == [f"{WORDS[i].replace(' ', '·')} ({i})" for i in largest]
    np.testing.assert_allclose(named[f"{WORDS[largest[0]].replace(' ', '·')} ({largest[0]})"],
                               result.norm_share[:, largest[0]])  # fmt: skip
    assert list(named)[-1] == "3 others together"
    assert chart.lines.data["color"][-1] == QUIET
    assert chart.source.data["row"][:5] == ["0", "1", "2", "3", "output"]
    assert chart.source.data["shown"][0].endswith("%")


def test_one_left_over_has_its_own_line() -> None:
    chart = PartTrajectories([made_parts(sources=PartTrajectories.LARGEST + 2)])
    assert len(chart.lines.data["ys"]) == PartTrajectories.LARGEST + 1
    assert not any("together" in name for name in chart.lines.data["source"])
    few = PartTrajectories([made_parts(sources=3)])
    assert few.lines.data["source"] == ["·city (0)", "·of (1)"]


def test_two_charts_of_the_same_sources_agree_in_colour() -> None:
    results, sources = [made_parts(0), made_parts(1)], [5, 1, 2]
    found = []
    for kind in ("norm_share", "target_logit"):
        chart = PartTrajectories(results, kind=kind, sources=sources)  # type: ignore[arg-type]
        drawn = dict(zip(chart.lines.data["source"], chart.lines.data["color"], strict=True))
        found.append({name: color for name, color in drawn.items() if name.endswith(")")})
    assert found[0] == found[1]
    assert list(found[0]) == ["·Eiffel (1)", "·Tower (2)", "·in (5)"]
    total = np.sum([ys for ys, dash in zip(chart.lines.data["ys"], chart.lines.data["dash"], strict=True)
                    if dash == "solid"], axis=0)  # fmt: skip
    np.testing.assert_allclose(total, results[0].target_logit.sum(axis=1) + results[0].target_bias)
    for wrong in ([9], [-1], list(range(8))):
        with pytest.raises(ValueError, match=r"sources must be at most 7 positions in 0\.\.8, got"):
            chart.update(results, sources=wrong)


def test_lines_of_the_logit_sum_to_it() -> None:
    result = made_parts()
    chart = PartTrajectories([result], kind="target_logit")
    assert result.target_logit is not None
    assert result.target_bias is not None
    wanted = result.target_logit.sum(1) + result.target_bias
    np.testing.assert_allclose(np.sum(chart.lines.data["ys"], axis=0), wanted)
    assert chart.lines.data["source"][-1] == "biases"
    assert "·Paris" in chart.figure.title.text
    low, high = np.min(chart.lines.data["ys"]), np.max(chart.lines.data["ys"])
    assert chart.figure.y_range.start < low < high < chart.figure.y_range.end
    chart.update([made_parts(target=None, target_logit=None, target_bias=None)])
    assert "No target" in chart.message


def test_a_second_model_is_dashed_and_named() -> None:
    chart = PartTrajectories([made_parts(0), made_parts(1)], names=["base", "tuned"])
    dashes = dict(zip(chart.lines.data["model"], chart.lines.data["dash"], strict=True))
    assert dashes == {"base": "solid", "tuned": "dashed"}
    assert [item.label.value for item in chart._models] == ["base", "tuned"]
    assert all(item.visible for item in chart._models)
    # the same sources and colours in both
    lines = list(zip(chart.lines.data["source"], chart.lines.data["color"], strict=True))
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    chart.update([made_parts(0)])
    assert not any(item.visible for item in chart._models)


def test_a_partial_result_is_drawn_as_far_as_it_goes() -> None:
    whole = made_parts()
    parts = whole.parts.copy()
    parts[:, 4:9] = np.nan
    chart = PartTrajectories([replace(whole, parts=parts, partial=True)])
    assert "stopped early" in chart._subtitle.text
    assert chart.message == ""
    chart.update([replace(whole, parts=np.full_like(parts, np.nan), partial=True)])
    assert chart.message


def test_bars_are_the_shares_and_sum_to_the_logit() -> None:
    result = made_shares()
    chart = LogitShareBars([result])
    data = chart.source.data
    assert len(data["share"]) == result.position + 2  # later tokens have no bar, the biases have one
    np.testing.assert_allclose(data["share"][:-1], result.share[:-1])
    assert data["share"][-1] == result.bias
    assert data["token"][-1] == "biases"
    assert sum(data["share"]) == pytest.approx(result.logit)
    assert f"{result.logit:.2f}" in chart._subtitle.text
    assert chart.figure.xaxis[0].major_label_overrides[1] == "·Eiffel"
    assert chart.figure.y_range.start < min(data["share"])
    both = LogitShareBars([result, made_shares(1)])
    assert len(both.source.data["share"]) == 2 * (result.position + 2)
    assert len(set(both.source.data["at"])) == len(both.source.data["at"])
    assert both._legend_item.visible
    assert not chart._legend_item.visible
    against = LogitShareBars([made_shares(foil=3, foil_token=" Rome")])
    assert "minus that of “·Rome”" in against.figure.title.text


def test_tokens_that_look_like_formulas_are_shown_as_they_are() -> None:
    chart = LogitShareBars([made_shares(target_token=" $$x$$", position=9)])
    assert chart.figure.title.text.text.endswith("“·$$x$$”")
    assert chart.figure.xaxis[0].major_label_overrides[9].text == "·$$later$$"


def test_the_rest_is_named() -> None:
    parts = made_parts()
    assert rest_name(parts) == "biases"
    assert rest_name(replace(parts, bos=parts.bias)) == "BOS"
    assert rest_name(replace(parts, bos=parts.bias / 2)) == "biases, BOS"
    assert rest_name(made_shares(bos=0.5)) == "BOS"


def test_results_that_do_not_belong_together_are_refused() -> None:
    one = made_parts()
    chart = PartTrajectories()
    with pytest.raises(ValueError, match="one or two models, got 3"):
        chart.update([one] * 3)
    with pytest.raises(ValueError, match="the same prompt and position"):
        chart.update([one, made_parts(1, position=3)])
    with pytest.raises(ValueError, match="the same prompt and position"):
        chart.update([one, made_parts(1, ids=[5] * 10)])
    with pytest.raises(ValueError, match="one entry per result, got 1 for 2"):
        chart.update([one, made_parts(1)], names=["base"])
    with pytest.raises(ValueError, match="kind must be one of norm_share"):
        PartTrajectories(kind="rank")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one target"):
        PartTrajectories([one, made_parts(1, target=3)], kind="target_logit")
    with pytest.raises(ValueError, match="different targets or foils"):
        LogitShareBars([made_shares(), made_shares(1, foil=3)])
