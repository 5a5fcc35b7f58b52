"""Which words may form a pair: cosines of word vectors against a threshold of each word's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors, read_word_vectors

Vectors = (
    WordVectors | str | os.PathLike[str] | NDArray[np.floating[Any]] | Mapping[str, Sequence[float]] | None
)  # fmt: skip
"""Word vectors: as read from a file, a file's path, one row per word of the list, a vector by word, or the demo's."""

SPREAD = 1.96
"""Standard deviations above a word's mean cosine, from which on another word counts as near."""


@dataclass(frozen=True, eq=False)
class Cosines:
    """Unit vectors of the words, and the cosine above which a word takes another one as near."""

    units: Tensor
    """(words, width) vectors of length 1; zeros for a word without a vector."""
    thresholds: Tensor
    """(words,) at least 0; infinity for a word without a vector."""

    def of(self, first: Tensor, second: Tensor) -> Tensor:
        """(pairs,) cosines of the words ``first`` and ``second``: one pair's number is always the same."""
        parts = zip(torch.split(first, 2**14), torch.split(second, 2**14), strict=True)
        found = [(self.units[a] * self.units[b]).sum(-1) for a, b in parts]
        return torch.cat(found) if found else self.units.new_empty(0)


def vectors_of(words: Sequence[str], vectors: Vectors) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(words, width) a vector for each word of the list, and (words,) whether it has one.

    Raises ValueError where an array has another number of rows than the list has words, or no word has a vector.
    """
    if vectors is None:
        found, present = demo_word_vectors().of(words)
    elif isinstance(vectors, str | os.PathLike):
        found, present = read_word_vectors(Path(vectors), words=words).of(words)
    elif isinstance(vectors, WordVectors):
        found, present = vectors.of(words)
    elif isinstance(vectors, Mapping):
        found, present = WordVectors(tuple(vectors), np.array(list(vectors.values()))).of(words)
    else:
        table = WordVectors(tuple(f"row {i}" for i in range(len(vectors))), vectors)
        if len(table) != len(words):
            raise ValueError(f"vectors as an array must have one row per word ({len(words)}), got {len(table)}")
        found, present = table.vectors, np.abs(table.vectors).max(axis=1) > 0
    if present.sum() < 3:
        raise ValueError(
            f"only {int(present.sum())} of the {len(words)} words have a vector: give vectors of the same language"
        )
    return found.astype(np.float64), present


def cosines(found: NDArray[np.float64], present: NDArray[np.bool_], *, frequent: int, device: torch.device) -> Cosines:
    """Unit vectors and thresholds for vectors (words, width) of words in falling order of frequency.

    A word's threshold is the mean of its cosines to the ``frequent`` most frequent words (those with a vector) plus
    1.96 times their population standard deviation; a cosine of 0 or less is never above it.
    """
    length = np.linalg.norm(found, axis=1, keepdims=True)
    units = np.divide(found, length, out=np.zeros_like(found), where=length > 0)
    often = units[present][:frequent]
    # mean and mean square of all cosines from the moments of the frequent words: no (words, frequent) matrix
    mean = units @ often.mean(axis=0)
    square = np.einsum("wi,ij,wj->w", units, often.T @ often / len(often), units, optimize=True)
    limit = mean + SPREAD * np.sqrt(np.maximum(square - mean**2, 0))
    limit = np.where(present, np.maximum(limit, 0), np.inf)
    kind = torch.float32
    return Cosines(torch.from_numpy(units).to(device, kind), torch.from_numpy(limit).to(device, kind))
