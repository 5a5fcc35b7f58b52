"""`Result`, the return type of every analysis: a frozen dataclass of numbers and strings that saves to one file.

A result is declared with :func:`record`, derives from :class:`Result`, and holds NumPy arrays on the CPU, token strings
and plain settings, never a model. :func:`with_axes` declares the axes of a field; its shape is checked against them.
Files are ``.npz`` archives of the arrays plus one JSON text; nothing in them is ever unpickled.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import xxhash
from numpy.typing import NDArray

from interp_widgets.atomic import named_path, whole_file
from interp_widgets.data.files import may_unpack, read_arrays, short
from interp_widgets.releases import refusal, stamped
from interp_widgets.renamed import OLD_CLASSES, class_in_files

if TYPE_CHECKING:
    import pandas as pd

Scalar = str | int | float | bool | None
"""A setting that JSON can hold."""

_HEADER = "header.json"
_FORMAT = "interp_widgets result"
_FREE_HEADER = 4_000_000
"""Bytes of a header of a file of any size; as Python's objects it takes up to thirty times as many."""
_DEEPEST = 100
"""Levels of lists, mappings and records in each other that a file may have."""
_KINDS = {"Floats": ("float", "f"), "Ints": ("int", "iu"), "Bools": ("bool", "b")}
"""Name of an array type in `_core.arrays`: name of its values and the allowed NumPy dtype kinds."""
_PLAIN_NAME = re.compile(r"(?!header\.json$)[A-Za-z0-9_.-]{1,200}")
_RECORDS: dict[str, type[Record]] = {}

_version = functools.cache(metadata.version)  # reads a file each time

T = TypeVar("T")
R = TypeVar("R", bound="Result")  # not typing.Self: run-time type checkers refuse it on a method alone


def by_itself() -> Any:
    """A field of a record that is read from a file by itself: if it cannot be read, the field holds an `Unreadable`
    and the rest of the record is as it was saved. In a mapping, each value is read by itself."""
    return field(metadata={"by itself": True})


def with_axes(
    *names: str | int, default: Any = MISSING, nan: bool = True, saved_as: str = "", kw_only: bool = False
) -> Any:
    """A field of a record that is an array (``Floats``, ``Ints`` or ``Bools``) or a ``Sequence``, with these axes.

    All axes of one name have one size; a number is the size itself. With ``nan=False`` every number must be finite. An
    array is kept as a read-only NumPy array, a sequence as a tuple. None is allowed where it is the default. Files have
    the field under the name `saved_as`, which it had before, where that is given.

    >>> @record
    ... class Scores(Record):
    ...     tokens: Sequence[str] = with_axes("positions")
    ...     scores: Floats = with_axes("layers", "positions")
    >>> Scores(["a", "b"], [[0.5, 1.0], [0.0, 2.0], [3.0, 4.0]]).scores.shape
    (3, 2)
    >>> Scores(["a", "b"], [[0.5], [1.0], [2.0]])
    Traceback (most recent call last):
    ValueError: Scores.scores must have shape (any, 2), got (3, 1)
    """
    return field(default=default, kw_only=kw_only, metadata={"axes": names, "nan": nan, "saved as": saved_as})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field, with_axes, by_itself))
def record(cls: type[T]) -> type[T]:
    """Declare a frozen dataclass that is compared by identity (see :meth:`Record.equals`) and printed in one line.

    >>> @record
    ... class Pair(Record):
    ...     left: int
    ...     right: int
    >>> Pair(1, 2)
    Pair(left=1, right=2)
    """
    return dataclass(frozen=True, eq=False, repr=False)(cls)


