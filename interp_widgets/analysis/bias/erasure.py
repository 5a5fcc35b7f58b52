"""INLP and LEACE: erase the directions that distinguish biased from benign texts from the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import check_choice, check_range, distinct_streams
from interp_widgets.analysis._core.directions import span_basis
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.bias.states import Pool, biased_and_benign, pooled_states
from interp_widgets.analysis.probe.fitting import linear_probe
from interp_widgets.arguments import checked
from interp_widgets.data.bias.labelled import BiasData, LabeledTexts
from interp_widgets.models import Model, ModelEdit, StreamEdit
from interp_widgets.models.edits import Setting

Layers = SupportsIndex | Sequence[SupportsIndex]


@checked
def inlp_edit(
    model: Model,
    data: BiasData | LabeledTexts,
    *,
    layer: Layers = -1,
    rounds: int = 10,
    pool: Pool = "mean",
    penalty: float = 1.0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ModelEdit:
    """The INLP edit (iterative null-space projection): project the directions of bias probes out of the stream.

    A linear probe is fitted, its direction is projected out of the states, and the next probe is fitted to the result.

    Args:
        model: what `load_model` returns.
        data: labelled texts, or the output of a reader; see `train_bias_probes`.
        layer: edit the stream entering this block, or each of several, with its own probes; -1 or n_layers is the
            stream before the final norm.
        rounds: number of probes fitted one after the other, below d_model.
        pool: ``mean``: probes read the mean state over a text's tokens; ``last``: the state of the last token.
        penalty: L2 penalty on the coefficients, for standardised states.
        batch_size: most texts in one pass of the model.
        progress: called with (done, total) texts and fits.
        check: called before every pass and fit; raises to cancel.

    Raises:
        ValueError: texts of one label only, options out of range, a layer out of range or named twice.

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
    layers = distinct_streams(model, layer)
    states, target = _states(model, data, pool, "inlp_edit", run, extra=rounds * len(layers))
    streams, done = {}, len(target)
    for at in layers:
        remaining = states[:, at] - states[:, at].mean(axis=0)
        directions: list[NDArray[np.float64]] = []
        for _ in range(rounds):
            run.stop_if_cancelled()
            weights = linear_probe(remaining, target, penalty)[0][0]
            if not np.linalg.norm(weights) > 0:
                break  # the labels can no longer be told apart
            directions.append(weights / np.linalg.norm(weights))
            basis = span_basis(np.stack(directions))
            remaining = remaining - (remaining @ basis.T) @ basis
            done += 1
            run.report(done, len(target) + rounds * len(layers))
        streams[at] = projection(span_basis(np.stack(directions)))
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
    data: BiasData | LabeledTexts,
    *,
    layer: Layers | None = None,
    pool: Pool = "mean",
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> ModelEdit:
    """The LEACE edit (least-squares concept erasure): the smallest change of the stream after which no linear probe
    distinguishes biased from benign texts.

    Arguments and errors are those of `inlp_edit`, except that ``layer`` defaults to all streams that leave a block.
    Each map is fitted on the unedited model. The guarantee holds for the states it is fitted on; at other
    tokens the same map is applied.

    Source: LEACE: Perfect linear concept erasure in closed form (Belrose et al. 2023), theorem 4.3; the fit is that of
    the authors' package, ``concept-erasure``.

    Example:
        >>> edit = leace_edit(base, demo_bias_texts(), pool="last", layer=[5, 6])
        >>> edit.streams[6].read.shape
        torch.Size([192, 1])
    """
    from concept_erasure import LeaceFitter

    run = RunOptions(progress, check, batch_size)
    layers = distinct_streams(model, range(1, model.n_layers + 1) if layer is None else layer)
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
    """The edit that projects the span of orthonormal rows (rank, d_model) out of the stream."""
    rows = torch.from_numpy(basis.copy()).float()
    nothing: Tensor = torch.zeros(rows.shape[1])
    return StreamEdit(rows.T.contiguous(), rows, nothing, nothing)


def _states(
    model: Model, data: BiasData | LabeledTexts, pool: Pool, who: str, run: RunOptions, *, extra: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(texts, layers + 1, d_model) pooled states, and (texts,) labels."""
    model.capabilities.require("residual_stream", who)
    check_choice("pool", pool, Pool)
    labelled = biased_and_benign(data)
    read = [read_prompt(model, text, what="text") for text in labelled.texts]
    return pooled_states(model, read, pool, run.after(0, len(read) + extra)), np.array(labelled.biased, dtype=int)
