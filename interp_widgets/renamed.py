"""Public names that have changed: the old ones work until the next release and give a `DeprecationWarning`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T", bound=Callable[..., Any])

OLD_CLASSES = {"LabelledTexts": "LabeledTexts", "TaskNeighbours": "TaskNeighbors"}
"""Old and new names of classes that are in results, sessions and keys of results: files have the old ones."""
OLD_NAMES = {
    **OLD_CLASSES,
    "KeptStates": "HiddenStateCache",
    "labelled_texts": "labeled_texts",
    "neighbours": "neighbors",
    "normalise_importance": "normalize_importance",
}
"""Old and new names of the package itself."""
OLD_MODULES = {
    "interp_widgets.analysis.bias.comparison": "interp_widgets.analysis.bias.debiasing_comparison",
    "interp_widgets.widgets.bias.judge": "interp_widgets.widgets.bias.edit_comparison",
    "interp_widgets.widgets.clusters.training": "interp_widgets.widgets.clusters.over_training",
}
"""Old and new names of modules whose functions or classes are in sessions and in keys of results: files have the old
ones."""


def module_in_files(value: Any) -> str:
    """The name that the module of a function or class has in files."""
    module = str(value.__module__)
    return next((old for old, new in OLD_MODULES.items() if new == module), module)


def class_in_files(name: str) -> str:
    """The name that a class has in files."""
    return next((old for old, new in OLD_CLASSES.items() if new == name), name)


class OldAttribute(property):
    """An attribute of a class under its old name."""

    new: str


def warn_renamed(old: str, new: str) -> None:
    """Give the warning that a name has changed, at the line outside this package that uses it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0]:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{old} is called {new} now: rename it", DeprecationWarning, stacklevel=level)


def renamed(**names: str) -> Callable[[T], T]:
    """Decorate a function whose keywords, or a class whose attributes or fields, were renamed, old=new.

    >>> @renamed(colour="color")
    ... def paint(color):
    ...     return color
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     paint(colour="red")
    'red'
    >>> str(caught[0].message)
    'paint(colour=) is called paint(color=) now: rename it'
    """

    def decorate(target: T) -> T:
        if not isinstance(target, type):
            return cast(T, _keywords(target, target.__name__, names))
        for old, new in names.items():
            setattr(target, old, _attribute(target.__name__, old, new))
        if dataclasses.is_dataclass(target):
            target.__init__ = _keywords(target.__init__, target.__name__, names)  # type: ignore[method-assign]
        return target

    return decorate


def old_attributes(kind: type) -> dict[str, str]:
    """Old and new names of a class's attributes, also those that it inherits."""
    members = {name: inspect.getattr_static(kind, name) for one in kind.__mro__ for name in vars(one)}
    return {name: member.new for name, member in members.items() if isinstance(member, OldAttribute)}


def rename_keywords(owner: str, names: dict[str, str], options: dict[str, Any]) -> None:
    """Give the keywords of a call their new names; TypeError if one is given under both."""
    for old in names.keys() & options.keys():
        if names[old] in options:
            raise TypeError(f"{owner} got both {old}= and {names[old]}=: leave {old}= out, which is its old name")
        warn_renamed(f"{owner}({old}=)", f"{owner}({names[old]}=)")
        options[names[old]] = options.pop(old)


def _attribute(owner: str, old: str, new: str) -> OldAttribute:
    def read(self: Any) -> Any:
        warn_renamed(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(self, new)

    def write(self: Any, value: Any) -> None:
        warn_renamed(f"{owner}.{old}", f"{owner}.{new}")
        setattr(self, new, value)

    attribute = OldAttribute(read, write, doc=f"The old name of `{new}`, until the next release.")
    attribute.new = new
    return attribute


def _keywords(function: Any, name: str, names: dict[str, str]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        rename_keywords(name, names, options)
        return function(*args, **options)

    return call
