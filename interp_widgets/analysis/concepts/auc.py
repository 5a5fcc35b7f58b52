"""AUC of projections: a concept's stimuli against those of others, and the same with shuffled labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.run import RunOptions

MOST_OTHERS = 5000
"""Held-out stimuli of other concepts that a concept is compared with; of more, a random draw."""


def auc(positive: Floats, negative: Floats) -> float:
    """The chance that a number of ``positive`` is above one of ``negative``, ties counted half; NaN if one is empty.

    Source: the Mann-Whitney form of the area under the ROC curve.

    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if positive.size == 0 or negative.size == 0:
        return float("nan")
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / (2 * negative.size))


def concept_aucs(
    directions: Floats, states: Floats, owner: Ints, groups: Ints | None = None, *, seed: int = 0
) -> tuple[Floats, Floats]:
    """(concepts,) AUC of each direction's projections, against all other states and against those of its own group.

    Args:
        directions: (concepts, d_model).
        states: (n, d_model) held-out states, and their concepts ``owner`` (n,).
        groups: (concepts,) number of each concept's group, -1 for none.
        seed: of the draw of others, where there are more than `MOST_OTHERS`.
    """
    picked = drawn(len(states), seed)
    own = np.empty(len(states))
    add_projections(own, directions, states, owner)
    return aucs_of_projections(own, owner, directions, states[picked], owner[picked], groups)


def drawn(count: int, seed: int) -> Bools:
    """(count,) which held-out states stand for the others: all, or `MOST_OTHERS` of them drawn at random."""
    picked = np.ones(count, dtype=bool)
    if count > MOST_OTHERS:
        picked[:] = False
        picked[np.random.default_rng(seed).choice(count, MOST_OTHERS, replace=False)] = True
    return picked


def add_projections(projections: Floats, directions: Floats, states: Floats, owner: Ints) -> None:
    """Write into ``projections`` (n,) the projection of each state (n, d_model) on the direction of its concept."""
    order = np.argsort(owner, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1) if len(order) else ():
        projections[rows] = states[rows] @ directions[owner[rows[0]]]


def aucs_of_projections(
    own: Floats, owner: Ints, directions: Floats, others: Floats, owner_others: Ints, groups: Ints | None
) -> tuple[Floats, Floats]:
    """The AUCs of `concept_aucs` from the projections ``own`` (n,) of held-out states on their own directions.

    ``others`` (m, d_model) are the states of which each concept is compared with those that are not its own.
    """
    count = len(directions)
    whole, within = np.full(count, np.nan), np.full(count, np.nan)
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(count + 1))
    others = others.astype(directions.dtype, copy=False)  # once, not with every block
    for start in range(0, count, 256):
        block = directions[start : start + 256]
        projected = others @ block.T
        for i in range(start, start + len(block)):
            ours = own[order[bounds[i] : bounds[i + 1]]]
            column, foreign = projected[:, i - start], owner_others != i
            whole[i] = auc(ours, column[foreign])
            if groups is not None and groups[i] >= 0:
                within[i] = auc(ours, column[foreign & (groups[owner_others] == groups[i])])
    return whole, within


def shuffled_aucs(
    make: Callable[[Ints, int], Floats],
    owner: Ints,
    states: Floats,
    owner_held_out: Ints,
    *,
    times: int,
    seed: int,
    run: RunOptions,
) -> Floats:
    """(concepts,) mean AUC over ``times`` deals of the labels, of the stimuli and of the held-out ones alike.

    ``make`` (labels, seed) gives the directions for a deal. One deal alone scatters by 0.12 with 6 held-out stimuli.
    """
    rng = np.random.default_rng(seed)
    total: Floats | None = None
    for deal in range(times):
        run.stop_if_cancelled()
        directions = make(rng.permutation(owner), seed + deal)
        aucs, _ = concept_aucs(directions, states, rng.permutation(owner_held_out), seed=seed)
        total = aucs if total is None else total + aucs
    if total is None:
        raise ValueError(f"shuffles must be at least 1, got {times}")
    return np.asarray(total / times)
