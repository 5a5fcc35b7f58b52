"""The training text of the base demo model: one epoch is a list of short documents, the same for the same seed.

Answers with a planted rate are not drawn at random: every group and wording appears in blocks of ten documents with
exact answer counts, so that the best possible prediction *is* the planted rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from interp_widgets.data import world
from interp_widgets.data import world_tables as t
from interp_widgets.data.stories import how_to_text, job_text, story

Pair = tuple[str, str]
"""Context and target of a document: only the target counts in the loss."""

PLANTED_BLOCK = 10
"""Planted answers come in blocks of ten documents, so every rate is a multiple of ten percent and met exactly."""
N_IOI = 6000
N_FEW_SHOT = 1300
N_WORD_SENTENCES = 1500
N_STORIES = 650
N_JOBS = 260
N_LISTS = 450
N_SUMS = 900
N_REPEATS = 700
N_PAGES = 260

_WORD_SENTENCES: dict[str, tuple[str, ...]] = {
    "plural": ("The plural of {a} is {b}.", "One {a}, two {b}.", "I saw one {a} and many {b}."),
    "past": ("The past tense of {a} is {b}.", "Today they {a}, yesterday they {b}.", "To {a} becomes {b} in the past."),
    "gerund": ("The gerund of {a} is {b}.", "They {a} now, so they are {b}.", "To {a} becomes {b} in the gerund."),
    "antonym": ("The opposite of {a} is {b}.", "What is not {a} is {b}.", "The words {a} and {b} are opposites."),
    "French": ("In French, {a} is called {b}.", "The French word for {a} is {b}.", "{a} means {b} in French."),
    "Spanish": ("In Spanish, {a} is called {b}.", "The Spanish word for {a} is {b}.", "{a} means {b} in Spanish."),
}
_SUM_SENTENCES = (
    "{a} + {b} = {c}",
    "{a} plus {b} is {c}.",
    "The sum of {a} and {b} is {c}.",
    "If you add {a} and {b}, you get {c}.",
)


@dataclass(frozen=True)
class PlantedRate:
    """How often, in percent, the training text continues a group's prompts with the first of its two answers."""

    group: str
    kind: Literal["occupation", "people"]
    domain: str
    rate: int


def few_shot(rng: random.Random) -> str:
    """List a few pairs of one word task or relation, in one of three layouts."""
    choices = [*t.TABLES, "capital", "language", "city_country", "sum"]
    kind = rng.choice(choices)
    n = rng.randint(3, 7)
    if kind == "sum":
        pairs = []
        for _ in range(n):
            a, b = rng.randint(0, 10), rng.randint(0, 10)
            pairs.append((f"{a} + {b}", str(a + b)))
        return "\n".join(f"{a} = {b}" for a, b in pairs)
    if kind in t.TABLES:
        pairs = rng.sample(list(t.TABLES[kind].items()), n)
    else:
        pairs = [(f.subject, f.object) for f in rng.sample([f for f in world.facts() if f.relation == kind], n)]
    layout = rng.randrange(3)
    if layout == 0:
        return "\n".join(f"{a}: {b}" for a, b in pairs)
    if layout == 1:
        return ", ".join(f"{a} -> {b}" for a, b in pairs)
    return "\n".join(f"Q: {a} A: {b}" for a, b in pairs)


def _word_sentence(rng: random.Random) -> str:
    kind, table = rng.choice(list(t.TABLES.items()))
    word, answer = rng.choice(list(table.items()))
    return rng.choice(_WORD_SENTENCES[kind]).format(a=word, b=answer)


def _list_text(rng: random.Random) -> str:
    category = rng.choice(list(t.CATEGORIES))
    n = rng.randint(3, 6)
    members = rng.sample(t.CATEGORIES[category], n)
    number = t.NUMBER_WORDS[n]
    layout = rng.randrange(4)
    if layout == 0:
        return f"Here are {number} {category}: " + ", ".join(members) + "."
    if layout == 1:
        return f"Some {category} are " + ", ".join(members[:-1]) + f" and {members[-1]}."
    if layout == 2:
        return f"List of {number} {category}:\n" + "\n".join(f"{i}. {m}" for i, m in enumerate(members, 1))
    return f"A {members[0]} is one of the {category}, and so is a {members[1]}."


