"""First-order estimates of patches: one forward and one backward pass for all cells of a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.ablation.metric import NextTokenMetric
from interp_widgets.models import Model
from interp_widgets.models.hooks import Run
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
    *,
    through_softmax: bool = False,
) -> dict[Site, Tensor]:
    """By site (layers, positions, heads) how much each patch changes the metric, to first order: the change of the
    value times the metric's gradient there, summed over its width.

    With ``through_softmax`` of a query or key it is the exact change of the attention pattern times the gradient there.

    Args:
        run, source: token ids of the run that is patched, and of that which the values come from.
        sites: the number of heads of each; 1 for a site without. For ``pattern`` all positions are patched at once, so
            that there is one row.
        fed, taken: (positions,) positions in both, counted with the BOS.
    """
    names = {(site, layer): site_hook(site, layer, model.n_layers) for site in sites for layer in layers}
    softmax = [site for site in sites if through_softmax and site in ("q", "k")]
    patterns = {layer: site_hook("pattern", layer, model.n_layers) for layer in layers} if softmax else {}
    hooks = list(dict.fromkeys([*names.values(), *patterns.values()]))
    here = model.run(list(run), capture=hooks, grad=objective(metric))
    there = model.run(list(source), capture=list(names.values()))
    moved_patterns = {
        site: _patterns_of_changed(model, run, site, sites[site], names, patterns, here, there, fed, taken)
        for site in softmax
    }

    def changed(site: Site, layer: int) -> Tensor:
        """(positions, heads)"""
        if site in softmax:
            before, slope = (wide(each[patterns[layer]][0]) for each in (here.activations, here.gradients))
            return moved_patterns[site](layer, before, slope)
        name = names[site, layer]
        before, after, slope = (wide(each[name][0]) for each in (here.activations, there.activations, here.gradients))
        if site == "pattern":  # (heads, queries, keys)
            return ((after - before) * slope).sum((1, 2))[None]
        before, after, slope = (each.reshape(len(each), sites[site], -1) for each in (before, after, slope))
        return ((after[taken] - before[fed]) * slope[fed]).sum(-1)

    return {site: torch.stack([changed(site, layer) for layer in layers]) for site in sites}


def _patterns_of_changed(
    model: Model,
    run: Sequence[int],
    site: Site,
    heads: int,
    names: Mapping[tuple[Site, int], str],
    patterns: Mapping[int, str],
    here: Run,
    there: Run,
    fed: Tensor,
    taken: Tensor,
) -> Callable[[int, Tensor, Tensor], Tensor]:
    """A function from a layer, its pattern and the gradient there (heads, queries, keys) to how much each changed query
    or key changes the metric through the pattern, (positions, heads).

    A pass changes many queries or keys of every layer and puts the pattern back, so that no layer sees another's
    change. A query changes only its own row, so that one pass has all. Keys share rows: of each row the ratio of a
    key's weight to that of a key that has not changed tells how far its score has moved. Two passes, of the even and
    of the odd positions, leave such a key in every row that has two.
    """

    def changed_rows(rows: Tensor) -> dict[int, Tensor]:
        """By layer the pattern (heads, queries, keys) with the values of these of the patched positions changed."""
        found: dict[int, Tensor] = {}

        def put(value: Tensor, name: str) -> Tensor:
            new = value.clone()
            new[:, fed[rows]] = there.activations[name][:, taken[rows]].to(new.dtype)
            return new

        def back(value: Tensor, layer: int) -> Tensor:
            found[layer] = wide(value[0]).clone()
            return here.activations[patterns[layer]].to(value.dtype)

        edits = {names[site, layer]: partial(put, name=names[site, layer]) for layer in patterns}
        model.run(list(run), edit=edits | {name: partial(back, layer=layer) for layer, name in patterns.items()})
        return found

    if site == "q":
        moved = changed_rows(torch.arange(len(fed)))
        return lambda layer, before, slope: ((moved[layer] - before) * slope).sum(-1)[:, fed].T
    parity = [(fed % 2 == side).nonzero()[:, 0] for side in (0, 1)]
    by_side = [(rows, changed_rows(rows)) for rows in parity if len(rows)]

    def of_keys(layer: int, before: Tensor, slope: Tensor) -> Tensor:
        total = before.new_zeros(len(fed), len(before))
        mean = (before * slope).sum(-1, keepdim=True)  # of the slopes, by attention
        for rows, patterns_of_side in by_side:
            after, at = patterns_of_side[layer], fed[rows]
            still = torch.where(before > 0, before, -1.0)  # what is attended to
            still[..., at] = -1  # and has not changed
            anchor = still.argmax(-1, keepdim=True)
            scale = before.gather(-1, anchor) / after.gather(-1, anchor)
            alone = still.gather(-1, anchor) < 0  # rows of one key keep their weight of 1
            weight = before[..., at]
            grown = torch.where(alone | (weight == 0), 0.0, after[..., at] * scale - weight)
            share = torch.where(grown.isinf(), 1.0, grown / (1 + grown))
            change = (slope[..., at] - mean) * share  # (heads, queries, keys)
            total[rows] = change.sum(1).T
        return total.reshape(len(fed), heads, -1).sum(-1)

    return of_keys
