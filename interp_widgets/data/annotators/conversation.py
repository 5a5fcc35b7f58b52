"""The conversation that asks a language model about a list of words, and the reading of its answer."""

from __future__ import annotations

import json
import re
from typing import Any

from interp_widgets.data.annotators.annotation import LEVELS, SCENARIOS

_SYSTEM = """\
You are a linguist who reads lists of words. The words of one list activate one direction in a neural network most.

1. description: summarise in one concise concept, topic, theme, behaviour or pattern what the words have in common. Do \
not list examples of the words. If more than half of the words do not fit one clear concept, the description is \
"Cannot Tell".
2. scenarios: which of these tasks of a writing assistant the concept can be used for: "writing" (daily, literary or \
professional writing as its main purpose), "coding", "math", "translation". An empty list if none; several if several.
3. level: the linguistic level of the concept: "phonology" (sound, such as rhyming words), "morphology" (word \
structure, such as prefixes, suffixes, abbreviations), "syntax" (grammar, such as verbs or adjectives), "semantics" \
(meaning, such as dates, or names of programming languages); null if the description is "Cannot Tell".

Answer with one JSON object and nothing else: {"description": "...", "scenarios": [...], "level": "..."}"""

_EXAMPLES: tuple[tuple[str, str], ...] = (
    ("January, terday, cember, April, July, September, December, Thursday, quished, November, Tuesday",
     '{"description": "dates", "scenarios": ["writing"], "level": "semantics"}'),
    ("B., M., e., R., C., OK., A., H., D., S., J., al., p., T., N., W., G., a.C., or, St., K., a.m., L.",
     '{"description": "abbreviations and acronyms", "scenarios": [], "level": "morphology"}'),
    ("Go, Python, C++, Java, c#, python3, cuda, java, javascript, basic",
     '{"description": "programming languages", "scenarios": ["coding"], "level": "semantics"}'),
    ("brittle, tackle, chuckle, pickle, nozzle, ample, table, little",
     '{"description": "words with the \\"le\\" sound", "scenarios": ["writing"], "level": "phonology"}'),
    ("lamp, seventh, of, quickly, Oslo, (, river, 300, deny, sweet",
     '{"description": "Cannot Tell", "scenarios": [], "level": null}'),
)  # fmt: skip


LONGEST_DESCRIPTION = 2000
"""Characters; one concise concept is asked for."""


class NonsenseError(Exception):
    """An answer without the requested JSON."""


def messages(question: str) -> list[dict[str, str]]:
    """The conversation that asks about a list of words: instructions, worked examples, the words."""
    conversation = [{"role": "system", "content": _SYSTEM}]
    for words, answer in _EXAMPLES:
        conversation += [{"role": "user", "content": f"Words: {words}."}, {"role": "assistant", "content": answer}]
    return [*conversation, {"role": "user", "content": f"Words: {question}."}]


def read_answer(text: str) -> dict[str, Any]:
    """Description, scenarios and level of a model's answer, in the terms of this package.

    >>> read_answer('{"description": "months", "scenarios": ["Writing"], "level": "semantic"}')
    {'description': 'months', 'scenarios': ['writing'], 'level': 'semantics'}
    """
    braces = re.search(r"\{.*\}", text, re.DOTALL)  # some models wrap it in a code block or a sentence
    try:
        answer = json.loads(braces.group() if braces else text)
    except (ValueError, RecursionError):
        raise NonsenseError(f"no JSON object in {short(text)!r}") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("description"), str):
        raise NonsenseError("no description")
    description = " ".join(answer["description"].split()).rstrip(".")
    if not description or "cannot tell" in description.lower():
        return {"description": "", "scenarios": [], "level": None}
    if len(description) > LONGEST_DESCRIPTION:
        raise NonsenseError(f"a description of {len(description):,} characters")
    if any("\ud800" <= character <= "\udfff" for character in description):
        raise NonsenseError("the description holds half a surrogate pair")
    scenarios = answer.get("scenarios")
    if not isinstance(scenarios, list):
        raise NonsenseError("scenarios is not a list")
    named = [str(name).strip().lower() for name in scenarios]
    if unknown := [name for name in named if name not in SCENARIOS and name != "none"]:
        raise NonsenseError(f"unknown scenario {short(unknown[0])!r}")
    return {
        "description": description,
        "scenarios": [name for name in SCENARIOS if name in named],
        "level": _level(answer.get("level")),
    }


def _level(name: Any) -> str | None:
    if name is None:
        return None
    plain = str(name).strip().lower()
    plain = {"semantic": "semantics", "null": "", "none": "", "cannot tell": ""}.get(plain, plain)
    if plain and plain not in LEVELS:
        raise NonsenseError(f"unknown level {short(plain)!r}")
    return plain or None


def short(text: str) -> str:
    """A text on one line, shortened if long."""
    text = " ".join(text.split())
    return text if len(text) <= 120 else text[:117] + "..."
