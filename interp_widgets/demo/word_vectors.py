"""The demo's word vectors, made from the demo's own text.

Word counts within a window become positive pointwise mutual information (PPMI), whose largest singular directions are
the vectors. Everything is counted and solved in a fixed order, so that the command gives the same vectors again.

Source: Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned from Word Embeddings",
sections 2.2, 2.3 and 3.2 (context distribution smoothing, eigenvalue weighting).
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from interp_widgets.atomic import whole_file
from interp_widgets.data.instructions import instruction_cases
from interp_widgets.data.word_vectors import DEMO_FILE, WordVectors
from interp_widgets.demo.documents import epoch_documents

COMMAND = "python -m interp_widgets.demo words"
WIDTH = 96
WINDOW = 5
"""Words on either side that count as context."""
EPOCHS = 2
CASES = 6000
"""Instructions with their responses, in addition to the epochs of text."""
FEWEST = 20
"""Rarer words get no vector."""
SMOOTHING = 0.75
"""Power of a context word's frequency: rare contexts count for less."""
POWER = 0.5
"""Power of the singular values."""

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


def demo_texts() -> tuple[list[str], list[str]]:
    """The text of the base model, and the instructions that the tuned model reads in addition."""
    texts = [document for epoch in range(EPOCHS) for document in epoch_documents(seed=0, epoch=epoch)]
    return texts, [case.prompt + case.response for case in instruction_cases("train", CASES, seed=0, hard=1)]


def split_words(texts: Iterable[str]) -> list[list[str]]:
    """The words of each text, without numbers.

    >>> split_words(["The cat saw 3 dogs.", "It's Paris"])
    [['The', 'cat', 'saw', 'dogs'], ["It's", 'Paris']]
    """
    return [_WORD.findall(text) for text in texts]


def spellings(documents: Iterable[Sequence[str]]) -> dict[str, str]:
    """For each word in lower case its most frequent spelling.

    >>> spellings([["The", "cat"], ["the", "Seine"], ["the"]])
    {'the': 'the', 'seine': 'Seine', 'cat': 'cat'}
    """
    counts = Counter(word for document in documents for word in document)
    chosen: dict[str, str] = {}
    for word in sorted(counts, key=lambda word: (-counts[word], word)):
        chosen.setdefault(word.lower(), word)
    return chosen


def word_vectors(
    documents: Sequence[Sequence[str]],
    more: Sequence[Sequence[str]] = (),
    *,
    width: int = WIDTH,
    window: int = WINDOW,
    fewest: int = FEWEST,
) -> WordVectors:
    """Vectors of the words that occur ``fewest`` times or more in ``documents``, lists of words.

    ``more`` only adds to the counts of neighbouring words, since a word that the base model has never read needs no
    vector. The most frequent spelling of a word, with or without capitals, stands for all.
    """
    spelling = spellings(documents)
    counts = Counter(spelling[word.lower()] for document in documents for word in document)
    words = sorted((word for word in counts if counts[word] >= fewest), key=lambda word: (-counts[word], word))
    if len(words) < width:
        raise ValueError(f"{len(words)} words occur {fewest} times or more, a width of {width} needs that many")
    index = {word.lower(): i for i, word in enumerate(words)}
    together = np.zeros((len(words), len(words)))
    for document in (*documents, *more):
        # rare words are left out before the window is placed, as usual
        lower = [word.lower() for word in document]
        ids = np.array([index[word] for word in lower if word in index], dtype=np.intp)
        for gap in range(1, window + 1):
            np.add.at(together, (ids[:-gap], ids[gap:]), 1.0)
    left, values, _ = np.linalg.svd(ppmi(together + together.T))
    vectors = left[:, :width] * values[:width] ** POWER
    # the sign of a singular vector is arbitrary: its largest entry is made positive
    vectors *= np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0))
    return WordVectors(tuple(words), vectors.astype(np.float16), np.array([counts[word] for word in words]))


def ppmi(together: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positive pointwise mutual information (words, contexts) from counts, contexts smoothed by `SMOOTHING`."""
    smooth = together.sum(axis=0) ** SMOOTHING
    expected = together.sum(axis=1, keepdims=True) * (smooth / smooth.sum())
    ratio = np.divide(together, expected, out=np.ones_like(together), where=together > 0)
    information: NDArray[np.float64] = np.maximum(np.log(ratio), 0)
    return information


def make_word_vectors(path: Path = DEMO_FILE) -> dict[str, object]:
    """Write the vectors and, beside them, a manifest with the command and the file's hash; return the manifest."""
    vectors = word_vectors(*map(split_words, demo_texts()))
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"words": np.array(vectors.words), "vectors": vectors.vectors, "counts": np.asarray(vectors.counts)}
    with whole_file(path) as draft:
        np.savez_compressed(draft, allow_pickle=False, **arrays)
    manifest: dict[str, object] = {
        "command": COMMAND,
        "method": f"PPMI over a window of {WINDOW} words, contexts smoothed by {SMOOTHING}, then SVD to {WIDTH}",
        "text": f"epoch_documents(seed=0), epochs 0 to {EPOCHS - 1}, and for neighbours {CASES} instructions too",
        "word_list": f"what the base model reads at least {FEWEST} times in these epochs",
        "words": len(vectors),
        "width": vectors.width,
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
    }
    with whole_file(path.parent / "manifest.json") as draft:
        draft.write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest
