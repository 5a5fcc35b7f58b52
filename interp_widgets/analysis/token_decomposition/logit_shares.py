"""`decompose_logit`: the contribution of every token of a prompt to one logit, by a single backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis.token_decomposition.decomposition import check_error, check_model, check_stream
from interp_widgets.analysis.token_decomposition.decomposition_result import LogitShareResult
from interp_widgets.analysis.token_decomposition.part_lens import PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine.linearised import ActivationSlope, linearise
from interp_widgets.models.stopping import stopping
from interp_widgets.models.top_k import likeliest


@checked
@torch.no_grad()
def decompose_logit(
    model: Model,
    prompt: PromptInput,
    target: str | int | None = None,
    *,
    position: int = -1,
    foil: str | int | None = None,
    slope: ActivationSlope = "secant",
    tolerance: float | None = None,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> LogitShareResult:
    """The contribution of each token of the prompt to one logit of the next token, or to the difference of two.

    Also called direct logit attribution (DLA) by token; with ``foil``, of a logit difference.

    The model is linearised as in `decompose_tokens`, with the final norm's scale held fixed too, so that a logit is
    linear in the first residual stream: a token's share is the gradient times its embedding. This takes one backward
    pass instead of a forward pass per token; a share equals the projection of the last layer's part on the target's
    unembedding direction. With a logit soft cap (Gemma 2), it is the logit before the cap. For a mixture of depths, it
    is the logit of the last route alone, which can differ from the model's.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        target: text or id of one token; default: the one with the largest logit.
        position: the position before the target, counted from 0 without a BOS, or from the end.
        foil: a token whose logit is subtracted.
        slope: ``"secant"`` is the method; ``"step"`` is a control, which does not add up.
        tolerance: largest error relative to the sum of absolute shares; defaults as in `decompose_tokens`.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called between layers; raises to cancel.

    Raises:
        ValueError: a bad prompt, position, target or foil, or a model whose shares do not add up to its logit.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Eqs 4.1 to 4.3, followed backwards.

    Example:
        >>> result = decompose_logit(model, "The Eiffel Tower is located in the city of", " Paris")
        >>> result.tokens[result.share.argmax()]
        ' Eiffel'
    """
    check_model(model, "decompose_logit")
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    last = tokens.offset + tokens.position(position)
    token = None if target is None else single_token(model, target)
    foil_id = None if foil is None else single_token(model, foil, what="foil")
    linearised = linearise(model, tokens.ids, last, slope=slope)
    check_stream(model, linearised)
    lens = PartLens.of(model, linearised.residual)
    logits = uncapped(model, lens.logits(linearised.residual[-1], -1, "own"))
    token = likeliest(logits) if token is None else token
    if token == foil_id:
        raise ValueError(f"target and foil must differ, both are {token}: give another foil, or none")
    logit = float(logits[token] - (0 if foil_id is None else logits[foil_id]))
    direction, bias = lens.directions(token)[-1], lens.constant(token)
    if foil_id is not None:
        direction, bias = direction - lens.directions(foil_id)[-1], bias - lens.constant(foil_id)
    with stopping(check):
        gradient, inside = linearised.gradient(direction)
    share = (gradient.cpu().double() * linearised.start.cpu().double()).sum(-1)
    bias += inside
    error = float((share.sum() + bias - logit).abs() / (share.abs().sum() + abs(bias)))
    check_error(model, f"the shares of {model.name} do not add up to its logit", error, slope, tolerance)
    shares = torch.cat([share[tokens.offset :], share.new_zeros(len(tokens.ids) - 1 - last)])
    bos = float(share[0]) if tokens.offset else None
    options = {"position": last - tokens.offset, "slope": slope, "bos": tokens.offset == 1}
    return LogitShareResult(
        share=to_numpy(shares),
        bias=bias + (bos or 0.0),
        logit=logit,
        error=error,
        **tokens.fields(),
        position=last - tokens.offset,
        target=token,
        target_token=model.token_strings([token])[0],
        foil=foil_id,
        foil_token="" if foil_id is None else model.token_strings([foil_id])[0],
        bos=bos,
        sink=tokens.first_is_sink,
        provenance=provenance(model.provenance(), **options),
    )


def uncapped(model: Model, logits: Tensor) -> Tensor:
    """The logits before a soft cap, cap · tanh(logit / cap), in float64 on the CPU."""
    cap, exact = model.capabilities.soft_cap, logits.cpu().double()
    return cap * torch.atanh(exact / cap) if cap > 0 else exact
