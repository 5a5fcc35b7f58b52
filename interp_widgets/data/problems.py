"""Problems with an answer that can be checked: multiple choice, true or false, and numbers, read from JSON files.

Known layouts: ARC and OpenBookQA (a question with labelled choices and an ``answerKey``), BoolQ (question, passage and
a truth value), GSM8K (question and a worked answer that ends in ``#### 18``), and the instruction files of LLM-Adapters
(``instruction``, ``output`` and ``answer``), as JSON or as JSON lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from interp_widgets.arguments import checked
from interp_widgets.data.files import parse_rows, read_rows, short
from interp_widgets.data.instructions import follows, instruction_cases
from interp_widgets.data.world import Split

Kind = Literal["choice", "truth", "number", "task"]

_NUMBER = re.compile(
    # a dash after a digit or a word is a range or a hyphen
    r"(?P<minus>(?<![\w).])[-−–])?[$€£]?(?P<sign>(?<=[$€£])[-−–])?"
    r"(?P<size>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)(?P<power>[eE][+-]?\d+\b)?"
)
_TRUTH = re.compile(r"\b(?:(?P<not>not|\w+n['’]t)\s+)?(?P<word>true|false)\b", re.IGNORECASE)
_YES = re.compile(r"^\W*(yes|no)\b(?!\s+doubt)|\b(yes|no)(?=\s*(?:[.,;:!?)]|$))", re.IGNORECASE)
_LATIN = "A-Za-zÀ-ɏ0-9"
_ARTICLE = r"[Aa](?=\s+(?!(?:is|was|are|and|or|because|since|as|but|not|would|for)\b)[a-zà-ɏ])"
"""The article A, before a word that does not follow a label: "A dog"."""
_NAMED = re.compile(r"\b(?:answer|option|solution|ending)\s?\d+\b", re.IGNORECASE)
_SUFFIXES = (".json", ".jsonl")
CLOSE = 1e-3
"""Largest difference of two numbers that count as the same answer."""


@dataclass(frozen=True)
class Problem:
    """One problem; prompt and response together are a training example."""

    prompt: str
    """The question with its choices, up to the beginning of the response."""
    response: str
    """A correct response with its leading space, with the working if the file has it."""
    answer: str
    """The correct answer: a label such as ``B``, ``true`` or a number; empty for a task of the demo."""
    kind: Kind
    labels: tuple[str, ...] = ()
    """The labels of the choices."""
    check: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    """A function that checks a response instead of `answer`, for the tasks of the demo."""

    def solved(self, text: str) -> bool:
        """Whether a response gives the correct answer.

        The first choice or truth value counts, after "answer is" if the response has these words; the article A and the
        A of "not A" do not count, and "not true" is false. The last number counts, since working precedes the result; a
        dash after a digit or letter is not a minus sign.

        >>> Problem("2 + 2?", " 4", "4", "number").solved("2 + 2 = 4.00, so 4.")
        True
        >>> Problem("Q", " B", "B", "choice", ("A", "B")).solved("The answer is A, not B")
        False
        """
        if self.check is not None:
            return self.check(text)
        answer = self.read(text)
        if self.kind == "number":
            return answer is not None and abs(float(answer) - float(self.answer)) <= CLOSE
        return answer is not None and answer.casefold() == self.answer.casefold()

    def read(self, text: str) -> str | None:
        """The answer in a response; None if it has none."""
        if self.kind == "number":
            numbers = _numbers(text)
            return numbers[-1] if numbers else None
        after = re.split(r"answer is:?", text, maxsplit=1, flags=re.IGNORECASE)[-1]
        for part in (after, text):
            label = self._first_label(part)
            if label is not None:
                return label
        return None

    def _first_label(self, text: str) -> str | None:
        if self.kind == "truth":
            return _first_truth(text)
        if not self.labels:
            named = _NAMED.search(text)
            return None if named is None else named[0].replace(" ", "").lower()
        any_label = "|".join(map(re.escape, self.labels))
        # neither within a word or number (B12, D'Art, 2.5) nor ruled out (not B)
        alone = rf"(?<![{_LATIN}])(?<!\d[.,])(?<!not )(?<!Not )({any_label})(?![{_LATIN}])(?![.,]\d)(?!['’-][{_LATIN}])"
        # "A dog" answers A only where no other label is named; a lower-case letter counts alone or in brackets
        small = rf"(?:^\W*|\()({any_label})(?:\)|\W*(?:\n|$))"
        for pattern, flags in ((rf"(?!{_ARTICLE}){alone}", 0), (alone, 0), (small, re.IGNORECASE)):
            match = re.search(pattern, text, flags)
            if match is not None:
                return next(label for label in self.labels if label.casefold() == match[1].casefold())
        return None


def _first_truth(text: str) -> str | None:
    """ "true" or "false": a yes or no at the start of the text, else the first truth value, else a yes or no alone."""
    yes, truth = _YES.search(text), _TRUTH.search(text)
    if yes is not None and (yes[1] or truth is None):
        return "true" if yes[0].strip(" ").lower().endswith("yes") else "false"
    if truth is None:
        return None
    return "true" if (truth["word"].lower() == "true") == (truth["not"] is None) else "false"


def _numbers(text: str) -> list[str]:
    """Every number of a text as `float` reads it: no thousands commas, an ASCII minus."""
    return [
        ("-" if match["minus"] or match["sign"] else "")
        + ("0" if match["size"].startswith(".") else "")
        + match["size"].replace(",", "")
        + (match["power"] or "")
        for match in _NUMBER.finditer(text)
    ]


@checked
def demo_problems(split: Split = "held_out", n: int = 100, seed: int = 0) -> list[Problem]:
    """Draw `n` instruction tasks of the demo models, each with its check.

    Args:
        split: "train", or "held_out" for wordings and inputs that the tuned demo model was not trained on.
        n: number of problems.
        seed: of the draw; the same seed gives the same problems.

    Example:
        >>> problem = demo_problems(n=1)[0]
        >>> problem.solved(problem.response), problem.solved(" nonsense")
        (True, False)
    """
    return [
        Problem(case.prompt, case.response, "", "task", check=partial(follows, case))
        for case in instruction_cases(split, n, seed)
    ]


@checked
def read_problems(path: str | Path) -> list[Problem]:
    """Read problems from a .json or .jsonl file; see :func:`parse_problems`.

    Args:
        path: path of the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or one of its records has none of the known layouts.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "gsm8k.jsonl")
        ...     _ = path.write_text('{"question": "1 + 1?", "answer": "It is two. #### 2"}')
        ...     problem = read_problems(path)[0]
        >>> problem.prompt, problem.solved(" It is 2.")
        ('Question: 1 + 1?\\nAnswer:', True)
    """
    return _problems(read_rows(path, "problem", suffixes=_SUFFIXES), str(path))


def parse_problems(content: str | bytes, name: str) -> list[Problem]:
    """Read problems from a file's content; the layout of every record determines the kind of problem.

    Raises ValueError naming the record and what it lacks.

    >>> parse_problems('{"question": "1 + 1?", "answer": "It is two. #### 2"}', "gsm8k.jsonl")[0].answer
    '2'
    """
    return _problems(parse_rows(content, name, "problem", suffixes=_SUFFIXES), name)


def _problems(rows: Sequence[Mapping[str, Any]], name: str) -> list[Problem]:
    try:
        return [_problem(row, index) for index, row in enumerate(rows)]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _problem(row: Mapping[str, Any], index: int) -> Problem:
    if "instruction" in row:
        return _adapters(row, index)
    if "answerKey" in row:
        return _choice(row, index)
    if isinstance(row.get("answer"), bool):
        return _truth(row, index)
    if isinstance(row.get("answer"), str) and "####" in row["answer"]:
        return _worked(row, index)
    raise ValueError(
        f"problem {index} has none of the known layouts: it needs an answerKey (ARC, OpenBookQA), a true or false "
        "answer (BoolQ), an answer with #### (GSM8K), or an instruction with its answer"
    )


def _text(row: Mapping[str, Any], name: str, index: int) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"problem {index} has no {name}: it needs a str under that name")
    return value.strip()


def _optional(row: Mapping[str, Any], name: str, index: int) -> str:
    """A text that a record may lack."""
    value = row.get(name)
    if not isinstance(value, str | None):
        raise ValueError(f"problem {index}: its {name} must be a str, got {short(repr(value))}")
    return (value or "").strip()


def _choice(row: Mapping[str, Any], index: int) -> Problem:
    """ARC and OpenBookQA, in the layout of their files or in columns."""
    question = row.get("question")
    inner: Mapping[str, Any] = question if isinstance(question, Mapping) else row
    stem = "stem" if "stem" in inner else "question_stem" if "question_stem" in inner else "question"
    labels, texts = _choices(inner.get("choices"), index)
    key = str(row["answerKey"]).strip()
    if key not in labels:
        raise ValueError(f"problem {index}: its answerKey {key!r} is none of its labels {', '.join(labels)}")
    lines = [f"{label}. {text}" for label, text in zip(labels, texts, strict=True)]
    prompt = "\n".join([f"Question: {_text(inner, stem, index)}", *lines, "Answer:"])
    return Problem(prompt, f" {key}", key, "choice", labels)


def _choices(choices: Any, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and texts of choices, from a list of objects or from columns."""
    if isinstance(choices, Mapping):
        labels, texts = choices.get("label"), choices.get("text")
    elif isinstance(choices, Sequence) and all(isinstance(choice, Mapping) for choice in choices):
        labels, texts = [choice.get("label") for choice in choices], [choice.get("text") for choice in choices]
    else:
        labels = texts = None
    if not isinstance(labels, list) or not isinstance(texts, list) or len(labels) != len(texts) or len(labels) < 2:
        raise ValueError(f"problem {index} needs at least two choices, each with a label and a text")
    if wrong := [
        part for part in (*labels, *texts) if isinstance(part, bool) or not isinstance(part, str | int | float | None)
    ]:
        raise ValueError(f"problem {index} needs labels and texts for its choices, got {short(repr(wrong[0]))}")
    named = tuple("" if label is None else str(label).strip() for label in labels)
    if not all(named) or len({label.casefold() for label in named}) < len(named):
        raise ValueError(f"problem {index} needs a different label for each choice, got {labels}")
    if any(text is None or not str(text).strip() for text in texts):
        raise ValueError(f"problem {index} needs a text for each choice, got {texts}")
    return named, tuple(map(str, texts))


