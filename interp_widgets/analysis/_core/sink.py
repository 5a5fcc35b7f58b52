"""The attention sink: the first token that a model reads, which later ones attend to whatever it means."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from interp_widgets.models import Model
from interp_widgets.models.engine import has_hooks, residual_streams

RATIO = 10.0
"""How many times longer than the others the residual stream of a sink is, at some layer."""
TOKENS = 32
"""So many tokens at the start of a text are compared: a first token's stream is the same whatever follows."""


@torch.no_grad()
def first_is_sink(model: Model, ids: Sequence[int]) -> bool:
    """Whether the first of the tokens that a model reads carries its attention sink.

    At some layer the norm of its residual stream is more than 10 times the median norm of the others. Such a token is
    unlike the others: replacing its embedding takes the sink away, and with it what every other token relies on.

    Source: Efficient Streaming Language Models with Attention Sinks (Xiao et al. 2024), section 3.1; Massive
    Activations in Large Language Models (Sun et al. 2024), section 2.
    """
    if len(ids) < 2 or not model.capabilities.residual_stream:
        return False
    # hooks of the user see the positions that they see in any other pass
    streams = residual_streams(model, list(ids) if has_hooks(model.tl_model) else list(ids[:TOKENS]))
    norms = streams.norm(dim=-1)
    return bool((norms[:, 0] > RATIO * norms[:, 1:].median(dim=-1).values).any())
