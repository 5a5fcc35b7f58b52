"""Reads files of text, rows (CSV, JSON, JSON lines) and arrays (``.npz``, safetensors), none of which can run code.

A missing file raises FileNotFoundError, an unreadable one ValueError; messages name the file.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DEFLATE = 1032
"""Largest compression ratio of deflate."""
ROWS = (".json", ".jsonl", ".csv")
"""Suffixes of files of rows."""


def existing_file(path: str | os.PathLike[str], what: str) -> Path:
    """The path of an existing file, with ``~`` expanded; FileNotFoundError if there is none."""
    source = Path(os.path.expanduser(path))
    if not os.path.isfile(source):  # also where the name is too long to be one
        raise FileNotFoundError(f"there is no file of {what} at {source}: check the path")
    return source


def cache_folder(name: str) -> Path:
    """The user's cache folder for ``name``; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "interp_widgets" / name


def short(value: object) -> str:
    """A value from a file as text for a message, shortened if long.

    >>> short("a" * 300)[-5:]
    'aa...'
    """
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def decoded(content: str | bytes, name: object) -> str:
    """The text of a file's content, without a byte order mark; ValueError unless it is UTF-8."""
    try:
        return (content if isinstance(content, str) else content.decode("utf-8")).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 text ({error.reason} at byte {error.start}): save it in that encoding"
        ) from error


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a file."""
    source = existing_file(path, what)
    return decoded(source.read_bytes(), source)


def read_rows(path: str | os.PathLike[str], row: str, *, suffixes: Collection[str] = ROWS) -> list[Mapping[str, Any]]:
    """Rows of a file; see `parse_rows`."""
    source = existing_file(path, f"{row}s")
    return parse_rows(source.read_bytes(), str(source), row, suffixes=suffixes)


def parse_rows(
    content: str | bytes, name: str, row: str, *, suffixes: Collection[str] = ROWS
) -> list[Mapping[str, Any]]:
    """Rows of a file's content, at least one, each with named fields; the suffix of its name determines the format.

    ``row`` is the word for a row in messages, such as ``"case"``.

    >>> parse_rows('{"prompt": "Hi"}\\n{"prompt": "Ho"}', "cases.jsonl", "case")
    [{'prompt': 'Hi'}, {'prompt': 'Ho'}]
    """
    suffix = Path(name).suffix.lower()
    if suffix not in suffixes:
        *some, last = suffixes
        allowed = f"{', '.join(some)} or {last}" if some else last
        raise ValueError(f"cannot read {row}s from {name!r}: the name must end in {allowed}")
    text = decoded(content, name)
    if suffix == ".csv":
        rows: Any = _csv_rows(text, name, row)
    elif suffix == ".jsonl":
        # not splitlines, which also splits at a Unicode line separator inside a text
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        rows = [parse_json(line, f"line {number} of {name}") for number, line in lines]
    else:
        rows = parse_json(text, name)
    if not isinstance(rows, list) or not rows:
        kind = "an empty list" if rows == [] else f"a {type(rows).__name__}"
        raise ValueError(f"{name} must hold a list of at least one {row}, got {kind}")
    for index, entry in enumerate(rows):
        if not isinstance(entry, Mapping):
            raise ValueError(f"{row} {index} of {name} is not an object with named fields: {str(entry)[:60]}")
    return rows


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text; ValueError, with its name, if it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = ": one object per line belongs in a file named .jsonl" if "Extra data" in str(error) else ""
        raise ValueError(f"{name} is not valid JSON ({error}){lines}") from error


def _csv_rows(text: str, name: str, row: str) -> list[dict[str, str]]:
    """Rows of a CSV; an unquoted comma in a text or an unclosed quote raises an error.

    Fields are separated by tabs or semicolons if the headings hold one of these and no comma.
    """
    advice = 'put a text with commas or line breaks between double quotes, and write a quote in it twice ("")'
    mark = next((mark for mark in ",\t;" if mark in text.partition("\n")[0]), ",")
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
    rows: list[dict[str, str]] = []
    try:
        heading = [name.strip() for name in next(lines, [])]
        for line in filter(None, lines):
            if any(line[len(heading) :]):  # spreadsheets write empty fields at the end of a line
                raise ValueError(
                    f"{row} {len(rows)} of {name} has {len(line)} fields under {len(heading)} headings: {advice}"
                )
            rows.append(dict(zip(heading, line, strict=False)))
    except csv.Error as error:
        raise ValueError(f"{row} {len(rows)} of {name} is not valid CSV ({error}): {advice}") from error
    return rows


@functools.cache
def read_table(path: Path) -> Any:
    """The content of a JSON file of this package, with tuples instead of lists."""

    def frozen(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: frozen(part) for key, part in value.items()}
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return frozen(json.loads(path.read_text(encoding="utf8")))


def read_arrays(
    path: str | os.PathLike[str], what: str, *, names: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` archive by name, all of them or those of ``names`` that it has.

    The declared size of an array is checked against the archive before memory is allocated.
    """
    source = existing_file(path, what)
    start = f"{source} is not a readable .npz archive of {what}"
    if not zipfile.is_zipfile(source):
        raise ValueError(f"{start}: it is not an archive")
    try:
        with zipfile.ZipFile(source) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: info for name, info in members.items() if names is None or name in names}
            for name, info in wanted.items():
                _check_member(archive, info, name)
        with np.load(source, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in wanted}
    # an archive of another program may be encrypted (RuntimeError) or compressed in another way
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{start} ({short(error)})") from error


def _check_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> None:
    """ValueError unless a member of an archive holds the array of numbers or texts that its header declares."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    most = {zipfile.ZIP_STORED: info.compress_size, zipfile.ZIP_DEFLATED: _DEFLATE * info.compress_size}
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise ValueError(f"{short(name)} is an array of an unknown format")
        shape, _, dtype = readers[version](file)
        if dtype.kind not in "fiubUS":
            raise ValueError(f"{short(name)} holds {short(dtype)}, no numbers")
        size = file.tell() + math.prod(shape) * dtype.itemsize
        if any(length < 0 for length in shape) or size != info.file_size or size > most.get(info.compress_type, 0):
            raise ValueError(f"{short(name)} does not hold the numbers that it promises")


def read_tensors(path: str | os.PathLike[str], what: str) -> tuple[dict[str, Any], dict[str, str]]:
    """PyTorch tensors of a safetensors file by name, on the CPU, and the file's metadata."""
    from safetensors import SafetensorError, safe_open

    source = existing_file(path, what)
    try:
        with safe_open(source, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{source} is not a safetensors file ({error})") from error
