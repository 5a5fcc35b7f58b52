"""The rows to analyse: the user's own, or prompts of the demo world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import traitlets as T

from interp_widgets.data.demo_prompts import demo_prompts
from interp_widgets.sweeps.items import cell_value, item_hash, parse_items, read_items

PROMPT = ("prompt", "text", "question", "input", "sentence", "item")
TARGET = ("target", "answer", "response", "completion", "output", "attribute")
MOST_GROUPS = 6
"""A column with more different texts does not offer groups."""


class DataRows(T.Tuple):
    """A trait for the items of `sweep`, kept as a tuple of mappings; a text becomes a row with a ``prompt``."""

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, tuple) and all(isinstance(row, Mapping) for row in value):
            return value
        try:
            return as_rows(read_items(value)[0])
        except (TypeError, ValueError, OSError) as error:
            raise T.TraitError(f"{self.name}: {error}") from error


def as_rows(items: Any) -> tuple[Mapping[str, Any], ...]:
    """Items as rows: mappings of column to value; a text is a row of that prompt."""
    rows = tuple(item if isinstance(item, Mapping) else {"prompt": item} for item in items)
    if wrong := [row for row in rows if "prompt" in row and not isinstance(row["prompt"], str)]:
        raise TypeError(f"rows must be texts or mappings of column to value, got {wrong[0]['prompt']!r}")
    return rows


def uploaded_rows(content: bytes, name: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a file that was chosen in the browser."""
    return as_rows(parse_items(content, name))


WITHOUT_WORDINGS = "without wordings"
"""Marks examples that do not say which wordings are trained: those of the demo models are, for others that is false."""


@dataclass(frozen=True)
class Rows:
    """Rows as part of a request, compared by their hash: there may be thousands."""

    count: int
    """Number of example rows; 0 for the user's own."""
    hash: str
    """Of the user's own; for examples empty, or `WITHOUT_WORDINGS`."""
    own: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, own: Sequence[Mapping[str, Any]], count: int, wordings: bool = True) -> Rows:
        """The user's own rows; without any, `count` facts as examples."""
        return cls(0, item_hash(list(own)), tuple(own)) if own else cls(count, "" if wordings else WITHOUT_WORDINGS)

    @cached_property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows themselves."""
        if self.own or self.hash != WITHOUT_WORDINGS:
            return self.own or demo_prompts(self.count)
        return [{name: row[name] for name in row if name != "wording"} for row in demo_prompts(self.count)]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that hold texts."""
    names = dict.fromkeys(str(name) for row in rows[:100] for name, value in row.items() if isinstance(value, str))
    return list(names)


def grouping_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns whose values make a few groups of several rows."""
    names = dict.fromkeys(str(name) for row in rows for name in row)
    values = {name: {cell_value(row.get(name)) for row in rows} - {None, ""} for name in names}
    return [name for name, some in values.items() if 2 <= len(some) <= min(MOST_GROUPS, len(rows) // 2)]


def first_of(names: Sequence[str], columns: Sequence[str]) -> str:
    """The first of these names that is a column; empty for none."""
    return next((name for name in names if name in columns), "")
