"""Your own sentences: a CSV of pairs, one that shows a bias and one that does not."""

from __future__ import annotations

import os
from dataclasses import dataclass

from interp_widgets.arguments import checked
from interp_widgets.data.files import ROWS, read_rows
from interp_widgets.data.row_fields import check_words, text


@dataclass(frozen=True)
class SentencePair:
    """Two sentences that differ in whether they show a bias.

    Example:
        >>> SentencePair("Nurses are women.", "Nurses are people.", "nurses").biased
        'Nurses are women.'
    """

    biased: str
    benign: str
    group: str
    """Pairs of one group are about the same thing, and are never on both sides of a split."""
    domain: str = ""

    def __post_init__(self) -> None:
        check_words(self, "biased", "benign")


@checked
def read_sentence_pairs(path: str | os.PathLike[str]) -> tuple[SentencePair, ...]:
    """Read pairs from a CSV, JSON or JSON lines file with ``biased`` and ``benign``, ``group`` and ``domain`` if known.

    Without a group every pair is one of its own. Raises FileNotFoundError where there is no file, and ValueError with
    the pair and the field where it has another layout.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/pairs.csv"
        >>> with open(path, "w") as file:
        ...     n = file.write("biased,benign\\nNurses are women.,Nurses are people.\\n")
        >>> read_sentence_pairs(path)[0].benign
        'Nurses are people.'
    """
    pairs = []
    for number, row in enumerate(read_rows(path, "pair", suffixes=ROWS)):
        where = f"pair {number} of {path}"
        biased, benign = text(row, "biased", where), text(row, "benign", where)
        if biased == benign:
            raise ValueError(f"{where}: 'biased' and 'benign' are the same sentence")
        pairs.append(SentencePair(biased, benign, str(row.get("group") or number), str(row.get("domain") or "")))
    return tuple(pairs)
