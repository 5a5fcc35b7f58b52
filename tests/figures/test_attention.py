"""Attention patterns as pictures: blocks hold the number of largest size, unseen keys have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interp_widgets.analysis.attention import attention_patterns
from interp_widgets.figures.attention import THUMBNAIL, block_names, block_starts, in_blocks, seen, thumbnails
from tests.models.tiny import tiny_model


@pytest.mark.parametrize(("n", "most"), [(5, 5), (5, 3), (97, 48), (100, 48), (2000, 512), (1, 4)])
def test_blocks_are_equal_and_few(n: int, most: int) -> None:
    starts = block_starts(n, most)
    assert len(starts) <= most
    assert starts[0] == 0
    assert len(set(np.diff(starts))) <= 1
    assert n - starts[-1] <= (starts[1] if len(starts) > 1 else n)


@pytest.mark.parametrize(("n", "most"), [(7, 3), (8, 4), (5, 9)])
def test_a_block_holds_the_number_of_largest_size(n: int, most: int) -> None:
    matrix = seen(np.random.default_rng(0).normal(size=(n, n)))
    starts = [*block_starts(n, most), n]
    drawn = in_blocks(matrix, most)
    for row in range(len(starts) - 1):
        for column in range(len(starts) - 1):
            block = matrix[starts[row] : starts[row + 1], starts[column] : starts[column + 1]].ravel()
            numbers = [value for value in block if np.isfinite(value)]
            expected = max(numbers, key=abs) if numbers else np.nan
            np.testing.assert_equal(drawn[row, column], expected)


@pytest.mark.parametrize("options", [{}, {"without_sink": True}, {"weighted": True}])
def test_thumbnails_are_the_patterns_of_all_heads(options: Any) -> None:
    result = attention_patterns(tiny_model("gpt2"), list(range(1, 12)))
    drawn = thumbnails(result, **options)
    for layer in result.layers:
        for head in result.heads:
            expected = result.pattern(layer, head, **options)
            seen_keys = np.tril(np.ones_like(expected, dtype=bool))
            np.testing.assert_allclose(drawn[layer, head][seen_keys], expected[seen_keys], rtol=1e-6)
            assert np.isnan(drawn[layer, head][~seen_keys]).all()


def test_thumbnails_of_long_prompts_are_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.figures.attention.THUMBNAIL", 4)
    result = attention_patterns(tiny_model("gpt2"), list(range(1, 12)))
    drawn = thumbnails(result, without_sink=True)
    assert drawn.shape[2:] == (4, 4)
    expected = in_blocks(seen(result.pattern(1, 0, without_sink=True)), 4)
    np.testing.assert_allclose(drawn[1, 0], expected, rtol=1e-6)


def test_names_of_blocks_say_where_they_begin() -> None:
    assert block_names(["a", "b"]) == ["a", "b"]
    names = block_names([f"t{i}" for i in range(1100)])
    assert len(names) == 367
    assert names[:2] == ["t0 … (0)", "t3 … (3)"]
    assert THUMBNAIL < 512
