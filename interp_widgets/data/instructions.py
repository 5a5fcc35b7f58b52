"""Instruction data for the tuned demo model: tasks, phrasings, layouts, and a check of every response.

A prompt is a few labelled lines that end with "Response:"; the response follows with its leading space:

    Context: We flew to Lyon, a city in France.
    Instruction: Please give the plural of the word.
    Input: cat
    Response: cats
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from interp_widgets.data import world
from interp_widgets.data import world_tables as t
from interp_widgets.data.stories import how_to_text, job_text, story
from interp_widgets.data.world import Split, check_split, stable_hash

FORMAT = "{context}Instruction: {instruction}\n{input}Response:"
"""The instruction format; `context` and `input` are whole labelled lines or empty."""

Layout = Literal["input_last", "input_first", "inline"]
LAYOUTS: tuple[Layout, ...] = ("input_last", "input_first", "inline")
_WORD_TASKS = {"plural": "plural", "past": "past", "gerund": "gerund", "antonym": "antonym", "french": "French",
               "spanish": "Spanish"}  # fmt: skip
_FACT_TASKS = {"capital": "capital", "continent": "continent", "language": "language", "currency": "currency",
               "city": "landmark_city", "creator": "creator"}  # fmt: skip
_SEQUENCE_TASKS = ("repeat", "reverse", "first", "last", "count")
HARD_TASKS = (*_SEQUENCE_TASKS, "odd", "list")
"""The tasks that are learned last, whose answer depends on the order of words or on earlier text."""
UNSOLVED_TASKS: tuple[str, ...] = ("list", "repeat", "reverse")
"""Tasks that the shipped model gets wrong in over 15% of cases, even with phrasings and inputs from its training."""


@dataclass(frozen=True)
class InstructionCase:
    """An instruction with its reference response."""

    task: str
    prompt: str
    """The whole text up to and including "Response:"."""
    response: str
    """The reference response with its leading space, so that prompt + response is the whole text."""
    instruction_span: tuple[int, int]
    """Characters [start, end) of the instruction's words in `prompt`, without the input."""
    instruction: str
    input: str
    phrasing: tuple[int, int]
    """Indices of core and wrapper."""


def tasks(*, unsolved: bool = False) -> list[str]:
    """List the instruction tasks; `unsolved` adds those that the shipped model was trained on but did not learn."""
    return [task for task in t.CORES if unsolved or task not in UNSOLVED_TASKS]


def format_prompt(instruction: str, input: str = "", context: str = "", *, input_first: bool = False) -> str:
    """Write an instruction prompt; empty parts are omitted, and `input_first` puts the input above the instruction."""
    if not instruction.strip():
        raise ValueError("instruction must not be empty")
    above = f"Context: {context}\n" if context else ""
    line = f"Input: {input}\n" if input else ""
    if input_first:
        above, line = above + line, ""
    return FORMAT.format(context=above, instruction=instruction, input=line)


def phrasings(task: str, split: Split) -> list[tuple[int, int]]:
    """List the phrasings (core, wrapper) of a task; the last core and every seventh other one are held out."""
    check_split(split)
    if task not in t.CORES:
        raise ValueError(f"task must be one of {', '.join(t.CORES)}, got {task!r}")
    last = len(t.CORES[task]) - 1
    return [
        (core, wrapper)
        for core in range(len(t.CORES[task]))
        for wrapper in range(len(t.WRAPPERS))
        if (core == last or (3 * core + wrapper + stable_hash(task)) % 7 == 0) == (split == "held_out")
    ]


def phrase(task: str, phrasing: tuple[int, int], input: str = "") -> tuple[str, int]:
    """Write an instruction, with the input inside it if any, and count the characters before that input."""
    core = t.CORES[task][phrasing[0]]
    wrapper = t.WRAPPERS[phrasing[1]]
    slot = "{C}" if "{C}" in wrapper else "{c}"
    words = core[0].upper() + core[1:] if slot == "{C}" else core
    before, after = wrapper.split(slot)
    if not input:
        return before + words + after, len(before + words + after)
    return f"{before}{words}: {input}{after}", len(before + words)


