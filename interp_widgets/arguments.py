"""Arguments of the public functions: what is of another kind than annotated is told in one sentence, before any work.

What an annotation does not say, such as how many layers a model has, the functions check themselves.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, SupportsIndex, TypeVar, cast

C = TypeVar("C", bound=Callable[..., Any])

_FROM = {
    "ConceptMap": "concept_map(...) makes one",
    "ConceptSet": "concept_directions(...) makes one",
    "FFNConceptResult": "ffn_concepts(...) makes one",
    "ConceptAnnotations": "annotate_concepts(...) makes them",
    "SaliencyResult": "prompt_saliency(...) makes one",
    "ModModel": "tune_mod(...) makes one",
    "Model": "use load_model(...) or load_demo_pair()",
    "Concept": "write Concept(name, stimuli)",
    "Ablation": "write Ablation(kind, layer)",
    "Annotator": "such as RuleAnnotator()",
    "Problem": "demo_problems() or read_problems(...) gives some",
    "WordVectors": "read_word_vectors(...) reads some",
}
"""Where an object of a class comes from."""

_CALLED = {"ndarray": "array", "Model": "loaded model"}
"""Classes whose name says less to a user than these words."""

_LEAST = {"seed": 0, "control_seed": 0, "batch_size": 1, "max_new_tokens": 0, "resamples": 1, "shuffles": 1}
"""Smallest value of whole numbers that mean the same in every function that has them."""


@dataclass(frozen=True)
class Kind:
    """One kind of value that an argument may be."""

    name: str
    """With its article, such as ``a whole number``."""
    plural: str
    fits: Callable[[Any], bool]
    entries: tuple[Kind, ...] = ()
    """Of a list: what its entries may be; nothing if anything."""
    advice: str = ""
    """Where one comes from."""
    near: Callable[[Any], bool] = lambda value: False
    """Of the right type, though not among the values: a ValueError instead of a TypeError."""


def checked(function: C) -> C:
    """Decorate a function or a class: an argument of another kind than annotated raises an error in one sentence.

    That is a TypeError; of a NaN or a negative seed, which have the right type, a ValueError. Whole numbers are those
    that `operator.index` takes, and a text is no list. Entries of lists are looked at too; those of an iterator, which
    can be read once only, and of arrays of numbers are left to the function.

    >>> @checked
    ... def pick(text: str, layers: Sequence[int] | None = None) -> None: ...
    >>> pick("a", [1, 2])
    >>> pick("a", 3)
    Traceback (most recent call last):
    TypeError: layers must be a list of whole numbers or None, got 3: write layers=[3]
    >>> pick(None)
    Traceback (most recent call last):
    TypeError: text must be a text, got None
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)
    kinds: dict[str, tuple[Kind, ...]] = {}

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            given = signature.bind(*args, **options).arguments
        except TypeError:
            return function(*args, **options)  # Python itself says what is missing or too many
        if not kinds:  # not while the module is loading, when names may be missing still
            kinds.update(argument_kinds(function))
        for name, value in given.items():
            _check(name, value, kinds.get(name, ()))
        return function(*args, **options)

    return cast(C, call)


def argument_kinds(function: Callable[..., Any]) -> dict[str, tuple[Kind, ...]]:
    """What each argument may be; nothing for one that may be anything. NameError for a name that is not there."""
    inner = inspect.unwrap(function)
    # what a function returns is no argument, and its name may be there for type checkers only
    given = {name: hint for name, hint in inner.__annotations__.items() if name != "return"}
    hints = typing.get_type_hints(SimpleNamespace(__annotations__=given), inner.__globals__)
    found = {}
    for name, parameter in inspect.signature(inner).parameters.items():
        if name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints[name]
        kinds = _kinds(hint)
        found[name] = tuple(_at_least(_LEAST[name]) if kind is _WHOLE and name in _LEAST else kind for kind in kinds)
    return found


def _check(name: str, value: Any, kinds: tuple[Kind, ...]) -> None:
    if _fits(value, kinds):
        return
    kinds = tuple(sorted(kinds, key=lambda kind: kind.name == "None"))  # worth a word, but last
    advice = next((f": {kind.advice}" for kind in kinds if kind.advice), "")
    if any(entry.fits(value) for kind in kinds for entry in kind.entries):
        advice = f": write {name}=[{value!r}]"
    error = ValueError if any(kind.near(value) for kind in kinds) else TypeError
    raise error(f"{name} must be {_one_of([kind.name for kind in kinds])}, got {_short(value)}{advice}")


