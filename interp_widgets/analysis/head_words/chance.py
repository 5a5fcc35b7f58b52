"""`head_word_chance`: a permutation baseline for the number of word pairs of each head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # scipy.special takes a while to import: scipy itself loads it on first use
import torch
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Floats, Ints, ratio
from interp_widgets.analysis._core.checks import check_range, layer_indices, row_of
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import table
from interp_widgets.analysis._core.word_embeddings import Words
from interp_widgets.analysis.head_words.word_cosines import Cosines, Vectors
from interp_widgets.analysis.head_words.word_pairs import FREQUENT, describe, pair_search
from interp_widgets.arguments import checked
from interp_widgets.models import Model

if TYPE_CHECKING:
    import pandas as pd

MOST_SHUFFLES = 1000


@record
class HeadWordChance(Result):
    """The number of word pairs of every head and their mean cosine, with the true and with shuffled word vectors.

    Every word pair looks meaningful, since only words with near vectors are paired. Shuffling the vectors among the
    words keeps each head's top words but breaks their link to meaning, so the remaining pairs are due to chance.

    Example:
        >>> chance = head_word_chance(model, top=30, layers=[5], shuffles=5)
        >>> chance.chance_pairs.shape, chance.above(5, 3)
        ((5, 1, 6), True)
        >>> chance.to_frame().columns.tolist()[:6]
        ['layer', 'head', 'pairs', 'chance', 'low', 'high']
    """

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model, rising."""

    n_pairs: Ints = with_axes("layers", "heads")
    """Different pairs in all dimensions of a head."""

    cosine: Floats = with_axes("layers", "heads")
    """Mean cosine of these pairs; NaN for a head without any."""

    dimension_counts: Ints = with_axes("layers", "heads", "d_head")
    """Pairs of each dimension."""

    chance_pairs: Ints = with_axes("shuffles", "layers", "heads")
    """Different pairs of a head with the vectors shuffled."""

    chance_cosine: Floats = with_axes("shuffles", "layers", "heads")
    """Their mean cosine; NaN where there are none."""

    chance_dimension_counts: Floats = with_axes("layers", "heads", "d_head")
    """Pairs of each dimension with the vectors shuffled, the mean of the shuffles."""

    seed: int = 0
    """Seed of the shuffles."""

    @property
    def shuffles(self) -> int:
        """Number of shuffles of the vectors."""
        return len(self.chance_pairs)

    def row(self, layer: int) -> int:
        """The row of a layer of the model; negative numbers count from the last row. ValueError without the layer."""
        return row_of(layer, self.layers, "layer")

    @property
    def pair_interval(self) -> Floats:
        """(2, layers, heads) 95% prediction interval of the number of pairs with one more shuffle."""
        return prediction_interval(self.chance_pairs)

    @property
    def cosine_interval(self) -> Floats:
        """(2, layers, heads) the same for the mean cosine; NaN where fewer than two shuffles have pairs."""
        return prediction_interval(self.chance_cosine)

    def above(self, layer: int, head: int) -> bool:
        """Whether a head has more pairs than chance gives (false positives: 1 in 40)."""
        at = self.row(layer), head
        return bool(self.n_pairs[at] > self.pair_interval[1][at])

    @property
    def heads_above(self) -> int:
        """Heads with more pairs than chance gives."""
        return int((self.n_pairs > self.pair_interval[1]).sum())

    def totals(self) -> dict[str, tuple[float, float, float, float]]:
        """``pairs`` and mean ``cosine`` over all heads: the value, the mean of the shuffles, and the 95% prediction
        interval of one more shuffle."""
        sums = self.chance_pairs.sum(axis=(1, 2))
        means = ratio(np.nansum(self.chance_cosine * self.chance_pairs, axis=(1, 2)), sums)
        cosine = ratio(np.nansum(self.cosine * self.n_pairs), self.n_pairs.sum())
        return {
            name: (float(value), float(np.mean(values)), *map(float, prediction_interval(values)))  # type: ignore[misc]
            for name, value, values in (("pairs", self.n_pairs.sum(), sums), ("cosine", cosine, means))
        }

    def in_words(self) -> str:
        """The comparison with chance over all heads, in a sentence."""
        (pairs, chance, low, high), cosine = self.totals()["pairs"], self.totals()["cosine"]
        luck = self.n_pairs.size / 40
        verdict = (
            f"{(pairs - chance) / pairs:.0%} of them beyond chance" if pairs > high
            else "no more than by chance" if pairs >= low else "fewer than by chance"
        )  # fmt: skip
        return (
            f"{pairs:,.0f} pairs in all heads, {verdict}. With shuffled word vectors there are {chance:,.0f} "
            f"on average (95% of shuffles: {low:,.0f} to {high:,.0f}; {self.shuffles} made), and their mean cosine is "
            f"{cosine[1]:.2f} ({cosine[2]:.2f} to {cosine[3]:.2f}) instead of {cosine[0]:.2f}. {self.heads_above} of "
            f"{self.n_pairs.size} heads have more pairs than by chance; about {luck:.1g} would by luck alone."
        )

    def head_in_words(self, layer: int, head: int) -> str:
        """The comparison with chance for one head, in a sentence; ValueError for a layer that is not in the result."""
        at = self.row(layer), head
        (low, high), cosine = self.pair_interval[:, *at], self.cosine_interval[:, *at]
        return (
            f"{self.n_pairs[at]:,} pairs, by chance {self.chance_pairs[:, *at].mean():,.0f} "
            f"({max(low, 0):,.0f} to {high:,.0f}); mean cosine {self.cosine[at]:.2f}, by chance "
            f"{_mean(self.chance_cosine)[at]:.2f} ({cosine[0]:.2f} to {cosine[1]:.2f})"
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per head: number of pairs and mean cosine, each with mean and interval of the shuffles."""
        columns: dict[str, Any] = {}
        for name, value, values in (
            ("pairs", self.n_pairs, self.chance_pairs),
            ("cosine", self.cosine, self.chance_cosine),
        ):
            low, high = prediction_interval(values)
            start = "" if name == "pairs" else f"{name}_"
            columns |= {name: value, f"{start}chance": _mean(values), f"{start}low": low, f"{start}high": high}
        return table({"layer": list(self.layers), "head": range(self.n_pairs.shape[1])}, columns)


def prediction_interval(values: NDArray[Any], level: float = 0.95) -> Floats:
    """(2, ...) prediction interval of one more value from a normal distribution, given values (n, ...); NaN for n < 2.

    >>> prediction_interval(np.array([1.0, 2.0, 3.0])).round(2).tolist()
    [-2.97, 6.97]
    """
    known = np.isfinite(values).sum(axis=0)
    mean = _mean(values)
    spread = np.sqrt(ratio(np.nansum((values - mean) ** 2, axis=0), known - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        half = scipy.special.stdtrit(np.maximum(known - 1, 1), (1 + level) / 2) * spread * np.sqrt(1 + 1 / known)
    return np.where(known > 1, np.stack([mean - half, mean + half]), np.nan)


def _mean(values: NDArray[Any]) -> Floats:
    return ratio(np.nansum(values, axis=0), np.isfinite(values).sum(axis=0))


@checked
def head_word_chance(
    model: Model,
    *,
    words: Words = None,
    vectors: Vectors = None,
    top: int = 100,
    frequent: int = FREQUENT,
    layers: Sequence[int] | None = None,
    shuffles: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> HeadWordChance:
    """The number of word pairs of each head, and the number expected by chance.

    The pairs are those of `head_word_pairs`. For chance, the word vectors, each with its threshold, are permuted among
    the words that have one: the heads' activations stay the same, and which words count as near in meaning becomes
    random. Heads that have many pairs only because their top words have ordinary vectors have as many by chance.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: as for `head_word_pairs`.
        vectors: as for `head_word_pairs`.
        top: words per dimension and role (K), 1 to 1,000.
        frequent: number of words, from the beginning of the list, used for thresholds.
        layers: of the model, negative ones from the end; default: all.
        shuffles: number of shuffles, 2 to 1,000; each takes about as long as `head_word_pairs` itself.
        seed: of the shuffles.
        progress: called with (done, total) shuffles of all layers.
        check: called between tiles; raises to cancel.

    Raises:
        ValueError: those of `head_word_pairs`; shuffles out of range.

    Example:
        >>> chance = head_word_chance(model, top=30, shuffles=5)
        >>> pairs, by_chance, low, high = chance.totals()["pairs"]
        >>> pairs > high > by_chance > low > pairs / 2
        True
    """
    check_range("shuffles", shuffles, 2, most=MOST_SHUFFLES)
    numbers = sorted(layer_indices(model, layers))
    run = RunOptions(progress, check)
    listed, known, _, search = pair_search(
        model, "head_word_chance", words, vectors, top=top, keep=1, frequent=frequent, run=run
    )
    unshuffled, rng = search.cosines, np.random.default_rng(seed)
    with_vector = np.flatnonzero(np.isfinite(unshuffled.thresholds.cpu().numpy()))
    orders = [unshuffled] + [_shuffled(unshuffled, with_vector, rng) for _ in range(shuffles)]
    counts: list[list[tuple[NDArray[Any], ...]]] = []
    for layer in numbers:
        top_words = search.top_words(layer)
        counts.append([])
        for word_cosines in orders:
            counts[-1].append(_counts(*search.pairs(top_words, word_cosines), model, len(known.words)))
            run.report(sum(map(len, counts)), len(numbers) * len(orders))
    pairs, cosine, dimensions = (
        np.stack([np.stack([values[number] for values in layer]) for layer in counts], axis=1) for number in range(3)
    )
    return HeadWordChance(
        layers=tuple(numbers),
        n_pairs=pairs[0],
        cosine=cosine[0],
        dimension_counts=dimensions[0],
        chance_pairs=pairs[1:],
        chance_cosine=cosine[1:],
        chance_dimension_counts=dimensions[1:].mean(axis=0),
        seed=seed,
        provenance=provenance(
            model.provenance(), words=len(listed), vectors=describe(vectors), top=search.top, frequent=frequent,
            shuffles=shuffles, seed=seed,
        ),
    )  # fmt: skip


def _shuffled(word_cosines: Cosines, with_vector: NDArray[np.intp], rng: np.random.Generator) -> Cosines:
    """Permute vectors and their thresholds among the words that have one."""
    order = np.arange(len(word_cosines.thresholds))
    order[with_vector] = rng.permutation(with_vector)
    at = torch.from_numpy(order).to(word_cosines.thresholds.device)
    return replace(word_cosines, units=word_cosines.units[at], thresholds=word_cosines.thresholds[at])


def _counts(
    pairs: NDArray[np.int64], cosine: Floats, model: Model, words: int
) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
    """(heads,) different pairs and their mean cosine, and (heads, d_head) pairs of each dimension."""
    row, first, second = pairs
    code = ((row // model.d_head) * words + first) * words + second
    unique, where = np.unique(code, return_index=True)
    head = unique // words**2
    n_pairs = np.bincount(head, minlength=model.n_heads)
    mean = ratio(np.bincount(head, cosine[where].astype(np.float64), minlength=model.n_heads), n_pairs)
    dimensions = np.bincount(row, minlength=model.n_heads * model.d_head)
    return n_pairs, mean, dimensions.reshape(model.n_heads, model.d_head)
