"""Arguments of the public functions are checked against their annotations before any work starts.

The functions themselves check what an annotation cannot say, such as how many layers a model has.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, SupportsIndex, TypeVar, cast

C = TypeVar("C", bound=Callable[..., Any])

_ADVICE = {
    "ConceptMap": "use concept_map(...)",
    "ConceptSet": "use concept_directions(...)",
    "FFNConceptResult": "use ffn_concepts(...)",
    "ConceptAnnotations": "use annotate_concepts(...)",
    "SaliencyResult": "use prompt_saliency(...)",
    "ModModel": "use tune_mod(...)",
    "Model": "use load_model(...) or load_demo_pair()",
    "Concept": "write Concept(name, stimuli)",
    "Ablation": "write Ablation(kind, layer)",
    "Annotator": "use RuleAnnotator() or another annotator",
    "Problem": "use demo_problems() or read_problems(...)",
    "MossaResult": "use mossa(...)",
    "TaskTexts": "write TaskTexts(name, texts, responses)",
    "WordVectors": "use read_word_vectors(...)",
}
"""How to get an object of a class."""

_CALLED = {"ndarray": "array", "Model": "loaded model"}
"""Classes whose names say less to a user than these words."""

_LEAST = {"seed": 0, "control_seed": 0, "batch_size": 1, "max_new_tokens": 0, "resamples": 1, "shuffles": 1}
"""Smallest value of the integers that mean the same in every function that has them."""

_TOKEN_IDS = {
    "prompt", "prompts", "texts", "reference", "clean", "corrupted", "response", "target", "answer", "foil"
}  # fmt: skip
"""Arguments whose integers are token ids."""


@dataclass(frozen=True)
class Kind:
    """One kind of value that an argument may be."""

    name: str
    """With its article, such as ``an int``."""
    entry: str
    """As it is called after "a list of", such as ``int``."""
    fits: Callable[[Any], bool]
    entries: tuple[Kind, ...] = ()
    """What the entries of a list may be; empty where they may be anything."""
    advice: str = ""
    """How to get a value of this kind."""
    right_type: Callable[[Any], bool] = lambda value: False
    """Whether a value that does not fit has the right type all the same: it raises a ValueError, not a TypeError."""
    always: type | None = None
    """A type of which every value fits, so that the entries of a long list need not be looked at one by one."""


def checked(function: C) -> C:
    """Decorate a function or a class: an argument that does not fit its annotation raises an error of one sentence.

    The error is a TypeError, or a ValueError for values of the right type such as NaN or a negative seed. An int is
    whatever `operator.index` takes, and a str is not a list. The entries of lists are checked too. The function itself
    checks the entries of iterators, which can be read only once, and of arrays of numbers. It runs outside of
    `torch.inference_mode`.

    >>> @checked
    ... def pick(text: str, layers: Sequence[int] | None = None) -> None: ...
    >>> pick("a", [1, 2])
    >>> pick("a", 3)
    Traceback (most recent call last):
    TypeError: layers must be a list of int or None, got 3: write layers=[3]
    >>> pick(None)
    Traceback (most recent call last):
    TypeError: text must be a str, got None
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    signature = inspect.signature(function)
    kinds: dict[str, tuple[Kind, ...]] = {}

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            arguments = signature.bind(*args, **options).arguments
        except TypeError:
            return function(*args, **options)  # Python itself says which argument is missing or unknown
        if not kinds:  # names in annotations may be missing while the module is still loading
            kinds.update(argument_kinds(function))
        for name, value in arguments.items():
            _check(name, value, kinds.get(name, ()))
        with outside_inference_mode():
            return function(*args, **options)

    return cast(C, call)


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Context manager in which `torch.inference_mode`, under which nothing can be differentiated, is off."""
    torch = sys.modules.get("torch")  # where nothing has imported it, the mode cannot be on
    if torch is None or not torch.is_inference_mode_enabled():
        return nullcontext()
    off: AbstractContextManager[Any] = torch.inference_mode(False)
    return off


def argument_kinds(function: Callable[..., Any]) -> dict[str, tuple[Kind, ...]]:
    """What each argument may be; empty for an argument that may be anything. NameError for an undefined name."""
    inner = inspect.unwrap(function)
    # the return annotation is not an argument, and its names may exist for type checkers only
    annotations = {name: hint for name, hint in inner.__annotations__.items() if name != "return"}
    hints = typing.get_type_hints(SimpleNamespace(__annotations__=annotations), inner.__globals__)
    return {
        name: _kinds(hints[name], _integer(name))
        for name, parameter in inspect.signature(inner).parameters.items()
        if name in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _check(name: str, value: Any, kinds: tuple[Kind, ...]) -> None:
    if _fits(value, kinds):
        return
    kinds = tuple(sorted(kinds, key=lambda kind: kind.name == "None"))  # None is named last
    advice = next((f": {kind.advice}" for kind in kinds if kind.advice), "")
    if any(entry.fits(value) for kind in kinds for entry in kind.entries):
        text = short(value)
        advice = f": write {name}=[{'...' if text.startswith('an object') else text}]"
    error = ValueError if any(kind.right_type(value) for kind in kinds) else TypeError
    raise error(f"{name} must be {_one_of([kind.name for kind in kinds])}, got {short(value)}{advice}")


def _one_of(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def short(value: Any) -> str:
    """A value in a few words: as Python writes it, where that is not long."""
    plain = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
    try:
        text = repr(value) if plain else ""
    except Exception:  # of an object in it, or an int of more digits than Python writes
        text = ""
    return text if 0 < len(text) <= 60 else f"an object of type {type(value).__name__}"


LONGEST_MESSAGE = 1000
"""Most characters of an error that are shown."""


def message_of(error: BaseException) -> str:
    """The message of an error, shortened if long; empty if it has none, or if reading it fails.

    >>> message_of(ValueError("a" * 10_000))[-5:]
    'aa...'
    """
    try:
        text = str(error).strip()
    except (Exception, SystemExit):  # whatever the class of the error raises
        return ""
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."


# kinds --------------------------------------------------------------------------------------------------------------


def _kinds(hint: Any, integer: Kind) -> tuple[Kind, ...]:
    """What an annotation allows; empty where it allows anything. ``integer`` is what an int means in this argument."""
    from numpy.typing import ArrayLike

    hint, array = _meant(hint), _meant(ArrayLike)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return ()
    if hint == array or (origin in (typing.Union, UnionType) and set(typing.get_args(array)) <= set(parts)):
        return (Kind("an array of numbers", "arrays of numbers", _is_array),)
    if origin in (typing.Union, UnionType):
        allowed = [_kinds(part, integer) for part in parts]
        return tuple({kind.name: kind for kinds in allowed for kind in kinds}.values()) if all(allowed) else ()
    if origin is Literal:
        # the function itself checks the value, since it knows what the choices mean
        types = tuple({type(part) for part in parts})
        names = _one_of([repr(part) for part in parts])
        return (Kind(names, names, lambda value: isinstance(value, types)),)
    return (_of_class(hint if origin is None else origin, parts, integer),)


def _meant(hint: Any) -> Any:
    """What an alias of a ``type`` statement, such as numpy's since 2.5, stands for; any other hint itself."""
    for alias in (hint, typing.get_origin(hint)):  # itself, or with its parameters
        if type(alias).__name__ == "TypeAliasType":
            return _meant(alias.__value__)
    return hint


