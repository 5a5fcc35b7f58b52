"""Word lists: typed ones and files, with counts or without, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from interp_widgets.data.word_lists import read_word_list, typed_words
from interp_widgets.data.word_vectors import read_word_vectors


def test_typed_words_stand_once_in_their_order() -> None:
    assert typed_words(" dog, cat\n\nwolf;dog\tDog ") == ("dog", "cat", "wolf", "Dog")
    assert typed_words(" \n ") == ()


@pytest.mark.parametrize("gap", [" ", "\t", ",", ", "])
def test_a_list_with_counts_is_sorted_by_them(tmp_path: Path, gap: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff" + "\n".join(f"{word}{gap}{n}" for word, n in [("cat", 3), ("the", 90), ("dog", 3)]))
    assert read_word_list(path) == ("the", "cat", "dog")


def test_a_list_without_counts_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("cat\n\n New York \r\nvitamin 12\n", encoding="utf-8")
    assert read_word_list(path) == ("cat", "New York", "vitamin 12"), "one line without a count: none are counts"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"cat\ndog\ncat\n", "the word 'cat' is in the list twice, at 0 and 2: remove one of them"),
        (b"\n \n", "the list of words is empty"),
        (b"\xff\xfe\x81", "is not UTF-8 text"),
        (b"once upon a time there was\n", "give one word per line"),
    ],
)
def test_what_is_no_list_is_told_in_a_sentence(tmp_path: Path, text: bytes, sentence: str) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=sentence) as told:
        read_word_list(path)
    assert str(path) in str(told.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="there is no file of words at /no/such/file: check the path"):
        read_word_list("/no/such/file")


def test_reading_vectors_can_be_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"word{i} 1.0 {i}.5\n" for i in range(2500)), encoding="utf-8")
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_word_vectors(path, check=check)
    assert len(read_word_vectors(path)) == 2500
