"""Concepts with texts in which they occur: those of the demo, and folders in the layout of PaCE-1M."""

from __future__ import annotations

import ast
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path
from interp_widgets.data import world
from interp_widgets.data import world_tables as t
from interp_widgets.data.files import is_unicode, lines_of, read_text, short
from interp_widgets.data.stories import an

FEWEST_STIMULI = 3
N_STIMULI = 20
"""Number of stimuli of every demo concept."""
HELD_OUT_SHARE = 0.3
FEWEST_FACTS = 2
N_MOST = 30
"""Most concepts of one group."""


@checked
@dataclass(frozen=True)
class Concept:
    """A named concept and short texts (stimuli) in which it occurs.

    Example:
        >>> weather = Concept("weather", ["It rained all day.", "The wind is cold.", "Snow fell."], group="things")
        >>> meals = Concept("meals", ["We ate soup.", "The bread is fresh.", "He cooked rice."], group="things")
        >>> concept_directions(model, [weather, meals], layer=3).names
        ('weather', 'meals')
    """

    name: str
    """The name, which `concept_directions` also puts into its template."""
    stimuli: Sequence[str]
    """Texts from which a direction is computed; stored as a tuple."""
    held_out: Sequence[str] = ()
    """Texts on which the direction is tested; stored as a tuple."""
    group: str = ""
    """The kind of concept, such as "countries"; may be empty."""

    def __post_init__(self) -> None:
        for name in ("stimuli", "held_out"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


def check_concepts(concepts: Sequence[Concept]) -> None:
    """Raise a ValueError for fewer than two concepts, two with the same name, too few or empty stimuli, a text on both
    sides of the split, or anything that is not a `Concept`."""
    other = next((entry for entry in concepts if not isinstance(entry, Concept)), None)
    if other is not None:
        raise ValueError(f'concepts must be a list of Concept("name", ["stimulus", ...]), got {other!r} in it')
    if len(concepts) < 2:
        raise ValueError(f"a direction separates a concept from others: give at least 2 concepts, got {len(concepts)}")
    names = Counter(concept.name for concept in concepts)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"two concepts are called {twice!r}: give each concept its own name")
    for concept in concepts:
        if not concept.name.strip():
            raise ValueError("a concept has an empty name: give each concept a name")
        if len(concept.stimuli) < FEWEST_STIMULI:
            raise ValueError(
                f"the concept {concept.name!r} has {len(concept.stimuli)} stimuli to make a direction from: "
                f"give at least {FEWEST_STIMULI}"
            )
        if any(not text.strip() for text in (*concept.stimuli, *concept.held_out)):
            raise ValueError(f"the concept {concept.name!r} has an empty stimulus: leave it out")
        shared = set(concept.stimuli) & set(concept.held_out)
        if shared:
            raise ValueError(
                f"the concept {concept.name!r} is tested on a text that its direction is made from: {min(shared)!r}"
            )


def split_stimuli(name: str, stimuli: Sequence[str], group: str = "", *, share: float = HELD_OUT_SHARE) -> Concept:
    """A concept with a share of its stimuli held out; the choice depends only on the name.

    Fewer stimuli are held out, or none, if fewer than `FEWEST_STIMULI` would remain.
    """
    texts = list(dict.fromkeys(stimuli))
    n_held_out = min(round(share * len(texts)), max(len(texts) - FEWEST_STIMULI, 0))
    random.Random(world.stable_hash("concept split", name)).shuffle(texts)
    return Concept(name, tuple(texts[n_held_out:]), tuple(texts[:n_held_out]), group)


# ---- the demo's concepts


def demo_concepts() -> tuple[Concept, ...]:
    """222 concepts of the demo's world with 19 or 20 stimuli each, in 14 groups; the same at every call.

    Facts about countries, cities and people are worded as in the demo models' training text; things, colours, animals
    and occupations occur in short sentences of common words. The concepts of a group share their wordings, so that the
    wording of a sentence reveals its group but not its concept. The held-out stimuli of a concept have wordings that
    its other stimuli do not have.

    Example:
        >>> concepts = demo_concepts()
        >>> concepts[0].name, concepts[0].group, len(concepts[0].stimuli), len(concepts[0].held_out)
        ('France', 'countries', 14, 6)
    """
    return _of_the_demo()


@cache
def _of_the_demo() -> tuple[Concept, ...]:
    worded = [*_places_and_people(), *_things(), *_jobs_and_peoples()]
    return tuple(_split_wordings(name, group, texts) for name, group, texts in worded)


