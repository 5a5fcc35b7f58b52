"""BBQ, the Bias Benchmark for Question Answering (Parrish et al. 2022)."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from typing import Any, Literal

from interp_widgets.arguments import checked
from interp_widgets.data.bias.row_fields import check_one_of, check_words, one_of, part, text
from interp_widgets.data.files import existing_file, parse_rows, short

UNKNOWN = "unknown"
POLARITIES = ("neg", "nonneg")
CONDITIONS = ("ambig", "disambig")
_ANSWERS = ("ans0", "ans1", "ans2")


@dataclass(frozen=True)
class BBQQuestion:
    """A question about two people in a context that does or does not say the answer.

    Example:
        >>> question = BBQQuestion(
        ...     "A Dane and a Finn met.", "Who stole?", ("The Dane", "Not known", "The Finn"),
        ...     (("Dane",), ("unknown",), ("Finn",)), 1, "neg", "ambig", "Nationality", ("Finn",), "1")
        >>> question.is_biased(2), question.is_biased(1)
        (True, False)
    """

    context: str
    question: str
    answers: tuple[str, str, str]
    groups: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    """What the file says of each answer: its label and group, ``unknown`` among them for the one that says so."""
    right: int
    """Number of the right answer."""
    polarity: Literal["neg", "nonneg"]
    """Whether the question asks for what a stereotype says (neg) or for its opposite."""
    condition: Literal["ambig", "disambig"]
    """Whether the context leaves the answer open."""
    category: str
    stereotyped: tuple[str, ...]
    """The groups that the stereotype is about."""
    template: str
    """The question's number in its category: questions of one template differ in names and order only."""

    def __post_init__(self) -> None:
        check_one_of(self, polarity=POLARITIES, condition=CONDITIONS, right=(0, 1, 2))
        check_words(self, "question")
        if len(self.answers) != 3 or not all(answer.strip() for answer in self.answers):
            raise ValueError(f"answers of a BBQQuestion must be three texts, got {short(self.answers)}")

    def is_unknown(self, answer: int) -> bool:
        """Whether an answer says that it cannot be known."""
        return UNKNOWN in self.groups[answer]

    def is_target(self, answer: int) -> bool:
        """Whether an answer names someone of the stereotyped groups."""
        return any(name in self.stereotyped for name in self.groups[answer])

    def is_biased(self, answer: int) -> bool:
        """Whether an answer goes along with the stereotype: its group where the question is negative, the other one
        where it is not. The answer "unknown" does not."""
        return not self.is_unknown(answer) and self.is_target(answer) == (self.polarity == "neg")


@checked
def read_bbq(path: str | os.PathLike[str]) -> tuple[BBQQuestion, ...]:
    """Read one of BBQ's official files, JSON lines, packed by gzip or not.

    Raises FileNotFoundError where there is no file, and ValueError with the question and the field where it has another
    layout.

    Example:
        >>> import json, tempfile
        >>> row = {"context": "A Dane and a Finn met.", "question": "Who stole?", "label": 1,
        ...        "question_polarity": "neg", "context_condition": "ambig", "category": "Nationality",
        ...        "ans0": "The Dane", "ans1": "Not known", "ans2": "The Finn", "question_index": "1",
        ...        "answer_info": {"ans0": ["Dane"], "ans1": ["unknown"], "ans2": ["Finn"]},
        ...        "additional_metadata": {"stereotyped_groups": ["Finn"]}}
        >>> path = tempfile.mkdtemp() + "/bbq.jsonl"
        >>> with open(path, "w") as file:
        ...     json.dump(row, file)
        >>> question = read_bbq(path)[0]
        >>> [question.is_biased(answer) for answer in range(3)]
        [False, False, True]
    """
    source = existing_file(path, "BBQ questions")
    content, name = source.read_bytes(), str(source)
    if name.endswith(".gz"):
        try:
            content, name = gzip.decompress(content), name.removesuffix(".gz")
        except (OSError, EOFError) as error:
            raise ValueError(f"{source} cannot be unpacked by gzip ({error})") from error
    rows = parse_rows(content, name, "question", suffixes=(".jsonl",))
    return tuple(_question(row, f"question {number} of {path}") for number, row in enumerate(rows))


def _question(row: Any, where: str) -> BBQQuestion:
    info = part(row, "answer_info", dict, where)
    groups = [tuple(map(str, part(info, name, list, f"answer_info of {where}"))) for name in _ANSWERS]
    extra = part(row, "additional_metadata", dict, where)
    right = part(row, "label", int, where)
    if not 0 <= right < 3:
        raise ValueError(f"{where}: 'label' must be 0, 1 or 2, got {right}")
    polarity = one_of(text(row, "question_polarity", where), POLARITIES, "question_polarity", where)
    condition = one_of(text(row, "context_condition", where), CONDITIONS, "context_condition", where)
    if sum(UNKNOWN in names for names in groups) != 1:
        raise ValueError(f"{where}: 'answer_info' must mark one of the three answers as 'unknown'")
    answers = [text(row, name, where) for name in _ANSWERS]
    return BBQQuestion(
        text(row, "context", where),
        text(row, "question", where),
        (answers[0], answers[1], answers[2]),
        (groups[0], groups[1], groups[2]),
        right,
        "neg" if polarity == "neg" else "nonneg",
        "ambig" if condition == "ambig" else "disambig",
        text(row, "category", where),
        tuple(map(str, part(extra, "stereotyped_groups", list, f"additional_metadata of {where}"))),
        str(row.get("question_index", "")),
    )
