"""Reads files of text, rows (CSV, JSON, JSON lines) and arrays (``.npz``, safetensors), none of which can run code.

A missing file raises FileNotFoundError, one that the system does not let us read OSError, and one whose content is not
what it should be ValueError; messages name the file. A line ends at ``\\n``, ``\\r\\n`` or ``\\r``, as in Python's
`open`, and at no other character.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
import os
import re
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from interp_widgets.atomic import named_path

_DEFLATE = 1032
"""Largest compression ratio of deflate."""
_RATIO = 100
"""Largest ratio of an archive that unpacks to more than `_FREE_BYTES`."""
_FREE_BYTES = 200_000_000
ROWS = (".json", ".jsonl", ".csv")
"""Suffixes of files of rows."""
_MOST_BYTES = 2_000_000_000
"""Size up to which a file of text or rows is read into memory."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""What a text of JSON has where it may hold one half of a surrogate pair."""
_csv_limit = threading.Lock()


def existing_file(path: str | os.PathLike[str], what: str) -> Path:
    """The path of an existing file, with ``~`` expanded; FileNotFoundError if there is none."""
    source = named_path(path, f"the file of {what}")
    if not os.path.isfile(source):  # also where the name is too long to be one
        other = " (it is a folder)" if os.path.isdir(source) else " (it is no regular file)"
        raise FileNotFoundError(
            f"there is no file of {what} at {source}: check the path{other if os.path.exists(source) else ''}"
        )
    return source


@contextmanager
def opened(source: Path) -> Iterator[IO[bytes]]:
    """A file opened to be read; an OSError, also of the block, names the file and says why it cannot be read."""
    try:
        with source.open("rb") as file:
            yield file
    except OSError as error:
        if error.errno is None:  # not of the system: a library has no better class for a damaged file
            raise
        raise OSError(error.errno, f"{source} cannot be read: {error.strerror}") from error


def read_content(path: str | os.PathLike[str], what: str) -> bytes:
    """The bytes of a file; if its name ends in ``.gz``, unpacked."""
    source = existing_file(path, what)
    with opened(source) as file:
        if source.suffix.lower() != ".gz":
            return _whole(file, source)
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _whole(unpacked, source)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{source} cannot be unpacked by gzip ({error}): copy the file again") from error


def _whole(file: IO[bytes] | gzip.GzipFile, source: Path) -> bytes:
    content = io.BytesIO()
    while part := file.read(1 << 20):
        if content.tell() + len(part) > _MOST_BYTES:
            raise ValueError(f"{source} holds more than {_MOST_BYTES:,} bytes: split it into smaller files")
        content.write(part)
    return content.getvalue()


def lines_of(text: str) -> list[str]:
    """The lines of a text; str.splitlines would also split at characters that may be inside a line, such as U+2028.

    >>> lines_of("one\\r\\ntwo \\u2028 and\\x0c more")
    ['one', 'two \\u2028 and\\x0c more']
    """
    return _LINE_END.split(text)


