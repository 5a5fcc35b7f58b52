"""The likeliest tokens of one part: the best of them is the one that the decomposition holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis.token_decomposition import decompose_tokens, part_tokens
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

PROMPT = "The capital of France is"


@pytest.mark.parametrize("lens", ["own", "frozen"])
@pytest.mark.parametrize(("family", "backend"), [("gpt2", "hooked"), ("gpt2", "bridge"), ("llama", "hooked")])
def test_the_first_is_the_top_token_of_the_result(family: str, backend: Any, lens: Any) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    result = decompose_tokens(model, PROMPT, lens=lens)
    sources = [*range(len(result.tokens)), None]
    for layer in range(result.n_layers + 1):
        for source in sources:
            found = part_tokens(model, result, layer, source, top=4)
            assert list(found.probability) == sorted(found.probability, reverse=True)
            tops, chances = result.top_token, result.probability
            if source is None:
                tops, chances, source = result.bias_top_token[:, None], result.bias_probability[:, None], 0
            if tops[layer, source] < 0:
                assert found.ids == found.tokens == found.probability == ()
                continue
            assert found.probability[0] == pytest.approx(chances[layer, source], rel=1e-9)
            assert found.ids[0] == tops[layer, source]
            assert found.tokens[0] == model.token_strings([found.ids[0]])[0]


def test_probabilities_are_a_softmax_over_the_whole_vocabulary() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    result = decompose_tokens(model, PROMPT)
    found = part_tokens(model, result, result.n_layers, 1, top=model.d_vocab)
    assert sum(found.probability) == pytest.approx(1, abs=1e-12)
    assert sorted(found.ids) == list(range(model.d_vocab))
    part = torch.from_numpy(result.parts[-1, 1].copy())
    put = {f"blocks.{model.n_layers - 1}.hook_resid_post": lambda stream: part.expand_as(stream)}
    own = model.run([1], edit=put).logits[0, -1].softmax(-1)
    np.testing.assert_allclose(found.probability, own[list(found.ids)].numpy(), rtol=1e-9)
    other = part_tokens(model, result, result.n_layers, 2, top=model.d_vocab)
    assert not np.allclose(other.probability, found.probability, rtol=1e-3), "another part says something else"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 9}, r"layer must be in -\d+\.\.\d+ for this result"),
        ({"source": 99}, r"source must be in -\d+\.\.\d+ for this result of \d+ tokens, got 99"),
        ({"top": 0}, r"top must be in 1\.\.\d+ for this vocabulary, got 0"),
    ],
)
def test_bad_input_is_a_sentence(options: dict[str, int], message: str) -> None:
    model = tiny_model("gpt2")
    result = decompose_tokens(model, PROMPT)
    with pytest.raises(ValueError, match=message):
        part_tokens(model, result, **{"layer": 0, "source": 0, **options})


def test_a_result_must_have_a_lens_and_be_the_models_own() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match="the result has no lens"):
        part_tokens(model, decompose_tokens(model, PROMPT, lens=None), 0, 0)
    with pytest.raises(ValueError, match="give the model that was decomposed"):
        part_tokens(demo_pair().base, decompose_tokens(model, PROMPT), 0, 0)
