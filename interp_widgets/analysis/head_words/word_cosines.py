"""Which words can form a pair: the cosine of their word vectors must exceed both words' thresholds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Bools, Floats
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors, read_word_vectors

Vectors = (
    WordVectors | str | os.PathLike[str] | Floats | Mapping[str, Sequence[float]] | None
)  # fmt: skip
"""Word vectors: `WordVectors`, a file's path, one row per word of the list, a mapping of words to vectors, or None for
the demo's."""

SPREAD = 1.96
"""Number of standard deviations above a word's mean cosine beyond which another word counts as near."""

_ROWS = 1024
"""Number of words whose vectors are converted to float64 at once."""


@dataclass(frozen=True, eq=False)
class Cosines:
    """Unit vectors of the words, and each word's threshold: the cosine above which another word counts as near."""

    units: Tensor
    """(words, width) vectors of length 1; zeros for a word without a vector."""
    thresholds: Tensor
    """(words,) at least 0; infinity for a word without a vector."""


def vectors_of(words: Sequence[str], vectors: Vectors) -> tuple[Floats, Bools]:
    """(words, width) a vector for each word of the list, and (words,) whether it has one.

    Raises ValueError where an array has another number of rows than the list has words, or no word has a vector.
    """
    if vectors is None:
        rows, present = demo_word_vectors().of(words)
    elif isinstance(vectors, str | os.PathLike):
        rows, present = read_word_vectors(Path(vectors), words=words).of(words)
    elif isinstance(vectors, WordVectors):
        rows, present = vectors.of(words)
    elif isinstance(vectors, Mapping):
        rows, present = WordVectors(tuple(vectors), np.array(list(vectors.values()))).of(words)
    else:
        if len(vectors) != len(words):
            raise ValueError(f"vectors as an array must have one row per word ({len(words)}), got {len(vectors)}")
        rows = WordVectors(tuple(words), vectors).vectors
        present = np.abs(rows).max(axis=1) > 0
    if present.sum() < 3:
        raise ValueError(
            f"only {int(present.sum())} of the {len(words)} words have a vector: give vectors of the same language"
        )
    return rows, present


def cosines(vectors: Floats, present: Bools, *, frequent: int, device: torch.device) -> Cosines:
    """Unit vectors and thresholds for vectors (words, width) of words in falling order of frequency.

    A word's threshold is the mean of its cosines to the ``frequent`` most frequent words (those with a vector) plus
    1.96 times their population standard deviation, at least 0. Computed on the CPU in float64, which not every device
    has.
    """
    table = torch.from_numpy(vectors)
    known = torch.from_numpy(present)

    def unit(rows: Tensor) -> Tensor:
        return torch.nn.functional.normalize(rows.double(), dim=-1, eps=1e-300)

    often = unit(table[torch.from_numpy(np.flatnonzero(present)[:frequent])])
    middle, moments = often.mean(0), often.T @ often / len(often)
    units = torch.empty(table.shape, dtype=torch.float32)
    limit = torch.empty(len(table), dtype=torch.float64)
    for start in range(0, len(table), _ROWS):
        at = slice(start, start + _ROWS)
        rows = unit(table[at])
        # mean and mean square cosines follow from the moments of the frequent words, without a large matrix
        mean, square = rows @ middle, torch.linalg.vecdot(rows @ moments, rows)
        units[at], limit[at] = rows, mean + SPREAD * (square - mean**2).clamp_min(0).sqrt()
    return Cosines(units.to(device), torch.where(known, limit.clamp_min(0), torch.inf).float().to(device))
