"""LoPE (Localized Subspace Projection and Editing): project bias probes out of the value vectors of bias neurons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.directions import span_basis
from interp_widgets.analysis.bias.bias_neurons import bias_neuron_activity, rank_bias_neurons
from interp_widgets.analysis.bias.probes import BiasProbes
from interp_widgets.analysis.ffn_concepts.neurons import norms_output, value_vectors
from interp_widgets.arguments import checked
from interp_widgets.data.bias.labelled import LabeledTexts
from interp_widgets.models import Model
from interp_widgets.models.edits import LayerEdit, ModelEdit, Setting


def bias_projection(directions: Floats, *, literal: bool = False) -> NDArray[np.float64]:
    """(d_model, d_model) projector onto the span of directions (n, d_model) of unit length.

    With ``literal`` the sum of their outer products, as printed in equation 5.1, which is a projector only if they are
    orthogonal.

    >>> bias_projection(np.array([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    >>> bias_projection(np.array([[1.0, 0.0], [1.0, 0.0]]), literal=True).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """
    rows = np.atleast_2d(np.asarray(directions, dtype=np.float64))
    if literal:
        return np.asarray(rows.T @ rows)
    basis = span_basis(rows)
    return np.asarray(basis.T @ basis)


@checked
@torch.no_grad()
def lope_edit(
    model: Model,
    probes: BiasProbes,
    *,
    k: int = 10,
    threshold: float = 0.9,
    alpha: float = 1.0,
    literal: bool = False,
) -> ModelEdit:
    """The LoPE edit of a model, which can be applied, saved and loaded; arguments and errors are those of `lope`.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> with TemporaryDirectory() as folder:
        ...     path = lope_edit(base, probes, k=5).save(Path(folder) / "lope.safetensors")
        ...     edited = load_model("demo-base", edits=[path])
        >>> edited.weight_hash == base.weight_hash
        False
    """
    check_range("threshold", threshold, 0.0, 1.0)
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha must be a finite number of 0 or more, got {alpha}")
    if any(norms_output(model, layer) for layer in range(model.n_layers)):
        raise ValueError(
            f"lope needs MLPs whose output is not normalised; {model.name} normalises it, which would "
            "rescale it along the probes: use erase(model, probes.direction, layer=...)"
        )
    neurons = rank_bias_neurons(model, probes, k=k)
    texts = LabeledTexts(tuple(probes.texts), tuple(probes.biased.tolist()), tuple(probes.groups))
    active = bias_neuron_activity(model, neurons, texts)
    layers: dict[int, LayerEdit] = {}
    for layer in range(model.n_layers):
        chosen = probes.generalizing(layer, threshold)
        numbers = neurons.of_layer(layer)
        if not chosen or not numbers:
            continue
        directions = probes.direction[list(chosen)]
        rows = torch.tensor(numbers)
        before = value_vectors(model, layer)[rows.to(model.device)].cpu().double()
        removed = before @ torch.from_numpy(bias_projection(directions, literal=literal))
        activation = alpha * float(active.mean[layer, 0])
        added = -max(activation, 0.0) * directions.mean(axis=0)
        layers[layer] = LayerEdit(rows, before.float(), (before - removed).float(), torch.from_numpy(added).float())
    settings: dict[str, Setting] = {
        "method": "lope",
        "k": k,
        "threshold": threshold,
        "alpha": alpha,
        "literal": literal,
    }
    return ModelEdit.of(model, "LoPE", layers=layers, settings=settings)


@checked
@contextmanager
def lope(
    model: Model,
    probes: BiasProbes,
    *,
    k: int = 10,
    threshold: float = 0.9,
    alpha: float = 1.0,
    literal: bool = False,
) -> Iterator[ModelEdit]:
    """Context manager that applies `lope_edit`: bias neurons write nothing along the bias probes.

    In each layer the value vectors v of its bias neurons become (I − Θ) v, where Θ projects onto the directions of the
    probes that generalise to that layer (`BiasProbes.generalizing`). If α, the mean activation of the layer's bias
    neurons on biased texts, is positive, α times the mean of these directions is also subtracted from the MLP's output
    at every token. The weights are edited in place, for all threads, and restored bit by bit afterwards.

    Args:
        model: what `load_model` returns; the model that the probes were trained on.
        probes: from `train_bias_probes`.
        k: number of bias neurons per probe.
        threshold: AUC above which a probe generalises to another layer.
        alpha: factor of α; 0 skips the subtraction.
        literal: compute Θ as the sum of outer products, as printed in equation 5.1, instead of the projector.

    Yields:
        The edit, which can be saved.

    Raises:
        ValueError: probes of a model of another shape, options out of range, a model that normalises the output of
            its MLPs (Gemma 2), or weights that cannot be edited.

    Source: Explainability in Large Language Models (Luo 2024), section 5.2.2, equations 5.1 to 5.3.

    Example:
        >>> probes = train_bias_probes(base, demo_bias_texts(), pool="last", splits=2)
        >>> with lope(base, probes) as edit:
        ...     changed = score_stereoset(base, demo_stereoset()).overall
        >>> sorted(edit.layers)[-1] < base.n_layers
        True
    """
    edit = lope_edit(model, probes, k=k, threshold=threshold, alpha=alpha, literal=literal)
    with edit.applied(model):
        yield edit
