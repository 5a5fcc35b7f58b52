"""Principal directions of an MLP's output weights, and the words along them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis.chunks import ChunkLog, run_chunks
from interp_widgets.analysis.largest import Largest
from interp_widgets.analysis.tensors import as_array, to_numpy
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind, has_float64

_FLOPS = {"cpu": 1e10, "accelerator": 1e13}
_NUMBERS = {"cpu": 2**22, "accelerator": 2**27}
"""Projections held at once."""

Check = Callable[[], None] | None


def most_components(model: Model) -> int:
    """Directions in which centred output weights can vary."""
    return int(min(model.d_mlp - 1, model.d_model))


@torch.no_grad()
def principal_directions(weights: Tensor, rank: int, check: Check = None) -> tuple[Tensor, NDArray[np.float64]]:
    """The directions (rank, d_model) in which rows (n, d_model) vary most, and the share (rank,) of the variance each
    explains; float64.

    They are eigenvectors of the rows' covariance: their right singular vectors once the columns' means are taken away.
    A device without float64 leaves this to the CPU: in float32 the covariance would lose the directions of small
    variance.
    """
    weights = weights if has_float64(weights.device) else weights.cpu()
    kind = device_kind(weights.device)
    mean = weights.mean(0, dtype=torch.float64)
    width = weights.shape[1]
    covariance = torch.zeros(width, width, dtype=torch.float64, device=weights.device)

    def work(start: int, stop: int) -> None:
        rows = weights[start:stop].double() - mean
        covariance.addmm_(rows.T, rows)

    size = int(_FLOPS[kind] / (2 * width**2))
    run_chunks(len(weights), max(size, 64), work, what="neuron", check=check)
    if check is not None:
        check()
    total = float(covariance.trace())
    if not 0 < total < np.inf:
        what = "all the same: they have no direction to read" if total == 0 else "not all finite numbers"
        raise ValueError(f"the MLP output weights of a layer are {what}")
    if kind == "accelerator":
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values[-rank:], vectors[:, -rank:]
    else:  # SciPy solves for the wanted ones only: twice as fast
        found = scipy.linalg.eigh(as_array(covariance), subset_by_index=(width - rank, width - 1))
        values, vectors = (torch.from_numpy(part) for part in found)
    shares = np.maximum(as_array(values.flip(0)), 0) / total
    return vectors.flip(1).T.contiguous(), shares


@dataclass(frozen=True, eq=False)
class NearestWords:
    """For every direction the words of the largest positive and the largest negative projection."""

    plus: NDArray[np.int32]
    """(rank, top) places of words, largest projection first; -1 where fewer words are on that side."""
    plus_scores: NDArray[np.floating[Any]]
    """(rank, top) their projections, above 0; NaN where there are fewer."""
    minus: NDArray[np.int32]
    """(rank, top) places of words, most negative projection first; -1 where there are fewer."""
    minus_scores: NDArray[np.floating[Any]]
    """(rank, top) their projections, below 0; NaN where there are fewer."""
    sign: NDArray[np.int64]
    """(rank,) 1 or -1 by which the directions are multiplied, so that the largest projection of all is positive."""


@torch.no_grad()
def nearest_words(
    directions: Tensor, words: Tensor, top: int, *, check: Check = None, log: ChunkLog | None = None
) -> NearestWords:
    """The ``top`` words on either side of directions (rank, width), by projection of word vectors (words, width).

    Words come in tiles. A direction's sign is free: it is turned so that the word with the largest projection of all
    is on the positive side.
    """
    sides = Largest(top), Largest(top)
    kind = device_kind(words.device)
    directions = directions.to(words.dtype).to(words.device)  # the type first: the device may have no float64
    most = min(_NUMBERS[kind] / len(directions), _FLOPS[kind] / (2 * directions.numel()))

    def work(start: int, stop: int) -> None:
        scores = directions @ words[start:stop].T
        for side, tile in zip(sides, (scores, -scores), strict=True):
            side.add(tile, start)

    run_chunks(len(words), max(int(most), top), work, what="word", check=check, log=log)
    (plus, high), (minus, low) = ((as_array(side.places), to_numpy(side.values)) for side in sides)
    turned = low[:, 0] > high[:, 0]
    plus, minus = np.where(turned[:, None], minus, plus), np.where(turned[:, None], plus, minus)
    high, low = np.where(turned[:, None], low, high), np.where(turned[:, None], high, low)
    return NearestWords(
        plus=np.where(high > 0, plus, -1).astype(np.int32),
        plus_scores=np.where(high > 0, high, np.nan),
        minus=np.where(low > 0, minus, -1).astype(np.int32),
        minus_scores=np.where(low > 0, -low, np.nan),
        sign=np.where(turned, -1, 1),
    )
