"""The labels of BBQ's files: which of a question's answers is about the stereotyped group.

The files write the same group in several ways: ``low SES`` and ``lowSES``, ``F`` and ``girl``, ``transgender women``
and ``trans_F``, ``Black`` and ``F-Black`` (a name) or ``lowSES-Black`` (a crossing). Here every label becomes the set
of the plain groups that it stands for, as in the analysis published with the data.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

UNKNOWN = "unknown"
_SAME = {
    "low ses": "lowses", "high ses": "highses",
    "woman": "f", "women": "f", "girl": "f", "girls": "f", "female": "f",
    "man": "m", "men": "m", "boy": "m", "boys": "m", "male": "m",
    "transgender women": "trans", "transgender men": "trans", "transgender": "trans",
    "latina": "latino",
}  # fmt: skip
"""Other words for the groups."""
_CROSSED = re.compile(r"(?:(lowses|highses)-)?(?:([fm])-)?(.*)")
"""An income, a gender and a race in one label."""
_GENDERED = re.compile(r"(trans|nontrans)_([fm])")


def plain_groups(label: str) -> set[str]:
    """The groups that a label stands for.

    >>> sorted(plain_groups("lowSES-F-Black")), sorted(plain_groups("girl")), sorted(plain_groups("nonOld"))
    (['black', 'f', 'lowses'], ['f'], ['nonold'])
    """
    text = " ".join(label.strip("{} ").casefold().split())
    match = _GENDERED.fullmatch(text) or _CROSSED.fullmatch(text)
    parts = [part for part in match.groups() if part] if match else []
    return {_SAME.get(part, part) for part in parts}


def is_unknown(labels: Collection[str]) -> bool:
    """Whether the labels of an answer say that the question cannot be answered."""
    return any(UNKNOWN in plain_groups(label) for label in labels)


def target_by_labels(
    labels: Sequence[Collection[str]], answers: Sequence[str], stereotyped: Collection[str]
) -> int | None:
    """The number of the answer about the stereotyped groups; None unless exactly one shares the most with them.

    An answer without a label, as some crossings have, is read by its own words.

    >>> target_by_labels([["highSES"], ["lowSES"], ["unknown"]], ["a", "b", "c"], ["low SES"])
    1
    """
    wanted = {group for name in stereotyped for group in plain_groups(name)}
    shared = []
    for names, answer in zip(labels, answers, strict=True):
        words = names if any(name.strip() for name in names) else re.findall(r"\w+", answer)
        groups = {group for name in words for group in plain_groups(name)}
        shared.append(0 if is_unknown(names) else len(groups & wanted))
    most = max(shared)
    return shared.index(most) if most and shared.count(most) == 1 else None
