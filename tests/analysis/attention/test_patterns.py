"""`attention_patterns` against transformers' own attentions, and its views against plain loops."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from interp_widgets import AttentionPatterns, attention_patterns
from interp_widgets.analysis.attention import patterns
from interp_widgets.models.engine import has_hooks
from tests.analysis.attention.shapes import IDS, SHAPES, hf_model, model_of
from tests.models.tiny import tiny_model

TEXT = "The capital of France is Paris"


def theirs(name: str) -> np.ndarray:
    """(layers, heads, n, n) what transformers itself gives."""
    with torch.no_grad():
        return torch.cat(hf_model(name)(torch.tensor([IDS]), output_attentions=True).attentions).numpy()


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_patterns_are_those_of_transformers(name: str, backend: Any) -> None:
    result = attention_patterns(model_of(name, backend), IDS)
    np.testing.assert_allclose(result.patterns, theirs(name), atol=2e-5)
    np.testing.assert_allclose(result.patterns.sum(-1), 1, atol=1e-5)
    assert np.abs(result.patterns[:, ::-1] - theirs(name)).max() > 0.05  # the control: heads in another order
    assert result.ids == tuple(IDS)
    assert not has_hooks(model_of(name, backend).tl_model)


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_the_norm_of_what_is_moved(name: str, backend: Any) -> None:
    """A head that attends to one token alone puts out that token's value times W_O."""
    model = model_of(name, backend)
    result = attention_patterns(model, IDS)
    assert result.value_norm is not None
    run = model.run(IDS, capture=[f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)])
    for layer in range(model.n_layers):
        first = run.activations[f"blocks.{layer}.attn.hook_z"][0, 0]  # the first token can attend to itself only
        moved = torch.einsum("hd,hdm->hm", first, model.weight("W_O", layer)).norm(dim=-1)
        np.testing.assert_allclose(result.value_norm[layer, :, 0], moved.numpy(), rtol=1e-3, atol=1e-5)


def test_views_without_the_sink_and_weighted() -> None:
    result = attention_patterns(model_of("llama"), IDS)
    plain = result.pattern(1, 2)
    without = result.pattern(1, 2, without_sink=True)
    assert np.isnan(without[0]).all()
    assert (without[1:, 0] == 0).all()
    for query in range(1, len(IDS)):
        expected = [0.0] + [float(share) / float(plain[query, 1:].sum()) for share in plain[query, 1:]]
        np.testing.assert_allclose(without[query], expected, rtol=1e-6)
    weighted = result.pattern(1, 2, weighted=True)
    assert result.value_norm is not None
    for query in range(len(IDS)):
        for key in range(len(IDS)):
            assert weighted[query, key] == pytest.approx(plain[query, key] * result.value_norm[1, 2, key])
    both = result.pattern(1, 2, weighted=True, without_sink=True)
    np.testing.assert_allclose(both[3], [0, *weighted[3, 1:] / weighted[3, 1:].sum()], rtol=1e-6)


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_the_bos_is_on_the_axis(backend: str) -> None:
    model = tiny_model("llama", backend)
    result = attention_patterns(model, TEXT)
    assert (result.tokens[0], result.special[0], result.bos) == ("<s>", True, True)
    assert result.ids == tuple(model.tokens(TEXT))
    without = attention_patterns(model, TEXT, prepend_bos=False)
    assert (without.ids, without.bos) == (result.ids[1:], False)
    expected = [[float(np.mean([head[q, 0] for q in range(1, len(head))])) for head in layer]
                for layer in result.patterns]  # fmt: skip
    np.testing.assert_allclose(result.first_token, expected, rtol=1e-5)


def test_chosen_layers_and_heads() -> None:
    model = model_of("llama")
    whole = attention_patterns(model, IDS)
    some = attention_patterns(model, IDS, layers=[-1, 0], heads=[3, 1])
    assert (some.layers, some.heads) == ((2, 0), (3, 1))
    np.testing.assert_array_equal(some.pattern(0, 3), whole.pattern(0, 3))
    np.testing.assert_array_equal(some.pattern(2, 1), whole.pattern(2, 1))
    np.testing.assert_allclose(np.asarray(some.value_norm), np.asarray(whole.value_norm)[[2, 0]][:, [3, 1]], rtol=1e-5)
    with pytest.raises(ValueError, match="layer must be one of 2, 0, which were computed"):
        some.pattern(1, 1)
    with pytest.raises(ValueError, match="head must be one of 3, 1, which were computed"):
        some.pattern(0, 2)
    row = some.to_frame().query("layer == 0 and head == 1 and query == 4 and key == 2").iloc[0]
    assert row.attention == pytest.approx(whole.pattern(0, 1)[4, 2])


