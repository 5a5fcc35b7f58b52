"""The files of a sweep: a folder of Parquet files with one row per item, and a header that identifies the sweep.

Every file has a checksum, and every Parquet file says of which sweep it is. A damaged one is set aside, and its rows
are computed again. A sweep owns its folder while it runs.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp_widgets.atomic import made_folder, whole_file
from interp_widgets.checksums import ROOM, is_sealed, sealed
from interp_widgets.data.files import short
from interp_widgets.releases import refusal, stamped

from .identity import hash_of
from .items import SWEEP_COLUMNS, Item
from .owner import LOCK, owned_folder

if TYPE_CHECKING:
    import pandas as pd

HEADER = "sweep.json"
_FORMAT, _VERSION = "interp_widgets sweep", 1
_MERGED = "rows.parquet"
_PART = re.compile(r"part-(\d+)-\w+\.parquet")
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

    def owned(self, check: Callable[[], None]) -> AbstractContextManager[None]:
        """Nobody else has these rows."""
        return nullcontext()

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
        self._identity, self._sweep = dict(header), hash_of(header)
        own = {"format": _FORMAT, "version": _VERSION, "sweep": self._sweep}
        self._header = stamped({**own, **header, "provenance": dict(facts)})
        self._next = 0
        self._open()

    @contextmanager
    def owned(self, check: Callable[[], None]) -> Iterator[None]:
        """Context manager in which no other sweep writes into the folder; waits for an equal one that does.

        ``check`` is called while it waits. Raises ValueError if another sweep writes into it.
        """
        seen: list[dict[str, Any]] = []

        def wait() -> None:
            check()
            with suppress(FileNotFoundError, DamagedError):
                header = read_header(self.folder)
                if header in seen:  # not at the first look: the owner may be about to replace the header of another
                    _check_same_sweep(self.folder, header, self._identity)
                seen[:] = [header]

        with owned_folder(self.folder, wait):
            self._open()
            if not _files(self.folder):
                self._write_header()
            try:
                yield
            finally:
                if not _files(self.folder):  # without a row, the folder is as before
                    (self.folder / HEADER).unlink(missing_ok=True)

    def _open(self) -> None:
        """Read what the folder holds; ValueError unless these are rows of this sweep, or none."""
        files = _files(self.folder)
        if not files and any(_is_foreign(path) for path in self.folder.iterdir()):
            raise ValueError(f"{self.folder} holds other files: give out= a new folder, or that of the same sweep")
        if files:
            self._check_rows(files)
        numbers = [int(part[1]) for path in files if (part := _PART.fullmatch(path.name))]
        self._next = 1 + max(numbers, default=-1)

    def _check_rows(self, files: list[Path]) -> None:
        """Raise ValueError unless the files are of this sweep; a damaged header is written again if they say so."""
        try:
            header = read_header(self.folder)
        except (FileNotFoundError, DamagedError) as error:
            whole = [table for file in files if (table := _readable(file)) is not None]
            if not whole or any(table.attrs.get("sweep") != self._sweep for table in whole):
                raise ValueError(f"{error}; its rows are not known to be of this sweep: give another out=") from error
            self.columns = list(dict.fromkeys(name for table in whole for name in table.attrs.get("columns", [])))
            if (self.folder / HEADER).exists():
                _set_aside(self.folder / HEADER, str(error), "it is written again")
            self._write_header()
        else:
            _check_same_sweep(self.folder, header, self._identity)
            self.columns = header.get("columns", [])

    def _write_header(self) -> None:
        header = {**self._header, "columns": self.columns, "checksum": ROOM}
        _write(self.folder / HEADER, json.dumps(header, indent=1).encode())

    def rows(self) -> pd.DataFrame:
        """All rows on disk, in the order of the items; if an item was run again, its last row."""
        return read_folder(self.folder, sweep=self._sweep, set_aside=True)

    def finished(self) -> dict[int, str]:
        """Hash by number of the items that are done."""
        frame = self.rows()
        self._next = max(self._next, 1 + frame.attrs["last part"])  # a file may have been renamed
        good = frame[frame["error"].isna()]
        return dict(zip(good["row"].tolist(), good["hash"].tolist(), strict=True))

    def add(self, item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> None:
        """Add a row; it is written within a second, or with the next row after that."""
        self._pending.append(make_row(item, measured, error, seconds))
        new = [name for name in item.labels if name not in self.columns]
        if new or not (self.folder / HEADER).exists():
            self.columns += new
            self._write_header()
        if len(self._pending) >= _MAX_ROWS or time.monotonic() - self._written >= _MAX_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the pending rows."""
        self._written = time.monotonic()
        if self._pending:
            # a unique name, so that one sweep never replaces the rows of another
            name = f"part-{self._next:06d}-{secrets.token_hex(4)}.parquet"
            self._write(storable_table(self._pending), name, part=self._next)
            self._next, self._pending = self._next + 1, []
        if len(self._parts()) >= _MAX_PARTS:
            self._merge_parts()

    def finish(self) -> None:
        """Write the pending rows and merge all rows into one file."""
        self.write()
        self._merge_parts()

    def _parts(self) -> list[Path]:
        return [path for path in _files(self.folder) if path.name != _MERGED]

    def _merge_parts(self) -> None:
        if not self._parts():
            return
        rows = self.rows()
        if parts := self._parts():  # the damaged ones have other names now
            self._write(storable_table(rows.to_dict("records")), _MERGED, part=-1)
            for part in parts:  # parts that survive a crash repeat rows of the merged file, which reading drops
                part.unlink(missing_ok=True)

    def _write(self, frame: pd.DataFrame, name: str, *, part: int) -> None:
        """Write rows into a file, whose metadata say of which sweep it is and which part."""
        frame.attrs = {"sweep": self._sweep, "part": part, "columns": self.columns, "checksum": ROOM}
        _write(self.folder / name, frame.to_parquet(index=False))


