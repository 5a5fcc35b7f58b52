"""INLP and LEACE: what tells biased texts apart is taken out of the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import check_choice, check_range, stream_indices
from interp_widgets.analysis._core.directions import span_basis
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.bias.states import Pool, pooled_states
from interp_widgets.analysis.probe.fitting import linear_probe
from interp_widgets.arguments import checked
from interp_widgets.data.bias.labelled import BiasData, LabelledTexts, labelled_texts
from interp_widgets.models import Model, ModelEdit, StreamEdit
from interp_widgets.models.edits import Setting

Layers = SupportsIndex | Sequence[SupportsIndex]


@checked
def inlp_edit(
    model: Model,
    data: BiasData | LabelledTexts,
    *,
    layer: Layers = -1,
    rounds: int = 10,
    pool: Pool = "mean",
    penalty: float = 1.0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ModelEdit:
    """The edit of INLP, iterative null-space projection: the stream loses the directions that probes of bias read.

    A linear probe is fitted, its direction is projected out of the states, and the next one is fitted to what is left.

    Args:
        model: what `load_model` returns.
        data: texts with labels, or what a reader gives; see `train_bias_probes`.
        layer: the stream entering block ``layer``, one or several, each with probes of its own; -1 or n_layers is the
            stream before the final norm.
        rounds: probes that are fitted one after the other, fewer than d_model.
        pool: which states the probes read: the ``mean`` over a text's tokens, or the ``last`` one.
        penalty: weight of the squared norm of the coefficients, on standardised states.
        batch_size: most texts in one pass of the model.
        progress: called with (done, total) texts and fits.
        check: called before every pass and fit; raises to cancel.

    Raises:
        ValueError: texts of one label only, options out of range, a layer that is not there or named twice.

    Source: Null It Out: Guarding Protected Attributes by Iterative Nullspace Projection (Ravfogel et al. 2020),
    algorithm 1.

    Example:
        >>> edit = inlp_edit(base, demo_bias_texts(), rounds=3, pool="last")
        >>> edit.streams[6].read.shape
        torch.Size([192, 3])
    """
    check_range("rounds", rounds, 1, model.d_model - 1)
    check_range("penalty", penalty, 1e-9)
    run = RunOptions(progress, check, batch_size)
    layers = _layers(model, layer)
    states, target = _states(model, data, pool, "inlp_edit", run, extra=rounds * len(layers))
    streams, done = {}, len(target)
    for at in layers:
        left = states[:, at] - states[:, at].mean(axis=0)
        found: list[NDArray[np.float64]] = []
        for _ in range(rounds):
            run.stop_if_cancelled()
            weights = linear_probe(left, target, penalty)[0][0]
            if not np.linalg.norm(weights) > 0:
                break  # nothing is left that tells them apart
            found.append(weights / np.linalg.norm(weights))
            basis = span_basis(np.stack(found))
            left = left - (left @ basis.T) @ basis
            done += 1
            run.report(done, len(target) + rounds * len(layers))
        streams[at] = projection(span_basis(np.stack(found)))
    settings: dict[str, Setting] = {
        "method": "inlp",
        "rounds": rounds,
        "pool": pool,
        "penalty": penalty,
        "layers": str(layers),
    }
    return ModelEdit.of(model, "INLP", streams=streams, settings=settings)


@checked
def leace_edit(
    model: Model,
    data: BiasData | LabelledTexts,
    *,
    layer: Layers | None = None,
    pool: Pool = "mean",
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ModelEdit:
    """The edit of LEACE, least-squares concept erasure: the smallest change of the stream after which no linear probe
    tells biased texts apart.

    Arguments and errors are those of `inlp_edit`, but for ``layer``: by default all streams that leave a block. Each is
    fitted to the unedited model. The states that it is fitted to keep no label; at other tokens the same map is used.

    Source: LEACE: Perfect linear concept erasure in closed form (Belrose et al. 2023), theorem 4.3; the fit is that of
    the authors' package, ``concept-erasure``.

    Example:
        >>> edit = leace_edit(base, demo_bias_texts(), pool="last", layer=[5, 6])
        >>> edit.streams[6].read.shape
        torch.Size([192, 1])
    """
    from concept_erasure import LeaceFitter

    run = RunOptions(progress, check, batch_size)
    layers = _layers(model, range(1, model.n_layers + 1) if layer is None else layer)
    states, target = _states(model, data, pool, "leace_edit", run, extra=len(layers))
    streams = {}
    for number, at in enumerate(layers, start=1):
        run.stop_if_cancelled()
        eraser = LeaceFitter.fit(torch.from_numpy(states[:, at].copy()), torch.from_numpy(target)).eraser
        streams[at] = StreamEdit(
            eraser.proj_right.T.float(), eraser.proj_left.T.float(), eraser.bias.float(), torch.zeros(model.d_model)
        )
        run.report(len(target) + number, len(target) + len(layers))
    return ModelEdit.of(
        model, "LEACE", streams=streams, settings={"method": "leace", "pool": pool, "layers": str(layers)}
    )


def projection(basis: NDArray[np.float64]) -> StreamEdit:
    """The stream loses its part in the span of orthonormal rows (rank, d_model)."""
    rows = torch.from_numpy(basis.copy()).float()
    nothing: Tensor = torch.zeros(rows.shape[1])
    return StreamEdit(rows.T.contiguous(), rows, nothing, nothing)


def _layers(model: Model, layer: Layers) -> tuple[int, ...]:
    layers = tuple(stream_indices(model, layer))
    if len(set(layers)) != len(layers):
        raise ValueError(f"layer must name every stream once, got {list(layers)}")
    return layers


def _states(
    model: Model, data: BiasData | LabelledTexts, pool: Pool, who: str, run: RunOptions, *, extra: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(texts, layers + 1, d_model) pooled states, and the labels."""
    model.capabilities.require("residual_stream", who)
    check_choice("pool", pool, Pool)
    labelled = data if isinstance(data, LabelledTexts) else labelled_texts(data)
    if len(set(labelled.biased)) < 2:
        raise ValueError("data must hold biased and benign texts, got one kind only")
    read = [read_prompt(model, text, what="text") for text in labelled.texts]
    return pooled_states(model, read, pool, run.after(0, len(read) + extra)), np.array(labelled.biased, dtype=int)