class Record:
    """A frozen dataclass that can be stored inside a :class:`Result`; derived classes are known by their name."""

    VERSION: ClassVar[int] = 1
    """Version of the class's fields; raise it when a field changes its meaning, so that old files are refused."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _RECORDS[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Check the axes that fields declare; raises ValueError naming class and field."""
        declared = [item for item in fields(self) if "axes" in item.metadata]  # type: ignore[arg-type]
        sizes: dict[str, int] = {}
        # sequences first: their lengths then set the sizes, so that the error names the array
        for item in sorted(declared, key=lambda item: not str(item.type).startswith("Sequence")):
            value, names = getattr(self, item.name), item.metadata["axes"]
            if value is None and item.default is None:
                continue
            label, expected = f"{type(self).__name__}.{item.name}", [sizes.get(name, name) for name in names]
            if str(item.type).startswith("Sequence"):
                value = _nested_tuples(value, expected, label)
                shape: tuple[int, ...] = (len(value),)
            else:
                value = _checked_array(value, expected, str(item.type).split(" ")[0], item.metadata["nan"], label)
                shape = value.shape
            sizes |= {name: size for name, size in zip(names, shape, strict=False) if isinstance(name, str)}
            object.__setattr__(self, item.name, value)

    @classmethod
    def check_unread(cls, values: Mapping[str, Any]) -> None:
        """Check the fields of a record as a file holds them, before any is read; raises ValueError with a clause."""

    def equals(self, other: object) -> bool:
        """Whether `other` is of the same class and every field has the same value (NaN counts as equal to NaN)."""
        return _same(self, other)

    def __repr__(self) -> str:
        own_first = sorted(fields(self), key=lambda item: bool(item.kw_only))  # type: ignore[arg-type]
        shown = [f"{item.name}={_brief(getattr(self, item.name))}" for item in own_first]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False)
class Unreadable:
    """What a file held where a part of it cannot be read; see `by_itself`. No file can hold one."""

    reason: str
    """Why, as a clause."""
    again: Callable[[], Any] = field(repr=False)
    """Reads the part once more: it may be of a class that has been imported since."""


@record
class Result(Record):
    """Base of all results: whether it is complete, its provenance, and saving to one file.

    Example:
        >>> import tempfile
        >>> path = HeadMap([[0.1, 0.5], [0.2, 0.9]], unit="nats").save(tempfile.mkdtemp() + "/entropy")
        >>> Result.load(path)
        HeadMap(values=<float64 (2, 2)>, unit='nats', layers=None, partial=False, provenance={})
    """

    partial: bool = field(default=False, kw_only=True)
    """Whether the analysis is incomplete; numbers not computed yet are NaN."""

    provenance: Mapping[str, Scalar] = field(default_factory=dict, kw_only=True)
    """Everything needed to repeat the result: model and weight hash, options, seed, versions."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to one ``.npz`` file (the ending is added where missing) and return its path.

        An older file of that name is replaced only once the new one is complete.
        """
        target = _npz_path(path)
        arrays: dict[str, NDArray[Any]] = {}
        body = _encode(self, "", arrays)
        head = {"format": _FORMAT, "class": body["class"], "version": self.VERSION, "fields": body["fields"]}
        text = np.frombuffer(json.dumps(stamped(head)).encode("ascii"), dtype=np.uint8)
        with whole_file(target) as draft:
            np.savez_compressed(draft, allow_pickle=False, **{_HEADER: text}, **arrays)
            size = text.nbytes + sum(array.nbytes for array in arrays.values())
            if not (may_unpack(size, draft) and may_unpack(text.nbytes, draft, free=_FREE_HEADER)):
                np.savez(draft, allow_pickle=False, **{_HEADER: text}, **arrays)  # else `load` would not read it
        return target

    @classmethod
    def load(cls: type[R], path: str | os.PathLike[str]) -> R:
        """Read a result that :meth:`save` wrote. ``Result.load`` reads any class that has been imported.

        Raises FileNotFoundError, or ValueError when the file is no result, or one of another class or version, or of a
        newer release of this package that has changed the class.
        """
        source = named_path(path, "path")
        source = source if os.path.exists(source) else _npz_path(source)
        if not os.path.isfile(source):
            raise FileNotFoundError(f"there is no result file at {source}: give a path that save() returned")
        head, arrays = _read(source)
        try:
            kind = _wanted_class(cls, head, source)
            result: R = _read_as(kind, head, arrays, source)
        except ValueError as error:
            raise ValueError(refusal(source, head, str(error))) from error
        return result

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The main numbers and texts by name: one case's row in a table over many (see `sweep`).

        Raises TypeError for a result without such a row.
        """
        raise TypeError(
            f"{type(self).__name__} has no measures for a row of a table: give measure= a function that makes a "
            "mapping of name to number of it"
        )

    def to_frame(self) -> pd.DataFrame:
        """The numbers as a pandas table; raises TypeError where a result has no table form."""
        raise TypeError(f"{type(self).__name__} has no table form; its fields hold the arrays")


@record
class Results(Result):
    """Several named results in one file, such as those of two models.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> both = Results(["A", "B"], [logit_lens(base, "Paris is in"), logit_lens(tuned, "Paris is in")])
        >>> with TemporaryDirectory() as folder:
        ...     again = Results.load(both.save(Path(folder) / "both.npz"))
        >>> again.equals(both), again["B"].tokens
        (True, ('P', 'aris', ' is', ' in'))
    """

    names: Sequence[str] = with_axes("results")
    """Name of each result."""

    results: Sequence[Result] = with_axes("results")
    """The results."""

    def __getitem__(self, name: str) -> Any:
        """The result of that name."""
        if name not in self.names:
            raise KeyError(f"there is no result {name!r}: {', '.join(self.names)}")
        return self.results[self.names.index(name)]


def provenance(model: Mapping[str, Scalar] | None = None, **options: Any) -> dict[str, Scalar]:
    """Collect everything needed to repeat a result: the model's provenance, the options, and versions.

    Options that are not plain JSON values are stored as text.

    >>> provenance({"model": "demo"}, steps=32)["steps"]
    32
    """
    facts: dict[str, Scalar] = dict(model or {})
    facts |= {name: value if isinstance(value, Scalar) else str(value) for name, value in options.items()}
    facts |= {"python": platform.python_version(), "numpy": np.__version__}
    for package in ("interp_widgets", "torch", "transformer-lens", "transformers"):
        try:
            facts[package] = _version(package)
        except metadata.PackageNotFoundError:  # analyses of ready arrays run without the model packages
            continue
    return facts


def _read(source: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a result file."""
    arrays = read_arrays(source, "a result")
    if _HEADER not in arrays:
        raise ValueError(f"{source} was not written by a result's save()")
    text = arrays.pop(_HEADER)
    if not may_unpack(text.nbytes, source, free=_FREE_HEADER):
        raise ValueError(f"{source} cannot be read as a result: its header would unpack to {text.nbytes:,} bytes")
    try:
        head = json.loads(text.tobytes())
    except RecursionError as error:
        raise ValueError(f"{source} cannot be read as a result: its header is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{source} is not a readable .npz archive of a result (its header is damaged)") from error
    if not isinstance(head, dict):
        raise ValueError(f"{source} was not written by a result's save()")
    return head, arrays


