"""A rule-based annotator, which works without a network and reports the rule that fired."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp_widgets.arguments import checked
from interp_widgets.data.annotators import word_lists as lists
from interp_widgets.data.annotators.annotation import Annotation
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors

FEWEST = 4
"""Fewest words to which the rules are applied."""
CHANCE = 1e-4
"""A rule fires only if as many random words fit it with a probability below this."""
_NEAR = 99
"""Percentile of the cosines of random words that a word must exceed."""
_DRAWS = 4000
_VOWELS = "aeiouyáàâäéèêëíîïóôöúùûü"
_NUMBER = re.compile(r"[+-]?\d[\d.,:/%-]*(st|nd|rd|th|s)?")
_SHORT = re.compile(r"(?:[A-Z]\.?){2,5}s?")


class Finding(NamedTuple):
    """Result of a rule for a list of words."""

    concept: str
    rule: str
    members: int
    """Number of words that fit."""
    level: str
    scenarios: tuple[str, ...] = ()


@checked
class RuleAnnotator:
    """Annotates words by rules alone: lists, written form, affixes, rhyme, part of speech, word vectors.

    The first rule in this order that more than half of the words fit gives the answer, and the description names it in
    square brackets with the number of words. The annotation is empty if no rule fits, or if as many random words of the
    word list would fit it with a probability of 1e-4 or more. Sound is judged by English spelling.

    Levels: a shared ending that is not a suffix is phonology, an affix or a written form morphology, a part of speech
    syntax, a topic semantics. Scenarios: rhymes and words about texts and feelings serve writing; programming terms
    coding; numbers and mathematical terms math; words of other languages and their names translation.

    Args:
        vectors: words and their vectors, by default the demo's. Use those of your own word list: chance is measured on
            its words, and the last rule ignores words without a vector.

    Source: the levels and their examples are those of From Language Modeling to Instruction Following (Wu et al.
    2024), section 5.2 and appendix D.1; the rules are this package's own.

    Example:
        >>> RuleAnnotator().annotate(["hammer", "wrench", "piano", "saw", "shovel", "pliers"]).description
        'tools [list: 5 of 6 words]'
        >>> RuleAnnotator().annotate(["Monday", "hammer", "of", "seven"]).cannot_tell
        True
    """

    name = "rules"

    def __init__(self, vectors: WordVectors | None = None) -> None:
        self.vectors = demo_word_vectors() if vectors is None else vectors
        self._shares: dict[str, float] = {}  # concept -> share of all words that fit it
        self._usual: dict[int, float] = {}  # number of words -> percentile of random cosines

    def __repr__(self) -> str:
        return f"RuleAnnotator({self.vectors!r})"

    def annotate(self, words: Sequence[str], *, check: Callable[[], None] | None = None) -> Annotation:
        """What these words have in common, by the first rule that fires; empty if none does."""
        if check is not None:
            check()
        words = [word.strip() for word in words if word.strip()]
        if len(words) < FEWEST:
            return Annotation(source=self.name)
        for rule in (self._numbers, self._topics, self._form, self._affix, self._ending, self._speech, self._related):
            finding = rule(words)
            if finding is not None:
                text = f"{finding.concept} [{finding.rule}: {finding.members} of {len(words)} words]"
                return Annotation(text, finding.scenarios, finding.level, self.name)
        return Annotation(source=self.name)

    # ---- more than half, and more than by chance

    def _fires(self, members: int, words: Sequence[str], concept: str, fits: Callable[[str], bool]) -> bool:
        if 2 * members <= len(words):
            return False
        if concept not in self._shares:
            vocabulary = self.vectors.words
            self._shares[concept] = (sum(map(fits, vocabulary)) + 1) / (len(vocabulary) + 2)
        return _tail(members, len(words), self._shares[concept]) < CHANCE

    def _best(self, words: Sequence[str], kinds: Iterable[lists.WordList]) -> tuple[lists.WordList, int] | None:
        """The list with most of the words (the first one of a tie); None if no list has enough of them."""
        lower = [word.lower() for word in words]
        counted = [(sum(word in kind.words for word in lower), -index, kind) for index, kind in enumerate(kinds)]
        members, _, kind = max(counted, key=lambda item: item[:2])
        return (
            (kind, members) if self._fires(members, words, kind.name, lambda word: word.lower() in kind.words) else None
        )

    # ---- the rules

    def _numbers(self, words: Sequence[str]) -> Finding | None:
        fits = lambda word: _NUMBER.fullmatch(word) is not None
        members = sum(map(fits, words))
        fires = self._fires(members, words, "numbers", fits)
        return Finding("numbers", "digits", members, "semantics", ("math",)) if fires else None

    def _topics(self, words: Sequence[str]) -> Finding | None:
        best = self._best(words, lists.topics())
        return None if best is None else Finding(best[0].name, "list", best[1], "semantics", best[0].scenarios)

    def _form(self, words: Sequence[str]) -> Finding | None:
        shapes: dict[str, Callable[[str], bool]] = {
            "abbreviations and acronyms": lambda word: _SHORT.fullmatch(word) is not None,
            "hyphenated terms": lambda word: "-" in word.strip("-"),
        }
        for concept, fits in shapes.items():
            members = sum(map(fits, words))
            if self._fires(members, words, concept, fits):
                return Finding(concept, "written form", members, "morphology")
        beyond = lambda word: not word.isascii()
        members = sum(map(beyond, words))
        if self._fires(members, words, "letters beyond a-z", beyond):
            return Finding("words of other languages", "letters beyond a-z", members, "semantics", ("translation",))
        return None

    def _affix(self, words: Sequence[str]) -> Finding | None:
        beginnings = [word.lower()[:n] for word in words for n in (4, 3) if len(word) > n]
        unknown = [part for part, count in Counter(beginnings).items() if 2 * count > len(words)]
        tests: list[tuple[str, str, Callable[[str], bool]]] = [
            *((f'words ending in "-{part}"', "suffix", functools.partial(has_suffix, suffix=part))
              for part in lists.SUFFIXES),
            *((f'words with the prefix "{part}-"', "prefix", functools.partial(has_prefix, prefix=part))
              for part in lists.PREFIXES),
            *((f'words that start with "{part}"', "beginning", functools.partial(_starts, part=part))
              for part in unknown),
        ]  # fmt: skip
        counted = [(sum(map(fits, words)), concept, rule, fits) for concept, rule, fits in tests]
        # among equals the longest, which says most
        for members, concept, rule, fits in sorted(counted, key=lambda item: (-item[0], -len(item[1]))):
            if 2 * members <= len(words):
                break
            if self._fires(members, words, concept, fits):
                return Finding(concept, rule, members, "morphology")
        return None

    def _ending(self, words: Sequence[str]) -> Finding | None:
        counts = Counter(ending for word in {word.lower() for word in words} for ending in set(endings(word)))
        for ending, members in sorted(counts.items(), key=lambda item: (-item[1], -len(item[0]), item[0])):
            if 2 * members <= len(words):
                break
            if self._fires(members, words, f"-{ending}", lambda word, end=ending: end in endings(word.lower())):  # type: ignore[misc]
                rhymes = any(letter in _VOWELS for letter in ending.removesuffix("e"))  # a final e is silent
                concept = f'rhyming words on "{ending}"' if rhymes else f'words with the "{ending}" sound'
                return Finding(concept, "ending", members, "phonology", ("writing",) if rhymes else ())
        return None

    def _speech(self, words: Sequence[str]) -> Finding | None:
        best = self._best(words, lists.grammar())
        if best is not None:
            return Finding(best[0].name, "part of speech", best[1], "syntax")
        counts = Counter(kind for word in words if (kind := part_of_speech(word)) is not None)
        if not counts:
            return None
        kind, members = counts.most_common(1)[0]
        fits = self._fires(members, words, kind, lambda word: part_of_speech(word) == kind)
        return Finding(kind, "part of speech", members, "syntax") if fits else None

    def _related(self, words: Sequence[str]) -> Finding | None:
        vectors, known = self.vectors.of(words)
        if known.sum() < FEWEST or 2 * known.sum() <= len(words):
            return None
        closeness = to_the_others(vectors[known])
        members = int((closeness > self._percentile(int(known.sum()))).sum())
        if 2 * members <= len(words):
            return None
        with_vector = [word for word, has_vector in zip(words, known.tolist(), strict=True) if has_vector]
        central = [with_vector[i] for i in np.argsort(-closeness, kind="stable")[:3]]
        return Finding(f"words related to {', '.join(central)}", "word vectors", members, "semantics")

    def _percentile(self, size: int) -> float:
        """Percentile `_NEAR` of a random word's cosine to the mean of ``size - 1`` others."""
        if size not in self._usual:
            vectors = self.vectors.vectors[np.abs(self.vectors.vectors).max(axis=1) > 0]
            rng = np.random.default_rng(0)
            drawn = (vectors[rng.integers(len(vectors), size=size)] for _ in range(_DRAWS // size))
            self._usual[size] = float(np.percentile(np.concatenate(list(map(to_the_others, drawn))), _NEAR))
        return self._usual[size]


def _tail(members: int, words: int, share: float) -> float:
    """Probability that at least ``members`` of ``words`` random words fit, where a ``share`` of all words does."""
    return sum(math.comb(words, k) * share**k * (1 - share) ** (words - k) for k in range(members, words + 1))


def _starts(word: str, part: str) -> bool:
    return word.lower().startswith(part) and len(word) > len(part)


def _stem(stem: str) -> bool:
    """Whether a word without its affix can be a word."""
    return len(stem) >= 3 and any(letter in _VOWELS for letter in stem)


def has_suffix(word: str, suffix: str) -> bool:
    """Whether a word is a stem with this suffix, by its spelling.

    >>> has_suffix("teachers", "s"), has_suffix("glass", "s"), has_suffix("king", "ing")
    (True, False, False)
    """
    word = word.lower()
    if suffix == "s" and word.endswith(("ss", "us", "is")):
        return False
    return word.endswith(suffix) and _stem(word.removesuffix(suffix))


def has_prefix(word: str, prefix: str) -> bool:
    """Whether a word is a stem with this prefix, by its spelling.

    >>> has_prefix("subway", "sub"), has_prefix("rest", "re")
    (True, False)
    """
    word = word.lower()
    return word.startswith(prefix) and _stem(word.removeprefix(prefix))


def endings(word: str) -> Iterator[str]:
    """The endings that can rhyme, by spelling: two to five letters with a vowel, shorter than the word.

    >>> list(endings("cake")), list(endings("string"))
    (['ke', 'ake'], ['ing', 'ring', 'tring'])
    """
    for length in range(2, min(5, len(word) - 1) + 1):
        if any(letter in _VOWELS for letter in word[-length:]):
            yield word[-length:]


def part_of_speech(word: str) -> str | None:
    """The part of speech (verbs, adjectives, nouns or adverbs) by lists and endings; None if unknown.

    >>> part_of_speech("wrote"), part_of_speech("kindness"), part_of_speech("cat")
    ('verbs', 'nouns', None)
    """
    word = word.lower()
    for kind, words in lists.parts_of_speech().items():
        if word in words:
            return kind
    for kind, suffixes in lists.CLASS_SUFFIXES.items():
        if any(len(word) >= len(suffix) + 4 and word.endswith(suffix) for suffix in suffixes):
            return kind
    return None


def to_the_others(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """(k,) cosine of each of (k, width) vectors with the mean direction of the others.

    >>> to_the_others(np.eye(2)).round(3), to_the_others(np.ones((3, 2))).round(3)
    (array([0., 0.]), array([1., 1., 1.]))
    """
    units = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    others = units.sum(axis=0) - units
    length = np.maximum(np.linalg.norm(others, axis=1), 1e-12)
    cosines: NDArray[np.float64] = (units * others).sum(axis=1) / length
    return cosines
