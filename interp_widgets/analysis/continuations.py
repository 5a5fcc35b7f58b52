"""Log-probabilities of the tokens of many continuations, each given its context, in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
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
from interp_widgets.models.engine import TokenTree, TreeMasks, can_pack, can_pad, decode, encode, expects_native, pack

_MAX_LOGITS = 2**23
"""Logits computed at once."""


@dataclass(frozen=True)
class Continuation:
    """Tokens to score after a context of at least one token; the context includes the BOS if the model uses one."""

    context: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Scored:
    """The scores of one continuation."""

    log_probability: NDArray[np.float64]
    """(tokens,) log-probability of each token given all tokens before it, in nats."""
    greedy: bool
    """Whether greedy decoding would generate the continuation."""


def beginning_of_text(model: Model) -> int:
    """The BOS token id, as context for scoring a first token; ValueError for a tokenizer without one."""
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
    """Compute the log-probability of every token of every continuation; returns one `Scored` each.

    Sequences with a common prefix share a row, in which the prefix is computed once; short sequences are packed into
    one row too. Rows of similar lengths run as one batch with padding at the end, which a causal model cannot see. If
    the model's own modules run, every sequence has its own row; while the user has hooks on the model, or if positions
    are scaled by the length of a pass, only rows of equal length share a batch. Logits are computed for the scored
    positions only. Progress counts continuations; the batch size counts rows.

    Raises:
        ValueError: an empty context or continuation, one that does not fit the model's context, or log-probabilities
            that are not finite.
        MemoryError: a single sequence does not fit.
    """
    run = RunOptions() if run is None else run
    rows = [_model_input(model, number, one) for number, one in enumerate(continuations)]
    scored: dict[int, Scored] = {}
    trees = _token_rows(model, rows)
    groups = _batchable_groups(model, trees)
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
            scored.update(_score_rows(model, hidden, chosen, continuations))

        runner.run(len(group), tokens, work)
    for i, one in sorted(scored.items()):
        if not np.isfinite(one.log_probability).all():
            raise ValueError(
                f"the log-probabilities of continuation {i} are not finite: the model's logits hold NaN or infinity; "
                "load it in float32"
            )
    return [scored[i] for i in range(len(rows))]


def _model_input(model: Model, number: int, one: Continuation) -> tuple[int, ...]:
    """The tokens that the model reads: context and continuation without the last token."""
    if not one.context or not one.ids:
        raise ValueError(f"continuation {number} needs at least one token of context and one to score")
    row = (*one.context, *one.ids[:-1])
    if len(row) > model.n_ctx:
        begins = "".join(model.token_strings(one.ids[:8]))
        raise ValueError(
            f"{len(row)} tokens do not fit the model's context of {model.n_ctx} tokens: shorten the text that "
            f"continues with {begins!r}, or its context"
        )
    return row


def _token_rows(
    model: Model, rows: Sequence[tuple[int, ...]], packs: Callable[[Model, int], bool] = can_pack
) -> list[TokenTree]:
    """The sequences as rows, packed if the model allows it, the longest first."""
    longest = max(map(len, rows), default=1)
    if packs(model, longest):
        return pack(rows, model.d_model, _max_row_tokens(model, longest))
    by_ids: dict[tuple[int, ...], TokenTree] = defaultdict(TokenTree)
    for number, row in enumerate(rows):
        by_ids[row].add(number, row, range(len(by_ids[row])))
    return sorted(by_ids.values(), key=len, reverse=True)


def _max_row_tokens(model: Model, longest: int) -> int:
    """Maximum tokens of a packed row: more than the longest sequence only if that fits in memory."""
    free, most = BUDGET_SHARE * model.free_memory(), longest
    while row_bytes(model, 2 * most, 2 * most) <= free:
        most *= 2
    return most


def _batchable_groups(model: Model, trees: Sequence[TokenTree]) -> list[list[TokenTree]]:
    """Groups of rows that may share a batch, the longest row first."""
    groups: dict[int, list[TokenTree]] = defaultdict(list)
    padded = can_pad(model)
    for tree in trees:
        groups[0 if padded else len(tree)].append(tree)
    return list(groups.values())


def _score_rows(
    model: Model, hidden: Tensor, trees: Sequence[TokenTree], continuations: Sequence[Continuation]
) -> dict[int, Scored]:
    """Continuation index to its scores, from hidden states (trees, tokens, width)."""
    device = hidden.device
    numbers = [number for tree in trees for number in tree.paths]
    scored_positions = [
        (row, token)
        for row, tree in enumerate(trees)
        for number, path in tree.paths.items()
        for token in path[len(continuations[number].context) - 1 :]
    ]
    # logits are computed once per position
    positions, which = np.unique(np.array(scored_positions), axis=0, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ids = np.concatenate([continuations[number].ids for number in numbers])[order]
    at, rows, targets = (torch.from_numpy(part).to(device) for part in (positions, which[order], ids))
    states = hidden[at[:, 0], at[:, 1]]
    size = max(1, _MAX_LOGITS // model.d_vocab)
    starts = np.arange(0, len(positions), size)
    values, greedy = [], []
    for start, of_block in zip(
        starts, np.split(np.arange(len(order)), np.searchsorted(which[order], starts[1:])), strict=True
    ):
        block = slice(of_block[0], of_block[-1] + 1)
        logits = wide(decode(model, states[start : start + size]))
        of, token = rows[block] - int(start), targets[block]
        chosen = logits[of, token]
        values.append(chosen - logits.logsumexp(-1)[of])
        greedy.append(token == logits.argmax(-1)[of])  # the first of equal ones, as `likeliest`
    inverse = np.argsort(order)
    log_probability = as_array(torch.cat(values)).astype(np.float64)[inverse]
    greedy_token = as_array(torch.cat(greedy))[inverse]
    ends = np.cumsum([len(continuations[number].ids) for number in numbers])[:-1]
    parts = zip(np.split(log_probability, ends), np.split(greedy_token, ends), strict=True)
    return {number: Scored(each, bool(best.all())) for number, (each, best) in zip(numbers, parts, strict=True)}


def continuations_cost(model: Model, continuations: Sequence[Continuation]) -> Cost:
    """FLOPs and peak bytes of `score_continuations`; never waits for the model, see `expects_native`."""
    rows = [_model_input(model, number, one) for number, one in enumerate(continuations)]
    trees = _token_rows(model, rows, expects_native)
    longest, total = max(map(len, trees), default=1), float(sum(map(len, trees)))
    mean = sum(len(tree) ** 2 for tree in trees) / max(total, 1.0)
    scored = min(total, float(sum(len(one.ids) for one in continuations)))
    batch = min(len(trees), max(1, 1024 // longest))
    flops = pass_flops(model, total, mean) + scored * unembedding_flops(model)
    return Cost(flops, batch * row_bytes(model, longest, longest) + 12.0 * max(_MAX_LOGITS, model.d_vocab))
