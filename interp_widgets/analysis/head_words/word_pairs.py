"""`head_word_pairs`: the words that every attention head relates to each other, read from its weights alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_finite, check_range, layer_indices
from interp_widgets.analysis._core.chunks import ChunkLog, run_chunks
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tensors import as_array, wide
from interp_widgets.analysis._core.top_k import TopK
from interp_widgets.analysis._core.word_embeddings import Words, WordTable, word_list, word_table
from interp_widgets.analysis.head_words.head_word_result import HeadWordResult
from interp_widgets.analysis.head_words.word_cosines import Cosines, Vectors, cosines, vectors_of
from interp_widgets.arguments import checked
from interp_widgets.data.word_vectors import WordVectors
from interp_widgets.models import Model
from interp_widgets.models.devices import accumulation_dtype, device_kind

FREQUENT = 1000
"""Number of most frequent words used for a word's threshold."""
MOST_TOP, MOST_KEEP = 1000, 100_000
"""Largest K, ten times the paper's, and most pairs kept per head."""
ADVICE = "time and memory grow with top x top and keep"

_WORDS = 16384
"""Most words per tile; a tile's activations are reduced before the next one."""
_FLOPS = {"cpu": 2e10, "accelerator": 1e13}
_NUMBERS = {"cpu": 10 * 2**20, "accelerator": 2**28}
"""Activations in memory at once: 40 MB in float32 on a CPU."""
_COSINES = {"cpu": 2**17, "accelerator": 2**27}
"""Cosines in memory at once: 512 kB on a CPU, which fits in the cache."""
_TILES = 64e6
"""Bytes of activations and cosines in memory at once."""


@checked
def head_word_pairs(
    model: Model,
    *,
    words: Words = None,
    vectors: Vectors = None,
    top: int = 100,
    keep: int = 100,
    frequent: int = FREQUENT,
    layers: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[HeadWordResult], None] | None = None,
) -> HeadWordResult:
    """The word pairs that each attention head relates, from its weights and the words' embeddings.

    A reading of the QK circuit of each head.

    Dimension d of a head has the activation ``e_w · W_Q[:, d]`` for a word w as query and ``e_w · W_K[:, d]`` as key,
    with the scale of the norm before attention folded into both. A query word and a different key word, each among the
    ``top`` words with the largest absolute activation in its role, form a pair if both activations have the same sign
    and the cosine of their *word vectors* exceeds both words' thresholds: the mean plus 1.96 standard deviations of a
    word's cosines to the ``frequent`` most frequent words. A head's pairs are those that most of its dimensions have.
    With grouped-query attention, each head pairs its own queries with the shared keys. As in the paper, positions,
    biases, norms of queries and keys, and the centring of a LayerNorm are left out.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: the most frequent first, or a mapping from word to count; default: those of ``vectors`` if it has words,
            else the demo's.
        vectors: `WordVectors`, the path of a file of them, a mapping from word to vector, or an array with one row per
            word (zeros: no vector); default: the demo's.
        top: words per dimension and role (K), 1 to 1,000; all words of a shorter list. All top × top pairs of every
            dimension are tested.
        keep: most pairs kept per head, and per dimension, 1 to 100,000.
        frequent: number of words, from the beginning of the list, used for thresholds; those without a vector do not
            count.
        layers: of the model, negative ones from the end; default: all.
        progress: called with (done, total) rows of work.
        check: called between tiles; raises to cancel.
        on_partial: receives, after every layer but the last, a partial result with the layers done so far.

    Raises:
        ValueError: an empty or repeated word, vectors for none of the words, an option out of range, an unknown layer.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1 and appendix F.

    Example:
        >>> result = head_word_pairs(model)
        >>> best = result.pairs(0, 4)[0]
        >>> best.query, best.key, best.dimensions, round(best.score, 1)
        ('One', 'Friends', 11, 0.7)
    """
    check_range("keep", keep, most=MOST_KEEP, advice=ADVICE)
    numbers = sorted(layer_indices(model, layers))
    origin, run = model.provenance(), RunOptions(progress, check)
    listed, table, present, search = pair_search(
        model, "head_word_pairs", words, vectors, top=top, keep=keep, frequent=frequent, run=run
    )
    known = np.isin(listed, table.words) if table.unknown else np.ones(len(listed), dtype=bool)
    done: list[LayerPairs] = []
    options = {
        "words": len(listed),
        "vectors": describe(vectors),
        "top": search.top,
        "keep": keep,
        "frequent": frequent,
    }

    def result(*, partial: bool = False) -> HeadWordResult:
        return _result(
            done,
            vocabulary=table.words,
            layers=tuple(numbers[: len(done)]),
            missing=tuple(word for word, has_vector in zip(listed, present | ~known, strict=True) if not has_vector),
            unknown=table.unknown,
            top=search.top,
            partial=partial,
            provenance=provenance(origin, **options, chunk_halvings=search.log.halvings),
        )

    def step(rows: int) -> None:
        run.report(len(done) * search.steps + rows, len(numbers) * search.steps)

    search.step = step
    for layer in numbers:
        done.append(search.layer(layer))
        if on_partial is not None and len(done) < len(numbers):
            on_partial(result(partial=True))
    return result()


