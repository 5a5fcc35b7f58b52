"""What a sweep writes as it goes: a folder of Parquet files with one row per item, and a header that says of what."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp_widgets.atomic import made_folder, whole_file
from interp_widgets.data.files import short

from .items import OWN, Item

if TYPE_CHECKING:
    import pandas as pd

HEADER = "sweep.json"
_FORMAT = "interp_widgets sweep"
_WHOLE = "rows.parquet"
_PARTS = 100
"""Files of new rows, at most, before they become one with the old rows."""
_SECONDS = 1.0
"""Rows wait no longer for being written."""
_ROWS = 1000


class Memory:
    """Rows that are not written."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        """The data set's own columns."""
        self._rows: list[dict[str, Any]] = []

    def finished(self) -> dict[int, str]:
        """Hash by number of the items that are done."""
        return {}

    def add(self, item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> None:
        """One more row."""
        self._rows.append(record_of(item, measured, error, seconds))
        self.columns += [name for name in item.labels if name not in self.columns]

    def write(self) -> None:
        """Nothing is written."""

    def finish(self) -> None:
        """Nothing is written."""

    def rows(self) -> pd.DataFrame:
        """All rows, by their numbers."""
        return table_of(self._rows).sort_values("row", ignore_index=True)


class Folder:
    """A folder of rows. Every file is written whole or not at all, so that what is in it can always be read."""

    def __init__(self, folder: Path, header: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.folder, self.columns = made_folder(folder, "out"), list[str]()
        self._waiting: list[dict[str, Any]] = []
        self._written = time.monotonic()
        self._header = {"format": _FORMAT, **header, "provenance": dict(facts)}
        if (folder / HEADER).exists():
            self.columns = _same_sweep(folder, header).get("columns", [])
        elif any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files: give out= a folder that is new, or that of the same sweep")
        self._next = 1 + max((int(path.stem.split("-")[1]) for path in self._parts()), default=-1)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def rows(self) -> pd.DataFrame:
        """All rows that are written, by their numbers; of an item that was done again the last."""
        return read_folder(self.folder)

    def finished(self) -> dict[int, str]:
        """Hash by number of the items that are done."""
        frame = self.rows()
        good = frame[frame["error"].isna()]
        return dict(zip(good["row"].tolist(), good["hash"].tolist(), strict=True))

    def add(self, item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> None:
        """One more row; on disk within a second, or with the next one after that."""
        self._waiting.append(record_of(item, measured, error, seconds))
        new = [name for name in item.labels if name not in self.columns]
        if new or not (self.folder / HEADER).exists():
            self.columns += new
            with whole_file(self.folder / HEADER) as draft:
                draft.write_text(json.dumps({**self._header, "columns": self.columns}, indent=1), encoding="utf8")
        if len(self._waiting) >= _ROWS or time.monotonic() - self._written >= _SECONDS:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        self._written = time.monotonic()
        if self._waiting:
            # a name of its own, so that another process at the same sweep loses nothing by this one
            _write(table_of(self._waiting), self.folder / f"part-{self._next:06d}-{secrets.token_hex(4)}.parquet")
            self._next, self._waiting = self._next + 1, []
        if len(self._parts()) >= _PARTS:
            self._join()

    def finish(self) -> None:
        """Write what waits, and make one file of all rows."""
        self.write()
        self._join()

    def _join(self) -> None:
        if parts := self._parts():
            _write(self.rows(), self.folder / _WHOLE)
            for part in parts:  # what a crash leaves of them is read again, to the same rows
                part.unlink(missing_ok=True)


def read_header(folder: Path) -> dict[str, Any]:
    """What a folder says of its sweep; FileNotFoundError where it holds none, ValueError for a damaged one."""
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
    """All rows of a folder, by their numbers; of an item that was done again the last."""
    import pandas as pd

    files = [folder / _WHOLE] if (folder / _WHOLE).exists() else []
    files += sorted(folder.glob("part-*.parquet"))
    if not files:
        return pd.DataFrame({"row": [], "hash": [], "error": [], "seconds": []})
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    return frame.drop_duplicates("row", keep="last").sort_values("row", ignore_index=True)


def table_of(rows: list[Any]) -> pd.DataFrame:
    """Rows as a table that Parquet can hold: what is a number here and a text there is text."""
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
        table_of(frame.to_dict("records")).to_parquet(draft, index=False)


def record_of(item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> dict[str, Any]:
    """One row as it is written; ValueError for a name that stands for two columns."""
    if twice := [name for name in measured if name in item.labels or name in OWN]:
        raise ValueError(
            f"{twice[0]!r} is measured and is a column of the data too, or one that the sweep writes itself: give it "
            "another name in one of them (measure= makes the row of a result)"
        )
    own = {"row": item.row, "hash": item.hash, "error": error or None, "seconds": seconds}
    return {name: _storable(value) for name, value in {**own, **item.labels, **measured}.items()}


def _storable(value: Any) -> Any:
    """A value that Parquet holds: text without halves of characters, and integers of 64 bits, else as text."""
    if isinstance(value, str):
        return value.encode("utf8", "backslashreplace").decode("utf8")
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _same_sweep(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a folder; ValueError where it is of another sweep."""
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
