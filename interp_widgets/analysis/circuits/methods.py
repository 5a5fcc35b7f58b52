"""The methods of the scoreboard: each ranks the parts of a circuit by the numbers of one public function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.ablation import ablate_heads, ablate_modules, ablate_neurons, causal_trace
from interp_widgets.analysis.attention import Score, attention_patterns, direct_logit_attribution, head_scores
from interp_widgets.analysis.ffn_concepts import neuron_effects
from interp_widgets.analysis.patching import Direction, activation_patching, edge_attribution, path_patching
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.analysis.token_decomposition import decompose_logit
from interp_widgets.models import Model
from interp_widgets.models.circuits import CircuitCase, circuit_edges

Ranking = Mapping[str, Any]
"""For each kind of part (``tokens``, ``heads``, ``neurons``, ``edges``) numbers of the shape of `CircuitCase.matters`,
the larger the more a part matters."""

Method = Callable[[Model, CircuitCase], Ranking]


def _saliency(model: Model, case: CircuitCase, **options: Any) -> Ranking:
    answer = model.tokens(case.answer, prepend_bos=False)
    result = prompt_saliency(model, case.prompt, answer, target="logit_difference", foil=case.foil, **options)
    return {"tokens": np.abs(result.importance[:, 0])}


def _ablation(model: Model, case: CircuitCase, **options: Any) -> Ranking:
    """Single heads at all positions, single neurons at the last, the attention and the MLP at each position."""
    keywords: dict[str, Any] = {"metric": "logit_difference", "foil": case.foil, **options}
    modules = ablate_modules(model, case.prompt, case.answer, kinds=("attn", "mlp"), **keywords)
    listed = [
        ablate_neurons(model, case.prompt, case.answer, layer=layer, neurons=range(case.n_neurons), **keywords).effect
        for layer in range(model.n_layers)
    ]
    heads = ablate_heads(model, case.prompt, case.answer, **keywords).effect
    return {"tokens": np.abs(modules.effect).max((0, 1)), "heads": np.abs(heads), "neurons": np.abs(listed)}


def _resampled(model: Model, case: CircuitCase) -> Ranking:
    return _ablation(model, case, replacement="resample", corrupted=case.corrupted)


def _mean_ablation(model: Model, case: CircuitCase) -> Ranking:
    return _ablation(model, case, replacement="mean", reference=[case.prompt, case.corrupted])


def _patching(model: Model, case: CircuitCase, *, direction: Direction) -> Ranking:
    """How far one clean value restores the answer's lead, or one corrupted value takes it; of heads the most at any
    position, of tokens the stream that enters layer 0."""
    found = activation_patching(
        model, case.prompt, case.corrupted, case.answer, foil=case.foil, sites=("resid_pre", "head"),
        direction=direction,
    )  # fmt: skip
    unchanged = 0.0 if direction == "denoising" else 1.0
    heads, stream = (np.abs(found.recovered[site] - unchanged) for site in ("head", "resid_pre"))
    return {"tokens": stream[0], "heads": heads.max(-1)}


def _paths(model: Model, case: CircuitCase, *, direction: Direction) -> Ranking:
    """How much of the answer's lead one edge alone takes that carries its sender's corrupted output, or restores in
    the corrupted run that carries the clean one."""
    senders, receivers = _ends(model)
    prompts = (case.prompt, case.corrupted) if direction == "noising" else (case.corrupted, case.prompt)
    found = path_patching(model, *prompts, senders, receivers, case.answer, foil=case.foil, separate=True)
    assert found.paths is not None
    return _of_edges(model, found.paths)


def _edges(model: Model, case: CircuitCase, **options: Any) -> Ranking:
    """As path patching with noising, to first order."""
    senders, receivers = _ends(model)
    found = edge_attribution(
        model, case.prompt, case.corrupted, case.answer, foil=case.foil, senders=senders, receivers=receivers,
        sample=0, **options,
    )  # fmt: skip
    return _of_edges(model, found.estimated)


def _ends(model: Model) -> tuple[list[Any], list[Any]]:
    """The senders and the receivers of all edges."""
    senders, receivers = (list(dict.fromkeys(ends)) for ends in zip(*circuit_edges(model), strict=True))
    return senders, receivers


def _of_edges(model: Model, values: NDArray[Any]) -> Ranking:
    """The size of numbers (senders, receivers), in the order of the edges."""
    senders, receivers = _ends(model)
    listed = [values[senders.index(sender), receivers.index(receiver)] for sender, receiver in circuit_edges(model)]
    return {"edges": np.abs(listed)}


def _tracing(model: Model, case: CircuitCase) -> Ranking:
    """How far noise on one token's embedding lowers the answer's probability."""
    lowered = []
    for position in range(len(case.prompt.split())):
        traced = causal_trace(
            model, case.prompt, (position, position + 1), case.answer, kinds="state", samples=4, seed=position
        )
        lowered.append(traced.clean - float(traced.corrupted.mean()))
    return {"tokens": np.array(lowered)}


def _attention(model: Model, case: CircuitCase) -> Ranking:
    """Where the last token looks, of all heads the most, and how much of a head's attention is on one token, the BOS
    aside."""
    patterns = attention_patterns(model, case.prompt)
    last = np.array(
        [[patterns.pattern(layer, head)[-1] for head in range(model.n_heads)] for layer in range(model.n_layers)]
    )  # (layers, heads, tokens fed)
    shown = last[..., -len(case.prompt.split()) :]
    return {"tokens": shown.mean((0, 1)), "heads": shown.max(-1)}


def _direct(model: Model, case: CircuitCase) -> Ranking:
    heads = direct_logit_attribution(model, case.prompt, case.answer, foil=case.foil).heads
    effects: list[NDArray[Any]] = []
    for layer in range(model.n_layers):
        towards, away = (
            neuron_effects(model, case.prompt, word, layer=layer, neurons=range(case.n_neurons)).effect
            for word in (case.answer, case.foil)
        )
        effects.append(towards - away)
    return {"heads": np.abs(heads), "neurons": np.abs(effects)}


def _decomposition(model: Model, case: CircuitCase) -> Ranking:
    return {"tokens": np.abs(decompose_logit(model, case.prompt, case.answer, foil=case.foil).share)}


def _head_scores(model: Model, case: CircuitCase) -> Ranking:
    """The largest of induction, previous-token and duplicate-token score above its control; no prompt is read."""
    scores = head_scores(model, length=8, sequences=4)
    kinds: tuple[Score, ...] = ("induction", "previous_token", "duplicate_token")
    return {"heads": np.max([getattr(scores, kind) - scores.control(kind) for kind in kinds], axis=0)}


METHODS: Mapping[str, Method] = {
    "exact, zero": partial(_saliency, method="exact"),
    "exact, mean": partial(_saliency, method="exact", baseline="mean"),
    "exact, resample": partial(_saliency, method="exact", baseline="resample"),
    "first order": partial(_saliency, method="first_order"),
    "integrated gradients": partial(_saliency, method="integrated_gradients"),
    "zero ablation": _ablation,
    "mean ablation": _mean_ablation,
    "resample ablation": _resampled,
    "patching, denoising": partial(_patching, direction="denoising"),
    "patching, noising": partial(_patching, direction="noising"),
    "path patching, denoising": partial(_paths, direction="denoising"),
    "path patching, noising": partial(_paths, direction="noising"),
    "edge attribution": _edges,
    "edge attribution, integrated": partial(_edges, method="integrated_gradients"),
    "tracing": _tracing,
    "attention": _attention,
    "direct logit attribution": _direct,
    "decomposition": _decomposition,
    "head scores": _head_scores,
}
"""Every method of the package by its name on the board."""
