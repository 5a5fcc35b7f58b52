"""A session: the screen of a workbench in one file, which opens again with the same results."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.analysis._core.result import Record, Result, record
from interp_widgets.models import load_model
from interp_widgets.models.chat import ChatText

from ...compute.worker import Job
from ..base.identity import models_if_free
from ..base.panel import Panel
from ..base.stack import Stack
from ..base.workbench import SHARED

_CLASS = "class of interp_widgets"
_CHAT = "messages of a chat"
_SAME = ("weight_hash", "dtype", "backend", "processed")
"""Facts about a model that must be unchanged for its results to be reused."""


@record
class SavedPanel(Record):
    """One panel of a tab."""

    tab: str
    """The name of its tab in a stack; empty for a panel that is no stack."""
    answers: Sequence[Any]
    """Its results, one per model; none if they must be computed again."""


@record
class SavedTool(Record):
    """One tab of the screen."""

    name: str
    options: Mapping[str, Any]
    """Its options by their names."""
    left_out: Sequence[str]
    """Options whose values cannot be saved, such as models."""
    panels: Sequence[SavedPanel]


@record
class Session(Result):
    """The screen of a workbench, as `Workbench.save` writes it."""

    models: Sequence[Any]
    """For each model, the facts to load it again and to recognise it."""
    shared: Mapping[str, Any]
    """Prompt, response and selection."""
    view: str
    """The view of two models."""
    shown: Sequence[str]
    """The tabs that are shown."""
    tools: Sequence[SavedTool]
    """The tabs that have been opened; the first one is the texts."""


def session_of(screen: Any, facts: Sequence[dict[str, Any]]) -> Session:
    """The session of a screen as it is now, with the `model_facts` of its models."""
    bench = screen.workbench
    opened = {"texts": screen.texts, **screen.panels}
    return Session(
        models=facts,
        shared={name: packed(getattr(bench, name)) for name in SHARED},
        view=screen.view,
        shown=screen.shown,
        tools=[_saved(name, tool) for name, tool in opened.items()],
        provenance={"prompt": str(bench.prompt)},
    )


def model_facts(models: Sequence[Any]) -> list[dict[str, Any]]:
    """For each model, what a session says of it; waits while a model computes."""
    return [_facts(model) for model in models]


def opened_models(session: Session, given: Sequence[Any]) -> tuple[Any, ...]:
    """The models of a session: those given, else loaded from where they came from.

    Raises ValueError for another number of models than the session has, or one that came from memory and is not given.
    """
    count = len(session.models)
    if given and len(given) != count:
        raise ValueError(f"the session was saved with {count} model{'s' * (count > 1)}, got {len(given)}: give as many")
    if given:
        return tuple(given)
    for facts in session.models:
        if not facts["source"]:
            raise ValueError(
                f"the model {facts['model']} came from memory: load it and give it, Workbench.load(path, model)"
            )
    return tuple(
        load_model(facts["source"], dtype=facts["dtype"], backend=facts["backend"], processed=facts["processed"])
        for facts in session.models
    )


def differences(session: Session, models: Sequence[Any]) -> list[str]:
    """How the models differ from those of the saved session, in words; empty if its results can be used."""
    found = []
    for facts, model in zip(session.models, models, strict=True):
        (now,) = model_facts([model])
        other = [name.replace("_", " ") for name in _SAME if now[name] != facts[name]]
        other += ["edits"] * bool(now["edited"] or facts["edited"])
        if other:
            found.append(f"{facts['model']}: other {', '.join(other)}")
    return found


def restore(tool: Any, saved: SavedTool) -> None:
    """Give the panels of a tab their saved results, for the requests that their options make: at once, or while a model
    computes, whose state is read for it, in the background before the panels' own runs."""
    for one in saved.panels:
        if one.tab and one.tab not in tool.fitting:
            continue
        panel: Panel = tool[one.tab] if one.tab else tool
        put, show = partial(_put_answers, panel, panel.request(), one.answers), partial(_show_answers, panel)
        with models_if_free(panel.models) as free:
            if free:
                put()
            else:
                panel.jobs.start(put, show, title="Opening the session", channel="session", quiet=True)


def _put_answers(panel: Panel, request: Any, answers: Sequence[Any], _: Job | None = None) -> None:
    for model, answer in zip(panel.request_models, answers, strict=True):
        panel.answers.once(request, model, partial(unpacked, answer))


def _show_answers(panel: Panel, _: Any) -> None:
    if panel.active and not panel.results:
        panel.refresh()


def options_of(saved: SavedTool, kind: Any) -> dict[str, Any]:
    """The saved options of a tab that it still has."""
    known = set(kind.options()) - set(SHARED)  # which the workbench has
    return {name: unpacked(value) for name, value in saved.options.items() if name in known}


# inside ---------------------------------------------------------------------------------------------------------------


def _facts(model: Any) -> dict[str, Any]:
    known = model.provenance()
    source = model.source
    facts = {name: known.get(name) for name in ("model", *_SAME)}
    return {**facts, "source": None if source is None else str(source), "edited": str(known.get("edited", ""))}


def _saved(name: str, tool: Any) -> SavedTool:
    options, left_out = {}, []
    for option in tool.options():
        try:
            options[option] = packed(getattr(tool, option))
        except TypeError:
            left_out.append(option)
    panels = tool.opened_panels if isinstance(tool, Stack) else {"": tool}
    # the results depend on the options that are left out
    kept = [SavedPanel(tab, [] if left_out else _answers(panel)) for tab, panel in panels.items()]
    return SavedTool(name, options, left_out, [one for one in kept if one.answers])


def _answers(panel: Panel) -> list[Any]:
    """The results of a panel, packed; none where they are incomplete or answer other settings."""
    if not panel.asks or len(panel.results) != len(panel.request_models) or panel.shown_request is None:
        return []
    try:
        if panel.shown_request != panel.request() or any(getattr(result, "partial", False) for result in panel.results):
            return []
        return [packed(result) for result in panel.results]
    except (TypeError, ValueError):  # the settings ask for nothing, or no file can hold the result
        return []


def packed(value: Any) -> Any:
    """A value in a form that a result can hold; TypeError if there is none."""
    if isinstance(value, ChatText):
        return {_CHAT: value.messages}
    if value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic | Record):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): packed(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [packed(part) for part in value]
    kind = type(value)
    if dataclasses.is_dataclass(value) and kind.__module__.startswith("interp_widgets."):
        inside = {one.name: packed(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {_CLASS: f"{kind.__module__}:{kind.__qualname__}", **inside}
    raise TypeError(f"no file can hold a {kind.__name__}")


def unpacked(value: Any) -> Any:
    """The value that was packed; ValueError for a class from outside the package."""
    if isinstance(value, tuple | list):
        return tuple(unpacked(part) for part in value)
    if not isinstance(value, Mapping):
        return value
    if _CHAT in value:
        return [dict(message) for message in value[_CHAT]]
    parts = {key: unpacked(part) for key, part in value.items() if key != _CLASS}
    if _CLASS not in value:
        return parts
    module, _, name = str(value[_CLASS]).partition(":")
    kind = getattr(importlib.import_module(module), name, None) if module.startswith("interp_widgets.") else None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"the session holds a {value[_CLASS]!r:.80}, which is no class of this package")
    return kind(**parts)
