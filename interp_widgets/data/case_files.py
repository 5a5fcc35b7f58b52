"""Readers of saliency cases from the user's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interp_widgets.data.cases import SaliencyCase
from interp_widgets.data.files import parse_rows, read_rows, short

_TRUE = {"1", "true", "yes", "followed"}
_FALSE = {"0", "false", "no", "unfollowed"}


def read_cases(path: str | Path) -> list[SaliencyCase]:
    """Read cases from a .json, .jsonl or .csv file; see :func:`parse_cases` for the fields of a case.

    Raises FileNotFoundError if there is no file, ValueError for an invalid case.
    """
    return _cases(read_rows(path, "case"), str(path))


def parse_cases(content: str | bytes, name: str) -> list[SaliencyCase]:
    """Read cases from a file's content; the suffix of its name says whether it is JSON, JSON lines or CSV.

    A case is an object or row with ``prompt`` and, where known, ``response``, ``instruction`` (its words as they stand
    in the prompt, or [start, end) characters), ``label`` (whether it was followed) and ``name``. The message of a
    ValueError names the case and its fault.

    >>> parse_cases('[{"prompt": "Say hi to Ann", "instruction": "Say hi"}]', "cases.json")[0].instruction
    (0, 6)
    """
    return _cases(parse_rows(content, name, "case"), name)


def _cases(rows: Sequence[Mapping[str, Any]], name: str) -> list[SaliencyCase]:
    try:
        return [_case(row, index) for index, row in enumerate(rows)]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _case(row: Mapping[str, Any], index: int) -> SaliencyCase:
    if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise ValueError(f"case {index} has no prompt: every case needs a str under the name prompt")
    prompt = row["prompt"]
    for name in ("response", "name"):
        if not isinstance(row.get(name, ""), str | None):
            raise ValueError(f"case {index}: {name} must be a str, got {short(repr(row[name]))}")
    return SaliencyCase(
        prompt,
        row.get("response") or None,
        _span(prompt, row.get("instruction"), index),
        _label(row.get("label"), index),
        str(row.get("name") or f"{index:03d}"),
    )


def _span(prompt: str, instruction: Any, index: int) -> tuple[int, int] | None:
    if instruction in (None, "", []):
        return None
    if isinstance(instruction, str):
        start = prompt.find(instruction)
        if start < 0:
            raise ValueError(f"case {index}: the instruction {instruction[:40]!r} is not in its prompt")
        return start, start + len(instruction)
    if (
        isinstance(instruction, (list, tuple))
        and len(instruction) == 2
        and all(type(part) is int for part in instruction)
    ):
        start, end = instruction
        if 0 <= start < end <= len(prompt):
            return start, end
    raise ValueError(
        f"case {index}: instruction must be words of the prompt or [start, end) within its {len(prompt)} characters"
    )


def _label(label: Any, index: int) -> bool | None:
    if label is None or label == "":
        return None
    word = str(label).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"case {index}: label must be true or false, got {short(repr(label))}")
