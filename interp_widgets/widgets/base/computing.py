"""What a panel computes: a request on every model, its forecast, and the results that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from interp_widgets.models import Model

from ...compute.cache import results as cache
from ...compute.memory import Cost, Forecast, speedometer
from ...compute.worker import Job
from ...models.threads import SMALL, few_threads
from .identity import Identity


@dataclass(frozen=True)
class Outcome:
    """What a run brought: one result per model, for the request it answers."""

    request: Hashable
    results: tuple[Any, ...]
    seconds: float
    cached: bool = False
    partial: bool = False


class Computing:
    """The part of `Panel` that computes; it draws nothing and says nothing."""

    models: tuple[Any, ...]
    """The model, or the base model and the tuned one."""
    _identity: Identity

    # hooks ------------------------------------------------------------------------------------------------------------

    def request(self) -> Hashable:
        """What to compute, read from the traits, as a frozen and hashable object."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to compute")

    def compute(
        self,
        request: Any,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Any:
        """The result of a request on one model: what the request answers, unless a panel does it itself.

        Called in the worker's thread; must not touch widgets or traits.
        """
        if not hasattr(request, "answer"):
            raise NotImplementedError(f"{type(self).__name__} does not say how to compute")
        return request.answer(model, progress=progress, check=check, on_partial=on_partial)

    def cost(self, request: Any, model: Model) -> Cost | None:
        """What a request takes on one model: what it says itself; None if it is always quick."""
        found: Cost | None = request.cost(model) if hasattr(request, "cost") else None
        return found

    def depends_on(self, request: Any) -> tuple[Any, ...]:
        """Other models of the panel that a model's result depends on too, such as the one that writes a response."""
        return ()

    # for subclasses ---------------------------------------------------------------------------------------------------

    def once(self, request: Hashable, model: Model, compute: Callable[[], Any], *, fresh: bool = False) -> Any:
        """The result of a request on one model: the one in the cache, or computed now and kept; in the worker.

        Nothing is kept of a model that changed meanwhile, or of which it is not certain what it computes.
        """
        key = self._key(request, model, self._identity.of)
        value = None if fresh else cache.get(key)
        if value is None:
            value = compute()
            self._put_in_cache(request, model, key, value)
        return value

    def remember(self, request: Hashable, model: Model, result: Any) -> None:
        """Keep a result for another request that it answers as well; within `compute`."""
        self._put_in_cache(request, model, self._key(request, model, self._identity.at_last), result)

    def forecast(self, request: Hashable) -> Forecast:
        """Time and memory that a request will take on all models, without the results that are in the cache."""
        parts = [self._forecast(request, model) for model in self.models if not self._expected(request, model)]
        return sum(parts[1:], parts[0]) if parts else Forecast(0.0, 0)

    # inside -----------------------------------------------------------------------------------------------------------

    def _work(self, request: Hashable, job: Job, fresh: bool) -> Outcome:
        """Compute a request on every model; in the worker's thread, or in the caller's for `run`."""
        began = time.monotonic()
        results: list[Any] = []
        computed: list[int] = []

        def compute(index: int) -> Any:
            computed.append(index)
            return self._compute(request, self.models[index], job, index, tuple(results))

        for index, model in enumerate(self.models):
            job.check()
            results.append(self.once(request, model, partial(compute, index), fresh=fresh))
        return Outcome(request, tuple(results), time.monotonic() - began, cached=not computed)

    def _compute(self, request: Hashable, model: Model, job: Job, index: int, before: tuple[Any, ...]) -> Any:
        count = len(self.models)
        began = time.monotonic()
        with self._threads():
            value = self.compute(
                request,
                model,
                progress=lambda done, total: job.progress(done + index * total, count * total),
                check=job.check,
                on_partial=lambda part: job.partial(Outcome(request, (*before, part), 0.0, partial=True)),
            )
        job.check()
        cost = self.cost(request, model)
        flops = 0.0 if cost is None else float(cost.flops)
        speedometer.learn(self._kind(request), self._device(model), flops, time.monotonic() - began)
        return value

    def _threads(self) -> AbstractContextManager[None]:
        """As many processor threads as the largest model is worth."""
        return few_threads(max(getattr(model, "parameter_count", SMALL) for model in self.models))

    def _held(self, request: Hashable, model: Model) -> Any:
        """The cached result, if it is certain without a long look that the model is what it was; else None."""
        return cache.get(self._key(request, model, self._identity.at_a_glance))

    def _expected(self, request: Hashable, model: Model) -> bool:
        """Whether the worker will probably find the result in the cache, once it has read the model's weights."""
        return self._key(request, model, self._identity.probably) in cache

    def _put_in_cache(self, request: Hashable, model: Model, key: Hashable, value: Any) -> None:
        """Keep a result under the key from before it was computed, if the model still has it."""
        if self._key(request, model, self._identity.of) == key:
            cache.put(key, value)

    def _key(self, request: Hashable, model: Model, look: Callable[[Model], Hashable]) -> Hashable:
        others = tuple(look(other) for other in self.depends_on(request))
        return (type(self).__qualname__, look(model), others, request)

    def _kind(self, request: Hashable) -> Hashable:
        return (type(self).__qualname__, getattr(request, "method", None))

    def _device(self, model: Model) -> str:
        return str(getattr(model, "device", "cpu"))

    def _forecast(self, request: Hashable, model: Model) -> Forecast:
        cost, kind, device = self.cost(request, model), self._kind(request), self._device(model)
        if cost is not None:
            return speedometer.forecast(kind, device, cost)
        known = speedometer.knows(kind, device)
        return Forecast(speedometer.seconds(kind, device, 0.0) if known else 0.0, 0)
