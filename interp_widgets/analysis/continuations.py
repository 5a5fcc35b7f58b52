"""Log-probabilities of the tokens of many continuations, each given its context, in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.chunks import BUDGET_SHARE, Runner
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes, unembedding_flops
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import as_array, wide
from interp_widgets.models import Model
from interp_widgets.models.engine import TokenTree, TreeMasks, can_pack, can_pad, decode, encode, pack

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

    Tokens with which several sequences begin are computed once, in a row that these sequences share; short sequences
    share one too. Rows of similar lengths run as one batch, padded behind their end, where a causal model cannot see
    it. Where the model's own modules run every sequence has a row of its own; while you have hooks on the model, or
    where its positions are scaled by the length of a pass, only rows of one length run together. Logits are made for
    the scored positions alone. Progress is told in continuations, the batch size in rows.

    Raises:
        ValueError: an empty context or continuation, one that does not fit the model's context, or log-probabilities
            that are not finite.
        MemoryError: one sequence alone does not fit.
    """
    run = RunOptions() if run is None else run
    rows = [_fed(model, number, one) for number, one in enumerate(continuations)]
    scored: dict[int, Scored] = {}
    trees = _trees(model, rows)
    groups = _groups(model, trees)
    scored_with = np.cumsum([len(tree.paths) for group in groups for tree in group])

    def report(done: int, _: int) -> None:
        run.report(int(scored_with[done - 1]), len(rows))

    runner = Runner(model, max(map(len, trees), default=1), run.batch_size, run.check, report, total=len(trees))
    for group in groups:

        def tokens(start: int, group: Sequence[TokenTree] = group) -> int:
            return len(group[start])

        def work(start: int, stop: int, group: Sequence[TokenTree] = group) -> None:
            chosen = group[start:stop]
            width = len(chosen[0])
            batch = torch.tensor([[*tree.ids, *tree.ids[-1:] * (width - len(tree))] for tree in chosen])
            masks = TreeMasks.of(chosen, model.device) if not all(tree.plain for tree in chosen) else None
            hidden = encode(model, model.embed(batch.to(model.device)), tree=masks)
            scored.update(_scores(model, hidden, chosen, continuations))

        runner.run(len(group), tokens, work)
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


def _trees(model: Model, rows: Sequence[tuple[int, ...]]) -> list[TokenTree]:
    """The rows packed where the model allows it, the longest first."""
    longest = max(map(len, rows), default=1)
    if can_pack(model, longest):
        return pack(rows, model.d_model, _most_tokens(model, longest))
    alike: dict[tuple[int, ...], TokenTree] = defaultdict(TokenTree)
    for number, row in enumerate(rows):
        alike[row].add(number, row, range(len(alike[row])))
    return sorted(alike.values(), key=len, reverse=True)


def _most_tokens(model: Model, longest: int) -> int:
    """Tokens of a row with several sequences: more than the longest sequence only where that fits the memory."""
    free, most = BUDGET_SHARE * model.free_memory(), longest
    while row_bytes(model, 2 * most, 2 * most) <= free:
        most *= 2
    return most


def _groups(model: Model, trees: Sequence[TokenTree]) -> list[list[TokenTree]]:
    """Rows that may share batches, the longest first."""
    groups: dict[int, list[TokenTree]] = defaultdict(list)
    together = can_pad(model)
    for tree in trees:
        groups[0 if together else len(tree)].append(tree)
    return list(groups.values())


def _scores(
    model: Model, hidden: Tensor, trees: Sequence[TokenTree], continuations: Sequence[Continuation]
) -> dict[int, Scored]:
    """What hidden states (trees, tokens, width) say of the trees' continuations, by their numbers."""
    device = hidden.device
    numbers = [number for tree in trees for number in tree.paths]
    wanted = [
        (row, token)
        for row, tree in enumerate(trees)
        for number, path in tree.paths.items()
        for token in path[len(continuations[number].context) - 1 :]
    ]
    places, which = np.unique(np.array(wanted), axis=0, return_inverse=True)  # logits are made once for each place
    order = np.argsort(which, kind="stable")
    ids = np.concatenate([continuations[number].ids for number in numbers])[order]
    at, rows, own = (torch.from_numpy(part).to(device) for part in (places, which[order], ids))
    states = hidden[at[:, 0], at[:, 1]]
    size = max(1, _LOGITS // model.d_vocab)
    starts = np.arange(0, len(places), size)
    values, greedy = [], []
    for start, of_block in zip(
        starts, np.split(np.arange(len(order)), np.searchsorted(which[order], starts[1:])), strict=True
    ):
        block = slice(of_block[0], of_block[-1] + 1)
        logits = wide(decode(model, states[start : start + size]))
        of, token = rows[block] - int(start), own[block]
        chosen = logits[of, token]
        values.append(chosen - logits.logsumexp(-1)[of])
        greedy.append(chosen >= logits.amax(-1)[of])
    back = np.argsort(order)
    log_probability = as_array(torch.cat(values)).astype(np.float64)[back]
    likeliest = as_array(torch.cat(greedy))[back]
    ends = np.cumsum([len(continuations[number].ids) for number in numbers])[:-1]
    parts = zip(np.split(log_probability, ends), np.split(likeliest, ends), strict=True)
    return {number: Scored(each, bool(best.all())) for number, (each, best) in zip(numbers, parts, strict=True)}


def continuations_cost(model: Model, continuations: Sequence[Continuation]) -> Cost:
    """Operations and peak bytes of `score_continuations`."""
    trees = _trees(model, [_fed(model, number, one) for number, one in enumerate(continuations)])
    longest, total = max(map(len, trees), default=1), float(sum(map(len, trees)))
    mean = sum(len(tree) ** 2 for tree in trees) / max(total, 1.0)
    scored = min(total, float(sum(len(one.ids) for one in continuations)))
    batch = min(len(trees), max(1, 1024 // longest))
    flops = pass_flops(model, total, mean) + scored * unembedding_flops(model)
    return Cost(flops, batch * row_bytes(model, longest, longest) + 12.0 * max(_LOGITS, model.d_vocab))
