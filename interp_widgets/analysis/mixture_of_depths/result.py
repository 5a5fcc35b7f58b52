"""What the router of a mixture of depths does with every token of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Result, record

if TYPE_CHECKING:
    import pandas as pd


@record
class RoutingResult(Result):
    """Routing weights and the next token of every route, at every position of a prompt.

    Route i reads the output of layer ``layers[i]``. A reading at a position is about the token after it. Positions
    leave out the beginning-of-sequence token, which the model still reads (see `bos_id`).

    Example:
        >>> result = routing(untrained_mod(model, 2), "The Eiffel Tower is in the city of")
        >>> result.weights.shape, result.layers
        ((8, 2), (4, 5))
        >>> result.to_frame()[["token", "route", "top_token"]].tail(2)
           token  route top_token
        14    of      0     Paris
        15    of      1     Paris
    """

    tokens: Sequence[str]
    """(positions,) readable tokens of the prompt."""

    ids: Sequence[int]
    """(positions,) token ids of the prompt."""

    special: Sequence[bool]
    """(positions,) whether a token of the prompt is special."""

    layers: Sequence[int]
    """(k,) the layer whose output each route reads, rising."""

    weights: NDArray[np.floating[Any]]
    """(positions, k) weight of each route, 0..1; a position's weights sum to 1."""

    route_ids: NDArray[np.integer[Any]]
    """(k, positions, top) ids of the likeliest next tokens of each route alone, best first."""

    route_probability: NDArray[np.floating[Any]]
    """(k, positions, top) their probabilities by that route, 0..1."""

    ensemble_ids: NDArray[np.integer[Any]]
    """(positions, top) ids of the model's own likeliest next tokens, best first."""

    ensemble_probability: NDArray[np.floating[Any]]
    """(positions, top) their probabilities, 0..1."""

    kl: NDArray[np.floating[Any]]
    """(k, positions) KL(route ‖ ensemble) in nats."""

    exit_layer: NDArray[np.integer[Any]]
    """(positions,) the last layer that the position's own prediction needs: of the last route with a weight."""

    names: Mapping[Any, str]
    """Readable text by id of every token in `route_ids` and `ensemble_ids`; see :meth:`token_text`."""

    top_k: int
    """How many routes a token could use."""

    n_layers: int
    """Layers of the model."""

    bos_id: int | None = None
    """Id of the beginning-of-sequence token fed before the prompt and left off the axis; None when there was none."""

    def __post_init__(self) -> None:
        positions, k = len(self.tokens), len(self.layers)
        top = np.asarray(self.ensemble_ids).shape[-1]
        for name in ("tokens", "ids", "special"):
            self.sequence(name, positions)
        self.sequence("layers")
        self.array("weights", (positions, k))
        self.array("route_ids", (k, positions, top), "int")
        self.array("route_probability", (k, positions, top))
        self.array("ensemble_ids", (positions, top), "int")
        self.array("ensemble_probability", (positions, top))
        self.array("kl", (k, positions))
        self.array("exit_layer", (positions,), "int")
        # a file holds its keys as text
        object.__setattr__(self, "names", {int(key): str(text) for key, text in self.names.items()})

    @property
    def k(self) -> int:
        """Number of routes."""
        return len(self.layers)

    @property
    def n_positions(self) -> int:
        """Number of tokens on the axis."""
        return len(self.tokens)

    @property
    def agreement(self) -> NDArray[np.bool_]:
        """(k, positions) whether a route's likeliest token is the ensemble's."""
        found: NDArray[np.bool_] = self.route_ids[..., 0] == self.ensemble_ids[..., 0]
        return found

    @property
    def main_route(self) -> NDArray[np.integer[Any]]:
        """(positions,) the route with the largest weight; the earlier one of equals."""
        found: NDArray[np.integer[Any]] = self.weights.argmax(-1)
        return found

    @property
    def skipped_share(self) -> float:
        """Share of all layers at all positions that lie above the exit layer, 0..1."""
        return float((self.n_layers - 1 - self.exit_layer).mean() / self.n_layers)

    def token_text(self, token: SupportsIndex) -> str:
        """Readable text of a token id that this result holds; ValueError for another."""
        if token not in self.names:
            raise ValueError(f"token id {token} is not among the likeliest tokens of this result")
        return self.names[token]

    def to_frame(self) -> pd.DataFrame:
        """One row per position and route: weight, likeliest token, its probability, agreement, divergence."""
        import pandas as pd

        agree = self.agreement
        rows = [
            {
                "position": position,
                "token": self.tokens[position],
                "route": route,
                "layer": layer,
                "weight": float(self.weights[position, route]),
                "top_token": self.token_text(int(self.route_ids[route, position, 0])),
                "probability": float(self.route_probability[route, position, 0]),
                "ensemble_token": self.token_text(int(self.ensemble_ids[position, 0])),
                "agrees": bool(agree[route, position]),
                "kl": float(self.kl[route, position]),
                "exit_layer": int(self.exit_layer[position]),
            }
            for position in range(self.n_positions)
            for route, layer in enumerate(self.layers)
        ]
        return pd.DataFrame(rows)