def _npz_path(path: str | os.PathLike[str]) -> Path:
    path = named_path(path, "path")
    if not path.name:
        raise ValueError(f"path must name a file of results, got {str(path)!r}")
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


def _wanted_class(cls: type[Any], head: Mapping[str, Any], source: Path) -> type[Any]:
    """The class to build from a file's header, when `cls` is requested."""
    version, name = head.get("version"), _name_now(head.get("class"))
    if head.get("format") != _FORMAT:
        raise ValueError(f"{source} was not written by a result's save()")
    kind = _RECORDS.get(str(name)) if cls is Result else cls
    if kind is None or not issubclass(kind, Result):
        raise ValueError(f"{source} holds a {short(name)}; import that class and call {short(name)}.load(path)")
    if kind.__name__ != name:
        raise ValueError(f"{source} holds a {short(name)}, not a {cls.__name__}: use {short(name)}.load(path)")
    if version != kind.VERSION:
        raise ValueError(
            f"{source} has version {short(version)} of {name}, this program reads version {kind.VERSION}: compute it "
            "again"
        )
    return kind


def _read_as(kind: type[Any], head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], source: Path) -> Any:
    """The result of a file's header and arrays."""
    try:
        return _read_record(kind, head["fields"], arrays, 0)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{source} cannot be read as a {kind.__name__}: its header is damaged, compute it again"
        ) from error
    except ValueError as error:
        raise ValueError(f"{source} cannot be read as a {kind.__name__}: {error}") from error


def _name_now(name: Any) -> Any:
    """The name today of the class that a file names."""
    return OLD_CLASSES.get(name, name) if isinstance(name, str) else name


