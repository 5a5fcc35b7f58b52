"""The answers to a panel's requests: computed on every model or taken from the cache, and how long they will take."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from interp_widgets.models import Model
from interp_widgets.models.engine import comparing_flops, comparing_seconds, decodes_in_blocks, knows_routes
from interp_widgets.models.network import Network
from interp_widgets.models.state import State, facts_of

from ...compute.cache import results as cache
from ...compute.memory import Forecast, speedometer
from ...compute.worker import Job
from . import shipped
from .heading import edits_of
from .identity import PATIENCE, Identity, state_now
from .jobs import computing
from .request import FromModel, Request

COMPARING = "comparing routes"
"""The kind of run, for forecasts, that compares the routes of a model."""
_fresh_keys: ContextVar[set[Hashable] | None] = ContextVar("anew", default=None)
"""Keys that a `fresh` run has computed so far; None in any other run."""
_taken: ContextVar[list[Hashable] | None] = ContextVar("taken", default=None)
"""Keys of the shipped answers that a run has used so far; None outside runs."""


@dataclass(frozen=True)
class Outcome:
    """What a run returned: one result per model, and the request they answer."""

    request: Hashable
    results: tuple[Any, ...]
    seconds: float
    cached: bool = False
    """Whether nothing was computed."""
    shipped: bool = False
    """Whether some of it ships with the package."""
    partial: bool = False
    states: tuple[tuple[State | None, ...], ...] = ()
    """For each result the states of the models it depends on, its own first, when it was computed; None: unknown."""
    edits: tuple[str, ...] = ()
    """The names of each model's edits then."""
    opened: bool = False
    """Whether some of it comes from a session file."""

    @property
    def source(self) -> str:
        """Where the results come from, for the status line."""
        if self.opened:
            return "from the session" if self.cached else "partly from the session"
        if self.shipped:
            return "shipped with the demo models" if self.cached else "partly shipped with the demo"
        return "from cache" if self.cached else "computed"