def cache_folder(name: str) -> Path:
    """The user's cache folder for ``name``; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "interp_widgets" / name


def short(value: object) -> str:
    """A value from a file as text for a message, shortened if long.

    >>> short("a" * 300)[-5:]
    'aa...'
    """
    text = (
        str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    )  # one half of a surrogate pair cannot be shown
    return text if len(text) <= 200 else text[:197] + "..."


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: one half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def decoded(content: str | bytes, name: object) -> str:
    """The text of a file's content, without a byte order mark; ValueError unless it is UTF-8 without NUL."""
    try:
        text = (content if isinstance(content, str) else content.decode("utf-8")).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 text ({error.reason} at byte {error.start}): save it in that encoding"
        ) from error
    if (position := text.find("\0")) >= 0:
        raise ValueError(
            f"{name} is not UTF-8 text (character {position} is NUL, as in UTF-16): save it in that encoding"
        )
    return text


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a file."""
    return decoded(read_content(path, what), path)


def read_rows(path: str | os.PathLike[str], row: str, *, suffixes: Collection[str] = ROWS) -> list[Mapping[str, Any]]:
    """Rows of a file, which may be packed by gzip; see `parse_rows`."""
    content = read_content(path, f"{row}s")
    return parse_rows(content, str(path), row, suffixes=suffixes)


def parse_rows(
    content: str | bytes, name: str, row: str, *, suffixes: Collection[str] = ROWS
) -> list[Mapping[str, Any]]:
    """Rows of a file's content, at least one, each with named fields; the suffix of its name determines the format.

    ``row`` is the word for a row in messages, such as ``"case"``.

    >>> parse_rows('{"prompt": "Hi"}\\n{"prompt": "Ho"}', "cases.jsonl", "case")
    [{'prompt': 'Hi'}, {'prompt': 'Ho'}]
    """
    suffix = Path(re.sub(r"\.gz$", "", name, flags=re.IGNORECASE)).suffix.lower()
    if suffix not in suffixes:
        *some, last = suffixes
        allowed = f"{', '.join(some)} or {last}" if some else last
        raise ValueError(f"cannot read {row}s from {name!r}: the name must end in {allowed}")
    text = decoded(content, name)
    if suffix == ".csv":
        rows: Any = _csv_rows(text, name, row)
    elif suffix == ".jsonl":
        lines = [(number, line) for number, line in enumerate(lines_of(text), start=1) if line.strip()]
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


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON: write null")


def _different_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has two fields {short(repr(twice))}")
    return entries


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text; ValueError, with its name, if it is not valid, or holds what no text can show."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_different_names)
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid JSON (it has one half of a surrogate pair): remove it") from error
    except (ValueError, RecursionError) as error:
        lines = ": one object per line belongs in a file named .jsonl" if "Extra data" in str(error) else ""
        raise ValueError(f"{name} is not valid JSON ({error}){lines}") from error


def _csv_rows(text: str, name: str, row: str) -> list[dict[str, str]]:
    """Rows of a CSV; an unquoted comma in a text or an unclosed quote raises an error.

    Fields are separated by tabs or semicolons if the headings hold one of these and no comma.
    """
    advice = 'put a text with commas or line breaks between double quotes, and write a quote in it twice ("")'
    first = _LINE_END.split(text, maxsplit=1)[0]
    mark = next((mark for mark in ",\t;" if mark in first), ",")
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
    rows: list[dict[str, str]] = []
    with _fields_up_to(len(text)):
        try:
            heading = [name.strip() for name in next(lines, [])]
            if twice := [name for name in heading if name and heading.count(name) > 1]:
                raise ValueError(f"{name} has two columns {short(repr(twice[0]))}: rename one of them")
            for line in filter(None, lines):
                if any(line[len(heading) :]):  # spreadsheets write empty fields at the end of a line
                    raise ValueError(
                        f"{row} {len(rows)} of {name} has {len(line)} fields under {len(heading)} headings: {advice}"
                    )
                rows.append(dict(zip(heading, line, strict=False)))
        except csv.Error as error:
            raise ValueError(f"{row} {len(rows)} of {name} is not valid CSV ({error}): {advice}") from error
    return rows


@contextmanager
def _fields_up_to(length: int) -> Iterator[None]:
    """Python's csv module reads fields of this length; its limit, 131,072 by default, is one for the whole process."""
    with _csv_limit:
        limit = csv.field_size_limit()
        csv.field_size_limit(max(limit, length))
        try:
            yield
        finally:
            csv.field_size_limit(limit)


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

    The declared size of an array is checked against the archive before memory is allocated, that of all of them
    against the file; see `may_unpack`.
    """
    source = existing_file(path, what)
    start = f"{source} is not a readable .npz archive of {what}"
    with opened(source) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{start}: it is not an archive")
    try:
        with zipfile.ZipFile(source) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ValueError("two of its arrays have the same name")
            wanted = {name: info for name, info in members.items() if names is None or name in names}
            size = sum(_checked_size(archive, info, name) for name, info in wanted.items())
            if not may_unpack(size, source):
                raise ValueError(f"it would unpack to {size:,} bytes, more than {_RATIO} times its size")
            return {name: _array(archive, info) for name, info in wanted.items()}
    # an archive of another program may be encrypted (RuntimeError)
    except (
        zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, RuntimeError, MemoryError
    ) as error:  # fmt: skip
        raise ValueError(f"{start} ({short(error)})") from error


def may_unpack(size: int, source: Path, *, free: int = _FREE_BYTES) -> bool:
    """Whether a file may unpack to so many bytes: `free` ones, and beyond that a multiple of its size that hardly
    anything but a constant exceeds. A small file must not fill the memory."""
    return size <= max(free, _RATIO * source.stat().st_size)


def _checked_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> int:
    """Bytes of the array in a member of an archive; ValueError unless it holds the numbers or texts that its header
    declares."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    most = {zipfile.ZIP_STORED: info.compress_size, zipfile.ZIP_DEFLATED: _DEFLATE * info.compress_size}
    if info.compress_type not in most:
        raise ValueError(f"{short(name)} is compressed in a way that NumPy does not use")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise ValueError(f"{short(name)} is an array of an unknown format")
        try:
            shape, _, dtype = readers[version](file)
        # NumPy reads the header as Python would
        except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
            raise ValueError(f"the header of {short(name)} is damaged") from error
        if dtype.kind not in "fiubUS":
            raise ValueError(f"{short(name)} holds {short(dtype)}, no numbers")
        count, size = math.prod(shape), math.prod(shape) * dtype.itemsize
        whole = file.tell() + size
        endless = count > size  # texts of no characters, any number of them
        if (
            any(length < 0 for length in shape)
            or endless
            or whole != info.file_size
            or whole > most[info.compress_type]
        ):
            raise ValueError(f"{short(name)} does not hold the numbers that it promises")
        return size


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """The array of a member that has been checked."""
    with archive.open(info) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def read_tensors(path: str | os.PathLike[str], what: str) -> tuple[dict[str, Any], dict[str, str]]:
    """PyTorch tensors of a safetensors file by name, on the CPU, and the file's metadata."""
    from safetensors import SafetensorError, safe_open

    source = existing_file(path, what)
    try:
        with opened(source), safe_open(source, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{source} is not a safetensors file ({error})") from error
