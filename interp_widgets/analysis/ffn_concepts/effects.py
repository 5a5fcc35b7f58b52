"""`neuron_effects`: what the MLP neurons of one layer do on a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis.ffn_concepts.neurons import chosen_neurons, norms_output, value_vectors
from interp_widgets.analysis.prompts import Prompt, read_prompt, single_token
from interp_widgets.analysis.result import Result, provenance, record
from interp_widgets.analysis.tensors import check_finite, to_numpy, wide
from interp_widgets.analysis.token_decomposition.lens import PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.compare import HALF_TOLERANCE, TOLERANCE
from interp_widgets.models.engine.linearised import rounds_norms

if TYPE_CHECKING:
    import pandas as pd


@record
class NeuronEffectResult(Result):
    """What the neurons of one layer do on a prompt: activations, and their direct effect on one token's logit.

    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.

    Example:
        >>> found = neuron_effects(model, "The Eiffel Tower is in the city of", " Paris", layer=5)
        >>> found.activation.shape, found.effect.shape
        ((8, 512), (512,))
        >>> bool(abs(found.effect.sum() + found.bias_effect - found.mlp_effect) < 1e-3)
        True
    """

    layer: int
    """Layer of the model."""

    neurons: Sequence[int]
    """(neurons,) their numbers in the layer."""

    tokens: Sequence[str]
    """(positions,) readable tokens of the prompt, without a BOS."""

    ids: Sequence[int]
    """(positions,) their ids."""

    activation: NDArray[np.floating[Any]]
    """(positions, neurons) m_i: what multiplies each neuron's value vector at a token."""

    position: int
    """The token whose next one is looked at, counted from 0 without a BOS."""

    target: int
    """Id of the token whose logit it is."""

    target_token: str
    """Its text."""

    effect: NDArray[np.floating[Any]]
    """(neurons,) what m_i v_i at `position` adds to the logit directly, later layers aside, the final norm's scale
    held."""

    size: NDArray[np.floating[Any]]
    """(neurons,) length of the sub-update m_i v_i at `position`."""

    bias_effect: float
    """What the MLP's output bias adds to the logit directly."""

    mlp_effect: float
    """What the whole MLP output of the layer adds to it directly: all neurons of the layer and the bias."""

    logit: float
    """The logit itself (before a cap, where the model has one)."""

    bos_id: int | None = None
    """Id of the beginning-of-sequence token fed before the prompt; None when there was none."""

    def __post_init__(self) -> None:
        positions, n = np.asarray(self.activation).shape
        self.sequence("neurons", n)
        self.sequence("tokens", positions)
        self.sequence("ids", positions)
        self.array("activation", (positions, n))
        self.array("effect", (n,))
        self.array("size", (n,))

    def strongest(self, top: int = 10) -> list[tuple[int, float]]:
        """The neurons of largest absolute effect, with it."""
        order = np.argsort(-np.abs(self.effect), kind="stable")[:top]
        return [(self.neurons[i], float(self.effect[i])) for i in order]

    def to_frame(self) -> pd.DataFrame:
        """One row per neuron: its activation at `position`, effect on the logit, and length of its sub-update."""
        import pandas as pd

        at = self.activation[self.position]
        return pd.DataFrame(
            {"neuron": list(self.neurons), "activation": at, "effect": self.effect, "size": self.size}
        )  # fmt: skip


