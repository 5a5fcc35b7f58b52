"""First-order estimates of patches: one forward and one backward pass for all cells of a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.ablation.metric import NextTokenMetric
from interp_widgets.models import Model
from interp_widgets.models.patching import Site, site_hook


def objective(metric: NextTokenMetric, caller: str = "method='attribution'") -> Callable[[Tensor], Tensor]:
    """The metric as a function of the logits (1, tokens, d_vocab), with a gradient.

    Raises ValueError for ``kl``, whose gradient is zero where both distributions are the same.
    """
    if metric.metric == "kl":
        raise ValueError(
            f"{caller} cannot estimate metric='kl', whose gradient is 0 at the clean run: use 'logit_difference' or "
            "'log_prob'"
        )

    return metric.of_logits


def changes(
    model: Model,
    run: Sequence[int],
    source: Sequence[int],
    metric: NextTokenMetric,
    sites: Mapping[Site, int],
    layers: Sequence[int],
    fed: Tensor,
    taken: Tensor,
) -> dict[Site, Tensor]:
    """By site (layers, positions, heads) how much each patch changes the metric, to first order: the change of the
    value times the metric's gradient there, summed over its width.

    Args:
        run, source: token ids of the run that is patched, and of that which the values come from.
        sites: the number of heads of each; 1 for a site without. For ``pattern`` all positions are patched at once, so
            that there is one row.
        fed, taken: (positions,) positions in both, counted with the BOS.
    """
    names = {(site, layer): site_hook(site, layer, model.n_layers) for site in sites for layer in layers}
    hooks = list(names.values())
    here = model.run(list(run), capture=hooks, grad=objective(metric))
    there = model.run(list(source), capture=hooks)

    def changed(site: Site, layer: int) -> Tensor:
        """(positions, heads)"""
        name = names[site, layer]
        before, after, slope = (wide(each[name][0]) for each in (here.activations, there.activations, here.gradients))
        if site == "pattern":  # (heads, queries, keys)
            return ((after - before) * slope).sum((1, 2))[None]
        before, after, slope = (each.reshape(len(each), sites[site], -1) for each in (before, after, slope))
        return ((after[taken] - before[fed]) * slope[fed]).sum(-1)

    return {site: torch.stack([changed(site, layer) for layer in layers]) for site in sites}
