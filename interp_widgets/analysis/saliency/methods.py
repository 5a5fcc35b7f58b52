"""Attribution methods: exact occlusion, gradient times embedding, integrated gradients."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from einops import einsum
from torch import Tensor

from interp_widgets.analysis._core.chunks import Runner, run_chunks
from interp_widgets.analysis._core.targets import read, target_gradients
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.saliency.case import Case
from interp_widgets.analysis.saliency.spans import Spans
from interp_widgets.models import Model
from interp_widgets.models.engine import NoForwardMode, encode, jacobian_at, mean_embedding

Baseline = Literal["zero", "mean", "resample"]
"""Replacement of a token's embedding: zeros, the mean of all token embeddings, or those of random tokens."""


FirstToken = Literal["mean", "baseline"]
"""Replacement of a first token that carries the attention sink: the mean of all token embeddings, or as the others."""


def default_baseline(model: Model, method: str) -> Baseline:
    """``zero``, as in the paper; ``mean`` for integrated gradients of models with RMSNorm, which is discontinuous at
    zero, so that the rule does not converge there."""
    return "mean" if method == "integrated_gradients" and model.normalization == "RMSNorm" else "zero"


@torch.no_grad()
def replacements(case: Case, baseline: Baseline, draws: int, seed: int, first_token: FirstToken) -> Tensor:
    """(draws, prompt, d_model) replacements of the embeddings of shown tokens; one draw, except for ``resample``.

    ``mean`` is the mean of all rows of the embedding matrix. ``resample`` draws a token for every position, uniformly
    from the vocabulary without special tokens. A first token that carries the attention sink is replaced by the mean,
    which leaves the sink in place, unless ``first_token`` is ``baseline``.
    """
    replaced = _replacements(case, baseline, draws, seed)
    if first_token == "mean" and baseline != "mean" and case.prompt.first_is_sink:
        replaced = replaced.clone()
        replaced[:, 0] = mean_embedding(case.model)
    return replaced


def _replacements(case: Case, baseline: Baseline, draws: int, seed: int) -> Tensor:
    model, shown = case.model, case.embeddings[:, case.rows]
    match baseline:
        case "zero":
            return torch.zeros_like(shown)
        case "mean":
            return mean_embedding(model).expand_as(shown)
    known = model.d_vocab if model.tokenizer is None else min(model.d_vocab, len(model.tokenizer))
    ordinary = np.flatnonzero(~np.array(model.is_special(range(known)), dtype=bool))
    ids = np.random.default_rng(seed).choice(ordinary, (draws, case.n_prompt))
    return model.embed(torch.from_numpy(ids).to(model.device))


