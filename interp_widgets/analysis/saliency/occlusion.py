"""Exact occlusion: how much of the target goes when one prompt token's embedding is set to zero."""

from __future__ import annotations

import torch
from torch import Tensor

from interp_widgets.analysis.runner import Runner
from interp_widgets.analysis.saliency.case import Case
from interp_widgets.analysis.targets import read
from interp_widgets.models.engine import encode, prefix


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
    shared = prefix(model, embeddings[:, : len(case.prompt_ids)])

    def work(start: int, stop: int) -> None:
        begin = case.offset + start
        rest = embeddings[:, begin:].repeat(stop - start, 1, 1)
        index = torch.arange(stop - start, device=rest.device)
        rest[index, index] = 0
        hidden = encode(model, rest, positions=slice(case.first - begin, None), prefix=shared.first(begin))
        importance[start:stop] = full - read(model, hidden, case.aim)

    runner.run(case.n_prompt, lambda start: case.n_fed - case.offset - start, work)
