"""Every analysis takes a mixture of depths: two independent engines must say the same, and what a plain pass says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets.analysis.ablation import (
    Ablation,
    ablate_heads,
    ablate_modules,
    ablate_neurons,
    ablation,
    causal_trace,
)
from interp_widgets.analysis.attention import (
    attention_patterns,
    attention_reasons,
    direct_logit_attribution,
    head_scores,
    head_writes,
    massive_activations,
)
from interp_widgets.analysis.concepts import erase, steer
from interp_widgets.analysis.ffn_concepts import neuron_effects
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.analysis.logit_lens import logit_lens
from interp_widgets.analysis.mixture_of_depths import routing
from interp_widgets.analysis.patching import (
    ablation_null,
    activation_patching,
    edge_attribution,
    greedy_circuit,
    path_patching,
)
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.analysis.token_decomposition import decompose_logit, decompose_tokens
from tests.models.mixtures import tiny_mixture
from tests.models.tiny import tiny_model

IDS = [5, 17, 300, 44, 8, 261]
RESPONSE = [99, 30]
DIRECTION = np.linspace(-1, 1, 32)


def steered(model: Any) -> Tensor:
    with steer(model, DIRECTION, layer=2, strength=5.0):
        return model.run(IDS).logits


def erased(model: Any) -> Tensor:
    with erase(model, DIRECTION, layer=1):
        return model.run(IDS).logits


ANALYSES: dict[str, Callable[[Any], Any]] = {
    "exact saliency": lambda m: prompt_saliency(m, IDS, RESPONSE, method="exact").importance,
    "first order, more response": lambda m: prompt_saliency(m, IDS[:2], IDS[2:], method="first_order").importance,
    "first order, more prompt": lambda m: prompt_saliency(m, IDS, RESPONSE, method="first_order").importance,
    "integrated gradients": lambda m: (
        prompt_saliency(m, IDS, RESPONSE, method="integrated_gradients", steps=4).importance
    ),
    "modules": lambda m: ablate_modules(m, IDS, 99).effect,
    "heads": lambda m: ablate_heads(m, IDS, 99).effect,
    "neurons": lambda m: ablate_neurons(m, IDS, 99, layer=2, neurons=range(8)).effect,
    "tracing": lambda m: causal_trace(m, IDS, (1, 3), 99, samples=2, window=1).restored,
    "patching": lambda m: activation_patching(m, IDS, [*IDS[:2], 50, *IDS[3:]], 99, foil=7).recovered["mlp"],
    "patching of heads": lambda m: activation_patching(
        m, IDS, [*IDS[:2], 50, *IDS[3:]], 99, foil=7, sites="head_k"
    ).recovered["head_k"],
    "paths": lambda m: (
        path_patching(
            m, IDS, [*IDS[:2], 50, *IDS[3:]], [(0, 1), ("mlp", 1)], [("mlp", 2), ("head_q", 2, 1), "logits"], 99, foil=7
        ).effect
    ),
    "edges": lambda m: edge_attribution(m, IDS, [*IDS[:2], 50, *IDS[3:]], 99, foil=7, sample=0).estimated,
    "circuit": lambda m: greedy_circuit(m, IDS, [*IDS[:2], 50, *IDS[3:]], 99, foil=7, most=2, draws=2).random,
    "null": lambda m: ablation_null(m, IDS, [(0, 1), (1, 2)], 99, draws=4).null,
    "steering": steered,
    "erasing": erased,
    "routing": lambda m: routing(m, IDS).weights,
}
OF_THE_STREAM: dict[str, Callable[[Any], Any]] = {
    "lens": lambda m: logit_lens(m, IDS).probability,
    "parts": lambda m: decompose_tokens(m, IDS).parts,
    "logit shares": lambda m: decompose_logit(m, IDS, 99).share,
    "neuron effects": lambda m: neuron_effects(m, IDS, 99, layer=1).effect,
    "patterns": lambda m: attention_patterns(m, IDS).patterns,
    "head scores": lambda m: head_scores(m, length=5, sequences=2).scores,
    "direct attribution": lambda m: direct_logit_attribution(m, IDS, 99, foil=98).heads,
    "head writes": lambda m: head_writes(m, IDS, 1, 2, position=-2).raised,
    "attention reasons": lambda m: attention_reasons(m, IDS, 1, 2, -1, 2).parts,
    "largest entries": lambda m: massive_activations(m, IDS, others=1, references=1).value,
    "states": lambda m: last_states(m, [IDS, IDS[:3]], [0, 2, 3]),
}
"""These read streams or one stream alone."""


def numbers(x: Any) -> np.ndarray[Any, Any]:
    return x.detach().numpy() if isinstance(x, Tensor) else np.asarray(x)


@pytest.mark.seconds
@pytest.mark.hooked
@pytest.mark.parametrize("name", [*ANALYSES, *OF_THE_STREAM])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_both_engines_say_the_same(family: str, name: str) -> None:
    analysis = {**ANALYSES, **OF_THE_STREAM}[name]
    hooked, bridge = (numbers(analysis(tiny_mixture(family, backend, 2))) for backend in ("hooked", "bridge"))
    assert hooked.shape == bridge.shape
    scale = np.nanmax(np.abs(hooked))
    assert scale > 1e-4
    assert np.nanmax(np.abs(hooked - bridge)) < 2e-3 * scale
    if name != "routing" and name in ANALYSES:
        base = numbers(analysis(tiny_model(family, "hooked")))
        assert np.nanmax(np.abs(hooked - base)) > 1e-2 * scale, "the base gives other numbers"


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_first_order_saliency_is_the_gradient_of_the_mixture(backend: str) -> None:
    model = tiny_mixture("llama", backend, 2)
    found = prompt_saliency(model, IDS, RESPONSE, method="first_order").importance
    whole = [*IDS, *RESPONSE]
    for column, token in enumerate(RESPONSE):
        at = len(IDS) + column - 1
        run = model.run(
            whole, capture="hook_embed", grad=lambda logits, at=at, token=token: logits[0, at].softmax(-1)[token]
        )
        embeddings, gradient = run.activations["hook_embed"][0], run.gradients["hook_embed"][0]
        wanted = (embeddings * gradient).sum(-1)[: len(IDS)]
        size = np.abs(found[:, column]).max()
        assert size > 1e-6
        assert np.abs(found[:, column] - wanted.numpy()).max() < 1e-3 * size


@pytest.mark.seconds
@pytest.mark.hooked
@pytest.mark.parametrize("place", [("gpt2", 2, 2), ("llama", 3, 3), ("llama", 3, 2), ("gpt_neox", 3, 1)], ids=str)
def test_saliency_in_float64_by_its_definition(place: tuple[str, int, int]) -> None:
    """Both methods against passes of the model itself: differences for the gradient, one zeroed token after another."""
    family, k, top_k = place
    model = tiny_mixture(family, "hooked", k, top_k=top_k, dtype=torch.float64)
    ids, many = [*IDS, *RESPONSE], len(IDS)
    embeddings = model.token_embeddings(ids)

    def probabilities(n: int, factor: float) -> np.ndarray[Any, Any]:
        changed = embeddings.clone()
        changed[n] *= factor
        found = model.run(ids, embeddings=changed).logits[0, many - 1 : -1].softmax(-1)
        return found[torch.arange(len(RESPONSE)), RESPONSE].numpy()

    step = 1e-5
    slope = [(probabilities(n, 1 + step) - probabilities(n, 1 - step)) / (2 * step) for n in range(many)]
    gone = [probabilities(n, 1.0) - probabilities(n, 0.0) for n in range(many)]
    for method, wanted in (("first_order", slope), ("exact", gone)):
        found = prompt_saliency(model, IDS, RESPONSE, method=method).importance  # type: ignore[arg-type]
        assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    turned = prompt_saliency(model, ids[:2], ids[2:], method="first_order").importance[:, -1]  # by the other mode
    assert np.abs(turned - np.array(slope)[:2, 1]).max() < 1e-6 * np.abs(slope).max()
    assert np.abs(np.array(slope) - gone).max() > 0.1 * np.abs(gone).max()


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_steering_a_late_layer_acts_on_the_routes_behind_it(backend: str) -> None:
    model = tiny_mixture("llama", backend, 2)
    clean = model.run(IDS).logits
    with steer(model, DIRECTION, layer=2, strength=5.0):
        found = routing(model, IDS)
        changed = model.run(IDS).logits
    assert np.array_equal(found.weights, routing(model, IDS).weights), "the router reads the stream entering layer 1"
    assert not torch.allclose(changed, clean, atol=1e-2)
    with steer(model, DIRECTION, layer=1, strength=5.0):
        assert not np.allclose(routing(model, IDS).weights, found.weights, atol=1e-2)
    assert torch.equal(model.run(IDS).logits, clean)


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_an_ablation_around_everything_holds(backend: str) -> None:
    model = tiny_mixture("llama", backend, 2)
    clean = model.run(IDS).logits
    with ablation(model, [Ablation("mlp", 1, 5)]):
        inside = model.run(IDS).logits
        text = model.generate_ids(IDS, max_new_tokens=3)
    effect = ablate_modules(model, IDS, 99, kinds=("mlp",), metric="logit").effect[0, 1, 5]
    change = float(inside[0, -1, 99] - clean[0, -1, 99])
    assert abs(float(effect)) == pytest.approx(abs(change), abs=1e-4)
    assert abs(float(effect)) > 1e-3
    assert len(text) <= 3
