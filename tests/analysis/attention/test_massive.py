"""`massive_activations` on a model with a sink made by hand, against hooks on transformers' own model, and refusals."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import MassiveActivations, massive_activations
from interp_widgets.models import Model, load_model
from interp_widgets.models.engine import has_hooks
from tests.analysis.attention.shapes import IDS, SHAPES, hf_model, model_of
from tests.models.tiny import tiny_model

DIMENSION, SIZE = 9, 4000.0


def with_sink(backend: Any) -> tuple[Model, Any]:
    """A GPT-2 with one huge entry at the first position, whatever stands there; and the same for transformers."""

    def made() -> Any:
        hf = hf_model("gpt2", torch.float64)
        with torch.no_grad():
            hf.transformer.wpe.weight[0, DIMENSION] = SIZE
        return hf

    return load_model(made(), backend=backend, dtype=torch.float64), made()


def loss(hf: Any, ids: list[int], layer: int = 0, change: Callable[[torch.Tensor], None] | None = None) -> float:
    """transformers' own loss of ids, with the input of a block changed in place."""

    def hook(module: Any, inputs: Any) -> Any:
        stream = inputs[0].clone()
        if change is not None:
            change(stream[0])
        return (stream, *inputs[1:])

    handle = hf.transformer.h[layer].register_forward_pre_hook(hook)
    try:
        with torch.no_grad():
            return float(hf(torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    finally:
        handle.remove()


def setting(position: int, dimension: int, number: float) -> Callable[[torch.Tensor], None]:
    def change(stream: torch.Tensor) -> None:
        stream[position, dimension] = number

    return change


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_an_entry_made_by_hand_is_found_and_replaced(backend: str) -> None:
    model, hf = with_sink(backend)
    result = massive_activations(model, IDS, seed=2)
    assert (result.dimension == DIMENSION).all()
    assert (result.position == 0).all()
    assert result.massive.all()
    assert result.layer == 0
    with torch.no_grad():
        states = hf(torch.tensor([IDS]), output_hidden_states=True).hidden_states[:-1]
    for layer, state in enumerate(states):
        assert result.value[layer] == pytest.approx(float(state[0, 0, DIMENSION]), rel=1e-6)
        assert result.median[layer] == pytest.approx(float(state[0].abs().median()), rel=1e-6)
        assert result.ratio[layer] == pytest.approx(result.value[layer] / result.median[layer])
    assert result.loss == pytest.approx(loss(hf, IDS), abs=1e-6)
    assert result.replaced("zero") == pytest.approx(loss(hf, IDS, 0, setting(0, DIMENSION, 0.0)), abs=1e-6)
    assert result.mean == pytest.approx(SIZE, rel=0.01)
    assert result.replaced("mean") == pytest.approx(loss(hf, IDS, 0, setting(0, DIMENSION, result.mean)), abs=1e-6)
    assert result.replaced("mean") == pytest.approx(result.loss, abs=1e-3)
    others = [loss(hf, IDS, 0, setting(0, other, 0.0)) for other in result.other_dimensions]
    np.testing.assert_allclose(result.loss_other, others, atol=1e-6)
    assert result.replaced("other") == pytest.approx(np.mean(others), abs=1e-6)
    assert DIMENSION not in result.other_dimensions
    assert abs(result.replaced("zero") - result.loss) > 10 * abs(result.replaced("other") - result.loss)
    assert not has_hooks(model.tl_model)


@pytest.mark.parametrize("layer", [1, 3, -1])
def test_a_chosen_layer(layer: int) -> None:
    model, hf = with_sink("bridge")
    result = massive_activations(model, IDS, layer=layer, others=1, references=2)
    assert result.layer == layer % 4
    if layer == 1:
        assert result.loss_zero == pytest.approx(loss(hf, IDS, 1, setting(0, DIMENSION, 0.0)), abs=1e-6)
    else:  # only what the first token predicts can change
        norm, end = hf.transformer.ln_f, massive_activations(model, IDS, layer=3)
        seen: list[torch.Tensor] = []
        handle = norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0].clone()))
        loss(hf, IDS)
        handle.remove()
        seen[0][0, DIMENSION] = 0
        with torch.no_grad():
            logits = hf.lm_head(norm(seen[0]))[:-1]
        assert end.loss_zero == pytest.approx(
            float(torch.nn.functional.cross_entropy(logits, torch.tensor(IDS[1:]))), abs=1e-6
        )


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "backend"), SHAPES)
def test_every_shape(name: str, backend: Any) -> None:
    """Largest entries and losses by transformers; attention to their positions by the model's own patterns."""
    model = model_of(name, backend)
    result = massive_activations(model, IDS, others=1, references=1)
    with torch.no_grad():
        output = hf_model(name)(
            torch.tensor([IDS]), labels=torch.tensor([IDS]), output_hidden_states=True, output_attentions=True
        )
    assert result.loss == pytest.approx(float(output.loss), abs=1e-4)
    for layer, state in enumerate(output.hidden_states[:-1]):
        assert abs(result.value[layer]) == pytest.approx(float(state.abs().max()), rel=1e-4)
        position = int(state[0].abs().amax(-1).argmax())
        assert result.position[layer] == position
        assert result.attention is not None
        later = output.attentions[layer][0, :, position + 1 :, position]
        if later.numel():
            assert result.attention[layer] == pytest.approx(float(later.mean()), abs=1e-4)
        else:
            assert np.isnan(result.attention[layer])
    assert not result.massive.any()  # the control: random models have none