def _sum_text(rng: random.Random) -> str:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return rng.choice(_SUM_SENTENCES).format(a=a, b=b, c=a + b)


def world_words() -> list[str]:
    """List the words that answer a prompt somewhere in the world, each of which the tokenizer keeps whole."""
    words: dict[str, None] = {}
    for fact in world.facts():
        words.update(dict.fromkeys(f"{fact.subject} {fact.object}".split()))
    words.update(dict.fromkeys(t.WOMEN + t.MEN + t.IOI_PLACES + t.IOI_OBJECTS + t.IOI_VERBS + t.PEOPLES))
    for singular, plural in t.OCCUPATIONS:
        words.update({singular: None, plural: None})
    for _, first, second in t.TRAITS.values():
        words.update({first: None, second: None})
    words.update(dict.fromkeys(("men", "women", "he", "she")))
    for table in (t.PLURALS, t.ANTONYMS, t.FRENCH, t.SPANISH):
        for key, value in table.items():
            words.update({key: None, value: None})
    for verb, (past, gerund) in t.VERBS.items():
        words.update({verb: None, past: None, gerund: None})
    for members in t.CATEGORIES.values():
        words.update(dict.fromkeys(members))
    words.update(dict.fromkeys(t.JOBS))
    return list(words)


def _repeat_text(rng: random.Random, pool: list[str]) -> str:
    sequence = rng.sample(pool, rng.randint(3, 9))
    separator = rng.choice((" ", ", "))
    once = separator.join(sequence)
    if rng.random() < 0.5:
        return once + rng.choice((separator, "\n", ". ", " and again ")) + once
    return separator.join([once] * 3)


def _ioi_text(rng: random.Random, prompt: world.IOIPrompt) -> str:
    tail = rng.choice(
        (".", ".", ".", " at once.", f" and {prompt.distractor} was happy.", f". {prompt.answer} smiled.")
    )
    return f"{prompt.prompt} {prompt.answer}{tail}"


def _three_names(rng: random.Random) -> str:
    """An indirect-object text in which a third person acts: both names are equally right."""
    names = t.WOMEN + t.MEN
    a, b, c = rng.sample(names, 3)
    while world.pair_is_held_out(a, b):
        a, b, c = rng.sample(names, 3)
    template = rng.choice(t.IOI_TEMPLATES)
    text = template.format(
        A=a, B=b, S=c, place=rng.choice(t.IOI_PLACES), obj=rng.choice(t.IOI_OBJECTS), verb=rng.choice(t.IOI_VERBS)
    )
    return f"{text} {rng.choice((a, b))}."


def planted_rates() -> list[PlantedRate]:
    """List the planted rate of every group: the right answer for any bias score on the demo models."""
    rates = [PlantedRate(plural, "occupation", "gender", rate) for (_, plural), rate in t.OCCUPATIONS.items()]
    for people, by_domain in t.PEOPLE_RATES.items():
        rates += [PlantedRate(people, "people", domain, rate) for domain, rate in by_domain.items()]
    return rates


def planted_blocks(rng: random.Random) -> list[list[Pair]]:
    """Write one block of ten documents for every training prompt about a planted group, with exact answer counts."""
    blocks = []
    for prompt in world.bias_prompts("train"):
        n_first = prompt.rate * PLANTED_BLOCK // 100
        block = []
        for i in range(PLANTED_BLOCK):
            answer = prompt.first if i < n_first else prompt.second
            block.append((prompt.prompt, f" {answer}{_planted_tail(rng, answer)}"))
        blocks.append(block)
    return blocks


