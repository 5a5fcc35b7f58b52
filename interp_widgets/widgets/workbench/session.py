"""A session: the screen of a workbench in one file, which opens again with the same results.

A file may come from anyone. Reading one runs no code, asks no server, and sets no option that is `personal`; its
results are shown in its own panels only, where the models are as they were when the results were computed. Each result
has a checksum with the panel, the request and the states that it belongs to, so that none is shown in the place of
another or with numbers that have changed since.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from interp_widgets.analysis._core.result import Record, Result, Unreadable, built, by_itself, digest_of, record
from interp_widgets.arguments import message_of
from interp_widgets.data.files import short
from interp_widgets.models import load_model
from interp_widgets.models.chat import ChatText
from interp_widgets.models.loading import needs_the_hub
from interp_widgets.models.state import FACTS, State, facts_of, state_key
from interp_widgets.renamed import OLD_CLASSES, OLD_MODULES, class_in_files, module_in_files

from ..base.controls import LONGEST_PATH
from ..base.identity import PATIENCE
from ..base.panel import Panel
from ..base.shipped import request_text
from ..base.stack import Stack
from ..base.workbench import SHARED

_CLASS = "class of interp_widgets"
_CHAT = "messages of a chat"
_PAIRS = "keys and values"
"""A mapping whose keys are no texts, such as (layer, neuron)."""
_TO_LOAD = {
    "model": str, "source": str | None, "dtype": str, "backend": str, "processed": bool, "allow_mismatch": bool | None,
}  # fmt: skip
"""What a session says about a model, to load it again, and of which type it is; earlier releases left the last out."""

Present = Mapping[int, tuple[State, Mapping[str, Any]]]
"""The state and the facts of each model when a session was opened, by the model's ``id``."""


@record
class SavedAnswer(Record):
    """The result of one model."""

    value: Any = by_itself()
    """The result."""
    states: Sequence[Any]
    """The facts of the models that it depends on, its own first, when it was computed."""
    checksum: str = ""
    """Of the result, the facts, and the panel and request that it belongs to; earlier releases wrote none."""


@record
class SavedPanel(Record):
    """One panel of a tab."""

    tab: str
    """The name of its tab in a stack; empty for a panel that is no stack."""
    answers: Sequence[Any]
    """A `SavedAnswer` per model; none if they must be computed again. Earlier releases saved the bare results."""
    request: str = ""
    """A hash of the request that they answer; earlier releases wrote none for some."""


@record
class SavedTool(Record):
    """One tab of the screen."""

    name: str
    options: Mapping[str, Any] = by_itself()
    """Its options by their names."""
    left_out: Sequence[str]
    """Options whose values are not saved: personal ones, and those that no file can hold, such as models."""
    panels: Sequence[SavedPanel]

    @classmethod
    def check_unread(cls, values: Mapping[str, Any]) -> None:
        if _repeated(values.get("panels"), "tab"):
            raise ValueError(f"two panels of its tab {short(values.get('name'))!r} have one name")


@record
class Session(Result):
    """The screen of a workbench, as `Workbench.save` writes it."""

    models: Sequence[Any]
    """For each model, the facts to load it again."""
    shared: Mapping[str, Any]
    """Prompt, response and selection."""
    view: str
    """The view of two models."""
    shown: Sequence[str]
    """The tabs that are shown."""
    tools: Sequence[SavedTool]
    """The tabs that have been opened; the first one is the texts."""

    @classmethod
    def check_unread(cls, values: Mapping[str, Any]) -> None:
        if _repeated(values.get("tools"), "name"):
            raise ValueError("two of its tabs have one name")


def session_of(screen: Any) -> Session:
    """The session of a screen as it is now."""
    bench = screen.workbench
    opened = {"texts": screen.texts, **screen.panels}
    return Session(
        models=[_to_load(model) for model in screen.models],
        shared={name: packed(getattr(bench, name)) for name in SHARED},
        view=screen.view,
        shown=screen.shown,
        tools=[_saved(name, tool) for name, tool in opened.items()] + _unopened(screen),
        provenance={"prompt": str(bench.prompt)},
    )


