"""The values that a probe function may return; their axes tell a panel how to draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, fields, replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.result import Result, Scalar, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy

V = TypeVar("V", bound="Values")


@record
class Values(Result):
    """Base of values with numbers, which may be given as tensors of any device and dtype, or as lists."""

    values: Floats | Any
    """The numbers, stored as an array."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if str(item.type).startswith("Floats"):
                object.__setattr__(self, item.name, _numbers(getattr(self, item.name), f"{self._name}.{item.name}"))
        super().__post_init__()
        if not self.values.size:
            raise ValueError(f"{self._name}.values must hold at least one number, its shape is {self.values.shape}")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def minus(self: V, other: V) -> V:
        """This minus another value of the same type with the same axes; ValueError names the first mismatch."""
        for item in fields(self):
            if item.name in ("values", "texts", "partial", "provenance"):
                continue
            first, second = getattr(other, item.name), getattr(self, item.name)
            if np.shape(first) != np.shape(second) or not np.array_equal(first, second):
                raise ValueError(f"a difference needs the same {item.name}, these are {first} and {second}")
        if self.values.shape != other.values.shape:
            raise ValueError(f"a difference needs one shape, these are {other.values.shape} and {self.values.shape}")
        return replace(self, values=self.values - other.values, provenance={}, **self._merged(other))

    def _merged(self: V, other: V) -> dict[str, Any]:
        """The fields of a difference that may differ between the two values."""
        return {}


@record
class LayerByPosition(Values):
    """A number for every layer and every token of a text, drawn as a map with a row per layer.

    Raises ValueError where the shapes do not fit or a number is not finite.

    Example:
        >>> LayerByPosition([[0.1, 0.5], [0.2, 0.9]], ["Paris", " is"], unit="probability").to_frame()
           layer  position  token  value
        0      0         0  Paris    0.1
        1      0         1     is    0.5
        2      1         0  Paris    0.2
        3      1         1     is    0.9
    """

    values: Floats | Any = with_axes("layers", "positions", nan=False)
    """(layers, positions) the numbers, in `unit`."""

    tokens: Sequence[str] = with_axes("positions")
    """(positions,) the text of each token."""

    unit: str = ""
    """Name or unit of the numbers, such as ``nats``."""

    layers: Sequence[int] | None = with_axes("layers", default=None)
    """(layers,) layer of each row; None: 0, 1, 2… A model's number of layers stands for its output."""

    texts: Sequence[Sequence[str]] | None = with_axes("layers", "positions", default=None)
    """(layers, positions) a short text for each cell, such as a token; None for none."""

    def _merged(self, other: LayerByPosition) -> dict[str, Any]:
        if self.texts is None or other.texts is None:
            return {"texts": None}
        pairs = [zip(*rows, strict=True) for rows in zip(other.texts, self.texts, strict=True)]
        return {"texts": tuple(tuple("" if a == b else f"{a} → {b}" for a, b in row) for row in pairs)}

    def to_frame(self) -> DataFrame:
        """A row per cell: layer, position, token, value, and the text where there is one."""
        positions = range(len(self.tokens))
        columns = {"token": self.tokens, "value": self.values, "text": self.texts}
        return table({"layer": _or_counted(self.layers, len(self.values)), "position": positions}, columns)


@record
class HeadMap(Values):
    """A number for every attention head, drawn as a map with a row per layer and a column per head.

    Raises ValueError where the shapes do not fit or a number is not finite.

    Example:
        >>> HeadMap([[0.1, 0.5], [0.2, 0.9]], unit="nats").to_frame().query("layer == 1")
           layer  head  value
        2      1     0    0.2
        3      1     1    0.9
    """

    values: Floats | Any = with_axes("layers", "heads", nan=False)
    """(layers, heads) the numbers, in `unit`."""

    unit: str = ""
    """Name or unit of the numbers."""

    layers: Sequence[int] | None = with_axes("layers", default=None)
    """(layers,) layer of each row; None for all of them."""

    def to_frame(self) -> DataFrame:
        """A row per head: layer, head, value."""
        layers, heads = self.values.shape
        return table({"layer": _or_counted(self.layers, layers), "head": range(heads)}, {"value": self.values})


