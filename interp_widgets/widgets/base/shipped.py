"""Answers that ship with the package: the slow results that panels open with on the demo models.

``python -m interp_widgets.demo.answers`` computes and writes them. A file holds the answer of one model to one request,
and its name is derived from the panel's name, the request, and the models with the file of their weights and their
dtype. An edited model, another dtype or another option has no file. Both backends compute the same from the same
weights up to rounding, so one answer serves both.
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
from interp_widgets.renamed import class_in_files, module_in_files

FOLDER = DEMO / "answers"
LONGEST = 2**20
"""Longest request, in characters, whose answer ships."""


@record
class ShippedAnswer(Result):
    """The answer of one model to one request of a panel."""

    panel: str
    """The name under which the panel's answers are stored."""
    answer: Any
    """A result, or any value that a result may contain."""


def find(panel: str, request: Hashable, models: Sequence[Any], *, wait: float = -1) -> Any:
    """The shipped answer of the first of these models, which may depend on the others; None if there is none.

    `wait` is how long, in seconds, the interface may wait for a model that is computing.
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
    """The file name of an answer; None if it cannot ship."""
    if not all(_is_demo(model) for model in models):
        return None
    text = request_text(request)
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
    """The answers that panels computed and used while it was on."""

    kinds: tuple[type, ...]
    """Only answers of these classes are recorded."""
    takes: bool
    """Whether panels may use shipped answers."""
    computed: dict[str, ShippedAnswer] = dataclasses.field(default_factory=dict)
    """Computed answers by file name."""
    taken: set[str] = dataclasses.field(default_factory=set)


_recorder: Recorder | None = None


@contextmanager
def recording(*kinds: type, takes: bool = False) -> Iterator[Recorder]:
    """Record the answers of these classes that panels compute, and the shipped ones they use if `takes`."""
    global _recorder
    _recorder = recorder = Recorder(kinds, takes)
    try:
        yield recorder
    finally:
        _recorder = None


def note(panel: str, request: Hashable, models: Sequence[Any], answer: Any) -> None:
    """Record an answer if a recorder is on; ValueError if no file name can be derived for it."""
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
    """Whether a model was loaded by the name of a shipped one, edited or not."""
    return getattr(model, "source", None) in DEMO_NAMES


def _facts(model: Any, wait: float) -> tuple[Any, ...] | None:
    """What an answer depends on in a model as loaded; None for an edited model, or one that is computing."""
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
def request_text(request: Hashable, *, longest: float = LONGEST) -> str:
    """A request as text, the same in every process; empty if that is impossible or it has more than ``longest``
    characters."""
    parts: list[str] = []
    size = 0
    try:
        for part in _written(request):
            parts.append(part)
            size += len(part)
            if size > longest:
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
        yield f"{class_in_files(type(value).__qualname__)}("
        for field in dataclasses.fields(value):
            if field.compare:
                yield f"{field.name}="
                yield from _written(getattr(value, field.name))
        yield ")"
    elif _is_named(value):
        yield f"{module_in_files(value)}.{class_in_files(value.__qualname__)},"
    else:
        raise _OfThisProcess(type(value).__qualname__)


def _is_named(value: Any) -> bool:
    """Whether it is a function, or a class of this package, that is known by its name."""
    own = isinstance(value, type) and value.__module__.startswith("interp_widgets.")
    return (own or isinstance(value, types.FunctionType)) and "<" not in value.__qualname__
