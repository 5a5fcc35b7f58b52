"""`head_word_pairs`: the words that every attention head relates to each other, read from its weights alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis._core.chunks import ChunkLog
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.word_embeddings import Words, chosen_layers, word_list, word_table
from interp_widgets.analysis.head_words.head_word_result import HeadWordResult
from interp_widgets.analysis.head_words.pair_search import LayerPairs, PairSearch
from interp_widgets.analysis.head_words.word_cosines import Vectors, cosines, vectors_of
from interp_widgets.arguments import checked
from interp_widgets.models import Model

FREQUENT = 1000
"""Most frequent words that a word's threshold is taken from."""


MOST_TOP, MOST_KEEP = 1000, 100_000
"""Largest K, ten times that of the paper, and most pairs kept of a head."""


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

    Each dimension d of a head reacts to a word w by ``e_w · W_Q[:, d]`` where the word asks and ``e_w · W_K[:, d]``
    where it is asked, the scale of the norm before attention folded into both. Of the ``top`` words that it reacts to
    most in either role, two different words are a pair if both reactions have the same sign and the cosine of their
    *word vectors* exceeds both words' thresholds: the mean plus 1.96 standard deviations of a word's cosines to the
    ``frequent`` most frequent words. A head's pairs are those that most of its dimensions have. Heads that share a key
    (grouped-query attention) each pair their own queries with it. Positions, biases, norms of queries and keys, and the
    centring of a LayerNorm are left out, as in the paper.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: the most frequent first, or a mapping from word to count; default: those of ``vectors`` if it brings
            words, else the demo's.
        vectors: `WordVectors`, the path of a file of them, a mapping from word to vector, or an array with one row per
            word (zeros: no vector); default: the demo's.
        top: words per dimension and role (K), 1 to 1,000; of a shorter list all words. All top × top pairs of every
            dimension are looked at.
        keep: most pairs kept per head, and per dimension, 1 to 100,000.
        frequent: words, from the beginning of the list, that thresholds are taken from; those without a vector do
            not count.
        layers: of the model; default: all.
        progress: called with (done, total) rows of work.
        check: called between tiles; raises to cancel.
        on_partial: receives, after every layer but the last, a partial result with the layers done so far.

    Raises:
        ValueError: an empty or doubled word, vectors that fit no word, an option out of range, a layer that is not
            there.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1 and appendix F.

    Example:
        >>> found = head_word_pairs(model)
        >>> best = found.pairs(0, 4)[0]
        >>> best.query, best.key, best.dimensions, round(best.score, 1)
        ('One', 'Friends', 11, 0.7)
    """
    if frequent < 2:
        raise ValueError(f"frequent must be 2 or more, got {frequent}")
    for name, value, most in (("top", top, MOST_TOP), ("keep", keep, MOST_KEEP)):
        if not 1 <= value <= most:
            raise ValueError(f"{name} must be in 1..{most}, got {value}: time and memory grow with top x top and keep")
    numbers = chosen_layers(model, layers)
    listed = word_list(words if words is not None else _own_words(vectors))
    found, present = vectors_of(listed, vectors)
    table = word_table(model, listed, check=check)
    known = np.isin(listed, table.words) if table.unknown else np.ones(len(listed), dtype=bool)
    near = cosines(found[known], present[known], frequent=frequent, device=table.embeddings.device)
    log = ChunkLog()
    search = PairSearch(model, table.embeddings, near, min(top, len(table.words)), keep, check=check, log=log)
    done: list[LayerPairs] = []
    told = {"words": len(listed), "vectors": _describe(vectors), "top": search.top, "keep": keep, "frequent": frequent}

    def result(*, partial: bool = False) -> HeadWordResult:
        return _result(
            done,
            d_head=model.d_head,
            vocabulary=table.words,
            layers=tuple(numbers[: len(done)]),
            missing=tuple(word for word, there in zip(listed, present | ~known, strict=True) if not there),
            unknown=table.unknown,
            top=search.top,
            partial=partial,
            provenance=provenance(model.provenance(), **told, chunk_halvings=log.halvings),
        )

    def step(rows: int) -> None:
        if progress is not None:
            progress(len(done) * search.steps + rows, len(numbers) * search.steps)

    search.step = step
    for layer in numbers:
        with model.lock:
            done.append(search.layer(layer))
        if on_partial is not None and len(done) < len(numbers):
            on_partial(result(partial=True))
    return result()


def _own_words(vectors: Vectors) -> Words:
    """The words that vectors bring themselves; None for the demo's, a file's path or an array."""
    from interp_widgets.data.word_vectors import WordVectors

    if isinstance(vectors, WordVectors):
        return vectors
    return tuple(vectors) if isinstance(vectors, dict) else None


def _describe(vectors: Vectors) -> str:
    if vectors is None:
        return "demo"
    return str(vectors) if isinstance(vectors, str) or hasattr(vectors, "__fspath__") else type(vectors).__name__


def _result(done: Sequence[LayerPairs], *, d_head: int, **fields: Any) -> HeadWordResult:
    """The layers' pairs in one result."""
    heads = len(done[0].n_pairs)
    by_dimension = len(done), heads, d_head
    return HeadWordResult(
        energy=np.stack([layer.energy for layer in done]).reshape(by_dimension),
        n_pairs=np.stack([layer.n_pairs for layer in done]),
        head_pairs=np.stack([layer.head_pairs for layer in done]),
        head_counts=np.stack([layer.head_counts for layer in done]),
        head_scores=np.stack([layer.head_scores for layer in done]),
        dimension_counts=np.stack([layer.counts for layer in done]).reshape(by_dimension),
        dimension_offsets=np.concatenate([[0], np.cumsum(np.concatenate([layer.sizes for layer in done]))]),
        dimension_word_pairs=np.concatenate([layer.pairs for layer in done]),
        dimension_scores=np.concatenate([layer.scores for layer in done]),
        **fields,
    )