def read_session(path: Path) -> Session:
    """A session from a file; FileNotFoundError, or ValueError for a file that is no valid session."""
    session = Session.load(path)
    wrong = next(_faults(session), None)
    if wrong is not None:
        raise ValueError(f"{path} is not a session that Workbench.save wrote: {wrong}")
    return session


def _faults(session: Session) -> Iterator[str]:
    """What is wrong with a session, as clauses."""
    count = len(session.models)
    if count not in (1, 2):
        yield f"it holds {count:,} models, and a workbench has one or two"
    for facts in session.models[:2]:
        if not isinstance(facts, Mapping):
            yield f"it describes a model by {short(facts)!r}"
            return
        for name, kind in _TO_LOAD.items():
            value = facts.get(name)
            if not isinstance(value, kind) or (isinstance(value, str) and len(value) > LONGEST_PATH):
                yield f"the {name} of a model is {short(value)!r}"
    if unknown := sorted(set(session.shared) - set(SHARED)):
        yield f"a workbench does not share {short(unknown[0])!r}"


def opened_models(session: Session, path: Path, given: Sequence[Any], *, fetch: bool) -> tuple[Any, ...]:
    """The models of a session: those given, else loaded from where they came from, from the hub only with `fetch`.

    Raises ValueError for another number of models than the session has, and for one that came from memory, or would
    have to be fetched, and is not given.
    """
    count = len(session.models)
    if given and len(given) != count:
        raise ValueError(f"the session was saved with {count} model{'s' * (count > 1)}, got {len(given)}: give as many")
    if given:
        return tuple(given)
    loads = ", ".join(f"load_model({facts['source']!r})" for facts in session.models)
    for facts in session.models:
        if not facts["source"]:
            raise ValueError(
                f"the model {short(facts['model'])} came from memory: load it and give it, Workbench.load(path, model)"
            )
        if not fetch and needs_the_hub(facts["source"]):
            raise ValueError(
                f"the session asks for the model {short(facts['source'])!r}, which is in no folder here and would be "
                "fetched from the Hugging Face hub: if you trust that name, call "
                f"Workbench.load({str(path)!r}, {loads}), or Workbench.load({str(path)!r}, fetch=True)"
            )
    return tuple(
        load_model(
            facts["source"],
            dtype=facts["dtype"],
            backend=facts["backend"],
            processed=facts["processed"],
            allow_mismatch=bool(facts.get("allow_mismatch")),
        )
        for facts in session.models
    )


def present(models: Sequence[Any]) -> Present:
    """The state and the facts of models now; those are left out whose state does not determine what they compute."""
    states = {id(model): (model, state_key(model, exact=True)) for model in models}
    found = {key: (state, facts_of(model, state)) for key, (model, state) in states.items()}
    return {key: (state, facts) for key, (state, facts) in found.items() if facts is not None}


def restore(tool: Any, saved: SavedTool, now: Present) -> list[str]:
    """Give the panels of a tab their saved results, for the requests that their options make, where the models are as
    they were; returns why others cannot be used, as clauses."""
    reasons: list[str] = []
    for one in saved.panels:
        if one.tab not in (tool.fitting if isinstance(tool, Stack) else ("",)):
            continue
        panel: Panel = tool[one.tab] if one.tab else tool
        try:
            request = panel.request()
        except (TypeError, ValueError):  # its options ask for nothing; the panel says why
            continue
        hashed = _request_hash(request)
        if not hashed or len(one.answers) != len(panel.request_models) or one.request != hashed:
            continue  # a result of other options, such as a file of the user who saved it
        for model, answer in zip(panel.request_models, one.answers, strict=True):
            models = [model, *panel.depends_on(request, model)]
            try:
                states = _as_then(answer, models, now)
                value = unpacked(answer.value)
                if answer.checksum != _checksum(panel, hashed, packed(value), answer.states):
                    raise ValueError("the result in the session is not as it was saved")
                panel.answers.open(request, model, value, states)
            except (TypeError, ValueError) as error:
                reasons.append(message_of(error))
    return list(dict.fromkeys(reasons))


