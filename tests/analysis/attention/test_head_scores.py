"""`head_scores` against naive loops over patterns, and on a model with an induction head made by hand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from interp_widgets import HeadScores, attention_patterns, head_scores
from interp_widgets.analysis.attention.head_scores import SCORES, _sequences
from interp_widgets.models import Model
from tests.analysis.attention.shapes import SHAPES, model_of
from tests.models.tiny import HALF_SEED, tiny_model

LENGTH = 7


def by_loops(model: Any, length: int, sequences: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(4, sequences, layers, heads) scores and controls by loops over single patterns, in float64."""
    texts = _sequences(model, length, sequences, seed)
    bos = int(model.prepend_bos)
    all_scores, all_controls = [], []
    for number in range(sequences):
        again = attention_patterns(model, texts[number]).patterns.astype(np.float64)
        other = attention_patterns(model, texts[sequences + number]).patterns.astype(np.float64)
        total = again.shape[-1]

        def mean(patterns: np.ndarray, queries: range, keys: list[int], first: bool = False) -> Any:
            used = [(q, k) for q, k in zip(queries, keys, strict=True) if first or k > 0]
            return np.stack([patterns[:, :, q, k] for q, k in used]).mean(0)

        second, later = range(bos + length, total), range(2, total)
        after = [bos + j + 1 for j in range(length)]
        same = [bos + j for j in range(length)]
        all_scores.append([
            mean(again, second, after),
            mean(again, later, [q - 1 for q in later]),
            mean(again, second, same),
            mean(again, later, [0] * len(later), first=True),
        ])  # fmt: skip
        all_controls.append([
            mean(other, second, after),
            mean(again, later, [q - 2 for q in later]),
            mean(other, second, same),
            mean(again, later, [1] * len(later), first=True),
        ])  # fmt: skip
    return np.stack(all_scores, 1), np.stack(all_controls, 1)


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_scores_are_means_of_patterns(name: str, backend: str) -> None:
    model = model_of(name, backend)
    result = head_scores(model, length=LENGTH, sequences=3, seed=4, batch_size=2)
    scores, controls = by_loops(model, LENGTH, 3, 4)
    np.testing.assert_allclose(result.scores, scores, atol=2e-5)
    np.testing.assert_allclose(result.controls, controls, atol=2e-5)
    assert np.abs(result.scores - by_loops(model, LENGTH, 3, 5)[0]).max() > 1e-3  # the control: other tokens
    np.testing.assert_allclose(result.induction, scores[0].mean(0), atol=2e-5)
    np.testing.assert_allclose(result.control("induction"), controls[0].mean(0), atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_bos_stands_in_front_where_the_model_wants_one(family: str) -> None:
    model = tiny_model(family, "bridge")
    result = head_scores(model, length=LENGTH, sequences=2)
    assert result.bos == (family == "llama")
    scores, controls = by_loops(model, LENGTH, 2, 0)
    np.testing.assert_allclose(result.scores, scores, atol=2e-5)
    np.testing.assert_allclose(result.controls, controls, atol=2e-5)


def test_the_sequences() -> None:
    model = tiny_model("llama", "bridge")
    texts = _sequences(model, LENGTH, 3, 0)
    for text in texts[:3]:
        assert text[0] == model.bos_token_id
        assert text[1 : 1 + LENGTH] == text[1 + LENGTH :]
    for text in texts[3:]:
        assert len(set(text)) == 2 * LENGTH + 1
    drawn = [token for text in texts for token in text[1:]]
    assert not any(model.is_special(drawn))
    assert texts == _sequences(model, LENGTH, 3, 0) != _sequences(model, LENGTH, 3, 1)


PLACES: tuple[Callable[[list[int], int], int], ...] = (
    lambda text, q: next((k + 1 for k in range(q) if text[k] == text[q]), 0),
    lambda text, q: max(q - 1, 0),
    lambda text, q: next((k for k in range(q) if text[k] == text[q]), 0),
    lambda text, q: 0,
)
"""The place to which an ideal head of each kind attends, in the order of `SCORES`."""


@pytest.mark.parametrize("head", range(4))
def test_a_head_made_by_hand_is_found(head: int) -> None:
    """Hooks make head 1.2 an ideal head of one kind: it scores 1 for that, its control and other scores are near 0."""
    model = tiny_model("gpt2", "bridge")
    fed: list[list[list[int]]] = []
    place = PLACES[head]

    def ideal(pattern: torch.Tensor, hook: Any) -> torch.Tensor:
        made = pattern.clone()
        for row, text in enumerate(fed[-1]):
            made[row, 2] = 0
            for query in range(len(text)):
                made[row, 2, query, place(text, query)] = 1
        return made

    model.tl_model.hook_dict["blocks.1.attn.hook_pattern"].add_hook(ideal)
    before = model.tl_model.register_forward_pre_hook(lambda module, inputs: fed.append(inputs[0].tolist()))
    try:
        result = head_scores(model, length=LENGTH, sequences=3)
    finally:
        before.remove()
        model.tl_model.reset_hooks()
    for number, score in enumerate(SCORES):
        value, control = result._mean(score)[1, 2], result.control(score)[1, 2]
        if number == head:
            assert value == 1, score
            assert control < 0.1, score
            assert result.top(score, 1) == ((1, 2),)
            np.testing.assert_allclose(result.interval(score)[:, 1, 2], 1)
        elif (head, score) != (0, "duplicate_token"):
            assert value < 0.6, score


def test_intervals() -> None:
    model = tiny_model("gpt2", "bridge")
    result = head_scores(model, length=LENGTH, sequences=4)
    values = result.scores[0, :, 1, 2].astype(float)
    half = 3.182446 * values.std(ddof=1) / 2  # Student's t of 3 degrees of freedom
    np.testing.assert_allclose(
        result.interval("induction")[:, 1, 2], np.clip([values.mean() - half, values.mean() + half], 0, 1), rtol=1e-5
    )
    assert np.isnan(head_scores(model, length=LENGTH, sequences=1).interval("induction")).all()
    uniform = np.mean([1 / (q + 1) for q in range(LENGTH, 2 * LENGTH)])
    assert result.uniform[0] == pytest.approx(uniform)


def test_table_measures_and_file(tmp_path: Any) -> None:
    done: list[tuple[int, int]] = []
    result = head_scores(tiny_model("gpt2", "bridge"), length=LENGTH, sequences=2, progress=lambda *at: done.append(at))
    assert done[-1] == (4, 4)
    layer, head = result.top("first_token", 1)[0]
    assert result.measures()["first_token_head"] == f"{layer}.{head}"
    frame = result.to_frame()
    row = frame.query(f"score == 'first_token' and layer == {layer} and head == {head}").iloc[0]
    assert (row.value, row.control) == (
        pytest.approx(result.first_token.max()),
        pytest.approx(result.control("first_token")[layer, head]),
    )
    assert HeadScores.load(result.save(tmp_path / "scores")).equals(result)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "long": ({"length": 65}, "length must be at most 64, half of the 128 tokens that this model reads, got 65"),
    "short": ({"length": 1}, "length must be 2 or more, got 1"),
    "none": ({"sequences": 0}, "sequences must be 1 or more, got 0"),
    "seed": ({"seed": -1}, "seed must be an int >= 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str) -> None:
    options, sentence = BAD[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        head_scores(tiny_model("gpt2", "bridge"), **options)


def test_refusals() -> None:
    result = head_scores(tiny_model("gpt2", "bridge"), length=LENGTH, sequences=1)
    with pytest.raises(ValueError, match="score must be 'induction', 'previous_token'"):
        inspect.unwrap(HeadScores.control)(result, "copying")
    with pytest.raises(ValueError, match="head_scores needs the attention patterns of every layer, which Mamba"):
        head_scores(model_of("mamba"), length=LENGTH)
    few = mock.patch.object(Model, "is_special", lambda self, ids: [token >= 7 for token in ids])
    with few, pytest.raises(ValueError, match="length must be at most 3, half of the 7 tokens of this vocabulary"):
        head_scores(tiny_model("gpt2", "bridge"), length=4)


def test_half_precision() -> None:
    """In bfloat16 they are those in single precision, to its rounding."""
    single, half = (
        head_scores(tiny_model("llama", "bridge", seed=HALF_SEED, dtype=dtype), length=LENGTH, sequences=3)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert np.ptp(single.scores) > 0.1
    np.testing.assert_allclose(half.scores, single.scores, atol=0.01)
    np.testing.assert_allclose(half.controls, single.controls, atol=0.01)


def test_the_strongest_score_is_beyond_control_and_uniform_attention() -> None:
    def result(scores: list[float], controls: list[float], uniform: list[float]) -> HeadScores:
        shaped = [np.array(values).reshape(4, 1, 1, 1) for values in (scores, controls)]
        return HeadScores(scores=shaped[0], controls=shaped[1], uniform=np.array(uniform), length=5)

    found = result([0.9, 0.5, 0.3, 1.0], [0.8, 0.1, 0.0, 0.0], [0.1, 0.2, 0.25, 0.1])
    assert [float(found.beyond_chance(score)[0, 0]) for score in SCORES] == pytest.approx([0.1, 0.3, 0.05, 0.9])
    assert found.strongest() == "previous_token", "the sink comes last, whatever it scores"
    assert result([0.1] * 4, [0.2] * 4, [0.1] * 4).strongest() == "first_token"
