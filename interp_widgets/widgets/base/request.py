"""What a panel asks of an analysis: a frozen object that is also the key under which the answer is kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interp_widgets.models import Model

from .code import call, cell


@dataclass(frozen=True)
class Request:
    """A call of an analysis; of several models, each is asked the same."""

    analysis: Callable[..., Any]
    arguments: tuple[tuple[str, Any], ...]
    """Keywords of the analysis and their values, hashable."""

    @classmethod
    def of(cls, analysis: Callable[..., Any], arguments: Mapping[str, Any]) -> Request:
        """The call with these arguments; lists become tuples."""
        return cls(analysis, tuple((name, _hashable(value)) for name, value in arguments.items()))

    @property
    def method(self) -> str:
        """The kind of run, for the forecast."""
        return self.analysis.__name__

    def answer(self, model: Model, **reports: Any) -> Any:
        """Call the analysis; of `progress`, `check` and `on_partial` it gets what it takes."""
        taken = inspect.signature(self.analysis).parameters
        return self.analysis(
            model, **dict(self.arguments), **{name: value for name, value in reports.items() if name in taken}
        )

    def code(self, models: Sequence[Any]) -> str:
        """A cell that repeats it."""
        names = [("model", "result")] if len(models) == 1 else [("base", "result_a"), ("tuned", "result_b")]
        lines = [f"{found} = {call(self.method, name, **dict(self.arguments))}" for name, found in names]
        return cell([self.method], models, [*lines, names[-1][1]])


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