def _encode(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """Turn a field's value into JSON, putting arrays into `arrays` under their path in the record, or under a number
    where an archive cannot hold that name or has it already: keys of mappings may be any texts."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise TypeError(f"{path} holds an array of {value.dtype}, a result may hold float, int or bool arrays")
        name = path if _PLAIN_NAME.fullmatch(path) and path not in arrays else f"array {len(arrays)}"
        arrays[name] = value
        return {"kind": "array", "name": name}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Scalar):
        return value
    if isinstance(value, Record):
        inner = {
            saved: _encode(getattr(value, name), f"{path}.{saved}".strip("."), arrays)
            for saved, name in _names_in_files(type(value)).items()
        }
        name = class_in_files(type(value).__name__)
        return {"kind": "record", "class": name, "version": value.VERSION, "fields": inner}
    if isinstance(value, tuple | list):
        return [_encode(part, f"{path}.{i}", arrays) for i, part in enumerate(value)]
    if isinstance(value, Mapping):
        items = {str(key): _encode(part, f"{path}.{key}", arrays) for key, part in value.items()}
        return {"kind": "mapping", "items": items}
    raise TypeError(f"{path} holds a {type(value).__name__}, a result may hold arrays, text, numbers and records only")


def _decode(value: Any, arrays: Mapping[str, NDArray[Any]], depth: int) -> Any:
    """Undo :func:`_encode`, `depth` levels inside a file; lists come back as tuples."""
    if isinstance(value, list):
        inner = _deeper(depth)
        return tuple(_decode(part, arrays, inner) for part in value)
    if not isinstance(value, dict):
        return value
    if value["kind"] == "array":
        return arrays[value["name"]]
    if value["kind"] == "mapping":
        inner = _deeper(depth)
        return {key: _decode(part, arrays, inner) for key, part in value["items"].items()}
    if value["kind"] != "record" or not isinstance(value["class"], str):
        raise ValueError("it is damaged")
    kind, version = _RECORDS.get(_name_now(value["class"])), value.get("version", 1)  # earlier releases wrote none
    if kind is None:
        raise ValueError(f"it holds a part of the unknown class {short(value['class'])}: import that class first")
    if version != kind.VERSION:
        raise ValueError(
            f"it holds version {short(version)} of {kind.__name__}, this program reads version {kind.VERSION}: "
            "compute it again"
        )
    return _read_record(kind, value["fields"], arrays, depth)


def digest_of(value: Any) -> str:
    """A hash of all that a file holds of a value: of its numbers with their shapes and types, and of everything else.

    The same for a value and for what is read of it from a file; TypeError for a value that no file can hold.

    >>> digest_of({"a": (1, 2)}) == digest_of({"a": [1, 2]}), digest_of(np.ones(2)) == digest_of(np.ones((2, 1)))
    (True, False)
    """
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps(_encode(value, "", arrays), sort_keys=True)
    digest = xxhash.xxh3_128(text.encode("ascii"))
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode("utf8", "surrogatepass"))
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _names_in_files(kind: type[Any]) -> dict[str, str]:
    """The names of a record's fields, by those that they have in files."""
    return {item.metadata.get("saved as") or item.name: item.name for item in fields(kind)}


def _deeper(depth: int) -> int:
    """The next level of a file; ValueError below the last one, long before Python's own limit for whoever reads it."""
    if depth >= _DEEPEST:
        raise ValueError("it is nested too deeply")
    return depth + 1


def _read_record(kind: type[Any], values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], depth: int) -> Any:
    """A record from the JSON of its fields."""
    kind.check_unread(values)
    alone, inner = {item.name for item in fields(kind) if "by itself" in item.metadata}, _deeper(depth)
    named = _names_in_files(kind)
    read = {
        named.get(saved, saved): (_decode_alone if saved in alone else _decode)(part, arrays, inner)
        for saved, part in values.items()
    }
    return built(kind, read)


def _decode_alone(value: Any, arrays: Mapping[str, NDArray[Any]], depth: int) -> Any:
    """The value of a field that is read `by_itself`."""
    again = functools.partial(_decode_alone, value, arrays, depth)
    try:
        if isinstance(value, dict) and value.get("kind") == "mapping" and isinstance(value.get("items"), dict):
            inner = _deeper(depth)
            return {key: _decode_alone(part, arrays, inner) for key, part in value["items"].items()}
        return _decode(value, arrays, depth)
    except (AttributeError, KeyError, TypeError):
        return Unreadable("it is damaged", again)
    except ValueError as error:
        return Unreadable(str(error), again)


