"""`head_writes` against `direct_logit_attribution`, token by token."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import HeadWrites, direct_logit_attribution, head_writes
from tests.analysis.attention.shapes import IDS, SHAPES, model_of

LAYER, HEAD = 1, 2


def effects(model: Any, ids: list[int]) -> Any:
    """(d_vocab,) direct logit attribution of the head to every token minus that to token 0, one prompt each."""
    others = range(1, model.d_vocab)
    found = direct_logit_attribution(model, [ids] * len(others), list(others), foil=0, resamples=1)
    return np.array([0.0, *found.heads_by_prompt[:, LAYER, HEAD]])


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_its_tokens_are_those_with_the_largest_direct_attribution(name: str, backend: Any) -> None:
    model = model_of(name, backend)
    result = head_writes(model, IDS, LAYER, HEAD, top=5)
    every = effects(model, IDS)
    every -= every.mean()
    assert np.unique(every).size == every.size
    assert list(result.raised_ids) == np.argsort(-every)[:5].tolist()
    assert list(result.lowered_ids) == np.argsort(every)[:5].tolist()
    np.testing.assert_allclose(result.raised, np.sort(every)[::-1][:5], atol=1e-4)
    np.testing.assert_allclose(result.lowered, np.sort(every)[:5], atol=1e-4)
    assert result.spread == pytest.approx(every.std(), abs=1e-4)
    assert list(head_writes(model, IDS, LAYER, HEAD - 1, top=5).raised_ids) != list(result.raised_ids)


def test_another_position_is_the_end_of_a_shorter_prompt() -> None:
    model = model_of("llama")
    found, shorter = head_writes(model, IDS, LAYER, HEAD, position=-3), head_writes(model, IDS[:-2], LAYER, HEAD)
    assert (found.position, found.raised_ids) == (len(IDS) - 3, shorter.raised_ids)
    np.testing.assert_allclose(found.raised, shorter.raised, atol=1e-5)
    assert len(found.tokens) == len(IDS)
    rows = found.to_frame()
    assert rows["direction"].tolist() == ["raised"] * 10 + ["lowered"] * 10
    assert rows["logits"].tolist() == [*found.raised, *found.lowered]


def test_random_directions_of_the_same_length_have_strongest_tokens_too() -> None:
    """Most random heads are not beyond them; one that writes a token's own unembedding is."""
    model = model_of("llama")
    ps = [head_writes(model, IDS, layer, head, seed=layer).p for layer in range(3) for head in range(4)]
    assert np.mean(np.array(ps) <= 0.05) <= 0.25
    result = head_writes(model, IDS, LAYER, HEAD, draws=3)
    assert len(result.random_raised) == len(result.random_lowered) == 3
    assert "with 3 p cannot be below 0.25" in result.in_words()
    strong = dataclasses.replace(result, raised=result.random_raised.max() + 1 + np.zeros(10))
    assert strong.p[0] == 0.25
    weight = model.weight("W_O", LAYER)[HEAD]
    before = weight.clone()
    try:
        with torch.no_grad():
            weight.copy_(torch.outer(torch.ones(len(weight)), model.weight("W_U")[:, 7]))
        written = head_writes(model, IDS, LAYER, HEAD)
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert min(written.p) == 0.05
    assert 7 in (written.raised_ids[0], written.lowered_ids[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layer": 3}, "layer must be in -3..2"),
        ({"head": 4}, "head must be in -4..3 for this layer of 4 heads, got 4"),
        ({"position": 9}, "position must be in -9..8 for this prompt of 9 tokens"),
        ({"top": 129}, "top must be in 1..128"),
        ({"draws": 0}, "draws must be 1 or more"),
    ],
)
def test_refusals(options: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        head_writes(model_of("llama"), IDS, **{"layer": 0, "head": 0, **options})


def test_it_is_saved_and_loaded(tmp_path: Any) -> None:
    result = head_writes(model_of("llama"), IDS, LAYER, HEAD, top=3)
    result.save(tmp_path / "writes.npz")
    again = HeadWrites.load(tmp_path / "writes.npz")
    assert again.raised_tokens == result.raised_tokens
    assert again.measures() == result.measures()
