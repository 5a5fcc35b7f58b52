"""Word lists: words in falling order of frequency, typed or read from a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from interp_widgets.data.files import existing_file, lines_of, read_text
from interp_widgets.data.word_vectors import check_words

_COUNTED = re.compile(r"(.+?)[\s,;]+(\d+)")


def typed_words(text: str) -> tuple[str, ...]:
    """The different words of a typed text, in order; spaces, line ends, commas and semicolons separate them.

    >>> typed_words("dog, cat\\nwolf dog")
    ('dog', 'cat', 'wolf')
    """
    return tuple(dict.fromkeys(re.findall(r"[^\s,;]+", text)))


def read_word_list(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read a list of words, the most frequent first.

    The file is UTF-8 text with one word per line. If every line also has the count of the word, an integer after a
    space, a tab or a comma, the words are sorted by it; otherwise they must be in falling order of frequency.

    Raises FileNotFoundError where there is no file, ValueError for a file that is not text, without words, or with a
    repeated word.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "words.txt")
        ...     _ = path.write_text("of 90\\nthe 120\\ndog 3\\n")
        ...     read_word_list(path)
        ('the', 'of', 'dog')
    """
    source = existing_file(path, "words")
    lines = [line.strip() for line in lines_of(read_text(source, "words"))]
    listed = [line for line in lines if line]
    counted = [match for line in listed if (match := _COUNTED.fullmatch(line))]
    if listed and len(counted) == len(listed):
        ordered = sorted(counted, key=lambda match: -int(match[2]))
        listed = [match[1] for match in ordered]
    try:
        check_words(listed)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    if long := next(_sentences(listed), None):
        raise ValueError(f"{source} has {long!r} in one line: give one word per line")
    return tuple(listed)


def _sentences(lines: list[str]) -> Iterator[str]:
    """Lines with too many words for a word list, shortened."""
    return (f"{line[:40]}…" for line in lines if len(line.split()) > 4)
