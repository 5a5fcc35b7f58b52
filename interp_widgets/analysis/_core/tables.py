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
"""First characters of texts that spreadsheets run as a formula, and of texts that were escaped before."""


def table(axes: Mapping[str, Any], columns: Mapping[str, Any]) -> DataFrame:
    """A table with a row for every cell of a grid, the last axis running fastest.

    Args:
        axes: column name to the labels along one axis of the grid.
        columns: column name to the values of the cells, which broadcast to the grid as in NumPy (so one value per
            label of the last axis is enough); columns that are None are left out.

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
    data = {name: values[rows] for (name, values), rows in zip(labels.items(), cells, strict=True)}
    for name, values in columns.items():
        if values is not None:
            data[name] = np.broadcast_to(_values(values), shape).ravel()
    return pd.DataFrame(data)


def _values(values: Any) -> NDArray[Any]:
    """Numbers as an array of numbers, all else as an array of objects."""
    array = np.asarray(values)
    return array if array.dtype.kind in "fiub" else np.asarray(values, dtype=object)


def csv_text(frame: DataFrame) -> str:
    """A table as CSV (RFC 4180). Texts that a spreadsheet would run as a formula get an apostrophe in front.

    So do texts that begin with apostrophes followed by a formula character (``=``, ``+``, ``-``, ``@``, tab or carriage
    return), so that removing one apostrophe always restores the original.

    >>> csv_text(table({"token": ["-", "a"]}, {"x": [-1.5, 2.0]}))
    "token,x\\r\\n'-,-1.5\\r\\na,2.0\\r\\n"
    """
    texts: list[Any] = [name for name in frame if frame[name].dtype.kind not in "fiub"]
    escaped = frame.assign(**{name: frame[name].map(_escaped) for name in texts}).rename(columns=_escaped)
    text: str = escaped.to_csv(index=False, lineterminator="\r\n")
    return text


def _escaped(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and _RUN.match(value) else value
