"""Reads fields of benchmark files; errors name the file, row and field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from interp_widgets.data.files import short

T = TypeVar("T")
_KINDS = {str: "text", list: "a list", dict: "an object with named fields", int: "a whole number"}


def part(row: Any, name: str, kind: type[T], where: str) -> T:
    """The value of a field that must be there; ``where`` names the row and its file.

    >>> part({"context": 3}, "context", str, "example 0 of dev.json")
    Traceback (most recent call last):
    ValueError: example 0 of dev.json: 'context' must be text, got 3
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} must be an object with named fields, got {short(row)}")
    if name not in row:
        raise ValueError(f"{where} has no {name!r}: its fields are {', '.join(map(repr, row)) or 'none'}")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        got = repr(value) if isinstance(value, str) else value
        raise ValueError(f"{where}: {name!r} must be {_KINDS[kind]}, got {short(got)}")
    return value


def text(row: Any, name: str, where: str) -> str:
    """A field of words; ValueError where it is empty."""
    value = part(row, name, str, where).strip()
    if not value:
        raise ValueError(f"{where}: {name!r} is empty")
    return value


def texts(row: Any, name: str, where: str) -> tuple[str, ...]:
    """A field with a list of texts, any of which may be empty."""
    values = part(row, name, list, where)
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{where}: {name!r} must be a list of texts, got {short(repr(value))} in it")
    return tuple(values)


def identifier(row: Any, name: str, where: str) -> str:
    """A field that names a row: text or a whole number."""
    if isinstance(row, Mapping) and isinstance(row.get(name), int) and not isinstance(row[name], bool):
        return str(row[name])
    return text(row, name, where)


def check_words(example: Any, *names: str) -> None:
    """ValueError where one of these fields of an example is empty."""
    for name in names:
        value = getattr(example, name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(
                f"{name} of a {type(example).__name__} must be a text with words, got {short(repr(value))}"
            )


def check_one_of(example: Any, **allowed: Sequence[Any]) -> None:
    """ValueError where one of these fields of an example has another value than the allowed ones."""
    for name, values in allowed.items():
        if getattr(example, name) not in values:
            raise ValueError(
                f"{name} of a {type(example).__name__} must be {' or '.join(map(repr, values))}, got "
                f"{short(repr(getattr(example, name)))}"
            )


def one_of(value: str, allowed: Sequence[str], name: str, where: str) -> str:
    """A field with few values."""
    if value not in allowed:
        raise ValueError(f"{where}: {name!r} must be {' or '.join(map(repr, allowed))}, got {short(repr(value))}")
    return value
