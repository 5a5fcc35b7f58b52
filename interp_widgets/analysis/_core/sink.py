"""The attention sink: the first token that a model reads, which later ones attend to whatever it means."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from interp_widgets.models import Model
from interp_widgets.models.engine import has_hooks, residual_streams
from interp_widgets.models.profile import SINK_RATIO, first_ratio


@torch.no_grad()
def first_is_sink(model: Model, ids: Sequence[int]) -> bool:
    """Whether the first of the tokens that a model reads carries its attention sink.

    At some layer the norm of its residual stream is more than 10 times the median norm of the others, in the text of
    the model's profile: what stands there does not matter. Such a token is unlike the others: replacing its embedding
    takes the sink away, and with it what every other token relies on.

    Source: Efficient Streaming Language Models with Attention Sinks (Xiao et al. 2024), section 3.1; Massive
    Activations in Large Language Models (Sun et al. 2024), section 2.
    """
    if len(ids) < 2 or not model.capabilities.residual_stream:
        return False
    if has_hooks(model.tl_model):  # hooks of the user see the positions that they see in any other pass
        return bool((first_ratio(residual_streams(model, list(ids))) > SINK_RATIO).any())
    profile = model.profile
    return profile.bos_is_sink if model.begins_with_bos(ids) else profile.first_is_sink
