"""`routing`: the routing weights of a mixture of depths at every token of a prompt, and each route's prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.checks import check_finite, check_top
from interp_widgets.analysis._core.prompts import PromptResult, read_prompt
from interp_widgets.analysis._core.result import provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array, to_numpy, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model, ModModel
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.devices import device_kind
from interp_widgets.models.engine import decode
from interp_widgets.models.top_k import ranked

_LOGITS = {"cpu": 2**22, "accelerator": 2**28}
"""Logits in memory at once."""


@record
class RoutingResult(PromptResult):
    """Routing weights and the next token of every route, at every position of a prompt.

    Route i reads the output of layer ``layers[i]``. The prediction at a position is for the token after it. Positions
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

    layers: Sequence[int] = with_axes("k")
    """The layer whose output each route reads, rising."""

    weights: Floats = with_axes("positions", "k")
    """Weight of each route, 0..1; a position's weights sum to 1."""

    route_ids: Ints = with_axes("k", "positions", "top")
    """Ids of the likeliest next tokens of each route alone, best first."""

    route_probability: Floats = with_axes("k", "positions", "top")
    """Their probabilities by that route, 0..1."""

    ensemble_ids: Ints = with_axes("positions", "top")
    """Ids of the model's own likeliest next tokens, best first."""

    ensemble_probability: Floats = with_axes("positions", "top")
    """Their probabilities, 0..1."""

    kl: Floats = with_axes("k", "positions")
    """KL(route ‖ ensemble) in nats."""

    exit_layer: Ints = with_axes("positions")
    """The last layer that the position's prediction needs: that of the last route with a weight."""

    names: Mapping[int, str]
    """Readable text by id of every token in `route_ids` and `ensemble_ids`; see :meth:`token_text`."""

    top_k: int
    """Number of routes per token."""

    n_layers: int
    """Number of layers of the model."""

    @property
    def k(self) -> int:
        """Number of routes."""
        return len(self.layers)

    @property
    def agreement(self) -> Bools:
        """(k, positions) whether a route's likeliest token is the ensemble's."""
        return np.asarray(self.route_ids[..., 0] == self.ensemble_ids[..., 0])

    @property
    def main_route(self) -> Ints:
        """(positions,) the route with the largest weight; the earlier one of a tie."""
        return np.asarray(self.weights.argmax(-1))

    @property
    def skipped_share(self) -> float:
        """Share of all layers at all positions that lie above the exit layer, 0..1."""
        return float((self.n_layers - 1 - self.exit_layer).mean() / self.n_layers)

    def token_text(self, token: SupportsIndex) -> str:
        """Readable text of a token id that this result holds; ValueError for another."""
        if token not in self.names:
            raise ValueError(f"token id {token} is not among the likeliest tokens of this result")
        return self.names[int(token)]

    def to_frame(self) -> DataFrame:
        """One row per position and route: weight, likeliest token, its probability, agreement, divergence."""

        def texts(ids: Ints) -> list[list[str]]:
            return [[self.token_text(token) for token in row] for row in ids.tolist()]

        columns = {
            "token": np.array(self.tokens, dtype=object)[:, None],
            "layer": self.layers,
            "weight": self.weights.astype(float),
            "top_token": texts(self.route_ids[..., 0].T),
            "probability": self.route_probability[..., 0].T.astype(float),
            "ensemble_token": texts(self.ensemble_ids[:, :1]),
            "agrees": self.agreement.T,
            "kl": self.kl.T.astype(float),
            "exit_layer": self.exit_layer[:, None],
        }
        rows = table({"position": range(self.n_positions), "route": range(self.k)}, columns)
        rows.insert(1, "token", rows.pop("token"))  # beside its position
        return rows


@checked
@torch.no_grad()
def routing(
    model: Model,
    prompt: PromptInput,
    *,
    top: int = 5,
    top_k: int | None = None,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> RoutingResult:
    """The routing weights of a mixture of depths at every token of a prompt, and the predictions of every route.

    Args:
        model: a `ModModel`, from `tune_mod` or `load_model`.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        top: how many of the likeliest tokens are kept per route.
        top_k: routes that a token uses here, 1..k; the model's own number by default.
        prepend_bos: overrides the model's BOS policy for text.
        progress: called with (done, total) chunks.
        check: called between chunks; raises to cancel.

    Raises:
        TypeError: a model without a mixture.
        ValueError: a bad prompt, ``top`` or ``top_k``.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), sections 5.1.1
    and 5.1.3.

    Example:
        >>> result = routing(untrained_mod(model, 2), "The Eiffel Tower is located in the city of")
        >>> result.weights.shape, result.layers
        ((9, 2), (4, 5))
        >>> result.token_text(result.ensemble_ids[-1, 0])
        ' Paris'
    """
    if not isinstance(model, ModModel):
        raise TypeError(f"routing needs a mixture of depths, as tune_mod makes it, got {type(model).__name__}")
    check_top(top, model)
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    run = RunOptions(progress, check)
    run.stop_if_cancelled()
    with model.lock, model.with_top_k(model.top_k if top_k is None else top_k), model.mixture.recording() as readings:
        ensemble = model.run(tokens.fed_ids()).logits[0, tokens.offset :]
        used = model.top_k
    gates = readings[-1].gates[0, tokens.offset :]
    members = [member[0, tokens.offset :] for member in readings[-1].members]
    read = _Readings(model, ensemble, top)
    size = max(1, _LOGITS[device_kind(ensemble.device)] // model.d_vocab)
    chunks = [(route, start) for route in range(model.k) for start in range(0, tokens.n_shown, size)]
    for done, (route, start) in enumerate(chunks, start=1):
        run.stop_if_cancelled()
        read.add(route, slice(start, start + size), decode(model, members[route][None, start : start + size])[0])
        run.report(done, len(chunks))
    layers = model.route_layers
    check_finite(read.kl, lambda route, at: f"the reading of layer {layers[route]} at position {at}")
    last = (gates > 0).long().mul(torch.arange(1, model.k + 1, device=gates.device)).amax(-1) - 1
    named = set(read.route_ids.flatten().tolist()) | set(read.ensemble_ids.flatten().tolist())
    return RoutingResult(
        **tokens.fields(),
        layers=layers,
        weights=to_numpy(gates),
        route_ids=as_array(read.route_ids),
        route_probability=to_numpy(read.route_probability),
        ensemble_ids=as_array(read.ensemble_ids),
        ensemble_probability=to_numpy(read.ensemble_probability),
        kl=to_numpy(read.kl),
        exit_layer=as_array(last + layers[0]),
        names=dict(zip(sorted(named), model.single_token_strings(sorted(named)), strict=True)),
        top_k=used,
        n_layers=model.n_layers,
        provenance=provenance(model.provenance(), top=top, mod_top_k=used, bos=tokens.offset == 1),
    )


class _Readings:
    """The likeliest tokens of the ensemble, and of every route in turn."""

    def __init__(self, model: ModModel, ensemble: Tensor, top: int) -> None:
        self.ensemble = wide(ensemble).log_softmax(-1)
        # ranked by logits, of which different ones can have equal probabilities
        self.ensemble_ids = ranked(ensemble, top)[1]
        self.ensemble_probability = self.ensemble.gather(-1, self.ensemble_ids).exp()
        shape = (model.k, len(ensemble), top)
        self.route_ids = torch.zeros(shape, dtype=torch.long, device=ensemble.device)
        self.route_probability = torch.zeros(shape, dtype=self.ensemble.dtype, device=ensemble.device)
        self.kl = torch.zeros(shape[:2], dtype=self.ensemble.dtype, device=ensemble.device)

    def add(self, route: int, rows: slice, logits: Tensor) -> None:
        """Add a route's logits (rows, d_vocab)."""
        log_p = wide(logits).log_softmax(-1)
        best = ranked(logits, self.route_ids.shape[-1])[1]
        self.route_ids[route, rows] = best
        self.route_probability[route, rows] = log_p.gather(-1, best).exp()
        # tokens forbidden by a hook have probability zero in both
        difference = torch.where(log_p == -torch.inf, torch.zeros_like(log_p), log_p - self.ensemble[rows])
        self.kl[route, rows] = (log_p.exp() * difference).sum(-1)
