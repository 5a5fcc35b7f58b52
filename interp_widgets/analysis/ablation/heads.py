"""`ablate_heads`: each attention head removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis.ablation.question import Metric
from interp_widgets.analysis.ablation.replacement import Replacement, Text
from interp_widgets.analysis.ablation.result import HeadAblationResult
from interp_widgets.analysis.ablation.study import Asked, Study, check_finite, chosen_layers, empty, make_study, read
from interp_widgets.arguments import checked
from interp_widgets.models import Model


@checked
def ablate_heads(
    model: Model,
    prompt: Text,
    target: str | int | None = None,
    *,
    position: int | None = None,
    layers: Sequence[int] | None = None,
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
    on_partial: Callable[[HeadAblationResult], None] | None = None,
) -> HeadAblationResult:
    """Effect (layers, heads) on the next token when one attention head is removed.

    A head's output before the output matrix is replaced, so that the attention's output bias stays.

    Args:
        position: where; by default at every position at once, a BOS included. A BOS reads only itself, so that its
            value stays with ``"mean"`` and ``"resample"``.
        model, prompt, target, layers, replacement, reference, pooled, corrupted, metric, foil, prepend_bos, batch_size,
            progress, check, on_partial: as in `ablate_modules`.

    Raises:
        ValueError: as `ablate_modules`.

    Source: Interpretability in the Wild (Wang et al. 2023), section 2; Are Sixteen Heads Really Better than One?
    (Michel et al. 2019), section 3.

    Example:
        >>> found = ablate_heads(model, "The Eiffel Tower is located in the city of", " Paris")
        >>> found.effect.shape, found.strongest(1)
        ((6, 6), ((0, 4),))
    """
    model.capabilities.require("residual_stream", "ablate_heads")
    model.capabilities.require("heads", "ablate_heads", "use ablate_modules(kinds=('attn',))", using="attention")
    asked = Asked(
        target, metric, foil, replacement, reference, pooled, corrupted, prepend_bos, batch_size, progress, check
    )
    at_layers = chosen_layers(model, layers)
    given = read(model, prompt, asked)
    where = None if position is None else given.position(position)
    places = [("head", layer) for layer in at_layers]
    study = make_study(model, given, asked, places, len(at_layers) * model.n_heads)  # type: ignore[arg-type]
    effect = empty(study, len(at_layers), model.n_heads)

    def result(*, partial: bool = False) -> HeadAblationResult:
        return HeadAblationResult(
            effect=to_numpy(effect).copy(),
            layers=at_layers,
            position=where,
            partial=partial,
            **study.fields(layers=str(at_layers), position=where),
        )

    if on_partial is not None:
        study.runner.deliver = lambda: on_partial(result(partial=True))
    for row, layer in enumerate(at_layers):
        _layer(study, layer, where, effect[row])
    found = result()
    check_finite(found.effect, lambda i: f"head {i[1]} of layer {at_layers[i[0]]}")
    return found


def _layer(study: Study, layer: int, where: int | None, effect: Tensor) -> None:
    """Fill ``effect`` (heads,) of one layer."""
    tokens = study.clean.tokens
    at = torch.arange(tokens) if where is None else torch.tensor([where + study.prompt.offset])

    def work(start: int, stop: int) -> None:
        cell = torch.arange(stop - start).repeat_interleave(len(at))
        patch = study.replacement.patch("head", layer, cell, at.repeat(stop - start), cell + start)
        effect[start:stop] = study.run([patch], stop - start)

    study.runner.run(len(effect), lambda start: study.clean.computed(int(at[0])), work)
