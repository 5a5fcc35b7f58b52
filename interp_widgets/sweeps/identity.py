"""What identifies a sweep across sessions: its function, what the function depends on, and its arguments."""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import json
import math
import pickle
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from interp_widgets.models import Model
from interp_widgets.models.contents import values as digests_of
from interp_widgets.models.state import facts
from interp_widgets.renamed import class_in_files
from interp_widgets.version import __version__

from .call import Call, unwrap_partial

_MAX_CHARACTERS = 1000
"""Longer JSON is stored as a hash."""
_INSTALL_FOLDERS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def model_of(call: Call) -> dict[str, Any]:
    """The provenance of the first model among the function's arguments; empty if there is none."""
    _, inputs, options = unwrap_partial(call.function)
    model = next((value for value in (*inputs, *options.values()) if isinstance(value, Model)), None)
    return {} if model is None else model.provenance()


def header_of(call: Call) -> dict[str, Any]:
    """What identifies a call, as JSON: its function, dependencies, bound arguments and measure."""
    function, inputs, options = unwrap_partial(call.function)
    plain = _underlying_function(function)
    header = {
        "function": f"{_name(plain)} {hash_of(_bytecode(plain))}" if _is_user_code(plain) else describe(plain),
        "uses": {name: _hash_if_long(describe(value)) for name, value in _dependencies(function)},
        "options": {
            name: _hash_if_long(describe(value))
            for name, value in _keyword_arguments(function, inputs, options).items()
        },
        "arguments": describe(call.arguments),
        "measure": None if call.measure is None else _hash_if_long(describe(call.measure)),
    }
    as_json: dict[str, Any] = json.loads(json.dumps(header))
    return as_json


def _keyword_arguments(
    function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """The arguments bound by a partial, by parameter name, or by position if the function has no signature."""
    try:
        return dict(inspect.signature(function).bind_partial(*inputs, **options).arguments)
    except (TypeError, ValueError):
        return {**{str(number): value for number, value in enumerate(inputs)}, **options}


def describe(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A value as JSON, equal in every session and different for different values.

    ``inside`` holds the ids of the containers that the value is in, against cycles.

    >>> describe({"layers": [1, 2], "words": {"b", "a"}})
    {'layers': [1, 2], 'words': ['"a"', '"b"']}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # NaN is not equal to itself
    if id(value) in inside:
        return "itself"
    inner = functools.partial(describe, inside=(*inside, id(value)))
    if isinstance(value, Model):
        return {"model": value.name, **facts(value)}
    if isinstance(value, Mapping):
        return {str(name): inner(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [inner(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(inner(part)) for part in value)
    if isinstance(value, functools.partial):
        function, inputs, options = unwrap_partial(value)
        return [inner(function), inner(inputs), inner(options)]
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [str(value.dtype), list(value.shape), hash_of(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, torch.Tensor):
        return digests_of([("", value)])[""]
    if isinstance(value, types.MethodType):
        return [inner(value.__func__), inner(value.__self__)]
    if inspect.isroutine(value) or isinstance(value, type):
        if not _is_user_code(value):
            return f"{_name(value)} {__version__}" if _name(value).startswith("interp_widgets.") else _name(value)
        return (
            f"{_name(value)} {hash_of(_bytecode(value), *((name, inner(part)) for name, part in _dependencies(value)))}"
        )
    if isinstance(value, torch.nn.Module):
        return [inner(type(value)), digests_of(value.state_dict().items())]
    if dataclasses.is_dataclass(value):
        return [inner(type(value)), {one.name: inner(getattr(value, one.name)) for one in dataclasses.fields(value)}]
    if _is_user_code(type(value)) and hasattr(value, "__dict__"):
        return [inner(type(value)), inner(vars(value))]
    try:
        return f"{_name(type(value))} {hash_of(pickle.dumps(value))}"
    except Exception:  # a lock, a connection or a file has no contents to describe
        return _name(type(value))


# code -----------------------------------------------------------------------------------------------------------------


def _name(code: Any) -> str:
    name = getattr(code, "__qualname__", type(code).__name__)
    return f"{getattr(code, '__module__', None) or type(code).__module__}.{class_in_files(name)}"


def _is_user_code(code: Any) -> bool:
    """Whether a function or class is the user's code, which may change between sessions."""
    if not isinstance(_underlying_function(code), types.FunctionType | type):
        return not inspect.isroutine(code)  # an object with __call__
    module = str(code.__module__)
    if module.partition(".")[0] in {"interp_widgets", *sys.builtin_module_names}:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # a notebook
        return True
    parents = Path(file).parents
    installed = {"site-packages", "dist-packages"} & {parent.name for parent in parents}
    return not installed and not any(str(parent) in _INSTALL_FOLDERS for parent in parents)


def _underlying_function(function: Any) -> Any:
    """The function of a method, or the one inside a wrapper without code of its own, such as `functools.cache`."""
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__code__") else inspect.unwrap(function)


def _bytecode(value: Any) -> str:
    """The bytecode and constants of a function, without line numbers; empty for anything else."""
    code = getattr(_underlying_function(value), "__code__", None)
    return "" if code is None else _code_text(code)


def _code_text(code: types.CodeType) -> str:
    return " ".join([code.co_code.hex(), *code.co_names, *map(_constant, code.co_consts)])


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _dependencies(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what user code depends on: a function's defaults, closure and globals, a method's
    object, a class's attributes and bases."""
    if isinstance(value, types.MethodType):
        yield "self", value.__self__
    if not _is_user_code(value):
        return
    if isinstance(value, type):
        for name, part in sorted(vars(value).items()):
            part = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
            if isinstance(part, types.FunctionType) or name[:2] != "__":
                yield name, part
        yield from ((base.__qualname__, base) for base in value.__bases__ if _is_user_code(base))
        return
    function = _underlying_function(value)
    if not isinstance(function, types.FunctionType):  # an object with __call__
        yield type(function).__qualname__, function
        return
    yield from ((f"default {number}", part) for number, part in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from (
        (name, function.__globals__[name]) for name in _globals(function.__code__) if name in function.__globals__
    )


def _globals(code: types.CodeType) -> list[str]:
    """Names of the global variables that code reads, including functions inside it."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for part in code.co_consts:
        names |= set(_globals(part)) if isinstance(part, types.CodeType) else set()
    return sorted(names)


def _hash_if_long(description: Any) -> Any:
    """A description, or its hash if it is long."""
    text = json.dumps(description, sort_keys=True)
    return description if len(text) <= _MAX_CHARACTERS else hash_of(text)


def hash_of(*parts: Any) -> str:
    """A hash of 16 hex digits of bytes or JSON values."""
    text = b"".join(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode() for part in parts)
    return hashlib.sha256(text).hexdigest()[:16]
