"""How a concept browser makes directions and maps of them: what is kept, what is forecast, drafts on the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import traitlets as T

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.concepts import ConceptSet, KeptStates, concept_map_cost
from interp_widgets.analysis.concepts.directions import concept_directions_cost
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.data.concepts import Concept, check_concepts
from interp_widgets.models import Model

from ..base.answers import device_of
from ..base.fields import Bounds, field
from ..base.panel import Panel
from ..base.workbench import in_model
from .labels import MAP_LABELS, METHOD_LABELS
from .request import BrowseRequest, Listed, MadeSet, MappedConcepts, OpenedSet

MOST_TO_DRAFT = 5000
"""Of more concepts, a map takes too long to be drawn beside the run."""
STATES = ("ConceptBrowser", "states")
"""What the speedometer calls reading stimuli."""


class Making(Panel):
    """The half of the browser that computes: concepts or a file in, directions and a map out."""

    concepts = field(T.Any(()))
    """A tuple of `Concept`, from whose stimuli directions are made; the demo's unless given."""
    path = field(str)
    """A file of directions to show instead, as `ConceptSet.save` writes it; empty: they are made from `concepts`."""
    stream = field(
        Annotated[int, Bounds(lambda panel: 0, lambda panel: panel.deepest, slider=True)], -1,
        label="Layer",  # -1 until the panel is open: then the middle one
        help="The residual stream entering this layer; at the right end the one before the final norm",
    )  # fmt: skip
    method = field(METHOD_LABELS, "mean_difference", label="Directions", help="How directions are made")
    map_method = field(MAP_LABELS, "pca", label="Map", help="How directions are placed in the plane")
    seed = field(Annotated[int, Bounds(low=0)])
    """Of the map, and of the labels dealt for the control."""
    layer = in_model()
    """The selected layer, shared; the stream follows it."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self._kept: dict[int, KeptStates] = {}
        self._listed = Listed(())
        self._flops: tuple[Any, float, float] = (None, 0.0, 0.0)
        super().__init__(model, tuned, **options)

    @T.validate("concepts")
    def _are_concepts(self, proposal: Any) -> tuple[Concept, ...]:
        listed = isinstance(proposal.value, Iterable) and not isinstance(proposal.value, str)
        given = tuple(proposal.value) if listed else (proposal.value,)
        wrong = [one for one in given if not isinstance(one, Concept)]
        if wrong:
            raise T.TraitError(
                f"concepts must be Concept objects, got {wrong[0]!r}: make them with Concept(name, texts)"
            )
        return given

    @T.validate("stream", "steer_from")
    def _stream_is_there(self, proposal: Any) -> int:
        if not -1 <= proposal.value <= self.deepest:
            names = " and ".join(model.name for model in self.models)
            raise T.TraitError(
                f"{proposal.trait.name} must be in 0..{self.deepest}, the layers of {names} ({self.deepest}: before "
                f"the final norm), got {proposal.value}"
            )
        return int(proposal.value)

    @property
    def deepest(self) -> int:
        """The last stream that all models have."""
        return int(min(model.n_layers for model in self.models))

    def _names(self) -> Sequence[str]:
        return self.sets[0].names if self.results else ()

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> BrowseRequest:
        if self.path:
            return BrowseRequest(OpenedSet.at(self.path), self.map_method, self.seed)
        if self._listed.concepts is not self.concepts:
            check_concepts(self.concepts)
            self._listed = Listed(self.concepts)
        return BrowseRequest(MadeSet(self._listed, self.stream, self.method, self.seed), self.map_method, self.seed)

    def depends_on(self, request: BrowseRequest, model: Model) -> tuple[Any, ...]:
        return self.models  # the second model's map holds the first's directions too

    def compute(
        self,
        request: BrowseRequest,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> MappedConcepts:
        wanted = request.source.wanted

        def draft(found: ConceptSet) -> None:
            if model is not self.models[0] and len(found.names) < wanted:
                return  # two models are shown with the same concepts
            quick = BrowseRequest(request.source, "pca", request.seed)
            small = len(found.names) <= MOST_TO_DRAFT
            on_partial(MappedConcepts(found, quick.place(found, None, check) if small else None, wanted))

        found = self._set_of(request.source, model, progress, check, draft)
        first, last = self.models[0], self.models[-1]
        if model is last:
            base = found if first is last else self._set_of(request.source, first, progress, check, lambda _: None)
            places = self._placed(request, base, None if first is last else found, found, check)
        elif len(found.names) <= MOST_TO_DRAFT:  # shown while the second model is at work
            places = BrowseRequest(request.source, "pca", request.seed).place(found, None, check)
        else:
            places = None
        return MappedConcepts(found, places, len(found.names))

    def _placed(
        self, request: BrowseRequest, base: ConceptSet, other: ConceptSet | None, own: ConceptSet, check: Any
    ) -> Any:
        """The map of one model's directions, or of both where they share their axes."""
        began = time.monotonic()
        apart = other is not None and other.d_model != base.d_model
        places = request.place(own if apart else base, None if apart else other, check)
        if places is not None:
            cost = concept_map_cost(len(own.names), own.d_model, two=other is not None)
            speedometer.learn(_map_kind(request.map_method), "cpu", cost.flops, time.monotonic() - began)
        return places

    def _set_of(
        self, asked: MadeSet | OpenedSet, model: Model, progress: Any, check: Any, draft: Callable[[ConceptSet], None]
    ) -> ConceptSet:
        """A model's directions: those kept, or made or read now."""

        def compute() -> ConceptSet:
            if isinstance(asked, OpenedSet):
                return asked.answer(self.models)
            kept = self._kept.setdefault(id(model), KeptStates(model))
            began, share = time.monotonic(), self._missing(asked, model)
            found = asked.answer(model, kept, progress=progress, check=check, on_draft=draft)
            if share:
                flops = share * self._reading(asked, model)[0]
                speedometer.learn(STATES, device_of(model), flops, time.monotonic() - began)
            return found

        found: ConceptSet = self.answers.once(asked, model, compute)
        return found

    # what it takes ----------------------------------------------------------------------------------------------------

    def _missing(self, asked: MadeSet, model: Model) -> float:
        """Share of the stimuli that the model has to read."""
        held = self._kept.get(id(model))
        if held is None or not len(held):
            return 1.0
        texts = list(asked.listed.texts())
        return len(held.missing(texts, asked.layer)) / max(len(texts), 1)

    def _reading(self, asked: MadeSet, model: Model) -> tuple[float, float]:
        """Operations and bytes of reading all stimuli."""
        key = (asked, id(model))
        if self._flops[0] != key:
            method: Any = asked.method
            cost = concept_directions_cost(model, asked.listed.concepts, layer=asked.layer, method=method)
            self._flops = key, cost.flops, cost.bytes
        return self._flops[1:]

    def forecast_on(self, request: Any, model: Model) -> Forecast:
        """Time to the directions and the map; the shuffled control comes behind them and is not counted."""
        asked, found = request.source, Forecast(0.0, 0)
        if isinstance(asked, MadeSet) and asked.listed.concepts and not self.answers.expected(asked, model):
            share = self._missing(asked, model)
            if share:
                flops, size = self._reading(asked, model)
                found = Forecast(speedometer.seconds(STATES, device_of(model), share * flops), int(size))
        if model is self.models[-1]:
            count, two = asked.wanted or len(self._names()), len(self.models) > 1
            cost = concept_map_cost(count, model.d_model, two=two)
            found += map_forecast(request.map_method, cost, count * len(self.models))
        return found


def _map_kind(method: str) -> tuple[str, str]:
    return ("ConceptBrowser map", method)


def map_forecast(method: str, cost: Cost, count: int) -> Forecast:
    """What a map of so many directions will probably take; UMAP is compiled at its first use."""
    compiled = method != "umap" or "umap" in sys.modules
    if compiled and speedometer.knows(_map_kind(method), "cpu"):
        seconds = speedometer.seconds(_map_kind(method), "cpu", cost.flops)
    else:
        start, each = {"pca": (0.0, 2e-4), "tsne": (0.0, 4e-3), "umap": (0.0 if compiled else 15.0, 1e-3)}[method]
        seconds = start + each * count
    return Forecast(seconds, int(cost.bytes))