class DamagedError(ValueError):
    """A file of a sweep does not hold what was written."""


def _files(folder: Path) -> list[Path]:
    """The files with rows: the merged one, then the parts by name."""
    parts = sorted(path for path in folder.glob("part-*.parquet") if _PART.fullmatch(path.name))
    # looked for last: parts that have just been merged into it are gone
    return [path for path in [folder / _MERGED] if path.exists()] + parts


def _is_foreign(path: Path) -> bool:
    """Whether a file is not one of a sweep; hidden files are drafts of a sweep that was killed, or of the system."""
    return not path.name.startswith((".", HEADER, _MERGED, "part-", LOCK))


def _write(path: Path, content: bytes) -> None:
    """Write a file with its checksum."""
    try:
        with whole_file(path) as draft:
            draft.write_bytes(sealed(content))
    except OSError as error:
        if str(path) in str(error):
            raise
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a sweep's folder; FileNotFoundError if there is none, ValueError if it is damaged."""
    path = folder / HEADER
    if not path.is_file():
        raise FileNotFoundError(f"there is no sweep in {folder}: it has no {HEADER}")
    content = _content(path)
    try:
        whole = is_sealed(content)
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error}): run the sweep again, or give out= another folder") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise DamagedError(f"{path} is not of a sweep: give out= another folder")
    if header.get("version", 1) != _VERSION:  # earlier releases wrote none
        other = f"{path} has version {short(header['version'])}, this program reads {_VERSION}: give another out="
        raise ValueError(refusal(folder, header, other))
    if not whole and "sweep" in header:  # earlier releases wrote neither
        raise DamagedError(f"{path} is damaged (it has no checksum): run the sweep again, or give out= another folder")
    if not _are_names(header.get("columns", [])) or not isinstance(header.get("provenance", {}), dict):
        raise DamagedError(
            f"{path} is damaged (it has other kinds of entries than a sweep writes): run the sweep again, or give out= "
            "another folder"
        )
    return header


def _content(path: Path) -> bytes:
    try:
        if path.is_fifo() or path.is_socket() or path.is_char_device():  # reading it may never end
            raise DamagedError("it is no regular file")
        return path.read_bytes()
    except FileNotFoundError as error:
        if path.is_symlink():  # to nothing; else it was there a moment ago, and has been merged into another
            raise DamagedError("it is a link to a file that is not there") from error
        raise
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be read: {error.strerror or error}") from error


