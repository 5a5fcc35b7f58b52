"""A panel's request: a call of an analysis as a frozen object, which is also the cache key of its result."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from interp_widgets.atomic import named_path
from interp_widgets.models import Model

from .code import call, cell
from .sources import needed_reports


class PerModel:
    """An argument that differs per model, such as a text that each tokenizes."""

    def read_by(self, model: Model) -> Any:
        """The argument for this model."""
        raise NotImplementedError

    def code(self, name: str) -> tuple[list[str], str]:
        """Lines of a cell that prepare it for the model called ``name``, and the expression."""
        raise NotImplementedError


@dataclass(frozen=True)
class File(PerModel):
    """A file that the analysis reads: a changed file is a different argument."""

    path: str
    size: int
    changed: int

    @classmethod
    def at(cls, path: str) -> File:
        """The file in its current state; OSError if it cannot be read."""
        state = os.stat(named_path(path, "the path"))
        return cls(path, state.st_size, state.st_mtime_ns)

    def read_by(self, model: Model) -> str:
        return self.path

    def code(self, name: str) -> tuple[list[str], str]:
        return [], repr(self.path)


@dataclass(frozen=True)
class FromModel:
    """An argument that one of the panel's models determines during a run, such as its top token."""

    index: int
    """Index of that model on the panel."""
    variable: str
    """That model's variable in copied code."""

    def find(self, model: Model, check: Callable[[], None]) -> Any:
        """The argument; in the worker's thread."""
        raise NotImplementedError

    def code(self) -> tuple[list[str], str]:
        """Lines of a cell that compute it, and the expression."""
        raise NotImplementedError


@dataclass(frozen=True)
class FromResult:
    """An argument taken from the result of an earlier step of `Steps`."""

    step: str
    """The name of that step."""
    expression: str
    """The expression in copied code, with ``{}`` for the result; the same expression is the same argument."""
    read: Callable[[Any], Any] = field(compare=False)


@dataclass(frozen=True)
class Request:
    """A call of an analysis, made on each model in turn."""

    analysis: Callable[..., Any]
    arguments: tuple[tuple[str, Any], ...]
    """Keywords of the analysis and their hashable values, including `PerModel` and `FromModel` ones."""
    inputs: tuple[Any, ...] = ()
    """Positional arguments after the model."""

    @classmethod
    def of(cls, analysis: Callable[..., Any], arguments: Mapping[str, Any], *inputs: Any) -> Self:
        """The call with these arguments; lists become tuples."""
        return cls(analysis, tuple((name, _hashable(value)) for name, value in arguments.items()), inputs)

    @property
    def method(self) -> str:
        """Name of the analysis, for the forecast and copied code."""
        return self.analysis.__name__

    @property
    def values(self) -> list[Any]:
        """All inputs and arguments."""
        return [*self.inputs, *(value for _, value in self.arguments)]

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """The call with `fill` applied to every value."""
        arguments = tuple((name, fill(value)) for name, value in self.arguments)
        return replace(self, arguments=arguments, inputs=tuple(map(fill, self.inputs)))

    def with_results(self, results: Mapping[str, Any]) -> Self:
        """The call with every `FromResult` read from the results of earlier steps, by name."""
        return self.filled(lambda value: value.read(results[value.step]) if isinstance(value, FromResult) else value)

    def read_by(self, model: Model) -> tuple[list[Any], dict[str, Any]]:
        """Inputs and keywords for one model."""
        inputs = [_read(value, model) for value in self.inputs]
        return inputs, {name: _read(value, model) for name, value in self.arguments}

    def answer(self, model: Model, **reports: Any) -> Any:
        """Call the analysis, with those of `progress`, `check` and `on_partial` that it accepts."""
        accepted = inspect.signature(self.analysis).parameters
        inputs, keywords = self.read_by(model)
        return self.analysis(
            model, *inputs, **keywords, **{name: value for name, value in reports.items() if name in accepted}
        )

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        """Lines of a cell that call it on one model and assign the result; with two models, variables have a suffix."""
        defaults = {name: parameter.default for name, parameter in inspect.signature(self.analysis).parameters.items()}
        keywords = {name: value for name, value in self.arguments if name not in defaults or defaults[name] != value}
        lines, parts = [], []
        for label, value in [*(("", value) for value in self.inputs), *keywords.items()]:
            before, expression = written(value, model, suffix)
            lines += before
            parts.append(f"{label}={expression}" if label else expression)
        parts += needed_reports(self.analysis)
        return [*lines, f"{result}{suffix} = {call(self.method, model, *parts)}"]

    def lines(self, models: Sequence[Any]) -> list[str]:
        """Lines of a cell that repeat it, the result in ``result``, or in ``result_a`` and ``result_b``."""
        each = zip(model_variables(models), suffixes(models), strict=True)
        # lines that two models share appear once
        return list(dict.fromkeys(line for name, suffix in each for line in self.lines_on(name, "result", suffix)))

    def code(self, models: Sequence[Any], shown: str = "result") -> str:
        """A cell that repeats the call and ends with the expression `shown`."""
        variable, dot, rest = shown.partition(".")
        return cell(self.functions, models, [*self.lines(models), f"{variable}{suffixes(models)[-1]}{dot}{rest}"])

    @property
    def functions(self) -> Iterable[Callable[..., Any]]:
        """The functions that copied code calls."""
        return [self.analysis]


@dataclass(frozen=True)
class Steps(Request):
    """Several calls on one model, in order; later ones may use earlier results through `FromResult`.

    The arguments are the calls, and the `analysis` combines their results, passed by name.
    """

    @property
    def values(self) -> list[Any]:
        return [value for _, step in self.arguments for value in step.values]

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        return replace(self, arguments=tuple((name, step.filled(fill)) for name, step in self.arguments))

    def answer(self, model: Model, *, on_partial: Callable[[Any], None] | None = None, **reports: Any) -> Any:
        """Make the calls; `progress` and `on_partial` go to the last, the longest."""
        results: dict[str, Any] = {}
        *before, (last, step) = self.arguments
        quiet = {name: report for name, report in reports.items() if name == "check"}
        for name, early in before:
            results[name] = early.with_results(results).answer(model, **quiet)
        if on_partial is not None:
            reports["on_partial"] = lambda part: on_partial(self.analysis(**results, **{last: part}))
        return self.analysis(**results, **{last: step.with_results(results).answer(model, **reports)})

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        return [line for name, step in self.arguments for line in step.lines_on(model, name, suffix)]

    @property
    def functions(self) -> Iterable[Callable[..., Any]]:
        return [name for _, step in self.arguments for name in step.functions]


def model_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """The models' variables in copied code."""
    return ("model",) if len(models) == 1 else ("base", "tuned")


def suffixes(models: Sequence[Any]) -> tuple[str, ...]:
    """Suffixes of each model's variables in copied code."""
    return ("",) if len(models) == 1 else ("_a", "_b")


def result_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """The results' variables in copied code."""
    return tuple(f"result{suffix}" for suffix in suffixes(models))


def _read(value: Any, model: Model) -> Any:
    return value.read_by(model) if isinstance(value, PerModel) else value


def written(value: Any, model: str, suffix: str = "") -> tuple[list[str], str]:
    """Lines of a cell before a call on the model called ``model``, and the expression for its argument."""
    if isinstance(value, FromResult):
        return [], value.expression.format(value.step + suffix)
    if isinstance(value, FromModel):
        return value.code()
    return value.code(model) if isinstance(value, PerModel) else ([], repr(_listed(value)))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value
