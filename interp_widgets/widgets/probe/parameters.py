"""The parameters of a probe: each annotation is a control, and some are shared by the panels on a workbench."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from interp_widgets.analysis._core.checks import index
from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.atomic import named_path
from interp_widgets.models import Model

from ..base.fields import Bounds, Lines, Text, field, fields_of
from ..base.sources import REPORTS
from ..base.workbench import SHARED


@dataclass(frozen=True)
class Role:
    """The role of a parameter, besides its plain type."""

    name: str
    """The name in the annotation."""
    shared: str = ""
    """The trait of a workbench that it is linked to."""
    size: str = ""
    """The model attribute that bounds an index."""


def _in_models(size: str, *, slider: bool = True) -> Bounds:
    """From 0 to the last one that all models of a panel have."""
    return Bounds(0, lambda panel: min(getattr(model, size) for model in panel.models) - 1, slider=slider)


Prompt = Annotated[str, Role("Prompt", "prompt"), Text(3)]
"""The text that the model reads: a box of several lines, shared by the panels on a workbench."""
Response = Annotated[str, Role("Response", "response"), Text(3)]
"""The model's response: a box of several lines, shared by the panels on a workbench."""
Layer = Annotated[int, Role("Layer", "layer", "n_layers"), _in_models("n_layers")]
"""A layer of the model, from 0: a slider, shared by the panels on a workbench."""
Head = Annotated[int, Role("Head", "head", "n_heads"), _in_models("n_heads")]
"""A head of a layer, from 0: a slider, shared by the panels on a workbench."""
Neuron = Annotated[int, Role("Neuron", "neuron", "d_mlp"), _in_models("d_mlp", slider=False)]
"""An MLP neuron of a layer, from 0: a box with a number, shared by the panels on a workbench."""
Position = Annotated[int, Role("Position", "prompt_token")]
"""A token of the prompt, from 0 without a BOS: the prompt's tokens to click on, shared by the panels on a workbench.

Without a choice the function gets its default, else the last one.
"""
Token = Annotated[str, Role("Token")]
"""The text of exactly one token, such as ``" Paris"``."""

