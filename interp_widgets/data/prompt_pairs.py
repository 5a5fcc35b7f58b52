"""Pairs of prompts that differ in the words their answers depend on, and their readers."""

from __future__ import annotations

from dataclasses import dataclass

from interp_widgets.data import world_tables
from interp_widgets.data.files import parse_rows, short

_COUNTRIES = (
    ("France", "Italy"), ("Spain", "Germany"), ("Japan", "China"), ("Egypt", "Russia"), ("Poland", "Greece"),
    ("Portugal", "Austria"), ("Norway", "Sweden"), ("Finland", "Ireland"), ("Peru", "Cuba"), ("Kenya", "Canada"),
    ("Brazil", "Turkey"), ("Iran", "Iraq"), ("Denmark", "Belgium"), ("Hungary", "Thailand"), ("Switzerland", "Chile"),
)  # fmt: skip


@dataclass(frozen=True)
class ContrastPair:
    """A clean and a corrupted prompt, and the tokens that follow them; empty ones are the model's likeliest."""

    clean: str
    corrupted: str
    answer: str = ""
    foil: str = ""

    @property
    def line(self) -> str:
        """The pair on one line, as `pair_of_line` reads it."""
        parts = [self.clean, self.corrupted, self.answer, self.foil]
        while not parts[-1]:
            parts.pop()
        return " | ".join(part.strip() for part in parts)


def capital_pairs(*, answers: bool = False) -> list[ContrastPair]:
    """Questions for the capitals of two countries; no country is in two pairs. With `answers`, with the two capitals,
    which are empty where they are not one word.

    >>> capital_pairs()[0].line, len(capital_pairs())
    ('The capital of France is | The capital of Italy is', 15)
    """
    capitals = {country: capital for country, capital, *_ in world_tables.COUNTRIES} if answers else {}
    return [
        ContrastPair(
            *(f"The capital of {country} is" for country in countries),
            *(capitals.get(country, "") for country in countries),
        )
        for countries in _COUNTRIES
    ]


def pair_of_line(line: str, number: int) -> ContrastPair:
    """A pair from a line ``clean | corrupted | answer | foil``, where answer and foil may be left out.

    Raises ValueError, with the line's number, for another form.

    >>> pair_of_line("The capital of France is | The capital of Italy is | Paris", 1).answer
    'Paris'
    """
    parts = [part.strip() for part in line.split("|")]
    if not 2 <= len(parts) <= 4 or not all(parts[:2]):
        raise ValueError(
            f"line {number} must be clean | corrupted, or clean | corrupted | answer | foil, got {short(repr(line))}"
        )
    return ContrastPair(*parts)


def parse_pairs(content: str | bytes, name: str) -> list[ContrastPair]:
    """Read pairs from a .csv, .json or .jsonl file's content, with clean, corrupted and perhaps answer and foil.

    Raises ValueError, naming the row, for a missing or unreadable field.

    >>> parse_pairs("clean,corrupted\\nA cat is,A dog is\\n", "pairs.csv")[0].corrupted
    'A dog is'
    """
    pairs = []
    for number, row in enumerate(parse_rows(content, name, "pair")):
        texts = {field: row.get(field) or "" for field in ("clean", "corrupted", "answer", "foil")}
        for field, text in texts.items():
            if not isinstance(text, str) or (field in ("clean", "corrupted") and not text.strip()):
                raise ValueError(f"{name}: pair {number} needs a text under {field}, got {short(repr(text))}")
            if "|" in text or "\n" in text:
                raise ValueError(
                    f"{name}: {field} of pair {number} must be one line without |, got {short(repr(text))}"
                )
        pairs.append(ContrastPair(**texts))
    return pairs
