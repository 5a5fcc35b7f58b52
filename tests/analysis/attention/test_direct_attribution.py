"""`direct_logit_attribution` against formulas on transformers' own modules; sums, sets of prompts, and refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import DirectLogitAttribution, decompose_logit, direct_logit_attribution, load_circuit
from interp_widgets.analysis._core.statistics import bootstrap_mean, largest_p
from interp_widgets.analysis.attention.direct_attribution import OnePosition
from interp_widgets.analysis.token_decomposition.part_lens import PartLens
from tests.analysis.attention.shapes import IDS, SHAPES, hf_model, model_of
from tests.models.tiny import tiny_model

TARGET, FOIL = 7, 11
PROMPTS = [IDS, IDS[:-2], IDS[::-1], IDS[3:]]


def logit_of(name: str, ids: list[int], dtype: torch.dtype) -> float:
    """The logit difference of transformers' own pass."""
    with torch.no_grad():
        logits = hf_model(name, dtype)(torch.tensor([ids])).logits[0, -1].double()
    return float(logits[TARGET] - logits[FOIL])


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_the_parts_add_up_to_the_logit(name: str, backend: Any) -> None:
    result = direct_logit_attribution(model_of(name, backend), IDS, TARGET, foil=FOIL)
    assert result.error[0] < 1e-5
    parts = result.heads.sum() + result.mlps.sum() + result.attention_bias.sum() + result.embedding + result.bias
    assert parts == pytest.approx(result.total, abs=1e-4)
    if name != "gemma2":  # its logits are capped
        assert result.total == pytest.approx(logit_of(name, IDS, torch.float32), abs=1e-4)
    same = decompose_logit(model_of(name, backend), IDS, TARGET, foil=FOIL)
    assert result.total == pytest.approx(same.logit, abs=1e-4)


LAYOUT = {
    "gpt2": ("transformer.h.{}.attn.c_proj", "transformer.h.{}.mlp", "transformer.ln_f"),
    "llama": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp", "model.norm"),
    "gemma3": (
        "model.layers.{}.self_attn.o_proj", "model.layers.{}.post_feedforward_layernorm", "model.norm",
    ),
}  # fmt: skip
"""Where transformers has the output matrix of attention, what the MLP adds to the stream, and the final norm."""


@pytest.mark.parametrize("name", LAYOUT)
def test_parts_are_those_of_a_loop_over_transformers_modules(name: str) -> None:
    """Each part's vector at the last position, through the final norm at the whole stream's scale, by formulas."""
    hf, dtype = hf_model(name, torch.float64), torch.float64
    seen: dict[str, Any] = {}
    out_name, mlp_name, norm_name = LAYOUT[name]
    names = [norm_name, *(path.format(i) for path in (out_name, mlp_name) for i in range(3))]
    if name == "gemma3":
        names += [f"model.layers.{i}.post_attention_layernorm" for i in range(3)]
    for path in names:
        hf.get_submodule(path).register_forward_hook(
            lambda module, inputs, output, path=path: seen.__setitem__(path, (inputs[0][0, -1], output[0, -1]))
        )
    with torch.no_grad():
        hf(torch.tensor([IDS]))
    unembed = hf.get_output_embeddings().weight
    direction = (unembed[TARGET] - unembed[FOIL]).detach()
    final, stream = hf.get_submodule(norm_name), seen[norm_name][0]

    def through(norm: Any, part: torch.Tensor, whole: torch.Tensor) -> Any:
        weight = norm.weight.detach() + (1 if name == "gemma3" else 0)
        if name == "gpt2":
            return (part - part.mean()) / (whole.var(unbiased=False) + norm.eps).sqrt() * weight
        epsilon = norm.eps if name == "gemma3" else norm.variance_epsilon
        return part / (whole.pow(2).mean() + epsilon).sqrt() * weight

    result = direct_logit_attribution(model_of(name, "bridge", dtype), IDS, TARGET, foil=FOIL)
    for layer in range(3):
        z, written = seen[out_name.format(layer)]
        matrix = hf.get_submodule(out_name.format(layer)).weight.detach()
        matrix = matrix if name == "gpt2" else matrix.T  # (heads * size, d_model)
        for head in range(4):
            part = z[head * 8 : (head + 1) * 8] @ matrix[head * 8 : (head + 1) * 8]
            if name == "gemma3":
                part = through(hf.get_submodule(f"model.layers.{layer}.post_attention_layernorm"), part, written)
            expected = float(through(final, part, stream) @ direction)
            assert result.heads[layer, head] == pytest.approx(expected, abs=1e-6)
        mlp = float(through(final, seen[mlp_name.format(layer)][1], stream) @ direction)
        assert result.mlps[layer] == pytest.approx(mlp, abs=1e-6)
        if name == "gpt2":
            bias = hf.get_submodule(out_name.format(layer)).bias.detach()
            assert result.attention_bias[layer] == pytest.approx(float(through(final, bias, stream) @ direction))
        else:
            assert result.attention_bias[layer] == 0
    if name == "gpt2":
        assert result.bias == pytest.approx(float(final.bias.detach() @ direction))


