"""Attention patterns as pictures: thumbnails of all heads, and large patterns in blocks of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.attention import AttentionPatterns

THUMBNAIL = 48
"""Most cells along a side of a thumbnail."""
MOST_CELLS = 512
"""Most cells along a side of one head's map; of more tokens, each cell is a block."""


def block_starts(n: int, most: int) -> NDArray[np.int64]:
    """First token of each block of n tokens: of equal blocks, at most ``most``.

    >>> block_starts(5, 5).tolist(), block_starts(5, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 2, 4])
    """
    return np.arange(0, n, max(1, -(-n // most)))


def in_blocks(matrix: NDArray[Any], most: int) -> NDArray[np.float64]:
    """A (tokens, tokens) matrix with one cell for each pair of blocks: the number of largest size in it.

    NaN where a pair of blocks has no number.

    >>> in_blocks(np.array([[1.0, 0, 0], [0.2, -0.8, 0], [0.1, 0.3, 0.6]]), 2).tolist()
    [[1.0, 0.0], [0.3, 0.6]]
    """
    starts = block_starts(len(matrix), most)
    if len(starts) == len(matrix):
        return np.asarray(matrix, dtype=np.float64)
    high, low = (
        extreme.reduceat(extreme.reduceat(matrix, starts, axis=0), starts, axis=1) for extreme in (np.fmax, np.fmin)
    )
    return np.where(np.abs(low) > np.abs(high), low, high).astype(np.float64)


def seen(pattern: NDArray[Any]) -> NDArray[Any]:
    """A pattern with NaN for the keys after each query, which no head sees."""
    pattern[np.triu_indices(len(pattern), 1)] = np.nan
    return pattern


def thumbnails(result: AttentionPatterns, **options: Any) -> NDArray[np.float32]:
    """(layers, heads, cells, cells) the patterns of all heads, of at most `THUMBNAIL` cells along a side.

    `options` are those of `AttentionPatterns.pattern`.
    """
    starts = block_starts(len(result.tokens), THUMBNAIL)
    cells = len(starts)
    drawn = np.empty((len(result.layers), len(result.heads), cells, cells), np.float32)
    for row, layer in enumerate(result.layers):
        for column, head in enumerate(result.heads):
            pattern = result.pattern(layer, head, **options)  # 0 for the keys after a query, else at least 0
            drawn[row, column] = np.fmax.reduceat(np.fmax.reduceat(pattern, starts, axis=0), starts, axis=1)
    drawn[..., *np.triu_indices(cells, 1)] = np.nan
    return drawn


def block_names(tokens: Sequence[str]) -> list[str]:
    """The names of one head's rows and columns: the tokens, or the first one of each block."""
    starts = block_starts(len(tokens), MOST_CELLS)
    if len(starts) == len(tokens):
        return list(tokens)
    return [f"{tokens[start]} … ({start})" for start in starts]