def _truth(row: Mapping[str, Any], index: int) -> Problem:
    passage = f"{text}\n" if (text := _optional(row, "passage", index)) else ""
    answer = "true" if row["answer"] else "false"
    prompt = f"{passage}Question: {_text(row, 'question', index)}\nTrue or false?\nAnswer:"
    return Problem(prompt, f" {answer}", answer, "truth", ("true", "false"))


def _worked(row: Mapping[str, Any], index: int) -> Problem:
    working, _, result = row["answer"].partition("####")
    answer = _number(result, index)
    steps = re.sub(r"<<.*?>>", "", working).strip()  # GSM8K's marks for a calculator
    response = f" {steps}\nThe answer is {answer}" if steps else f" The answer is {answer}"
    return Problem(f"Question: {_text(row, 'question', index)}\nAnswer:", response, answer, "number")


def _adapters(row: Mapping[str, Any], index: int) -> Problem:
    context = f"\n{text}" if (text := _optional(row, "input", index)) else ""
    prompt = f"Instruction: {_text(row, 'instruction', index)}{context}\nResponse:"
    response, answer = _text(row, "output", index), str(row.get("answer", "")).strip()
    if not answer:
        raise ValueError(f"problem {index} has no answer: it needs a label or a number under that name")
    if answer.lower() in ("true", "false"):
        return Problem(prompt, f" {response}", answer.lower(), "truth", ("true", "false"))
    if _NAMED.fullmatch(answer):
        return Problem(prompt, f" {response}", answer.replace(" ", "").lower(), "choice")
    if re.fullmatch(r"[A-Z]", answer):
        labels = tuple(map(chr, range(ord("A"), ord(max(answer, "E")) + 1)))
        return Problem(prompt, f" {response}", answer, "choice", labels)
    return Problem(prompt, f" {response}", _number(answer, index), "number")


def _number(text: str, index: int) -> str:
    numbers = _numbers(text)
    if len(numbers) != 1:
        raise ValueError(f"problem {index}: its answer must be one number or a label, got {text.strip()!r}")
    return numbers[0]
