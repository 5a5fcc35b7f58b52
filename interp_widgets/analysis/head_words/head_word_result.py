"""The word pairs of a model's attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints, ratio
from interp_widgets.analysis._core.checks import index, row_of
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.top_k import top_k_indices

if TYPE_CHECKING:
    import pandas as pd


class WordPair(NamedTuple):
    """Two words that a head relates: one on the query side, one on the key side."""

    query: str
    key: str
    dimensions: int
    """Number of dimensions of the head that have the pair."""
    score: float
    """Cosine of the two word vectors."""


class WordPlace(NamedTuple):
    """A dimension of a head that has a pair with a word."""

    layer: int
    head: int
    dimension: int
    query: str
    key: str
    score: float
    """Cosine of the two word vectors."""


class FoundWord(NamedTuple):
    """Search result for a word: where it occurs in the pairs of dimensions."""

    counts: Ints
    """(layers, heads, d_head) how many of a dimension's pairs hold the word."""
    nearest: list[WordPlace]
    """The pair with the largest cosine in each head that has one, layer by layer."""


@record
class HeadWordResult(Result):
    """The word pairs of every head and of each of its dimensions.

    Heads keep the `keep` pairs that most of their dimensions have, ties in falling order of cosine. Dimensions keep
    the `keep` pairs with the largest cosine. Layers have the model's numbers, even if only some were computed.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1.

    Example:
        >>> result = head_word_pairs(model)
        >>> [(pair.query, pair.key, pair.dimensions) for pair in result.pairs(0, 4)[:2]]
        [('One', 'Friends', 11), ('Friends', 'One', 11)]
        >>> result.to_frame().columns.tolist()
        ['layer', 'head', 'query', 'key', 'count', 'score']
    """

    vocabulary: Sequence[str] = with_axes("words")
    """The words, the most frequent first; pairs hold indices into this list."""

    layers: Sequence[int] = with_axes("layers")
    """Layers of the model, rising."""

    energy: Floats = with_axes("layers", "heads", "d_head")
    """Sum over the words of the squared query and key activations of a dimension."""

    n_pairs: Ints = with_axes("layers", "heads")
    """Number of different pairs in all dimensions of a head, before cutting to `keep`."""

    head_pairs: Ints = with_axes("layers", "heads", "keep", 2)
    """Query and key word of the head's pairs, most frequent first; -1 past the last."""

    head_counts: Ints = with_axes("layers", "heads", "keep")
    """Dimensions of the head that have the pair; 0 where there are fewer."""

    head_scores: Floats = with_axes("layers", "heads", "keep")
    """Cosine of the two word vectors; NaN where there are fewer."""

    dimension_counts: Ints = with_axes("layers", "heads", "d_head")
    """Pairs of each dimension, before cutting to `keep`."""

    dimension_offsets: Ints = with_axes("layers * heads * d_head + 1")
    """Index of each dimension's first pair in `dimension_word_pairs`."""

    dimension_word_pairs: Ints = with_axes("pairs", 2)
    """Query and key word of the pairs of all dimensions, nearest first; see :meth:`dimension_pairs`."""

    dimension_scores: Floats = with_axes("pairs")
    """Their cosines."""

    missing: Sequence[str] = with_axes("missing", default=())
    """Words of the list without a vector: they can be among a dimension's top words but form no pair."""

    unknown: Sequence[str] = with_axes("unknown", default=())
    """Words that the model's tokenizer cannot write, which are ignored."""

    left_out: Sequence[str] = with_axes("left out", default=())
    """Words excluded before the search, such as those absent from the model's training text."""

    top: int = 100
    """Words per dimension, for queries and for keys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        offsets, pairs = len(self.dimension_offsets), len(self.dimension_word_pairs)
        if offsets != self.energy.size + 1 or pairs != self.dimension_offsets[-1]:
            raise ValueError(
                f"HeadWordResult.dimension_offsets must be {self.energy.size + 1} numbers, the last of them {pairs}"
            )

    # ---- sizes and checks

    @property
    def keep(self) -> int:
        """Most pairs kept per head and per dimension."""
        return int(self.head_counts.shape[-1])

    @property
    def n_heads(self) -> int:
        """Heads per layer."""
        return int(self.head_counts.shape[1])

    @property
    def d_head(self) -> int:
        """Dimensions per head."""
        return int(self.energy.shape[-1])

    def row(self, layer: int) -> int:
        """The row of a layer of the model; negative numbers count from the last row. ValueError without the layer."""
        return row_of(layer, self.layers, "layer")

    def _cell(self, layer: int, head: int) -> tuple[int, int]:
        return self.row(layer), index(head, self.n_heads, "head", f"result with {self.n_heads} heads per layer")

    def word_index(self, word: str) -> int:
        """The index of a word in the vocabulary; ValueError for a word that is not in it."""
        if word not in self.vocabulary:
            raise ValueError(f"the word {word!r} is not in the list of {len(self.vocabulary)} words of this result")
        return list(self.vocabulary).index(word)

    # ---- the pairs

    def pairs(self, layer: int, head: int) -> list[WordPair]:
        """The word pairs of one head: query word, key word, dimensions that have the pair, cosine.

        Raises ValueError for a layer or head that is not in the result.
        """
        cell = self._cell(layer, head)
        counts = self.head_counts[cell]
        known = counts > 0
        return self._named(self.head_pairs[cell][known], counts[known], self.head_scores[cell][known])

    def dimension_pairs(self, layer: int, head: int, dimension: int) -> list[WordPair]:
        """The word pairs of one dimension of a head, nearest first; the number of dimensions of each is 1.

        Raises ValueError for a layer, head or dimension that is not in the result.
        """
        row, head = self._cell(layer, head)
        dimension = index(dimension, self.d_head, "dimension", f"result with {self.d_head} dimensions per head")
        at = (row * self.n_heads + head) * self.d_head + dimension
        part = slice(int(self.dimension_offsets[at]), int(self.dimension_offsets[at + 1]))
        pairs = self.dimension_word_pairs[part]
        return self._named(pairs, np.ones(len(pairs), dtype=int), self.dimension_scores[part])

    def dimensions(self, layer: int, head: int) -> list[int]:
        """The dimensions of one head, the one with the largest energy first."""
        return [int(dimension) for dimension in top_k_indices(self.energy[self._cell(layer, head)])]

    def dimensions_with(self, layer: int, head: int, query: str, key: str) -> list[int]:
        """Dimensions of a head that keep a pair, the one with the largest energy first.

        A dimension with more than `keep` pairs may have had the pair without keeping it.
        Raises ValueError for a layer, head or word that is not in the result.
        """
        indices = self.word_index(query), self.word_index(key)
        row, head = self._cell(layer, head)
        start = (row * self.n_heads + head) * self.d_head
        first, last = (int(self.dimension_offsets[start + end]) for end in (0, self.d_head))
        pairs = first + np.flatnonzero((self.dimension_word_pairs[first:last] == indices).all(axis=1))
        holders = set((self._owners(pairs) - start).tolist())
        return [dimension for dimension in self.dimensions(layer, head) if dimension in holders]

    def places_of(self, word: str) -> list[WordPlace]:
        """Every dimension's kept pairs with a word, in falling order of cosine.

        Raises ValueError for a word that is not in the list.
        """
        pairs = self._pairs_with(word)
        return self._named_places(pairs[top_k_indices(self.dimension_scores[pairs])])

    def _pairs_with(self, word: str) -> Ints:
        """Rows of `dimension_word_pairs` that hold a word."""
        return np.flatnonzero((self.dimension_word_pairs == self.word_index(word)).any(axis=1))

    def _named_places(self, rows: Ints) -> list[WordPlace]:
        """Rows of `dimension_word_pairs` with layer, head, dimension and words."""
        row, head, dimension = np.unravel_index(self._owners(rows), self.energy.shape)
        names, pairs = self.vocabulary, self.dimension_word_pairs[rows].tolist()
        cells = zip(row.tolist(), head.tolist(), dimension.tolist(), pairs, self.dimension_scores[rows].tolist(),
                    strict=True)  # fmt: skip
        return [
            WordPlace(self.layers[row], head, dim, names[q], names[k], score) for row, head, dim, (q, k), score in cells
        ]

    def find(self, word: str) -> FoundWord:
        """Find a word in the pairs of dimensions; ValueError for a word that is not in the list."""
        pairs = self._pairs_with(word)
        owners = self._owners(pairs)
        counts = np.bincount(owners, minlength=self.energy.size).reshape(self.energy.shape)
        heads, starts = np.unique(owners // self.d_head, return_index=True)
        if not len(heads):
            return FoundWord(counts, [])
        scores = self.dimension_scores[pairs]
        best = np.repeat(np.maximum.reduceat(scores, starts), np.diff([*starts, len(pairs)]))
        first = np.unique(owners[scores == best] // self.d_head, return_index=True)[1]
        return FoundWord(counts, self._named_places(pairs[np.flatnonzero(scores == best)[first]]))

    def head_words(self) -> list[tuple[str, int]]:
        """The words in kept pairs of heads and the number of heads of each, in falling order of that number."""
        row, head, rank = np.nonzero(self.head_counts)
        words = len(self.vocabulary)
        cells = (row * self.n_heads + head)[:, None] * words + self.head_pairs[row, head, rank]
        counts = np.bincount(np.unique(cells) % words, minlength=words)
        order = top_k_indices(counts, int(np.count_nonzero(counts)))
        return [(self.vocabulary[word], int(counts[word])) for word in order.tolist()]

    def _owners(self, rows: Ints) -> Ints:
        """The flat index (over layers, heads and dimensions) of the dimension that each row of
        `dimension_word_pairs` belongs to."""
        return np.asarray(np.searchsorted(self.dimension_offsets, rows, side="right") - 1)

    @property
    def head_energy(self) -> Floats:
        """(layers, heads) sum of the energy of a head's dimensions."""
        return np.asarray(self.energy.sum(axis=-1))

    @property
    def mean_count(self) -> Floats:
        """(layers, heads) mean number of dimensions that have one of the head's kept pairs; NaN without a pair."""
        kept = (self.head_counts > 0).sum(axis=-1)
        return ratio(self.head_counts.sum(axis=-1), kept)

    def word_counts(self, word: str) -> Ints:
        """(layers, heads) how many of a head's kept pairs hold a word, as query or key."""
        return np.asarray((self.head_pairs == self.word_index(word)).sum(axis=(2, 3)))

    def heads_with(self, word: str) -> list[tuple[int, int, int]]:
        """Layer, head and number of kept pairs of every head that holds a word, those with most pairs first."""
        counts = self.word_counts(word)
        cells = [(self.layers[row], int(head), int(counts[row, head])) for row, head in np.argwhere(counts)]
        return sorted(cells, key=lambda cell: (-cell[2], cell[0], cell[1]))

    def _named(self, pairs: Ints, counts: Ints, scores: Floats) -> list[WordPair]:
        rows = zip(pairs.tolist(), counts.tolist(), scores.tolist(), strict=True)
        return [WordPair(self.vocabulary[q], self.vocabulary[k], count, score) for (q, k), count, score in rows]

    def to_frame(self) -> pd.DataFrame:
        """One row per kept pair of every head: layer, head, query, key, count, score."""
        import pandas as pd

        row, head, rank = np.nonzero(self.head_counts)
        at = row, head, rank
        names = np.asarray(self.vocabulary, dtype=object)
        return pd.DataFrame(
            {
                "layer": np.asarray(self.layers)[row],
                "head": head,
                "query": names[self.head_pairs[at][:, 0]],
                "key": names[self.head_pairs[at][:, 1]],
                "count": self.head_counts[at],
                "score": self.head_scores[at],
            }
        )
