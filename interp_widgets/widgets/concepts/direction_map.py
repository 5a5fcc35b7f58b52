"""The map tab: directions in the plane, the neighbours of the selected concept, and the lasso's selection."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.concepts import ConceptMap, ConceptSet, concept_map, concept_map_cost, neighbors
from interp_widgets.analysis.concepts.maps import FEWEST
from interp_widgets.atomic import named_path
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.figures.concepts import ConceptMapFigure
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model
from interp_widgets.models.stopping import stop_point

from ..base import pair_view
from ..base.controls import row
from ..base.fields import variant
from ..base.guard import guarded
from ..base.saving import as_one
from ..views import BokehFigure
from .directions import ConceptOptions, ConceptPanel, Directions, OpenedSet, Source
from .table import MOST_LISTED, ConceptTable, number

KEPT_FROM = 5_000
"""Concepts in an opened set above which its map is saved beside the file."""
MOST_TO_DRAFT = 5_000
"""Concepts above which a draft of the map would take too long."""
NEAREST = 12
"""Number of neighbours listed."""
SCREEN_HEIGHT = 340
"""Height of the map in pixels on a workbench's screen, where space is short."""
SIDES = {"A": "a", "B": "b", "difference": "both"}


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedConcepts(Directions):
    """One model's result: its directions and a map of them; with two models the second's map holds both."""

    map: ConceptMap | None
    """None for fewer than 4 concepts."""


@dataclass(frozen=True)
class MapRequest:
    """Directions and a map of them."""

    source: Source
    map_method: str
    seed: int = 0

    def map_of(self, concepts: ConceptSet, other: ConceptSet | None, check: Callable[[], None]) -> ConceptMap | None:
        """The map of a set, or of two that share their axes; None for too few concepts."""
        if len(concepts.names) < FEWEST:
            return None
        shared = other if other is not None and other.d_model == concepts.d_model else None
        file = self._map_file(len(concepts.names), shared is not None)
        stored = None
        if file is not None and file.is_file():
            with contextlib.suppress(ValueError):  # damaged, or from an older version: rewritten below
                stored = ConceptMap.load(file)
        made = concept_map(concepts, self.map_method, other=shared, seed=self.seed, stored=stored, check=check)  # type: ignore[arg-type]
        if file is not None and (stored is None or stored.fingerprint != made.fingerprint):
            with contextlib.suppress(OSError):  # a read-only folder: the map is computed again next time
                made.save(file)
        return made

    def draft(self, concepts: ConceptSet, check: Callable[[], None]) -> ConceptMap | None:
        """A quick map of one set."""
        if len(concepts.names) > MOST_TO_DRAFT:
            return None
        return MapRequest(self.source, "pca", self.seed).map_of(concepts, None, check)

    def _map_file(self, count: int, two: bool) -> Path | None:
        """The file of the map of a large opened set, beside it; other maps take seconds."""
        if not isinstance(self.source, OpenedSet) or count < KEPT_FROM:
            return None
        path = named_path(self.source.path, "the path")
        return path.with_name(f"{path.stem}.{self.map_method}{'-pair' if two else ''}-map.npz")


@dataclass(frozen=True)
class Places:
    """The request for the map alone, of all models' directions."""

    request: MapRequest


def map_forecast(method: str, cost: Cost, count: int) -> Forecast:
    """Forecast for a map of this many directions; UMAP is compiled at its first use."""
    compiled = method != "umap" or "umap" in sys.modules
    if compiled and speedometer.knows(_map_kind(method), "cpu"):
        seconds = speedometer.seconds(_map_kind(method), "cpu", cost.flops, own_speed=True)
    else:
        start, each = {"pca": (0.0, 2e-4), "tsne": (0.0, 4e-3), "umap": (0.0 if compiled else 15.0, 1e-3)}[method]
        seconds = start + each * count
    return Forecast(seconds, int(cost.bytes))


def _map_kind(method: str) -> tuple[str, str]:
    return ("ConceptBrowser map", method)