def test_a_set_of_prompts() -> None:
    model = model_of("gpt2")
    targets, foils = [7, 8, 9, 7], [1, 2, 3, 4]
    together = direct_logit_attribution(model, PROMPTS, targets, foil=foils, batch_size=2, seed=3)
    for number, (prompt, target, foil) in enumerate(zip(PROMPTS, targets, foils, strict=True)):
        alone = direct_logit_attribution(model, prompt, target, foil=foil)
        np.testing.assert_allclose(together.heads_by_prompt[number], alone.heads, atol=1e-5)
        np.testing.assert_allclose(together.mlps_by_prompt[number], alone.mlps, atol=1e-5)
        assert together.total_by_prompt[number] == pytest.approx(alone.total, abs=1e-5)
        assert alone.heads_interval is None
        assert alone.mlps_interval is None
    np.testing.assert_allclose(together.heads, together.heads_by_prompt.mean(0))
    expected = bootstrap_mean(together.heads_by_prompt.reshape(4, -1), resamples=2000, seed=3).reshape(2, 3, 4)
    np.testing.assert_allclose(np.asarray(together.heads_interval), expected)
    assert (together.targets, together.foils) == (tuple(targets), tuple(foils))
    assert direct_logit_attribution(model, PROMPTS, 7).targets == (7, 7, 7, 7)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_null_is_that_of_a_loop_over_all_other_tokens(name: str) -> None:
    """Cosines of what a part writes with each token's own direction, above the mean of all: every token once."""
    model = model_of(name, "bridge", torch.float64)
    result = direct_logit_attribution(model, IDS, TARGET)
    written = OnePosition.of(model, torch.tensor([IDS]))
    lens = PartLens.of(model, written.end)
    heads, mlps = torch.cat([written.of_heads(layer, 0) for layer in range(3)]), torch.cat(written.mlp)
    order = [TARGET, *(token for token in range(model.d_vocab) if token != TARGET)]
    rows = torch.stack([lens.directions(token)[0] for token in order])
    rows = rows - rows.mean(0)
    for parts, p in ((heads, result.heads_p), (mlps, result.mlps_p)):
        cosines = np.array([[float(row @ part / row.norm()) for part in parts] for row in rows])
        sizes = np.abs(cosines) / np.sqrt((cosines**2).mean(0))
        wanted = [(1 + sum(row.max() >= own - 1e-9 for row in sizes[1:])) / len(sizes) for own in sizes[0]]
        np.testing.assert_allclose(np.asarray(p).ravel(), wanted)


def test_a_head_that_writes_the_token_is_beyond_chance_and_others_rarely_are() -> None:
    model = model_of("gpt2")
    weight = model.weight("W_O", 1)[2]
    before = weight.clone()
    try:
        with torch.no_grad():
            weight.copy_(torch.outer(torch.ones(len(weight)), model.weight("W_U")[:, TARGET]))
        alone = direct_logit_attribution(model, IDS, TARGET)
        several = direct_logit_attribution(model, PROMPTS[:2], TARGET, foil=FOIL, draws=199)
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert np.asarray(alone.heads_p)[1, 2] == 1 / 128
    assert np.asarray(several.heads_p)[1, 2] == 1 / 200
    assert "heads (1.2" in alone.in_words()
    assert "for or against this difference beyond chance" in several.in_words()
    rng, written = np.random.default_rng(0), OnePosition.of(model, torch.tensor([IDS]))
    drawn = [written.cosines(0, *rng.choice(128, 2, replace=False).tolist(), 99, rng) for _ in range(200)]
    for kind in (slice(0, 12), slice(12, None)):
        found = [largest_p(each[0, kind], each[1:, kind]).min() <= 0.05 for each in drawn]
        assert 0.01 < np.mean(found) < 0.1, "some head, or some MLP, for tokens that nobody asked for"


