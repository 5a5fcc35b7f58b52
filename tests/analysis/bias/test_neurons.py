"""Bias neurons: cosines and activations by hand, a planted neuron is found, bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import (
    LabeledTexts,
    Result,
    SentencePair,
    bias_neuron_activity,
    rank_bias_neurons,
    train_bias_probes,
)
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

PAIRS = [SentencePair(f"{one} {two}.", f"{one} {two} Paris.", f"{one} {two}")
         for one in ("A pilot", "A nurse", "John", "Mary", "The dog") for two in ("flies", "helps")]  # fmt: skip


def probes_of(model: Any) -> Any:
    return train_bias_probes(model, PAIRS, splits=2)


@pytest.mark.parametrize(("family", "backend"), [("gpt2", "hooked"), ("llama", "bridge")])
def test_the_most_alike_value_vectors_of_all_layers(family: str, backend: str, tmp_path: Path) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    probes = probes_of(model)
    found = rank_bias_neurons(model, probes, k=4)
    for probe, direction in enumerate(probes.direction):
        cosines = {}
        for layer in range(model.n_layers):
            for number, value in enumerate(model.weight("W_out", layer).double().numpy()):
                cosines[layer, number] = float(value @ direction / np.linalg.norm(value))
        best = sorted(cosines, key=lambda place: -cosines[place])[:4]
        assert list(zip(found.layer[probe].tolist(), found.neuron[probe].tolist(), strict=True)) == best
        np.testing.assert_allclose(found.cosine[probe], [cosines[place] for place in best], atol=1e-6)
    assert {(layer, number) for layer in range(model.n_layers) for number in found.of_layer(layer)} == set(
        zip(found.layer.ravel().tolist(), found.neuron.ravel().tolist(), strict=True)
    )
    assert Result.load(found.save(tmp_path / "neurons")).equals(found)
    assert found.to_frame().shape == (model.n_layers * 4, 5)


def test_a_planted_neuron_stands_out_from_chance() -> None:
    model = tiny_model("gpt2", "auto", seed=8)
    probes = probes_of(model)
    value = model.weight("W_out", 1)[5].double().numpy()
    along = probes.direction.copy()
    along[2] = value / np.linalg.norm(value)
    found = rank_bias_neurons(model, replace(probes, direction=along), k=3)
    assert (found.layer[2, 0], found.neuron[2, 0]) == (1, 5)
    assert found.cosine[2, 0] == pytest.approx(1)
    assert found.chance[2] < 0.9
    others = np.delete(found.cosine, 2, axis=0)
    assert (others < found.chance[2] + 0.2).all(), "random models have no bias neurons"


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), [("gpt2", "hooked"), ("llama", "bridge")])
def test_activity_over_the_tokens_of_biased_and_benign_texts(family: str, backend: str) -> None:
    model = tiny_model(family, backend)
    neurons = rank_bias_neurons(model, probes_of(model), k=2)
    done: list[tuple[int, int]] = []
    found = bias_neuron_activity(model, neurons, PAIRS, progress=lambda *told: done.append(told))
    assert done[-1] == (20, 20)
    assert done == sorted(set(done))
    for layer in range(model.n_layers):
        numbers = list(neurons.of_layer(layer))
        assert found.neurons[layer] == len(numbers)
        for side, texts in enumerate(([pair.biased for pair in PAIRS], [pair.benign for pair in PAIRS])):
            if not numbers:
                assert np.isnan(found.mean[layer]).all()
                continue
            values = []
            for text in texts:
                ids = model.tokens(text)
                hook = f"blocks.{layer}.mlp.hook_post"
                rows = model.run(ids, capture=hook).activations[hook][0]
                values.append(rows[int(ids[0] == model.bos_token_id) :, numbers])
            every = torch.cat(values)
            assert found.mean[layer, side] == pytest.approx(float(every.mean()), abs=1e-5)
            assert found.share_active[layer, side] == pytest.approx(float((every > 0).float().mean()))
    assert list(found.to_frame()["texts"][:2]) == ["biased", "benign"]


def test_other_models_and_one_kind_of_text_are_refused() -> None:
    model, other = tiny_model("gpt2", "auto"), demo_pair().base
    probes = probes_of(model)
    with pytest.raises(ValueError, match=r"the probes are of a model with 3 layers of width 32, .* has 6 of width 192"):
        rank_bias_neurons(other, probes)
    with pytest.raises(ValueError, match="k must be"):
        rank_bias_neurons(model, probes, k=10**6)
    neurons = rank_bias_neurons(model, probes)
    with pytest.raises(ValueError, match=r"the neurons are of a model with 3 layers, .* has 6"):
        bias_neuron_activity(other, neurons, PAIRS)
    with pytest.raises(ValueError, match="biased and benign texts, got one kind only"):
        bias_neuron_activity(model, neurons, LabeledTexts(("a", "b"), (True, True), ("a", "b")))