class DirectionMap(ConceptPanel):
    """Directions in the plane, similar ones near each other: a click centres a concept, the lasso selects many."""

    tab_name = "Map"
    first_parts = "the first concepts"
    map_method = variant(
        ConceptOptions.map_method, label="Map", group="directions", argument="",
        help="Method that projects the directions onto the plane",
    )  # fmt: skip

    def build(self) -> None:
        self.chart = ConceptMapFigure()
        self.chart.on_click(guarded(self, self._clicked))
        self.chart.on_select(guarded(self, self._lassoed))
        host = BokehFigure(self.chart.figure, on_error=self.show_error)
        self.near = ConceptTable(self, empty="Click a concept to list its nearest neighbours.", height=220)
        self.selected = ConceptTable(self, empty="Nothing selected: draw around points with the lasso.", height=180)
        self.clear = self.on_click(
            W.Button(description="Clear selection", tooltip="Select no concepts"), lambda: setattr(self, "chosen", [])
        )
        boxes = [W.VBox([self.near.view]), W.VBox([self.selected.view, self.clear])]
        for box in boxes:
            box.layout.flex = "1 1 320px"
        below = row(*boxes)
        below.layout.align_items = "flex-start"
        if self.screen is not None:
            self.chart.figure.height = SCREEN_HEIGHT
        self.arrange([host], below=[below])

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> MapRequest:
        return MapRequest(self.source, self.map_method, self.seed)

    def prepare(self, request: MapRequest) -> None:
        if self.answers.expected(Places(request), self.models[-1]):
            return
        # takes a second, only once
        RunOptions(check=stop_point).run_cancellable(lambda: import_module("sklearn.decomposition"))

    def draft(self, request: MapRequest, concepts: ConceptSet, check: Any) -> MappedConcepts:
        return MappedConcepts(concepts=concepts, map=request.draft(concepts, check))

    def answer(self, request: MapRequest, model: Model, concepts: ConceptSet, progress: Any, check: Any) -> Any:
        first, last = self.models[0], self.models[-1]
        base, tuned = (
            concepts if each is model else self.directions(request.source, each, progress, check)
            for each in (first, last)
        )
        apart = base.d_model != tuned.d_model
        mapped, other = (concepts, None) if apart or first is last else (base, tuned)

        def compute() -> ConceptMap | None:
            began = time.monotonic()
            places = request.map_of(mapped, other, check)
            if places is not None:
                cost = concept_map_cost(len(mapped.names), mapped.d_model, sets=1 + (other is not None))
                speedometer.learn(_map_kind(request.map_method), "cpu", cost.flops, time.monotonic() - began)
            return places

        owner = model if apart else last  # one map of both, where they share their axes
        return MappedConcepts(concepts=concepts, map=self.answers.cached_or_compute(Places(request), owner, compute))

    def own_forecast(self, request: MapRequest, model: Model) -> Forecast:
        if model is not self.models[-1] or self.answers.expected(Places(request), model):
            return Forecast(0.0, 0)
        count = request.source.wanted or len(self.index_of)
        cost = concept_map_cost(count, model.d_model, sets=len(self.models))
        return map_forecast(request.map_method, cost, count * len(self.models))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[MappedConcepts, ...], request: MapRequest) -> None:
        super().draw(results, request)
        places = results[-1].map
        both = places is not None and places.other_xy is not None
        if not both and self.shown == "A":
            places = results[0].map
        side: Any = SIDES[self.shown] if both else "a"
        self.chart.show(places, side=side)

    def draw_selection(self) -> None:
        super().draw_selection()
        if not self.results:
            return
        sets, at, name = self.sets, pair_view.shown_indices(self), self.shown_concept
        near = neighbors(sets[at[-1]], name, min(NEAREST, len(self.index_of) - 1))
        self._mark(self.index_of[name], [self.index_of[other] for other, _ in near])
        kinds = sets[0].groups if len(at) == 1 else None  # two numbers replace the group
        heads: list[dict[str, Any]] = [{"label": "nearest"}, *([{"label": "group"}] if kinds else [])]
        letters = pair_view.names(self)
        heads += [{"label": f"cosine {letter}".strip(), "align": "right"} for letter in letters]
        rows = []
        for other, _ in near:
            i, j = self.index_of[other], self.index_of[name]
            cosines = [float(sets[k].directions[i] @ sets[k].directions[j]) for k in at]
            rows.append([other, *([kinds[i]] if kinds else []), *cosines])
        where = f" in {letters[-1]}" if len(at) > 1 else ""
        self.near.show([other for other, _ in near], heads, rows, f"Nearest to “{name}”{where}")
        self._list_selected(sets[at[-1]])

    def _mark(self, index: int, near: list[int]) -> None:
        """Ring the concept and its neighbours; a new one is centred."""
        if self.chart.places is None:
            return
        before = self.chart.chosen
        self.chart.mark(index, near)
        if before is not None and before != index:
            self.chart.centre(index)

    def _list_selected(self, concepts: ConceptSet) -> None:
        selected = [name for name in self.chosen if name in self.index_of]
        if self.chart.places is not None:
            self.chart.select([self.index_of[name] for name in selected])
        heads: list[dict[str, Any]] = [{"label": "selected"}, {"label": "group"}, {"label": "AUC", "align": "right"}]
        listed = selected[:MOST_LISTED]
        indices = [self.index_of[name] for name in listed]
        rows = [[concepts.names[i], concepts.groups[i], number(concepts.auc[i])] for i in indices]
        self.selected.show(listed, heads, rows, f"{len(selected)} selected" if selected else "")
        self.clear.disabled = not selected

    # what a user does -------------------------------------------------------------------------------------------------

    def _clicked(self, index: int) -> None:
        if self.chart.places is not None:
            self.concept = self.chart.places.names[index]

    def _lassoed(self, indices: tuple[int, ...]) -> None:
        if self.chart.places is not None:
            self.chosen = [self.chart.places.names[i] for i in indices]

    # what is saved ----------------------------------------------------------------------------------------------------

    def stored(self) -> Result:
        parts: dict[str, Any] = {}
        for letter, result in self.by_letter().items():
            parts |= {letter or "concepts": result.concepts, f"{letter} map".strip(): result.map}
        return as_one(parts, self.tab_name)

    def scene(self) -> Scene:
        if self.chart.places is None:
            raise ValueError("there is no map to save: it needs directions of at least 4 concepts")
        return self.chart.scene()