@record
class Matrix(Values):
    """A number for every pair of two named axes, such as queries and keys, or layers of two models, drawn as a map.

    NaN is a cell that does not exist, such as a key behind its query, and stays empty. A click on a column selects that
    token in all panels where the columns are the tokens of the prompt. Raises ValueError where the shapes do not fit or
    no number is finite.

    Example:
        >>> Matrix([[1.0, np.nan], [0.3, 0.7]], ["The", " cat"], ["The", " cat"], "query", "key").to_frame()
           row  column row_label column_label  value
        0    0       0       The          The    1.0
        1    0       1       The          cat    NaN
        2    1       0       cat          The    0.3
        3    1       1       cat          cat    0.7
    """

    values: Floats | Any = with_axes("rows", "columns", nan=True)
    """(rows, columns) the numbers, in `unit`."""

    rows: Sequence[str] = with_axes("rows")
    """(rows,) name of each row."""

    columns: Sequence[str] = with_axes("columns")
    """(columns,) name of each column."""

    row_name: str = "row"
    """What a row is, such as ``query``."""

    column_name: str = "column"
    """What a column is, such as ``key``."""

    unit: str = ""
    """Name or unit of the numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite(self.values).any():
            raise ValueError("Matrix.values must hold at least one number that is finite")

    def to_frame(self) -> DataFrame:
        """A row per cell: row, column, their names, value."""
        rows, columns = self.values.shape
        frame = table({"row": range(rows), "column": range(columns)}, {"value": self.values})
        frame.insert(2, "row_label", np.repeat(np.asarray(self.rows, dtype=object), columns))
        frame.insert(3, "column_label", np.tile(np.asarray(self.columns, dtype=object), rows))
        return frame


@record
class TokenValues(Values):
    """A number for every token of a text, drawn as the text with its tokens shaded.

    Raises ValueError where the shapes do not fit or a number is not finite.

    Example:
        >>> TokenValues([0.1, 0.9], ["Paris", " is"]).to_frame()
           position  token  value
        0         0  Paris    0.1
        1         1     is    0.9
    """

    values: Floats | Any = with_axes("positions", nan=False)
    """(positions,) the numbers, in `unit`."""

    tokens: Sequence[str] = with_axes("positions")
    """(positions,) the text of each token."""

    unit: str = ""
    """Name or unit of the numbers."""

    def to_frame(self) -> DataFrame:
        """A row per token: position, token, value."""
        return table({"position": range(len(self.tokens))}, {"token": self.tokens, "value": self.values})


@record
class Curves(Values):
    """Named lines over a common axis, drawn as a chart.

    Raises ValueError where the shapes do not fit or a number is not finite.

    Example:
        >>> Curves([[0.1, 0.5, 0.9]], ["Paris"], x_label="layer", unit="probability").to_frame()
            name    x  value
        0  Paris  0.0    0.1
        1  Paris  1.0    0.5
        2  Paris  2.0    0.9
    """

    values: Floats | Any = with_axes("curves", "points", nan=False)
    """(curves, points) y values, in `unit`."""

    names: Sequence[str] = with_axes("curves")
    """(curves,) name of each curve."""

    x: Floats | Any | None = with_axes("points", default=None, nan=False)
    """(points,) x values; None: 0, 1, 2…"""

    x_label: str = ""
    """Name or unit of the horizontal axis."""

    unit: str = ""
    """Name or unit of the y values."""

    @property
    def places(self) -> Floats:
        """(points,) x values."""
        return np.arange(self.values.shape[1], dtype=float) if self.x is None else self.x

    def to_frame(self) -> DataFrame:
        """A row per point: name, x, value."""
        return table({"name": self.names, "x": self.places}, {"value": self.values})


@record
class Table(Result):
    """Rows of text and numbers under named columns.

    Raises ValueError for a row of another length than the columns, a cell that is neither text, number nor None, or a
    number that is not finite (use None for a missing number).

    Example:
        >>> Table(["token", "probability"], [[" Paris", 0.9], [" Rome", 0.1]]).to_frame()
            token  probability
        0   Paris          0.9
        1    Rome          0.1
    """

    columns: Sequence[str] = with_axes("columns")
    """(columns,) unique names."""

    rows: Sequence[Sequence[Scalar]] = field()
    """(rows, columns) the cells."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"Table.columns must be different, got {list(self.columns)}")
        rows = tuple(tuple(map(_cell, row)) for row in self.rows)
        for number, row in enumerate(rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} of Table.rows has {len(row)} cells for {len(self.columns)} columns")
            for name, cell in zip(self.columns, row, strict=True):
                if isinstance(cell, float) and not math.isfinite(cell):
                    raise ValueError(f"row {number} of Table.rows has {cell} as its {name}: use None for no number")
        object.__setattr__(self, "rows", rows)

    def to_frame(self) -> DataFrame:
        """The rows."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))


def _numbers(value: Any, label: str) -> Any:
    """Tensors, lists and integers as an array of floats; None stays None."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        value = [to_numpy(item) if isinstance(item, Tensor) else item for item in value]
    try:
        array = to_numpy(value) if isinstance(value, Tensor) else np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{label} must be an array of numbers, its rows are of different lengths") from error
    return array.astype(float) if array.dtype.kind in "iub" else array


def _cell(value: Any) -> Any:
    """A cell as a plain value; ValueError for what a table cannot hold."""
    if isinstance(value, Tensor | np.generic) and np.ndim(value) == 0:
        value = value.item()
    if not isinstance(value, Scalar):
        raise ValueError(f"a cell of Table.rows must be text, a number or None, got {type(value).__name__}")
    return value


def _or_counted(numbers: Sequence[int] | None, count: int) -> Sequence[int]:
    return range(count) if numbers is None else numbers
