"""The map tab: directions in the plane, the neighbours of the chosen concept, and what the lasso selected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.concepts import neighbours
from interp_widgets.figures.concepts import ConceptMapFigure
from interp_widgets.figures.static import Scene

from ..base.controls import row
from ..base.guard import guarded
from ..views import BokehFigure
from .listing import MOST_LISTED, ConceptTable, number

if TYPE_CHECKING:
    from .browser import ConceptBrowser

NEAREST = 12
"""Neighbours that are listed."""
SIDES = {"A": "a", "B": "b", "difference": "both"}


class MapTab:
    """Map, neighbours, selected concepts."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.chart = ConceptMapFigure()
        self.chart.on_click(guarded(panel, self._clicked))
        self.chart.on_select(guarded(panel, self._lassoed))
        host = W.VBox([BokehFigure(self.chart.figure, on_error=panel.show_error)])
        host.layout.flex = "3 1 420px"
        self.near = ConceptTable(panel, empty="Click a concept: its nearest neighbours are listed here.", height=264)
        self.selected = ConceptTable(panel, empty="Nothing selected: draw around points with the lasso.", height=200)
        self.clear = panel.on_click(
            W.Button(description="Let go", tooltip="Select nothing"), lambda: setattr(panel, "chosen", [])
        )
        beside = W.VBox([self.near.view, self.selected.view, self.clear])
        beside.add_class("iw-column")
        beside.layout.flex = "1 1 264px"
        self.box = row(host, beside)
        self.box.layout.align_items = "flex-start"
        panel.watch(panel, "chosen", lambda _: self._paint_selected())
        panel.watch(panel, "view", lambda _: self.paint())

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw the map of the results on the screen."""
        if not self.panel.results or self.panel.tab != "map":
            return
        self._show()
        self._list_near()
        self._paint_selected()

    def _show(self) -> None:
        panel = self.panel
        places = panel.results[-1].map
        both = places is not None and places.other_xy is not None
        if not both and panel.shown == "A":
            places = panel.results[0].map
        side: Any = SIDES[panel.shown] if both else "a"
        self.chart.show(places, side=side)
        self._mark()

    def paint_concept(self) -> None:
        """Centre the chosen concept and list its neighbours."""
        if self._mark():
            self.chart.centre(self.panel.place[self.panel.concept])
        self._list_near()
        self.selected.mark()

    def _mark(self) -> bool:
        """Ring the chosen concept and its neighbours; False where it is not on the map."""
        place = self.panel.place
        if self.chart.places is None or self.panel.concept not in place:
            return False
        self.chart.mark(place[self.panel.concept], [place[name] for name, _ in self._near()])
        return True

    def _near(self) -> list[tuple[str, float]]:
        found = self.panel.sets[self.panel.at[-1]]
        return neighbours(found, self.panel.concept, min(NEAREST, len(found.names) - 1))

    def _list_near(self) -> None:
        panel = self.panel
        sets, at = panel.sets, panel.at
        first = sets[0]
        kinds = first.groups if len(at) == 1 else None  # two numbers take the place of the group
        heads: list[dict[str, Any]] = [{"label": "nearest"}, *([{"label": "group"}] if kinds else [])]
        heads += [{"label": f"cosine {panel.name_of(i)}".strip(), "align": "right"} for i in at]
        rows = []
        near = self._near()
        for name, _ in near:
            one, other = panel.place[name], panel.place[panel.concept]
            cosines = [float(sets[i].directions[one] @ sets[i].directions[other]) for i in at]
            rows.append([name, *([kinds[one]] if kinds else []), *cosines])
        which = f" in {panel.name_of(at[-1])}" if len(at) > 1 else ""
        self.near.show([name for name, _ in near], heads, rows, f"Nearest to “{panel.concept}”{which}")

    def _paint_selected(self) -> None:
        panel = self.panel
        if not panel.sets or panel.tab != "map":
            return
        if self.chart.places is not None:
            self.chart.select([panel.place[name] for name in panel.chosen if name in panel.place])
        first, listed = panel.sets[0], panel.chosen[:MOST_LISTED]
        heads: list[dict[str, Any]] = [{"label": "selected"}, {"label": "group"}, {"label": "AUC", "align": "right"}]
        own = panel.sets[panel.at[-1]]
        rows = [[name, first.groups[panel.place[name]], number(own.auc[panel.place[name]])] for name in listed]
        said = f"{len(panel.chosen)} selected" if panel.chosen else ""
        self.selected.show(listed, heads, rows, said)
        self.clear.disabled = not panel.chosen

    # what a user does -------------------------------------------------------------------------------------------------

    def _clicked(self, index: int) -> None:
        if self.chart.places is not None:
            self.panel.concept = self.chart.places.names[index]

    def _lassoed(self, indices: tuple[int, ...]) -> None:
        if self.chart.places is not None:
            self.panel.chosen = [self.chart.places.names[i] for i in indices]

    # saving -----------------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The map as it is shown, as a static picture."""
        if self.chart.places is None:
            raise ValueError("there is no map to save: open the tab Map, with directions of at least 4 concepts")
        return self.chart.scene()
