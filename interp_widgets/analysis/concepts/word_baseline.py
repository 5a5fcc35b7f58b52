"""`word_aucs`: how well a mere list of words tells held-out stimuli, the baseline of every direction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis.concepts.auc import auc, drawn
from interp_widgets.data.concepts import Concept, check_concepts

_BLOCK = 256
"""Concepts whose scores of all held-out stimuli are in memory at once."""


def word_aucs(concepts: Sequence[Concept], *, seed: int = 0) -> Floats:
    """(concepts,) `ConceptSet.auc` of a bag of words: the mean difference of word counts in the place of states.

    A text is which words it has, in small letters; no model takes part. A direction that does no better shows that the
    model kept which words it read, and nothing more. NaN without held-out stimuli.

    Args:
        concepts: with held-out stimuli.
        seed: of the draw of others, as in `concept_directions`.

    >>> from interp_widgets.data.concepts import demo_concepts
    >>> float(np.median(word_aucs(demo_concepts()[::20])).round(2))
    1.0
    """
    check_concepts(concepts)
    vocabulary: dict[str, int] = {}
    made = _bags([text for concept in concepts for text in concept.stimuli], vocabulary, grow=True)
    sizes = np.array([len(concept.stimuli) for concept in concepts])
    tests = [text for concept in concepts for text in concept.held_out]
    owner = np.repeat(np.arange(len(concepts)), [len(concept.held_out) for concept in concepts])
    if not tests:
        return np.full(len(concepts), np.nan)
    tested = _bags(tests, vocabulary)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    total = np.asarray(made.sum(axis=0))[0]
    everything = np.asarray(tested @ total)
    picked = drawn(len(tests), seed)
    result = np.full(len(concepts), np.nan)
    for start in range(0, len(concepts), _BLOCK):
        block = range(start, min(start + _BLOCK, len(concepts)))
        own = np.stack([np.asarray(made[starts[i] : starts[i] + sizes[i]].sum(axis=0))[0] for i in block])
        scores = np.asarray(tested @ own.T)  # (held-out stimuli, concepts) words in common with all own stimuli
        for i in block:
            others = sizes.sum() - sizes[i]
            score = scores[:, i - start] / sizes[i] - (everything - scores[:, i - start]) / others
            result[i] = auc(score[owner == i], score[(owner != i) & picked])
    return result


def _bags(texts: Sequence[str], vocabulary: dict[str, int], *, grow: bool = False) -> Any:
    """(texts, words) 1 where a text has a word, sparse; words are added to the vocabulary if it may grow."""
    from scipy.sparse import csr_matrix

    at: list[tuple[int, int]] = []
    for row, text in enumerate(texts):
        for word in sorted(set(re.findall(r"\w+", text.lower()))):
            if grow:
                vocabulary.setdefault(word, len(vocabulary))
            if word in vocabulary:
                at.append((row, vocabulary[word]))
    rows, columns = np.array(at, dtype=int).reshape(-1, 2).T
    return csr_matrix((np.ones(len(at)), (rows, columns)), shape=(len(texts), len(vocabulary)))
