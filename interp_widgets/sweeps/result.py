"""`SweepResult`: the measures of every item as a table, with summary statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.statistics import bootstrap_mean
from interp_widgets.arguments import checked
from interp_widgets.atomic import named_path

from .items import SWEEP_COLUMNS
from .store import read_folder, read_header

if TYPE_CHECKING:
    import pandas as pd


@record
class SweepResult(Result):
    """What `sweep` returns: one row per item, with the columns of the data and what was measured.

    Example:
        >>> result = sweep(len, ["a", "bb", "cccc"])
        >>> result.numbers("value").tolist(), result.n_failed
        ([1.0, 2.0, 4.0], 0)
        >>> result.summary()[["measure", "n", "mean"]].round(2)
          measure  n  mean
        0   value  3  2.33
    """

    rows: Ints = with_axes("items")
    """(items,) index of each item in the data, from 0."""

    label_names: Sequence[str] = with_axes("labels")
    """Names of the text columns: those of the data, and measures that are strings."""

    labels: Sequence[Sequence[str]] = with_axes("items", "labels")
    """(items, labels) values of the text columns; empty if an item has none."""

    number_names: Sequence[str] = with_axes("numbers")
    """Names of the numeric columns: those of the data, and measures that are numbers."""

    values: Floats = with_axes("items", "numbers")
    """(items, numbers) values of the numeric columns; NaN if an item has none."""

    measured: Sequence[str]
    """Names of the columns that were measured; the others come from the data."""

    errors: Sequence[str] = with_axes("items")
    """(items,) error message of each item; empty if it succeeded."""

    seconds: Floats = with_axes("items")
    """(items,) run time of each item, in seconds."""

    folder: str | None = field(default=None, kw_only=True)
    """Folder that the rows are in; None for a sweep without ``out``."""

    @property
    def failed(self) -> Bools:
        """(items,) which items failed."""
        return np.array([bool(error) for error in self.errors], dtype=bool)

    @property
    def n_failed(self) -> int:
        """How many items failed."""
        return int(self.failed.sum())

    @property
    def number_measures(self) -> tuple[str, ...]:
        """The measures that are numbers."""
        return tuple(name for name in self.number_names if name in self.measured)

    def numbers(self, name: str) -> Floats:
        """(items,) values of a numeric column; ValueError if there is no such column."""
        if name not in self.number_names:
            raise ValueError(f"numbers must be one of {', '.join(map(repr, self.number_names))}, got {name!r}")
        return self.values[:, self.number_names.index(name)]

    def texts(self, name: str) -> tuple[str, ...]:
        """(items,) values of a text column; ValueError if there is no such column."""
        if name not in self.label_names:
            raise ValueError(f"texts must be one of {', '.join(map(repr, self.label_names))}, got {name!r}")
        column = self.label_names.index(name)
        return tuple(row[column] for row in self.labels)

    def groups(self, name: str) -> tuple[str, ...]:
        """(items,) values of any column as strings, for grouping; empty if an item has none."""
        if name not in self.number_names:
            return self.texts(name)
        return tuple("" if np.isnan(value) else f"{value:.15g}" for value in self.numbers(name))

    def to_frame(self) -> pd.DataFrame:
        """One row per item: index, columns of the data, measures, error and seconds."""
        import pandas as pd

        columns: dict[str, Any] = {name: self.texts(name) for name in self.label_names}
        columns |= {name: self.numbers(name) for name in self.number_names}
        order = [name for name in columns if name not in self.measured]
        order += [name for name in self.measured if name in columns]
        return pd.DataFrame(
            {"row": self.rows, **{name: columns[name] for name in order}, "error": self.errors, "seconds": self.seconds}
        )

    def summary(self, *, seed: int = 0, resamples: int = 9999) -> pd.DataFrame:
        """One row per numeric measure: n, mean, 95% bootstrap interval of the mean, and standard deviation.

        Items without the measure are excluded and not counted in `n`. For fewer than two items the interval is NaN.
        """
        import pandas as pd

        table = []
        for name in self.number_measures:
            finite = self.numbers(name)[np.isfinite(self.numbers(name))]
            low, high = np.nan, np.nan
            if len(finite) > 1:
                low, high = bootstrap_mean(finite[:, None], seed=seed, resamples=resamples)[:, 0]
            spread = finite.std(ddof=1) if len(finite) > 1 else np.nan
            mean = finite.mean() if len(finite) else np.nan
            table.append({"measure": name, "n": len(finite), "mean": mean, "low": low, "high": high, "std": spread})
        return pd.DataFrame(table, columns=["measure", "n", "mean", "low", "high", "std"])


def result_of(frame: pd.DataFrame, data: Sequence[str], **more: Any) -> SweepResult:
    """A `SweepResult` of rows; `data` names the columns that were not measured."""
    from pandas.api.types import is_numeric_dtype

    columns = [name for name in frame.columns if name not in SWEEP_COLUMNS]
    frame = frame.assign(**{name: frame[name].astype(float) for name in columns if _are_bools(frame[name])})
    numbers = [name for name in columns if is_numeric_dtype(frame[name])]
    texts = [name for name in columns if name not in numbers]
    return SweepResult(
        rows=frame["row"].to_numpy(dtype=np.int64),
        label_names=texts,
        labels=[["" if part is None or part != part else str(part) for part in row] for row in frame[texts].to_numpy()],
        number_names=numbers,
        values=frame[numbers].to_numpy(dtype=np.float64),
        measured=tuple(name for name in columns if name not in data),
        errors=frame["error"].fillna("").tolist(),
        seconds=frame["seconds"].to_numpy(dtype=np.float64),
        **more,
    )


def _are_bools(column: pd.Series[Any]) -> bool:
    """Whether the values of a column, apart from missing ones, are all bools."""
    return column.dtype == bool or (column.dtype == object and set(map(type, column.dropna())) == {bool})


@checked
def read_sweep(folder: str | Path) -> SweepResult:
    """Read the rows that a sweep has written into its folder so far, also while it runs.

    A file of rows that was damaged is left out with a warning. Raises FileNotFoundError if there is no sweep,
    ValueError if its header is damaged.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = sweep(len, ["a", "bb"], out=folder)
        ...     read_sweep(folder).numbers("value").tolist()
        [1.0, 2.0]
    """
    path = named_path(folder, "folder")
    header = read_header(path)
    frame = read_folder(path, sweep=header.get("sweep"))
    return result_of(frame, header.get("columns", []), folder=str(path), provenance=header.get("provenance", {}))
