"""Single MLP neurons: the tokens they promote (`neuron_tokens`), and their effect on a prompt (`neuron_effects`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_finite, check_range, layer_index, neuron_indices, row_of
from interp_widgets.analysis._core.chunks import ChunkLog, run_chunks
from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array, to_numpy, wide
from interp_widgets.analysis._core.top_k import TopK, top_k_indices
from interp_widgets.analysis.token_decomposition.part_lens import PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.compare import HALF_TOLERANCE, TOLERANCE
from interp_widgets.models.devices import device_kind
from interp_widgets.models.top_k import likeliest
from interp_widgets.models.weights import PartReplacedError

_NUMBERS = {"cpu": 2**22, "accelerator": 2**28}
_FLOPS = {"cpu": 1e10, "accelerator": 1e13}


@record
class NeuronTokenResult(Result):
    """The tokens whose logits each neuron of one layer raises most, and lowers most, per unit of its activation.

    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.

    Example:
        >>> result = neuron_tokens(model, layer=5, neurons=[53, 79], top=3)
        >>> [token for token, _ in result.tokens(79)]
        [' school', ' feeling', ' Gallery']
    """

    layer: int
    """Layer of the model."""

    neurons: Sequence[int] = with_axes("neurons")
    """Their numbers in the layer."""

    promoted: Ints = with_axes("neurons", "top")
    """Ids of the tokens with the largest score, best first."""

    promoted_scores: Floats = with_axes("neurons", "top")
    """Their scores: value vector, times the final norm's weight, times the token's unembedding."""

    suppressed: Ints = with_axes("neurons", "top")
    """Ids of the tokens with the smallest score, smallest first."""

    suppressed_scores: Floats = with_axes("neurons", "top")
    """Their scores."""

    norms: Floats = with_axes("neurons")
    """Length of each value vector."""

    names: Mapping[int, str]
    """Readable text of every token id above, by id."""

    def tokens(self, neuron: int, *, suppressed: bool = False) -> list[tuple[str, float]]:
        """Readable tokens of one neuron with their scores, strongest first; ValueError for one not computed.

        A negative number counts from the last neuron computed.
        """
        row = row_of(neuron, self.neurons, "neuron")
        ids, scores = (self.suppressed, self.suppressed_scores) if suppressed else (self.promoted, self.promoted_scores)
        return [(self.names[i], s) for i, s in zip(ids[row].tolist(), scores[row].tolist(), strict=True)]

    def to_frame(self) -> DataFrame:
        """One row per neuron: length of its value vector, promoted and suppressed tokens."""
        texts = [
            [" ".join(self.names[i] for i in row) for row in ids.tolist()] for ids in (self.promoted, self.suppressed)
        ]
        return table({"neuron": self.neurons}, {"norm": self.norms, "promoted": texts[0], "suppressed": texts[1]})


@checked
@torch.no_grad()
def neuron_tokens(
    model: Model,
    *,
    layer: int,
    neurons: Sequence[int] | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> NeuronTokenResult:
    """The tokens that each neuron's value vector promotes, and those it suppresses.

    Also called a logit lens on the value vectors of the key-value memory that an MLP is.

    The value vector of a neuron is its row of the MLP's output weights. A token's score is the value vector times the
    final norm's weight (centred first for a LayerNorm) times the token's unembedding: the logit per unit of activation,
    up to the positive scale of the final norm on a prompt. In models that normalise the MLP's output too (Gemma 2),
    that norm's weight multiplies as well.

    Args:
        model: what `load_model` returns.
        layer: of the model, counted from 0 or negative from the end.
        neurons: numbers of neurons in the layer, negative ones from the end; default: all.
        top: number of promoted and of suppressed tokens.
        progress: called with (done, total) tokens of the vocabulary.
        check: called between tiles of the vocabulary; raises to cancel.

    Raises:
        ValueError: a layer, neuron or option out of range, weights that are not finite.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 2.2.2 and
    appendix D.2.

    Example:
        >>> result = neuron_tokens(model, layer=5, neurons=[53], top=3)
        >>> [(token, round(score, 1)) for token, score in result.tokens(53)]
        [(' Bizet', 0.8), (' Portugal', 0.7), (' Pakistan', 0.7)]
    """
    model.capabilities.require("mlp_neurons", "neuron_tokens")
    model.capabilities.require("unembedding", "neuron_tokens")
    if not model.capabilities.input_norms and "blocks.0.ln1.hook_scale" in model.hook_names:
        raise ValueError(
            "neuron_tokens needs MLPs whose output stays in the residual stream as it was added, which "
            f"{model.capabilities.architecture} does not have: its blocks normalise the sum; use ablate_neurons, "
            "which runs the whole model"
        )
    check_range("top", top)
    layer, chosen = layer_index(model, layer), neuron_indices(model, neurons)
    values = value_vectors(model, layer)[torch.tensor(chosen, device=model.device)]
    if norms_output(model, layer):
        values = values * wide(model.weight("ln2_post_w", layer))
    table = model.weight("W_U")
    promoted, suppressed = TopK(min(top, table.shape[1])), TopK(min(top, table.shape[1]))
    through = (values - values.mean(-1, keepdim=True)) if model.normalization == "LayerNorm" else values
    through = through * wide(model.weight("ln_final_w"))
    numbers, flops = _NUMBERS[device_kind(table.device)], _FLOPS[device_kind(table.device)]
    size = min(numbers / len(through), flops / (2 * through.numel()))
    log = ChunkLog()

    def work(start: int, stop: int) -> None:
        scores = through @ table[:, start:stop].to(through.dtype)
        promoted.add(scores, start)
        suppressed.add(-scores, start)

    after = None if progress is None else lambda done: progress(done, table.shape[1])
    run_chunks(table.shape[1], max(int(size), top), work, what="token", log=log, check=check, after=after)
    for side in (promoted, suppressed):  # NaN counts as the largest
        check_finite(side.values, lambda row, _: f"a score of neuron {chosen[row]} of layer {layer}")
    ids = as_array(torch.stack([promoted.indices, suppressed.indices]))
    every = np.unique(ids).tolist()
    options = {"layer": layer, "top": top, "neurons": len(chosen), "chunk_halvings": log.halvings}
    return NeuronTokenResult(
        layer=layer,
        neurons=chosen,
        promoted=ids[0],
        promoted_scores=to_numpy(promoted.values),
        suppressed=ids[1],
        suppressed_scores=to_numpy(-suppressed.values),
        norms=to_numpy(values.norm(dim=-1)),
        names=dict(zip(every, model.single_token_strings(every), strict=True)),
        provenance=provenance(model.provenance(), **options),
    )


@record
class NeuronEffectResult(Result):
    """The neurons of one layer on a prompt: activations, and direct effects on one token's logit.

    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.

    Example:
        >>> result = neuron_effects(model, "The Eiffel Tower is in the city of", " Paris", layer=5)
        >>> result.activation.shape, result.effect.shape
        ((8, 512), (512,))
        >>> bool(abs(result.effect.sum() + result.bias_effect - result.mlp_effect) < 1e-3)
        True
    """

    layer: int
    """Layer of the model."""

    neurons: Sequence[int] = with_axes("neurons")
    """Their numbers in the layer."""

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens of the prompt, without a BOS."""

    ids: Sequence[int] = with_axes("positions")
    """Their ids."""

    activation: Floats = with_axes("positions", "neurons")
    """m_i: the factor of each neuron's value vector at a token."""

    position: int
    """The position before the target, counted from 0 without a BOS."""

    target: int
    """Id of the target token."""

    target_token: str
    """Its text."""

    effect: Floats = with_axes("neurons")
    """Direct effect of m_i v_i at `position` on the logit: without later layers, with the final norm's scale held
    fixed."""

    size: Floats = with_axes("neurons")
    """Length of the sub-update m_i v_i at `position`."""

    bias_effect: float
    """Direct effect of the MLP's output bias on the logit."""

    mlp_effect: float
    """Direct effect of the layer's whole MLP output: all its neurons and the bias."""

    logit: float
    """The logit itself (before a cap, where the model has one)."""

    bos_id: int | None = None
    """Id of the beginning-of-sequence token fed before the prompt; None when there was none."""

    def strongest(self, top: int = 10) -> list[tuple[int, float]]:
        """The neurons of largest absolute effect, and their effects."""
        return [(self.neurons[i], float(self.effect[i])) for i in top_k_indices(self.effect, top, by_size=True)]

    def to_frame(self) -> DataFrame:
        """One row per neuron: its activation at `position`, effect on the logit, and length of its sub-update."""
        columns = {"activation": self.activation[self.position], "effect": self.effect, "size": self.size}
        return table({"neuron": self.neurons}, columns)


