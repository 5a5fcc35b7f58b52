"""The residual stream of texts, at every layer and pooled over their tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from interp_widgets.analysis._core.checks import check_finite
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.models import Model
from interp_widgets.models.engine import trace

Pool = Literal["mean", "last"]


@torch.no_grad()
def pooled_states(model: Model, read: Sequence[Prompt], pool: Pool, run: RunOptions) -> NDArray[np.float64]:
    """(texts, layers + 1, d_model) the stream entering layer 0 and leaving every block: the mean over a text's tokens
    without the BOS, or the last one's."""
    states = np.empty((len(read), model.n_layers + 1, model.d_model))
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, prompt in enumerate(read):
        by_length[len(prompt.ids)].append(number)
    longest = max(by_length)
    runner = Runner(model, longest, run.batch_size, run.check, run.progress, total=len(read))
    for length, numbers in sorted(by_length.items()):

        def work(start: int, stop: int, numbers: Sequence[int] = numbers) -> None:
            chosen = numbers[start:stop]
            ids = torch.tensor([read[i].ids for i in chosen], device=model.device)
            streams = trace(model, model.embed(ids)).resid
            first = read[chosen[0]].offset
            for layer, stream in enumerate(streams):
                own = wide(stream[:, first:]).mean(dim=1) if pool == "mean" else stream[:, -1]
                states[chosen, layer] = to_numpy(own)

        runner.run(len(numbers), partial(_same, length), work)
    check_finite(states, lambda text, layer, _: f"the hidden state of text {text} at layer {layer}")
    return states


def _same(length: int, _: int) -> int:
    return length
