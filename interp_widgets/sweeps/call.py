"""What a sweep does with an item, and what of that is written down, so that another call is known from it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from interp_widgets.models import Model
from interp_widgets.version import __version__

_MODEL = ("model", "weight_hash", "dtype", "backend", "processed", "edited", "edit_key")
"""What of a model's provenance its numbers depend on."""


@dataclass(frozen=True)
class Call:
    """A function, how it is called with an item, and what is made of its result."""

    function: Callable[..., Any]
    arguments: Sequence[str] | Mapping[str, str] | None
    measure: Callable[[Any], Any] | None

    def __call__(self, item: Any) -> Any:
        result = self.function(item) if self.arguments is None else self.function(**self._taken(item))
        return result if self.measure is None else self.measure(result)

    def _taken(self, item: Any) -> dict[str, Any]:
        """The arguments of one row."""
        names = self.arguments if isinstance(self.arguments, Mapping) else {name: name for name in self.arguments or ()}
        if missing := [column for column in names.values() if column not in item]:
            raise ValueError(f"the row has no column {missing[0]!r}: it has {', '.join(map(repr, item))}")
        return {name: item[column] for name, column in names.items()}

    @property
    def name(self) -> str:
        """What the function is called."""
        function, _, _ = _unwrapped(self.function)
        return str(getattr(function, "__qualname__", type(function).__name__))

    def models(self) -> dict[str, Any]:
        """The provenance of the first model among the function's arguments."""
        _, inputs, options = _unwrapped(self.function)
        model = next((value for value in (*inputs, *options.values()) if isinstance(value, Model)), None)
        return {} if model is None else model.provenance()

    def header(self) -> dict[str, Any]:
        """What tells this call from others, as JSON; the same in every session."""
        function, inputs, options = _unwrapped(self.function)
        described: dict[str, Any] = {str(number): _described(value) for number, value in enumerate(inputs)}
        described |= {name: _described(value) for name, value in options.items()}
        taken = (
            self.arguments if self.arguments is None or isinstance(self.arguments, Mapping) else list(self.arguments)
        )
        return {
            "function": _described(function),
            "options": described,
            "arguments": dict(taken) if isinstance(taken, Mapping) else taken and list(taken),
            "measure": None if self.measure is None else _described(self.measure),
        }


def _unwrapped(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function inside of a partial, and what that gives it."""
    if isinstance(function, functools.partial):
        inner, inputs, options = _unwrapped(function.func)
        return inner, (*inputs, *function.args), {**options, **function.keywords}
    return function, (), {}


def _described(value: Any) -> Any:
    """A value as JSON, by which it is known again."""
    if isinstance(value, Model):
        facts = value.provenance()
        return {name: facts[name] for name in _MODEL if name in facts}
    if inspect.isroutine(value) or isinstance(value, type):
        return _described_code(value)
    if isinstance(value, functools.partial):
        inner, inputs, options = _unwrapped(value)
        return [_described(part) for part in (inner, *inputs)] + [
            {name: _described(part) for name, part in options.items()}
        ]
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return f"{type(value).__name__} {_hash(pickle.dumps(value))}"


def _described_code(function: Any) -> str:
    """A function of a package by its name; the user's own also by what it does."""
    name = f"{function.__module__}.{function.__qualname__}"
    if name.startswith("interp_widgets."):
        return f"{name} {__version__}"
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return name
    held = [cell.cell_contents for cell in inner.__closure__ or ()]
    parts = [_code(code), *(json.dumps(_described(part)) for part in (*held, inner.__defaults__, inner.__kwdefaults__))]
    return f"{name} {_hash(' '.join(parts).encode())}"


def _code(code: CodeType) -> str:
    """What a function does, without the lines that it stands on."""
    parts = [_code(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return " ".join([code.co_code.hex(), *code.co_names, *parts])


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
