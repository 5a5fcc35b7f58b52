"""Tables of results: one row per cell of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any  # pandas takes long to import and is needed for tables only


__all__ = ["DataFrame", "table"]


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
