"""The making of the shipped word vectors: the command gives the same vectors again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets.data.word_vectors import DEMO_FILE, WordVectors, demo_word_vectors, read_word_vectors
from interp_widgets.demo import word_vectors
from interp_widgets.demo.__main__ import main


def test_the_shipped_file_is_the_one_in_its_manifest() -> None:
    manifest = json.loads((DEMO_FILE.parent / "manifest.json").read_text())
    assert manifest["sha256"] == {DEMO_FILE.name: hashlib.sha256(DEMO_FILE.read_bytes()).hexdigest()}
    assert manifest["command"] == word_vectors.COMMAND
    assert DEMO_FILE.stat().st_size < 1.5e6
    assert (manifest["words"], manifest["width"]) == (len(demo_word_vectors()), demo_word_vectors().width)


@pytest.mark.seconds
def test_the_command_makes_the_shipped_vectors_again(tmp_path: Path) -> None:
    main(["words", "--out", str(tmp_path / "again.npz")])
    again, shipped = read_word_vectors(tmp_path / "again.npz"), demo_word_vectors()
    assert again.words == shipped.words
    assert again.counts is not None
    assert np.array_equal(again.counts, shipped.counts)  # type: ignore[arg-type]
    # another processor adds up in another order: small directions may differ, cosines may not
    assert np.abs(cosines(again) - cosines(shipped)).max() < 0.01


def cosines(vectors: WordVectors) -> np.ndarray[Any, Any]:
    units = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    return np.asarray(units @ units.T)


def test_words_of_one_kind_are_near_and_shuffled_vectors_are_not() -> None:
    shipped = demo_word_vectors()
    groups = [
        [word for word in names.split() if word in shipped.words]
        for names in (
            "France Spain Italy Poland China",
            "red green blue white brown",
            "nurse baker pilot teacher judge",
        )
    ]
    assert min(map(len, groups)) >= 4

    def gap(table: np.ndarray[Any, Any]) -> float:
        """Mean cosine within the groups minus between them."""
        places = [[shipped.words.index(word) for word in group] for group in groups]
        same = [table[a, b] for group in places for a in group for b in group if a != b]
        other = [table[a, b] for i, one in enumerate(places) for a in one for group in places[:i] for b in group]
        return float(np.mean(same) - np.mean(other))

    assert gap(cosines(shipped)) > 0.4
    order = np.random.default_rng(0).permutation(len(shipped))
    assert abs(gap(cosines(WordVectors(shipped.words, shipped.vectors[order])))) < 0.2


def test_ppmi_of_independent_words_is_zero() -> None:
    often = np.array([4.0, 2.0, 1.0])
    assert (
        np.abs(word_vectors.ppmi(np.outer(often, often ** (1 / word_vectors.SMOOTHING)))).max() > 0
    )  # smoothing shows
    alike = word_vectors.ppmi(np.ones((3, 3)))
    assert np.allclose(alike, 0)
    assert word_vectors.ppmi(np.eye(3) + 0.01)[0, 0] > 0.9


def test_a_corpus_without_enough_words_is_refused() -> None:
    with pytest.raises(ValueError, match="2 words occur 1 times or more, a width of 5 needs that many"):
        word_vectors.word_vectors([["a", "b"]], width=5, fewest=1)
