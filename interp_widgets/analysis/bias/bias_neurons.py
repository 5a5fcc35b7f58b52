"""Bias neurons: neurons whose value vectors are most similar to the directions of bias probes, and their activity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide, wide_type
from interp_widgets.analysis.bias.probes import BiasProbes
from interp_widgets.analysis.bias.states import biased_and_benign
from interp_widgets.analysis.ffn_concepts.neurons import norms_output, value_vectors
from interp_widgets.analysis.ffn_concepts.text_activations import layer_activations
from interp_widgets.arguments import checked
from interp_widgets.data.bias.labelled import BiasData, LabeledTexts
from interp_widgets.models import Model

_RANDOM_DIRECTIONS = 16


@record
class BiasNeurons(Result):
    """What `rank_bias_neurons` returns: the neurons of all layers that are most similar to each probe.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> neurons = rank_bias_neurons(base, probes, k=5)
        >>> neurons.cosine.shape, (neurons.cosine[-1] > neurons.chance[-1]).tolist()  # one is more than chance
        ((6, 5), [True, False, False, False, False])
    """

    layer: Ints = with_axes("probes", "k")
    """(probes, k) layer of each neuron, the most similar first."""
    neuron: Ints = with_axes("probes", "k")
    """(probes, k) index of each neuron in its layer."""
    cosine: Floats = with_axes("probes", "k", nan=False)
    """(probes, k) cosine similarity of its value vector and the probe's direction."""
    chance: Floats = with_axes("probes", nan=False)
    """(probes,) largest cosine of any value vector with a random direction, averaged over 16 directions."""
    n_layers: int = field(kw_only=True)
    """Number of layers of the model."""

    def of_layer(self, layer: int) -> tuple[int, ...]:
        """The neurons of one layer that are ranked for any probe, in ascending order."""
        return tuple(sorted({int(number) for number in self.neuron[self.layer == layer]}))

    def to_frame(self) -> DataFrame:
        """One row per probe and rank."""
        probes, k = self.cosine.shape
        columns = {"layer": self.layer, "neuron": self.neuron, "cosine": self.cosine}
        return table({"probe": range(probes), "rank": range(k)}, columns)


@checked
@torch.no_grad()
def rank_bias_neurons(
    model: Model,
    probes: BiasProbes,
    *,
    k: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> BiasNeurons:
    """The k neurons over all layers whose value vectors have the highest cosine similarity to each probe's direction.

    A neuron's value vector is what it writes into the residual stream per unit of activation. ``chance`` is the cosine
    that a random direction reaches in the same model: a neuron below that is not a bias neuron.

    Args:
        model: what `load_model` returns; the model that the probes were trained on.
        probes: from `train_bias_probes`.
        k: number of neurons per probe.
        seed: of the random directions.
        progress: called with (done, total) layers.
        check: called before every layer; raises to cancel.

    Raises:
        ValueError: probes of a model of another shape, k above the number of neurons, or a model without MLP neurons.

    Source: Explainability in Large Language Models (Luo 2024), section 4.3.1, figure 4.10.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> rank_bias_neurons(base, probes, k=3).to_frame().shape
        (18, 5)
    """
    model.capabilities.require("mlp_neurons", "rank_bias_neurons", using="mlp")
    _check_fits(model, probes)
    check_range("k", k, 1, model.n_layers * model.d_mlp)
    run = RunOptions(progress, check)
    random = np.random.default_rng(seed).standard_normal((_RANDOM_DIRECTIONS, model.d_model))
    rows = np.concatenate([probes.direction, random / np.linalg.norm(random, axis=1, keepdims=True)])
    dtype = wide_type(model.dtype)
    directions = torch.tensor(rows, dtype=dtype, device=model.device)
    cosines: list[NDArray[np.float64]] = []
    for layer in range(model.n_layers):
        run.stop_if_cancelled()
        cosines.append(_value_vector_cosines(model, layer, directions))
        run.report(layer + 1, model.n_layers)
    widths = np.cumsum([0, *(len(each) for each in cosines)])
    every = np.concatenate(cosines).T
    own, chance = every[: probes.n_layers], every[probes.n_layers :].max(axis=1).mean()
    best = np.argsort(-own, axis=1, kind="stable")[:, :k]
    layers = np.searchsorted(widths, best, side="right") - 1
    return BiasNeurons(
        layer=layers,
        neuron=best - widths[layers],
        cosine=np.take_along_axis(own, best, axis=1),
        chance=np.full(probes.n_layers, chance),
        n_layers=model.n_layers,
        provenance=provenance(model.provenance(), k=k, seed=seed),
    )


def rank_in_layer(model: Model, probes: BiasProbes, layer: int, k: int) -> list[int]:
    """The k neurons of one layer whose value vectors are most similar to the direction of that layer's probe."""
    model.capabilities.require("mlp_neurons", "subtraction_edit", using="mlp")
    _check_fits(model, probes)
    check_range("k", k, 1, model.d_mlp)
    direction = torch.tensor(probes.direction[layer], dtype=wide_type(model.dtype), device=model.device)
    best = np.argsort(-_value_vector_cosines(model, layer, direction[None])[:, 0], kind="stable")[:k]
    return [int(number) for number in best]


def _value_vector_cosines(model: Model, layer: int, directions: Tensor) -> NDArray[np.float64]:
    """(neurons, n) cosines of a layer's value vectors with directions (n, d_model) of unit length."""
    values = value_vectors(model, layer)
    if norms_output(model, layer):  # the norm after the MLP scales what is written
        values = values * wide(model.weight("ln2_post_w", layer))
    lengths = values.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return to_numpy((values / lengths) @ directions.T).astype(np.float64)


def _check_fits(model: Model, probes: BiasProbes) -> None:
    """ValueError if the probes were trained on a model of another shape."""
    if probes.direction.shape != (model.n_layers, model.d_model):
        layers, width = probes.direction.shape
        raise ValueError(
            f"the probes are of a model with {layers} layers of width {width}, {model.name} has {model.n_layers} of "
            f"width {model.d_model}: train them on this model"
        )


@record
class BiasActivity(Result):
    """What `bias_neuron_activity` returns: how active the bias neurons of each layer are on biased and benign texts.

    A layer without bias neurons has NaN.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> activity = bias_neuron_activity(base, rank_bias_neurons(base, probes, k=5), demo_bias_texts())
        >>> activity.mean.shape, list(activity.to_frame().columns)
        ((6, 2), ['layer', 'texts', 'neurons', 'share_active', 'mean'])
    """

    share_active: Floats = with_axes("layers", 2)
    """(layers, 2) share of activations above zero, over tokens and neurons: biased texts, then benign ones."""
    mean: Floats = with_axes("layers", 2)
    """(layers, 2) mean activation over tokens and neurons: biased texts, then benign ones."""
    neurons: Ints = with_axes("layers")
    """(layers,) number of bias neurons in each layer."""

    def to_frame(self) -> DataFrame:
        """One row per layer and kind of text."""
        axes = {"layer": range(len(self.neurons)), "texts": ["biased", "benign"]}
        counts = np.repeat(self.neurons[:, None], 2, axis=1)
        return table(axes, {"neurons": counts, "share_active": self.share_active, "mean": self.mean})


@checked
def bias_neuron_activity(
    model: Model,
    neurons: BiasNeurons,
    data: BiasData | LabeledTexts,
    *,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> BiasActivity:
    """Measure how active bias neurons are on biased and on benign texts, in each layer.

    Args:
        model: the model that the neurons are of.
        neurons: from `rank_bias_neurons`.
        data: texts with labels, or what a reader gives; see `labeled_texts`.
        progress: called with (done, total) texts.
        check: called before every pass; raises to cancel.

    Raises:
        ValueError: neurons of a model with other layers, texts of one label only, or activations that are not finite.

    Source: Explainability in Large Language Models (Luo 2024), section 5.2.2, figures 5.6 and 5.7.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> activity = bias_neuron_activity(base, rank_bias_neurons(base, probes), demo_bias_texts())
        >>> int(activity.neurons.sum()) > 0
        True
    """
    if neurons.n_layers != model.n_layers:
        raise ValueError(
            f"the neurons are of a model with {neurons.n_layers} layers, {model.name} has {model.n_layers}"
        )
    labelled = biased_and_benign(data)
    sides = [[text for text, biased in zip(labelled.texts, labelled.biased, strict=True) if biased == side]
             for side in (True, False)]  # fmt: skip
    run = RunOptions(progress, check)
    shape = model.n_layers, 2
    share, mean = np.full(shape, np.nan), np.full(shape, np.nan)
    chosen = {layer: numbers for layer in range(model.n_layers) if (numbers := neurons.of_layer(layer))}
    before = 0

    def report(done: int, _: int) -> None:
        run.report(before + done, len(labelled.texts))

    for side, texts in enumerate(sides):
        activations = layer_activations(model, texts, chosen, progress=report, check=check)
        before += len(texts)
        for layer, found in activations.items():
            share[layer, side] = (found.values > 0).mean()
            mean[layer, side] = found.values.mean(dtype=np.float64)
    return BiasActivity(
        share_active=share,
        mean=mean,
        neurons=np.array([len(chosen.get(layer, ())) for layer in range(model.n_layers)]),
        provenance=provenance(model.provenance(), texts=len(labelled.texts)),
    )
