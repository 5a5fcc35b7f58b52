"""The word pairs of all heads of one layer: activations of every dimension, its top words, and which of them pair."""

from __future__ import annotations

import math
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
from interp_widgets.analysis.tensors import as_array, wide
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind, widest

_WORDS = 16384
"""Most words per tile: their activations are reduced before the next tile."""
_FLOPS = {"cpu": 2e10, "accelerator": 1e13}
_NUMBERS = {"cpu": 10 * 2**20, "accelerator": 2**28}
"""Activations held at once: 40 MB in float32 on a CPU."""
_COSINES = {"cpu": 2**17, "accelerator": 2**27}
"""Cosines held at once: 512 kB on a CPU, where they stay in the cache."""


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

    model: Model
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
    _rooms: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """Room for what is made tile by tile, used again and again: new memory costs as much as reading it."""

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
        places, values, row_energy = self._top_words(rows.to(self.embeddings.dtype))
        energy = as_array(row_energy).astype(np.float64)
        if not np.isfinite(energy).all():
            raise ValueError(f"queries or keys of layer {layer} are not numbers: look for broken weights or embeddings")
        n = model.n_heads * model.d_head
        heads, dims = np.divmod(np.arange(n), model.d_head)
        keys = n + heads // shared * model.d_head + dims
        pairs, cosine = self._near(places, values, torch.from_numpy(keys).to(rows.device), start=len(rows))
        return self._kept(pairs, cosine, energy[:n] + energy[keys])

    def _top_words(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Top words (rows, top) of weight rows (rows, d_model), their activations, and each row's energy."""
        words, width = self.embeddings.shape
        kind = device_kind(rows.device)
        tile = min(words, _WORDS)
        size = int(max(16, min(_FLOPS[kind] / (2 * width * tile), _NUMBERS[kind] / tile)))
        size = math.ceil(len(rows) / math.ceil(len(rows) / size))  # no small rest, which would take long for its size
        places = torch.empty(len(rows), self.top, dtype=torch.long, device=rows.device)
        values = rows.new_empty(len(rows), self.top)
        energy = torch.empty(len(rows), dtype=widest(rows.device), device=rows.device)

        def work(start: int, stop: int) -> None:
            best, total = Largest(self.top, by_size=True), 0.0
            for begin in range(0, words, tile):
                if self.check is not None:
                    self.check()
                block = self.embeddings[begin : begin + tile]
                active = torch.mm(rows[start:stop], block.T, out=self._room("active", rows, stop - start, len(block)))
                best.add(active, begin)
                total = total + torch.linalg.vector_norm(active, dim=-1).to(energy.dtype) ** 2
            places[start:stop], values[start:stop], energy[start:stop] = best.places, best.values, total

        run_chunks(len(rows), size, work, what="dimension of a head", log=self.log, check=self.check, after=self.step)
        return places, values, energy

    def _room(self, name: str, like: Tensor, *shape: int) -> Tensor:
        count = math.prod(shape)
        if name not in self._rooms or self._rooms[name].numel() < count:
            self._rooms.pop(name, None)  # the old room first
            self._rooms[name] = like.new_empty(count)
        return self._rooms[name][:count].view(shape)

    def _near(
        self, places: Tensor, values: Tensor, keys: Tensor, *, start: int
    ) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
        """(3, pairs) dimension, query word and key word of every pair, and (pairs,) their cosines; ``keys`` gives each
        dimension's row of key words."""
        units = self.cosines.units
        size = max(1, _COSINES[device_kind(units.device)] // self.top**2)
        thresholds = self.cosines.thresholds
        # a word without a sign pairs with none; 2 is above all cosines, so that other signs are above no threshold
        query, key = places[: len(keys)], places[keys]
        sign, other_sign = values[: len(keys)].sign() * 2, -values[keys].sign()
        above = torch.where(sign == 0, torch.inf, thresholds[query])
        other_above = torch.where(other_sign == 0, torch.inf, thresholds[key])
        found: list[tuple[Tensor, Tensor]] = []

        def work(begin: int, stop: int) -> None:
            at = slice(begin, stop)
            cosine = self._cosines(query[at], key[at])
            limit = torch.maximum(above[at, :, None], other_above[at, None, :])
            near = cosine > torch.maximum(limit, sign[at, :, None] * other_sign[at, None, :], out=limit)
            where = _true(near)  # few are left here
            found.append((where + begin * self.top**2, cosine.view(-1).index_select(0, where)))

        def after(done: int) -> None:
            if self.step is not None:
                self.step(start + done)

        run_chunks(len(keys), size, work, what="dimension of a head", log=self.log, check=self.check, after=after)
        where, cosine = (torch.cat(parts) for parts in zip(*found, strict=True))
        row, cell = where // self.top**2, where % self.top**2
        pairs = as_array(torch.stack([row, query[row, cell // self.top], key[row, cell % self.top]]))
        different = pairs[1] != pairs[2]
        return pairs[:, different], as_array(cosine)[different]

    def _cosines(self, query: Tensor, key: Tensor) -> Tensor:
        """(rows, top, top) cosines of the words ``query`` and ``key`` (rows, top), to be read before the next call."""
        units = self.cosines.units
        count, width = query.numel(), units.shape[1]
        asking, asked_of = (self._room(name, units, count, width) for name in ("asking", "asked of"))
        # index_select is several times as fast as units[query]
        torch.index_select(units, 0, query.flatten(), out=asking)
        torch.index_select(units, 0, key.flatten(), out=asked_of)
        return torch.bmm(
            asking.view(*query.shape, width),
            asked_of.view(*key.shape, width).transpose(1, 2),
            out=self._room("cosine", units, len(query), self.top, self.top),
        )

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
        ordered = code.argsort(kind="stable")
        _, starts, times = np.unique(code[ordered], return_index=True, return_counts=True)
        unique = ordered[starts]
        cosine, owner = scores[unique], head[unique]

        counts = np.bincount(row, minlength=len(energy))
        # in the order of the words before, in which pairs of one score then stay
        order = ordered[_falling(row[ordered], scores[ordered]).argsort(kind="stable")]
        order = order[_rank(counts) < self.keep]
        n_pairs = np.bincount(owner, minlength=heads)
        best = _falling(owner * 2**16 + (2**16 - 1 - times), cosine).argsort(kind="stable")
        rank = _rank(n_pairs)
        best, rank = best[rank < self.keep], rank[rank < self.keep]
        shape = heads, self.keep
        head_pairs, head_counts = np.full((*shape, 2), -1, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        head_scores = np.full(shape, np.nan, dtype=np.float32)
        at = owner[best], rank
        head_pairs[at] = np.stack([first[unique[best]], second[unique[best]]], axis=-1)
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


def _true(mask: Tensor) -> Tensor:
    """(n,) where a mask holds, as if it were one row."""
    if device_kind(mask.device) == "accelerator":
        return mask.view(-1).nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(as_array(mask)))  # several times as fast as nonzero


def _falling(groups: NDArray[np.int64], scores: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Whole numbers that rise with the groups and, within one, with falling scores above 0: one sort instead of two.

    >>> _falling(np.array([1, 0, 0]), np.array([0.5, 0.25, 0.75])).argsort().tolist()
    [2, 1, 0]
    """
    bits = scores.astype(np.float32).view(np.int32)  # of numbers above 0 these rise with the number
    return groups * 2**32 + (2**32 - 1 - bits.astype(np.int64))


def _rank(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each entry within its group, for groups of these sizes one after the other.

    >>> _rank(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
