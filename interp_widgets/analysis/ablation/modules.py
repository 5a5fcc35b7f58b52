"""`ablate_modules`: attention, MLP or both removed at every layer and position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis.ablation.interventions import check_kind
from interp_widgets.analysis.ablation.question import Metric
from interp_widgets.analysis.ablation.replacement import Replacement, Text
from interp_widgets.analysis.ablation.result import AblationResult
from interp_widgets.analysis.ablation.study import (
    Asked,
    Study,
    check_finite,
    chosen_layers,
    chosen_positions,
    empty,
    make_study,
    read,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.patching import Patch, Site

Kind = Literal["attn", "mlp", "both", "attn_to_mlp"]
"""What is removed at one layer and position."""

SITES: dict[str, tuple[Site, ...]] = {
    "attn": ("attn",),
    "mlp": ("mlp",),
    "both": ("attn", "mlp"),
    "attn_to_mlp": ("attn_to_mlp",),
}


@checked
def ablate_modules(
    model: Model,
    prompt: Text,
    target: str | int | None = None,
    *,
    kinds: Sequence[Kind] = ("attn", "mlp", "both", "attn_to_mlp"),
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    replacement: Replacement = "zero",
    reference: Sequence[Text] | None = None,
    pooled: bool = True,
    corrupted: Text | None = None,
    metric: Metric = "logit",
    foil: str | int | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[AblationResult], None] | None = None,
) -> AblationResult:
    """Effect (kinds, layers, positions) on the next token when a module is removed at one layer and position.

    ``attn``: the attention output (its bias too) no longer goes to the residual stream. ``mlp``: the same for the MLP.
    ``both``: neither, so that with zeros the block passes the stream on as it came. ``attn_to_mlp``: attention still
    goes to the stream, but the MLP of this layer reads the stream without it; 0 everywhere for models whose MLP runs
    beside the attention and never reads it. In the last layer only the last position can have an effect.

    Args:
        model: what `load_model` returns.
        prompt: text, or token ids (then nothing is added). Asked is for the token that follows it.
        target: text or id of one token; by default the model's most likely one.
        kinds: which of the four.
        layers, positions: which ones, all by default; negative ones count from the end.
        replacement: ``"zero"``, ``"mean"`` over ``reference`` texts, or ``"resample"``: the value at the same position
            in the ``corrupted`` prompt, which must have as many tokens.
        reference: texts for ``"mean"``.
        pooled: one mean over all their positions; False: one mean per position, for texts as long as the prompt.
        corrupted: text or token ids for ``"resample"``.
        metric: ``"logit"`` of the target, its ``"probability"`` or ``"log_prob"`` (nats), ``"logit_difference"`` to the
            ``foil``, or ``"kl"``: KL(before‖after) of the whole next-token distribution, in nats.
        foil: text or id of one token, for ``"logit_difference"``.
        prepend_bos: overrides the model's BOS policy for texts. A BOS is fed, and is on no axis.
        batch_size: cells per chunk; by default what 60 % of the free memory holds.
        progress: called with (done, total) cells after every chunk.
        check: called before every layer of every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet.

    Raises:
        ValueError: a target of several tokens, a corrupted prompt of another length, a position or layer out of range,
            an empty list, an unknown kind, metric or replacement, what one of them needs missing, numbers that are not
            finite.
        MemoryError: a single sequence does not fit.

    Source: Explainability in Large Language Models (Luo 2024), section 4.1.1 and figure 4.3; Interpretability in the
    Wild (Wang et al. 2023), section 2 (mean and resample ablation).

    Example:
        >>> found = ablate_modules(model, "The Eiffel Tower is located in the city of", " Paris")
        >>> found.effect.shape
        (4, 6, 9)
        >>> found.to_frame().nlargest(1, "effect").round(1)
           kind  layer  position token  effect
        8  attn      0         8    of     8.0
    """
    asked = Asked(
        target, metric, foil, replacement, reference, pooled, corrupted, prepend_bos, batch_size, progress, check
    )
    names = _checked_kinds(kinds)
    model.capabilities.require("residual_stream", "ablate_modules")
    for kind in names:
        check_kind(model, kind, f"ablate_modules(kinds=({kind!r},))")
    at_layers = chosen_layers(model, layers)
    given = read(model, prompt, asked)
    at_positions = chosen_positions(given, positions)
    used = dict.fromkeys(site for kind in names for site in SITES[kind])
    sites = [(site, layer) for layer in at_layers for site in used]
    study = make_study(model, given, asked, sites, len(names) * len(at_layers) * len(at_positions))
    effect = empty(study, len(names), len(at_layers), len(at_positions))

    def result(*, partial: bool = False) -> AblationResult:
        told = {"kinds": ", ".join(names), "layers": str(at_layers), "positions": str(at_positions)}
        return AblationResult(
            effect=to_numpy(effect).copy(),
            kinds=names,
            layers=at_layers,
            positions=at_positions,
            partial=partial,
            **study.fields(**told),
        )

    if on_partial is not None:
        study.runner.deliver = lambda: on_partial(result(partial=True))
    for row, layer in enumerate(at_layers):
        _layer(study, layer, names, at_positions, effect[:, row])
    found = result()
    check_finite(found.effect, lambda i: f"{names[i[0]]!r} at layer {at_layers[i[1]]}, position {at_positions[i[2]]}")
    return found


def _checked_kinds(kinds: Sequence[str]) -> tuple[Kind, ...]:
    found: tuple[Any, ...] = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    listed = ", ".join(repr(kind) for kind in get_args(Kind))
    for kind in found:
        if kind not in get_args(Kind):
            raise ValueError(f"kinds must be among {listed}, got {kind!r}")
    if not found:
        raise ValueError(f"kinds is empty: name at least one of {listed}")
    return tuple(dict.fromkeys(found))


def _layer(study: Study, layer: int, kinds: Sequence[str], positions: Sequence[int], effect: Tensor) -> None:
    """Fill ``effect`` (kinds, positions) of one layer: cells in order of position, the kinds of one side by side."""
    order = torch.tensor(positions).argsort()
    fed = torch.tensor(positions)[order] + study.prompt.offset
    count = len(kinds)

    def work(start: int, stop: int) -> None:
        cell = torch.arange(start, stop)
        kind, place = cell % count, cell // count
        patches = _patches(study, layer, kinds, kind, fed[place])
        effect[kind, order[place]] = study.run(patches, stop - start)

    study.runner.run(count * len(positions), lambda start: study.clean.computed(int(fed[start // count])), work)


def _patches(study: Study, layer: int, kinds: Sequence[str], kind: Tensor, at: Tensor) -> list[Patch]:
    """The patches of cells (n,) of one layer, each of one kind at one position."""
    patches = []
    for site in dict.fromkeys(site for name in kinds for site in SITES[name]):
        wanted = torch.tensor([site in SITES[name] for name in kinds])
        cell = wanted[kind].nonzero()[:, 0]
        patches.append(study.replacement.patch(site, layer, cell, at[cell]))
    return patches
