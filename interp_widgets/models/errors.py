"""The error of a model that cannot be loaded."""

from __future__ import annotations


class LoadError(ValueError):
    """A model cannot be loaded; the message says why and what to do."""


def sentence(error: BaseException) -> str:
    """An error's message on one line: its first line, and the next if the first ends in a colon.

    The type of the error comes first where the message alone says nothing.

    >>> sentence(KeyError("nope")), sentence(ValueError("two lines:\\n  second\\nthird"))
    ("KeyError 'nope'", 'two lines: second')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    start = f"{lines[0]} {lines[1]}" if len(lines) > 1 and lines[0].endswith(":") else "".join(lines[:1])
    kind = "" if start and isinstance(error, ValueError | OSError | RuntimeError) else f"{type(error).__name__} "
    return (kind + start).strip()[:300]
