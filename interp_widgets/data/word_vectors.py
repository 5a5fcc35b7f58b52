"""Word vectors: the demo's own, and readers of GloVe text, word2vec text and ``.npz`` files."""

from __future__ import annotations

import functools
import io
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from interp_widgets.arguments import checked
from interp_widgets.data.files import existing_file, opened, read_arrays

_LONGEST_LINE = 10_000_000
"""Characters of a line in a file of word vectors."""
DEMO_FILE = Path(__file__).resolve().parents[1] / "assets" / "words" / "word_vectors.npz"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """Words, the most frequent first, and one vector for each.

    Example:
        >>> vectors = WordVectors(("yes", "no"), np.array([[1.0, 0.5], [-1.0, 0.2]]))
        >>> vectors, vectors.of(["no", "maybe"])[1].tolist()
        (WordVectors(2 words, width 2), [True, False])
    """

    words: tuple[str, ...]
    """(n,) words, all different."""
    vectors: NDArray[np.floating[Any]]
    """(n, width) one vector per word."""
    counts: NDArray[np.integer[Any]] | None = None
    """(n,) count of each word in the text that the vectors were trained on; None if unknown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        vectors = np.asarray(self.vectors)
        if not self.words or vectors.ndim != 2 or vectors.shape[1] == 0 or len(vectors) != len(self.words):
            raise ValueError(
                f"vectors must have one row of numbers for each of {len(self.words)} words, got {vectors.shape}"
            )
        if vectors.dtype.kind not in "fiu" or not np.isfinite(vectors).all():
            raise ValueError("vectors must be finite numbers, got NaN, infinity or something that is not a number")
        if self.counts is not None and np.shape(self.counts) != (len(self.words),):
            raise ValueError(f"counts must be one per word ({len(self.words)}), got {np.shape(self.counts)}")
        check_words(self.words)
        object.__setattr__(self, "vectors", vectors)

    def __repr__(self) -> str:
        return f"WordVectors({len(self)} words, width {self.width})"

    def __len__(self) -> int:
        return len(self.words)

    @property
    def width(self) -> int:
        """Numbers per vector."""
        return int(self.vectors.shape[1])

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    def of(self, words: Sequence[str]) -> tuple[NDArray[np.floating[Any]], NDArray[np.bool_]]:
        """The vectors (k, width) of some words, and (k,) whether each word has a vector; zeros where it has none.

        A word that is missing as written is looked up in lower case, since many published files have no capitals.
        """
        rows = np.array([self._index.get(word, self._index.get(word.lower(), -1)) for word in words], dtype=np.intp)
        vectors = self.vectors[rows] * (rows >= 0)[:, None]
        return vectors, (rows >= 0) & (np.abs(vectors).max(axis=1, initial=0) > 0)


def check_words(words: Sequence[str]) -> None:
    """Raise a ValueError for a list of words that is empty, or has an empty or repeated word."""
    if len(words) == 0:
        raise ValueError("the list of words is empty: give at least one word")
    if set(map(type, words)) == {str} and all(map(str.strip, words)) and len(set(words)) == len(words):
        return  # ten times as fast on long lists as the loop that finds the fault
    seen: dict[str, int] = {}
    for index, word in enumerate(words):
        if not isinstance(word, str) or not word.strip():
            raise ValueError(f"word {index} of the list must be a str with at least one letter, got {word!r}")
        if word in seen:
            raise ValueError(f"the word {word!r} is in the list twice, at {seen[word]} and {index}: remove one of them")
        seen[word] = index


@functools.cache
def demo_word_vectors() -> WordVectors:
    """The demo's words and vectors, from the text that its models were trained on.

    Example:
        >>> vectors = demo_word_vectors()
        >>> vectors, vectors.words[:3]
        (WordVectors(1674 words, width 96), ('the', 'a', 'to'))
    """
    return read_word_vectors(DEMO_FILE)


@checked
def read_word_vectors(
    path: str | os.PathLike[str],
    *,
    words: Collection[str] | None = None,
    limit: int | None = None,
    check: Callable[[], None] | None = None,
) -> WordVectors:
    """Read word vectors from a file.

    The layout is recognised: ``.npz`` archives with the arrays ``words`` and ``vectors`` (and ``counts``, where known),
    GloVe text (a word and its numbers per line), or word2vec text (the same after a line with the number of words and
    the width). Text files must list the words in falling order of frequency, as the published ones do; the first of two
    lines with the same word counts.

    Args:
        path: the file.
        words: the words to read, as written or in lower case, since the published files are large; all by default.
        limit: most words to read, from the start of the file.
        check: called every thousand lines of a text; raises to cancel.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file has another layout (the message says where), or none of ``words``.

    Sources of the layouts: GloVe (Pennington et al. 2014) and word2vec (Mikolov et al. 2013), their published files.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "vectors.txt")
        ...     _ = path.write_text("the 0.1 0.2 0.3\\ncat 0.5 0.1 0.0\\n")
        ...     read_word_vectors(path)
        WordVectors(2 words, width 3)
    """
    source = existing_file(path, "word vectors")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, got {limit}")
    spellings = None if words is None else {*words, *(word.lower() for word in words)}
    vectors = _read_archive(source) if zipfile.is_zipfile(source) else _read_text(source, spellings, limit, check)
    numbers = [i for i, word in enumerate(vectors.words[:limit]) if spellings is None or word in spellings]
    if not numbers:
        raise ValueError(f"{source} has none of the {len(words or ())} words: give a file of the same language")
    if len(numbers) == len(vectors):
        return vectors
    counts = None if vectors.counts is None else vectors.counts[numbers]
    return WordVectors(tuple(vectors.words[i] for i in numbers), vectors.vectors[numbers], counts)


def _read_archive(source: Path) -> WordVectors:
    arrays = read_arrays(source, "word vectors", names=("words", "vectors", "counts"))
    if missing := {"words", "vectors"} - set(arrays):
        raise ValueError(
            f"{source} has no array {min(missing)!r}: an archive of word vectors has the arrays words and vectors"
        )
    words = arrays["words"]
    if words.dtype.kind != "U" or words.ndim != 1:
        raise ValueError(f"{source}: words must be an array of str, got {words.dtype} of shape {words.shape}")
    vectors, counts = arrays["vectors"], arrays.get("counts")
    try:
        # half precision only saves space in the file
        wide = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
        result = WordVectors(tuple(words.tolist()), wide, counts)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    if counts is None:
        return result
    order = np.argsort(-counts, kind="stable")
    return WordVectors(tuple(result.words[i] for i in order), wide[order], counts[order])


def _read_text(
    source: Path, spellings: Collection[str] | None, limit: int | None, check: Callable[[], None] | None
) -> WordVectors:
    try:
        with opened(source) as content, io.TextIOWrapper(content, encoding="utf-8-sig", newline="\n") as file:
            rows = dict(_rows(source, file, spellings, limit, check))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8 text ({error}): give GloVe or word2vec text, or an .npz file"
        ) from error
    if not rows:
        missing = "none of the requested words" if spellings else "no line of a word and its numbers"
        raise ValueError(f"{source} has {missing}: give GloVe or word2vec text of the same language, or an .npz file")
    return WordVectors(tuple(rows), np.stack(list(rows.values())))


def _rows(
    source: Path,
    file: TextIO,
    spellings: Collection[str] | None,
    limit: int | None,
    check: Callable[[], None] | None,
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Words and vectors of a text file, each word once."""
    width: int | None = None
    seen: set[str] = set()
    for number, raw in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), start=1):
        if check is not None and number % 1000 == 0:
            check()
        if "\0" in raw or len(raw) == _LONGEST_LINE:
            raise ValueError(
                f"line {number} of {source} is not text of a word and its numbers: give GloVe or word2vec text"
            )
        line = raw.rstrip()
        fields = line.split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
            width = int(fields[1])
            continue
        if not line:
            continue
        width = len(fields) - 1 if width is None else width
        # a word may contain spaces, so the numbers are the last fields
        fields = line.rsplit(" ", width) if width > 0 else [line]
        if len(fields) != width + 1 or width < 2:
            raise ValueError(
                f"line {number} of {source} is not a word and {max(width, 2)} numbers: "
                "give GloVe or word2vec text, or an .npz file"
            )
        word = fields[0]
        if not word.strip() or word in seen:
            continue
        seen.add(word)
        if spellings is None or word in spellings:
            yield word, _numbers(source, number, fields[1:])
        if limit is not None and len(seen) == limit:
            return


def _numbers(source: Path, number: int, fields: Sequence[str]) -> NDArray[np.float32]:
    try:
        numbers = np.array(fields, dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"line {number} of {source} has an entry that is not a number ({error})") from error
    if not np.isfinite(numbers).all():
        raise ValueError(f"line {number} of {source} has NaN or infinity: remove the line")
    return numbers
