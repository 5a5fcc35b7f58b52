"""What the viewer asks for: the routing of a prompt through the chosen mixtures."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from interp_widgets.analysis._core.cost import Cost, flops_per_token, row_bytes
from interp_widgets.tuning.mixture_of_depths import ModReport

_SERIALS = count()

TOP = 8
"""Likeliest tokens kept per route."""


@dataclass(frozen=True)
class Untrained:
    """The mixture that tuning starts from."""

    k: int
    top_k: int
    seed: int


@dataclass(frozen=True)
class Route:
    """The routing of one prompt."""

    prompt: str
    routes: int
    """Routes that a token uses here; 0: as many as the mixture says."""
    mixtures: tuple[Hashable, ...]
    """Which mixture of each model."""

    @property
    def method(self) -> str:
        """The kind of run, for the forecast."""
        return "routing"

    def cost(self, model: Any, k: int) -> Cost:
        """One pass, and the unembedding of every route."""
        tokens = max(1, len(model.tokens(self.prompt)))
        reading = 2.0 * model.d_model * model.d_vocab * (k + 1)
        held = row_bytes(model, tokens, tokens) + 8.0 * tokens * model.d_vocab
        return Cost(tokens * (flops_per_token(model) + reading), held)


@dataclass(eq=False)
class Entry:
    """A mixture that can be looked at."""

    name: str
    model: Any = None
    """A `ModModel`; None for the untrained one, which is made when it is needed."""
    report: ModReport | None = None
    """How it was tuned, where that is known."""
    kept: str = ""
    """The folder that it is in; empty if it was not saved."""
    data: str = ""
    """The line of a cell that makes the data it was tuned on; empty if nobody knows."""
    trouble: str = ""
    """What ended its tuning before its time; empty for nothing."""
    serial: int = field(default_factory=lambda: next(_SERIALS))
    """Tells it from all others in this kernel."""
