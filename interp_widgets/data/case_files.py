"""Readers of saliency cases from the user's files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp_widgets.data.cases import SaliencyCase

_TRUE = {"1", "true", "yes", "followed"}
_FALSE = {"0", "false", "no", "unfollowed"}


def read_cases(path: str | Path) -> list[SaliencyCase]:
    """Read cases from a .json, .jsonl or .csv file; see :func:`parse_cases` for what a case holds."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no file {file}: give the path of a .json, .jsonl or .csv file of cases")
    return parse_cases(file.read_bytes(), file.name)


def parse_cases(content: str | bytes, name: str) -> list[SaliencyCase]:
    """Read cases from a file's content; the suffix of its name says whether it is JSON, JSON lines or CSV.

    A case is an object or row with ``prompt`` and, where known, ``response``, ``instruction`` (its words as they stand
    in the prompt, or [start, end) characters), ``label`` (whether it was followed) and ``name``. The message of a
    ValueError names the case and its fault.

    >>> parse_cases('[{"prompt": "Say hi to Ann", "instruction": "Say hi"}]', "cases.json")[0].instruction
    (0, 6)
    """
    suffix = Path(name).suffix.lower()
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        if suffix == ".json":
            rows = json.loads(text)
        elif suffix == ".jsonl":
            # splitlines() would also split at a line separator (U+2028) inside a text
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        elif suffix == ".csv":
            rows = _csv_rows(text, name)
        else:
            raise ValueError(f"cannot read cases from {name!r}: the name must end in .json, .jsonl or .csv")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not text in UTF-8: save it in that encoding") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{name} must hold a list of at least one case, each with a prompt")
    return [_case(row, index) for index, row in enumerate(rows)]


def _csv_rows(text: str, name: str) -> list[dict[str, str]]:
    """Rows of a CSV; a text split at its own comma, or a quote that is never closed, raises an error."""
    advice = 'put a text with commas or line breaks between double quotes, and write a quote in it twice ("")'
    lines = csv.reader(io.StringIO(text), strict=True)
    rows: list[dict[str, str]] = []
    try:
        heading = next(lines, [])
        for line in filter(None, lines):
            if any(line[len(heading) :]):  # spreadsheets write empty fields at the end of a line
                raise ValueError(
                    f"case {len(rows)} of {name} has {len(line)} fields under {len(heading)} headings: {advice}"
                )
            rows.append(dict(zip(heading, line, strict=False)))
    except csv.Error as error:
        raise ValueError(f"case {len(rows)} of {name} is not valid CSV ({error}): {advice}") from error
    return rows


def _case(row: Any, index: int) -> SaliencyCase:
    if not isinstance(row, Mapping) or not isinstance(row.get("prompt"), str) or not row["prompt"]:
        raise ValueError(f"case {index} has no prompt: every case needs a str under the name prompt")
    prompt = row["prompt"]
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
        and all(isinstance(part, int) for part in instruction)
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
    raise ValueError(f"case {index}: label must be true or false, got {label!r}")