def built(kind: type[Any], values: dict[str, Any]) -> Any:
    """A record, or another dataclass, of values read from a file, where JSON has turned integer keys of mappings into
    text; ValueError unless each has the type of its field."""
    types = _types(kind)  # type: ignore[arg-type]
    if unknown := set(values) - set(types):
        raise ValueError(f"{kind.__name__} does not know the fields {short(', '.join(sorted(unknown)))}")
    for name, value in values.items():
        if get_origin(types[name]) is Mapping and get_args(types[name])[0] is int:
            values[name] = {int(key): part for key, part in value.items()}
        if not _fits(values[name], types[name]):
            raise ValueError(f"{kind.__name__}.{name} has the wrong type")
    return kind(**values)


@functools.cache
def _types(kind: type[Any]) -> dict[str, Any]:
    """The types of a record's fields."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from a file has its field's type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is Sequence:
        return isinstance(value, tuple) and all(_fits(part, inner[0]) for part in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, NoneType if hint is None else origin or hint)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Record):
        return type(first) is type(second) and all(
            _same(getattr(first, item.name), getattr(second, item.name))
            for item in fields(first)  # type: ignore[arg-type]
        )
    if isinstance(first, np.ndarray):
        if not isinstance(second, np.ndarray) or first.shape != second.shape or first.dtype != second.dtype:
            return False
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    if isinstance(first, tuple | list):
        return isinstance(second, tuple | list) and len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, Mapping):
        return (
            isinstance(second, Mapping)
            and first.keys() == second.keys()
            and all(_same(first[k], second[k]) for k in first)
        )
    return bool(first == second) or (isinstance(first, float) and first != first and second != second)


def _nested_tuples(value: Any, sizes: Sequence[str | int], label: str) -> Any:
    """Nested sequences as nested tuples; lengths are checked where the size is known."""
    if not sizes:
        return value
    rows = tuple(value)
    if isinstance(sizes[0], int) and len(rows) != sizes[0]:
        raise ValueError(f"{label} must have {sizes[0]} entries, got {len(rows)}")
    return tuple(_nested_tuples(row, sizes[1:], label) for row in rows) if len(sizes) > 1 else rows


def _checked_array(value: Any, axes: Sequence[str | int], type_name: str, nan: bool, label: str) -> NDArray[Any]:
    """The numbers, read-only, after checking type and shape; an axis without a known size may have any.

    They are copied only where they are a part of a larger array or tensor, which the result would keep alive.
    """
    if type_name not in _KINDS:
        raise TypeError(f"{label} has axes, so its type must be one of {', '.join(_KINDS)}, got {type_name}")
    kind, codes = _KINDS[type_name]
    array = np.asarray(value)
    if array.size == 0 and array.dtype.kind not in codes:
        array = array.astype(kind)
    if array.dtype.kind not in codes:
        raise ValueError(f"{label} must hold {kind} values, got {array.dtype}")
    sizes = [axis if isinstance(axis, int) else None for axis in axes]
    if array.ndim != len(sizes) or any(size not in (None, got) for size, got in zip(sizes, array.shape, strict=True)):
        listed = ", ".join("any" if size is None else str(size) for size in sizes) + "," * (len(sizes) == 1)
        raise ValueError(f"{label} must have shape ({listed}), got {array.shape}")
    if not nan and kind == "float" and not np.isfinite(array).all():
        raise ValueError(f"{label} must be finite, got NaN or infinity in {np.sum(~np.isfinite(array))} places")
    array = array.copy() if _kept_by(array) > array.nbytes else array.view()
    array.flags.writeable = False
    return array


def _kept_by(array: NDArray[Any]) -> int:
    """Bytes that stay in memory as long as an array does: of the array or tensor whose memory it shows."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    tensor = owner.base  # an array of a tensor has it as its base
    return int(tensor.untyped_storage().nbytes() if hasattr(tensor, "untyped_storage") else owner.nbytes)


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, tuple | list | Mapping) and len(value) > 3:
        return f"<{len(value)} entries>"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
