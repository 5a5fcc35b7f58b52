"""Copy as code: a cell with the function, or the import of it, and the call."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from interp_widgets.models import Model

from ..base.code import call, load_lines
from ..base.request import Request
from .parameters import REPORTS


def code_of(kind: type, request: Request, models: Sequence[Model]) -> str:
    """A cell that repeats a probe's run: with an import if the probe is in a module, else with its source."""
    names = [("model", "result")] if len(models) == 1 else [("base", "result_a"), ("tuned", "result_b")]
    imports, sources = {"from interp_widgets import load_model"}, list[str]()
    checked: Any = request.analysis  # the wrapper around the function
    called, reports = _made_known(kind, checked.__wrapped__, imports, sources)
    loading = load_lines(models)
    if any("torch." in line for line in loading):
        imports.add("import torch")
    _, arguments = request.read_by(models[0])
    calls = [f"{result} = {call(called, model, *reports, **arguments)}" for model, result in names]
    parts = ["\n".join(_joined(imports)), *sources, "\n".join([*loading, *calls, names[-1][1]])]
    return "\n\n".join(parts)


def _made_known(
    kind: type, function: Callable[..., Any], imports: set[str], sources: list[str]
) -> tuple[str, list[str]]:
    """Import a probe or its function, or include its source; the name to call, and the callbacks it needs."""
    name, home = function.__name__, _home(function.__name__, function)
    if home:
        imports.add(f"from {home} import {name}")
    elif _importable(kind, kind.__module__, kind.__qualname__):
        imports.add(f"from {kind.__module__} import {kind.__name__}")
        return f"{kind.__name__}.analysis", []
    else:
        _collect(inspect.unwrap(function), imports, sources, set())
        if re.match(r"@(\w+\.)?probe\b", sources[-1]):
            return f"{name}.analysis", []
    needed = inspect.signature(function).parameters
    return name, [
        f"{report}=lambda *_: None"
        for report in REPORTS
        if report in needed and needed[report].default is inspect.Parameter.empty
    ]


def _collect(function: Callable[..., Any], imports: set[str], sources: list[str], done: set[str]) -> None:
    """Collect what a function's source needs, then the source itself, after helpers from the same notebook."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise ValueError(
            f"the source of {function.__name__} is not available, so there is no code to copy: "
            "define it in a cell or in a module"
        ) from error
    outer = inspect.getclosurevars(function).nonlocals
    for name in _names(source):
        value = outer.get(name, function.__globals__.get(name, _Missing))
        if value is _Missing or name in done or name == function.__name__ or hasattr(builtins, name):
            continue
        done.add(name)
        _define(name, value, imports, sources, done)
    sources.append(source.rstrip())


def _define(name: str, value: Any, imports: set[str], sources: list[str], done: set[str]) -> None:
    """Lines that define a name as the function sees it."""
    if isinstance(value, ModuleType):
        imports.add(f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}"))
        return
    home = _home(name, value)
    if home:
        imports.add(f"from {home} import {name}")
    elif isinstance(value, FunctionType):
        _collect(inspect.unwrap(value), imports, sources, done)
    elif _written(value):
        sources.append(f"{name} = {value!r}")
    else:
        sources.append(f"# {name}: the {type(value).__name__} that the function found in the notebook")


def _home(name: str, value: Any) -> str:
    """A module from which the value can be imported under this name; empty if there is none."""
    import interp_widgets

    if getattr(interp_widgets, name, None) is value:
        return "interp_widgets"
    module = str(getattr(value, "__module__", ""))
    for home in (module.split(".")[0], module, "typing", "collections.abc"):
        if _importable(value, home, name):
            return home
    return ""


def _importable(value: Any, module: str, name: str) -> bool:
    """Whether a module (not a notebook) has this same object under this name."""
    home = sys.modules.get(module)
    return module != "__main__" and getattr(home, "__file__", None) is not None and getattr(home, name, None) is value


def _written(value: Any) -> bool:
    """Whether the value's repr reproduces it."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _names(source: str) -> list[str]:
    """Names that a source reads, in order."""
    names = [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(names))


def _joined(imports: set[str]) -> list[str]:
    """Imports, one line per module, with whole modules first."""
    modules = sorted(line for line in imports if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in imports - set(modules):
        _, module, _, name = line.split(" ")
        names.setdefault(module, []).append(name)
    return [*modules, *(f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names))]


class _Missing:
    """Marks a name without a known value."""
