"""The bars of a comparison of head word pairs: the numbers of its table, in the notebook and as a picture."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from interp_widgets.analysis.head_words import HeadComparison
from interp_widgets.figures.head_words import OTHER, ChangeBars, change_scene
from interp_widgets.figures.static import render_svg
from interp_widgets.figures.theme import PALETTE8
from tests.pictures import pieces, texts


def comparison(**changed: Any) -> HeadComparison:
    rng = np.random.default_rng(3)
    layers, heads, dims = 5, 2, 3
    fields: dict[str, Any] = {
        "layers": tuple(range(layers)),
        "group": np.array([0, 0, 1, 1, 1]),
        "head_change": rng.random((layers, heads)),
        "dimension_change": rng.random((layers, heads, dims)),
        "other_head_change": np.full((layers, heads), 0.97),
        "other_dimension_change": np.full((layers, heads, dims), 0.99),
        "pair_change": np.zeros((layers, heads), dtype=int),
        "verbs": ("write",),
        "instruction": np.array([True]),
        "gained": np.zeros((2, 1), dtype=int),
        "lost": np.zeros((2, 1), dtype=int),
        "tests": (None, None),
    }
    return HeadComparison(**{**fields, **changed})


def test_bars_are_the_rows_of_the_table() -> None:
    one = comparison()
    table, rows = one.change_table(), ChangeBars(one).source.data
    np.testing.assert_allclose(rows["mean"], [*table["dimension_mean"], *table["head_mean"]])
    np.testing.assert_allclose(rows["other"], [0.99, 0.99, 0.97, 0.97])
    assert rows["layers"] == ["0-1", "2-4"] * 2
    assert rows["series"] == ["dimensions", "dimensions", "heads", "heads"]
    for mean, std, low, high in zip(*(rows[name] for name in ("mean", "std", "low", "high")), strict=True):
        assert (low, high) == (max(0.0, mean - std), min(1.0, mean + std))


def test_a_partial_comparison_says_so_and_none_says_why() -> None:
    chart = ChangeBars()
    assert "two complete results" in chart.message
    chart.update(dataclasses.replace(comparison(), partial=True))
    assert chart.message == ""
    assert "partial" in str(chart._subtitle.text)
    chart.update(None, sentence="the two differ")
    assert chart.message == "the two differ"
    assert chart.spread.data["at"] == []
    nothing = comparison(head_change=np.full((5, 2), np.nan), dimension_change=np.full((5, 2, 3), np.nan))
    chart.update(nothing)
    assert chart.message == "Neither model has a word pair."


def test_the_picture_has_bars_as_high_as_the_means() -> None:
    one = comparison()
    scene, table = change_scene(one), one.change_table()
    bars = sorted(pieces(scene), key=lambda bar: bar.left)
    means = [table[f"{name}_mean"][group] for group in range(2) for name in ("dimension", "head")]
    heights = np.array([bar.bottom - bar.top for bar in bars])
    np.testing.assert_allclose(heights / heights[0], np.array(means) / means[0], rtol=1e-4)
    assert [bar.fill for bar in bars] == [PALETTE8[0], PALETTE8[1]] * 2
    shown = texts(scene)
    assert {"0-1", "2-4", "layers", "dimensions", "heads", "1", OTHER} <= set(shown)
    assert any("±" in text for text in shown)


def test_the_picture_leaves_out_what_is_not_known() -> None:
    unknown = np.full((5, 2), np.nan)
    scene = change_scene(comparison(head_change=unknown, other_head_change=unknown))
    assert len(pieces(scene)) == 2
    assert "nan" not in render_svg(scene)


def test_the_chart_takes_its_own_kind_only() -> None:
    with pytest.raises(Exception, match=r"HeadComparison|change_table"):
        ChangeBars("comparison")  # type: ignore[arg-type]