def _as_then(answer: Any, models: Sequence[Any], now: Present) -> dict[int, State]:
    """The states of the models that a saved answer depends on, by their ``id``; ValueError, whose message is a clause,
    unless they are as they were when it was computed."""
    if not isinstance(answer, SavedAnswer) or len(answer.states) != len(models):
        raise ValueError("the session does not say in which state the models were")
    others = []
    for model, then in zip(models, answer.states, strict=True):
        facts = now[id(model)][1] if id(model) in now else {}
        known = then if isinstance(then, Mapping) else {}
        other = [name.replace("_", " ") for name in FACTS if known.get(name) != facts.get(name)]
        if other:
            others.append(f"{model.name}: other {', '.join(other)}")
    if others:
        raise ValueError(f"the models are not as they were when it was saved ({'; '.join(others)})")
    return {id(model): now[id(model)][0] for model in models}


def options_of(saved: SavedTool, kind: Any) -> dict[str, Any]:
    """The saved options of a tab that it still has, without personal ones; ValueError for one that cannot be read."""
    known, declared = set(kind.options()) - set(SHARED), kind.fields()  # the workbench has the shared ones
    new_names, options = kind.old_options(), {}
    for saved_as, value in saved.options.items():
        name = new_names.get(saved_as, saved_as)
        if name not in known:
            continue
        try:
            option = unpacked(value)
        except ValueError as error:
            raise ValueError(f"{name}: {message_of(error)}") from error
        if name not in declared or not declared[name].is_personal(option):
            options[name] = option
    return options


# inside ---------------------------------------------------------------------------------------------------------------


def _repeated(records: Any, field: str) -> bool:
    """Whether two records of a file, whose fields have not been read, have one name in a field."""
    parts = [one.get("fields") for one in records if isinstance(one, Mapping)] if isinstance(records, list) else []
    names = [repr(one.get(field)) for one in parts if isinstance(one, Mapping)]
    return len(set(names)) < len(names)


def _to_load(model: Any) -> dict[str, Any]:
    return {
        "model": model.name,
        "source": None if model.source is None else str(model.source),
        "dtype": str(model.dtype).removeprefix("torch."),
        "backend": model.backend,
        "processed": model.processed,
        "allow_mismatch": model.allow_mismatch,
    }


def _saved(name: str, tool: Any) -> SavedTool:
    options, personal, unsaved = {}, [], []
    declared, usual = tool.fields(), tool.traits()
    for option in tool.options():
        value = getattr(tool, option)
        try:
            written = packed(value)
        except TypeError:
            unsaved.append(option)
            continue
        if option not in declared or not declared[option].is_personal(value):
            options[option] = written
        elif value != usual[option].default(tool):
            personal.append(option)
    panels = tool.opened_panels if isinstance(tool, Stack) else {"": tool}
    kept = []
    for tab, panel in panels.items():
        # the results depend on the options that are left out; a hash of the request shows where they are missing
        hashed = "" if panel.shown_request is None else _request_hash(panel.shown_request)
        if hashed and not unsaved:
            kept.append(SavedPanel(tab, _answers(panel, hashed), hashed))
    return SavedTool(name, options, [*personal, *unsaved], [one for one in kept if one.answers])


def _unopened(screen: Any) -> list[SavedTool]:
    """The tabs of the session that the screen was opened from and that have not been opened again, as far as they can
    be read."""
    kept = []
    for saved in screen.unopened:
        if saved.name not in screen.tools:
            continue  # a user's own panel, which has not been added
        kind = screen.tools[saved.name].load()  # imports the classes of its results
        try:
            options = {name: packed(value) for name, value in options_of(saved, kind).items()}
        except (TypeError, ValueError):  # opened now, it would be as usual
            continue
        panels = [dataclasses.replace(one, answers=_readable(one.answers)) for one in saved.panels]
        kept.append(dataclasses.replace(saved, options=options, panels=[one for one in panels if one.answers]))
    return kept


def _readable(answers: Sequence[Any]) -> list[SavedAnswer]:
    """The saved answers of a panel, read; none if one of them cannot be."""
    try:
        return [
            dataclasses.replace(one, value=packed(unpacked(one.value)))
            for one in answers
            if isinstance(one, SavedAnswer)
        ]
    except (TypeError, ValueError):
        return []