def read_folder(folder: Path, *, sweep: str | None = None, set_aside: bool = False) -> pd.DataFrame:
    """All rows of a folder, in the order of the items; if an item was run again, its last row.

    A damaged file, or one of another sweep, is left out with a warning; with ``set_aside`` it gets another name. The
    table's attribute ``last part`` is the number of the latest part, -1 if there is none.
    """
    import pandas as pd

    while True:
        before = _stamp(folder / _MERGED)
        tables, faults = [], list[tuple[Path, str]]()
        try:
            for file in _files(folder):
                try:
                    tables.append(_read(file, sweep))
                except DamagedError as error:
                    faults.append((file, str(error)))
        except FileNotFoundError:  # merged meanwhile
            continue
        if _stamp(folder / _MERGED) == before:
            break
    for file, fault in faults:
        if set_aside:
            _set_aside(file, fault, "its rows are computed again")
        else:
            warnings.warn(f"{file} is damaged ({fault}): run the sweep again to compute its rows", stacklevel=2)
    if not tables:
        tables = [pd.DataFrame({"row": [], "hash": [], "error": [], "seconds": []})]
    tables.sort(key=_part_of)  # whatever the names of the files are by now
    frame = pd.concat(tables, ignore_index=True).drop_duplicates("row", keep="last")
    frame = frame.sort_values("row", ignore_index=True)
    frame.attrs = {"last part": _part_of(tables[-1])}
    return frame


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _part_of(table: pd.DataFrame) -> int:
    """The number of the part that the rows of a file were written as; -1 for merged rows and files of old releases."""
    return int(table.attrs.get("part", -1))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What differs when a file has been replaced; None where there is none."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _read(file: Path, sweep: str | None) -> pd.DataFrame:
    """The rows of a file; DamagedError unless they are whole and of the sweep."""
    import pandas as pd

    content = _content(file)
    try:
        whole = is_sealed(content)
        table = pd.read_parquet(io.BytesIO(content))
    except Exception as error:  # the reader of a damaged file may raise anything
        raise DamagedError(short(error)) from error
    if not whole and "sweep" in table.attrs:  # earlier releases wrote neither
        raise DamagedError("it has no checksum")
    if missing := [name for name in SWEEP_COLUMNS if name not in table]:
        raise DamagedError(f"it has no column {missing[0]!r}")
    if sweep is not None and table.attrs.get("sweep", sweep) != sweep:
        raise DamagedError("it is of another sweep")
    if fault := _fault_of(table):
        raise DamagedError(fault)
    return table


def _fault_of(table: pd.DataFrame) -> str:
    """What no sweep writes into a file, whose checksum may be that of another program; empty if there is nothing."""
    from pandas.api.types import is_integer_dtype, is_numeric_dtype

    if not _are_names(table.attrs.get("columns", [])):
        return f"its columns are {short(table.attrs['columns'])}"
    if type(table.attrs.get("part", -1)) is not int:
        return f"its number is {short(table.attrs['part'])}"
    if len(table) == 0:
        return ""
    if not is_integer_dtype(table["row"]) or table["row"].isna().any() or table["row"].min() < 0:
        return "its rows have other numbers than those of items"
    if not is_numeric_dtype(table["seconds"]):
        return "its seconds are no numbers"
    return "" if all(isinstance(one, str) for one in table["hash"]) else "its items have no hashes"


def _readable(file: Path) -> pd.DataFrame | None:
    """The rows of a file; None if it is damaged."""
    try:
        return _read(file, None)
    except DamagedError:
        return None


def _set_aside(file: Path, fault: str, then: str) -> None:
    """Rename a damaged file, with a warning."""
    aside = file.with_name(f"{file.name}.damaged-{secrets.token_hex(4)}")
    file.rename(aside)
    warnings.warn(f"{file} is damaged ({fault}): it is now named {aside.name}, and {then}", stacklevel=2)


def storable_table(rows: list[Any]) -> pd.DataFrame:
    """Rows as a DataFrame that Parquet can store: a column with numbers and strings becomes strings, one with bools and
    other numbers becomes numbers."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in frame.columns:
        if frame[name].dtype == object:
            values = [None if value is None or value != value else value for value in frame[name]]
            kinds = {type(value) for value in values} - {type(None)}
            if str in kinds:
                frame[name] = [None if value is None else str(value) for value in values]
            elif len(kinds) > 1:
                frame[name] = [float("nan") if value is None else float(value) for value in values]
    return frame


def name_clash(item: Item, measured: Mapping[str, Any]) -> str:
    """The error of a measure that has the name of another column; empty if none has."""
    twice = [name for name in measured if name in item.labels or name in SWEEP_COLUMNS]
    return (
        f"{twice[0]!r} is both a measure and a column of the data, or a column that the sweep adds: rename one of them "
        "(measure= turns a result into a row)"
        if twice
        else ""
    )


def make_row(item: Item, measured: Mapping[str, Any], error: str, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    own = {"row": item.row, "hash": item.hash, "error": error or None, "seconds": seconds}
    return {name: _storable(value) for name, value in {**own, **item.labels, **measured}.items()}


def _storable(value: Any) -> Any:
    """A value that Parquet can store: lone surrogates are escaped, integers beyond 64 bits become strings."""
    if isinstance(value, str):
        return value.encode("utf8", "backslashreplace").decode("utf8")
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _check_same_sweep(folder: Path, there: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Raise ValueError if the header of a folder is of another sweep."""
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
