"""The call that a sweep makes for each item. Imports nothing that only an analysis needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A function, which of an item's columns it takes, and what turns its result into a row."""

    function: Callable[..., Any]
    arguments: Sequence[str] | Mapping[str, str] | None
    measure: Callable[[Any], Any] | None

    def __call__(self, item: Any) -> Any:
        result = self.function(item) if self.arguments is None else self.function(**self._keywords(item))
        return result if self.measure is None else self.measure(result)

    def _keywords(self, item: Any) -> dict[str, Any]:
        """The keyword arguments from one row; ValueError if a column is missing."""
        names = self.arguments if isinstance(self.arguments, Mapping) else {name: name for name in self.arguments or ()}
        if missing := [column for column in names.values() if column not in item]:
            raise ValueError(f"the row has no column {missing[0]!r}: it has {', '.join(map(repr, item))}")
        return {name: item[column] for name, column in names.items()}

    @property
    def name(self) -> str:
        """The qualified name of the function."""
        function, _, _ = unwrap_partial(self.function)
        return str(getattr(function, "__qualname__", type(function).__name__))


def unwrap_partial(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function inside a partial, and the positional and keyword arguments that the partial binds."""
    if isinstance(function, functools.partial):
        inner, inputs, options = unwrap_partial(function.func)
        return inner, (*inputs, *function.args), {**options, **function.keywords}
    return function, (), {}
