"""The word pairs of all heads of one layer: activations of every dimension, its top words, and which of them pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis.chunks import ChunkLog, run_chunks
from interp_widgets.analysis.head_words.cosines import Cosines
from interp_widgets.analysis.largest import Largest
from interp_widgets.analysis.tensors import wide

_WORDS = 16384
"""Most words per tile: their activations are reduced before the next tile."""
_FLOPS = {"cpu": 1e10, "cuda": 1e13}
_NUMBERS = {"cpu": 2**23, "cuda": 2**28}
"""Activations held at once: 32 MB in float32 on a CPU."""
_COSINES = {"cpu": 2**18, "cuda": 2**27}
"""Cosines held at once: 1 MB on a CPU, where they stay in the cache."""


@dataclass(frozen=True, eq=False)
class LayerPairs:
    """The word pairs of one layer. A row is one dimension of one head, heads one after the other."""

    energy: NDArray[np.float64]
    """(rows,) sum of the squared query and key activations of all words."""
    counts: NDArray[np.int64]
    """(rows,) pairs of each dimension, before cutting."""
    sizes: NDArray[np.int64]
    """(rows,) pairs of each dimension that are kept."""
    pairs: NDArray[np.int32]
    """(sum of sizes, 2) query and key word of the kept pairs, those of a row together, nearest first."""
    scores: NDArray[np.float32]
    """(sum of sizes,) their cosines."""
    n_pairs: NDArray[np.int64]
    """(heads,) different pairs of each head, before cutting."""
    head_pairs: NDArray[np.int32]
    """(heads, keep, 2) the head's pairs, those of most dimensions first, then the nearest; -1 where there are fewer."""
    head_counts: NDArray[np.int32]
    """(heads, keep) dimensions of the head that have the pair."""
    head_scores: NDArray[np.float32]
    """(heads, keep) cosines; NaN where there are fewer."""


