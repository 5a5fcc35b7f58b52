"""Rows of the tables of word pairs, heads with a word, and dimensions, for one view of one result or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.head_words import HeadWordResult
from interp_widgets.analysis.head_words.head_word_result import FoundWord, WordPlace

Matches = Sequence[FoundWord | None]
"""The searched word in each result; None if there is no word, or it is not in the list."""


def counts_of(result: HeadWordResult, match: FoundWord | None) -> NDArray[np.integer[Any]]:
    """(layers, heads) number of dimensions that keep a pair with a word; 0 if it is not in the list."""
    return np.zeros(result.n_pairs.shape, dtype=int) if match is None else np.asarray((match.counts > 0).sum(axis=-1))


@dataclass(frozen=True)
class PairRow:
    """One word pair of a head, in one model or two."""

    query: str
    key: str
    counts: tuple[int, ...]
    """Number of dimensions that have it, per result; 0 if it is not kept."""
    score: float

    @property
    def change(self) -> str:
        """How tuning changed it."""
        before, after = self.counts[0] > 0, self.counts[-1] > 0
        return "kept" if before and after else "gained" if after else "lost"


def pair_rows(results: Sequence[HeadWordResult], layer: int, head: int, word: str = "") -> list[PairRow]:
    """The kept pairs of a head, those with a word first, then those of most dimensions; of two results the union."""
    counted: dict[tuple[str, str], list[int]] = {}
    scores: dict[tuple[str, str], float] = {}
    for index, result in enumerate(results):
        for query, key, count, score in result.pairs(layer, head) if has(result, layer, head) else []:
            counted.setdefault((query, key), [0] * len(results))[index] = count
            scores[query, key] = score
    rows = [PairRow(*pair, tuple(counts), scores[pair]) for pair, counts in counted.items()]
    return sorted(rows, key=lambda row: (word not in (row.query, row.key), -max(row.counts), -row.score))


def has(result: HeadWordResult, layer: int, head: int) -> bool:
    """Whether a head was computed."""
    return layer in result.layers and 0 <= head < result.n_heads


@dataclass(frozen=True)
class WordRow:
    """A head that has a word, in one result or two."""

    layer: int
    head: int
    counts: tuple[int, ...]
    """Number of dimensions that keep a pair with the word, per result."""
    pair: str
    """The nearest of these pairs."""
    dimension: int
    """The dimension that has it."""


def word_rows(results: Sequence[HeadWordResult], matches: Matches) -> list[WordRow]:
    """The heads with a word, those with most dimensions first."""
    first: dict[tuple[int, int], WordPlace] = {}
    counts: dict[tuple[int, int], list[int]] = {}
    for index, (result, match) in enumerate(zip(results, matches, strict=True)):
        sums = counts_of(result, match)
        for near in match.nearest if match is not None else ():
            at = near.layer, near.head
            counts.setdefault(at, [0] * len(results))[index] = int(sums[result.row(near.layer), near.head])
            if at not in first or near.score > first[at].score:
                first[at] = near
    rows = [
        WordRow(*at, tuple(numbers), f"{first[at].query} → {first[at].key}", first[at].dimension)
        for at, numbers in counts.items()
    ]
    return sorted(rows, key=lambda row: (-max(row.counts), row.layer, row.head))


def common_words(results: Sequence[HeadWordResult]) -> list[tuple[str, tuple[int, ...]]]:
    """Words with the number of heads that keep a pair with them, one number per result; those in most heads first."""
    by_result = [dict(result.head_words()) for result in results]
    words = dict.fromkeys(word for counts in by_result for word in counts)
    rows = [(word, tuple(counts.get(word, 0) for counts in by_result)) for word in words]
    return sorted(rows, key=lambda row: -max(row[1]))


@dataclass(frozen=True)
class DimensionRow:
    """One dimension of a head."""

    dimension: int
    energies: tuple[float, ...]
    counts: tuple[int, ...]
    """Its pairs, before cutting, one number per result."""
    word_counts: tuple[int, ...]
    """Its kept pairs with the searched word."""


def dimension_rows(
    results: Sequence[HeadWordResult], matches: Matches, layer: int, head: int, pair: Sequence[str] = ()
) -> list[DimensionRow]:
    """The dimensions of a head, those with the found word first, then the largest energy.

    With a pair only those that hold it, in either result.
    """
    shown = [(result, match) for result, match in zip(results, matches, strict=True) if has(result, layer, head)]
    if not shown:
        return []
    chosen: set[int] = set(range(max(result.d_head for result, _ in shown)))
    if pair:
        chosen = {d for result, _ in shown for d in holding(result, layer, head, pair)}
    columns_of = []
    for result, match in shown:
        at = result.row(layer), head
        words = np.zeros(result.d_head, dtype=int) if match is None else match.counts[at]
        columns_of.append((result.energy[at].tolist(), result.dimension_counts[at].tolist(), words.tolist()))
    rows = [
        DimensionRow(d, *(tuple(column[d] for column in columns) for columns in zip(*columns_of, strict=True)))
        for d in chosen
    ]
    return sorted(rows, key=lambda row: (-max(row.word_counts), -max(row.energies)))


def holding(result: HeadWordResult, layer: int, head: int, pair: Sequence[str]) -> list[int]:
    """Dimensions whose kept pairs hold a pair."""
    if not all(word in result.vocabulary for word in pair):
        return []
    return result.dimensions_with(layer, head, *pair)
