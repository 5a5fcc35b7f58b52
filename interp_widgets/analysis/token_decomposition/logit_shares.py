"""`decompose_logit`: the contribution of every token of a prompt to one logit, by a single backward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.chunks import ChunkLog, run_chunks
from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.statistics import largest_p
from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis.token_decomposition.decomposition import (
    check_error,
    check_model,
    check_stream,
    sources_at_once,
)
from interp_widgets.analysis.token_decomposition.decomposition_result import LogitShareResult
from interp_widgets.analysis.token_decomposition.part_lens import PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine.linearised import ActivationSlope, LinearisedPass, linearise
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
    draws: int = 0,
    seed: int = 0,
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

    Every token has some share of every logit. With ``draws``, `LogitShareResult.p` says which tokens add more to this
    one (or to this difference) than to those of random other tokens, by the test of `direct_logit_attribution`. It
    takes the parts of all tokens, a forward pass each, as `decompose_tokens` does.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        target: text or id of one token; default: the one with the largest logit.
        position: the position before the target, counted from 0 without a BOS, or from the end.
        foil: a token whose logit is subtracted.
        slope: ``"secant"`` is the method; ``"step"`` is a control, which does not add up.
        tolerance: largest error relative to the sum of absolute shares; defaults as in `decompose_tokens`.
        draws: random other tokens (with a foil pairs of them) that each token's share is compared with, all others
            where a vocabulary has no more; 0 for no test, and 19 are the fewest with which a p can be 0.05.
        seed: of these draws.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called between layers; raises to cancel.

    Raises:
        ValueError: a bad prompt, position, target or foil, or a model whose shares do not add up to its logit.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Eqs 4.1 to 4.3, followed backwards. Resampling-based multiple testing (Westfall & Young 1993), for p.

    Example:
        >>> result = decompose_logit(model, "The Eiffel Tower is located in the city of", " Paris", draws=199)
        >>> result.tokens[result.share.argmax()], bool(result.p[1] <= 0.05)
        (' Eiffel', True)
    """
    check_model(model, "decompose_logit")
    check_range("draws", draws, 0)
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
    p: Tensor | None = None
    if draws:
        parts, log = _parts_at_the_end(model, linearised, check)
        directions = lens.drawn_directions(token, foil_id, draws, np.random.default_rng(seed))
        sizes = to_numpy(directions @ parts[tokens.offset :].cpu().double().T)
        p = torch.from_numpy(largest_p(sizes[0], sizes[1:]))
        p = torch.cat([p, p.new_ones(len(shares) - len(p))])
        options |= {"draws": draws, "seed": seed, **log.facts()}
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
        p=None if p is None else to_numpy(p),
        provenance=provenance(model.provenance(), **options),
    )


def _parts_at_the_end(
    model: Model, linearised: LinearisedPass, check: Callable[[], None] | None
) -> tuple[Tensor, ChunkLog]:
    """(n, d_model) the part of every token in the stream before the final norm, and how it was computed."""
    parts, log = torch.empty_like(linearised.start), ChunkLog()
    n = len(parts)

    def work(start: int, stop: int) -> None:
        parts[start:stop] = linearised.parts(start, stop)[-1]

    run_chunks(n, lambda begin: sources_at_once(model, n, begin), work, what=f"token of {n}", log=log, check=check)
    return parts, log


def uncapped(model: Model, logits: Tensor) -> Tensor:
    """The logits before a soft cap, cap · tanh(logit / cap), in float64 on the CPU."""
    cap, exact = model.capabilities.soft_cap, logits.cpu().double()
    return cap * torch.atanh(exact / cap) if cap > 0 else exact