def test_the_name_mover_of_a_circuit_is_beyond_chance() -> None:
    model, truth = load_circuit("indirect_object")
    case = truth.cases[0]
    result = direct_logit_attribution(model, case.prompt, case.answer, foil=case.foil)
    assert np.argwhere(np.asarray(result.heads_p) <= 0.05).tolist() == [[2, 2]]
    assert result.in_words().startswith("1 of 12 heads (2.2) write for or against this difference beyond chance")
    assert (result.mlps_p is None) == model.capabilities.attention_only
    assert ("MLPs" in result.in_words()) == (result.mlps_p is not None)


def test_the_likeliest_token_is_the_default() -> None:
    model = model_of("llama")
    result = direct_logit_attribution(model, PROMPTS)
    for prompt, target in zip(PROMPTS, result.targets, strict=True):
        assert target == int(model.run(prompt).logits[0, -1].argmax())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_half_precision(family: str) -> None:
    wide = direct_logit_attribution(tiny_model(family, "bridge", seed=20), "The capital of", 40, foil=41)
    half = direct_logit_attribution(
        tiny_model(family, "bridge", dtype=torch.bfloat16, seed=20), "The capital of", 40, foil=41
    )
    assert half.error[0] < 0.05
    np.testing.assert_allclose(half.heads, wide.heads, atol=0.05 * np.abs(wide.heads).max() + 0.05)


def test_parts_that_do_not_add_up_are_refused() -> None:
    """A hook that changes what a block adds to the stream, behind everything that is read."""
    model = tiny_model("gpt2", "bridge")
    point = model.tl_model.hook_dict["blocks.1.hook_resid_post"]
    point.add_hook(lambda value, hook: value * 1.5)
    try:
        with pytest.raises(ValueError, match=r"the parts of .* do not add up to its logit: relative error"):
            direct_logit_attribution(model, "The capital of", 40, foil=41)
    finally:
        point.remove_hooks()


def test_table_measures_and_file(tmp_path: Any) -> None:
    done: list[tuple[int, int]] = []
    result = direct_logit_attribution(model_of("gpt2"), PROMPTS, 7, foil=8, progress=lambda *at: done.append(at))
    assert done[-1] == (4, 4)
    frame, measured = result.to_frame(), result.measures()
    assert frame.contribution.sum() == pytest.approx(result.total, abs=1e-4)
    layer, head = (int(number) for number in str(measured["head"]).split("."))
    assert result.heads[layer, head] == result.heads.max() == measured["head_contribution"]
    row = frame.query(f"part == 'head' and layer == {layer} and head == {head}").iloc[0]
    assert row.low <= row.contribution <= row.high
    assert row.p == np.asarray(result.heads_p)[layer, head]
    np.testing.assert_array_equal(frame.query("part == 'mlp'").p, np.asarray(result.mlps_p))
    assert frame.query("part not in ('head', 'mlp')").p.isna().all()
    assert DirectLogitAttribution.load(result.save(tmp_path / "parts")).equals(result)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "same": ({"foil": 7}, "target and foil must differ, both are 7: give another foil, or none"),
    "same in a set": (
        {"prompts": [IDS, IDS], "target": [7, 8], "foil": [9, 8]}, "both are 8 for prompt 1: give another foil",
    ),
    "count": (
        {"prompts": [IDS, IDS], "target": [7, 8, 9]},
        "target must be one token for all prompts or one per prompt: got 3 for 2",
    ),
    "target": ({"target": 200}, "the target must be in 0..127 for this vocabulary, got 200"),
    "draws": ({"draws": 0}, "draws must be 1 or more, got 0"),
    "empty": ({"prompts": []}, "the prompt is empty: write at least one word"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str) -> None:
    options, sentence = BAD[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        direct_logit_attribution(model_of("gpt2"), **{"prompts": IDS, "target": TARGET, **options})


def test_a_foil_equal_to_the_likeliest_token_is_refused() -> None:
    model = model_of("gpt2")
    best = int(model.run(IDS).logits[0, -1].argmax())
    with pytest.raises(ValueError, match=f"target and foil must differ, both are {best}"):
        direct_logit_attribution(model, IDS, foil=best)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="direct_logit_attribution needs the output of attention in every layer"):
        direct_logit_attribution(model_of("mamba"), IDS, TARGET)