class Answers:
    """Answers the requests of one panel; the panel defines `compute`, `cost` and `depends_on`."""

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        self._identity = Identity()
        self._opened: dict[Hashable, Any] = {}
        """Results from a session file by their keys; anyone may have written them, so other panels do not use them."""

    @property
    def fresh(self) -> bool:
        """Whether this is called within a run that ignores the cache."""
        return _fresh_keys.get() is not None

    def cached_or_compute(self, request: Hashable, model: Model, compute: Callable[[], Any]) -> Any:
        """The result of a request on one model: from the cache, shipped with the package, or computed now and cached.

        Runs in the worker. A fresh run reuses only what it computed itself. Nothing is cached for a model that changed
        meanwhile, or whose state cannot be determined.
        """
        return self._once(request, model, compute)[0]

    def _once(
        self, request: Hashable, model: Model, compute: Callable[[], Any]
    ) -> tuple[Any, tuple[State | None, ...]]:
        """The result, and the states of the models that it depends on."""
        key, anew, taken = self._key(request, model, self._identity.of), _fresh_keys.get(), _taken.get()
        states = tuple(map(self._identity.state, self._models(request, model)))
        value = self._held(key) if anew is None or key in anew else None
        if value is None and anew is None:
            value = self._shipped(request, model)
            if value is not None and taken is not None:
                taken.append(key)
        if value is None:
            value = compute()
            self._keep(request, model, key, value)
            shipped.note(*self._question(request, model), value)
            if anew is not None:
                anew.add(key)
        for one, state in zip(self._models(request, model), states, strict=True):
            if state is not None:
                facts_of(one, state)  # for sessions, while the model is in this state
        return value, states

    def open(self, request: Hashable, model: Model, value: Any, states: Mapping[int, State]) -> None:
        """Take a result from a session file as the answer to a request, for this panel only; `states` are those of the
        models that it depends on, by ``id``."""
        for one in self._models(request, model):
            self._identity.note(one, states[id(one)])
        self._opened[self._key(request, model, self._identity.at_last)] = value

    def forget_opened(self) -> None:
        """Drop the results from a session file."""
        self._opened = {}

    def remember(self, request: Hashable, model: Model, result: Any) -> None:
        """Cache a result under another request that it also answers; called within `compute`."""
        self._keep(request, model, self._key(request, model, self._identity.at_last), result)

    def work(self, request: Hashable, job: Job, *, fresh: bool = False) -> Outcome:
        """Answer a request on every model, in the worker's thread (for `run`, in the caller's)."""
        with computing(self._panel.models, job):
            self._panel.prepare(request)
        began = time.monotonic()
        edits = tuple(map(edits_of, self._panel.models))
        results: list[Any] = []
        states: list[tuple[State | None, ...]] = []
        computed: list[int] = []

        @functools.cache
        def find(argument: FromModel) -> Any:
            return argument.find(self._panel.models[argument.index], job.check)

        def compute(index: int) -> Any:
            computed.append(index)
            return self._compute(request, index, job, tuple(results), find)

        taken: list[Hashable] = []
        marks = _fresh_keys.set(set() if fresh else None), _taken.set(taken)
        try:
            for index, model in enumerate(self._panel.request_models):
                job.check()
                value, of = self._once(request, model, partial(compute, index))
                results.append(value)
                states.append(of)
        finally:
            _fresh_keys.reset(marks[0])
            _taken.reset(marks[1])
        seconds = time.monotonic() - began
        return Outcome(
            request, tuple(results), seconds, cached=not computed, shipped=bool(taken), states=tuple(states),
            edits=edits, opened=self._are_opened(results),
        )  # fmt: skip

    def cached(self, request: Hashable) -> Outcome | None:
        """The cached or shipped answer, if the models can be seen to be unchanged without reading all their weights."""
        self._identity.missed = False
        look = self._identity.at_a_glance
        edits, kept = tuple(map(edits_of, self._panel.models)), list[Any]()
        states: list[tuple[State | None, ...]] = []
        for model in self._panel.request_models:
            kept.append(self._held(self._key(request, model, look)))
            states.append(tuple(map(self._identity.state, self._models(request, model))))
        missing = [index for index, value in enumerate(kept) if value is None]
        for index in missing:
            kept[index] = self._shipped(request, self._panel.request_models[index], wait=PATIENCE)
            if kept[index] is None:
                return None
            models = self._models(request, self._panel.request_models[index])
            states[index] = tuple(state_now(model, wait=PATIENCE) for model in models)
        return Outcome(
            request, tuple(kept), 0.0, cached=True, shipped=bool(missing), states=tuple(states), edits=edits,
            opened=self._are_opened(kept),
        )  # fmt: skip

    def expected(self, request: Hashable, model: Model) -> bool:
        """Whether the worker will probably find the result in the cache or among the shipped answers, once it has read
        the model's weights."""
        return self._panel.reuses and (
            self._held(self._key(request, model, self._identity.probably)) is not None
            or self._shipped(request, model, wait=PATIENCE) is not None
        )

    def forecast(self, request: Hashable) -> Forecast:
        """Time and memory that a request will take on all models; cached results count as nothing."""
        missing = [model for model in self._panel.request_models if not self.expected(request, model)]
        parts = [self._panel.forecast_on(request, model) for model in missing]
        parts += [_comparing(model) for model in self._networks() if model in missing and not knows_routes(model)]
        return sum(parts[1:], parts[0]) if parts else Forecast(0.0, 0)

    @property
    def assumed(self) -> bool:
        """Whether something was assumed since `cached` was last called, because a model computes or has never run."""
        return self._identity.missed or not all(map(knows_routes, self._networks()))

    def find_out(self) -> None:
        """Find out what forecasts assume of a model that has never run; in the worker."""
        for model in self._networks():
            before = comparing_seconds(model)
            decodes_in_blocks(model)
            _learn_comparing(model, before)

    def measured(self, request: Hashable, model: Model) -> Forecast:
        """Time and memory of a request on one model, from its cost and the speed of earlier runs."""
        cost, kind, device = self._panel.cost(request, model), self._kind(request), device_of(model)
        if cost is not None:
            return speedometer.forecast(kind, device, cost)
        known = speedometer.knows(kind, device)
        return Forecast(speedometer.seconds(kind, device, 0.0) if known else 0.0, 0)

    # inside -----------------------------------------------------------------------------------------------------------

    def _networks(self) -> list[Network]:
        return [model for model in self._panel.request_models if isinstance(model, Network)]

    def _compute(
        self,
        request: Hashable,
        index: int,
        job: Job,
        before: tuple[Any, ...],
        find: Callable[[FromModel], Any],
    ) -> Any:
        panel, model, count = self._panel, self._panel.request_models[index], len(self._panel.request_models)
        networks = self._networks()
        compared, began = tuple(map(comparing_seconds, networks)), time.monotonic()

        def progress(done: int, total: int) -> None:
            job.progress(done + index * total, count * total)
            if panel.preemptible:
                job.give_way()

        with computing(panel.models, job):
            call = request
            if isinstance(request, Request):
                call = request.filled(lambda value: find(value) if isinstance(value, FromModel) else value)
            value = panel.compute(
                call,
                model,
                progress=progress,
                check=job.check,
                on_partial=lambda part: job.partial(Outcome(request, (*before, part), 0.0, partial=True)),
            )
        job.check()
        cost = panel.cost(request, model)
        flops = 0.0 if cost is None else float(cost.flops)
        seconds = time.monotonic() - began - job.yielded_seconds
        seconds -= sum(_learn_comparing(*of) for of in zip(networks, compared, strict=True))
        speedometer.learn(self._kind(request), device_of(model), flops, seconds)
        return value

    def _keep(self, request: Hashable, model: Model, key: Hashable, value: Any) -> None:
        """Cache a result under the key taken before the run, if the model still has that key."""
        if self._key(request, model, self._identity.of) == key:
            cache.put(key, value)

    def _key(self, request: Hashable, model: Model, look: Callable[[Model], Hashable]) -> Hashable:
        name, question, (first, *others) = self._question(request, model)
        return (name, look(first), tuple(map(look, others)), question)

    def _question(self, request: Hashable, model: Model) -> tuple[str, Hashable, list[Any]]:
        """The panel's name, the part of the request for this model, and the models it depends on, this one first."""
        return self._name, self._panel.request_for(request, model), self._models(request, model)

    def _models(self, request: Hashable, model: Model) -> list[Any]:
        """The models that a result depends on, its own first."""
        return [model, *self._panel.depends_on(request, model)]

    def _held(self, key: Hashable) -> Any:
        """The result under a key, cached or from a session file; None if there is none."""
        value = cache.get(key)
        return self._opened.get(key) if value is None else value

    def _are_opened(self, values: Sequence[Any]) -> bool:
        """Whether some of these results come from a session file."""
        return any(value is one for value in values for one in self._opened.values())

    def _shipped(self, request: Hashable, model: Model, *, wait: float = -1) -> Any:
        """The answer that ships with the package, or None."""
        return shipped.find(*self._question(request, model), wait=wait)

    def _kind(self, request: Hashable) -> Hashable:
        method = dict(getattr(request, "arguments", ())).get("method")  # each method has its own speed
        return (self._name, getattr(request, "method", None), method)

    @property
    def _name(self) -> str:
        return str(self._panel.cached_as or type(self._panel).__qualname__)


def once_for(
    results: tuple[Any, ...], what: Hashable, compute: Callable[[], Any], *, models: Sequence[Model] = ()
) -> Any:
    """Compute something from results, once for all panels that show them; in the worker, if it runs `models`."""
    key = (what, *map(id, results), *map(Identity().of, models))  # the cache keeps the results alive: ids are unique
    entry = cache.get(key)
    if entry is None:
        entry = compute(), results
        if key[1 + len(results) :] == tuple(map(Identity().of, models)):  # not edited meanwhile
            cache.put(key, entry)
    return entry[0]


def device_of(model: Model | Network) -> str:
    """The name of a model's device."""
    return str(getattr(model, "device", "cpu"))


def _comparing(model: Network) -> Forecast:
    """The forecast of comparing a model's routes, which its first run does."""
    return Forecast(speedometer.seconds(COMPARING, device_of(model), comparing_flops(model)), 0)


def _learn_comparing(model: Network, before: float) -> float:
    """Learn from the comparisons made since `comparing_seconds` was ``before``; the seconds that they took."""
    seconds = max(0.0, comparing_seconds(model) - before)
    speedometer.learn(COMPARING, device_of(model), comparing_flops(model), seconds)
    return seconds