@dataclass
class PairSearch:
    """Finds the word pairs of a model's heads, layer by layer."""

    model: Any
    embeddings: Tensor
    """(words, d_model) input embedding of each word."""
    cosines: Cosines
    top: int
    """Words per dimension."""
    keep: int
    """Most pairs kept per dimension and per head."""
    check: Callable[[], None] | None = None
    step: Callable[[int], None] | None = None
    """Called with the rows done in a layer: those of queries and keys, then the dimensions."""
    log: ChunkLog | None = None
    _tile: Tensor | None = field(default=None, repr=False)
    """Room for one tile of activations, used again and again: new memory costs as much as reading it."""

    @property
    def steps(self) -> int:
        """Rows of one layer: query and key dimensions, and pairs of them."""
        return int((2 * self.model.n_heads + self.model.n_kv_heads) * self.model.d_head)

    @torch.no_grad()
    def layer(self, layer: int) -> LayerPairs:
        """The pairs of one layer."""
        model = self.model
        shared = model.n_heads // model.n_kv_heads
        scale = wide(model.weight("ln1_w", layer))
        query, key = model.weight("W_Q", layer), model.weight("W_K", layer)[::shared]
        # the scale multiplies what enters, so it goes into the rows of both; each row here is one dimension
        rows = torch.cat([(wide(part) * scale[:, None]).transpose(1, 2).flatten(0, 1) for part in (query, key)])
        places, values, energy = self._top_words(rows.to(self.embeddings.dtype))
        if not bool(energy.isfinite().all()):
            raise ValueError(f"queries or keys of layer {layer} are not numbers: look for broken weights or embeddings")
        n = model.n_heads * model.d_head
        heads, dims = torch.arange(n, device=rows.device) // model.d_head, torch.arange(n, device=rows.device)
        keys = n + heads // shared * model.d_head + dims % model.d_head
        pairs, cosine = self._near(places, values, keys, start=len(rows))
        return self._kept(pairs, cosine, (energy[:n] + energy[keys]).cpu().numpy())

    def _top_words(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Top words (rows, top) of weight rows (rows, d_model), their activations, and each row's energy."""
        words, width = self.embeddings.shape
        kind = "cuda" if rows.is_cuda else "cpu"
        tile = min(words, _WORDS)
        size = int(max(16, min(_FLOPS[kind] / (2 * width * tile), _NUMBERS[kind] / tile)))
        places = torch.empty(len(rows), self.top, dtype=torch.long, device=rows.device)
        values = rows.new_empty(len(rows), self.top)
        energy = torch.empty(len(rows), dtype=torch.float64, device=rows.device)

        def work(start: int, stop: int) -> None:
            best, total = Largest(self.top, by_size=True), 0.0
            for begin in range(0, words, tile):
                if self.check is not None:
                    self.check()
                block = self.embeddings[begin : begin + tile]
                active = torch.mm(rows[start:stop], block.T, out=self._room(stop - start, len(block)))
                best.add(active, begin)
                total = total + torch.linalg.vector_norm(active, dim=-1).double() ** 2
            places[start:stop], values[start:stop], energy[start:stop] = best.places, best.values, total

        run_chunks(len(rows), size, work, what="dimension of a head", log=self.log, check=self.check, after=self.step)
        return places, values, energy

    def _room(self, rows: int, words: int) -> Tensor:
        if self._tile is None or self._tile.numel() < rows * words:
            self._tile = None  # the old room first
            self._tile = self.embeddings.new_empty(rows * words)
        return self._tile[: rows * words].view(rows, words)

    def _near(
        self, places: Tensor, values: Tensor, keys: Tensor, *, start: int
    ) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
        """(3, pairs) dimension, query word and key word of every pair, and (pairs,) their cosines; ``keys`` gives each
        dimension's row of key words."""
        units, thresholds = self.cosines.units, self.cosines.thresholds
        found: list[tuple[NDArray[np.int64], NDArray[np.floating[Any]]]] = []
        size = max(1, _COSINES["cuda" if units.is_cuda else "cpu"] // self.top**2)

        def work(begin: int, stop: int) -> None:
            at = slice(begin, stop)
            query, key = places[at], places[keys[at]]
            # index_select is several times as fast as units[query]
            asking, asked_of = (units.index_select(0, side.flatten()).view(*side.shape, -1) for side in (query, key))
            cosine = asking @ asked_of.transpose(1, 2)
            near = (cosine > thresholds[query][:, :, None]).logical_and_(cosine > thresholds[key][:, None, :])
            row, i, j = near.nonzero(as_tuple=True)
            # few are left here: what the other conditions leave of them
            asks, asked = query[row, i], key[row, j]
            strength = values[at][row, i].sign() * values[keys[at]][row, j].sign()
            kept = (strength > 0) & (asks != asked)
            pairs = torch.stack([row + begin, asks, asked])[:, kept]
            found.append((pairs.cpu().numpy(), cosine[row, i, j][kept].cpu().numpy()))

        def after(done: int) -> None:
            if self.step is not None:
                self.step(start + done)

        run_chunks(len(keys), size, work, what="dimension of a head", log=self.log, check=self.check, after=after)
        return np.concatenate([pairs for pairs, _ in found], axis=1), np.concatenate([part for _, part in found])

    def _kept(
        self, pairs: NDArray[np.int64], cosine: NDArray[np.floating[Any]], energy: NDArray[np.float64]
    ) -> LayerPairs:
        """Order the pairs of dimensions and heads, and cut both."""
        words, heads = len(self.embeddings), self.model.n_heads
        row, first, second = pairs
        head = row // self.model.d_head
        # the same two words have one cosine wherever and in whichever order they stand
        _, where, which = np.unique(
            np.minimum(first, second) * words + np.maximum(first, second), return_index=True, return_inverse=True
        )
        scores = cosine[where][which]
        code = (head * words + first) * words + second
        unique, index, times = np.unique(code, return_index=True, return_counts=True)
        cosine = scores[index]
        owner = head[index]

        counts = np.bincount(row, minlength=len(energy))
        order = np.lexsort((code, -scores, row))
        order = order[_rank(counts) < self.keep]
        n_pairs = np.bincount(owner, minlength=heads)
        best = np.lexsort((unique, -cosine, -times, owner))
        rank = _rank(n_pairs)
        best, rank = best[rank < self.keep], rank[rank < self.keep]
        shape = heads, self.keep
        head_pairs, head_counts = np.full((*shape, 2), -1, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        head_scores = np.full(shape, np.nan, dtype=np.float32)
        at = owner[best], rank
        head_pairs[at] = np.stack([first[index][best], second[index][best]], axis=-1)
        head_counts[at], head_scores[at] = times[best], cosine[best]
        return LayerPairs(
            energy=energy,
            counts=counts,
            sizes=np.minimum(counts, self.keep),
            pairs=np.stack([first[order], second[order]], axis=-1).astype(np.int32),
            scores=scores[order].astype(np.float32),
            n_pairs=n_pairs,
            head_pairs=head_pairs,
            head_counts=head_counts,
            head_scores=head_scores,
        )


def _rank(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each entry within its group, for groups of these sizes one after the other.

    >>> _rank(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