@checked
@torch.no_grad()
def neuron_effects(
    model: Model,
    prompt: str | Sequence[int],
    target: str | int | None = None,
    *,
    layer: int,
    neurons: Sequence[int] | None = None,
    position: int = -1,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> NeuronEffectResult:
    """The activations of a layer's neurons on a prompt, and what each adds directly to the logit of one next token.

    Neuron i adds its sub-update ``m_i v_i`` to the residual stream. Followed straight to the unembedding, with the
    final norm's scale held at the prompt's own, it adds ``m_i v_i · u`` to the logit; what later layers make of it is
    not in this number. Over all neurons, with the MLP's bias, the effects add up to the whole MLP output's. Of a
    mixture of depths it is the logit of the last route alone, which need not be the model's own.

    Args:
        model: what `load_model` returns.
        prompt: text, or token ids (then nothing is added).
        target: the token whose logit it is (text of one token, or id); default: the one the model finds likeliest.
        layer: of the model.
        neurons: numbers of neurons in the layer; default: all.
        position: whose next token is looked at, counted from 0 without a BOS, or from the end.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called before and after the model runs; raises to cancel.

    Raises:
        ValueError: a bad prompt, position, target, layer or neuron, or a model whose neurons do not add up to its MLP
            output.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 2.2.2 and
    appendix D.2.

    Example:
        >>> found = neuron_effects(model, "The Eiffel Tower is in the city of", " Paris", layer=5)
        >>> [(neuron, round(effect, 1)) for neuron, effect in found.strongest(2)]
        [(53, 1.4), (79, 0.7)]
    """
    values, _ = value_vectors(model, layer, None, normed=False)
    chosen = chosen_neurons(model, neurons)
    given = read_prompt(model, prompt, prepend_bos=prepend_bos)
    at = given.offset + given.position(position)
    token = None if target is None else single_token(model, target)
    if check is not None:
        check()
    names = _names(model, layer)
    run = model.run(given.fed_ids(), capture=tuple(names.values()))
    if check is not None:
        check()
    found = {name: wide(run.activations[hook][0]) for name, hook in names.items()}
    token = int(run.logits[0, at].argmax()) if token is None else token
    active, written = found["post"], found["out"][at]
    bias = wide(model.weight("b_out", layer))
    gain = _gain(model, layer, active[at] @ values + bias, written, values)
    lens = PartLens.of(model, found["stream"][at : at + 1])
    direction = lens.directions(token)[0]
    pulled = (values * gain) @ direction
    check_finite("the effects of the neurons", pulled)
    rows = torch.tensor(chosen, device=values.device)
    return NeuronEffectResult(
        layer=layer,
        neurons=chosen,
        tokens=given.tokens(),
        ids=given.shown_ids,
        activation=to_numpy(active[given.offset :, rows]),
        position=at - given.offset,
        target=token,
        target_token=model.token_strings([token])[0],
        effect=to_numpy((active[at] * pulled)[rows]),
        size=to_numpy((active[at].abs() * (values * gain).norm(dim=-1))[rows]),
        bias_effect=float((bias * gain) @ direction),
        mlp_effect=float(written @ direction),
        logit=float(found["stream"][at] @ direction + lens.constant(token)),
        bos_id=given.bos_id,
        provenance=provenance(model.provenance(), **_told(given, layer, at, len(chosen))),
    )


def _told(given: Prompt, layer: int, at: int, n: int) -> dict[str, Any]:
    return {"layer": layer, "position": at - given.offset, "neurons": n, "bos": given.offset == 1}


def _names(model: Model, layer: int) -> dict[str, str]:
    return {
        "post": f"blocks.{layer}.mlp.hook_post",
        "out": f"blocks.{layer}.hook_mlp_out",
        "stream": f"blocks.{model.n_layers - 1}.hook_resid_post",
    }


def _gain(model: Model, layer: int, raw: Tensor, written: Tensor, values: Tensor) -> Tensor:
    """(d_model,) or () by which the MLP's own output is multiplied before it enters the stream: 1, unless it is normed.

    A norm's frozen scale is one number per token: it follows from what the norm was given and what came out.
    """
    gain = raw.new_ones(())
    if norms_output(model, layer):
        weight = wide(model.weight("ln2_post_w", layer))
        gain = weight * ((raw * weight) @ written) / ((raw * weight) @ (raw * weight))
    error = float((raw * gain - written).norm() / written.norm().clamp_min(1e-30))
    # some norms compute in float32 whatever the model's type
    kind = torch.float32 if rounds_norms(model) and model.dtype == torch.float64 else model.dtype
    limit = TOLERANCE.get(kind, HALF_TOLERANCE)
    if not error <= limit:
        raise ValueError(
            f"the neurons of layer {layer} do not add up to its MLP output: relative error {error:.1e}, allowed "
            f"{limit:.0e}; this needs MLPs with one output matrix, and no hooks that change them"
        )
    return gain
