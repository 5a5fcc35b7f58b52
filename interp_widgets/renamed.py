"""Public names that have changed: the old ones work until the next release and give a `DeprecationWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T", bound=Callable[..., Any])

OLD_NAMES = {
    "KeptStates": "HiddenStateCache",
    "labelled_texts": "labeled_texts",
    "neighbours": "neighbors",
    "normalise_importance": "normalize_importance",
}
"""Old and new names of the package itself."""


class OldAttribute(property):
    """An attribute of a class under its old name."""


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Give the warning that a name has changed, at the caller's caller."""
    warnings.warn(f"{old} is called {new} now: rename it", DeprecationWarning, stacklevel=stacklevel)


def renamed(**names: str) -> Callable[[T], T]:
    """Decorate a function whose keywords, or a class whose attributes, were renamed, old=new.

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
        return target

    return decorate


def _attribute(owner: str, old: str, new: str) -> OldAttribute:
    def read(self: Any) -> Any:
        warn_renamed(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(self, new)

    return OldAttribute(read, doc=f"The old name of `{new}`, until the next release.")


def _keywords(function: Any, name: str, names: dict[str, str]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for old in names.keys() & options.keys():
            if names[old] in options:
                raise TypeError(f"{name} got both {old}= and {names[old]}=: leave {old}= out, which is its old name")
            warn_renamed(f"{name}({old}=)", f"{name}({names[old]}=)")
            options[names[old]] = options.pop(old)
        return function(*args, **options)

    return call
