"""Numbers of the layer × head grid, and rows of the tables, for one view of one result or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.head_words import HeadComparison, HeadWordResult

Array = NDArray[np.float64]

COLOURS = {
    "pairs": "number of pairs",
    "energy": "energy",
    "count": "dimensions per kept pair",
    "word": "kept pairs with the word",
    "change": "change of the pairs, 1 − M",
}
UNITS = {
    "pairs": "different pairs",
    "energy": "energy",
    "count": "mean dimensions",
    "word": "kept pairs",
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


def statistic(result: HeadWordResult, color: str, word: str) -> NDArray[Any]:
    """(layers, heads) of one result."""
    if color == "energy":
        return np.asarray(result.head_energy)
    if color == "count":
        return np.asarray(result.mean_count)
    if color == "word":
        return counts_of(result, word)
    return np.asarray(result.n_pairs)


def counts_of(result: HeadWordResult, word: str) -> NDArray[np.integer[Any]]:
    """(layers, heads) kept pairs with a word; none for a word that is not in the list."""
    if not word or word not in result.vocabulary:
        return np.zeros(result.n_pairs.shape, dtype=int)
    return result.word_counts(word)


def colours(
    results: Sequence[HeadWordResult], color: str, shown: str, word: str, n_layers: Sequence[int],
    comparison: HeadComparison | None,
) -> Colours | str:  # fmt: skip
    """The colouring of one view, "A", "B" or "difference"; a sentence where there is none."""
    if color == "change":
        if comparison is None:
            return "The change needs two results of one shape: see the Comparison tab"
        return Colours(whole(comparison.head_change, comparison.layers, max(n_layers)), 0.0, 1.0, UNITS[color])
    held = [
        whole(statistic(result, color, word), result.layers, layers)
        for result, layers in zip(results, n_layers, strict=False)
    ]
    if shown != "difference":
        top = max((float(np.nanmax(one)) for one in held), default=0.0) or 1.0
        return Colours(held["AB".index(shown)], 0.0, top, UNITS[color])
    if held[0].shape != held[1].shape:
        a, b = (" × ".join(map(str, one.shape)) for one in held)
        return f"A difference needs two models of one shape, these have {a} and {b} heads: look at A or B"
    change = held[1] - held[0]
    largest = float(np.nanmax(np.abs(change), initial=0.0)) or 1.0
    return Colours(change, -largest, largest, f"{UNITS[color]}, B − A", signed=True)


def texts(results: Sequence[HeadWordResult], shown: str, word: str, n_layers: Sequence[int]) -> list[str]:
    """Of every cell, row by row, how many kept pairs have the word; nothing where none has."""
    held = [
        whole(counts_of(result, word), result.layers, layers) for result, layers in zip(results, n_layers, strict=False)
    ]
    if shown != "difference":
        return [str(int(count)) if count > 0 else "" for count in held["AB".index(shown)].ravel()]
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


def word_rows(results: Sequence[HeadWordResult], word: str) -> list[tuple[int, int, tuple[int, ...], str]]:
    """Layer, head, kept pairs with a word of each result, and the first such pair; most pairs first."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, result in enumerate(results):
        for layer, head, count in result.heads_with(word) if word in result.vocabulary else []:
            found.setdefault((layer, head), [0] * len(results))[place] = count
    rows = []
    for (layer, head), counts in found.items():
        first = next(row for row in pair_rows(results, layer, head, word) if word in (row.query, row.key))
        rows.append((layer, head, tuple(counts), f"{first.query} → {first.key}"))
    return sorted(rows, key=lambda row: (-max(row[2]), row[0], row[1]))


@dataclass(frozen=True)
class DimensionRow:
    """One dimension of a head."""

    dimension: int
    energies: tuple[float, ...]
    counts: tuple[int, ...]
    """Its pairs, before cutting, one number per result."""


def dimension_rows(
    results: Sequence[HeadWordResult], layer: int, head: int, pair: Sequence[str] = ()
) -> list[DimensionRow]:
    """The dimensions of a head, the largest energy first; with a pair only those that hold it, in either result."""
    shown = [result for result in results if has(result, layer, head)]
    if not shown:
        return []
    chosen: set[int] = set(range(max(result.d_head for result in shown)))
    if pair:
        chosen = {d for result in shown for d in holding(result, layer, head, pair)}
    rows = []
    for d in chosen:
        cells = [
            (float(result.energy[result.row(layer), head, d]), int(result.dimension_counts[result.row(layer), head, d]))
            for result in shown
        ]
        rows.append(DimensionRow(d, *(tuple(part) for part in zip(*cells, strict=True))))  # type: ignore[arg-type]
    return sorted(rows, key=lambda row: -max(row.energies))


def holding(result: HeadWordResult, layer: int, head: int, pair: Sequence[str]) -> list[int]:
    """Dimensions whose kept pairs hold a pair."""
    if not all(word in result.vocabulary for word in pair):
        return []
    return result.dimensions_with(layer, head, *pair)
