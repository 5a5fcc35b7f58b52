"""The word lists of the rule-based annotator: topics, grammar, parts of speech, affixes; all in lower case."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from interp_widgets.data import world_tables as t
from interp_widgets.data.files import read_table

_tables = read_table(Path(__file__).parents[1] / "word_lists.json")

SUFFIXES: tuple[str, ...] = _tables["suffixes"]
PREFIXES: tuple[str, ...] = _tables["prefixes"]
CLASS_SUFFIXES: dict[str, tuple[str, ...]] = _tables["class_suffixes"]
"""Endings that indicate the part of speech of a word of several syllables."""


@dataclass(frozen=True)
class WordList:
    """Words of one kind, their name, and the tasks that need them."""

    name: str
    words: frozenset[str]
    scenarios: tuple[str, ...] = ()


_SHARED = frozenset(_tables["shared"])
"""Spellings that are English words, or words of several of the French, Spanish and German lists."""


def _set(name: str) -> frozenset[str]:
    return frozenset(_tables[name])


def _lower(words: Mapping[str, object] | list[str]) -> frozenset[str]:
    return frozenset(word.lower() for word in words if word and " " not in word)


@functools.cache
def topics() -> tuple[WordList, ...]:
    """Lists of words that share a topic, narrow topics before wide ones."""
    countries = t.COUNTRIES
    columns = [[row[i] for row in countries] for i in range(5)]
    cities = [*columns[1], *t.LANDMARKS_BY_CITY]
    return (
        WordList("months and days of the week", _set("months") | _set("days")),
        WordList("number words", _set("numbers"), ("math",)),
        WordList("mathematical terms", _set("math"), ("math",)),
        WordList("programming terms", _set("code"), ("coding",)),
        WordList("French words", (_set("french") | _lower(list(t.FRENCH.values()))) - _SHARED - {"table", "train"},
                 ("translation",)),
        WordList("Spanish words", (_set("spanish") | _lower(list(t.SPANISH.values()))) - _SHARED - {"mesa", "sombrero"},
                 ("translation",)),
        WordList("German words", _set("german") - _SHARED, ("translation",)),
        WordList("French and Spanish words",
                 (_lower(list(t.FRENCH.values())) | _lower(list(t.SPANISH.values()))) - _SHARED - {"table", "train"},
                 ("translation",)),
        WordList("languages and peoples", _lower(columns[2]), ("translation",)),
        WordList("countries", _lower(columns[0])),
        WordList("currencies", _lower(columns[4])),
        WordList("cities", _lower(cities)),
        WordList("first names", _lower([*t.WOMEN, *t.MEN])),
        WordList("words about texts and stories", _set("writing"), ("writing",)),
        WordList("feelings", _set("feelings"), ("writing",)),
        WordList("medical terms", _set("medical")),
        WordList("parts of the body", _set("body")),
        WordList("family members", _set("family")),
        *(WordList(name, _plurals(words)) for name, words in t.CATEGORIES.items() if name != "jobs"),
        WordList("jobs", _plurals((*t.CATEGORIES["jobs"], *t.JOBS))),
        WordList("places in a town", _plurals(t.IOI_PLACES)),
        WordList("nature", _set("nature")),
    )  # fmt: skip


def _plurals(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(words) | {t.PLURALS.get(word, word + "s") for word in words}


@functools.cache
def grammar() -> tuple[WordList, ...]:
    """The closed classes of function words, and all of them together."""
    each = [WordList(name, frozenset(words)) for name, words in _tables["grammar"].items()]
    return (*each, WordList("function words", frozenset[str]().union(*(kind.words for kind in each))))


@functools.cache
def parts_of_speech() -> dict[str, frozenset[str]]:
    """Words that are mostly one part of speech, without words that are often two of them."""
    forms = {form for verb, (past, gerund) in t.VERBS.items() for form in (verb, past, gerund)}
    verbs = (_set("verbs") | forms) - _set("not_verbs")
    return {"verbs": verbs, "adjectives": (_set("adjectives") | frozenset(t.ANTONYMS)) - verbs - _set("not_adjectives")}
