"""Readers of published prompts with a known next word: facts (JSON) and indirect objects (CSV)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from interp_widgets.data.files import read_rows


@dataclass(frozen=True)
class KnownFact:
    """A fact as a prompt that stops right before its answer."""

    prompt: str
    subject: str
    """Subject of the fact, as written in `prompt`."""
    answer: str
    """The next words, with their leading space; often more than one token."""
    relation: str
    """Name of the relation, such as ``P36`` (capital) in Wikidata."""


@dataclass(frozen=True)
class KnownReceiver:
    """An indirect-object prompt with two people, a giver and a receiver."""

    prompt: str
    answer: str
    """The receiver's name, with its leading space."""
    foil: str
    """The giver's name, with its leading space."""

    @property
    def corrupted(self) -> str:
        """The prompt with giver and receiver swapped, so that the correct answer is the foil."""
        head, _, tail = self.prompt.rpartition(self.foil.strip())
        return head + self.answer.strip() + tail


def read_known_facts(path: str | os.PathLike[str]) -> tuple[KnownFact, ...]:
    """Read facts from a JSON list of objects with ``subject``, ``prompt``, ``attribute`` and ``relation_id``.

    The layout is that of the 1,209 facts published with Locating and Editing Factual Associations in GPT (Meng et al.
    2022). Raises FileNotFoundError where there is no file, ValueError when it has another layout.
    """
    facts = []
    for index, row in enumerate(read_rows(path, "fact", suffixes=(".json",))):
        for name in ("subject", "prompt", "attribute", "relation_id"):
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise ValueError(
                    f"fact {index} of {path} has no {name!r}: it needs texts under subject, prompt, attribute and "
                    "relation_id"
                )
        if row["subject"] not in row["prompt"]:
            raise ValueError(f"fact {index} of {path}: the subject {row['subject']!r} is not in its prompt")
        facts.append(KnownFact(row["prompt"], row["subject"], f" {row['attribute'].strip()}", row["relation_id"]))
    return tuple(facts)


def read_known_receivers(path: str | os.PathLike[str]) -> tuple[KnownReceiver, ...]:
    """Read indirect-object prompts from a CSV file with the columns ``one_prefix_prefix``, ``one_prefix_word_good`` and
    ``one_prefix_word_bad``.

    The layout is that of the 1,000 prompts published with Explaining How Transformers Use Context to Build Predictions
    (Ferrando et al. 2023). Raises FileNotFoundError where there is no file, ValueError when it has another layout.
    """
    columns = ("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad")
    receivers = []
    for index, row in enumerate(read_rows(path, "prompt", suffixes=(".csv",))):
        missing = [name for name in columns if name not in row]
        if missing:
            raise ValueError(f"prompt {index} of {path} has no {missing[0]!r}: it needs {', '.join(columns)}")
        prompt, answer, foil = (row[name].strip() for name in columns)
        if answer == foil:
            raise ValueError(f"prompt {index} of {path}: the good and the bad word are both {answer!r}")
        if not (answer and foil and answer in prompt and foil in prompt):
            raise ValueError(f"prompt {index} of {path}: the names {answer!r} and {foil!r} must both be in its prompt")
        receivers.append(KnownReceiver(prompt, f" {answer}", f" {foil}"))
    return tuple(receivers)
