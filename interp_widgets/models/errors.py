"""The error of a model that cannot be loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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


@contextlib.contextmanager
def refusing(start: str, advice: str = "") -> Iterator[None]:
    """Turn any error of the tokenizers library into a LoadError: it raises bare Exception for a damaged file, and where
    its Rust code gives up an error that is no Exception at all."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise LoadError(f"{start}: {sentence(error)}{advice}") from error