def _split_wordings(name: str, group: str, texts: Sequence[tuple[str, str]]) -> Concept:
    """A concept from `N_STIMULI` of these (wording, text) pairs; held-out texts have different wordings."""
    rng = random.Random(world.stable_hash("concept", name))
    chosen = dict(zip(*_columns(rng.sample(texts, len(texts))), strict=True))  # text -> wording
    wordings = sorted(set(chosen.values()))
    held_out = set(rng.sample(wordings, round(HELD_OUT_SHARE * len(wordings))))
    n_tested = round(HELD_OUT_SHARE * N_STIMULI)
    tested = [text for text, wording in chosen.items() if wording in held_out][:n_tested]
    training = [text for text, wording in chosen.items() if wording not in held_out][: N_STIMULI - n_tested]
    return Concept(name, tuple(training), tuple(tested), group)


def _columns(texts: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [text for _, text in texts], [wording for wording, _ in texts]


_Made = tuple[str, str, list[tuple[str, str]]]
"""Name, group, and (wording, text) of each stimulus."""
_COUNTRIES = (
    "France Germany Italy Spain Portugal Greece Poland Hungary Austria Denmark Sweden Norway Finland England Egypt "
    "Morocco Kenya Nigeria China Japan Thailand Vietnam Nepal Pakistan Iran Indonesia Mongolia Australia Peru Chile"
)


def _places_and_people() -> Iterator[_Made]:
    """Subjects of facts, each in all wordings of what is true of it."""
    by_subject: dict[str, list[world.Fact]] = {}
    for fact in world.facts():
        by_subject.setdefault(fact.subject, []).append(fact)

    def worded(*facts: world.Fact) -> list[tuple[str, str]]:
        return [
            (f"{fact.relation} {i}", f"{world.fact_prompt(fact, i).prompt} {fact.object}.")
            for fact in facts
            for i in range(len(t.WORDINGS[fact.relation]))
        ]

    for country in _COUNTRIES.split():
        yield country, "countries", worded(*by_subject[country])
    cities = [city for city in t.LANDMARKS_BY_CITY if len(_about_city(city)) >= FEWEST_FACTS]
    for city in cities[:N_MOST]:
        yield city, "cities", worded(*_about_city(city))
    people = [person for person, _, country in t.PEOPLE if country and person != "James Cook"]
    for person in people[:N_MOST]:
        yield person, "people", worded(*by_subject[person])


def _about_city(city: str) -> list[world.Fact]:
    return [
        fact
        for fact in world.facts()
        if (fact.relation in ("landmark_city", "capital") and fact.object == city)
        or (fact.relation == "city_country" and fact.subject == city)
    ]


_THING_WORDINGS = (
    "{N} saw {a} near the {p}.", "{N} found {a} at the {p}.", "There was {a} in the {p}.",
    "{N} and {M} talked about {a}.",
    "The {x} was near the {p}.", "{N} asked {M} about the {x}.", "They went to the {p} to see {a}.",
    "One day, {N} saw the {x} in the {p}.", "{M} did not know the {x}.", "{N} took a picture of the {x}.",
    "In the evening, {N} came to see the {x} again.", "Here is {a}, and {N} is happy.",
)  # fmt: skip
_COLOUR_WORDINGS = (
    "{N} has a {x} hat.", "The {x} door is open.", "{N} saw a {x} car near the {p}.", "The {x} flower is in the {p}.",
    "{N} found a {x} coat at the {p}.", "The bird near the {p} was {x}.", "{N} gave {M} a {x} box.",
    "The book was {x}.",
    "{N} and {M} live in a {x} house.", "The boat was {x}, and {N} was happy.", "{M} took the {x} cup from the table.",
    "They painted the {p} {x}.",
)  # fmt: skip
_THINGS = ("animals", "fruits", "tools", "instruments", "clothes", "foods", "vehicles")
_NO_ARTICLE = frozenset(("bread", "cheese", "soup", "rice", "meat", "pasta", "butter"))


def _things() -> Iterator[_Made]:
    for category in (*_THINGS, "colours"):
        for word in t.CATEGORIES[category]:
            wordings = _COLOUR_WORDINGS if category == "colours" else _THING_WORDINGS
            if word not in ("orange", "pliers"):  # a fruit and a colour; a plural
                yield word, category, _worded(word, wordings)


def _worded(word: str, wordings: Sequence[str]) -> list[tuple[str, str]]:
    """Every wording with several draws of names and places."""
    rng = random.Random(world.stable_hash("concept wording", word))
    texts = []
    for _ in range(3):
        for wording in wordings:
            name, other_name = rng.sample(t.WOMEN + t.MEN, 2)
            noun = f"some {word}" if word in _NO_ARTICLE else an(word)
            text = wording.format(N=name, M=other_name, p=rng.choice(t.STORY_PLACES), x=word, a=noun)
            texts.append((wording, text))
    return texts


_JOB_WORDINGS = (
    "{N} is {a}.", "The {x} went home.", "The {x} was tired.", "{N} asked the {x} about the {p}.",
    "We met the {x} at the {p}.",
    "It is not easy to be {a}.", "The {x} works near the {p}.", "{N} and the {x} were at the {p} together.",
    "In this town, everyone knows the {x}.", "{N} wants to work as {a}.", "{M} gave a drink to the {x}.",
    "Every day the {x} goes to the {p}.",
)  # fmt: skip


def _jobs_and_peoples() -> Iterator[_Made]:
    for job, _ in t.OCCUPATIONS:
        yield job, "occupations", _worded(job, _JOB_WORDINGS)
    for people in t.PEOPLES:
        texts = [
            (f"{prompt.domain} {prompt.wording}", f"{prompt.prompt} {word}.")
            for prompt in world.bias_prompts()
            if prompt.group == people
            for word in (prompt.first, prompt.second)
        ]
        yield people, "peoples", texts
    for verb, (past, gerund) in list(t.VERBS.items())[:20]:
        yield verb, "verbs", _worded_verb(verb, past, gerund)


_VERB_WORDINGS = (
    "Today they {v}.", "Yesterday {N} {d}.", "{N} is {g} now.", "{N} likes to {v}.", "{N} and {M} {d} near the {p}.",
    "They {v} now, so they are {g}.", "{N} wanted to {v} at the {p}.", "After that, {M} {d} again.", "We saw {N} {g}.",
    "{M} did not want to {v}.", "In the {p} people {v} every day.", "{N} {d} for a long time.",
)  # fmt: skip


def _worded_verb(verb: str, past: str, gerund: str) -> list[tuple[str, str]]:
    rng = random.Random(world.stable_hash("concept wording", verb))
    texts = []
    for _ in range(3):
        for wording in _VERB_WORDINGS:
            name, other_name = rng.sample(t.WOMEN + t.MEN, 2)
            text = wording.format(N=name, M=other_name, p=rng.choice(t.STORY_PLACES), v=verb, d=past, g=gerund)
            texts.append((wording, text))
    return texts


# ---- folders


@checked
def read_concepts(
    folder: str | os.PathLike[str], *, limit: int | None = None, held_out: float = HELD_OUT_SHARE
) -> tuple[Concept, ...]:
    """Read concepts from a folder in the layout of PaCE-1M: ``concept_index.txt`` and ``concept/<name>.txt`` files.

    A file holds a Python or JSON list of texts, or one text per line. Without ``concept_index.txt``, all files are read
    in the order of their names.

    Args:
        folder: the folder with ``concept_index.txt`` and ``concept/``, or with the files of the concepts.
        limit: most concepts to read, from the top of the list.
        held_out: share of each concept's stimuli that is held out for testing.

    Raises:
        FileNotFoundError: there is no such folder, or a listed concept has no file.
        ValueError: a file cannot be read, a concept has too few stimuli, or two have the same name.

    Source: the layout is that of PaCE: Parsimonious Concept Engineering for Large Language Models (Luo et al. 2024).

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for name in ("rain", "snow"):
        ...         texts = [f"We saw {name} {when}." for when in ("today", "again", "at night", "in May", "once")]
        ...         _ = Path(folder, f"{name}.txt").write_text("\\n".join(texts))
        ...     concepts = read_concepts(folder)
        >>> [(concept.name, len(concept.stimuli), len(concept.held_out)) for concept in concepts]
        [('rain', 3, 2), ('snow', 3, 2)]
    """
    source = named_path(folder, "folder")
    if not os.path.isdir(source):
        raise FileNotFoundError(f"there is no folder of concepts at {source}")
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out must be a share in 0..1 (1 left out), got {held_out}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, got {limit}")
    inside = source / "concept"
    files = inside if inside.is_dir() else source
    index = source / "concept_index.txt"
    names = _texts(index) if index.is_file() else sorted(path.stem for path in files.glob("*.txt"))
    if not names:
        raise ValueError(f"{files} holds no concepts: give one .txt file of stimuli per concept")
    loaded = []
    for name in names[:limit]:
        path = files / f"{name}.txt"
        if path.parent != files or not os.path.isfile(path):
            raise FileNotFoundError(f"the concept {short(repr(name))} of {index} has no file {short(path)}")
        loaded.append(split_stimuli(name, _texts(path), share=held_out))
    try:
        check_concepts(loaded)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return tuple(loaded)


def _texts(path: Path) -> list[str]:
    """The texts of one file: a list literal, or one per line."""
    content = read_text(path, "texts").strip()
    if not content.startswith("["):
        return [line.strip() for line in lines_of(content) if line.strip()]
    try:
        read = ast.literal_eval(content)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{path} starts with [ but is not a list of str ({short(error)}): write one") from error
    if not isinstance(read, list) or not all(isinstance(text, str) for text in read):
        raise ValueError(f"{path} must hold a list of str only")
    if not is_unicode("".join(read)):
        raise ValueError(f"{path} has one half of a surrogate pair in its list: remove it")
    return [text.strip() for text in read if text.strip()]
