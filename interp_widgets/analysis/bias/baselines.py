"""Baselines for debiasing: Subtraction, bias neuron suppression, and random edits of the same size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import check_finite, check_range
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.directions import span_basis
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.analysis.bias.bias_neurons import rank_in_layer
from interp_widgets.analysis.bias.probes import BiasProbes
from interp_widgets.analysis.ffn_concepts.neurons import value_vectors
from interp_widgets.arguments import checked
from interp_widgets.data.bias.labelled import BiasData, labeled_texts
from interp_widgets.models import LayerEdit, Model, ModelEdit, StreamEdit
from interp_widgets.models.edits import Setting


@checked
@torch.no_grad()
def subtraction_edit(model: Model, probes: BiasProbes, *, k: int = 1, strength: float = 1.0) -> ModelEdit:
    """The Subtraction edit: subtract the direction that the last layer's bias neurons write from the final stream.

    The direction is the sum of the value vectors of the k neurons of the last layer that are most similar to its probe,
    normalised. It is scaled by ``strength`` times the difference between the mean projections of biased and benign
    texts on the probe.

    Args:
        model: what `load_model` returns; the model that the probes were trained on.
        probes: from `train_bias_probes`.
        k: number of neurons whose value vectors are summed.
        strength: 1 moves the stream by the difference of the means; negative values add the direction.

    Raises:
        ValueError: probes of a model of another shape, k above the number of neurons, or a strength that is not finite.

    Source: Explainability in Large Language Models (Luo 2024), section 5.2.3.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> edit = subtraction_edit(base, probes)
        >>> list(edit.streams), bool(edit.streams[6].added.norm() > 0)
        ([6], True)
    """
    if not np.isfinite(strength):
        raise ValueError(f"strength must be a finite number, got {strength}")
    last = model.n_layers - 1
    numbers = rank_in_layer(model, probes, last, k)
    written = value_vectors(model, last)[torch.tensor(numbers, device=model.device)].sum(dim=0).cpu().float()
    along = probes.projection[last, :, 0]
    gap = float(along[probes.biased].mean() - along[~probes.biased].mean())
    nothing = torch.zeros(model.d_model)
    added = -strength * gap * written / written.norm().clamp(min=1e-30)
    stream = StreamEdit(torch.zeros(model.d_model, 0), torch.zeros(0, model.d_model), nothing, added)
    settings: dict[str, Setting] = {"method": "subtraction", "k": k, "strength": strength}
    return ModelEdit.of(model, "Subtraction", streams={model.n_layers: stream}, settings=settings)


@checked
def suppression_edit(
    model: Model,
    data: BiasData,
    *,
    k: int = 20,
    steps: int = 8,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ModelEdit:
    """The edit of bias neuron suppression: zero the value vectors of the k neurons that most widen the gap of pairs.

    The gap of a pair is log P(biased) - log P(benign). A neuron's attribution is its integrated gradient of the gap
    from an activation of zero, one layer at a time, summed over the tokens, multiplied by the sign of the gap and
    averaged over the pairs. Neurons with a negative attribution are not edited, so there may be fewer than k.

    Args:
        model: what `load_model` returns.
        data: pairs, from `read_crows_pairs`, `read_stereoset`, `demo_stereoset` or `read_sentence_pairs`.
        k: number of neurons, over all layers.
        steps: steps of the integral.
        batch_size: most sentences in one pass of the model.
        progress: called with (done, total) sentences times layers.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: no pair, a model without MLP neurons or one that cannot be edited, or attributions that are not
            finite.

    Source: The Devil is in the Neurons: Interpreting and Mitigating Social Biases in Pre-trained Language Models (Liu
    et al. 2024), section 3.2, here with the log-probabilities of sentences, since a causal model has no mask token.

    Example:
        >>> edit = suppression_edit(base, demo_stereoset()[:6], k=5, steps=2)
        >>> sum(len(layer.neurons) for layer in edit.layers.values())
        5
    """
    check_range("k", k, 1, model.n_layers * model.d_mlp)
    check_range("steps", steps, 1, 1000)
    share = gap_attribution(model, data, steps=steps, batch_size=batch_size, progress=progress, check=check)
    best = np.argsort(-share.ravel(), kind="stable")[:k]
    best = best[share.ravel()[best] > 0]
    layers: dict[int, LayerEdit] = {}
    for layer in sorted({int(one) // model.d_mlp for one in best}):
        rows = torch.tensor(sorted(int(one) % model.d_mlp for one in best if int(one) // model.d_mlp == layer))
        before = wide(model.weight("W_out", layer)[rows.to(model.device)]).detach().cpu().float()
        layers[layer] = LayerEdit(rows, before, torch.zeros_like(before), torch.zeros(model.d_model))
    settings: dict[str, Setting] = {"method": "suppression", "k": k, "steps": steps}
    return ModelEdit.of(model, "Bias neuron suppression", layers=layers, settings=settings)


def gap_attribution(
    model: Model,
    data: BiasData,
    *,
    steps: int,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> NDArray[np.float64]:
    """(layers, neurons) attribution of the gap between paired sentences to each neuron; see `suppression_edit`."""
    model.capabilities.require("mlp_neurons", "suppression_edit", using="mlp")
    labelled = labeled_texts(data)
    read = [read_prompt(model, text, what="text") for text in labelled.texts]
    ids_of = [one.ids for one in read]
    if min(map(len, ids_of)) < 2:
        raise ValueError("a sentence needs at least two tokens, counting the BOS, to be scored: give longer ones")
    run = RunOptions(progress, check, batch_size)
    longest, total = max(map(len, ids_of)), len(read) * (model.n_layers + 1)
    runner = Runner(model, longest, run.batch_size, run.check, run.progress, total=total)
    scores = np.zeros(len(read))

    def score(rows: list[int], ids: Tensor) -> None:
        scores[rows] = to_numpy(_log_probability(ids, model.run(ids).logits))

    runner.run_texts(ids_of, score)
    side = np.where(labelled.biased, 1.0, -1.0)
    gaps = (side * scores).reshape(-1, 2).sum(axis=1)
    weight = side * np.repeat(np.sign(gaps), 2) / len(gaps)
    shares = np.zeros((model.n_layers, model.d_mlp))
    for layer in range(model.n_layers):

        def add(rows: list[int], ids: Tensor, layer: int = layer) -> None:
            shares[layer] += weight[rows] @ _integrated_gradients(model, ids, layer, steps)

        runner.run_texts(ids_of, add)
    check_finite(shares, lambda layer, neuron: f"the attribution of neuron {neuron} of layer {layer}")
    return shares


def _integrated_gradients(model: Model, ids: Tensor, layer: int, steps: int) -> NDArray[np.float64]:
    """(texts, neurons) integrated gradients of each text's log-probability, summed over its tokens."""
    hook = f"blocks.{layer}.mlp.hook_post"
    activation = wide(model.run(ids, capture=[hook]).activations[hook])
    gradients = torch.zeros_like(activation)

    def score(logits: Tensor) -> Tensor:
        return _log_probability(ids, logits).sum()

    for step in range(steps):
        share = (step + 0.5) / steps
        run = model.run(ids, capture=[hook], edit={hook: partial(_scale, activation, share)}, grad=score)
        gradients += wide(run.gradients[hook])
    return to_numpy((activation * gradients / steps).sum(dim=1)).astype(np.float64)


