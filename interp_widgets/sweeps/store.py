"""The files of a sweep: a folder of Parquet files with one row per item, and a header that identifies the sweep."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp_widgets.atomic import made_folder, whole_file
from interp_widgets.data.files import short

from .items import SWEEP_COLUMNS, Item

if TYPE_CHECKING:
    import pandas as pd

HEADER = "sweep.json"
_FORMAT = "interp_widgets sweep"
_MERGED = "rows.parquet"
_MAX_PARTS = 100
"""Part files after which all rows are merged into one file."""
_MAX_SECONDS = 1.0
"""Pending rows are written after this many seconds."""
_MAX_ROWS = 1000


class Memory:
    """Rows of a sweep without ``out``."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        """Columns of the data."""
        self._rows: list[dict[str, Any]] = []

    def finished(self) -> dict[int, str]:
        """Hash by number of the items that are done."""
        return {}

    def add(self, item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> None:
        """Add a row."""
        self._rows.append(make_row(item, measured, error, seconds))
        self.columns += [name for name in item.labels if name not in self.columns]

    def write(self) -> None:
        """Nothing is written."""

    def finish(self) -> None:
        """Nothing is written."""

    def rows(self) -> pd.DataFrame:
        """All rows, in the order of the items."""
        return storable_table(self._rows).sort_values("row", ignore_index=True)


class Folder:
    """A folder of rows. Every file is written completely or not at all, so the folder can always be read."""

    def __init__(self, folder: Path, header: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.folder, self.columns = made_folder(folder, "out"), list[str]()
        self._pending: list[dict[str, Any]] = []
        self._written = time.monotonic()
        self._header = {"format": _FORMAT, **header, "provenance": dict(facts)}
        if (folder / HEADER).exists():
            self.columns = _check_same_sweep(folder, header).get("columns", [])
        elif any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files: give out= a new folder, or that of the same sweep")
        self._next = 1 + max((int(path.stem.split("-")[1]) for path in self._parts()), default=-1)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def rows(self) -> pd.DataFrame:
        """All rows on disk, in the order of the items; if an item was run again, its last row."""
        return read_folder(self.folder)

    def finished(self) -> dict[int, str]:
        """Hash by number of the items that are done."""
        frame = self.rows()
        good = frame[frame["error"].isna()]
        return dict(zip(good["row"].tolist(), good["hash"].tolist(), strict=True))

    def add(self, item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> None:
        """Add a row; it is written within a second, or with the next row after that."""
        self._pending.append(make_row(item, measured, error, seconds))
        new = [name for name in item.labels if name not in self.columns]
        if new or not (self.folder / HEADER).exists():
            self.columns += new
            with whole_file(self.folder / HEADER) as draft:
                draft.write_text(json.dumps({**self._header, "columns": self.columns}, indent=1), encoding="utf8")
        if len(self._pending) >= _MAX_ROWS or time.monotonic() - self._written >= _MAX_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the pending rows."""
        self._written = time.monotonic()
        if self._pending:
            # a unique name, so that two processes running the same sweep do not overwrite each other
            _write(storable_table(self._pending), self.folder / f"part-{self._next:06d}-{secrets.token_hex(4)}.parquet")
            self._next, self._pending = self._next + 1, []
        if len(self._parts()) >= _MAX_PARTS:
            self._merge_parts()

    def finish(self) -> None:
        """Write the pending rows and merge all rows into one file."""
        self.write()
        self._merge_parts()

    def _merge_parts(self) -> None:
        if parts := self._parts():
            _write(self.rows(), self.folder / _MERGED)
            for part in parts:  # parts that survive a crash repeat rows of the merged file, which reading drops
                part.unlink(missing_ok=True)


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a sweep's folder; FileNotFoundError if there is none, ValueError if it is damaged."""
    if not (folder / HEADER).is_file():
        raise FileNotFoundError(f"there is no sweep in {folder}: it has no {HEADER}")
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{folder / HEADER} is damaged ({error}): give out= another folder") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError(f"{folder / HEADER} is not of a sweep: give out= another folder")
    return header


def read_folder(folder: Path) -> pd.DataFrame:
    """All rows of a folder, in the order of the items; if an item was run again, its last row."""
    import pandas as pd

    files = [folder / _MERGED] if (folder / _MERGED).exists() else []
    files += sorted(folder.glob("part-*.parquet"))
    if not files:
        return pd.DataFrame({"row": [], "hash": [], "error": [], "seconds": []})
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    return frame.drop_duplicates("row", keep="last").sort_values("row", ignore_index=True)


def storable_table(rows: list[Any]) -> pd.DataFrame:
    """Rows as a DataFrame that Parquet can store: a column with numbers and strings becomes strings."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in frame.columns:
        if frame[name].dtype == object:
            kinds = {str if isinstance(value, str) else float for value in frame[name] if value is not None}
            if kinds == {str, float}:
                frame[name] = [None if value is None else str(value) for value in frame[name]]
    return frame


def _write(frame: pd.DataFrame, path: Path) -> None:
    with whole_file(path) as draft:
        storable_table(frame.to_dict("records")).to_parquet(draft, index=False)


def make_row(item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> dict[str, Any]:
    """One row of the table; ValueError if a measure has the name of another column."""
    if twice := [name for name in measured if name in item.labels or name in SWEEP_COLUMNS]:
        raise ValueError(
            f"{twice[0]!r} is both a measure and a column of the data, or a column that the sweep adds: rename one of "
            "them (measure= turns a result into a row)"
        )
    own = {"row": item.row, "hash": item.hash, "error": error or None, "seconds": seconds}
    return {name: _storable(value) for name, value in {**own, **item.labels, **measured}.items()}


def _storable(value: Any) -> Any:
    """A value that Parquet can store: lone surrogates are escaped, integers beyond 64 bits become strings."""
    if isinstance(value, str):
        return value.encode("utf8", "backslashreplace").decode("utf8")
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _check_same_sweep(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a folder; ValueError if it belongs to another sweep."""
    there = read_header(folder)
    old: Any = {name: there.get(name) for name in header}
    new: Any = dict(header)
    path: list[str] = []
    while old != new and isinstance(old, dict) and isinstance(new, dict):
        path.append(next(name for name in {**old, **new} if old.get(name) != new.get(name)))
        old, new = old.get(path[-1]), new.get(path[-1])
    if old != new:
        what = " of ".join(reversed(path[1:] or path))
        raise ValueError(
            f"{folder} holds a sweep with another {what} ({short(old)}, now {short(new)}): give another out="
        )
    return there
