"""English verbs: those that instructions ask with, and common ones to hold them against."""

from __future__ import annotations

from pathlib import Path

from interp_widgets.data.files import read_table

_tables = read_table(Path(__file__).with_name("word_lists.json"))

INSTRUCTION_VERBS: tuple[str, ...] = _tables["instruction_verbs"]
"""45 verbs that instructions to language models are written with."""

GENERAL_VERBS: tuple[str, ...] = _tables["general_verbs"]
"""Common verbs, none of them in `INSTRUCTION_VERBS`."""
