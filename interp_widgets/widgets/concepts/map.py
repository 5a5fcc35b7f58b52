"""The map tab: directions in the plane, the neighbours of the chosen concept, and what the lasso selected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.concepts import neighbours
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.concepts import ConceptMapFigure, group_colours
from interp_widgets.figures.scene import Line, Rect, Scene, Text
from interp_widgets.figures.theme import PALETTE8

from ..controls import row
from ..guard import guarded
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
        host.layout.flex = "3 1 440px"
        self.near = ConceptTable(panel, empty="Click a concept: its nearest neighbours are listed here.", height=264)
        self.selected = ConceptTable(panel, empty="Nothing selected: draw around points with the lasso.", height=200)
        self.clear = panel.on_click(
            W.Button(description="Let go", tooltip="Select nothing"), lambda: setattr(panel, "chosen", [])
        )
        beside = W.VBox([self.near.view, self.selected.view, self.clear])
        beside.add_class("iw-column")
        beside.layout.flex = "1 1 224px"
        self.box = row(host, beside)
        self.box.layout.align_items = "flex-start"
        panel.watch(panel, "chosen", lambda _: self._paint_selected())
        panel.watch(panel, "view", lambda _: self.paint())

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw the map of the results on the screen."""
        panel = self.panel
        if not panel.results or panel.tab != "map":
            return
        places = panel.results[-1].map
        both = places is not None and places.other_xy is not None
        if not both and panel.shown == "A":
            places = panel.results[0].map
        side: Any = SIDES[panel.shown] if both else "a"
        self.chart.show(places, side=side)
        self._mark()
        self._list_near()
        self._paint_selected()

    def paint_concept(self) -> None:
        """Centre the chosen concept and list its neighbours."""
        if self._mark():
            self.chart.centre(list(self.chart.places.names).index(self.panel.concept))  # type: ignore[union-attr]
        self._list_near()
        self.selected.mark()

    def _mark(self) -> bool:
        """Ring the chosen concept and its neighbours; False where it is not on the map."""
        places = self.chart.places
        if places is None or self.panel.concept not in places.names:
            return False
        names = list(places.names)
        self.chart.mark(names.index(self.panel.concept), [names.index(name) for name, _ in self._near()])
        return True

    def _near(self) -> list[tuple[str, float]]:
        found = self.panel.sets[self.panel.at[-1]]
        return neighbours(found, self.panel.concept, min(NEAREST, len(found.names) - 1))

    def _list_near(self) -> None:
        panel = self.panel
        sets, at = panel.sets, panel.at
        first = sets[0]
        heads: list[dict[str, Any]] = [{"label": "nearest"}, {"label": "group"}]
        heads += [{"label": f"cosine {panel.name_of(i)}".strip(), "align": "right"} for i in at]
        rows = []
        near = self._near()
        for name, _ in near:
            place = first.index(name)
            cosines = [float(sets[i].direction(name) @ sets[i].direction(panel.concept)) for i in at]
            rows.append([name, first.groups[place], *cosines])
        which = f" in {panel.name_of(at[-1])}" if len(at) > 1 else ""
        self.near.show([name for name, _ in near], heads, rows, f"Nearest to “{panel.concept}”{which}")

    def _paint_selected(self) -> None:
        panel = self.panel
        if not panel.sets:
            return
        if self.chart.places is not None:
            names = list(self.chart.places.names)
            self.chart.select([names.index(name) for name in panel.chosen if name in names])
        first, listed = panel.sets[0], panel.chosen[:MOST_LISTED]
        heads: list[dict[str, Any]] = [{"label": "selected"}, {"label": "group"}, {"label": "AUC", "align": "right"}]
        own = panel.sets[panel.at[-1]]
        rows = [[name, first.groups[first.index(name)], number(own.auc[own.index(name)])] for name in listed]
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
        """The map as a static picture: a square for each concept, the chosen one and its neighbours named."""
        places = self.chart.places
        if places is None:
            raise ValueError("there is no map to save: open the tab Map, with directions of at least 4 concepts")
        xy, width, height, edge = self.chart.xy, 900.0, 640.0, 56.0
        kinds, labels = group_colours(places.groups)
        low, high = xy.min(axis=0), xy.max(axis=0)
        room = np.array([width - 2 * edge, height - 2 * edge - 24])
        at = edge + (xy - low) / np.where(high > low, high - low, 1.0) * room
        at[:, 1] = height - at[:, 1]
        colors = (*PALETTE8, QUIET)
        items: list[Any] = [Text(edge, 20, str(self.chart.figure.title.text), size=14, bold=True)]
        items += [Line(edge - 8, height - edge + 8, width - edge, height - edge + 8, stroke=QUIET)]
        items += [Line(edge - 8, 40, edge - 8, height - edge + 8, stroke=QUIET)]
        items += [
            Rect(float(x) - 3, float(y) - 3, 6, 6, fill=colors[kind], radius=3, tip=str(name))
            for (x, y), kind, name in zip(at, kinds, places.names, strict=True)
        ]
        named = [i for i in (self.chart.chosen, *self.chart.neighbours) if i is not None]
        items += [Text(float(at[i, 0]) + 6, float(at[i, 1]) - 8, str(places.names[i]), size=11) for i in named]
        items += _legend(labels, colors, edge, height - 16)
        axes = self.chart.figure
        items.append(Text(width / 2, height - 32, str(axes.xaxis[0].axis_label), size=11, anchor="middle"))
        items.append(Text(20, height / 2, str(axes.yaxis[0].axis_label), size=11, anchor="middle", rotate=-90))
        return Scene(width, height, tuple(items), title="Map of concept directions")


def _legend(labels: list[str], colors: tuple[str, ...], left: float, y: float) -> list[Any]:
    items: list[Any] = []
    x = left
    for label, color in zip(labels, colors, strict=False):
        if label:
            items += [Rect(x, y - 4, 8, 8, fill=color, radius=4), Text(x + 12, y, label, size=11)]
            x += 26 + 6.2 * len(label)
    return items
