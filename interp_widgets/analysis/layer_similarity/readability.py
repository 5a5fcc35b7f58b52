"""Reading difficulty of texts by two formulas over letters, syllables, words and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from interp_widgets.arguments import checked

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|\n+")
_VOWELS = re.compile(r"[aeiouyáéíóúàèìòùâêîôûäëïöü]+")
_SILENT_END = re.compile(r"(?<![aeiouyl])(?:es|ed|e)$|(?<=[aeiouy])l(?:e|es|ed)$")
_SOUNDED_END = re.compile(r"(?:[td]ed|(?:s|x|z|ch|sh|c|g)es)$")


@dataclass(frozen=True)
class Readability:
    """Two readability grades (larger is harder) and the counts behind them. A word has at least one syllable.

    Example:
        >>> readability(["The cat sat on the mat. It slept."]).sentences
        2
    """

    flesch_kincaid: float
    """Flesch-Kincaid grade level."""
    coleman_liau: float
    """Coleman-Liau index."""
    words: int
    sentences: int
    syllables: int
    letters: int
    """Letters and digits."""


@checked
def readability(texts: Sequence[str]) -> Readability:
    """Compute the reading difficulty of texts, taken together.

    Flesch-Kincaid grade = 0.39 words / sentences + 11.8 syllables / words - 15.59; Coleman-Liau index = 0.0588 letters
    per 100 words - 0.296 sentences per 100 words - 15.8. A sentence ends at a full stop, exclamation or question mark,
    at the end of a line and at the end of a text. Syllables are counted by rule (groups of vowels, without silent
    endings), since pronunciation dictionaries cover only English and have to be downloaded.

    Args:
        texts: texts with at least one word in total.

    Raises:
        ValueError: there is no word in the texts.

    Source: Kincaid et al. 1975, Derivation of New Readability Formulas; Coleman and Liau 1975, A Computer Readability
    Formula Designed for Machine Scoring.

    Example:
        >>> easy, hard = readability(["The cat sat."]), readability(["Institutional considerations notwithstanding."])
        >>> (easy.syllables, hard.syllables), round(easy.flesch_kincaid, 2)
        ((3, 14), -2.62)
    """
    words = [word for text in texts for word in _WORD.findall(text)]
    if not words:
        raise ValueError(f"readability needs at least one word, got {len(texts)} texts without any")
    sentences = sum(
        1 for text in texts for part in _SENTENCE_END.split(text) if _WORD.search(part)
    )  # a part without words, such as between "...", is not a sentence
    syllables = sum(map(syllable_count, words))
    letters = sum(character.isalnum() for word in words for character in word)
    return Readability(
        flesch_kincaid=0.39 * len(words) / sentences + 11.8 * syllables / len(words) - 15.59,
        coleman_liau=5.88 * letters / len(words) - 29.6 * sentences / len(words) - 15.8,
        words=len(words),
        sentences=sentences,
        syllables=syllables,
        letters=letters,
    )


def syllable_count(word: str) -> int:
    """Number of syllables of an English word, by rule.

    >>> [syllable_count(word) for word in ("cat", "make", "table", "wanted", "boxes", "continent", "rhythm", "12")]
    [1, 1, 2, 2, 2, 3, 1, 1]
    """
    text = word.lower()
    count = len(_VOWELS.findall(text))
    if count > 1 and _SILENT_END.search(text) and not _SOUNDED_END.search(text):
        count -= 1
    return max(1, count)
