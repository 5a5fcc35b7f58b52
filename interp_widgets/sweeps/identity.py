"""By what a sweep is known again in another session: its function, what that uses, and what it is called with."""

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
from interp_widgets.version import __version__

from .call import Call, unwrapped

_MODEL = ("model", "weight_hash", "dtype", "backend", "processed", "edited", "edit_key")
"""What of a model's provenance its numbers depend on."""
_LONG = 1000
"""Characters of JSON of which only a hash is kept."""
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def model_of(call: Call) -> dict[str, Any]:
    """The provenance of the first model among the function's arguments."""
    _, inputs, options = unwrapped(call.function)
    model = next((value for value in (*inputs, *options.values()) if isinstance(value, Model)), None)
    return {} if model is None else model.provenance()


def header_of(call: Call) -> dict[str, Any]:
    """What tells a call from others, as JSON."""
    function, inputs, options = unwrapped(call.function)
    plain = _plain(function)
    header = {
        "function": f"{_name(plain)} {hash_of(_code_of(plain))}" if _is_own(plain) else described(plain),
        "uses": {name: _kept(described(value)) for name, value in _uses(function)},
        "options": {name: _kept(described(value)) for name, value in _named(function, inputs, options).items()},
        "arguments": described(call.arguments),
        "measure": None if call.measure is None else _kept(described(call.measure)),
    }
    known: dict[str, Any] = json.loads(json.dumps(header))
    return known


def _named(function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a partial by the names of the function's parameters, where it tells them."""
    try:
        return dict(inspect.signature(function).bind_partial(*inputs, **options).arguments)
    except (TypeError, ValueError):
        return {**{str(number): value for number, value in enumerate(inputs)}, **options}


def described(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A value as JSON that is the same in every session and another one for another value; ``inside`` of which others.

    >>> described({"layers": [1, 2], "words": {"b", "a"}})
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
    inner = functools.partial(described, inside=(*inside, id(value)))
    if isinstance(value, Model):
        facts = value.provenance()
        return {name: facts[name] for name in _MODEL if name in facts}
    if isinstance(value, Mapping):
        return {str(name): inner(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [inner(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(inner(part)) for part in value)
    if isinstance(value, functools.partial):
        function, inputs, options = unwrapped(value)
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
        if not _is_own(value):
            return f"{_name(value)} {__version__}" if _name(value).startswith("interp_widgets.") else _name(value)
        return f"{_name(value)} {hash_of(_code_of(value), *((name, inner(part)) for name, part in _uses(value)))}"
    if isinstance(value, torch.nn.Module):
        return [inner(type(value)), digests_of(value.state_dict().items())]
    if dataclasses.is_dataclass(value):
        return [inner(type(value)), {one.name: inner(getattr(value, one.name)) for one in dataclasses.fields(value)}]
    if _is_own(type(value)) and hasattr(value, "__dict__"):
        return [inner(type(value)), inner(vars(value))]
    try:
        return f"{_name(type(value))} {hash_of(pickle.dumps(value))}"
    except Exception:  # a lock, a connection or a file, say: what it holds cannot be told
        return _name(type(value))


# code -----------------------------------------------------------------------------------------------------------------


def _name(code: Any) -> str:
    name = getattr(code, "__qualname__", type(code).__name__)
    return f"{getattr(code, '__module__', None) or type(code).__module__}.{name}"


def _is_own(code: Any) -> bool:
    """Whether a function or class is the user's own, so that it may be another one in the next session."""
    if not isinstance(_plain(code), types.FunctionType | type):
        return not inspect.isroutine(code)  # an object with __call__
    module = str(code.__module__)
    if module.partition(".")[0] in {"interp_widgets", *sys.builtin_module_names}:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # a notebook
        return True
    parents = Path(file).parents
    installed = {"site-packages", "dist-packages"} & {parent.name for parent in parents}
    return not installed and not any(str(parent) in _INSTALLED for parent in parents)


def _plain(function: Any) -> Any:
    """The function of a method, or of what holds one that has no code of its own, such as a cache."""
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__code__") else inspect.unwrap(function)


def _code_of(value: Any) -> str:
    """What a function does, without the lines that it stands on; empty for all else."""
    code = getattr(_plain(value), "__code__", None)
    return "" if code is None else _text_of(code)


def _text_of(code: types.CodeType) -> str:
    return " ".join([code.co_code.hex(), *code.co_names, *map(_constant, code.co_consts)])


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _text_of(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _uses(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function of the user's takes from outside: defaults, variables around it, and global ones; of a method its
    object, of a class what it holds and its bases."""
    if isinstance(value, types.MethodType):
        yield "self", value.__self__
    if not _is_own(value):
        return
    if isinstance(value, type):
        for name, part in sorted(vars(value).items()):
            part = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
            if isinstance(part, types.FunctionType) or name[:2] != "__":
                yield name, part
        yield from ((base.__qualname__, base) for base in value.__bases__ if _is_own(base))
        return
    function = _plain(value)
    if not isinstance(function, types.FunctionType):  # an object with __call__
        yield type(function).__qualname__, function
        return
    yield from ((f"default {number}", part) for number, part in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield from (
        (name, function.__globals__[name]) for name in _globals(function.__code__) if name in function.__globals__
    )


def _globals(code: types.CodeType) -> list[str]:
    """The names that code looks up outside of functions."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for part in code.co_consts:
        names |= set(_globals(part)) if isinstance(part, types.CodeType) else set()
    return sorted(names)


def _kept(description: Any) -> Any:
    """A description, or its hash where it is long."""
    text = json.dumps(description, sort_keys=True)
    return description if len(text) <= _LONG else hash_of(text)


def hash_of(*parts: Any) -> str:
    """16 hex digits of bytes, or of what JSON can hold."""
    text = b"".join(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode() for part in parts)
    return hashlib.sha256(text).hexdigest()[:16]