@checked
@torch.no_grad()
def neuron_effects(
    model: Model,
    prompt: PromptInput,
    target: str | int | None = None,
    *,
    layer: int,
    neurons: Sequence[int] | None = None,
    position: int = -1,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> NeuronEffectResult:
    """The activations of a layer's neurons on a prompt, and what each adds directly to the logit of one next token.

    Also called direct logit attribution (DLA) of neurons.

    Neuron i adds its sub-update ``m_i v_i`` to the residual stream. Its direct effect on the logit is ``m_i v_i · u``,
    with the final norm's scale held at the prompt's value and later layers ignored. The effects of all neurons and of
    the MLP's bias add up to that of the whole MLP output. For a mixture of depths, the logit is that of the last route
    alone, which can differ from the model's.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        target: text or id of one token; default: the model's most likely next token.
        layer: of the model, counted from 0 or negative from the end.
        neurons: numbers of neurons in the layer, negative ones from the end; default: all.
        position: the position before the target, counted from 0 without a BOS, or from the end.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called before and after the model runs; raises to cancel.

    Raises:
        ValueError: a bad prompt, position, target, layer or neuron, or a model whose neurons do not add up to its MLP
            output.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 2.2.2 and
    appendix D.2.

    Example:
        >>> result = neuron_effects(model, "The Eiffel Tower is in the city of", " Paris", layer=5)
        >>> [(neuron, round(effect, 1)) for neuron, effect in result.strongest(2)]
        [(53, 1.4), (79, 0.7)]
    """
    model.capabilities.require("residual_stream", "neuron_effects")
    model.capabilities.require("mlp_neurons", "neuron_effects", "use ablate_modules(kinds=('mlp',))", using="mlp")
    model.capabilities.require("additive_stream", "neuron_effects", "use ablate_neurons")
    layer, chosen = layer_index(model, layer), neuron_indices(model, neurons)
    values, run = value_vectors(model, layer), RunOptions(check=check)
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    position = tokens.position(position)
    at = tokens.offset + position
    token = None if target is None else single_token(model, target)
    hooks = (
        f"blocks.{layer}.mlp.hook_post",
        f"blocks.{layer}.hook_mlp_out",
        f"blocks.{model.n_layers - 1}.hook_resid_post",
    )
    run.stop_if_cancelled()
    forward = model.run(tokens.fed_ids(), capture=hooks)
    run.stop_if_cancelled()
    post, out, stream = (wide(forward.activations[hook][0]) for hook in hooks)
    token = likeliest(forward.logits[0, at]) if token is None else token
    active, written = post[at], out[at]
    bias = wide(model.weight("b_out", layer))
    gain = _gain(model, layer, active @ values + bias, written, values)
    lens = PartLens.of(model, stream[at : at + 1])
    direction = lens.directions(token)[0]
    per_unit = (values * gain) @ direction
    check_finite(per_unit, lambda neuron: f"the effect of neuron {neuron} of layer {layer}")
    rows = torch.tensor(chosen, device=values.device)
    options = {"layer": layer, "position": position, "neurons": len(chosen), "bos": tokens.offset == 1}
    return NeuronEffectResult(
        layer=layer,
        neurons=chosen,
        tokens=tokens.tokens(),
        ids=tokens.shown_ids,
        activation=to_numpy(post[tokens.offset :, rows]),
        position=position,
        target=token,
        target_token=model.token_strings([token])[0],
        effect=to_numpy((active * per_unit)[rows]),
        size=to_numpy((active.abs() * (values * gain).norm(dim=-1))[rows]),
        bias_effect=float((bias * gain) @ direction),
        mlp_effect=float(written @ direction),
        logit=float(stream[at] @ direction + lens.constant(token)),
        bos_id=tokens.bos_id,
        provenance=provenance(model.provenance(), **options),
    )


def _gain(model: Model, layer: int, raw: Tensor, written: Tensor, values: Tensor) -> Tensor:
    """(d_model,) or () factor of the MLP's output before it enters the stream: 1, unless it is normalised.

    The scale of a norm is one number per token, computed from the norm's input and output.
    """
    gain = raw.new_ones(())
    if norms_output(model, layer):
        weight = wide(model.weight("ln2_post_w", layer))
        gain = weight * ((raw * weight) @ written) / ((raw * weight) @ (raw * weight))
    check_finite(torch.stack([raw, written]), f"the MLP output of layer {layer}")
    error = float((raw * gain - written).norm() / written.norm().clamp_min(1e-30))
    limit = TOLERANCE.get(model.precision, HALF_TOLERANCE)
    if not error <= limit:
        raise ValueError(
            f"the neurons of layer {layer} do not add up to its MLP output: relative error {error:.1e}, allowed "
            f"{limit:.0e}; this needs MLPs with one output matrix, and no hooks that change them"
        )
    return gain


def value_vectors(model: Model, layer: int) -> Tensor:
    """(d_mlp, d_model) the value vectors of a layer's neurons, in float32 or wider."""
    return wide(model.weight("W_out", layer))


def norms_output(model: Model, layer: int) -> bool:
    """Whether the MLP's output is normalised before it enters the residual stream, as in Gemma 2."""
    try:
        model.weight("ln2_post_w", layer)
    except PartReplacedError:
        raise
    except ValueError:  # there is none
        return False
    return True
