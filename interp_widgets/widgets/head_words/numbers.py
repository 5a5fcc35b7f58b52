"""Numbers of the layer × head grid, and rows of the tables, for one view of one result or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.head_words import HeadWordResult
from interp_widgets.analysis.head_words.head_word_result import FoundWord, WordPlace

from ..base import pair_view

Array = NDArray[np.float64]
Found = Sequence[FoundWord | None]
"""Where the searched word is in each result; None where there is no word, or it is not in the list."""

COLOURS = {
    "pairs": "number of pairs",
    "energy": "energy",
    "count": "dimensions per kept pair",
    "word": "dimensions with the word",
    "change": "change of the pairs, 1 − M",
}
UNITS = {
    "pairs": "different pairs",
    "energy": "energy",
    "count": "mean dimensions",
    "word": "dimensions",
    "change": "1 − M",
}
"""The same at the colour bar, where there is less room."""


@dataclass(frozen=True)
class Colours:
    """What colours the grid."""

    matrix: Array
    """(layers, heads), NaN where nothing was computed."""
    vmin: float
    vmax: float
    label: str
    signed: bool = False


def whole(values: NDArray[Any], layers: Sequence[int], n_layers: int) -> Array:
    """(n_layers, heads) numbers of the layers that were computed, in their rows; NaN in the others."""
    found = np.full((n_layers, values.shape[1]), np.nan)
    found[list(layers)] = values
    return found


def statistic(result: HeadWordResult, color: str, found: FoundWord | None) -> NDArray[Any]:
    """(layers, heads) of one result."""
    if color == "energy":
        return np.asarray(result.head_energy)
    if color == "count":
        return np.asarray(result.mean_count)
    return counts_of(result, found) if color == "word" else np.asarray(result.n_pairs)


def counts_of(result: HeadWordResult, found: FoundWord | None) -> NDArray[np.integer[Any]]:
    """(layers, heads) dimensions that keep a pair with a word; none where it is not in the list."""
    return np.zeros(result.n_pairs.shape, dtype=int) if found is None else np.asarray((found.counts > 0).sum(axis=-1))


def colours(panel: Any, n_layers: Sequence[int]) -> Colours | str:
    """The colouring of what is looked at; a sentence where there is none."""
    color, comparison = panel.color, panel.comparison
    if color == "word" and not any(panel.found):
        return "Find a word: the colour is how many dimensions of a head have it"
    if color == "change":
        if comparison is None:
            return "The change needs two results of one shape: see the Comparison tab"
        return Colours(whole(comparison.head_change, comparison.layers, max(n_layers)), 0.0, 1.0, UNITS[color])
    arrays = [
        whole(statistic(result, color, one), result.layers, layers)
        for result, one, layers in zip(panel.results, panel.found, n_layers, strict=False)
    ]
    matrix, largest = pair_view.of_view(panel, arrays), pair_view.largest(panel, [arrays])
    if matrix is None:
        a, b = (" × ".join(map(str, one.shape)) for one in arrays)
        return f"A difference needs two models of one shape, these have {a} and {b} heads: look at A or B"
    if panel.shown == "difference":
        return Colours(matrix, -largest, largest, f"{UNITS[color]}, B − A", signed=True)
    return Colours(matrix, 0.0, largest, UNITS[color])


def texts(results: Sequence[HeadWordResult], shown: str, found: Found, n_layers: Sequence[int]) -> list[str]:
    """Of every cell, row by row, how many dimensions keep a pair with the word; nothing where none does."""
    held = [
        whole(counts_of(result, one), result.layers, layers)
        for result, one, layers in zip(results, found, n_layers, strict=False)
    ]
    if shown != "difference":
        return [str(int(count)) if count > 0 else "" for count in held[pair_view.LETTERS.index(shown)].ravel()]
    if held[0].shape != held[1].shape:
        return []
    return [
        f"{int(a)} → {int(b)}" if a > 0 or b > 0 else ""
        for a, b in np.nan_to_num(np.stack([one.ravel() for one in held], axis=1)).tolist()
    ]


# ---- tables


@dataclass(frozen=True)
class PairRow:
    """One word pair of a head, of one model or of two."""

    query: str
    key: str
    counts: tuple[int, ...]
    """Dimensions that have it, one number per result; 0 where it is not kept."""
    score: float

    @property
    def change(self) -> str:
        """What tuning did to it."""
        before, after = self.counts[0] > 0, self.counts[-1] > 0
        return "kept" if before and after else "gained" if after else "lost"


def pair_rows(results: Sequence[HeadWordResult], layer: int, head: int, word: str = "") -> list[PairRow]:
    """The kept pairs of a head, those with a word first, then those of most dimensions; of two results the union."""
    found: dict[tuple[str, str], list[int]] = {}
    scores: dict[tuple[str, str], float] = {}
    for place, result in enumerate(results):
        for query, key, count, score in result.pairs(layer, head) if has(result, layer, head) else []:
            found.setdefault((query, key), [0] * len(results))[place] = count
            scores[query, key] = score
    rows = [PairRow(*pair, tuple(counts), scores[pair]) for pair, counts in found.items()]
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
    """Dimensions that keep a pair with the word, one number per result."""
    pair: str
    """The nearest of these pairs."""
    dimension: int
    """The dimension that has it."""


def word_rows(results: Sequence[HeadWordResult], found: Found) -> list[WordRow]:
    """The heads with a word, those with most dimensions first."""
    first: dict[tuple[int, int], WordPlace] = {}
    counts: dict[tuple[int, int], list[int]] = {}
    for place, (result, one) in enumerate(zip(results, found, strict=True)):
        sums = counts_of(result, one)
        for near in one.nearest if one is not None else ():
            at = near.layer, near.head
            counts.setdefault(at, [0] * len(results))[place] = int(sums[result.row(near.layer), near.head])
            if at not in first or near.score > first[at].score:
                first[at] = near
    rows = [
        WordRow(*at, tuple(numbers), f"{first[at].query} → {first[at].key}", first[at].dimension)
        for at, numbers in counts.items()
    ]
    return sorted(rows, key=lambda row: (-max(row.counts), row.layer, row.head))


def common_words(results: Sequence[HeadWordResult]) -> list[tuple[str, tuple[int, ...]]]:
    """Words with the number of heads that keep a pair with them, one number per result; those in most heads first."""
    held = [dict(result.head_words()) for result in results]
    words = dict.fromkeys(word for one in held for word in one)
    rows = [(word, tuple(one.get(word, 0) for one in held)) for word in words]
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
    results: Sequence[HeadWordResult], found: Found, layer: int, head: int, pair: Sequence[str] = ()
) -> list[DimensionRow]:
    """The dimensions of a head, those with the found word first, then the largest energy.

    With a pair only those that hold it, in either result.
    """
    shown = [(result, one) for result, one in zip(results, found, strict=True) if has(result, layer, head)]
    if not shown:
        return []
    chosen: set[int] = set(range(max(result.d_head for result, _ in shown)))
    if pair:
        chosen = {d for result, _ in shown for d in holding(result, layer, head, pair)}
    held = []
    for result, one in shown:
        at = result.row(layer), head
        words = np.zeros(result.d_head, dtype=int) if one is None else one.counts[at]
        held.append((result.energy[at].tolist(), result.dimension_counts[at].tolist(), words.tolist()))
    rows = [
        DimensionRow(d, *(tuple(column[d] for column in columns) for columns in zip(*held, strict=True)))
        for d in chosen
    ]
    return sorted(rows, key=lambda row: (-max(row.word_counts), -max(row.energies)))


def holding(result: HeadWordResult, layer: int, head: int, pair: Sequence[str]) -> list[int]:
    """Dimensions whose kept pairs hold a pair."""
    if not all(word in result.vocabulary for word in pair):
        return []
    return result.dimensions_with(layer, head, *pair)