def task_table(task: str) -> tuple[tuple[str, str], ...]:
    """The inputs and responses of a task with a fixed table; empty for the others."""
    if task not in t.CORES:
        raise ValueError(f"task must be one of {', '.join(t.CORES)}, got {task!r}")
    return _table(task)


def _input_is_held_out(task: str, value: str) -> bool:
    return stable_hash("input", task, value) % 7 == 0


@cache
def _table(task: str) -> tuple[tuple[str, str], ...]:
    """Inputs and responses of a task with a fixed table."""
    if task in _WORD_TASKS:
        return tuple(t.TABLES[_WORD_TASKS[task]].items())
    if task in _FACT_TASKS:
        return tuple((f.article + f.subject, f.object) for f in world.facts() if f.relation == _FACT_TASKS[task])
    if task == "sum":
        return tuple((f"{a} + {b}", str(a + b)) for a in range(11) for b in range(11))
    if task == "kind":
        return tuple((m, t.CATEGORY_OF[c]) for c, members in t.CATEGORIES.items() for m in members)
    if task == "job":
        return tuple((job, job_text(job)) for job in t.JOBS)
    if task == "how_to":
        return tuple((goal, how_to_text(goal)) for goal in t.HOW_TO)
    if task == "country":
        return tuple((country, _country_text(country)) for country in _full_countries())
    if task == "story":
        return tuple((topic, "") for topic in t.STORY_ANIMALS + t.STORY_FINDS)
    if task == "list":
        return tuple((f"{t.NUMBER_WORDS[n]} {category}", "") for n in range(3, 6) for category in t.CATEGORIES)
    return ()


@cache
def _country_facts() -> dict[str, dict[str, str]]:
    facts: dict[str, dict[str, str]] = {}
    for fact in world.facts():
        if fact.relation in ("capital", "language", "continent", "currency"):
            facts.setdefault(fact.subject, {})[fact.relation] = fact.object
    return facts


def _full_countries() -> list[str]:
    return [country for country, facts in _country_facts().items() if len(facts) == 4]


def _country_text(country: str) -> str:
    facts = _country_facts()[country]
    return (
        f"{country} is a country in {facts['continent']}. The capital of {country} is {facts['capital']}, and people "
        f"there speak {facts['language']}. In the shops of {country} they pay with the {facts['currency']}."
    )


@cache
def _plain_words() -> tuple[str, ...]:
    return tuple(sorted({w for members in t.CATEGORIES.values() for w in members} | set(t.ANTONYMS) | set(t.PLURALS)))


def _draw_input(task: str, rng: random.Random, split: Split) -> tuple[str, str]:
    """Draw an input and its response, among the inputs of the split."""
    while True:
        if task in _SEQUENCE_TASKS:
            sequence = rng.sample(_plain_words(), rng.randint(2, 4))
            value, response = " ".join(sequence), _sequence_response(task, sequence)
        elif task == "odd":
            value, response = _odd_one_out(rng)
        else:
            value, response = rng.choice(_table(task))
        if _input_is_held_out(task, value) == (split == "held_out"):
            break
    if task == "story":
        response = story(rng, value)
    if task == "list":
        response = _list_response(value, rng)
    return value, response


def _sequence_response(task: str, sequence: list[str]) -> str:
    answers: dict[str, Callable[[], str]] = {
        "repeat": lambda: " ".join(sequence),
        "reverse": lambda: " ".join(reversed(sequence)),
        "first": lambda: sequence[0],
        "last": lambda: sequence[-1],
        "count": lambda: t.NUMBER_WORDS[len(sequence)],
    }
    return answers[task]()


def _odd_one_out(rng: random.Random) -> tuple[str, str]:
    main, other = rng.sample(list(t.CATEGORIES), 2)
    members = rng.sample(t.CATEGORIES[main], 3)
    odd = rng.choice(t.CATEGORIES[other])
    members.insert(rng.randrange(4), odd)
    return ", ".join(members), odd


