"""What a panel asks of an analysis: a frozen object that is also the key under which the answer is kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interp_widgets.models import Model

from .code import call, cell


class PerModel:
    """An argument that each model has to read for itself, such as a text that becomes token ids."""

    def read_by(self, model: Model) -> Any:
        """The argument for this model."""
        raise NotImplementedError

    def code(self, name: str) -> tuple[list[str], str]:
        """Lines of a cell that prepare it for the model called ``name``, and the expression."""
        raise NotImplementedError


@dataclass(frozen=True)
class Request:
    """A call of an analysis; of several models, each is asked the same."""

    analysis: Callable[..., Any]
    arguments: tuple[tuple[str, Any], ...]
    """Keywords of the analysis and their values, hashable; some are read :class:`PerModel`."""
    inputs: tuple[Any, ...] = ()
    """What goes before the keywords, behind the model."""

    @classmethod
    def of(cls, analysis: Callable[..., Any], arguments: Mapping[str, Any], *inputs: Any) -> Request:
        """The call with these arguments; lists become tuples."""
        return cls(analysis, tuple((name, _hashable(value)) for name, value in arguments.items()), inputs)

    @property
    def method(self) -> str:
        """The kind of run, for the forecast."""
        return self.analysis.__name__

    def read_by(self, model: Model) -> tuple[list[Any], dict[str, Any]]:
        """What one model is asked: the inputs and the keywords."""
        return [_read(one, model) for one in self.inputs], {name: _read(one, model) for name, one in self.arguments}

    def answer(self, model: Model, **reports: Any) -> Any:
        """Call the analysis; of `progress`, `check` and `on_partial` it gets what it takes."""
        taken = inspect.signature(self.analysis).parameters
        inputs, keywords = self.read_by(model)
        return self.analysis(
            model, *inputs, **keywords, **{name: value for name, value in reports.items() if name in taken}
        )

    def lines(self, models: Sequence[Any]) -> list[str]:
        """Lines of a cell that repeat it, the result in ``result``, or in ``result_a`` and ``result_b``."""
        usual = {name: one.default for name, one in inspect.signature(self.analysis).parameters.items()}
        asked = {name: value for name, value in self.arguments if name not in usual or usual[name] != value}
        lines: dict[str, None] = {}  # what is the same for two models stands there once
        for name, found in zip(model_variables(models), result_variables(models), strict=True):
            parts = []
            for label, value in [*(("", one) for one in self.inputs), *asked.items()]:
                before, expression = value.code(name) if isinstance(value, PerModel) else ([], repr(_listed(value)))
                lines |= dict.fromkeys(before)
                parts.append(f"{label}={expression}" if label else expression)
            lines[f"{found} = {call(self.method, name, *parts)}"] = None
        return list(lines)

    def code(self, models: Sequence[Any]) -> str:
        """A cell that repeats it."""
        return cell([self.method], models, [*self.lines(models), result_variables(models)[-1]])


def model_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """What the models are called in copied code."""
    return ("model",) if len(models) == 1 else ("base", "tuned")


def result_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """What the results are called in copied code."""
    return ("result",) if len(models) == 1 else ("result_a", "result_b")


def _read(value: Any, model: Model) -> Any:
    return value.read_by(model) if isinstance(value, PerModel) else value


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value
