"""`attention_reasons`: the parts add up to the model's own score; parts against loops over `decompose_tokens`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import AttentionReasons, attention_patterns, attention_reasons, decompose_tokens
from interp_widgets.models.engine import has_hooks
from tests.analysis.attention.shapes import IDS, SHAPES, hf_model, model_of
from tests.models.tiny import tiny_model

PLACES = [(0, 1, 5, 3), (2, 3, -1, -2), (1, 0, 6, 6)]
"""Layer, head, query and key."""
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_the_parts_add_up_to_the_models_own_score(name: str, backend: Any) -> None:
    model = model_of(name, backend)
    for layer, head, query, key in PLACES:
        result = attention_reasons(model, IDS, layer, head, query, key)
        query, key = query % len(IDS), key % len(IDS)
        assert result.parts.shape == (query + 2, key + 2)
        total = result.parts.sum() + result.position_bias
        scores = f"blocks.{layer}.attn.hook_attn_scores"
        actual = float(model.run(IDS, capture=scores).activations[scores][0, head, query, key])
        capped = 2.0 * np.tanh(total / 2.0) if name == "gemma2" else total
        assert capped == pytest.approx(actual, abs=1e-4)
        assert result.score == pytest.approx(total, abs=1e-4)
        pattern = attention_patterns(model, IDS, layers=[layer], heads=[head]).pattern(layer, head)
        assert result.attention == pytest.approx(pattern[query, key], abs=1e-6)
    assert not has_hooks(model.tl_model)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_are_products_of_decomposed_streams(backend: Any) -> None:
    """GPT-2, whose scores have no rotation: every pair by a loop in float64."""
    model = model_of("gpt2", backend, torch.float64)
    layer, head, query, key = 2, 1, 7, 4
    result = attention_reasons(model, IDS, layer, head, query, key)
    block = hf_model("gpt2", torch.float64).transformer.h[layer]
    weight, bias = (part.detach().numpy() for part in (block.attn.c_attn.weight, block.attn.c_attn.bias))
    gain, shift = (part.detach().numpy() for part in (block.ln_1.weight, block.ln_1.bias))

    def sources(position: int, first: int) -> np.ndarray:
        """(sources + 1, 8) what each source adds to the query or key; the biases last."""
        found = decompose_tokens(model, IDS, position=position, lens=None)
        whole = found.residual[layer]
        scale = np.sqrt(whole.var() + block.ln_1.eps)
        columns = slice(first + head * 8, first + head * 8 + 8)
        rows = []
        for part in [*found.parts[layer, : position + 1], found.bias[layer]]:
            rows.append((part - part.mean()) / scale * gain @ weight[:, columns])
        rows[-1] = rows[-1] + shift @ weight[:, columns] + bias[columns]
        return np.stack(rows)

    queries, keys = sources(query, 0), sources(key, 32)
    expected = np.zeros((query + 2, key + 2))
    for i in range(query + 2):
        for j in range(key + 2):
            expected[i, j] = queries[i] @ keys[j] / np.sqrt(8)
    np.testing.assert_allclose(result.parts, expected, atol=1e-8)
    assert np.abs(result.parts[:, :-1] - expected[:, 1:]).max() > 1e-3  # the control: keys moved by one


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_rotation_and_the_norms_are_those_of_transformers(name: str) -> None:
    """In the first layer every token is its own only source, so that the main part is the whole score."""
    result = attention_reasons(model_of(name), IDS, 0, 2, 7, 6)
    assert np.abs(result.parts[:-2]).max() < 1e-6
    assert np.abs(result.parts[:, :-2]).max() < 1e-6
    assert result.parts[7, 6] == pytest.approx(result.score, abs=1e-4)
    again = attention_reasons(model_of(name), IDS, 0, 2, 7, 4)
    with torch.no_grad():
        pattern = hf_model(name)(torch.tensor([IDS]), output_attentions=True).attentions[0][0, 2, 7]
    if name == "llama":
        assert result.score - again.score == pytest.approx(float((pattern[6] / pattern[4]).log()), abs=1e-3)
    assert result.attention == pytest.approx(float(pattern[6]), abs=1e-5)


def test_the_bos_is_a_source() -> None:
    model = tiny_model("llama", "bridge")
    result = attention_reasons(model, "The capital of France", 1, 2, -1, 0)
    assert result.key_sources == ("<s>", "biases")
    assert result.query_sources[0] == "<s>"
    assert result.query == len(model.tokens("The capital of France")) - 1


def test_half_precision() -> None:
    wide = attention_reasons(tiny_model("llama", "bridge", seed=20), "The capital of", 1, 2, -1, 1)
    half = attention_reasons(
        tiny_model("llama", "bridge", dtype=torch.bfloat16, seed=20), "The capital of", 1, 2, -1, 1
    )
    np.testing.assert_allclose(half.parts, wide.parts, atol=0.1 * np.abs(wide.parts).max())


def test_table_measures_and_file(tmp_path: Any) -> None:
    result = attention_reasons(model_of("llama"), IDS, 2, 1, 6, 3)
    frame, measured = result.to_frame(), result.measures()
    assert frame.part.sum() == pytest.approx(result.score, abs=1e-4)
    assert frame.nlargest(1, "part").iloc[0].key_token == measured["key_source"]
    assert measured["part"] == result.parts.max()
    assert AttentionReasons.load(result.save(tmp_path / "reasons")).equals(result)


BAD: dict[str, tuple[str, tuple[int, int, int, int], str]] = {
    "layer": ("gpt2", (3, 0, 1, 0), "layer must be in -3..2 for this 3-layer model, got 3"),
    "head": ("gpt2", (0, 4, 1, 0), "head must be in -4..3 for this model with 4 heads per layer, got 4"),
    "query": ("gpt2", (0, 0, 9, 0), "query must be in -9..8 for this prompt of 9 tokens, got 9"),
    "order": ("gpt2", (0, 0, 1, 2), "key must not come after query, which no head sees, got key 2 and query 1"),
    "window": ("mistral", (0, 0, 8, 1), "head 0.0 does not see position 1 from position 8: choose a key inside"),
    "mamba": ("mamba", (0, 0, 1, 0), "attention_reasons needs the attention patterns of every layer, which Mamba"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str) -> None:
    name, place, sentence = BAD[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attention_reasons(model_of(name), IDS, *place)


@pytest.mark.hooked
def test_norms_of_queries_in_a_hooked_transformer_are_refused() -> None:
    with pytest.raises(ValueError, match="attention_reasons cannot hold the norm of queries and keys of Qwen3"):
        attention_reasons(tiny_model("qwen3", "hooked"), [5, 17, 30], 1, 1, 2, 1)
