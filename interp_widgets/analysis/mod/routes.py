"""`routing`: the routes of every token of a prompt through a mixture of depths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interp_widgets.analysis.mod.result import RoutingResult
from interp_widgets.analysis.prompts import read_prompt
from interp_widgets.analysis.result import provenance
from interp_widgets.analysis.tensors import as_array, to_numpy
from interp_widgets.arguments import checked
from interp_widgets.models import Model, ModModel
from interp_widgets.models.devices import device_kind
from interp_widgets.models.engine import decode

_LOGITS = {"cpu": 2**22, "accelerator": 2**28}
"""Logits held at once."""


@checked
@torch.no_grad()
def routing(
    model: Model,
    prompt: str | Sequence[int],
    *,
    top: int = 5,
    top_k: int | None = None,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> RoutingResult:
    """How a mixture of depths weighs its layers at every token of a prompt, and what each of them would write.

    Args:
        model: a `ModModel`, from `tune_mod` or `load_model`.
        prompt: text, or token ids (then nothing is added).
        top: how many of the likeliest tokens are kept per route.
        top_k: routes that a token uses here, 1..k; the model's own number by default.
        prepend_bos: overrides the model's BOS policy for text.
        progress: called with parts done and in all.
        check: called between parts; raises to cancel.

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
    if not 1 <= top <= model.d_vocab:
        raise ValueError(f"top must be a whole number in 1..{model.d_vocab} for this vocabulary, got {top!r}")
    given = read_prompt(model, prompt, prepend_bos=prepend_bos)
    if check is not None:
        check()
    with model.lock, model.with_top_k(model.top_k if top_k is None else top_k), model.mixture.recording() as readings:
        ensemble = model.run(given.fed_ids()).logits[0, given.offset :]
        used = model.top_k
    gates = readings[-1].gates[0, given.offset :]
    members = [member[0, given.offset :] for member in readings[-1].members]
    read = _Readings(model, ensemble, top)
    size = max(1, _LOGITS[device_kind(ensemble.device)] // model.d_vocab)
    parts = [(route, start) for route in range(model.k) for start in range(0, given.n_shown, size)]
    for done, (route, start) in enumerate(parts, start=1):
        if check is not None:
            check()
        read.add(route, slice(start, start + size), decode(model, members[route][None, start : start + size])[0])
        if progress is not None:
            progress(done, len(parts))
    _check_finite(model, read.kl)
    layers = model.route_layers
    last = (gates > 0).long().mul(torch.arange(1, model.k + 1, device=gates.device)).amax(-1) - 1
    shown = set(read.route_ids.flatten().tolist()) | set(read.own_ids.flatten().tolist())
    return RoutingResult(
        tokens=given.tokens(),
        ids=given.shown_ids,
        special=given.special(),
        layers=layers,
        weights=to_numpy(gates),
        route_ids=as_array(read.route_ids),
        route_probability=to_numpy(read.route_probability),
        ensemble_ids=as_array(read.own_ids),
        ensemble_probability=to_numpy(read.own_probability),
        kl=to_numpy(read.kl),
        exit_layer=as_array(last + layers[0]),
        names={token: model.token_strings([token])[0] for token in sorted(shown)},
        top_k=used,
        n_layers=model.n_layers,
        bos_id=given.bos_id,
        provenance=provenance(model.provenance(), top=top, mod_top_k=used, bos=given.offset == 1),
    )


class _Readings:
    """The likeliest tokens of the ensemble, and of every route in turn."""

    def __init__(self, model: ModModel, ensemble: Tensor, top: int) -> None:
        self.own = _log_probabilities(ensemble)
        best = self.own.topk(top, dim=-1)
        self.own_ids, self.own_probability = best.indices, best.values.exp()
        shape = (model.k, len(ensemble), top)
        self.route_ids = torch.zeros(shape, dtype=torch.long, device=ensemble.device)
        self.route_probability = torch.zeros(shape, dtype=self.own.dtype, device=ensemble.device)
        self.kl = torch.zeros(shape[:2], dtype=self.own.dtype, device=ensemble.device)

    def add(self, route: int, rows: slice, logits: Tensor) -> None:
        """Take in a route's logits (rows, d_vocab)."""
        found = _log_probabilities(logits)
        best = found.topk(self.route_ids.shape[-1], dim=-1)
        self.route_ids[route, rows], self.route_probability[route, rows] = best.indices, best.values.exp()
        # a token that a hook has forbidden has probability zero in both
        apart = torch.where(found == -torch.inf, torch.zeros_like(found), found - self.own[rows])
        self.kl[route, rows] = (found.exp() * apart).sum(-1)


def _log_probabilities(logits: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.log_softmax(-1)


def _check_finite(model: ModModel, kl: Tensor) -> None:
    bad = (~torch.isfinite(kl)).nonzero()
    if len(bad):
        route, position = bad[0].tolist()
        raise ValueError(
            f"the reading of layer {model.route_layers[route]} at position {position} is not finite: "
            "look for broken weights, an edit by a hook, or half precision that overflows"
        )