@torch.no_grad()
def occlusion(case: Case, runner: Runner, effects: Tensor, replaced: Tensor, spans: Spans) -> None:
    """Fill ``effects`` (spans, draws, response) with f_m(all) - f_m(embeddings of all tokens of a span replaced).

    ``replaced`` (draws, prompt, d_model) is from `replacements`. Replaced tokens keep their positions and position
    embeddings. Keys and values of the tokens before a span do not change and are computed once: spans are sorted by
    their starts, and a chunk starts at its first span. The last spans, which cost least, come first. Only the positions
    that predict the response are unembedded.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1, Eq. 1, and appendix A.
    """
    model, embeddings = case.model, case.embeddings
    draws, rows = len(replaced), effects.flatten(0, 1)  # the draws of one span are adjacent
    ends = torch.tensor(spans, device=embeddings.device)
    tokens = torch.arange(case.n_prompt, device=embeddings.device)
    count = runner.total = len(rows)
    full = read(model, case.hidden, case.targets)[0]

    def first_token(row: int) -> int:
        return spans[row // draws][0]

    def read_from(row: int) -> int:
        """Tokens that a run for a row reads."""
        return case.n_fed - case.prompt.offset - first_token(row)

    def longest(done: int) -> int:
        """Tokens of the longest run of the chunk after ``done`` rows."""
        row = count - done - 1
        while row > 0 and runner.size(read_from(row - 1)) > count - done - row:
            row -= 1
        return read_from(row)

    def work(done: int, stop: int) -> None:
        first = first_token(count - stop)
        begin = case.prompt.offset + first
        numbers = torch.arange(count - stop, count - done, device=embeddings.device)
        span, draw = ends[numbers // draws], numbers % draws
        inside = (tokens[first:] >= span[:, :1]) & (tokens[first:] < span[:, 1:])
        batch = embeddings[:, begin:].repeat(stop - done, 1, 1)
        prompt = batch[:, : case.n_prompt - first]
        prompt.copy_(torch.where(inside[..., None], replaced[draw, first:], prompt))
        hidden = encode(model, batch, positions=slice(case.first - begin, None), prefix=case.prefix.first(begin))
        rows[count - stop : count - done] = full - read(model, hidden, case.targets)

    runner.run(count, longest, work)


def prefers_forward(n_prompt: int, n_response: int) -> bool:
    """Whether forward mode takes fewer products than reverse mode.

    Forward mode sends one tangent per prompt token through the positions after it, reverse mode one gradient per
    response token through those before it: N(M + N/2) against M(N + M/2) positions: forward mode is cheaper if N < M.
    """
    return n_prompt < n_response


def first_order(case: Case, runner: Runner, importance: Tensor) -> None:
    """Fill ``importance`` (prompt, response) with the gradient times the embedding of every prompt token.

    I[n, m] = ∂f_m/∂E[x_n] · E[x_n], which equals `occlusion` for a linear model.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1 and appendix A.
    """
    runner.total = min(case.n_prompt, case.n_response)
    directions = case.embeddings[0, case.rows]
    add_products(case, runner, case.embeddings, directions, importance, 1.0, fresh=True)


def add_products(
    case: Case,
    runner: Runner,
    points: Tensor,
    directions: Tensor,
    importance: Tensor,
    weight: float,
    *,
    fresh: bool = False,
) -> None:
    """Add weight · Σ ∂f_m/∂E[n] · directions[n] over the derivatives at ``points`` (points, fed, d_model).

    ``directions`` (prompt, d_model) belong to the shown prompt tokens. With ``fresh`` the matrix is overwritten, and
    entries not computed stay NaN.
    """
    if fresh:
        importance.fill_(torch.nan)
    count = len(points)
    derivative = jacobian_at(case.model, points, case.first)
    _, gradient = target_gradients(case.model, derivative.hidden.flatten(0, 1), case.targets.repeated(count))
    gradient = gradient.view(count, -1, gradient.shape[-1])
    wide_gradient, wide_directions = wide(gradient), wide(directions)

    def add(part: Tensor, product: Tensor) -> None:
        part.copy_(product.mul_(weight) if fresh else part + product.mul_(weight))

    def forward(start: int, stop: int) -> None:
        """One tangent per prompt token, for all response tokens at once."""
        tangents = directions[start:stop].expand(count, -1, -1)
        changes = wide(derivative.jvp(tangents, case.shown[start:stop]))
        add(importance[start:stop], einsum(changes, wide_gradient, "p prompt resp d, p resp d -> prompt resp"))

    def reverse(start: int, stop: int) -> None:
        """One gradient per response token, for all prompt tokens at once; later positions are left out."""
        gradients = derivative.vjp(gradient[:, start:stop], range(case.first + start, case.first + stop))
        at_prompt = wide(gradients[:, :, case.rows])
        add(importance[:, start:stop], einsum(at_prompt, wide_directions, "p resp prompt d, prompt d -> prompt resp"))

    if prefers_forward(case.n_prompt, case.n_response):
        done = runner.done
        try:
            return runner.run(case.n_prompt, lambda start: count * (case.n_fed - case.shown[start]), forward)
        except NoForwardMode:
            runner.done = done
    runner.run(case.n_response, lambda start: count * (len(case.prompt.ids) + start), reverse)


def integrated_gradients(case: Case, runner: Runner, effects: Tensor, replaced: Tensor, *, steps: int) -> Tensor:
    """Fill ``effects`` (prompt, draws, response), and return the completeness gap (response,), its mean over the draws.

    ``replaced`` (draws, prompt, d_model) is from `replacements`: each draw is one baseline for the whole prompt.
    """
    runner.total = len(replaced) * steps * min(case.n_prompt, case.n_response)
    gaps = [_integrated(case, runner, effects[:, draw], baseline, steps) for draw, baseline in enumerate(replaced)]
    return torch.stack(gaps).mean(0)


def _integrated(case: Case, runner: Runner, importance: Tensor, baseline: Tensor, steps: int) -> Tensor:
    """Fill ``importance`` (prompt, response) for a baseline (prompt, d_model), and return the gap (response,).

    I[n, m] = (E[n] - B) · mean over the midpoints α = (s + ½)/steps of ∂f_m/∂E[n] at B + α(E - B), for all shown prompt
    tokens together. The gap is Σ_n I[n, m] - (f_m(E) - f_m(B)): 0 for enough steps.

    Source: Axiomatic Attribution for Deep Networks (Sundararajan et al. 2017), section 3; the midpoint rule is ours.
    """
    model, shown = case.model, case.rows
    start = case.embeddings.clone()
    start[:, shown] = baseline
    difference = case.embeddings - start
    importance.fill_(0.0)
    shares = (torch.arange(steps, dtype=wide(start).dtype, device=start.device) + 0.5) / steps

    def at_points(first: int, stop: int) -> None:
        """Add some points' part of the mean, once all of it is computed."""
        done, part = runner.done, torch.zeros_like(importance)
        points = start + (shares[first:stop, None, None] * wide(difference)).to(start.dtype)
        try:
            add_products(case, runner, points, difference[0, shown], part, 1.0 / steps)
        except (RuntimeError, MemoryError):
            runner.done, runner.log.limit = done, None
            raise
        importance.add_(part)

    at_once = points_at_once(runner, case.n_prompt, case.n_response)
    run_chunks(steps, at_once, at_points, what=f"sequence of {case.n_fed} tokens")
    with torch.no_grad():
        endpoints = torch.cat([case.embeddings, start])
        targets = read(model, encode(model, endpoints, positions=slice(case.first, None)), case.targets)
    return importance.sum(0) - (targets[0] - targets[1]).to(importance.dtype)


def points_at_once(runner: Runner, n_prompt: int, n_response: int) -> int:
    """Number of points that integrated gradients differentiates together, so that their rows make one chunk."""
    rows = min(n_prompt, n_response)
    if runner.batch_size is not None:
        return max(1, runner.batch_size // rows)
    longest = runner.length if prefers_forward(n_prompt, n_response) else n_prompt + n_response
    return runner.size(rows * (longest - rows // 2), kept=kept_bytes(runner.model, runner.length))


def kept_bytes(model: Model, tokens: int) -> float:
    """Bytes of activations kept for the derivative at one sequence, in float32 or wider."""
    widths = 2 * model.d_model + 2 * model.d_mlp + 4 * model.n_heads * model.d_head
    return float(tokens * model.n_layers * widths * max(model.dtype.itemsize, 4))