def test_half_precision() -> None:
    wide = attention_patterns(tiny_model("llama", "bridge", seed=20), TEXT)
    half = attention_patterns(tiny_model("llama", "bridge", dtype=torch.bfloat16, seed=20), TEXT)
    assert half.patterns.dtype == np.float32
    np.testing.assert_allclose(half.patterns, wide.patterns, atol=0.05)
    np.testing.assert_allclose(np.asarray(half.value_norm), np.asarray(wide.value_norm), rtol=0.2, atol=0.05)


def test_values_that_do_not_explain_the_heads_are_not_shown() -> None:
    """A hook of the user that changes a head's output: what it moves is then not its values."""
    model = tiny_model("gpt2", "bridge")
    point = model.tl_model.hook_dict["blocks.1.attn.hook_z"]
    point.add_hook(lambda value, hook: value * 1.5)
    try:
        result = attention_patterns(model, TEXT)
    finally:
        point.remove_hooks()
    assert result.value_norm is None
    with pytest.raises(ValueError, match="weighted=True needs the values that the heads move"):
        result.pattern(0, 0, weighted=True)


def test_measures_save_and_progress(tmp_path: Any) -> None:
    done: list[tuple[int, int]] = []
    model = model_of("gpt2")
    result = attention_patterns(model, IDS, progress=lambda *at: done.append(at))
    assert done == [(1, 3), (2, 3), (3, 3)]
    measured = result.measures()
    assert measured["first_token"] == pytest.approx(float(result.first_token.mean()))
    assert measured["previous_token"] == pytest.approx(
        np.mean([result.patterns[..., q, q - 1].mean() for q in range(1, len(IDS))]), rel=1e-5
    )
    assert AttentionPatterns.load(result.save(tmp_path / "patterns")).equals(result)
    assert np.isnan(attention_patterns(model, [5]).first_token).all()  # nothing attends to it but itself

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attention_patterns(model, IDS, check=stop)


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
@pytest.mark.parametrize("layers", [None, [-1, 0, 1]])
def test_the_first_layers_of_a_long_prompt_come_first(
    backend: Any, layers: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama", backend)
    whole = attention_patterns(model, IDS, layers=layers)
    parts: list[AttentionPatterns] = []
    assert attention_patterns(model, IDS, layers=layers, on_partial=parts.append).equals(whole)
    assert not parts, "short prompts have none"
    monkeypatch.setattr("interp_widgets.analysis.attention.patterns._LARGE", 1)
    monkeypatch.setattr("interp_widgets.analysis.attention.patterns._PARTS", 2)
    assert attention_patterns(model, IDS, layers=layers, on_partial=parts.append).equals(whole)
    (part,) = parts
    assert (part.partial, whole.partial) == (True, False)
    assert part.layers == (0,)
    for head in range(4):
        np.testing.assert_array_equal(part.pattern(0, head), whole.pattern(0, head))
    np.testing.assert_array_equal(np.asarray(part.value_norm)[0], np.asarray(whole.value_norm)[whole.layers.index(0)])
    kept: list[AttentionPatterns] = []

    def cancel() -> None:
        if kept:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        attention_patterns(model, IDS, layers=layers, check=cancel, on_partial=kept.append)
    assert kept[0].equals(part)
    never: list[AttentionPatterns] = []
    with model.tl_model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda value, hook: value)]):
        attention_patterns(model, IDS, layers=layers, on_partial=never.append)
    assert not never


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "layer": ({"layers": [3]}, "layer must be in -3..2 for this 3-layer model, got 3"),
    "head": ({"heads": [4]}, "head must be in -4..3 for this model with 4 heads per layer, got 4"),
    "none": ({"heads": []}, "heads must not be empty: name at least one of 0..3, or None for all"),
    "twice": ({"layers": [2, -1]}, "layers must be different, got 2 twice"),
    "empty": ({"prompt": []}, "the prompt is empty: write at least one word"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str) -> None:
    options, sentence = BAD[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attention_patterns(model_of("gpt2"), **{"prompt": IDS, **options})


def test_refusals() -> None:
    with pytest.raises(ValueError, match="attention_patterns needs the attention patterns of every layer, which Mamba"):
        attention_patterns(model_of("mamba"), IDS)
    with mock.patch.object(patterns, "free_bytes", return_value=1000), pytest.raises(MemoryError, match="name fewer"):
        attention_patterns(model_of("gpt2"), IDS)
