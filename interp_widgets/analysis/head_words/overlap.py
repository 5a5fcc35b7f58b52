"""How much of two models' word pairs is the same, head by head and dimension by dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.head_words.head_word_result import HeadWordResult

Sets = tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]
"""Members of many sets: the set of each, its query and key word as one number, and the shape of the sets."""


def head_sets(result: HeadWordResult) -> Sets:
    """The kept pairs of every head."""
    heads = np.arange(result.n_pairs.size).reshape(result.n_pairs.shape)
    known = result.head_counts > 0
    owner = np.broadcast_to(heads[:, :, None], known.shape)[known]
    return owner, _codes(result.head_pairs[known], len(result.vocabulary)), result.n_pairs.shape


def dimension_sets(result: HeadWordResult) -> Sets:
    """The kept pairs of every dimension."""
    sizes = np.diff(result.dimension_offsets)
    codes = _codes(result.dimension_word_pairs, len(result.vocabulary))
    return np.repeat(np.arange(len(sizes)), sizes), codes, result.energy.shape


def _codes(pairs: NDArray[np.integer[Any]], words: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = pairs[:, 0].astype(np.int64) * words + pairs[:, 1]
    return found


def changes(a: Sets, b: Sets, words: int, *, check: Callable[[], None] | None = None) -> NDArray[np.float64]:
    """1 - |A ∩ B| / |A ∪ B| of every pair of sets; NaN for two empty ones."""
    shape = a[2]
    size = int(np.prod(shape[1:]))
    # layer by layer: many short sorts are faster than a long one, and can be cancelled
    ends = np.arange(shape[0] + 1) * size
    bounds = [np.searchsorted(owner // size * size, ends) for owner in (a[0], b[0])]
    found: NDArray[np.float64] = np.full((shape[0], size), np.nan)
    for layer in range(shape[0]):
        if check is not None:
            check()
        parts = [slice(bound[layer], bound[layer + 1]) for bound in bounds]
        owner = np.concatenate([a[0][parts[0]], b[0][parts[1]]]) - layer * size
        codes = np.concatenate([a[1][parts[0]], b[1][parts[1]]])
        keys, times = np.unique(owner * words**2 + codes, return_counts=True)
        owners = keys // words**2
        union = np.bincount(owners, minlength=size)
        shared = np.bincount(owners[times == 2], minlength=size)
        np.divide(shared, union, out=found[layer], where=union > 0)
    whole: NDArray[np.float64] = 1 - found.reshape(shape)
    return whole


def other_changes(
    a: Sets, b: Sets, words: int, *, most: int | None = None, check: Callable[[], None] | None = None
) -> NDArray[np.float64]:
    """Mean change from each set of A to other sets of B that differ in the last axis only, at most ``most`` of them.

    What two unrelated heads (or dimensions) have in common all the same: some pairs are frequent everywhere.
    """
    shape = a[2]
    total, known = np.zeros(shape), np.zeros(shape, dtype=int)
    for shift in range(1, min(shape[-1] - 1, shape[-1] if most is None else most) + 1):
        first, place = np.divmod(b[0], shape[-1])
        one = changes(a, (first * shape[-1] + (place - shift) % shape[-1], b[1], shape), words, check=check)
        finite = np.isfinite(one)
        total[finite] += one[finite]
        known += finite
    found: NDArray[np.float64] = np.full(shape, np.nan)
    np.divide(total, known, out=found, where=known > 0)
    return found
