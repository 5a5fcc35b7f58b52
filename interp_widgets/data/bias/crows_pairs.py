"""CrowS-Pairs (Nangia et al. 2020) and its repaired English edition (Névéol et al. 2022)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from interp_widgets.arguments import checked
from interp_widgets.data.files import read_rows
from interp_widgets.data.row_fields import check_one_of, check_words, one_of, text

Edition = Literal["original", "repaired"]
_DIRECTIONS = ("stereo", "antistereo")
_ANNOTATIONS = "anon_writer"
"""A column of the original edition alone, which the repaired one has not."""


@dataclass(frozen=True)
class CrowsPair:
    """Two sentences that differ in the group they are about.

    Example:
        >>> CrowsPair("She is weak.", "He is weak.", "stereo", "gender").edition
        'original'
    """

    more: str
    """The sentence about the disadvantaged group."""
    less: str
    """The sentence about a group with advantages."""
    direction: Literal["stereo", "antistereo"]
    """Whether `more` shows a stereotype of its group, or goes against one."""
    domain: str
    """The kind of bias, such as ``race-color``."""
    edition: Edition = "original"

    def __post_init__(self) -> None:
        check_one_of(self, direction=_DIRECTIONS, edition=get_args(Edition))
        check_words(self, "more", "less")


@checked
def read_crows_pairs(path: str | os.PathLike[str]) -> tuple[CrowsPair, ...]:
    """Read CrowS-Pairs: a CSV with ``sent_more``, ``sent_less``, ``stereo_antistereo`` and ``bias_type``, separated by
    commas, or by tabs as the repaired edition is published.

    The columns of the annotators tell the original edition from the repaired one, which has none. Raises
    FileNotFoundError where there is no file, and ValueError with the row and the field where it has another layout.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/pairs.csv"
        >>> head = "sent_more,sent_less,stereo_antistereo,bias_type"
        >>> with open(path, "w") as file:
        ...     n = file.write(f"{head}\\nShe is weak.,He is weak.,stereo,gender\\n")
        >>> pair = read_crows_pairs(path)[0]
        >>> pair.more, pair.edition
        ('She is weak.', 'repaired')
    """
    pairs = []
    for number, row in enumerate(read_rows(path, "pair", suffixes=(".csv",))):
        where = f"pair {number} of {path}"
        direction = one_of(text(row, "stereo_antistereo", where), _DIRECTIONS, "stereo_antistereo", where)
        more, less = text(row, "sent_more", where), text(row, "sent_less", where)
        if more == less:
            raise ValueError(f"{where}: 'sent_more' and 'sent_less' are the same sentence")
        pairs.append(
            CrowsPair(
                more,
                less,
                "stereo" if direction == "stereo" else "antistereo",
                text(row, "bias_type", where),
                "original" if _ANNOTATIONS in row else "repaired",
            )
        )
    return tuple(pairs)