def _list_response(value: str, rng: random.Random) -> str:
    number, category = value.split()
    examples = t.CATEGORIES[category]
    start = rng.randrange(len(examples))
    members = [examples[(start + i) % len(examples)] for i in range(t.NUMBER_WORDS.index(number))]
    return f"Here are {value}: " + ", ".join(members) + "."


def _context(rng: random.Random) -> str:
    """One or two sentences unrelated to the task."""
    if rng.random() < 0.5:
        prompt = rng.choice(_context_facts())
        return f"{prompt.prompt} {prompt.answer}."
    prompt_ioi = world.indirect_object_prompts(1, seed=rng.getrandbits(32), split="train")[0]
    return f"{prompt_ioi.prompt} {prompt_ioi.answer}."


@cache
def _context_facts() -> tuple[world.FactPrompt, ...]:
    return tuple(world.fact_prompts("train"))


def make_case(
    task: str,
    phrasing: tuple[int, int],
    input: str,
    response: str,
    *,
    layout: Layout = "input_last",
    context: str = "",
) -> InstructionCase:
    """Build one instruction case with the span of its instruction words."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    inline = layout == "inline"
    words, length = phrase(task, phrasing, input if inline else "")
    prompt = format_prompt(words, "" if inline else input, context, input_first=layout == "input_first")
    label = "Instruction: "
    # The last label is the instruction's, since contexts never contain it.
    start = prompt.rindex(label) + len(label)
    span = (start, start + length)
    return InstructionCase(task, prompt, " " + response, span, prompt[span[0] : span[1]], input, phrasing)


def instruction_cases(
    split: Split = "held_out",
    n: int = 100,
    seed: int = 0,
    *,
    inputs: Split | Literal["any"] | None = None,
    hard: int = 0,
) -> list[InstructionCase]:
    """Draw `n` cases, cycling through the tasks; `split` selects the phrasings and, unless `inputs` is set, the inputs.

    Unsolved tasks are left out if `hard` is 0; otherwise hard tasks are `hard` times as frequent as the others.
    """
    check_split(split)
    if n < 0:
        raise ValueError(f"n must be 0 or more, got {n}")
    rng = random.Random(stable_hash("cases", split, seed))
    cases: list[InstructionCase] = []
    names = tasks(unsolved=hard > 0) + [task for task in HARD_TASKS for _ in range(hard - 1)]
    for i in range(n):
        task = names[i % len(names)]
        chosen: Split = split if inputs is None else rng.choice(("train", "held_out")) if inputs == "any" else inputs
        value, response = _draw_input(task, rng, chosen)
        cases.append(
            make_case(
                task,
                rng.choice(phrasings(task, split)),
                value,
                response,
                layout=rng.choice(LAYOUTS),
                context=_context(rng) if rng.random() < 0.3 else "",
            )
        )
    return cases


def follows(case: InstructionCase, response_text: str) -> bool:
    """Whether the first line of a response follows the instruction of the case."""
    line = response_text.strip().partition("\n")[0].strip()
    if case.task in _FACT_TASKS or case.task in _WORD_TASKS or case.task in _SEQUENCE_TASKS:
        return line.rstrip(".") == case.response.strip()
    if case.task in ("sum", "kind", "odd"):
        return line.rstrip(".") == case.response.strip()
    if case.task == "list":
        return _is_right_list(case.input, line)
    parts = _required_words(case)
    words = re.findall(r"\w+", line)
    return line.endswith(".") and len(words) >= 20 and all(part in line for part in parts)


def _is_right_list(value: str, line: str) -> bool:
    number, category = value.split()
    items = [item.strip() for item in line.rstrip(".").rpartition(":")[2].split(",")]
    members = t.CATEGORIES[category]
    return len(items) == len(set(items)) == t.NUMBER_WORDS.index(number) and all(item in members for item in items)


def _required_words(case: InstructionCase) -> tuple[str, ...]:
    """The words that a right long response contains."""
    if case.task == "country":
        return (case.input, *_country_facts()[case.input].values())
    if case.task == "job":
        where, action, tool, _ = t.JOBS[case.input]
        return case.input, where, action, tool
    if case.task == "how_to":
        return t.HOW_TO[case.input][:4]
    return f"the {case.input}", "One day"