def test_the_bos_is_a_position_like_the_others() -> None:
    model = tiny_model("llama", "bridge")
    result = massive_activations(model, "The capital of France", layer=1, others=1)
    ids = model.tokens("The capital of France")
    assert (result.bos, result.ids, result.tokens[0]) == (True, tuple(ids), "<s>")
    place, dimension = int(result.position[result.peak]), int(result.dimension[result.peak])

    def change(value: torch.Tensor) -> torch.Tensor:
        new = value.clone()
        new[:, place, dimension] = 0
        return new

    logits = model.run(ids, edit={"blocks.1.hook_resid_pre": change}).logits[0, :-1]
    expected = float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))
    assert result.loss_zero == pytest.approx(expected, abs=1e-4)
    without = massive_activations(model, ids[1:], others=1)
    assert not without.bos


def test_an_entry_at_the_bos_is_replaced_there() -> None:
    """With an entry made by hand at the BOS, which patches count as position -1."""
    model = tiny_model("llama", "bridge")
    point = model.tl_model.hook_dict["blocks.1.hook_resid_pre"]

    def grown(value: torch.Tensor, hook: Any) -> torch.Tensor:
        new = value.clone()
        new[:, 0, DIMENSION] = SIZE
        return new

    point.add_hook(grown)
    try:
        result = massive_activations(model, "The capital of France", layer=2, others=2)
        assert (result.position[result.peak], result.dimension[result.peak]) == (0, DIMENSION)
        assert result.loss_zero != pytest.approx(result.loss, abs=1e-5)
        assert result.loss_mean == pytest.approx(result.loss, abs=1e-2)
    finally:
        point.remove_hooks()


def test_half_precision() -> None:
    options: dict[str, Any] = {"layer": 1, "others": 1, "references": 1}
    wide = massive_activations(tiny_model("llama", "bridge", seed=20), "The capital of France", **options)
    half = massive_activations(
        tiny_model("llama", "bridge", dtype=torch.bfloat16, seed=20), "The capital of France", **options
    )
    np.testing.assert_allclose(np.abs(half.value), np.abs(wide.value), rtol=0.05)
    assert half.loss == pytest.approx(wide.loss, abs=0.1)


def test_table_measures_and_file(tmp_path: Any) -> None:
    done: list[tuple[int, int]] = []
    result = massive_activations(model_of("gpt2"), IDS, others=2, progress=lambda *at: done.append(at))
    assert done == [(number, 5) for number in range(1, 6)]
    measured = result.measures()
    assert measured["value"] == pytest.approx(float(result.value[result.peak]))
    assert list(result.to_frame().token) == [result.tokens[position] for position in result.position]
    assert MassiveActivations.load(result.save(tmp_path / "massive")).equals(result)
    with pytest.raises(ValueError, match="by must be 'zero', 'mean' or 'other', got 'none'"):
        inspect.unwrap(MassiveActivations.replaced)(result, "none")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "layer": ({"layer": 4}, "layer must be in -4..3 for this 3-layer model, whose last stream is that before"),
    "others": ({"others": 32}, "others must be in 1..31 for this model's other dimensions, got 32"),
    "references": ({"references": 0}, "references must be 1 or more, got 0"),
    "one token": ({"prompt": [5]}, "the prompt has one token, and the loss is that of later ones: write at least two"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str) -> None:
    options, sentence = BAD[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        massive_activations(model_of("gpt2"), **{"prompt": IDS, **options})


def test_a_model_without_attention_has_no_shares() -> None:
    result = massive_activations(model_of("mamba"), IDS, others=1, references=1)
    assert result.attention is None
    assert len(result.value) == 3
