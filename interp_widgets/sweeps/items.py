"""The items of a sweep: rows of a data set, table or file, or elements of any iterable."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from interp_widgets.arguments import short
from interp_widgets.data.files import decoded, lines_of, parse_rows, read_content
from interp_widgets.models import Model

from .identity import describe, hash_of
from .remote import column_names, error_text, plain_scalar

TEXT, TABLE = (".txt",), (".parquet",)
ROWS = (".csv", ".json", ".jsonl")
SWEEP_COLUMNS = ("row", "hash", "error", "seconds")
"""Columns that the sweep adds."""


@dataclass(frozen=True)
class Item:
    """One item: the value that the function is called with, and the columns that describe it."""

    row: int
    """Its index in the data, from 0."""
    value: Any
    labels: Mapping[str, Any]
    """Column to number, bool, str or None."""
    hash: str
    error: str = ""
    """Why it cannot be read; then the function is not called with it."""


def read_items(items: Any) -> tuple[Iterable[Any], int | None]:
    """The items as an iterable, and their number if it is known.

    A str or path is a file: rows of .csv, .json, .jsonl and .parquet, lines of .txt. The items of a pandas DataFrame or
    a Hugging Face data set are its rows, as dicts.
    """
    if isinstance(items, str | os.PathLike):
        _check_suffix(str(items))
        items = parse_items(read_content(items, "rows"), str(items))
    elif hasattr(items, "to_dict") and hasattr(items, "columns"):  # a DataFrame
        items = items.to_dict("records")
    elif isinstance(items, Mapping):
        raise TypeError(f"items must be a list of rows, a table, a data set or a file, got {short(items)}")
    try:
        iter(items)
    except TypeError as error:
        raise TypeError(f"items must be a list, a table, a data set or a file, got {short(items)}") from error
    return items, len(items) if hasattr(items, "__len__") else None


def parse_items(content: bytes, name: str) -> Sequence[Any]:
    """The items in a file's content; the suffix of its name is its format."""
    suffix = _check_suffix(name)
    if suffix in TEXT:
        lines = [line for line in lines_of(decoded(content, name)) if line.strip()]
        if not lines:
            raise ValueError(f"{name} has no line of text")
        return lines
    if suffix in TABLE:
        import pandas as pd

        try:
            return pd.read_parquet(io.BytesIO(content)).to_dict("records")
        except (ValueError, OSError) as error:
            raise ValueError(f"{name} is not a readable Parquet file ({error})") from error
    return parse_rows(content, name, "row")


def _check_suffix(name: str) -> str:
    """The suffix of a file's name; ValueError if the format is not supported."""
    suffix = Path(name).suffix.lower()
    if suffix not in TEXT + ROWS + TABLE:
        raise ValueError(f"cannot read items from {name!r}: the name must end in {', '.join(TEXT + ROWS + TABLE)}")
    return suffix


def number_items(items: Iterable[Any], limit: int | None) -> Iterator[Item]:
    """Yield each item with its row number, labels and hash, up to ``limit`` items."""
    for row, value in enumerate(items):
        if limit is not None and row >= limit:
            return
        yield _item(row, value)


def _item(row: int, value: Any) -> Item:
    """An item, with its error if the methods of its value raise one."""
    try:
        labels, digest = _labels(value), item_hash(value)
    except BaseException as error:
        return Item(row, value, {"item": f"an object of type {type(value).__name__}"}, "", error_text(error))
    if taken := [name for name in SWEEP_COLUMNS if name in labels]:
        raise ValueError(f"row {row} has a column {taken[0]!r}, which the sweep adds itself: rename it")
    return Item(row, value, labels, digest)


def _labels(value: Any) -> dict[str, Any]:
    """The columns that describe an item."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if not isinstance(value, Mapping):
        return {"item": cell_value(value)}
    return column_names({name: cell_value(part) for name, part in value.items()})


def cell_value(value: Any) -> Any:
    """A value for a table cell: numbers, bools, strings and None unchanged, anything else as a string."""
    if isinstance(value, Model):
        return value.name
    try:
        value = plain_scalar(os.fspath(value) if isinstance(value, os.PathLike) else value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = repr(value)
    except BaseException:  # raised by a method of the value
        text = ""
    return text if 0 < len(text) <= 200 else type(value).__name__


def item_hash(value: Any) -> str:
    """A hash of 16 hex digits that identifies an item, equal in every session.

    >>> item_hash({"prompt": "a", "n": 1}) == item_hash({"n": 1, "prompt": "a"})
    True
    """
    return hash_of(describe(value))