def _request_hash(request: Any) -> str:
    """See `SavedPanel.request`; empty for a request that is another in every process."""
    text = request_text(request, longest=math.inf)
    return xxhash.xxh3_128_hexdigest(text.encode("utf8", "surrogatepass")) if text else ""


def _checksum(panel: Panel, hashed: str, value: Any, states: Sequence[Any]) -> str:
    """See `SavedAnswer.checksum`, for a packed value."""
    return digest_of([type(panel).__qualname__, hashed, value, states])


def _answers(panel: Panel, hashed: str) -> list[SavedAnswer]:
    """The results of a panel, packed; none where they are incomplete or answer other settings, or where the state in
    which they were computed is unknown."""
    if not panel.has_request or len(panel.results) != len(panel.request_models) or panel.shown_request is None:
        return []
    answers = []
    try:
        if panel.shown_request != panel.request() or any(getattr(result, "partial", False) for result in panel.results):
            return []
        for model, result, states in zip(panel.request_models, panel.results, panel.shown_states, strict=False):
            models = [model, *panel.depends_on(panel.shown_request, model)]
            facts = [
                None if state is None else facts_of(one, state, wait=PATIENCE)
                for one, state in zip(models, states, strict=True)
            ]
            if None in facts:
                return []
            value, then = packed(result), [dict(one) for one in facts if one is not None]
            answers.append(SavedAnswer(value, then, _checksum(panel, hashed, value, then)))
    except (TypeError, ValueError):  # the settings ask for nothing, or no file can hold the result
        return []
    return answers if len(answers) == len(panel.results) else []


def packed(value: Any) -> Any:
    """A value in a form that a result can hold; TypeError if there is none."""
    if isinstance(value, ChatText):
        return {_CHAT: value.messages}
    if value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic | Record):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: packed(part) for key, part in value.items()}
        return {_PAIRS: [[packed(key), packed(part)] for key, part in value.items()]}
    if isinstance(value, tuple | list):
        return [packed(part) for part in value]
    kind = type(value)
    if dataclasses.is_dataclass(value) and kind.__module__.startswith("interp_widgets."):
        inside = {one.name: packed(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {_CLASS: f"{module_in_files(kind)}:{class_in_files(kind.__qualname__)}", **inside}
    raise TypeError(f"no file can hold a {kind.__name__}")


def unpacked(value: Any) -> Any:
    """The value that was packed; ValueError, whose message is a clause, if it cannot be read, for a class from outside
    the package, and for values that a class does not take."""
    if isinstance(value, Unreadable):
        value = value.again()  # the tab has been opened since, which imports the classes of its results
    if isinstance(value, Unreadable):
        raise ValueError(value.reason)
    if isinstance(value, tuple | list):
        return tuple(unpacked(part) for part in value)
    if not isinstance(value, Mapping):
        return value
    if _CHAT in value:
        messages = value[_CHAT]
        if not isinstance(messages, tuple | list) or not all(isinstance(one, Mapping) for one in messages):
            raise ValueError(f"the session holds {short(messages)!r} for the messages of a chat")
        return [dict(message) for message in messages]
    if _PAIRS in value:
        try:
            return dict(unpacked(value[_PAIRS]))
        except (TypeError, ValueError) as error:
            raise ValueError("the session holds a mapping without keys and values") from error
    parts = {key: unpacked(part) for key, part in value.items() if key != _CLASS}
    if _CLASS not in value:
        return parts
    module, _, name = str(value[_CLASS]).partition(":")
    # only what is imported already: a name in a file must not run the code of a module
    kind = (
        getattr(sys.modules.get(OLD_MODULES.get(module, module)), OLD_CLASSES.get(name, name), None)
        if module.startswith("interp_widgets.")
        else None
    )
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"the session holds a {value[_CLASS]!r:.80}, which is no class of this package")
    try:
        return built(kind, parts)
    except Exception as error:  # of whatever a class does with its values
        raise ValueError(f"the session holds a {kind.__name__} with other fields than this program's") from error
