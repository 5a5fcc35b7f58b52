"""`response_probabilities`: the probability and rank of each response token, and the likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import torch

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_finite, check_top
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes, unembedding_flops
from interp_widgets.analysis._core.prompts import read_prompt_and_response
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tensors import as_array, wide
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.engine import decode, encode
from interp_widgets.models.top_k import ranked

if TYPE_CHECKING:
    import pandas as pd

_LOGITS = 2**22
"""Logits in memory at once."""


@record
class ResponseProbabilities(Result):
    """The result of `response_probabilities`.

    Example:
        >>> read = response_probabilities(model, "The Eiffel Tower is in the city of", " Rome")
        >>> int(read.rank[0]), read.top_tokens[0][0]
        (13, ' Paris')
    """

    prompt_tokens: Sequence[str] = with_axes("prompt")
    """Readable tokens of the prompt, without a BOS."""

    prompt_ids: Sequence[int] = with_axes("prompt")
    """Their ids."""

    prompt_special: Sequence[bool] = with_axes("prompt")
    """Whether each is a special token."""

    response_tokens: Sequence[str] = with_axes("response")
    """Readable tokens of the response."""

    response_ids: Sequence[int] = with_axes("response")
    """Their ids."""

    probability: Floats = with_axes("response", nan=False)
    """(response,) probability of each response token given all tokens before it."""

    rank: Ints = with_axes("response")
    """(response,) how many tokens of the vocabulary are likelier; 0: it is the likeliest."""

    top_tokens: Sequence[Sequence[str]] = with_axes("response", "top")
    """The likeliest tokens at the position of each response token, best first."""

    top_probability: Floats = with_axes("response", "top", nan=False)
    """(response, top) their probabilities."""

    bos_id: int | None = field(default=None, kw_only=True)
    """Id of the beginning-of-sequence token fed before the prompt; None when there was none."""

    def to_frame(self) -> pd.DataFrame:
        """One row per response token."""
        import pandas as pd

        return pd.DataFrame(
            {
                "position": range(len(self.response_tokens)),
                "token": list(self.response_tokens),
                "probability": self.probability,
                "rank": self.rank,
                "likeliest": [tokens[0] for tokens in self.top_tokens],
                "likeliest_probability": self.top_probability[:, 0],
            }
        )


@checked
@torch.no_grad()
def response_probabilities(
    model: Model,
    prompt: str | Sequence[int],
    response: str | Sequence[int] | None = None,
    *,
    top: int = 5,
    max_new_tokens: int = 40,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> ResponseProbabilities:
    """The probability of each token of a response given the prompt and the response before it, from one pass.

    Args:
        model: what `load_model` returns.
        prompt: text, or token ids (to which nothing is added).
        response: text or ids; None lets the model write one.
        top: number of likeliest tokens listed per position.
        max_new_tokens: most tokens of a response that the model writes.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called now and then; raises to cancel.

    Raises:
        ValueError: an empty prompt or response, one that does not fit, or probabilities that are not finite.

    Example:
        >>> read = response_probabilities(model, "The Eiffel Tower is in the city of", " Paris")
        >>> read.response_tokens, read.rank.tolist(), round(float(read.probability[0]), 2)
        ((' Paris',), [0], 1.0)
    """
    check_top(top, model)
    tokens, response_ids = read_prompt_and_response(
        model, prompt, response, max_new_tokens=max_new_tokens, prepend_bos=prepend_bos, check=check
    )
    embeddings = model.token_embeddings([*tokens.ids, *response_ids[:-1]])[None]
    hidden = encode(model, embeddings, positions=slice(len(tokens.ids) - 1, None))[0]
    target_ids = torch.tensor(response_ids, device=model.device)
    blocks = []
    size = max(1, _LOGITS // model.d_vocab)
    for start in range(0, len(response_ids), size):
        if check is not None:
            check()
        logits = wide(decode(model, hidden[start : start + size]))
        target_logits = logits.gather(-1, target_ids[start : start + size, None])
        total = logits.logsumexp(-1, keepdim=True)
        best, best_tokens = ranked(logits, top)
        probabilities = (target_logits - total).exp()[:, 0]
        ranks = (logits > target_logits).sum(-1)
        blocks.append((probabilities, ranks, best_tokens, (best - total).exp()))
    probability, rank, best_ids, best_probability = (torch.cat(block) for block in zip(*blocks, strict=True))
    result = ResponseProbabilities(
        prompt_tokens=tokens.tokens(),
        prompt_ids=tokens.shown_ids,
        prompt_special=tokens.special(),
        response_tokens=model.token_strings(response_ids),
        response_ids=response_ids,
        probability=as_array(probability),
        rank=as_array(rank),
        top_tokens=[model.single_token_strings(ids) for ids in best_ids.tolist()],
        top_probability=as_array(best_probability),
        bos_id=tokens.bos_id,
        provenance=provenance(model.provenance(), bos=tokens.offset == 1, top=top),
    )
    check_finite(
        result.probability, lambda m: f"the model's probability of response token {m} ({result.response_tokens[m]!r})"
    )
    return result


def response_cost(model: Model, n_prompt: int, n_response: int) -> Cost:
    """Operations and peak bytes of `response_probabilities` for so many prompt and response tokens."""
    length = max(1, n_prompt + n_response - 1)
    flops = pass_flops(model, length, length) + n_response * unembedding_flops(model)
    return Cost(flops, row_bytes(model, length, length) + 16.0 * max(_LOGITS, model.d_vocab))