ROLES = MappingProxyType(
    {get_args(kind)[1].name: kind for kind in (Prompt, Response, Layer, Head, Neuron, Position, Token)}
)
ALLOWED = (
    f"{', '.join(ROLES)}, Literal[...], bool, Annotated[int, Bounds(low, high)] or the same of float, str, list[str] "
    "or Path"
)
_LEFT_EMPTY = {
    "Prompt": "the prompt is empty: type a text for the model to read",
    "Response": "the response is empty: type the model's response",
    "Token": "no token yet: type the text of one, including its leading space",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a probe that is an option of its panel."""

    name: str
    kind: Any
    """The annotation."""
    default: Any
    """`inspect.Parameter.empty` for none."""
    trait: str
    """The trait of the panel; it differs from the parameter's name if the workbench uses another."""
    help: str = ""

    @property
    def role(self) -> Role:
        """Its role; an empty one for plain types."""
        return _extra(self.kind, Role) or Role("")

    @property
    def has_default(self) -> bool:
        """Whether the function has a default for it."""
        return self.default is not inspect.Parameter.empty

    @property
    def start(self) -> int:
        """Where a position is without a choice: the function's default, else -1, the last token."""
        return int(self.default) if self.has_default else -1

    def field(self, control: Callable[[str], Callable[[Any], Any]]) -> Any:
        """The option of a panel; `control` makes the control of a position."""
        base, role = _base(self.kind), self.role
        default = self.default if self.has_default else None
        label = self.name if len(self.name) == 1 else self.name.replace("_", " ").capitalize()
        about: dict[str, Any] = {"label": label, "help": self.help, "argument": self.name}
        if role.name == "Position":
            kind = Annotated[int, Bounds(low=-1)]
            return field(kind, -1, group="position", width="grow", control=control(self.trait), **about)
        if role.size:
            return field(self.kind, 0, **about)
        if get_origin(base) is Literal:
            labels = {value: str(value).replace("_", " ") for value in get_args(base)}
            return field(labels, default if self.has_default else get_args(base)[0], **about)
        if base is bool:
            return field(bool, bool(default), **about)
        if base in (int, float):
            lowest = _extra(self.kind, Bounds).low
            return field(self.kind, lowest if default is None else default, width="short", **about)
        required = "" if self.has_default else _LEFT_EMPTY.get(role.name, f"{label} is empty: fill it in")
        if base is list:
            about |= {"group": "texts", "width": "grow", "required": required}
            return field(Annotated[list, Lines()], list(default or ()), **about)
        if _extra(self.kind, Text) is not None:
            about |= {"group": "texts", "width": "grow"}
        text = "" if default is None else str(default)
        about["personal"] = base is Path
        return field(Annotated[str, role, *_extras(self.kind)], text, required=required, **about)


def parameters_of(function: Callable[..., Any], base: type[Any] | None = None) -> tuple[list[Parameter], Any]:
    """The options of a probe and its return annotation; TypeError for a parameter that has no control.

    Parameters for which the `base` panel has a field, or that have no control, are left to that base.
    """
    name = getattr(function, "__name__", "the probe")
    if not inspect.isfunction(function):
        raise TypeError(f"@probe turns a function into a panel, got {function!r}")
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_kind(inspect.unwrap(function)) for is_kind in kinds):
        raise TypeError(f"{name} must return its result: write it without async and yield")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"the annotations of {name} cannot be read: {error}") from error
    signature = inspect.signature(function)
    declared = list(signature.parameters.values())
    if not declared or declared[0].name != "model" or declared[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(f"the first parameter of {name} must be model: def {name}(model: Model, prompt: Prompt, ...)")
    for parameter in declared if base is None else ():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            written = str(parameter).partition(":")[0]
            raise TypeError(f"{name} has the parameter {written}, for which there is no control: name each one")
    answered = set() if base is None else {option.argument or label for label, option in fields_of(base).items()}
    defaults = {}
    for parameter in declared[1:]:
        if parameter.name in REPORTS:
            continue
        sentence = _no_control(name, parameter.name, hints.get(parameter.name))
        if sentence and base is None:
            raise TypeError(sentence)
        if not sentence and parameter.name not in answered:
            defaults[parameter.name] = parameter.default
    if "return" not in hints:
        raise TypeError(f"{name} needs a return annotation, such as def {name}(...) -> HeadMap")
    linked = _linked({label: hints[label] for label in defaults})
    texts = _described(function)
    parameters = [Parameter(label, hints[label], default, linked.get(label, label), texts.get(label, ""))
                  for label, default in defaults.items()]  # fmt: skip
    for option in parameters:
        _check_default(name, option)
    roles = {option.role.name for option in parameters}
    if "Position" in roles and "Prompt" not in roles:
        raise TypeError(f"{name} has a Position, which is a position in a Prompt: add a parameter prompt: Prompt")
    return parameters, hints["return"]


def read(parameter: Parameter, value: Any, model: Model, prompt: str) -> Any:
    """The value that the function gets: indices counted from 0, `Path` objects; ValueError if it is invalid."""
    role = parameter.role
    if role.size:
        return index(value, getattr(model, role.size), parameter.name, f"model ({model.name})")
    if role.name == "Position":
        return read_prompt(model, prompt).position(value)
    if role.name == "Token" and value:
        single_token(model, value, what=parameter.name)
    return named_path(value, parameter.name) if _base(parameter.kind) is Path else value


def _linked(hints: dict[str, Any]) -> dict[str, str]:
    """The workbench trait of each parameter: the one of its name, else of its type if it is the first of that type."""
    traits: dict[str, str] = {}
    for kind in ROLES.values():
        shared = get_args(kind)[1].shared
        names = [name for name, hint in hints.items() if shared and get_args(kind)[1] in _extras(hint)]
        if names:
            traits[shared if shared in names else names[0]] = shared
    return traits


def _no_control(function: str, name: str, hint: Any) -> str:
    """Why a parameter has no control; empty if it has one."""
    if hint is None:
        return f"the parameter {name} of {function} must have an annotation: {ALLOWED}"
    base, role = _base(hint), _extra(hint, Role)
    start = f"the parameter {name} of {function}"
    if name in SHARED and (role is None or role.shared != name):
        meant = [f"annotate it as {label}, or " for label, kind in ROLES.items() if get_args(kind)[1].shared == name]
        return f"{start} has a name that panels on a workbench share: {''.join(meant)}rename it"
    if base in (int, float):
        bounds = _extra(hint, Bounds)
        if role is None and (bounds is None or None in (bounds.low, bounds.high)):
            return f"{start} needs bounds: Annotated[{base.__name__}, Bounds(low, high)]"
        return ""
    if get_origin(base) is Literal or base in (bool, str, list, Path):
        return ""
    return f"{start} is annotated as {_written(hint)}, which has no control: use {ALLOWED}"


def _check_default(function: str, parameter: Parameter) -> None:
    """TypeError for a default that the parameter's own control could not show."""
    value, base = parameter.default, _base(parameter.kind)
    if not parameter.has_default:
        return
    bounds = _extra(parameter.kind, Bounds)
    kinds = {float: (int, float), list: (list, tuple), Path: (str, Path)}.get(base, base)
    if get_origin(base) is Literal:
        fits = value in get_args(base)
    else:
        fits = isinstance(value, kinds) and (base is bool or not isinstance(value, bool))
    if fits and parameter.role.name == "Position":
        fits = value >= -1
    if fits and bounds is not None and not parameter.role.size:
        fits = bounds.low <= value <= bounds.high
    if not fits:
        raise TypeError(f"the default of {parameter.name} of {function} must fit its annotation, got {value!r}")


def _base(hint: Any) -> Any:
    """The plain type of an annotation; any sequence of strings counts as a list."""
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(base) in (list, Sequence, tuple) and set(get_args(base)) <= {str, ...}:
        return list
    return base


def _extras(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _extra(hint: Any, kind: type) -> Any:
    """The part of an annotation that has this type, such as its bounds, or None."""
    return next((extra for extra in _extras(hint) if isinstance(extra, kind)), None)


def _written(hint: Any) -> str:
    """The source text of an annotation."""
    return "None" if hint is NoneType else hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _described(function: Callable[..., Any]) -> dict[str, str]:
    """The docstring's text about each parameter under ``Args:``, for the tooltips."""
    lines = re.findall(r"^\s+(\w+): (.+)$", inspect.getdoc(function) or "", re.MULTILINE)
    return {name: text.strip() for name, text in lines}
