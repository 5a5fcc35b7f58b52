"""The map of concept directions: a point for each, its group as colour, its name on hover; up to 40,000 of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from bokeh.events import SelectionGeometry
from bokeh.models import Range1d
from numpy.typing import NDArray

from interp_widgets.analysis.concepts import ConceptMap
from interp_widgets.figures.chart import Chart, plain_label
from interp_widgets.figures.concepts.glyphs import (
    EQUAL_ASPECT,
    add_tools,
    draw_arrows,
    draw_marks,
    draw_points,
    legend_items,
)
from interp_widgets.figures.concepts.groups import LOOKS, group_looks
from interp_widgets.figures.concepts.names import name_order
from interp_widgets.figures.concepts.picture import concept_map_scene
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.static import Scene
from interp_widgets.figures.theme import MARK, SELECT, rgba

Side = Literal["a", "b", "both"]
"""Positions in a map of two models: the first's, the second's, or the first's with arrows to the second's."""

Floats = NDArray[np.floating[Any]]

_MOST_ARROWS = 200


class ConceptMapFigure(Chart):
    """Concept directions in the plane, the 32 largest groups distinguished by colour and shape, all others grey.

    Names are shown where there is room, more of them when zoomed in. Hovering over a point shows its name; a tap
    selects it, the lasso and the box select many. Both reach Python through `on_click` and `on_select`. `mark` rings a
    concept and its neighbours; `centre` moves the map to one.

    Args:
        places: a map, or None for a sentence in its place.
        options: those of `show`.

    Example:
        >>> from interp_widgets import concept_directions, concept_map, demo_concepts
        >>> places = concept_map(concept_directions(model, demo_concepts()[::50], layer=3), "pca")
        >>> chart = ConceptMapFigure(places)
        >>> chart.on_click(lambda index: print(places.names[index]))
        >>> chart.source.data["name"]
        ['France', 'Beijing', 'duck', 'car', 'Ophirs']
    """

    EMPTY: ClassVar[str] = "No map yet: it needs directions of at least 4 concepts."
    TITLE: ClassVar[str] = "Concept directions"
    METHODS: ClassVar[dict[str, str]] = {"umap": "UMAP", "pca": "principal components", "tsne": "t-SNE"}
    AXES: ClassVar[dict[str, str]] = {
        "umap": "UMAP {} (no unit)",
        "pca": "principal component {}",
        "tsne": "t-SNE {} (no unit)",
    }

    def __init__(self, places: ConceptMap | None = None, **options: Any) -> None:
        self._clicks: list[Callable[[int], None]] = []
        self._selects: list[Callable[[tuple[int, ...]], None]] = []
        self.places: ConceptMap | None = None
        self.side: Side = "a"
        self.chosen: int | None = None
        self.neighbours: tuple[int, ...] = ()
        self._selected: tuple[int, ...] = ()
        self.start(
            "concept_map", self.TITLE, ("", ""), columns=("x", "y", "name", "group", "color", "shape", "rank"),
            tooltips=[("", "@name"), ("group", "@group")], height=480, tools="", x_range=Range1d(0, 1),
            y_range=Range1d(0, 1), lod_threshold=3000, lod_factor=16, lod_timeout=200,
        )  # fmt: skip
        self.figure.tags = [EQUAL_ASPECT]
        self._points = draw_points(self.figure, self.source)
        self.arrows, self.marks = draw_arrows(self.figure), draw_marks(self.figure)
        add_tools(self.figure, self._points, self.tooltips)
        self._groups = legend_items(self.figure, LOOKS)
        self.legend(self._groups, columns=5)
        self.figure.on_event(SelectionGeometry, self._picked)
        self.show(places, **options)

    # ---- what is shown

    def show(
        self,
        places: ConceptMap | None,
        *,
        side: Side = "a",
        names: tuple[str, str] = ("A", "B"),
        moved: int | Sequence[int] = 12,
    ) -> None:
        """Show a map; the same concepts keep their selection and marks.

        Args:
            places: None shows a sentence instead.
            side: for a map of two models: "a", "b", or "both" with arrows from the first's positions to the second's.
            names: of the two models.
            moved: which concepts get an arrow: the number that moved farthest, or their indices; at most 200.

        Raises:
            ValueError: an unknown side, the second model's side of a map of one, or an index out of range.
        """
        if side not in get_args(Side):
            raise ValueError(f"side must be one of {', '.join(get_args(Side))}, got {side!r}")
        if places is not None and places.other_xy is None and side != "a":
            raise ValueError(f"side {side!r} needs a map of two models: pass concept_map a second set as other=")
        before, self.places, self.side = self.places, places, side
        if places is None:
            return self._clear()
        if before is None or tuple(before.names) != tuple(places.names):
            self.chosen, self.neighbours, self._selected = None, (), ()
        self._fill_points(places)
        self._fill_arrows(places, moved)
        self._set_axes(places)
        self._fill_marks()
        shown = {"a": f", {names[0]}", "b": f", {names[1]}", "both": f", {names[0]} → {names[1]}"}[side]
        title = f"{self.TITLE} ({self.METHODS[places.method]})"
        self.figure.title.text = plain_label(title + (shown if places.other_xy is not None else ""))

    def _clear(self) -> None:
        self.chosen, self.neighbours, self._selected = None, (), ()
        for source in (self.marks, self.arrows):
            source.data = {column: [] for column in source.data}
        for item in self._groups:
            item.visible = False
        self.figure.title.text = self.TITLE
        self.say()

    @property
    def xy(self) -> Floats:
        """(concepts, 2) the positions shown."""
        if self.places is None:
            return np.empty((0, 2))
        second = self.places.other_xy if self.side == "b" else None
        return self.places.xy if second is None else second

    def _fill_points(self, places: ConceptMap) -> None:
        looks, labels = group_looks(places.groups)
        table = np.array([rgba(look.colour) for look in LOOKS], dtype=np.uint8)
        rank = np.empty(len(looks), dtype=np.int32)
        rank[name_order(looks)] = np.arange(len(looks))
        selected, count = self._selected, len(places.names)
        self._points.glyph.size = 9 if count <= 500 else 6 if count <= 5000 else 4
        self.fill(
            {
                "x": np.ascontiguousarray(self.xy[:, 0]), "y": np.ascontiguousarray(self.xy[:, 1]),
                "name": [axis_name(name) for name in places.names], "group": list(places.groups),
                "color": np.ascontiguousarray(table[looks]), "shape": [LOOKS[i].shape for i in looks.tolist()],
                "rank": rank,
            },
            subtitle=self._summary(places),
        )  # fmt: skip
        self.source.selected.indices = list(selected)
        for item, label in zip(self._groups, [*labels, *[""] * len(self._groups)], strict=False):
            item.update(label={"value": label}, visible=bool(label))

    def _summary(self, places: ConceptMap) -> str:
        count = f"{len(places.names):,} concepts"
        if places.explained is not None:
            return f"{count} · the plane holds {places.explained:.0%} of the variance"
        return f"{count} · {places.recall:.0%} of the 10 nearest are near here"

    def _fill_arrows(self, places: ConceptMap, moved: int | Sequence[int]) -> None:
        rows: dict[str, list[Any]] = {column: [] for column in self.arrows.data}
        if places.other_xy is not None and places.moved is not None and self.side == "both":
            if isinstance(moved, int):
                chosen = np.argsort(-places.moved, kind="stable")[: min(moved, _MOST_ARROWS)].tolist()
            else:
                chosen = self._checked(moved)[:_MOST_ARROWS]
            looks, _ = group_looks(places.groups)
            for i in chosen:
                (x0, y0), (x1, y1) = places.xy[i].tolist(), places.other_xy[i].tolist()
                color = LOOKS[looks[i]].colour
                for column, entry in {"x0": x0, "y0": y0, "x1": x1, "y1": y1, "color": color}.items():
                    rows[column].append(entry)
        self.arrows.data = rows

    def _fill_marks(self) -> None:
        wanted = [(i, 13, SELECT) for i in self.neighbours]
        wanted += [] if self.chosen is None else [(self.chosen, 18, MARK)]
        indices = [i for i, _, _ in wanted]
        self.marks.data = {
            "x": self.xy[indices, 0].tolist(), "y": self.xy[indices, 1].tolist(),
            "size": [size for _, size, _ in wanted], "color": [color for _, _, color in wanted],
            "name": [self.source.data["name"][i] for i in indices],
            "chosen": [i == self.chosen for i in indices],
        }  # fmt: skip

    def _set_axes(self, places: ConceptMap) -> None:
        figure = self.figure
        for k, (axis, reach) in enumerate(((figure.xaxis[0], figure.x_range), (figure.yaxis[0], figure.y_range))):
            axis.axis_label = self.AXES[places.method].format(k + 1)
            values = self.xy[:, k] if places.other_xy is None else np.append(places.xy[:, k], places.other_xy[:, k])
            low, high = float(values.min()), float(values.max())
            room = 0.04 * (high - low or 1.0)
            ends = {"start": low - room, "end": high + room}
            if (reach.reset_start, reach.reset_end) != tuple(ends.values()):  # else keep the user's zoom
                reach.update(**ends, reset_start=ends["start"], reset_end=ends["end"])

    # ---- marks, selection, centre

    def _checked(self, indices: Iterable[int]) -> list[int]:
        count = 0 if self.places is None else len(self.places.names)
        checked = [int(i) for i in indices]
        wrong = [i for i in checked if not 0 <= i < count]
        if wrong:
            raise ValueError(f"concepts of this map are counted from 0 to {count - 1}, got {wrong[0]}")
        return checked

    def mark(self, chosen: int | None = None, neighbours: Sequence[int] = ()) -> None:
        """Ring a concept and its neighbours, by index, and name them; without arguments, remove the rings."""
        near = tuple(self._checked(neighbours))
        self.chosen = None if chosen is None else self._checked([chosen])[0]
        self.neighbours = tuple(i for i in near if i != self.chosen)
        self._fill_marks()

    def select(self, indices: Iterable[int]) -> None:
        """Select concepts from Python; the callbacks of `on_select` are not called."""
        self._selected = tuple(self._checked(indices))
        self.source.selected.indices = list(self._selected)

    @property
    def selected(self) -> tuple[int, ...]:
        """Indices of the concepts that the lasso, the box or `select` selected."""
        return self._selected

    def centre(self, index: int) -> None:
        """Centre the map on a concept, at most half as wide as the whole."""
        point = self.xy[self._checked([index])[0]].tolist()
        for value, reach in zip(point, (self.figure.x_range, self.figure.y_range), strict=True):
            half = min(reach.end - reach.start, 0.5 * (reach.reset_end - reach.reset_start)) / 2
            reach.update(start=value - half, end=value + half)

    def scene(self, *, width: int = 900) -> Scene:
        """The current map, including zoom, marks and selection, as a picture to save."""
        figure = self.figure
        arrows = self.arrows.data
        return concept_map_scene(
            self.xy,
            () if self.places is None else self.places.names,
            () if self.places is None else self.places.groups,
            title=str(getattr(figure.title.text, "text", figure.title.text)),
            labels=(str(figure.xaxis[0].axis_label), str(figure.yaxis[0].axis_label)),
            ranges=((figure.x_range.start, figure.x_range.end), (figure.y_range.start, figure.y_range.end)),
            chosen=self.chosen,
            neighbours=self.neighbours,
            selected=self._selected,
            arrows=list(zip(*(arrows[column] for column in ("x0", "y0", "x1", "y1", "color")), strict=True)),
            empty=self.message,
            width=width,
        )

    # ---- what the reader does

    def on_select(self, callback: Callable[[tuple[int, ...]], None]) -> None:
        """Call with the indices after a lasso or box, and with none when the selection is cleared."""
        self._selects.append(callback)

    def on_click(self, callback: Callable[[int], None]) -> None:
        """Call with the index of a point that was tapped."""
        self._clicks.append(callback)

    def _picked(self, event: SelectionGeometry) -> None:
        """A tap on a point picks it and keeps the selection; a tap beside all points clears the selection."""
        if not event.final:
            return
        picked = tuple(sorted(self.source.selected.indices))
        if event.geometry["type"] == "point" and picked:
            self.source.selected.indices = list(self._selected)
            nearest = self._nearest(picked, event.geometry["x"], event.geometry["y"])
            for click in self._clicks:
                click(nearest)
            return
        if picked != self._selected:
            self._selected = picked
            for selected in self._selects:
                selected(picked)

    def _nearest(self, indices: Sequence[int], x: float, y: float) -> int:
        wide = [reach.end - reach.start for reach in (self.figure.x_range, self.figure.y_range)]
        apart = (self.xy[list(indices)] - [x, y]) / wide
        return indices[int((apart**2).sum(axis=1).argmin())]
