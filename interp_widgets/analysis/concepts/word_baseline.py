"""`word_aucs`: a bag-of-words baseline for the AUC of concept directions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis.concepts.auc import auc, sampled
from interp_widgets.data.concepts import Concept, check_concepts

_BLOCK = 256
"""Number of concepts whose scores of all held-out stimuli are in memory at once."""


def word_aucs(concepts: Sequence[Concept], *, seed: int = 0) -> Floats:
    """(concepts,) `ConceptSet.auc` of a bag of words: the mean difference of word indicators instead of hidden states.

    A text is represented by the set of its lower-case words, without a model. A direction that is no better may encode
    only which words occur. NaN without held-out stimuli.

    Args:
        concepts: with held-out stimuli.
        seed: of the sample of others, as in `concept_directions`.

    >>> from interp_widgets.data.concepts import demo_concepts
    >>> float(np.median(word_aucs(demo_concepts()[::20])).round(2))
    1.0
    """
    check_concepts(concepts)
    vocabulary: dict[str, int] = {}
    bags = _bags([text for concept in concepts for text in concept.stimuli], vocabulary, grow=True)
    sizes = np.array([len(concept.stimuli) for concept in concepts])
    tests = [text for concept in concepts for text in concept.held_out]
    owner = np.repeat(np.arange(len(concepts)), [len(concept.held_out) for concept in concepts])
    if not tests:
        return np.full(len(concepts), np.nan)
    tested = _bags(tests, vocabulary)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    total = np.asarray(bags.sum(axis=0))[0]
    everything = np.asarray(tested @ total)
    sample = sampled(len(tests), seed)
    result = np.full(len(concepts), np.nan)
    for start in range(0, len(concepts), _BLOCK):
        block = range(start, min(start + _BLOCK, len(concepts)))
        counts = np.stack([np.asarray(bags[starts[i] : starts[i] + sizes[i]].sum(axis=0))[0] for i in block])
        scores = np.asarray(tested @ counts.T)  # (held-out stimuli, concepts) words shared with the concept's stimuli
        for i in block:
            others = sizes.sum() - sizes[i]
            score = scores[:, i - start] / sizes[i] - (everything - scores[:, i - start]) / others
            result[i] = auc(score[owner == i], score[(owner != i) & sample])
    return result


def _bags(texts: Sequence[str], vocabulary: dict[str, int], *, grow: bool = False) -> Any:
    """(texts, words) sparse, 1 where a text has a word; new words are added to the vocabulary if ``grow``."""
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
