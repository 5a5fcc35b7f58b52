"""English verbs: verbs used in instructions, and common verbs for comparison."""

from __future__ import annotations

from pathlib import Path

from interp_widgets.data.files import read_table

_tables = read_table(Path(__file__).with_name("word_lists.json"))

INSTRUCTION_VERBS: tuple[str, ...] = _tables["instruction_verbs"]
"""45 verbs used in instructions to language models."""

GENERAL_VERBS: tuple[str, ...] = _tables["general_verbs"]
"""Common verbs, none of them in `INSTRUCTION_VERBS`."""
