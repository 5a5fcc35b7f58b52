"""How the importance of prompt tokens is computed: exact occlusion, gradient times embedding, integrated gradients."""

from __future__ import annotations

from typing import Literal

import torch
from einops import einsum
from torch import Tensor

from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.targets import read, target_gradients
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.saliency.case import Case
from interp_widgets.models import Model
from interp_widgets.models.engine import NoForwardMode, encode, jacobian_at, mean_embedding, prefix

Baseline = Literal["zero", "mean"]
"""What a token's embedding is replaced by: nothing, or the mean of all token embeddings."""


@torch.no_grad()
def occlusion(case: Case, runner: Runner, importance: Tensor) -> None:
    """Fill ``importance`` (prompt, response) with I[n, m] = f_m(all) - f_m(embedding of token n set to zero).

    The row of zeros stays in the sequence and keeps its position; what the model adds for positions is untouched.
    Tokens before the zeroed one compute what they always do, so that their keys and values are made once and shared:
    tokens are taken in order, and a chunk starts at its first token. Only the positions that predict the response are
    unembedded.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1, Eq. 1, and appendix A.
    """
    model, embeddings = case.model, case.embeddings
    runner.total = case.n_prompt
    full = read(model, case.clean(), case.aim)[0]
    shared = prefix(model, embeddings[:, : len(case.prompt.ids)])

    def work(start: int, stop: int) -> None:
        begin = case.prompt.offset + start
        rest = embeddings[:, begin:].repeat(stop - start, 1, 1)
        index = torch.arange(stop - start, device=rest.device)
        rest[index, index] = 0
        hidden = encode(model, rest, positions=slice(case.first - begin, None), prefix=shared.first(begin))
        importance[start:stop] = full - read(model, hidden, case.aim)

    runner.run(case.n_prompt, lambda start: case.n_fed - case.prompt.offset - start, work)


def prefers_forward(n_prompt: int, n_response: int) -> bool:
    """Whether forward mode takes fewer products than reverse mode.

    Forward mode sends one change per prompt token through the positions after it, reverse mode one gradient per
    response token through those before it: N(M + N/2) against M(N + M/2) positions, so that the shorter side decides.
    """
    return n_prompt < n_response


def first_order(case: Case, runner: Runner, importance: Tensor) -> None:
    """Fill ``importance`` (prompt, response) with the gradient times the embedding of every prompt token.

    I[n, m] = ∂f_m/∂E[x_n] · E[x_n]: what `occlusion` gives for a linear model.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1 and appendix A.
    """
    runner.total = min(case.n_prompt, case.n_response)
    directions = case.embeddings[0, case.rows()]
    add_products(case, runner, case.embeddings, directions, importance, 1.0, fresh=True)


def add_products(
    case: Case,
    runner: Runner,
    embeddings: Tensor,
    directions: Tensor,
    importance: Tensor,
    weight: float,
    *,
    fresh: bool = False,
) -> None:
    """Add weight · ∂f_m/∂E[n] · directions[n], taken at ``embeddings`` (1, fed, d_model), to ``importance``.

    ``directions`` (prompt, d_model) belong to the shown prompt tokens. With ``fresh`` the matrix holds nothing yet, and
    what is not computed stays NaN.
    """
    if fresh:
        importance.fill_(torch.nan)
    derivative = jacobian_at(case.model, embeddings, case.first)
    _, gradient = target_gradients(case.model, derivative.hidden, case.aim)
    rows, wide_gradient, wide_directions = case.rows(), wide(gradient), wide(directions)

    def add(part: Tensor, product: Tensor) -> None:
        part.copy_(product.mul_(weight) if fresh else part + product.mul_(weight))

    def forward(start: int, stop: int) -> None:
        """One change per prompt token, through all response tokens at once."""
        changes = wide(derivative.jvp(directions[start:stop], rows[start:stop]))
        add(importance[start:stop], einsum(changes, wide_gradient, "prompt resp d, resp d -> prompt resp"))

    def reverse(start: int, stop: int) -> None:
        """One gradient per response token, back to all prompt tokens at once; later positions are left out."""
        at = torch.arange(case.first + start, case.first + stop, device=gradient.device)
        gradients = wide(derivative.vjp(gradient[start:stop], at)[:, rows])
        add(importance[:, start:stop], einsum(gradients, wide_directions, "resp prompt d, prompt d -> prompt resp"))

    if prefers_forward(case.n_prompt, case.n_response):
        done = runner.done
        try:
            return runner.run(case.n_prompt, lambda start: case.n_fed - case.prompt.offset - start, forward)
        except NoForwardMode:
            runner.done = done
    runner.run(case.n_response, lambda start: len(case.prompt.ids) + start, reverse)


def default_baseline(model: Model) -> Baseline:
    """``mean`` for models with RMSNorm, which has a jump at zero where the rule does not converge; else ``zero``."""
    return "mean" if model.normalization == "RMSNorm" else "zero"


def integrated_gradients(case: Case, runner: Runner, importance: Tensor, *, steps: int, baseline: Baseline) -> Tensor:
    """Fill ``importance`` (prompt, response), and return the completeness gap (response,).

    I[n, m] = (E[n] - B) · mean over the midpoints α = (s + ½)/steps of ∂f_m/∂E[n] at B + α(E - B), for all shown prompt
    tokens together. The gap is Σ_n I[n, m] - (f_m(E) - f_m(B)): 0 for enough steps.

    Source: Axiomatic Attribution for Deep Networks (Sundararajan et al. 2017), section 3; the midpoint rule is ours.
    """
    model, rows = case.model, case.rows()
    start = case.embeddings.clone()
    start[:, rows] = 0 if baseline == "zero" else mean_embedding(model)
    whole = case.embeddings - start
    forward = prefers_forward(case.n_prompt, case.n_response)
    runner.total = steps * (case.n_prompt if forward else case.n_response)
    importance.fill_(0.0)
    for step in range(steps):
        point = start + (step + 0.5) / steps * whole
        add_products(case, runner, point, whole[0, rows], importance, 1.0 / steps)
    with torch.no_grad():
        both = torch.cat([case.embeddings, start])
        ends = read(model, encode(model, both, positions=slice(case.first, None)), case.aim)
    return importance.sum(0) - (ends[0] - ends[1]).to(importance.dtype)
