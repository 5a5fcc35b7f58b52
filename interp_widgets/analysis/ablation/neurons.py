"""`ablate_neurons`: each neuron of one MLP removed at one position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from interp_widgets.analysis._core.checks import whole_number
from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis.ablation.question import Metric
from interp_widgets.analysis.ablation.replacement import Replacement, Text
from interp_widgets.analysis.ablation.result import NeuronAblationResult
from interp_widgets.analysis.ablation.study import Asked, check_finite, empty, layer_number, make_study, read
from interp_widgets.arguments import checked
from interp_widgets.models import Model


@checked
def ablate_neurons(
    model: Model,
    prompt: Text,
    target: str | int | None = None,
    *,
    layer: int,
    position: int = -1,
    neurons: Sequence[int] | None = None,
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
    on_partial: Callable[[NeuronAblationResult], None] | None = None,
) -> NeuronAblationResult:
    """Effect (neurons,) on the next token when one neuron of a layer's MLP is removed at one position.

    A neuron is an entry of what the MLP's output matrix reads; of a gated MLP, gate times linear branch.

    Args:
        layer: which MLP; negative ones count from the end.
        position: where; the last one by default.
        neurons: which ones, all by default.
        model, prompt, target, replacement, reference, pooled, corrupted, metric, foil, prepend_bos, batch_size,
            progress, check, on_partial: as in `ablate_modules`.

    Raises:
        ValueError: as `ablate_modules`; a neuron out of range, or a model without such neurons.

    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 (neurons as key and value vectors).

    Example:
        >>> found = ablate_neurons(model, "The Eiffel Tower is located in the city of", " Paris", layer=5)
        >>> found.to_frame().nlargest(2, "effect")[["neuron", "effect"]].round(1)
             neuron  effect
        53       53     1.6
        233     233     0.3
    """
    model.capabilities.require("residual_stream", "ablate_neurons")
    model.capabilities.require("mlp_neurons", "ablate_neurons", "use ablate_modules(kinds=('mlp',))", using="mlp")
    asked = Asked(
        target, metric, foil, replacement, reference, pooled, corrupted, prepend_bos, batch_size, progress, check
    )
    at_layer = layer_number(model, layer)
    given = read(model, prompt, asked)
    where = given.position(position)
    chosen = _checked_neurons(model, neurons)
    study = make_study(model, given, asked, [("neuron", at_layer)], len(chosen))
    effect = empty(study, len(chosen))
    index, fed = torch.tensor(chosen), where + given.offset
    activation = to_numpy(study.clean.value("neuron", at_layer)[0, fed, index, 0])

    def result(*, partial: bool = False) -> NeuronAblationResult:
        return NeuronAblationResult(
            effect=to_numpy(effect).copy(),
            neurons=chosen,
            activation=activation,
            layer=at_layer,
            position=where,
            partial=partial,
            **study.fields(layer=at_layer, position=where),
        )

    def work(start: int, stop: int) -> None:
        cell = torch.arange(stop - start)
        patch = study.replacement.patch("neuron", at_layer, cell, torch.full_like(cell, fed), index[start:stop])
        effect[start:stop] = study.run([patch], stop - start)

    if on_partial is not None:
        study.runner.deliver = lambda: on_partial(result(partial=True))
    study.runner.run(len(chosen), lambda start: study.clean.computed(fed), work)
    found = result()
    check_finite(found.effect, lambda i: f"neuron {chosen[i[0]]} of layer {at_layer}")
    return found


def _checked_neurons(model: Model, neurons: Any) -> tuple[int, ...]:
    if neurons is None:
        return tuple(range(model.d_mlp))
    allowed = f"0..{model.d_mlp - 1}"
    found = tuple(whole_number(i, "neuron") for i in neurons)
    wrong = next((i for i in found if not 0 <= i < model.d_mlp), None)
    if wrong is not None:
        raise ValueError(f"neuron must be in {allowed} for this model, got {wrong}")
    if not found:
        raise ValueError(f"neurons is empty: name at least one of {allowed}, or leave neurons out for all")
    return found
