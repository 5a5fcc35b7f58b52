"""Tables of results: one row per cell of its axes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any  # pandas takes long to import and is needed for tables only


__all__ = ["DataFrame", "csv_text", "table"]

_RUN = re.compile(r"'*[=+\-@\t\r]")
"""Beginnings of a text that spreadsheets take for a formula, and of one that was escaped before."""


def table(axes: Mapping[str, Any], columns: Mapping[str, Any]) -> DataFrame:
    """A table with a row for every cell of a grid, the last axis running fastest.

    Args:
        axes: column name to the labels along one axis of the grid.
        columns: column name to the values of the cells, which broadcast to the grid as NumPy does (so one value per
            label of the last axis will do); None for a column that there is not.

    >>> table({"layer": [4, 5], "token": ["a", "b"]}, {"effect": [[0.1, 0.2], [0.3, 0.4]]})
       layer token  effect
    0      4     a     0.1
    1      4     b     0.2
    2      5     a     0.3
    3      5     b     0.4
    """
    import pandas as pd

    labels = {name: _values(values) for name, values in axes.items()}
    shape = tuple(map(len, labels.values()))
    cells = np.indices(shape).reshape(len(shape), -1)
    data = {name: values[at] for (name, values), at in zip(labels.items(), cells, strict=True)}
    for name, values in columns.items():
        if values is not None:
            data[name] = np.broadcast_to(_values(values), shape).ravel()
    return pd.DataFrame(data)


def _values(values: Any) -> NDArray[Any]:
    """Numbers as an array of numbers, all else as an array of objects."""
    array = np.asarray(values)
    return array if array.dtype.kind in "fiub" else np.asarray(values, dtype=object)


def csv_text(frame: DataFrame) -> str:
    """A table as CSV (RFC 4180). Numbers stay; a text that a spreadsheet would run has an apostrophe in front.

    So does a text that begins with apostrophes and then as a formula does, so that taking one away in front of ``=``,
    ``+``, ``-``, ``@``, a tab or a carriage return always gives back what it was.

    >>> csv_text(table({"token": ["-", "a"]}, {"x": [-1.5, 2.0]}))
    "token,x\\r\\n'-,-1.5\\r\\na,2.0\\r\\n"
    """
    texts: list[Any] = [name for name in frame if frame[name].dtype.kind not in "fiub"]
    escaped = frame.assign(**{name: frame[name].map(_escaped) for name in texts}).rename(columns=_escaped)
    text: str = escaped.to_csv(index=False, lineterminator="\r\n")
    return text


def _escaped(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and _RUN.match(value) else value
