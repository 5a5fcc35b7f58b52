"""LoPE: the projector, what it edits of a model and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import (
    SentencePair,
    bias_neuron_activity,
    load_model,
    lope,
    lope_edit,
    rank_bias_neurons,
    train_bias_probes,
)
from interp_widgets.analysis.bias.lope import bias_projection
from tests.models.tiny import tiny_folder

PAIRS = [SentencePair(f"{one} {two}.", f"{one} {two} Paris.", f"{one} {two}")
         for one in ("A pilot", "A nurse", "John", "Mary", "The dog") for two in ("flies", "helps")]  # fmt: skip
KINDS = [("gpt2", "hooked"), ("gpt2", "bridge"), ("llama", "bridge")]


def setting(family: str, backend: str) -> tuple[Any, Any]:
    model = load_model(tiny_folder(family), device="cpu", backend=backend, dtype=torch.float64)
    return model, train_bias_probes(model, PAIRS, splits=2)


def test_the_projector_is_idempotent_and_the_printed_sum_is_not() -> None:
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((4, 9))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    projector = bias_projection(directions)
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
    np.testing.assert_allclose(projector @ directions.T, directions.T, atol=1e-12)
    assert np.linalg.matrix_rank(projector) == 4
    printed = bias_projection(directions, literal=True)
    np.testing.assert_allclose(printed, sum(np.outer(row, row) for row in directions))
    assert np.abs(printed @ printed - printed).max() > 0.1
    square = np.linalg.qr(rng.standard_normal((9, 3)))[0].T
    np.testing.assert_allclose(bias_projection(square), bias_projection(square, literal=True), atol=1e-12)
    twice = np.stack([directions[0], directions[0], -directions[0]])
    np.testing.assert_allclose(bias_projection(twice), np.outer(directions[0], directions[0]), atol=1e-12)


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), KINDS)
def test_bias_neurons_write_nothing_along_the_probes_and_others_keep_their_bits(family: str, backend: str) -> None:
    model, probes = setting(family, backend)
    neurons = rank_bias_neurons(model, probes, k=3)
    before = [model.weight("W_out", layer).clone() for layer in range(model.n_layers)]
    with lope(model, probes, k=3, threshold=0.0, alpha=0.0) as edit:
        after = [model.weight("W_out", layer).clone() for layer in range(model.n_layers)]
        assert all(not bool(one.added.any()) for one in edit.layers.values()), "alpha=0 takes nothing off"
    for layer in range(model.n_layers):
        numbers = list(neurons.of_layer(layer))
        rest = [row for row in range(len(before[layer])) if row not in numbers]
        assert torch.equal(after[layer][rest], before[layer][rest])
        if numbers:
            directions = torch.from_numpy(probes.direction[list(probes.generalizing(layer, 0.0))])
            along = after[layer][numbers].double() @ directions.T
            assert float(along.abs().max()) < 1e-6
        assert torch.equal(model.weight("W_out", layer), before[layer])


@pytest.mark.seconds
def test_what_is_taken_off_is_the_mean_direction_times_the_mean_activation() -> None:
    model, probes = setting("gpt2", "bridge")
    neurons = rank_bias_neurons(model, probes, k=5)
    activity = bias_neuron_activity(model, neurons, PAIRS)
    edit = lope_edit(model, probes, k=5, threshold=0.0, alpha=2.0)
    signs = set()
    for layer, own in edit.layers.items():
        value = activity.mean[layer, 0]
        signs.add(bool(value > 0))
        directions = probes.direction[list(probes.generalizing(layer, 0.0))]
        wanted = -2.0 * max(value, 0.0) * directions.mean(axis=0)
        np.testing.assert_allclose(own.added.numpy(), wanted, atol=1e-6)
    assert edit.settings == {"method": "lope", "k": 5, "threshold": 0.0, "alpha": 2.0, "literal": False}
    assert signs, "no layer was edited"


@pytest.mark.seconds
def test_layers_where_no_probe_holds_are_left_alone() -> None:
    model, probes = setting("gpt2", "auto")
    nothing = replace(probes, generalization=np.full_like(probes.generalization, 0.5))
    assert lope_edit(model, nothing, threshold=0.5).layers == {}
    one = np.full_like(probes.generalization, 0.5)
    one[2, 1] = 0.95
    edit = lope_edit(model, replace(probes, generalization=one), k=model.d_mlp, threshold=0.9)
    assert list(edit.layers) == [1]
    removed = edit.layers[1].before.double() - edit.layers[1].after.double()
    along = torch.from_numpy(np.outer(probes.direction[2], probes.direction[2]))
    np.testing.assert_allclose(removed, edit.layers[1].before.double() @ along, atol=1e-6)


@pytest.mark.seconds
def test_the_printed_equation_removes_more_than_there_is_where_probes_agree() -> None:
    model, probes = setting("gpt2", "auto")
    same = replace(probes, direction=np.repeat(probes.direction[:1], model.n_layers, axis=0))
    once, printed = (lope_edit(model, same, k=2, threshold=0.0, literal=literal) for literal in (False, True))
    for layer, own in once.layers.items():
        removed = (own.before - own.after).double()
        np.testing.assert_allclose(
            (printed.layers[layer].before - printed.layers[layer].after).double(), model.n_layers * removed, atol=1e-5
        )


@pytest.mark.seconds
def test_where_the_output_of_mlps_is_normed_neurons_are_ranked_by_what_they_write_and_not_edited() -> None:
    model, probes = setting("gemma2", "bridge")
    found = rank_bias_neurons(model, probes, k=1)
    written = model.weight("W_out", 1).double() * model.weight("ln2_post_w", 1).double()
    along = (written / written.norm(dim=1, keepdim=True)) @ torch.from_numpy(probes.direction[0].copy())
    assert found.cosine[0, 0] >= float(along.max()) - 1e-6
    if found.layer[0, 0] == 1:
        assert found.neuron[0, 0] == int(along.argmax())
    with pytest.raises(ValueError, match=r"is not normalised; .* normalises it"):
        lope_edit(model, probes)


def test_bad_options_are_refused() -> None:
    model, probes = setting("gpt2", "auto")
    with pytest.raises(ValueError, match="threshold must be"):
        lope_edit(model, probes, threshold=2.0)
    for alpha in (-1.0, float("inf")):
        with pytest.raises(ValueError, match=f"alpha must be a finite number of 0 or more, got {alpha}"):
            lope_edit(model, probes, alpha=alpha)
    with pytest.raises(ValueError, match="k must be"):
        lope_edit(model, probes, k=0)
