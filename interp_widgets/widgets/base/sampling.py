"""The options of sampling, for every panel whose models write."""

from __future__ import annotations

from typing import Annotated

import traitlets as T

from .fields import Bounds, Seed, field


class Sampling(T.HasTraits):
    """How many tokens a model generates, and how they are sampled."""

    max_new_tokens = field(
        Annotated[int, Bounds(1, 4096)], 20, label="Most tokens", width="short", help="Maximum number of new tokens"
    )
    temperature = field(
        Annotated[float, Bounds(0.0, 10.0, 0.1)], 0.0, label="Temperature", width="short",
        help="0: greedy decoding; above 0: sampling",
    )  # fmt: skip
    seed = field(
        Seed, label="Seed", width="short", help="Seed of the sampling", shown_if=lambda panel: panel.temperature > 0
    )
