"""The head of a prompt's patterns that stands out: what a panel opens on where nobody has chosen a head."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.attention.patterns import AttentionPatterns

BEYOND = 0.3
"""Least mean attention beyond equal attention of a head that stands out as one of a known kind."""
FEWEST = 4
"""Fewest queries with an earlier occurrence of their token: of one or two, some head of many is right by chance."""
SINK = 0.5
"""Mean attention to the first token of a head that does little else."""

Kind = Literal["induction", "duplicate_token", "previous_token", "narrow"]


@dataclass(frozen=True)
class StandingOut:
    """A head, and why it stands out on a prompt."""

    layer: int
    head: int
    kind: Kind
    """What it attends to; ``narrow`` if no head attends to one of these, and its attention is the least spread."""
    score: float
    """Mean attention, 0..1; of a narrow head the mean number of tokens among which a query's attention is spread
    (the exponential of the entropy)."""
    chance: float
    """What a head that attends equally to all tokens would score."""


def standing_out(
    result: AttentionPatterns, *, layers: Collection[int] | None = None, heads: Collection[int] | None = None
) -> StandingOut | None:
    """The head that attends most, beyond equal attention, to the previous token, to an earlier occurrence of its token,
    or to the token after that; where none does clearly, the one whose attention is spread among the fewest tokens and
    that is not mainly an attention sink. Of equal heads the first one. None for a prompt of one token.

    Args:
        result: the patterns of all heads on a prompt.
        layers: only heads of these layers; default: all.
        heads: only these heads of each layer; default: all.
    """
    rows = [layers is None or at in layers for at in range(len(result.layers))]
    columns = [heads is None or at in heads for at in range(len(result.heads))]
    allowed = np.outer(rows, columns)
    if len(result.tokens) < 2 or not allowed.any():
        return None
    best: StandingOut | None = None
    for kind, keys in keys_of(result.ids).items():
        if not keys:
            continue
        queries = sorted({query for query, _ in keys})
        at = np.array(keys).T
        score = np.where(allowed, result.patterns[:, :, at[0], at[1]].sum(-1, dtype=np.float64) / len(queries), -np.inf)
        chance = sum(1 / (query + 1) for query, _ in keys) / len(queries)
        row, column = (int(place) for place in np.unravel_index(int(score.argmax()), score.shape))
        beyond = float(score[row, column]) - chance
        if beyond >= BEYOND and (best is None or beyond > best.score - best.chance):
            best = StandingOut(row, column, kind, float(score[row, column]), chance)
    return best or _narrow(result, allowed)


def keys_of(ids: Sequence[int]) -> dict[Kind, list[tuple[int, int]]]:
    """The (query, key) pairs that a head of each kind attends to; no key is the first token, a possible sink.

    >>> keys_of([5, 6, 7, 6])["previous_token"], keys_of([9, 5, 5, 5, 5, 5])["duplicate_token"][:3]
    ([(2, 1), (3, 2)], [(2, 1), (3, 1), (3, 2)])
    """
    earlier: dict[int, list[int]] = {}
    pairs: dict[Kind, list[tuple[int, int]]] = {"induction": [], "duplicate_token": [], "previous_token": []}
    for query, token in enumerate(ids):
        before = earlier.setdefault(token, [])
        pairs["duplicate_token"] += [(query, at) for at in before if at > 0]
        pairs["induction"] += [(query, at + 1) for at in before if at + 1 < query]
        if query > 1:
            pairs["previous_token"].append((query, query - 1))
        before.append(query)
    for kind in ("induction", "duplicate_token"):
        if len({query for query, _ in pairs[kind]}) < FEWEST:
            pairs[kind] = []
    return pairs


def _narrow(result: AttentionPatterns, allowed: NDArray[np.bool_]) -> StandingOut:
    """The head whose attention is spread among the fewest tokens, unless it pays most of it to the first one."""
    spread = np.stack([_spread(layer) for layer in result.patterns])
    sink = result.first_token
    places = allowed & (sink <= SINK)
    spread = np.where(places if places.any() else allowed, spread, np.inf)
    row, column = (int(place) for place in np.unravel_index(int(spread.argmin()), spread.shape))
    n = len(result.tokens)
    return StandingOut(row, column, "narrow", float(spread[row, column]), float(np.mean(range(2, n + 1))))


def _spread(patterns: NDArray[np.floating]) -> NDArray[np.float64]:
    """(heads,) mean over all queries but the first of the number of tokens among which attention is spread."""
    rows = patterns[:, 1:].astype(np.float64)
    rows /= rows.sum(-1, keepdims=True)
    entropy = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(-1)
    spread: NDArray[np.float64] = np.exp(entropy).mean(-1)
    return spread