def _of_class(cls: Any, parts: tuple[Any, ...], integer: Kind) -> Kind:
    """One class, or a container with the kinds of its entries."""
    if cls in (int, SupportsIndex):
        return integer
    if cls in _PLAIN:
        return _PLAIN[cls]
    if issubclass(cls, os.PathLike):
        return Kind("a path", "paths", lambda value: isinstance(value, os.PathLike))
    if issubclass(cls, Mapping):
        if parts == (str, str):  # of a chat
            return Kind("a message", "messages", lambda value: isinstance(value, Mapping))
        return Kind("a mapping", "mappings", lambda value: isinstance(value, Mapping))
    if cls is tuple and parts[1:] != (Ellipsis,):
        return _tuple_of([_kinds(part, integer) for part in parts])
    if issubclass(cls, Iterable) and cls.__module__ in ("builtins", "collections.abc"):
        return _list_of(_kinds(parts[0], integer) if parts else (), sized=hasattr(cls, "__len__"))
    name = _CALLED.get(cls.__name__, cls.__name__)
    article = "" if name.endswith("s") else "an " if name[0] in "AEIOUaeiou" or name.startswith("FFN") else "a "
    entry = f"{name}s" if cls.__name__ in _CALLED else name
    return Kind(article + name, entry, lambda value: isinstance(value, cls), advice=_ADVICE.get(cls.__name__, ""))


def _list_of(entries: tuple[Kind, ...], *, sized: bool) -> Kind:
    """A list, or what can be read like a list; the entries of an iterator are not checked, since reading uses it up."""
    of = f" of {' or '.join(kind.entry for kind in entries)}" if entries else ""
    advice = next((kind.advice for kind in entries if kind.advice), "")
    always = {kind.always for kind in entries}

    def fits(value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)):
            return False
        try:
            iter(value)
            if sized:
                len(value)
        except TypeError:
            return False
        if not sized or not entries or always.issuperset(map(type, value)):
            return True
        return all(_fits(entry, entries) for entry in value)

    return Kind(f"a list{of}", f"lists{of}", fits, entries, advice)


def _tuple_of(entries: Sequence[tuple[Kind, ...]]) -> Kind:
    """A tuple or list with as many entries as there are kinds."""
    each = [_one_of([kind.entry for kind in kinds]) for kinds in entries]
    of = f"{len(entries)} {each[0]}" if len(set(each)) == 1 else ", ".join(each)

    def fits(value: Any) -> bool:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection) or len(value) != len(entries):
            return False
        return all(_fits(entry, kinds) for entry, kinds in zip(value, entries, strict=True))

    return Kind(f"a tuple of {of}", f"tuples of {of}", fits)


def _fits(value: Any, kinds: tuple[Kind, ...]) -> bool:
    return not kinds or any(kind.fits(value) for kind in kinds)


def _is_integer(value: Any) -> bool:
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

    if hasattr(value, "detach"):  # a tensor, perhaps on a device that numpy cannot read
        return True
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):
        return False


def _integer(argument: str) -> Kind:
    """What an int means in an argument of this name."""
    if argument in _TOKEN_IDS:
        return Kind("a token id", "token ids", _is_integer, always=int)
    if argument not in _LEAST:
        return Kind("an int", "int", _is_integer, always=int)
    least = _LEAST[argument]
    return Kind(
        f"an int >= {least}",
        f"int >= {least}",
        lambda value: _is_integer(value) and not hasattr(value, "__len__") and value >= least,
        right_type=_is_integer,
    )


_PLAIN: dict[Any, Kind] = {
    NoneType: Kind("None", "None", lambda value: value is None),
    float: Kind("a number", "numbers", _is_number, right_type=lambda value: isinstance(value, float)),
    bool: Kind("True or False", "True or False", lambda value: type(value).__name__ in ("bool", "bool_")),
    str: Kind("a str", "str", lambda value: isinstance(value, str), always=str),
    Callable: Kind("a callable", "callables", callable),
}
