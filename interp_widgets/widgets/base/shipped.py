"""Answers that ship with the package: what takes long of what the panels open on with the demo models.

``python -m interp_widgets.demo.answers`` computes and writes them. A file holds what one model answers to one request,
and its name says which: it is made of the panel's name, the request, and the models with the file of their weights and
their dtype. For an edited model, another dtype or another option there is no file. Both backends compute the same from
the same weights, but for rounding, so that one answer serves both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import xxhash

from interp_widgets.analysis._core.result import Result, record
from interp_widgets.models.hub_files import DEMO, DEMO_NAMES
from interp_widgets.models.state import is_as_loaded

FOLDER = DEMO / "answers"
LONGEST = 2**20
"""Characters of a request; no longer one ships."""


@record
class ShippedAnswer(Result):
    """What one model answers to one request of a panel."""

    panel: str
    """What the panel's answers are kept under."""
    answer: Any
    """A result, or what else a result may hold."""


def find(panel: str, request: Hashable, models: Sequence[Any], *, wait: float = -1) -> Any:
    """The answer of the first of these models, which depends on the others too; None where none ships.

    In the interface, `wait` is the longest time, in seconds, that it may wait for a model that computes.
    """
    if (_recorder is not None and not _recorder.takes) or panel not in _panels():
        return None
    name = file_name(panel, request, models, wait=wait)
    if name is None or name not in shipped_names():
        return None
    if _recorder is not None:
        _recorder.taken.add(name)
    return _opened(name)


def file_name(panel: str, request: Hashable, models: Sequence[Any], *, wait: float = -1) -> str | None:
    """The name of the file of an answer; None where none can ship."""
    if not all(_is_demo(model) for model in models):
        return None
    text = _text(request)
    facts = {id(model): _facts(model, wait) for model in models} if text else {}
    if not facts or None in facts.values():
        return None
    key = f"({text}{''.join(_written(tuple(facts[id(model)] for model in models)))})"
    return f"{panel}-{models[0].name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


@cache
def shipped_names() -> frozenset[str]:
    """The names of all files."""
    return frozenset(path.stem for path in FOLDER.glob("*.npz"))


@cache
def _panels() -> frozenset[str]:
    return frozenset(name.partition("-")[0] for name in shipped_names())


# for the writer and the tests -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Recorder:
    """What panels computed and took while it was on."""

    kinds: tuple[type, ...]
    """Only answers of these classes are recorded."""
    takes: bool
    """Whether panels may take what ships."""
    computed: dict[str, ShippedAnswer] = dataclasses.field(default_factory=dict)
    """By the name that a file of it has."""
    taken: set[str] = dataclasses.field(default_factory=set)


_recorder: Recorder | None = None


@contextmanager
def recording(*kinds: type, takes: bool = False) -> Iterator[Recorder]:
    """Record the answers of these classes that panels compute, and what they take of what ships if they may."""
    global _recorder
    _recorder = recorder = Recorder(kinds, takes)
    try:
        yield recorder
    finally:
        _recorder = None


def note(panel: str, request: Hashable, models: Sequence[Any], answer: Any) -> None:
    """Record what a panel has computed, where that is wanted; ValueError for what no file can be found by."""
    if _recorder is None or not isinstance(answer, _recorder.kinds):
        return
    name = file_name(panel, request, models)
    if name is None:
        raise ValueError(f"the request of {panel} has no name that is the same in every process: {request!r:.200}")
    _recorder.computed[name] = ShippedAnswer(panel, answer)


# inside ---------------------------------------------------------------------------------------------------------------


@cache
def _opened(name: str) -> Any:
    return ShippedAnswer.load(FOLDER / f"{name}.npz").answer


def _is_demo(model: Any) -> bool:
    """Whether a model was loaded by the name of a shipped one, whatever became of it."""
    return getattr(model, "source", None) in DEMO_NAMES


def _facts(model: Any, wait: float) -> tuple[Any, ...] | None:
    """What an answer depends on of a model that is as it was loaded; None of an edited one, or one that computes."""
    if not model.lock.acquire(timeout=wait):
        return None
    try:
        as_loaded = is_as_loaded(model)
    finally:
        model.lock.release()
    facts = (model.name, _weights_digest(model.source), str(model.dtype), model.processed, model.prepend_bos)
    return facts if as_loaded else None


@cache
def _weights_digest(source: str) -> str:
    """Of the file of a demo model's weights."""
    return xxhash.xxh3_128_hexdigest((DEMO / DEMO_NAMES[source] / "model.safetensors").read_bytes())


@lru_cache(maxsize=8)
def _text(request: Hashable) -> str:
    """A request as text, the same in every process; empty for one that no other process can know, or a long one."""
    parts: list[str] = []
    size = 0
    try:
        for part in _written(request):
            parts.append(part)
            size += len(part)
            if size > LONGEST:
                return ""
    except _OfThisProcess:
        return ""
    return "".join(parts)


class _OfThisProcess(Exception):
    """A value that is not known to be the same in another process."""


def _written(value: Any) -> Iterator[str]:
    """A request in pieces of text; equal requests have one text, in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        yield f"{value!r},"
    elif isinstance(value, tuple):
        yield "("
        for part in value:
            yield from _written(part)
        yield ")"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__qualname__}("
        for field in dataclasses.fields(value):
            if field.compare:
                yield f"{field.name}="
                yield from _written(getattr(value, field.name))
        yield ")"
    elif isinstance(value, types.FunctionType) and "<" not in value.__qualname__:
        yield f"{value.__module__}.{value.__qualname__},"
    else:
        raise _OfThisProcess(type(value).__qualname__)