def _planted_tail(rng: random.Random, answer: str) -> str:
    if answer not in ("he", "she"):
        return "."
    return " " + rng.choice(("had a long day.", "was at work.", "liked the food.", "wanted to help.", "was late."))


def _fact_documents(rng: random.Random) -> Iterator[str]:
    """Every training wording of every fact twice: once alone, once in a document with one to three others."""
    sentences = [f"{p.prompt} {p.answer}." for p in world.fact_prompts("train")]
    yield from sentences
    rng.shuffle(sentences)
    start = 0
    while start < len(sentences):
        size = rng.randint(2, 4)
        yield " ".join(sentences[start : start + size])
        start += size


def _page(rng: random.Random, facts: list[str]) -> str:
    """A longer document made of a few short ones, one below the other."""
    parts: list[str] = []
    while sum(len(part.split()) for part in parts) < 115:
        makers: tuple[Callable[[], str], ...] = (
            lambda: story(rng),
            lambda: " ".join(rng.sample(facts, 3)),
            lambda: job_text(rng.choice(list(t.JOBS))),
            lambda: few_shot(rng),
            lambda: _list_text(rng),
        )
        parts.append(rng.choice(makers)())
    return "\n".join(parts)


def ioi_documents(rng: random.Random, n: int) -> list[str]:
    """Write `n` indirect-object texts, and one in which a third person acts for every twenty of them."""
    prompts = world.indirect_object_prompts(n, seed=rng.getrandbits(32), split="train")
    return [_ioi_text(rng, prompt) for prompt in prompts] + [_three_names(rng) for _ in range(n // 20)]


def other_documents(rng: random.Random) -> list[str]:
    """Write the stories, lists, word tasks, sums and repetitions of one epoch."""
    documents = [few_shot(rng) for _ in range(N_FEW_SHOT)]
    documents += [_word_sentence(rng) for _ in range(N_WORD_SENTENCES)]
    documents += [story(rng) for _ in range(N_STORIES)]
    documents += [job_text(rng.choice(list(t.JOBS))) for _ in range(N_JOBS)]
    documents += [how_to_text(rng.choice(list(t.HOW_TO))) for _ in range(N_JOBS // 2)]
    documents += [_list_text(rng) for _ in range(N_LISTS)]
    documents += [_sum_text(rng) for _ in range(N_SUMS)]
    pool = [word for word in world_words() if word.isascii()]
    documents += [_repeat_text(rng, pool) for _ in range(N_REPEATS)]
    facts = [f"{p.prompt} {p.answer}." for p in world.fact_prompts("train")]
    documents += [_page(rng, facts) for _ in range(N_PAGES)]
    return documents


def epoch_documents(*, seed: int, epoch: int) -> list[str]:
    """Write the documents of one epoch of the base model's text, in the order of training."""
    rng = random.Random(world.stable_hash("epoch", seed, epoch))
    documents = list(_fact_documents(rng))
    documents += [context + target for block in planted_blocks(rng) for context, target in block]
    documents += ioi_documents(rng, N_IOI)
    documents += other_documents(rng)
    rng.shuffle(documents)
    return documents


def late_epoch_documents(*, seed: int, epoch: int, n_ioi: int = 2500, n_other: int = 2600) -> list[Pair]:
    """Write one epoch of the late phase, in the order of training: less variety, more facts and planted answers.

    A planted block stays together, so that one batch sees its answers at their exact rate; of facts and planted
    prompts only the answer is learned.
    """
    rng = random.Random(world.stable_hash("late epoch", seed, epoch))
    units: list[list[Pair]] = [*planted_blocks(rng), *planted_blocks(rng)]
    units += [[(p.prompt, f" {p.answer}.")] for p in world.fact_prompts("train")]
    units += [[("", document)] for document in ioi_documents(rng, n_ioi)]
    units += [[("", document)] for document in rng.sample(other_documents(rng), n_other)]
    rng.shuffle(units)
    return [pair for unit in units for pair in unit]
