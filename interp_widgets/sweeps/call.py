"""What a sweep does with an item; nothing here imports what an analysis needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
        function, _, _ = unwrapped(self.function)
        return str(getattr(function, "__qualname__", type(function).__name__))


def unwrapped(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function inside of a partial, and what that gives it."""
    if isinstance(function, functools.partial):
        inner, inputs, options = unwrapped(function.func)
        return inner, (*inputs, *function.args), {**options, **function.keywords}
    return function, (), {}
