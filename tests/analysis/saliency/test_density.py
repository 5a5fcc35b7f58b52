"""Normalised scores, densities, instruction scores and position profiles: closed forms and published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets.analysis.saliency import (
    SaliencyResult,
    importance_density,
    instruction_score,
    normalize_importance,
    position_profile,
    sentence_profiles,
    sentence_spans,
    spans_to_mask,
)
from interp_widgets.analysis.saliency.density import under_floor
from interp_widgets.data.attribution_archive import read_importance_archive

RNG = np.random.default_rng(0)


def test_normalised_by_hand() -> None:
    importance = [[0.5, 0.0, -1.0], [0.26, 0.0, 0.2], [-0.3, 0.0, 0.15]]
    assert normalize_importance(importance).tolist() == [[10, 0, 0], [6, 0, 10], [0, 0, 8]]
    assert normalize_importance(importance, threshold=7).tolist() == [[10, 0, 0], [0, 0, 10], [0, 0, 8]]
    assert normalize_importance(importance, levels=2).tolist() == [[2, 0, 0], [2, 0, 2], [0, 0, 2]]


def test_a_score_just_at_the_threshold_is_dropped() -> None:
    column = np.array([[1.0], [0.7], [0.71]])
    assert normalize_importance(column, threshold=7).ravel().tolist() == [10, 0, 8]


def test_columns_are_rescaled_on_their_own() -> None:
    importance = RNG.normal(size=(20, 6))
    scores = normalize_importance(importance)
    assert np.array_equal(scores, normalize_importance(importance * [1, 2, 4, 8, 16, 32]))
    assert scores.max(axis=0).tolist() == [10] * 6
    # the control: rows are not
    assert not np.array_equal(scores, normalize_importance(importance * np.linspace(1, 3, 20)[:, None]))


def test_columns_under_the_floor_score_nothing() -> None:
    importance = np.array([[0.5, 4e-3, 0.01, -0.2], [0.26, 1e-3, 0.004, -0.1]])
    assert normalize_importance(importance).tolist() == [[10, 10, 10, 0], [6, 3, 4, 0]]  # the paper's rule
    assert normalize_importance(importance, min_importance=0.01).tolist() == [[10, 0, 10, 0], [6, 0, 4, 0]]
    assert under_floor(importance, 0.01).tolist() == [False, True, False, True]
    assert under_floor(importance, 0).tolist() == [False] * 4
    many = RNG.normal(size=(20, 50)) * np.logspace(-6, 0, 50)
    kept = many.max(axis=0) >= 0.01
    assert 0 < kept.sum() < 50
    floored = normalize_importance(many, min_importance=0.01)
    assert np.array_equal(floored, np.where(kept, normalize_importance(many), 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"importance": [1.0, 2.0]}, r"shape \(prompt, response\), got \(2,\)"),
        ({"importance": [[np.nan]]}, "finite, got NaN or infinity in 1 places"),
        ({"importance": [[1.0]], "levels": 0}, "levels must be 1 or more, got 0"),
        ({"importance": [[1.0]], "threshold": 11}, r"threshold must be in 0..10 for 10 levels"),
        ({"importance": [[1.0]], "threshold": -1}, r"threshold must be in 0..10 for 10 levels"),
        ({"importance": [[1.0]], "min_importance": -0.1}, "min_importance must be 0 or more, got -0.1"),
    ],
)
def test_bad_importance_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalize_importance(arguments.pop("importance"), **arguments)


@pytest.mark.parametrize("p", [1.5, 2, 4, 100])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_density_of_equal_scores_is_a_power_of_their_number(count: int, p: float) -> None:
    row = np.zeros(7)
    row[:count] = 9
    assert importance_density([row], p=p)[0] == pytest.approx(count ** (1 - 1 / p), rel=1e-9)


def test_density_ignores_order_and_scale_and_empty_rows() -> None:
    scores = RNG.integers(0, 11, size=(5, 12)).astype(float)
    scores[2] = 0
    density = importance_density(scores)
    assert density[2] == 0
    assert np.allclose(density, importance_density(scores[:, RNG.permutation(12)]))
    assert np.allclose(density, importance_density(scores * 3))
    assert importance_density(np.zeros((4, 0))).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="p must be above 0"):
        importance_density(scores, p=0)
    with pytest.raises(ValueError, match=r"shape \(prompt, response\)"):
        importance_density(scores[0])


def test_instruction_score_by_hand() -> None:
    density, mask = np.array([1.0, 4.0, 2.0, 0.0]), np.array([True, False, True, True])
    assert instruction_score(density, mask) == pytest.approx((0.25 + 0.5) / np.log2(5))
    assert instruction_score(density, mask) == instruction_score(density * 7, mask.astype(int))
    assert instruction_score(np.zeros(4), mask) == 0
    assert instruction_score(density, np.zeros(4, dtype=bool)) == 0
    with pytest.raises(ValueError, match="of one length"):
        instruction_score(density, mask[:3])
    with pytest.raises(ValueError, match="true/false"):
        instruction_score(density, [0, 2, 1, 1])


@pytest.mark.parametrize(("threshold", "p", "agrees"), [(7, 4, True), (0, 4, False), (7, 2, False)])
def test_density_of_the_tiny_llama_as_published(reference_data: Path, threshold: int, p: int, agrees: bool) -> None:
    gaps = []
    with np.load(reference_data / "tiny_llama_reference.npz") as reference:
        for i in range(3):
            scores = normalize_importance(reference[f"importance_{i}"], threshold=threshold)
            gaps.append(np.abs(importance_density(scores, p=p) - reference[f"density_{i}"]).max())
    assert (max(gaps) < 1e-6) == agrees  # the controls: other options do not give the published density


def test_published_scores_of_every_case(reference_data: Path) -> None:
    raw: dict[str, list[float]] = {"vicuna": [], "llama": []}
    for record in read_importance_archive(reference_data / "attribution_self_instruct.npz"):
        levels = record.importance.astype(float)
        density = importance_density(np.where(levels > 7, levels, 0))
        assert instruction_score(density, record.mask) == pytest.approx(record.score, abs=1e-8)
        raw[record.model].append((density * record.mask).sum() / np.log2(2 + record.mask.sum()))
    # the control: without the division by the maximum, tuned and base change places
    assert np.mean(raw["vicuna"]) < np.mean(raw["llama"])


@pytest.mark.parametrize("length", [4, 5, 7, 13, 50])
def test_an_even_density_gives_equal_segments_at_any_length(length: int) -> None:
    assert position_profile(np.ones(length), [(0, length)]) == pytest.approx([0.25] * 4)


def test_profile_finds_ends_and_middles() -> None:
    density = [5, 1, 1, 1, 1, 1, 1, 5, 0, 0, 0, 2, 2, 0, 0, 0]
    rows = sentence_profiles(density, [(0, 8), (8, 16)])
    assert rows == pytest.approx(np.array([[6, 2, 2, 6], [0, 8, 8, 0]]) / 16)
    assert position_profile(density, [(0, 8), (8, 16)]) == pytest.approx(rows.mean(axis=0))
    assert position_profile([4, 0, 0, 0, 0], [(0, 5)]) == pytest.approx([1, 0, 0, 0])
    assert position_profile([0, 4, 0, 0, 0], [(0, 5)]) == pytest.approx([0.25, 0.75, 0, 0])


def test_sentences_that_say_nothing_are_left_out() -> None:
    assert np.isnan(position_profile([0, 0, 0, 0, 1, 1], [(0, 4), (4, 6)])).all()
    assert sentence_profiles([0, 0, 0, 0, 1, 1], [(0, 4), (4, 6)], min_tokens=2).tolist() == [[0.25] * 4]
    with pytest.raises(ValueError, match=r"a sentence must be .* <= 6 for this prompt of 6 tokens, got \(4, 7\)"):
        sentence_profiles(np.ones(6), [(4, 7)])
    with pytest.raises(ValueError, match=r"shape \(prompt,\)"):
        position_profile(np.ones((2, 2)), [(0, 2)])
    with pytest.raises(ValueError, match="1 or more"):
        position_profile(np.ones(4), [(0, 4)], segments=0)


@pytest.mark.parametrize(
    ("tokens", "spans"),
    [
        ([], ()),
        (["Hello", " world"], ((0, 2),)),
        (["A", ".", " B", "!"], ((0, 2), (2, 4))),
        (["pi", " is", " 3", ".", "14"], ((0, 5),)),
        (["He", " said", ' "No', '."', " Then"], ((0, 4), (4, 5))),
        (["▁A", "▁b", ".", "▁C"], ((0, 3), (3, 4))),
        (["Ġx", ".", "Ċ", "Ċ", "Input", ":"], ((0, 4), (4, 6))),
        (["one", "\n", "two"], ((0, 2), (2, 3))),
    ],
)
def test_sentences_are_cut_where_a_reader_would(tokens: list[str], spans: tuple[tuple[int, int], ...]) -> None:
    assert sentence_spans(tokens) == spans


def result(**changes: Any) -> SaliencyResult:
    fields: dict[str, Any] = {
        "importance": np.array([[0.5, -0.1, 0.2], [0.1, 0.4, 0.0]]),
        "prompt_tokens": ["Add", " it"],
        "response_tokens": [" 1", " 2", "<eos>"],
        "prompt_ids": [4, 5],
        "response_ids": [6, 7, 2],
        "prompt_special": [False, False],
        "probability": np.array([0.9, 0.5, 0.1]),
        "method": "exact",
        "prompt_spans": [(0, 3), (3, 6)],
        "bos_id": 1,
    }
    return SaliencyResult(**(fields | changes))


def test_result_methods_are_the_functions(tmp_path: Path) -> None:
    found = result()
    assert np.array_equal(found.normalized(), normalize_importance(found.importance))
    assert np.array_equal(found.density(), importance_density(normalize_importance(found.importance, threshold=7)))
    mask = found.mask((4, 6))
    assert mask.tolist() == [False, True]
    assert found.instruction_score(mask) == instruction_score(found.density(), mask)
    assert found.context_score(mask) == instruction_score(found.density(), ~mask)
    assert result(prompt_special=[True, False]).context_score(mask) == 0
    frame = found.to_frame()
    assert frame.shape == (6, 6)
    assert frame.query("prompt_token == ' it' and response_position == 1").importance.item() == 0.4
    assert SaliencyResult.load(found.save(tmp_path / "r")).equals(found)


def test_a_result_leaves_out_what_is_under_the_floor() -> None:
    faint = np.array([[0.5, -0.1, 2e-6], [0.1, 0.4, 1e-6]])
    found, mask = result(importance=faint), [False, True]
    assert found.under_floor().tolist() == [False, False, True]
    assert not found.under_floor(0).any()
    without = normalize_importance(faint[:, :2], threshold=7)
    assert np.array_equal(found.density(min_importance=0.01), importance_density(without))
    score = instruction_score(importance_density(without), mask)
    assert found.instruction_score(mask, min_importance=0.01) == score
    assert found.context_score(mask, min_importance=0.01) == instruction_score(importance_density(without), [1, 0])
    assert found.instruction_score(mask) != score  # the paper's rule counts the column of millionths
    # where nothing reaches the floor there is nothing to score, which is not 0
    assert np.isnan(found.instruction_score(mask, min_importance=0.6))
    assert not found.density(min_importance=0.6).any()
    partial = result(importance=np.where([[True], [False]], faint, np.nan), partial=True)
    assert partial.under_floor().tolist() == [False, True, True]  # of what is computed


def test_partial_result_scores_what_is_there() -> None:
    importance = result().importance.copy()
    importance[:, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        result(importance=importance).density()
    assert result(importance=importance, partial=True).normalized()[:, 2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"importance": np.zeros((3, 2))}, r"importance must have shape \(2, 3\), got \(3, 2\)"),
        ({"prompt_ids": [1]}, "prompt_ids must have 2 entries, got 1"),
        ({"probability": np.zeros(2)}, r"probability must have shape \(3,\)"),
        ({"completeness_gap": np.zeros(2)}, r"completeness_gap must have shape \(3,\)"),
        ({"prompt_spans": [(0, 1)]}, "prompt_spans must have 2 entries"),
    ],
)
def test_result_checks_its_shapes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        result(**changes)


def test_masks_from_character_spans() -> None:
    spans = [(0, 3), (3, 3), (3, 6)]
    assert spans_to_mask(spans, [(2, 4)]).tolist() == [True, True, True]
    assert spans_to_mask(spans, [(0, 1), (5, 6)]).tolist() == [True, False, True]
    assert spans_to_mask(spans, []).tolist() == [False] * 3
    with pytest.raises(ValueError, match="given as token ids"):
        result(prompt_spans=None).mask((0, 3))
    with pytest.raises(ValueError, match="start <= stop"):
        spans_to_mask(spans, [(4, 2)])