def pair_search(
    model: Model, function: str, words: Words, vectors: Vectors, *, top: int, keep: int, frequent: int, run: RunOptions
) -> tuple[tuple[str, ...], WordTable, NDArray[np.bool_], PairSearch]:
    """The listed words, the embeddings of those that the model can write, a mask (listed words,) of those with a
    vector, and the search; ValueError as in `head_word_pairs`."""
    model.capabilities.require("head_weights", function)
    model.capabilities.require("input_norms", function)
    check_range("frequent", frequent, 2)
    check_range("top", top, most=MOST_TOP, advice=ADVICE)
    listed = word_list(words if words is not None else _own_words(vectors))
    rows, present = vectors_of(listed, vectors)
    table = word_table(model, listed, check=run.check)
    known = np.isin(listed, table.words) if table.unknown else np.ones(len(listed), dtype=bool)
    near = cosines(rows[known], present[known], frequent=frequent, device=table.embeddings.device)
    best = min(top, len(table.words))
    return listed, table, present, PairSearch(model, table.embeddings, near, best, keep, run)


def _own_words(vectors: Vectors) -> Words:
    """The words that come with the vectors; None for the demo's, a file's path or an array."""
    if isinstance(vectors, WordVectors):
        return vectors
    return tuple(vectors) if isinstance(vectors, Mapping) else None


def describe(vectors: Vectors) -> str:
    """The source of the vectors, for the provenance."""
    if vectors is None:
        return "demo"
    return str(vectors) if isinstance(vectors, str | os.PathLike) else type(vectors).__name__


def _result(layers_done: Sequence[LayerPairs], **fields: Any) -> HeadWordResult:
    """One result from the layers: pairs of dimensions are concatenated, all other arrays stacked."""
    names = [name for name in layers_done[0] if name not in ("dimension_word_pairs", "dimension_scores")]
    arrays: dict[str, Any] = {name: np.stack([layer[name] for layer in layers_done]) for name in names}
    kept = np.minimum(arrays["dimension_counts"], arrays["head_counts"].shape[-1])
    for name in ("dimension_word_pairs", "dimension_scores"):
        arrays[name] = np.concatenate([layer[name] for layer in layers_done])
    return HeadWordResult(dimension_offsets=np.concatenate([[0], np.cumsum(kept)]), **arrays, **fields)


def head_words_cost(model: Model, words: int, *, width: int, top: int = 100, keep: int = 100) -> Cost:
    """Operations and peak bytes of `head_word_pairs` on so many words.

    Args:
        model: a `Model`.
        words: of the list.
        width: numbers per word vector.
        top: words per dimension and role.
        keep: pairs kept per head and per dimension.

    Example:
        >>> round(head_words_cost(model, 13_000, width=300).flops / 1e9, 1)
        15.5
    """
    rows, dims = (model.n_heads + model.n_kv_heads) * model.d_head, model.n_heads * model.d_head
    best = min(top, words)
    flops = 2.0 * model.n_layers * (rows * words * model.d_model + dims * best**2 * width)
    tables = 4.0 * words * (model.d_model + width)
    kept = 12.0 * model.n_layers * dims * keep
    return Cost(flops=flops, bytes=tables + kept + _TILES)


LayerPairs = dict[str, NDArray[Any]]
"""The word pairs of one layer: the arrays of a `HeadWordResult` by name, without the layer axis."""


