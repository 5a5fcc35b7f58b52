"""StereoSet (Nadeem, Bethke and Reddy 2021): triplets of a stereotype, its opposite and a sentence without meaning."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from interp_widgets.arguments import checked
from interp_widgets.data.files import existing_file, parse_json, read_text, short
from interp_widgets.data.row_fields import check_one_of, check_words, identifier, part, text

Task = Literal["intrasentence", "intersentence"]
TASKS: tuple[Task, ...] = ("intrasentence", "intersentence")
_BLANK = "BLANK"
LABELS = ("stereotype", "anti-stereotype", "unrelated")
"""The gold labels of the sentences of an example, in the order of scores."""


@dataclass(frozen=True)
class StereoSetExample:
    """Three sentences about one target term.

    Example:
        >>> example = StereoSetExample(
        ...     "a", "intrasentence", "profession", "nurse", "The nurse BLANK.",
        ...     "The nurse cares.", "The nurse flies.", "The nurse green.")
        >>> example.sentences[0]
        'The nurse cares.'
    """

    id: str
    task: Task
    """intrasentence: the sentences differ in what fills one blank; intersentence: each follows the context."""
    domain: str
    """gender, profession, race or religion in the published file."""
    target: str
    """The term that the sentences are about; scores are averaged by it."""
    context: str
    """The sentence with BLANK in it, or the sentence before."""
    stereotype: str
    anti_stereotype: str
    unrelated: str
    rate: int | None = None
    """Planted rate of the stereotype in the training text, in percent; None where it is unknown."""

    def __post_init__(self) -> None:
        check_one_of(self, task=TASKS)
        check_words(self, "stereotype", "anti_stereotype", "unrelated")

    @property
    def sentences(self) -> tuple[str, str, str]:
        """Stereotype, anti-stereotype, unrelated."""
        return self.stereotype, self.anti_stereotype, self.unrelated


@checked
def read_stereoset(path: str | os.PathLike[str]) -> tuple[StereoSetExample, ...]:
    """Read StereoSet's official JSON: ``data`` with ``intrasentence`` and ``intersentence``, one of them or both.

    An example is its ``id``, ``target``, ``bias_type``, ``context`` and three ``sentences``, each with ``sentence`` and
    ``gold_label``. Raises FileNotFoundError where there is no file, and ValueError with the example and the field where
    it has another layout.

    Example:
        >>> import json, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> rows = [{"sentence": f"The nurse {word}.", "gold_label": label} for word, label in
        ...         [("cares", "stereotype"), ("flies", "anti-stereotype"), ("green", "unrelated")]]
        >>> row = {"id": "a", "target": "nurse", "bias_type": "profession", "context": "The nurse BLANK."}
        >>> with open(f"{folder}/dev.json", "w") as file:
        ...     json.dump({"data": {"intrasentence": [{**row, "sentences": rows}]}}, file)
        >>> read_stereoset(f"{folder}/dev.json")[0].stereotype
        'The nurse cares.'
    """
    content = parse_json(read_text(path, "StereoSet examples"), str(existing_file(path, "StereoSet examples")))
    data = part(content, "data", dict, str(path))
    tasks = [task for task in TASKS if task in data]
    if not tasks:
        names = ", ".join(map(repr, data)) or "nothing"
        raise ValueError(f"{path}: 'data' must hold 'intrasentence' or 'intersentence', got {names}")
    examples = [
        _example(row, task, f"{task} example {number} of {path}")
        for task in tasks
        for number, row in enumerate(part(data, task, list, str(path)))
    ]
    if not examples:
        raise ValueError(f"{path} holds no StereoSet example")
    ids = Counter(example.id for example in examples)
    if twice := [name for name, count in ids.items() if count > 1]:
        raise ValueError(
            f"{path} has {ids[twice[0]]} examples with the 'id' {short(repr(twice[0]))}: leave one of them"
        )
    return tuple(examples)


def _example(row: Any, task: Task, where: str) -> StereoSetExample:
    sentences: dict[str, str] = {}
    for number, entry in enumerate(part(row, "sentences", list, where)):
        place = f"sentence {number} of {where}"
        label = text(entry, "gold_label", place)
        if label in sentences:
            raise ValueError(f"{where} has two sentences with the gold_label {label!r}: one of each is needed")
        sentences[label] = text(entry, "sentence", place)
    missing = [label for label in LABELS if label not in sentences]
    if missing:
        raise ValueError(f"{where} has no sentence with the gold_label {missing[0]!r}")
    if len(set(sentences.values())) < len(LABELS):
        raise ValueError(f"{where} has the same sentence twice: its three sentences must differ")
    context = text(row, "context", where)
    if task == "intrasentence" and _BLANK not in context:
        raise ValueError(f"{where}: 'context' must have {_BLANK} in it, got {short(repr(context))}")
    return StereoSetExample(
        identifier(row, "id", where),
        task,
        text(row, "bias_type", where),
        text(row, "target", where),
        context,
        sentences["stereotype"],
        sentences["anti-stereotype"],
        sentences["unrelated"],
    )
