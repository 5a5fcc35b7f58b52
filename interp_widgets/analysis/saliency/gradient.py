"""Gradients of every response token's target along directions of the prompt's token embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from interp_widgets.analysis.runner import Runner
from interp_widgets.analysis.saliency.case import Case
from interp_widgets.analysis.targets import seeds
from interp_widgets.analysis.tensors import wide
from interp_widgets.models.engine import Jacobian, NoForwardMode, jacobian_at


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
    _, gradient = seeds(case.model, derivative.hidden, case.aim)
    arguments = (case, runner, derivative, gradient, directions, importance, weight, fresh)
    if prefers_forward(case.n_prompt, case.n_response):
        done = runner.done
        try:
            return _forward(*arguments)
        except NoForwardMode:
            runner.done = done
    _reverse(*arguments)


def _forward(
    case: Case,
    runner: Runner,
    derivative: Jacobian,
    gradient: Tensor,
    directions: Tensor,
    importance: Tensor,
    weight: float,
    fresh: bool,
) -> None:
    """One change per prompt token, through all response tokens at once."""
    rows, columns = case.rows(), wide(gradient)

    def work(start: int, stop: int) -> None:
        change = derivative.jvp(directions[start:stop], rows[start:stop])
        product = torch.einsum("kmd,md->km", wide(change), columns).mul_(weight)
        importance[start:stop] = product if fresh else importance[start:stop] + product

    runner.run(case.n_prompt, lambda start: case.n_fed - case.offset - start, work)


def _reverse(
    case: Case,
    runner: Runner,
    derivative: Jacobian,
    gradient: Tensor,
    directions: Tensor,
    importance: Tensor,
    weight: float,
    fresh: bool,
) -> None:
    """One gradient per response token, back to all prompt tokens at once; later positions are left out."""
    rows, wanted = wide(directions), case.rows()

    def work(start: int, stop: int) -> None:
        at = torch.arange(case.first + start, case.first + stop, device=gradient.device)
        found = derivative.vjp(gradient[start:stop], at)[:, wanted]
        product = torch.einsum("knd,nd->nk", wide(found), rows).mul_(weight)
        importance[:, start:stop] = product if fresh else importance[:, start:stop] + product

    runner.run(case.n_response, lambda start: len(case.prompt_ids) + start, work)