@dataclass(frozen=True, eq=False)
class TopWords:
    """The words with the largest absolute activation for each dimension of a layer's heads."""

    words: Tensor
    """(rows, top) words of each row: the dimensions of all queries, then those of all keys."""
    values: Tensor
    """(rows, top) their activations."""
    keys: Tensor
    """(dimensions,) the row of each dimension's key words."""
    energy: NDArray[np.float64]
    """(dimensions,) sum over all words of the squared activations, as query and as key."""


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
    run: RunOptions = field(default_factory=RunOptions)
    step: Callable[[int], None] | None = None
    """Called with the rows done in a layer: those of queries and keys, then the dimensions."""
    log: ChunkLog = field(default_factory=ChunkLog)
    _buffers: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """Memory reused by all tiles, since allocating it costs as much time as reading it."""

    @property
    def steps(self) -> int:
        """Rows of one layer: query and key dimensions, and pairs of them."""
        return int((2 * self.model.n_heads + self.model.n_kv_heads) * self.model.d_head)

    @torch.no_grad()
    def layer(self, layer: int) -> LayerPairs:
        """The pairs of one layer."""
        top_words = self.top_words(layer)
        return self._layer_pairs(*self.pairs(top_words, self.cosines), top_words.energy)

    @torch.no_grad()
    def top_words(self, layer: int) -> TopWords:
        """The top words of the dimensions of one layer."""
        model = self.model
        shared = model.n_heads // model.n_kv_heads
        with model.lock:  # the weights are of one moment
            scale = wide(model.weight("ln1_w", layer))
            query, key = model.weight("W_Q", layer), model.weight("W_K", layer)[::shared]
            # the norm's scale multiplies the input of both matrices; each row of the result is one dimension
            scaled = torch.cat([wide(part) * scale[:, None] for part in (query, key)])
        rows = rearrange(scaled, "head d_model d_head -> (head d_head) d_model")
        words, values, row_energy = self._top_words_of_rows(rows.to(self.embeddings.dtype))
        energy = as_array(row_energy).astype(np.float64)
        check_finite(energy, lambda row: f"dimension {row % model.d_head} of a query or key in layer {layer}")
        n = model.n_heads * model.d_head
        keys = repeat(
            np.arange(n, len(rows)), "(key d_head) -> (key shared d_head)", shared=shared, d_head=model.d_head
        )
        return TopWords(words, values, torch.from_numpy(keys).to(rows.device), energy[:n] + energy[keys])

    def _top_words_of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Top words (rows, top) of weight rows (rows, d_model), their activations, and each row's energy."""
        words, width = self.embeddings.shape
        tile = min(words, _WORDS)
        flops, numbers = _FLOPS[device_kind(rows.device)], _NUMBERS[device_kind(rows.device)]
        size = int(max(16, min(flops / (2 * width * tile), numbers / tile)))
        size = math.ceil(len(rows) / math.ceil(len(rows) / size))  # equal chunks: a small last one would be slow
        indices = torch.empty(len(rows), self.top, dtype=torch.long, device=rows.device)
        values = rows.new_empty(len(rows), self.top)
        energy = torch.empty(len(rows), dtype=accumulation_dtype(rows.device), device=rows.device)

        def work(start: int, stop: int) -> None:
            best, total = TopK(self.top, by_size=True), 0.0
            for begin in range(0, words, tile):
                self.run.stop_if_cancelled()
                block = self.embeddings[begin : begin + tile]
                active = torch.mm(rows[start:stop], block.T, out=self._buffer("active", rows, stop - start, len(block)))
                best.add(active, begin)
                total = total + torch.linalg.vector_norm(active, dim=-1).to(energy.dtype) ** 2
            indices[start:stop], values[start:stop], energy[start:stop] = best.indices, best.values, total

        run_chunks(
            len(rows), size, work, what="dimension of a head", log=self.log, check=self.run.check, after=self.step
        )
        return indices, values, energy

    def _buffer(self, name: str, template: Tensor, *shape: int) -> Tensor:
        count = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < count:
            self._buffers.pop(name, None)  # frees the old buffer before the new one is allocated
            self._buffers[name] = template.new_empty(count)
        return self._buffers[name][:count].view(shape)

    @torch.no_grad()
    def pairs(self, top_words: TopWords, cosines: Cosines) -> tuple[NDArray[np.int64], Floats]:
        """(3, pairs) dimension, query word and key word of every pair, and (pairs,) their cosines."""
        words, values, keys = top_words.words, top_words.values, top_words.keys
        units, thresholds, start = cosines.units, cosines.thresholds, len(words)
        size = max(1, _COSINES[device_kind(units.device)] // self.top**2)
        # no cosine exceeds 2 or infinity: words of opposite sign, or with activation 0, form no pair
        query, key = words[: len(keys)], words[keys]
        sign, other_sign = values[: len(keys)].sign() * 2, -values[keys].sign()
        above = torch.where(sign == 0, torch.inf, thresholds[query])
        other_above = torch.where(other_sign == 0, torch.inf, thresholds[key])
        tiles: list[tuple[Tensor, Tensor]] = []

        def work(begin: int, stop: int) -> None:
            at = slice(begin, stop)
            cosine = self._cosines(units, query[at], key[at])
            limit = torch.maximum(above[at, :, None], other_above[at, None, :])
            above_both = cosine > torch.maximum(limit, sign[at, :, None] * other_sign[at, None, :], out=limit)
            flat = _flat_indices(above_both)  # few pairs remain
            tiles.append((flat + begin * self.top**2, cosine.view(-1).index_select(0, flat)))

        def after(done: int) -> None:
            if self.step is not None:
                self.step(start + done)

        run_chunks(len(keys), size, work, what="dimension of a head", log=self.log, check=self.run.check, after=after)
        flat, cosine = (torch.cat(tensors) for tensors in zip(*tiles, strict=True))
        row, cell = flat // self.top**2, flat % self.top**2
        pairs = as_array(torch.stack([row, query[row, cell // self.top], key[row, cell % self.top]]))
        different = pairs[1] != pairs[2]
        return pairs[:, different], as_array(cosine)[different]

    def _cosines(self, units: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """(rows, top, top) cosines of the words ``query`` and ``key`` (rows, top), valid until the next call."""
        count, width = query.numel(), units.shape[1]
        of_query, of_key = (self._buffer(name, units, count, width) for name in ("query", "key"))
        # index_select is several times as fast as units[query]
        torch.index_select(units, 0, query.flatten(), out=of_query)
        torch.index_select(units, 0, key.flatten(), out=of_key)
        return torch.bmm(
            of_query.view(*query.shape, width),
            of_key.view(*key.shape, width).transpose(1, 2),
            out=self._buffer("cosine", units, len(query), self.top, self.top),
        )

    def _layer_pairs(self, pairs: NDArray[np.int64], cosine: Floats, energy: NDArray[np.float64]) -> LayerPairs:
        """Sort the pairs of dimensions and of heads, and keep the first `keep` of each."""
        words, heads = len(self.embeddings), self.model.n_heads
        row, first, second = pairs
        head = row // self.model.d_head
        # two words have the same cosine in every head and in either order
        _, first_seen, inverse = np.unique(
            np.minimum(first, second) * words + np.maximum(first, second), return_index=True, return_inverse=True
        )
        scores = cosine[first_seen][inverse]
        code = (head * words + first) * words + second
        ordered = code.argsort(kind="stable")
        _, starts, times = np.unique(code[ordered], return_index=True, return_counts=True)
        unique = ordered[starts]
        cosine, owner = scores[unique], head[unique]

        counts = np.bincount(row, minlength=len(energy))
        # sorted by words before, so that the stable sort leaves ties in that order
        order = ordered[_sort_keys(row[ordered], scores[ordered]).argsort(kind="stable")]
        order = order[_rank(counts) < self.keep]
        n_pairs = np.bincount(owner, minlength=heads)
        best = _sort_keys(owner * 2**16 + (2**16 - 1 - times), cosine).argsort(kind="stable")
        rank = _rank(n_pairs)
        best, rank = best[rank < self.keep], rank[rank < self.keep]
        shape = heads, self.keep
        head_pairs, head_counts = np.full((*shape, 2), -1, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        head_scores = np.full(shape, np.nan, dtype=np.float32)
        at = owner[best], rank
        head_pairs[at] = np.stack([first[unique[best]], second[unique[best]]], axis=-1)
        head_counts[at], head_scores[at] = times[best], cosine[best]
        by_dimension = heads, self.model.d_head
        return {
            "energy": energy.reshape(by_dimension),
            "n_pairs": n_pairs,
            "head_pairs": head_pairs,
            "head_counts": head_counts,
            "head_scores": head_scores,
            "dimension_counts": counts.reshape(by_dimension),
            "dimension_word_pairs": np.stack([first[order], second[order]], axis=-1).astype(np.int32),
            "dimension_scores": scores[order].astype(np.float32),
        }


def _flat_indices(mask: Tensor) -> Tensor:
    """(n,) flat indices where a mask is true."""
    if device_kind(mask.device) == "accelerator":
        return mask.view(-1).nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(as_array(mask)))  # several times as fast as nonzero


def _sort_keys(groups: NDArray[np.int64], scores: Floats) -> NDArray[np.int64]:
    """Sort keys for one sort instead of two: by group, and within a group by falling score (scores above 0).

    >>> _sort_keys(np.array([1, 0, 0]), np.array([0.5, 0.25, 0.75])).argsort().tolist()
    [2, 1, 0]
    """
    bits = scores.astype(np.float32).view(np.int32)  # monotonic for positive floats
    return groups * 2**32 + (2**32 - 1 - bits.astype(np.int64))


def _rank(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank of each entry within its group, for consecutive groups of these sizes.

    >>> _rank(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
