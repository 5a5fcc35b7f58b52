"""BBQ, the Bias Benchmark for Question Answering (Parrish et al. 2022)."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from interp_widgets.arguments import checked
from interp_widgets.data.bias.bbq_labels import is_unknown, target_by_labels
from interp_widgets.data.files import read_rows, short
from interp_widgets.data.row_fields import check_one_of, check_words, identifier, one_of, part, text, texts

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
    target: int | None = None
    """Number of the answer about the stereotyped group, where the labels do not determine it."""

    def __post_init__(self) -> None:
        check_one_of(self, polarity=POLARITIES, condition=CONDITIONS, right=(0, 1, 2), target=(0, 1, 2, None))
        check_words(self, "question")
        if len(self.answers) != 3 or not all(answer.strip() for answer in self.answers):
            raise ValueError(f"answers of a BBQQuestion must be three texts, got {short(self.answers)}")
        if len(self.groups) != 3 or sum(map(is_unknown, self.groups)) != 1:
            raise ValueError(
                f"groups of a BBQQuestion must mark one of the three answers as 'unknown', got {short(self.groups)}"
            )
        if self.target is None and self._by_labels is None:
            raise ValueError(
                f"exactly one answer must be about the stereotyped groups ({short(', '.join(self.stereotyped))}), but "
                f"the answers are about {short(' | '.join(', '.join(names) for names in self.groups))}: leave the "
                "question out, or give read_bbq the targets= that are published with BBQ"
            )
        if self.target is not None and (self.is_unknown(self.target) or self._by_labels not in (None, self.target)):
            raise ValueError(
                f"target of a BBQQuestion must be the answer about the stereotyped groups "
                f"({short(', '.join(self.stereotyped))}), got {self.target}, which is about "
                f"{short(', '.join(self.groups[self.target]))}"
            )

    @functools.cached_property
    def _by_labels(self) -> int | None:
        return target_by_labels(self.groups, self.answers, self.stereotyped)

    def is_unknown(self, answer: int) -> bool:
        """Whether an answer says that it cannot be known."""
        return is_unknown(self.groups[answer])

    def is_target(self, answer: int) -> bool:
        """Whether an answer names someone of the stereotyped groups."""
        return answer == (self._by_labels if self.target is None else self.target)

    def is_biased(self, answer: int) -> bool:
        """Whether an answer goes along with the stereotype: its group where the question is negative, the other one
        where it is not. The answer "unknown" does not."""
        return not self.is_unknown(answer) and self.is_target(answer) == (self.polarity == "neg")


@checked
def read_bbq(path: str | os.PathLike[str], *, targets: str | os.PathLike[str] | None = None) -> tuple[BBQQuestion, ...]:
    """Read one of BBQ's official files, JSON lines, packed by gzip or not.

    The labels of the answers determine which of them is about the stereotyped group, in all spellings of the official
    files. In some questions of the crossings (race by gender, race by income) both answers are about the same race, and
    only the table published beside the data says which of them is the target.

    Args:
        path: a file such as ``SES.jsonl``.
        targets: BBQ's ``additional_metadata.csv``. Questions that have no target there are left out, as in the paper.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another layout, or a question without exactly one target; the message names question and field.

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
    rows = read_rows(path, "question", suffixes=(".jsonl",))
    biased = None if targets is None else _biased_answers(targets)
    questions: list[BBQQuestion] = []
    numbers: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows):
        where = f"question {number} of {path}"
        if "example_id" in row:
            key = text(row, "category", where), identifier(row, "example_id", where)
            if key in numbers:
                raise ValueError(f"{where}: its 'example_id' {short(key[1])} is that of question {numbers[key]} too")
            numbers[key] = number
            if biased is not None and key not in biased:
                raise ValueError(f"{where}: its 'example_id' {short(key[1])} of {short(key[0])} is not in {targets}")
            if biased is not None and biased[key] is None:
                continue
        elif biased is not None:
            raise ValueError(f"{where} has no 'example_id', by which {targets} names it")
        questions.append(_question(row, where, None if biased is None else biased[key]))
    if not questions:
        raise ValueError(f"{path} has no question with a target in {targets}")
    return tuple(questions)


def _biased_answers(path: str | os.PathLike[str]) -> Mapping[tuple[str, str], int | None]:
    """The answer that counts as biased, by category and example, as BBQ's table of metadata lists them."""
    biased: dict[tuple[str, str], int | None] = {}
    for number, row in enumerate(read_rows(path, "row", suffixes=(".csv",))):
        where = f"row {number} of {path}"
        key = text(row, "category", where), text(row, "example_id", where)
        value = part(row, "target_loc", str, where).strip()
        if value not in ("0", "1", "2", "NA", ""):
            raise ValueError(f"{where}: 'target_loc' must be 0, 1, 2 or NA, got {short(repr(value))}")
        answer = int(value) if value.isdigit() else None
        if biased.setdefault(key, answer) != answer:
            raise ValueError(f"{where}: 'target_loc' differs from that of an earlier row of the same example")
    return biased


def _question(row: Any, where: str, biased: int | None) -> BBQQuestion:
    info = part(row, "answer_info", dict, where)
    groups = [texts(info, name, f"answer_info of {where}") for name in _ANSWERS]
    extra = part(row, "additional_metadata", dict, where)
    right = part(row, "label", int, where)
    if not 0 <= right < 3:
        raise ValueError(f"{where}: 'label' must be 0, 1 or 2, got {right}")
    polarity = one_of(text(row, "question_polarity", where), POLARITIES, "question_polarity", where)
    condition = one_of(text(row, "context_condition", where), CONDITIONS, "context_condition", where)
    unknown = [number for number, names in enumerate(groups) if is_unknown(names)]
    if len(unknown) != 1:
        raise ValueError(f"{where}: 'answer_info' must mark one of the three answers as 'unknown'")
    if condition == "ambig" and right != unknown[0]:
        raise ValueError(f"{where}: 'label' must be {unknown[0]}, the unknown answer, since its context is ambiguous")
    if biased == unknown[0]:
        raise ValueError(f"{where}: its target must be one of the two people, not the unknown answer {biased}")
    answers = [text(row, name, where) for name in _ANSWERS]
    # what counts as biased where a question is not negative is the other person
    target = 3 - unknown[0] - biased if biased is not None and polarity == "nonneg" else biased
    try:
        return BBQQuestion(
            text(row, "context", where),
            text(row, "question", where),
            (answers[0], answers[1], answers[2]),
            (groups[0], groups[1], groups[2]),
            right,
            "neg" if polarity == "neg" else "nonneg",
            "ambig" if condition == "ambig" else "disambig",
            text(row, "category", where),
            texts(extra, "stereotyped_groups", f"additional_metadata of {where}"),
            identifier(row, "question_index", where) if "question_index" in row else "",
            target,
        )
    except ValueError as error:
        raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from error
