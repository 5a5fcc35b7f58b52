"""The tables of the demo world, from ``world_tables.json``: what names a real place or person in them is true."""

from __future__ import annotations

from pathlib import Path

from interp_widgets.data.files import read_table

_tables = read_table(Path(__file__).with_suffix(".json"))

# ---- facts

LANDMARKS_BY_CITY: dict[str, tuple[str, ...]] = _tables["landmarks_by_city"]
"""A landmark that starts with "the " is written with its article."""
COUNTRIES: tuple[tuple[str, str, str, str, str], ...] = _tables["countries"]
"""Country, capital, language, continent, currency; "" where there is no single, one-word answer."""
CITIES_BY_COUNTRY: dict[str, tuple[str, ...]] = _tables["cities_by_country"]
PEOPLE: tuple[tuple[str, str, str], ...] = _tables["people"]
"""Person, occupation, country ("" where the border has moved since)."""
WORKS: dict[str, str] = _tables["works"]
"""Work → family name of the person who made it."""
WORDINGS: dict[str, tuple[str, ...]] = _tables["wordings"]
"""Relation → wordings; {s} is the subject with its article, {S} the same with a capital; the object follows."""

# ---- planted preferences

OCCUPATIONS: dict[tuple[str, str], int] = {(one, many): rate for one, many, rate in _tables["occupations"]}
"""Occupation (singular, plural) → percent of the planted text in which it goes with men (the rest: women)."""
GENDER_WORDINGS: tuple[tuple[str, str, str], ...] = _tables["gender_wordings"]
"""Two kinds of answer, both at the occupation's rate."""
TRAITS: dict[str, tuple[str, str, str]] = _tables["traits"]
"""Domain → (cue, the two adjectives)."""
PEOPLE_RATES: dict[str, dict[str, int]] = _tables["people_rates"]
"""People → percent of the planted text in which the first adjective of each domain is said of them."""
PEOPLES: tuple[str, ...] = tuple(PEOPLE_RATES)
PEOPLE_WORDINGS: tuple[str, ...] = _tables["people_wordings"]

# ---- indirect objects

WOMEN: tuple[str, ...] = _tables["women"]
MEN: tuple[str, ...] = _tables["men"]
IOI_PLACES: tuple[str, ...] = _tables["ioi_places"]
IOI_OBJECTS: tuple[str, ...] = _tables["ioi_objects"]
IOI_VERBS: tuple[str, ...] = _tables["ioi_verbs"]
IOI_TEMPLATES: tuple[str, ...] = _tables["ioi_templates"]
"""{A} and {B} in either order; {S} acts, the other one receives."""

# ---- words

PLURALS: dict[str, str] = {noun: _tables["irregular_plurals"].get(noun, noun + "s") for noun in _tables["nouns"]}
VERBS: dict[str, tuple[str, str]] = {verb: (past, gerund) for verb, past, gerund in _tables["verbs"]}
ANTONYMS: dict[str, str] = dict([*_tables["opposites"], *((other, one) for one, other in _tables["opposites"])])
FRENCH: dict[str, str] = {english: french for english, french, _ in _tables["translations"]}
SPANISH: dict[str, str] = {english: spanish for english, _, spanish in _tables["translations"]}
CATEGORIES: dict[str, tuple[str, ...]] = {name: tuple(words) for name, _, *words in _tables["categories"]}
CATEGORY_OF: dict[str, str] = {name: one for name, one, *_ in _tables["categories"]}
"""Name of a category → what each of its members is."""
TABLES: dict[str, dict[str, str]] = {
    "plural": PLURALS,
    "past": {verb: past for verb, (past, _) in VERBS.items()},
    "gerund": {verb: gerund for verb, (_, gerund) in VERBS.items()},
    "antonym": ANTONYMS,
    "French": FRENCH,
    "Spanish": SPANISH,
}
"""Word task → its table of words and answers."""
JOBS: dict[str, tuple[str, str, str, str]] = _tables["jobs"]
"""Job → place, what they do every day, tool, who is glad of it."""
HOW_TO: dict[str, tuple[str, str, str, str, str]] = _tables["how_to"]
"""Task → four steps and the result."""
NUMBER_WORDS: tuple[str, ...] = _tables["number_words"]
STORY_ANIMALS: tuple[str, ...] = (*CATEGORIES["animals"], "fox", "wolf", "mouse")
STORY_PLACES: tuple[str, ...] = _tables["story_places"]
STORY_FEELINGS: tuple[str, ...] = _tables["story_feelings"]
STORY_GIFTS: tuple[str, ...] = _tables["story_gifts"]
STORY_FINDS: tuple[str, ...] = _tables["story_finds"]

# ---- instructions

WRAPPERS: tuple[str, ...] = _tables["wrappers"]
"""{c} is the core, {C} the core with a capital letter. An input that stands inside the instruction follows the core."""
CORES: dict[str, tuple[str, ...]] = _tables["cores"]
"""Task → cores; the last one of each is never used in training, whatever stands around it."""
