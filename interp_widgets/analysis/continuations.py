"""Log-probabilities of the tokens of many continuations, each given its context, in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes, unembedding_flops
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import as_array, wide
from interp_widgets.models import Model
from interp_widgets.models.engine import decode, encode, pads

_LOGITS = 2**23
"""Logits held at once."""


@dataclass(frozen=True)
class Continuation:
    """Tokens to score behind a context of one token or more; contexts begin with a BOS where the model reads one."""

    context: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Scored:
    """What a model says of one continuation."""

    log_probability: NDArray[np.float64]
    """(tokens,) natural log of the probability of each token, all before it given."""
    greedy: bool
    """Whether each token is the likeliest in its place."""


def beginning_of_text(model: Model) -> int:
    """The token that a first token is scored behind; ValueError for a tokenizer without one."""
    if model.bos_token_id is None:
        raise ValueError(
            f"the tokenizer of {model.name} has no beginning-of-text token to score a first token from: "
            "set its bos_token before loading the model"
        )
    return int(model.bos_token_id)


@torch.no_grad()
def score_continuations(
    model: Model, continuations: Sequence[Continuation], run: RunOptions | None = None
) -> list[Scored]:
    """The log-probability of every token of every continuation.

    Sequences of similar lengths run as one batch, padded behind their end, where a causal model cannot see it; while
    you have hooks on the model, or where its positions are scaled by the length of a pass, only sequences of one length
    run together. Logits are made for the scored positions alone.

    Raises:
        ValueError: an empty context or continuation, one that does not fit the model's context, or log-probabilities
            that are not finite.
        MemoryError: one sequence alone does not fit.
    """
    run = RunOptions() if run is None else run
    rows = [_fed(model, number, one) for number, one in enumerate(continuations)]
    scored: dict[int, Scored] = {}
    runner = Runner(model, max(map(len, rows), default=1), run.batch_size, run.check, run.progress, total=len(rows))
    for order in _batches(model, rows):

        def tokens(start: int, order: Sequence[int] = order) -> int:
            return len(rows[order[start]])

        def work(start: int, stop: int, order: Sequence[int] = order) -> None:
            chosen = order[start:stop]
            width = len(rows[chosen[0]])
            batch = [[*rows[i], *rows[i][-1:] * (width - len(rows[i]))] for i in chosen]
            hidden = encode(model, model.embed(torch.tensor(batch, device=model.device)))
            for i, one in zip(chosen, _scores(model, hidden, [continuations[i] for i in chosen]), strict=True):
                scored[i] = one

        runner.run(len(order), tokens, work)
    for i, one in sorted(scored.items()):
        if not np.isfinite(one.log_probability).all():
            raise ValueError(
                f"the log-probabilities of continuation {i} are not finite: the model's logits hold NaN or infinity; "
                "load it in float32"
            )
    return [scored[i] for i in range(len(rows))]


def _fed(model: Model, number: int, one: Continuation) -> tuple[int, ...]:
    """The tokens that the model reads: all but the last one scored."""
    if not one.context or not one.ids:
        raise ValueError(f"continuation {number} needs at least one token of context and one to score")
    row = (*one.context, *one.ids[:-1])
    if len(row) > model.n_ctx:
        begins = "".join(model.token_strings(one.ids[:8]))
        raise ValueError(
            f"{len(row)} tokens do not fit the model's context of {model.n_ctx} tokens: shorten the text that goes on "
            f"with {begins!r}, or what stands before it"
        )
    return row


def _batches(model: Model, rows: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Orders of rows that may share batches, the longest first."""
    longest_first = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), rows[i]))
    if pads(model):
        return [longest_first]
    by_length: dict[int, list[int]] = defaultdict(list)
    for i in longest_first:
        by_length[len(rows[i])].append(i)
    return list(by_length.values())


def _scores(model: Model, hidden: Tensor, continuations: Sequence[Continuation]) -> list[Scored]:
    """What hidden states (rows, tokens, width) say of the rows' continuations."""
    device = hidden.device
    where = [(row, len(one.context) - 1 + k) for row, one in enumerate(continuations) for k in range(len(one.ids))]
    at = torch.tensor(where, device=device)
    own = torch.tensor([token for one in continuations for token in one.ids], device=device)
    states = hidden[at[:, 0], at[:, 1]]
    size = max(1, _LOGITS // model.d_vocab)
    values, greedy = [], []
    for part, ids in zip(torch.split(states, size), torch.split(own, size), strict=True):
        logits = wide(decode(model, part))
        ours = logits.gather(-1, ids[:, None])[:, 0]
        values.append(ours - logits.logsumexp(-1))
        greedy.append(ours >= logits.amax(-1))
    log_probability = as_array(torch.cat(values)).astype(np.float64)
    likeliest = as_array(torch.cat(greedy))
    ends = np.cumsum([len(one.ids) for one in continuations])[:-1]
    parts = zip(np.split(log_probability, ends), np.split(likeliest, ends), strict=True)
    return [Scored(numbers, bool(best.all())) for numbers, best in parts]


def continuations_cost(model: Model, lengths: Sequence[tuple[int, int]]) -> Cost:
    """Operations and peak bytes of `score_continuations` for (context, continuation) lengths."""
    rows = [context + scored - 1 for context, scored in lengths]
    longest, total = max(rows, default=1), float(sum(rows))
    mean = sum(n * n for n in rows) / max(total, 1.0)
    scored = float(sum(length for _, length in lengths))
    batch = min(len(rows), max(1, 1024 // longest))
    flops = pass_flops(model, total, mean) + scored * unembedding_flops(model)
    return Cost(flops, batch * row_bytes(model, longest, longest) + 12.0 * max(_LOGITS, model.d_vocab))
