"""Copy as code: a cell with the function, or the import of it, and the call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from interp_widgets.models import Model

from ..base.code import call, load_lines
from ..base.request import Request
from ..base.sources import collect, home_of, importable, joined, needed_reports


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
    parts = ["\n".join(joined(imports)), *sources, "\n".join([*loading, *calls, names[-1][1]])]
    return "\n\n".join(parts)


def _made_known(
    kind: type, function: Callable[..., Any], imports: set[str], sources: list[str]
) -> tuple[str, list[str]]:
    """Import a probe or its function, or include its source; the name to call, and the callbacks it needs."""
    name, home = function.__name__, home_of(function.__name__, function)
    if home:
        imports.add(f"from {home} import {name}")
    elif importable(kind, kind.__module__, kind.__qualname__):
        imports.add(f"from {kind.__module__} import {kind.__name__}")
        return f"{kind.__name__}.analysis", []
    else:
        collect(inspect.unwrap(function), imports, sources, set())
        if re.match(r"@(\w+\.)?probe\b", sources[-1]):
            return f"{name}.analysis", []
    return name, needed_reports(function)
