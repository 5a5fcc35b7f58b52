"""What a panel asks of an analysis: a frozen object that is also the key under which the answer is kept."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

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
class File(PerModel):
    """A file that the analysis reads: another one under the same name is another argument."""

    path: str
    size: int
    changed: int

    @classmethod
    def at(cls, path: str) -> File:
        """The file as it is now; FileNotFoundError and the like where it cannot be read."""
        state = os.stat(os.path.expanduser(path))
        return cls(path, state.st_size, state.st_mtime_ns)

    def read_by(self, model: Model) -> str:
        return self.path

    def code(self, name: str) -> tuple[list[str], str]:
        return [], repr(self.path)


@dataclass(frozen=True)
class FromModel:
    """An argument that one of the panel's models finds, such as its likeliest token; once for all models, in a run."""

    index: int
    """Which of the panel's models."""
    variable: str
    """What that model is called in copied code."""

    def find(self, model: Model, check: Callable[[], None]) -> Any:
        """The argument; in the worker's thread."""
        raise NotImplementedError

    def code(self) -> tuple[list[str], str]:
        """Lines of a cell that find it, and the expression."""
        raise NotImplementedError


@dataclass(frozen=True)
class FromResult:
    """An argument that is read off the result of an earlier one of the `Steps`."""

    step: str
    """The name of that step."""
    expression: str
    """How it is read in copied code, ``{}`` for the result; what is written alike is the same argument."""
    read: Callable[[Any], Any] = field(compare=False)


@dataclass(frozen=True)
class Request:
    """A call of an analysis; of several models, each is asked the same."""

    analysis: Callable[..., Any]
    arguments: tuple[tuple[str, Any], ...]
    """Keywords of the analysis and their values, hashable; some are read `PerModel` or found `FromModel`."""
    inputs: tuple[Any, ...] = ()
    """What goes before the keywords, behind the model."""

    @classmethod
    def of(cls, analysis: Callable[..., Any], arguments: Mapping[str, Any], *inputs: Any) -> Self:
        """The call with these arguments; lists become tuples."""
        return cls(analysis, tuple((name, _hashable(value)) for name, value in arguments.items()), inputs)

    @property
    def method(self) -> str:
        """The kind of run, for the forecast."""
        return self.analysis.__name__

    @property
    def values(self) -> list[Any]:
        """All inputs and arguments."""
        return [*self.inputs, *(value for _, value in self.arguments)]

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """The same call with what `fill` makes of every value."""
        arguments = tuple((name, fill(value)) for name, value in self.arguments)
        return replace(self, arguments=arguments, inputs=tuple(map(fill, self.inputs)))

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

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        """Lines of a cell that ask one model, the result in this variable; variables of two models have a suffix."""
        usual = {name: one.default for name, one in inspect.signature(self.analysis).parameters.items()}
        asked = {name: value for name, value in self.arguments if name not in usual or usual[name] != value}
        lines, parts = [], []
        for label, value in [*(("", one) for one in self.inputs), *asked.items()]:
            before, expression = _written(value, model, suffix)
            lines += before
            parts.append(f"{label}={expression}" if label else expression)
        return [*lines, f"{result}{suffix} = {call(self.method, model, *parts)}"]

    def lines(self, models: Sequence[Any]) -> list[str]:
        """Lines of a cell that repeat it, the result in ``result``, or in ``result_a`` and ``result_b``."""
        each = zip(model_variables(models), suffixes(models), strict=True)
        # what is the same for two models stands there once
        return list(dict.fromkeys(line for name, suffix in each for line in self.lines_on(name, "result", suffix)))

    def code(self, models: Sequence[Any], shown: str = "result") -> str:
        """A cell that repeats it and ends with what is `shown`: a variable and what is called on it."""
        variable, dot, rest = shown.partition(".")
        return cell(self.functions, models, [*self.lines(models), f"{variable}{suffixes(models)[-1]}{dot}{rest}"])

    @property
    def functions(self) -> Iterable[str]:
        """The functions that copied code imports."""
        return [self.method]


@dataclass(frozen=True)
class Steps(Request):
    """Several calls on one model, one after the other; later ones may take what earlier ones brought, `FromResult`.

    The arguments are the calls, and the `analysis` makes one result of theirs, by their names.
    """

    @property
    def values(self) -> list[Any]:
        return [value for _, step in self.arguments for value in step.values]

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        return replace(self, arguments=tuple((name, step.filled(fill)) for name, step in self.arguments))

    def answer(self, model: Model, *, on_partial: Callable[[Any], None] | None = None, **reports: Any) -> Any:
        """Make the calls; `progress` and `on_partial` are of the last, the longest."""
        results: dict[str, Any] = {}

        def fill(value: Any) -> Any:
            return value.read(results[value.step]) if isinstance(value, FromResult) else value

        *before, (last, step) = self.arguments
        for name, early in before:
            results[name] = early.filled(fill).answer(model, **{k: v for k, v in reports.items() if k == "check"})
        if on_partial is not None:
            reports["on_partial"] = lambda part: on_partial(self.analysis(**results, **{last: part}))
        return self.analysis(**results, **{last: step.filled(fill).answer(model, **reports)})

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        return [line for name, step in self.arguments for line in step.lines_on(model, name, suffix)]

    @property
    def functions(self) -> Iterable[str]:
        return [name for _, step in self.arguments for name in step.functions]


def model_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """What the models are called in copied code."""
    return ("model",) if len(models) == 1 else ("base", "tuned")


def suffixes(models: Sequence[Any]) -> tuple[str, ...]:
    """What the variables of each model end with in copied code."""
    return ("",) if len(models) == 1 else ("_a", "_b")


def result_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """What the results are called in copied code."""
    return tuple(f"result{suffix}" for suffix in suffixes(models))


def _read(value: Any, model: Model) -> Any:
    return value.read_by(model) if isinstance(value, PerModel) else value


def _written(value: Any, model: str, suffix: str) -> tuple[list[str], str]:
    """Lines before a call, and what stands in it."""
    if isinstance(value, FromResult):
        return [], value.expression.format(value.step + suffix)
    if isinstance(value, FromModel):
        return value.code()
    return value.code(model) if isinstance(value, PerModel) else ([], repr(_listed(value)))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value
