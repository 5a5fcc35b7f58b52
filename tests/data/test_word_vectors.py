"""Word vectors: the shipped ones are what their command makes; files are read, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets.data.verbs import GENERAL_VERBS, INSTRUCTION_VERBS
from interp_widgets.data.word_vectors import (
    check_words,
    read_word_vectors,
)

WORDS = ("the", "Paris", "dog")
NUMBERS = np.array([[1.0, 0.5, -2.0], [0.25, 3.0, 1e-3], [0.0, 1.0, 2.0]], dtype=np.float32)


def text(words: tuple[str, ...] = WORDS) -> str:
    rows = zip(words, NUMBERS, strict=True)
    return "".join(f"{word} {' '.join(str(number) for number in row)}\n" for word, row in rows)


# ---- readers


@pytest.mark.parametrize("header", ["", "3 3\n"], ids=["glove", "word2vec"])
def test_both_kinds_of_text_are_read(tmp_path: Path, header: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(header + text(), encoding="utf8")
    found = read_word_vectors(path)
    assert found.words == WORDS
    assert np.array_equal(found.vectors, NUMBERS)
    assert found.counts is None
    assert read_word_vectors(path, limit=2).words == WORDS[:2]
    assert repr(found) == "WordVectors(3 words, width 3)"


def test_an_archive_is_read_in_the_order_of_its_counts(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(WORDS), vectors=NUMBERS.astype(np.float16), counts=np.array([5, 9, 7]))
    found = read_word_vectors(path)
    assert found.words == ("Paris", "dog", "the")
    assert found.counts is not None
    assert found.counts.tolist() == [9, 7, 5]
    assert found.vectors.dtype == np.float32
    assert np.allclose(found.vectors, NUMBERS[[1, 2, 0]], atol=1e-3)
    np.savez(path, words=np.array(WORDS), vectors=NUMBERS)
    assert read_word_vectors(path).words == WORDS


def test_only_the_words_asked_for_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text(("the", "paris", "dog")), encoding="utf8")
    found = read_word_vectors(path, words=["Paris", "cat", "dog"])
    assert found.words == ("paris", "dog")
    vectors, present = found.of(["dog", "Paris", "cat"])
    assert present.tolist() == [True, True, False]
    assert np.array_equal(vectors, np.stack([NUMBERS[2], NUMBERS[1], np.zeros(3)]))


def test_words_with_spaces_and_repeated_words(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\n. . . 1 2 3\nNew York 4 5 6\n. . . 7 8 9\n", encoding="utf8")
    found = read_word_vectors(path)
    assert found.words == (". . .", "New York")
    assert found.vectors.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no line of a word and its numbers"),
        (b"the 1 2 3\ncat 1 2\n", "line 2 of .* is not a word and 3 numbers"),
        (b"the 1 2 3\ncat 1 x 2\n", "line 2 of .* has an entry that is not a number"),
        (b"the 1 2 nan\n", "line 1 of .* has NaN or infinity"),
        (b"just some words\n", "line 1 of .* has an entry that is not a number"),
        (b"the\n", "line 1 of .* is not a word and 2 numbers"),
        (b"3 2\nthe \xff\xfe\x00\x80\n", "is not UTF-8 text"),
    ],
)
def test_bad_text_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        read_word_vectors(path)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"words": np.array(WORDS)}, "has no array 'vectors'"),
        ({"words": np.array([1, 2, 3]), "vectors": NUMBERS}, "words must be an array of str"),
        ({"words": np.array(WORDS, dtype=object), "vectors": NUMBERS}, "not a readable .npz archive of word vectors"),
        ({"words": np.array(WORDS[:2]), "vectors": NUMBERS}, r"one row of numbers for each of 2 words, got \(3, 3\)"),
        ({"words": np.array(["a", "b", "a"]), "vectors": NUMBERS}, "'a' is in the list twice, at 0 and 2"),
        ({"words": np.array(WORDS), "vectors": NUMBERS * np.nan}, "must be finite numbers"),
        ({"words": np.array(WORDS), "vectors": NUMBERS, "counts": np.array([1])}, "counts must be one per word"),
    ],
)
def test_bad_archives_are_refused(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    path = tmp_path / "vectors.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=says):
        read_word_vectors(path)


def test_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file of word vectors"):
        read_word_vectors(tmp_path / "nothing.txt")
    path = tmp_path / "vectors.txt"
    path.write_text(text(), encoding="utf8")
    with pytest.raises(ValueError, match="limit must be 1 or more, got 0"):
        read_word_vectors(path, limit=0)
    with pytest.raises(ValueError, match="none of the requested words"):
        read_word_vectors(path, words=["zebra"])
    broken = tmp_path / "broken.npz"
    np.savez(broken, words=np.array(WORDS), vectors=NUMBERS)
    broken.write_bytes(broken.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"vectors|readable|UTF-8"):
        read_word_vectors(broken)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "list of words is empty"),
        (["a", " "], "word 1 of the list must be a str"),
        (["a", "b", "a"], "is in the list twice"),
    ],
)
def test_bad_word_lists_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_words(words)


def test_verbs_are_of_one_kind_and_named_once() -> None:
    assert len(set(INSTRUCTION_VERBS)) == len(INSTRUCTION_VERBS) == 45
    assert len(set(GENERAL_VERBS)) == len(GENERAL_VERBS) > 400
    assert not set(INSTRUCTION_VERBS) & set(GENERAL_VERBS)
