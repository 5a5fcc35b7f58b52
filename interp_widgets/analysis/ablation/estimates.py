"""First-order estimates of patched cells, by which a map computes first the cells that will tell most.

One forward and one backward pass for all cells. A gradient is far off where a part fills most of the stream, as the
first layers' do, so that the order also counts how much of the stream a patch changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interp_widgets.analysis._core.chunks import BUDGET_SHARE
from interp_widgets.analysis._core.cost import row_bytes
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.ablation.metric import NextTokenMetric
from interp_widgets.models import Model
from interp_widgets.models.engine import Trace
from interp_widgets.models.patching import Patch, Site, site_hook

Gradients = Mapping[tuple[Site, int], Tensor]
"""By site and layer the metric's gradient (batch, tokens, [heads or neurons,] width)."""


@dataclass(frozen=True)
class Estimate:
    """What patches change, estimated: both (cells,)."""

    change: Tensor
    """Of the metric, in its unit, to first order."""
    share: Tensor
    """The norm of what changes over that of the stream there (of the layer's heads or neurons), over all patches."""

    @property
    def score(self) -> Tensor:
        """(cells,) by which cells are ordered: the root of the change, times the share."""
        return self.change.abs().sqrt() * self.share


def can_estimate(model: Model, metric: NextTokenMetric, tokens: int, batch: int = 1) -> bool:
    """Whether the metric has a gradient in this model, and a backward pass fits into the free memory."""
    needed = batch * (2 * row_bytes(model, tokens, tokens) * model.n_layers + 12.0 * tokens * model.d_vocab)
    return model.capabilities.gradients and metric.metric != "kl" and needed <= BUDGET_SHARE * model.free_memory()


def gradients_of(
    model: Model, ids: Sequence[int], metric: NextTokenMetric, places: Sequence[tuple[Site, int]], trace: Trace
) -> Gradients:
    """The metric's gradient at (site, layer) ``places`` of a traced run of token ``ids``."""
    read = dict.fromkeys((site, layer) for place, layer in places for site in _read_at(place, model))
    names = {key: site_hook(*key, model.n_layers) for key in read}
    run = model.run(list(ids), capture=list(names.values()), grad=metric.of_logits, embeddings=trace.embeddings)
    at = {key: wide(run.gradients[name]).reshape(trace.value(*key).shape) for key, name in names.items()}
    for site, layer in places:
        if site == "attn_to_mlp":  # what the attention output adds through the MLP alone
            through = at["attn", layer] - at["mlp", layer] if ("mlp", layer) in at else at["attn", layer] * 0
            at[site, layer] = through
    return at


def _read_at(site: Site, model: Model) -> tuple[Site, ...]:
    if site != "attn_to_mlp":
        return (site,)
    return ("attn", "mlp") if model.capabilities.mlp else ("attn",)


def estimate(
    trace: Trace, at: Gradients, patches: Sequence[Patch], cells: int, sequence: Tensor | None = None
) -> Estimate:
    """What the patches of ``cells`` cells change, see `interp_widgets.models.engine.patched`."""
    device = trace.embeddings.device
    change, share = (torch.zeros(cells, dtype=torch.float32, device=device) for _ in range(2))
    for patch in patches:
        cell, position = patch.cells.to(device), patch.positions.to(device)
        row = torch.zeros_like(cell) if sequence is None else sequence.to(device)[cell]
        index = (row, position) if patch.index is None else (row, position, patch.index.to(device))
        before = trace.value(patch.site, patch.layer)
        moved = wide(patch.values) - wide(before[index])
        change.index_add_(0, cell, (moved * at[patch.site, patch.layer][index]).sum(-1).to(change.dtype))
        whole = _around(trace, patch.site, patch.layer)[row, position]
        part = moved.norm(dim=-1) / wide(whole).flatten(1).norm(dim=-1).clamp(min=1e-9)
        share.index_add_(0, cell, part.to(share.dtype))
    return Estimate(change, share)


def _around(trace: Trace, site: Site, layer: int) -> Tensor:
    """(batch, tokens, ...) what a patched value is a part of."""
    match site:
        case "attn" | "attn_to_mlp":
            return trace.resid[layer] + trace.attn[layer]
        case "mlp":
            return trace.resid[layer + 1]
    return trace.value(site, layer)
