"""`SweepResult`: what was measured of each item, as a table and with statistics over all of them."""

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

from .items import OWN
from .store import read_folder, read_header

if TYPE_CHECKING:
    import pandas as pd


@record
class SweepResult(Result):
    """What `sweep` returns: one row per item, with what was measured of it and what it was.

    Example:
        >>> result = sweep(len, ["a", "bb", "cccc"])
        >>> result.numbers("value").tolist(), result.n_failed
        ([1.0, 2.0, 4.0], 0)
        >>> result.summary()[["measure", "n", "mean"]].round(2)
          measure  n  mean
        0   value  3  2.33
    """

    rows: Ints = with_axes("items")
    """Number of each item in the data set, from 0."""

    label_names: Sequence[str] = with_axes("labels")
    """Columns of text: those of the data set, and texts that were measured."""

    labels: Sequence[Sequence[str]] = with_axes("items", "labels")
    """(items, labels) their texts; empty where an item has none."""

    number_names: Sequence[str] = with_axes("numbers")
    """Columns of numbers: those of the data set, and what was measured."""

    values: Floats = with_axes("items", "numbers")
    """(items, numbers) their values; NaN where an item has none."""

    measured: Sequence[str]
    """Which of the columns were measured; the others are the data set's."""

    errors: Sequence[str] = with_axes("items")
    """What went wrong with an item; empty where nothing did."""

    seconds: Floats = with_axes("items")
    """How long each took."""

    folder: str | None = field(default=None, kw_only=True)
    """Where the rows are kept; None for a sweep that was not written."""

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
        """(items,) a column of numbers; ValueError for one that is not there."""
        if name not in self.number_names:
            raise ValueError(f"numbers must be one of {', '.join(map(repr, self.number_names))}, got {name!r}")
        return self.values[:, self.number_names.index(name)]

    def texts(self, name: str) -> tuple[str, ...]:
        """(items,) a column of texts; ValueError for one that is not there."""
        if name not in self.label_names:
            raise ValueError(f"texts must be one of {', '.join(map(repr, self.label_names))}, got {name!r}")
        at = self.label_names.index(name)
        return tuple(row[at] for row in self.labels)

    def groups(self, name: str) -> tuple[str, ...]:
        """(items,) a column of texts or of numbers as texts, by which items are grouped; empty where one has none."""
        if name not in self.number_names:
            return self.texts(name)
        return tuple("" if np.isnan(value) else f"{value:.15g}" for value in self.numbers(name))

    def to_frame(self) -> pd.DataFrame:
        """One row per item: its number, the data set's columns, what was measured, the error and the seconds."""
        import pandas as pd

        columns: dict[str, Any] = {name: self.texts(name) for name in self.label_names}
        columns |= {name: self.numbers(name) for name in self.number_names}
        order = [name for name in columns if name not in self.measured]
        order += [name for name in self.measured if name in columns]
        return pd.DataFrame(
            {"row": self.rows, **{name: columns[name] for name in order}, "error": self.errors, "seconds": self.seconds}
        )

    def summary(self, *, seed: int = 0, resamples: int = 9999) -> pd.DataFrame:
        """One row per measure that is a number: items, mean, its 95 % bootstrap interval, and standard deviation.

        Items without the number are left out of it and of `n`. The interval of fewer than two items is NaN.
        """
        import pandas as pd

        table = []
        for name in self.number_measures:
            known = self.numbers(name)[np.isfinite(self.numbers(name))]
            low, high = np.nan, np.nan
            if len(known) > 1:
                low, high = bootstrap_mean(known[:, None], seed=seed, resamples=resamples)[:, 0]
            spread = known.std(ddof=1) if len(known) > 1 else np.nan
            mean = known.mean() if len(known) else np.nan
            table.append({"measure": name, "n": len(known), "mean": mean, "low": low, "high": high, "std": spread})
        return pd.DataFrame(table, columns=["measure", "n", "mean", "low", "high", "std"])


def result_of(frame: pd.DataFrame, data: Sequence[str], **more: Any) -> SweepResult:
    """Rows as a result; `data` names the columns that were not measured."""
    from pandas.api.types import is_numeric_dtype

    given = [name for name in frame.columns if name not in OWN]
    frame = frame.assign(**{name: frame[name].astype(float) for name in given if _are_bools(frame[name])})
    numbers = [name for name in given if is_numeric_dtype(frame[name])]
    texts = [name for name in given if name not in numbers]
    return SweepResult(
        rows=frame["row"].to_numpy(dtype=np.int64),
        label_names=texts,
        labels=[["" if part is None or part != part else str(part) for part in row] for row in frame[texts].to_numpy()],
        number_names=numbers,
        values=frame[numbers].to_numpy(dtype=np.float64),
        measured=tuple(name for name in given if name not in data),
        errors=frame["error"].fillna("").tolist(),
        seconds=frame["seconds"].to_numpy(dtype=np.float64),
        **more,
    )


def _are_bools(column: pd.Series[Any]) -> bool:
    """Whether a column holds True and False, and nothing else where there is something."""
    return column.dtype == bool or (column.dtype == object and set(map(type, column.dropna())) == {bool})


@checked
def read_sweep(folder: str | Path) -> SweepResult:
    """What a sweep has written into its folder so far, also while it runs.

    Raises FileNotFoundError where there is no sweep, ValueError where its header is damaged.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = sweep(len, ["a", "bb"], out=folder)
        ...     read_sweep(folder).numbers("value").tolist()
        [1.0, 2.0]
    """
    path = Path(folder).expanduser()
    header, frame = read_header(path), read_folder(path)
    return result_of(frame, header.get("columns", []), folder=str(path), provenance=header.get("provenance", {}))