def _scale(activation: Tensor, share: float, value: Tensor) -> Tensor:
    scaled: Tensor = (share * activation).to(value.dtype)
    return scaled


def _log_probability(ids: Tensor, logits: Tensor) -> Tensor:
    """(texts,) log-probability of each text's tokens after the first."""
    logs: Tensor = wide(logits[:, :-1]).log_softmax(-1)
    own: Tensor = logs.gather(-1, ids[:, 1:, None])[..., 0].sum(dim=1)
    return own


@checked
def random_edit(model: Model, edit: ModelEdit, *, seed: int = 0) -> ModelEdit:
    """A random control for an edit: the same neurons and streams, changed by the same amount in random directions.

    Each value vector changes by the same norm; a projection of the stream removes as many random directions; vectors
    that are added have the same norm.

    Args:
        model: the model that the edit is for.
        edit: an edit, for example from `lope_edit`.
        seed: of the directions.

    Example:
        >>> edit = leace_edit(base, demo_bias_texts(), pool="last", layer=6)
        >>> control = random_edit(base, edit)
        >>> control.name, control.streams[6].read.shape == edit.streams[6].read.shape
        ('Random, as large as LEACE', True)
    """
    draw = np.random.default_rng(seed)

    def random_rows(rows: Tensor) -> Tensor:
        """Random rows with the norms of ``rows``."""
        random = torch.from_numpy(draw.standard_normal(rows.shape)).float()
        lengths: Tensor = rows.norm(dim=-1, keepdim=True)
        return lengths * torch.nn.functional.normalize(random, dim=-1)

    layers = {
        at: replace(one, after=one.before + random_rows(one.after - one.before), added=random_rows(one.added[None])[0])
        for at, one in edit.layers.items()
    }
    streams = {}
    for at, one in edit.streams.items():
        rank = one.read.shape[1]
        basis = span_basis(draw.standard_normal((rank, model.d_model))) if rank else np.zeros((0, model.d_model))
        rows = torch.from_numpy(basis.copy()).float()
        streams[at] = StreamEdit(rows.T.contiguous(), rows, one.center, random_rows(one.added[None])[0])
    name = f"Random, as large as {edit.name}"
    return ModelEdit.of(model, name, layers=layers, streams=streams, settings={"method": "random", "seed": seed})
