"""The residual stream of labelled texts, at every layer and pooled over their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.checks import check_finite
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.data.bias.labelled import BiasData, LabeledTexts, labeled_texts
from interp_widgets.models import Model
from interp_widgets.models.engine import trace

Pool = Literal["mean", "last"]


def biased_and_benign(data: BiasData | LabeledTexts) -> LabeledTexts:
    """The texts with their labels; ValueError if all have the same label."""
    labelled = data if isinstance(data, LabeledTexts) else labeled_texts(data)
    if len(set(labelled.biased)) < 2:
        raise ValueError("data must hold biased and benign texts, got one kind only")
    return labelled


@torch.no_grad()
def pooled_states(model: Model, read: Sequence[Prompt], pool: Pool, run: RunOptions) -> NDArray[np.float64]:
    """(texts, layers + 1, d_model) streams entering layer 0 and leaving every block, each the mean over a text's tokens
    without the BOS, or that of its last token."""
    states = np.empty((len(read), model.n_layers + 1, model.d_model))
    longest = max(len(prompt.ids) for prompt in read)
    runner = Runner(model, longest, run.batch_size, run.check, run.progress, total=len(read))

    def work(rows: list[int], ids: Tensor) -> None:
        first = read[rows[0]].offset
        for layer, stream in enumerate(trace(model, model.embed(ids)).resid):
            pooled = wide(stream[:, first:]).mean(dim=1) if pool == "mean" else stream[:, -1]
            states[rows, layer] = to_numpy(pooled)

    runner.run_texts([prompt.ids for prompt in read], work)
    check_finite(states, lambda text, layer, _: f"the hidden state of text {text} at layer {layer}")
    return states