def _one_of(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _short(value: Any) -> str:
    """A value in a few words."""
    text = repr(value)
    plain = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
    return text if plain and len(text) <= 60 else f"one of type {type(value).__name__}"


# kinds --------------------------------------------------------------------------------------------------------------


def _kinds(hint: Any) -> tuple[Kind, ...]:
    """What a hint allows; nothing where it allows anything."""
    from numpy.typing import ArrayLike

    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return ()
    if all(part in parts for part in typing.get_args(ArrayLike)):
        return (Kind("an array of numbers", "arrays of numbers", _is_array),)
    if origin in (typing.Union, UnionType):
        allowed = [_kinds(part) for part in parts]
        return tuple({kind.name: kind for kinds in allowed for kind in kinds}.values()) if all(allowed) else ()
    if origin is Literal:
        # which of them, the function says, that knows what they mean
        types = tuple({type(part) for part in parts})
        names = _one_of([repr(part) for part in parts])
        return (Kind(names, names, lambda value: isinstance(value, types)),)
    return (_of_class(hint if origin is None else origin, parts),)


def _of_class(found: Any, parts: tuple[Any, ...]) -> Kind:
    """One class, or a container with the kinds of its entries."""
    if found in _PLAIN:
        return _PLAIN[found]
    if issubclass(found, os.PathLike):
        return Kind("a path", "paths", lambda value: isinstance(value, os.PathLike))
    if issubclass(found, Mapping):
        return Kind("a mapping", "mappings", lambda value: isinstance(value, Mapping))
    if found is tuple and parts[1:] != (Ellipsis,):
        return _row_of([_kinds(part) for part in parts])
    if issubclass(found, Iterable) and found.__module__ in ("builtins", "collections.abc"):
        return _list_of(_kinds(parts[0]) if parts else (), sized=hasattr(found, "__len__"))
    name = _CALLED.get(found.__name__, found.__name__)
    plural = name if name.endswith("s") else f"{name}s"
    article = "" if name.endswith("s") else "an " if name[0] in "AEIOUaeiou" or name.startswith("FFN") else "a "
    return Kind(article + name, plural, lambda value: isinstance(value, found), advice=_FROM.get(found.__name__, ""))


def _list_of(entries: tuple[Kind, ...], *, sized: bool) -> Kind:
    """A list, or what can be read like one; entries of an iterator, which is read once only, are not looked at."""
    of = f" of {' or '.join(entry.plural for entry in entries)}" if entries else ""
    advice = next((entry.advice for entry in entries if entry.advice), "")

    def fits(value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)):
            return False
        try:
            iter(value)
            if sized:
                len(value)
        except TypeError:
            return False
        return not sized or not entries or all(_fits(one, entries) for one in value)

    return Kind(f"a list{of}", f"lists{of}", fits, entries, advice)


def _row_of(entries: Sequence[tuple[Kind, ...]]) -> Kind:
    """A list of as many entries as there are kinds."""
    each = [_one_of([kind.plural for kind in kinds]) for kinds in entries]
    of = f"{len(entries)} {each[0]}" if len(set(each)) == 1 else ", ".join(each)

    def fits(value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection) or len(value) != len(entries):
            return False
        return all(_fits(one, kinds) for one, kinds in zip(value, entries, strict=True))

    return Kind(f"a list of {of}", f"lists of {of}", fits)


def _fits(value: Any, kinds: tuple[Kind, ...]) -> bool:
    return not kinds or any(kind.fits(value) for kind in kinds)


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, (str, bytes, bool)) or getattr(value, "ndim", 0) != 0:
        return False
    try:
        return not math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _is_array(value: Any) -> bool:
    import numpy as np

    if hasattr(value, "detach"):  # a tensor, maybe on a device that numpy does not reach
        return True
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):
        return False


def _at_least(least: int) -> Kind:
    return Kind(
        f"a whole number from {least} on",
        f"whole numbers from {least} on",
        lambda value: _is_whole(value) and value >= least,
        near=_is_whole,
    )


_WHOLE = Kind("a whole number", "whole numbers", _is_whole)
_PLAIN: dict[Any, Kind] = {
    NoneType: Kind("None", "None", lambda value: value is None),
    int: _WHOLE,
    SupportsIndex: _WHOLE,
    float: Kind("a number", "numbers", _is_number, near=lambda value: isinstance(value, float)),
    bool: Kind("True or False", "True or False", lambda value: type(value).__name__ in ("bool", "bool_")),
    str: Kind("a text", "texts", lambda value: isinstance(value, str)),
    Callable: Kind("a function", "functions", callable),
}
