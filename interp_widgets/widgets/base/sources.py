"""The source of a user's function for copied code: an import where there is one, else the function and what it uses."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

REPORTS = ("progress", "check", "on_partial")
"""Parameters of an analysis for progress and cancellation: no options of its panel."""


def needed_reports(function: Callable[..., Any]) -> list[str]:
    """Arguments of a call for those of `REPORTS` that a function has no default for."""
    parameters = inspect.signature(function).parameters
    needed = [name for name in REPORTS if name in parameters and parameters[name].default is inspect.Parameter.empty]
    return [f"{name}=lambda *_: None" for name in needed]


def add_function(function: Callable[..., Any], imports: set[str], sources: list[str]) -> None:
    """Add the line that imports a function or, for one of a notebook, its source and what that needs."""
    home = home_of(function.__name__, function)
    if home:
        imports.add(f"from {home} import {function.__name__}")
    elif function.__name__.isidentifier():
        collect(inspect.unwrap(function), imports, sources, set())
    else:
        raise ValueError("a lambda has no name to call it by in copied code: write the analysis as a function with def")


def collect(function: Callable[..., Any], imports: set[str], sources: list[str], done: set[str]) -> None:
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
    home = home_of(name, value)
    if home:
        imports.add(f"from {home} import {name}")
    elif isinstance(value, FunctionType):
        collect(inspect.unwrap(value), imports, sources, done)
    elif _written(value):
        sources.append(f"{name} = {value!r}")
    else:
        sources.append(f"# {name}: the {type(value).__name__} that the function found in the notebook")


def home_of(name: str, value: Any) -> str:
    """A module from which the value can be imported under this name; empty if there is none."""
    import interp_widgets

    if getattr(interp_widgets, name, None) is value:
        return "interp_widgets"
    module = str(getattr(value, "__module__", ""))
    for home in (module.split(".")[0], module, "typing", "collections.abc"):
        if importable(value, home, name):
            return home
    return ""


def importable(value: Any, module: str, name: str) -> bool:
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


def joined(imports: set[str]) -> list[str]:
    """Imports, one line per module, with whole modules first."""
    modules = sorted(line for line in imports if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in imports - set(modules):
        _, module, _, name = line.split(" ")
        names.setdefault(module, []).append(name)
    return [*modules, *(f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names))]


class _Missing:
    """Marks a name without a known value."""
