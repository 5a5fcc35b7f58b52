"""What a panel computes: a request on every model, its forecast, and the results that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from interp_widgets.models import Model

from ..compute.cache import results as cache
from ..compute.memory import Cost, Forecast, speedometer
from ..compute.worker import Job
from ..models.threads import SMALL, few_threads
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

    def leans_on(self, request: Any) -> tuple[Any, ...]:
        """Other models of the panel that a model's result hangs on too, such as the one that writes a response."""
        return ()

    # for subclasses ---------------------------------------------------------------------------------------------------

    def remember(self, request: Hashable, model: Model, result: Any) -> None:
        """Keep a result for another request that it answers as well."""
        cache.put(self._key(request, model), result)

    def forecast(self, request: Hashable) -> Forecast:
        """Time and memory that a request will take on all models, without the results that are in the cache."""
        parts = [self._forecast(request, model) for model in self.models if self._held(request, model) is None]
        return sum(parts[1:], parts[0]) if parts else Forecast(0.0, 0)

    # inside -----------------------------------------------------------------------------------------------------------

    def _work(self, request: Hashable, job: Job, fresh: bool) -> Outcome:
        """Compute a request on every model; in the worker's thread, or in the caller's for `run`."""
        began = time.monotonic()
        results: list[Any] = []
        computed = 0
        for index, model in enumerate(self.models):
            job.check()
            key = self._key(request, model)
            value = None if fresh else cache.get(key)
            if value is None:
                value = self._compute(request, model, job, index, tuple(results))
                cache.put(key, value)
                computed += 1
            results.append(value)
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
        """The cached result, if the model's hash is known already: taking it may be long and is left to the worker."""
        if not all(self._identity.knows(one) for one in (model, *self.leans_on(request))):
            return None
        return cache.get(self._key(request, model))

    def _key(self, request: Hashable, model: Model) -> Hashable:
        others = tuple(self._identity.of(other) for other in self.leans_on(request))
        return (type(self).__qualname__, self._identity.of(model), others, request)

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
