"""beartype on all that the analyses define: what functions take and return, and the fields of records.

jaxtyping's import hook puts its decorator on every function and class. That decorator binds the arguments and checks
them twice, for the sake of array shapes in annotations, which the package has none of: half of the time of a short
function. Here every argument is looked at once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# an int may stand where a float is asked for, as for mypy
_checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))


def check_types(packages: list[str]) -> None:
    """Check the types of all that is called in these packages, which are not imported yet."""
    jaxtyping.jaxtyped = typed
    name = types.ModuleType("tests_type_checks")  # the hook takes its checker by name
    name.check = _checked  # type: ignore[attr-defined]
    sys.modules[name.__name__] = name
    install_import_hook(packages, f"{name.__name__}.check")


def typed(made: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """What the hook decorates with: a function, method or class whose types are checked when it is called."""
    if made is None:
        return functools.partial(typed, typechecker=typechecker)
    if isinstance(made, classmethod | staticmethod):
        return type(made)(_of_function(made.__func__))
    if isinstance(made, property):
        return property(*(part and _of_function(part) for part in (made.fget, made.fset, made.fdel)))
    if not inspect.isclass(made):
        return _of_function(made)
    if dataclasses.is_dataclass(made) and "__init__" in vars(made):
        made.__init__ = _of_function(made.__init__)  # type: ignore[misc]
    return made


def _of_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that checks its types; the annotations of the one that is given, which the package reads, stay."""
    own = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    own.__kwdefaults__, own.__qualname__ = function.__kwdefaults__, function.__qualname__
    own.__module__ = function.__module__
    own.__annotations__ = {name: _known(hint, function.__globals__) for name, hint in function.__annotations__.items()}
    return functools.update_wrapper(_checked(own), function)


def _known(hint: Any, names: dict[str, Any]) -> Any:
    """An annotation; anything fits where one of its names is only there for type checkers, or not yet."""
    try:
        return eval(hint, names) if isinstance(hint, str) else hint
    except (NameError, TypeError):
        return Any
