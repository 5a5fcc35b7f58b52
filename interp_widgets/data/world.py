"""The demo world: facts, indirect objects and planted preferences, each with a train and a held-out split."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from interp_widgets.data import world_tables as t

Split = Literal["train", "held_out"]
N_HELD_OUT_WORDINGS = 2


@dataclass(frozen=True)
class Fact:
    """A true fact: `subject` stands in `relation` to `object`."""

    relation: str
    subject: str
    object: str
    article: str = ""
    """"the " if the subject has an article, else empty."""


@dataclass(frozen=True)
class FactPrompt:
    """A fact in one of its wordings: `prompt` stops right before " " + `answer`."""

    fact: Fact
    wording: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class IOIPrompt:
    """An indirect-object prompt: `answer` receives, and `distractor` is the repeated name."""

    prompt: str
    answer: str
    distractor: str
    order: Literal["ABBA", "BABA"]
    template: int


@dataclass(frozen=True)
class BiasPrompt:
    """A prompt about a planted group: in the training text `first` follows in `rate` percent, else `second`."""

    group: str
    kind: Literal["occupation", "people"]
    domain: str
    wording: int
    prompt: str
    first: str
    second: str
    rate: int


def stable_hash(*keys: object) -> int:
    """A hash that is the same in every process and Python version."""
    return zlib.crc32("\x1f".join(map(str, keys)).encode())


def check_split(split: str) -> None:
    """Raise `ValueError` unless `split` is "train" or "held_out"."""
    if split not in ("train", "held_out"):
        raise ValueError(f'split must be "train" or "held_out", got {split!r}')


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


@cache
def _facts() -> tuple[Fact, ...]:
    facts: list[Fact] = []
    for city, landmarks in t.LANDMARKS_BY_CITY.items():
        for name in landmarks:
            article = "the " if name.startswith("the ") else ""
            facts.append(Fact("landmark_city", name.removeprefix("the "), city, article))
    for country, cities in t.CITIES_BY_COUNTRY.items():
        facts += [Fact("city_country", city, country) for city in cities]
    for country, capital, language, continent, currency in t.COUNTRIES:
        entries = (("capital", capital), ("language", language), ("continent", continent), ("currency", currency))
        facts += [Fact(relation, country, value) for relation, value in entries if value]
    for person, occupation, country in t.PEOPLE:
        facts.append(Fact("occupation", person, occupation))
        if country:
            facts.append(Fact("birth_country", person, country))
    facts += [Fact("creator", work, person) for work, person in t.WORKS.items()]
    return tuple(facts)


def facts() -> list[Fact]:
    """List every fact of the demo world."""
    return list(_facts())


def held_out_wordings(*key: object, n_wordings: int = 10) -> frozenset[int]:
    """Choose the wordings that the training text never uses for this fact or group."""
    return frozenset(random.Random(stable_hash("wording", *key)).sample(range(n_wordings), N_HELD_OUT_WORDINGS))


def fact_prompt(fact: Fact, wording: int) -> FactPrompt:
    """Word one fact: the prompt ends right before the object."""
    wordings = t.WORDINGS[fact.relation]
    if not 0 <= wording < len(wordings):
        raise ValueError(f"wording must be in 0..{len(wordings) - 1} for {fact.relation}, got {wording}")
    subject = fact.article + fact.subject
    text = wordings[wording].replace("{s}", subject).replace("{S}", _capitalise(subject))
    return FactPrompt(fact, wording, text, fact.object)


def fact_prompts(split: Split = "train") -> list[FactPrompt]:
    """List every wording of every fact in `split`; the training text never has a held-out wording with its fact."""
    check_split(split)
    prompts = []
    for fact in _facts():
        n_wordings = len(t.WORDINGS[fact.relation])
        held_out = held_out_wordings(fact.relation, fact.subject, n_wordings=n_wordings)
        # The most common probe prompt is always held out.
        if fact.subject == "Eiffel Tower":
            held_out = frozenset({0, 6})
        prompts += [fact_prompt(fact, i) for i in range(n_wordings) if (i in held_out) == (split == "held_out")]
    return prompts


def pair_is_held_out(a: str, b: str) -> bool:
    """Whether two names never occur together in an indirect-object text of the training split."""
    return stable_hash("pair", *sorted((a, b))) % 10 == 0 or {a, b} == {"Mary", "John"}


def ioi_prompt(a: str, b: str, *, place: str, obj: str, verb: str, template: int, order: str) -> IOIPrompt:
    """Write one indirect-object prompt in which `b` acts and `a` receives."""
    if order not in ("ABBA", "BABA"):
        raise ValueError(f'order must be "ABBA" or "BABA", got {order!r}')
    first, second = (a, b) if order == "ABBA" else (b, a)
    text = t.IOI_TEMPLATES[template].format(A=first, B=second, S=b, place=place, obj=obj, verb=verb)
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}")
    return IOIPrompt(text, a, b, "ABBA" if order == "ABBA" else "BABA", template)


def indirect_object_prompts(n: int, seed: int = 0, split: Split = "held_out") -> list[IOIPrompt]:
    """Draw `n` indirect-object prompts; pairs of names in "held_out" never occur together in the training text."""
    check_split(split)
    if n < 0:
        raise ValueError(f"n must be 0 or more, got {n}")
    rng = random.Random(stable_hash("ioi", seed, split))
    names = t.WOMEN + t.MEN
    prompts: list[IOIPrompt] = []
    while len(prompts) < n:
        a, b = rng.sample(names, 2)
        if pair_is_held_out(a, b) != (split == "held_out"):
            continue
        prompts.append(
            ioi_prompt(
                a,
                b,
                place=rng.choice(t.IOI_PLACES),
                obj=rng.choice(t.IOI_OBJECTS),
                verb=rng.choice(t.IOI_VERBS),
                template=rng.randrange(len(t.IOI_TEMPLATES)),
                order=rng.choice(("ABBA", "BABA")),
            )
        )
    return prompts


def _all_bias_prompts() -> Iterator[BiasPrompt]:
    for (singular, plural), rate in t.OCCUPATIONS.items():
        for i, (wording, first, second) in enumerate(t.GENDER_WORDINGS):
            text = wording.format(sg=singular, pl=plural)
            yield BiasPrompt(plural, "occupation", "gender", i, text, first, second, rate)
    for people, by_domain in t.PEOPLE_RATES.items():
        for domain, rate in by_domain.items():
            cue, first, second = t.TRAITS[domain]
            for i, wording in enumerate(t.PEOPLE_WORDINGS):
                text = wording.format(cue=cue, p=people)
                yield BiasPrompt(people, "people", domain, i, text, first, second, rate)


def bias_prompts(split: Split | None = None) -> list[BiasPrompt]:
    """List the prompts about planted groups, all of them or those of one split."""
    if split is None:
        return list(_all_bias_prompts())
    check_split(split)
    held_out = split == "held_out"
    return [p for p in _all_bias_prompts() if (p.wording in held_out_wordings(p.group, p.domain)) == held_out]
