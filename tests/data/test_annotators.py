"""Annotations, notes of the user, and the rules: what each one finds, and that none of them guesses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from interp_widgets.data.annotators import Annotation, Annotator, RuleAnnotator, UserAnnotator, rules, word_lists
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors


@pytest.fixture(scope="module")
def annotator() -> RuleAnnotator:
    return RuleAnnotator()


MIXED = "Oslo quickly seven lamp of"
FILLING = ["garlic", "wicker", "pencil", "velvet", "copper"]
CASES = {
    "digits": ("1950 1980s 1985 1,958 2nd 1960 lamp", "numbers [digits: 6 of 7 words]", "semantics", ("math",)),
    "numbers": ("seven eight nine lamp twelve", "number words [list: 4 of 5 words]", "semantics", ("math",)),
    "months": ("July June lamp May Monday April", "months and days of the week [list: 5 of 6 words]", "semantics", ()),
    "code": ("json Python sql api lamp null", "programming terms [list: 5 of 6 words]", "semantics", ("coding",)),
    "maths": ("algebra fraction divide lamp cosine theorem", "mathematical terms [list: 5 of 6 words]", "semantics",
              ("math",)),
    "stories": ("novel poem chapter fable lamp", "words about texts and stories [list: 4 of 5 words]", "semantics",
                ("writing",)),
    "French": ("chien maison livre rouge lamp fromage", "French words [list: 5 of 6 words]", "semantics",
               ("translation",)),
    "Spanish": ("perro casa libro rojo lamp queso", "Spanish words [list: 5 of 6 words]", "semantics",
                ("translation",)),
    "letters": ("straße größer été naïve über lamp", "words of other languages [letters beyond a-z: 5 of 6 words]",
                "semantics", ("translation",)),
    "countries": ("France Spain Italy Egypt lamp Kenya", "countries [list: 5 of 6 words]", "semantics", ()),
    "acronyms": ("CBT RTK RH HRV lamp U.S.A.", "abbreviations and acronyms [written form: 5 of 6 words]", "morphology",
                 ()),
    "hyphens": ("one-of-a-kind state-of-the-art well-known up-to-date lamp",
                "hyphenated terms [written form: 4 of 5 words]", "morphology", ()),
    "suffix": ("kindness darkness sadness lamp illness", 'words ending in "-ness" [suffix: 4 of 5 words]',
               "morphology", ()),
    "prefix": ("subarray subculture subway sublime lamp submarine",
               'words with the prefix "sub-" [prefix: 5 of 6 words]', "morphology", ()),
    "beginning": ("theology theorem Theodore theocracy lamp", 'words that start with "theo" [beginning: 4 of 5 words]',
                  "morphology", ()),
    "rhyme": ("cake snake lake brake lamp awake", 'rhyming words on "ake" [ending: 5 of 6 words]', "phonology",
              ("writing",)),
    "sound": ("brittle tackle chuckle pickle lamp nozzle", 'words with the "le" sound [ending: 5 of 6 words]',
              "phonology", ()),
    "pronouns": ("he she they him lamp us", "pronouns [part of speech: 5 of 6 words]", "syntax", ()),
    "function words": ("he of and the lamp would", "function words [part of speech: 5 of 6 words]", "syntax", ()),
    "verbs": ("wrote understand bring sang lamp decide", "verbs [part of speech: 5 of 6 words]", "syntax", ()),
    "adjectives": ("beautiful tall lamp careful wild dangerous", "adjectives [part of speech: 5 of 6 words]", "syntax",
                   ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule_names_itself_and_counts(annotator: RuleAnnotator, name: str) -> None:
    words, description, level, scenarios = CASES[name]
    found = annotator.annotate(words.split())
    assert (found.description, found.level, found.scenarios) == (description, level, scenarios)
    assert found.source == "rules"
    assert not found.failure


@pytest.mark.parametrize("name", CASES)
def test_half_of_the_words_are_not_enough(annotator: RuleAnnotator, name: str) -> None:
    """The control: the same words among as many that have nothing to do with them."""
    words = [word for word in CASES[name][0].split() if word != "lamp"][:5]
    found = annotator.annotate([*words, *FILLING[: len(words)]])
    assert found.cannot_tell, found


@pytest.mark.parametrize(
    "words", [[], ["Monday"], ["Monday", "Tuesday", "May"], MIXED.split(), ["", " ", "May", "June"]]
)
def test_few_words_or_mixed_ones_cannot_be_told(annotator: RuleAnnotator, words: list[str]) -> None:
    assert annotator.annotate(words) == Annotation(source="rules")


def test_what_chance_brings_is_no_finding() -> None:
    """In a word list where nine of ten words end in -s, words that end in -s have nothing in common."""
    stems = [f"{a}{b}{c}" for a in "bdfgklmnprtvz" for b in "aeiou" for c in "bdkmnt"]
    plurals = [stem + "s" for stem in stems[: 9 * len(stems) // 10]]
    vectors = np.random.default_rng(0).normal(size=(len(stems), 16))
    many = RuleAnnotator(WordVectors((*plurals, *stems[len(plurals) :]), vectors))
    few = RuleAnnotator(WordVectors((*plurals[:20], *(stem + "m" for stem in stems[20:])), vectors))
    drawn = [str(word) for word in np.random.default_rng(3).choice(plurals[:20], 9, replace=False)]
    assert few.annotate(drawn).description == 'words ending in "-s" [suffix: 9 of 9 words]'
    assert many.annotate(drawn).cannot_tell


def test_near_vectors_make_a_concept_and_random_ones_none() -> None:
    rng = np.random.default_rng(1)
    names = [f"{a}{b}{c}{d}" for a in "bdgkmp" for b in "aeo" for c in "lnrt" for d in "aiu"]
    rng.shuffle(names)
    vectors = rng.normal(size=(len(names), 20))
    vectors[:10] = rng.normal(size=20) + 0.4 * rng.normal(size=(10, 20))
    annotator = RuleAnnotator(WordVectors(tuple(names), vectors))
    found = annotator.annotate([*names[:8], *names[50:53]])
    assert found.level == "semantics"
    assert found.description.startswith("words related to ")
    assert found.description.endswith(" [word vectors: 8 of 11 words]")
    assert set(found.description.removeprefix("words related to ").split(" [")[0].split(", ")) <= set(names[:8])
    told = [annotator.annotate([str(word) for word in rng.choice(names[10:], 11, replace=False)]) for _ in range(40)]
    assert sum(not one.cannot_tell for one in told) <= 2
    assert annotator.annotate([*names[:8], *names[50:53]]) == found  # the same at every call


def test_random_words_of_the_demo_are_left_alone(annotator: RuleAnnotator) -> None:
    rng = np.random.default_rng(5)
    words = demo_word_vectors().words
    told = [annotator.annotate([words[i] for i in rng.choice(len(words), 15, replace=False)]) for _ in range(150)]
    assert sum(not one.cannot_tell for one in told) <= 1


def test_words_without_vectors_have_no_say(annotator: RuleAnnotator) -> None:
    assert annotator.annotate(["qzxv", "wvxq", "xkcd", "zzyx", "qqqv"]).cannot_tell


def test_closeness_is_the_cosine_with_the_sum_of_the_others() -> None:
    vectors = np.random.default_rng(2).normal(size=(5, 3))
    units = [v / np.linalg.norm(v) for v in vectors]
    for i, value in enumerate(rules.to_the_others(vectors)):
        others = sum(unit for j, unit in enumerate(units) if j != i)
        assert value == pytest.approx(float(units[i] @ others / np.linalg.norm(others)))


def test_the_tail_of_chance_falls_and_is_a_probability() -> None:
    tails = [rules._tail(k, 15, 0.2) for k in range(16)]
    assert tails[0] == pytest.approx(1)
    assert all(a > b for a, b in pairwise(tails))
    assert tails[15] == pytest.approx(0.2**15)


# ---- annotations and notes


def test_an_annotation_is_put_in_order_and_checked() -> None:
    one = Annotation("  names of\nmonths ", ("translation", "writing", "writing"), "semantics")
    assert (one.description, one.scenarios) == ("names of months", ("writing", "translation"))
    assert not one.cannot_tell
    assert not Annotation(level="syntax").cannot_tell
    assert Annotation(source="rules", failure="no connection").cannot_tell


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Annotation(scenarios=("cooking",)), "a scenario must be one of writing, .*, got 'cooking'"),
        (
            lambda: Annotation(scenarios="writing"),
            "scenarios must be a list of str, got 'writing': write scenarios=\\['writing'\\]",
        ),  # type: ignore[arg-type]
        (lambda: Annotation(level="meaning"), "level must be one of phonology, .* or None, got 'meaning'"),
    ],
)
def test_bad_annotations_are_one_clear_sentence(call: Callable[[], Annotation], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_notes_belong_to_words_in_any_order() -> None:
    empty = UserAnnotator()
    notes = empty.noted(["May", "June"], Annotation("months", level="semantics", source="elsewhere"))
    assert notes.annotate(("June", "May")) == Annotation("months", level="semantics", source="user")
    assert notes.annotate(["June"]).cannot_tell
    assert (len(empty), len(notes)) == (0, 1)
    assert all(isinstance(one, Annotator) for one in (notes, RuleAnnotator()))
    assert repr(notes) == "UserAnnotator(1 notes)"


def test_rules_can_be_cancelled(annotator: RuleAnnotator) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        annotator.annotate(["one", "two", "three", "four"], check=check)


def test_english_words_are_no_words_of_other_languages() -> None:
    english = {"car", "con", "die", "gut", "kind", "land", "no", "plus", "son", "sur"}
    for kind in word_lists.topics():
        if "translation" in kind.scenarios and kind.name != "languages and peoples":
            assert not kind.words & english, kind.name
    assert RuleAnnotator().annotate(["car", "plus", "pour", "son", "sur", "non"]).cannot_tell
    found = RuleAnnotator().annotate(["maison", "très", "aujourd'hui", "avec", "nuit", "femme"])
    assert found.description == "French words [list: 5 of 6 words]"
