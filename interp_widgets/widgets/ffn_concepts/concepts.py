"""The concepts tab: layers, explained variance, the components of the chosen layer and what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.ffn_concepts import FFNConceptResult
from interp_widgets.data.annotators import LEVELS, SCENARIOS
from interp_widgets.figures.ffn_concepts import ComponentWords, CumulativeVariance
from interp_widgets.figures.static import Scene, curves_scene, stack_scenes, table_scene

from ..base.controls import row, shown_if
from ..base.guard import guarded
from ..views import BokehFigure, Table
from ..views.table import Edit
from .annotating import Annotating
from .words import note_cells, words_of

if TYPE_CHECKING:
    from .browser import FFNConceptBrowser

NOTES: list[dict[str, Any]] = [
    {"label": "description", "edit": "text", "wrap": True, "width": "20%", "title": "What the words have in common"},
    {"label": "scenarios", "edit": "choices", "options": list(SCENARIOS), "wrap": True,
     "title": "Tasks of a user that the concept serves"},
    {"label": "level", "edit": "choice", "options": list(LEVELS), "title": "Linguistic level"},
    {"label": "by", "title": "Who says so"},
]  # fmt: skip
"""Columns that can be written into, and who wrote."""
_WORDS = {"+": "positive side", "-": "negative side", "both": "words, − for the negative side"}


class ConceptsTab:
    """Layer list, chart of the variance, component table, word search, words of the picked component."""

    def __init__(self, panel: FFNConceptBrowser) -> None:
        self.panel = panel
        self.layers = Table(caption="Layers", empty="No layers yet: press Run", height=320)
        self.variance, self.bars = CumulativeVariance(), ComponentWords()
        self.figures = [
            BokehFigure(chart.figure, on_error=panel.show_error) for chart in (self.variance, self.bars)
        ]  # fmt: skip
        self.variance.lines.selected.on_change("indices", guarded(panel, self._line_tapped))
        self.said = W.HTML("")
        self.said.add_class("iw-hint")
        self.table = Table(empty="No components yet: press Run", height=520)
        self.table.on_edit(guarded(panel, self._edited))
        self.annotating = Annotating(panel)
        self.find = panel.controls["search"]
        self.found = Table(empty="Type a word: the components that have it are listed here.", height=320)
        panel.watch(self.layers, "selected", self._layer_picked)
        panel.watch(self.table, "selected", self._row_picked)
        panel.watch(self.found, "selected", self._found_picked)
        self.box = W.VBox(self._parts())
        self.box.add_class("iw-column")
        self._hits: list[tuple[int, int, float]] = []
        self._rows_of: list[int] = []
        self._filling = False

    def _parts(self) -> list[Any]:
        charts = [W.VBox([figure]) for figure in self.figures]
        for chart in charts:
            chart.add_class("iw-chart")
        layers = W.VBox([self.layers], layout={"flex": "1 1 320px"})
        search = W.VBox([self.find, self.found], layout={"flex": "1 1 320px"})
        above, below = row(layers, charts[0]), row(search, charts[1])
        for line in (above, below):
            line.layout.align_items = "flex-start"
        return [above, self.said, self.table, *self.annotating.parts, below]

    # drawing ----------------------------------------------------------------------------------------------------------

    @property
    def result(self) -> FFNConceptResult:
        """The result whose components are listed: of the difference, the tuned model's."""
        return self.panel.concepts[-1 if self.panel.shown == "difference" else "AB".index(self.panel.shown)]

    def paint(self) -> None:
        """Draw other results, or the same in another view or layer."""
        panel = self.panel
        results, names = panel.concepts, panel.model_names
        difference = panel.shown == "difference"
        place = 0 if difference else "AB".index(panel.shown)
        shown = results if difference else (results[place],)
        self.variance.update(
            shown, panel.layer, names=names if difference else [names[place]], listed=panel.components,
            difference=difference, place=place,
        )  # fmt: skip
        self._list_layers()
        self.paint_components()
        self.paint_search()

    def paint_components(self) -> None:
        """Draw the table of components and the words of the picked one."""
        panel, result = self.panel, self.result
        there = panel.layer in result.layers
        self.said.value = self._sentence(result) if there else "This layer is not there yet."
        comparing = panel.comparing if panel.shown == "difference" else None
        matched = comparing is not None
        self.annotating.paint()
        shown_if(self.annotating.box, not matched)
        self._filling = True
        try:
            with self.table.hold_sync():
                self.table.rows, self.table.row_keys = [], []
                if comparing is not None:
                    columns, rows, keys = comparing.matched_rows()
                    self.table.empty = comparing.waiting
                else:
                    columns, rows, keys = self._component_rows(result) if there else ([], [], [])
                self.table.columns = columns
                self.table.rows, self.table.row_keys = rows, keys
                self.table.caption = self._caption(matched)
                self._rows_of = self.listed(result) if rows else []
                # sent with the rows: the table does not scroll to a picked row that is the same still
                self.table.selected = self._place_of(panel.component)
        finally:
            self._filling = False
        self.paint_picked()

    def paint_picked(self) -> None:
        """Mark the picked component and draw its words."""
        panel, result = self.panel, self.result
        if self._rows_of and self._rows_of != self.listed(result):
            self.paint_components()  # one that was looked up comes or goes below the first ones
            return
        self._filling = True
        try:
            self.table.selected = self._place_of(panel.component)
        finally:
            self._filling = False
        name = panel.model_names[panel.concepts.index(result)] if len(panel.models) > 1 else ""
        self.bars.update(result, panel.layer, panel.component, name=name)

    def _place_of(self, component: int) -> int:
        """The row of a component; -1 if it has none."""
        return self._rows_of.index(component) if component in self._rows_of else -1

    def listed(self, result: FFNConceptResult) -> list[int]:
        """Components in the table: the first ones, and a later one that was looked up."""
        first = list(range(min(self.panel.components, result.rank)))
        later = self.panel.component
        return [*first, later] if len(first) <= later < result.rank and self.panel.shown != "difference" else first

    def _caption(self, matched: bool) -> str:
        if matched:
            return "Components of A and those of B that they are matched with, one to one"
        return f"Components of layer {self.panel.layer}; description, scenarios and level can be written into"

    def _sentence(self, result: FFNConceptResult) -> str:
        """What is listed of what, in words."""
        panel, at = self.panel, result.row(self.panel.layer)
        count = min(panel.components, result.rank)
        share = 100 * float(result.cumulative[at, count - 1])
        rest = f" Words that the tokenizer cannot write: {len(result.unknown)}." if result.unknown else ""
        part = " <b>Stopped midway.</b>" if result.partial else ""
        return (
            f"Listed: the first <b>{count}</b> of {result.rank} components of layer {panel.layer}, which explain "
            f"<b>{share:.0f} %</b> of its variance, each by its {result.top} nearest of {len(result.vocabulary):,} "
            f"words.{rest}{part}"
        )

    def _list_layers(self) -> None:
        """One row per layer: where its variance goes, and how much is annotated."""
        panel, result = self.panel, self.result
        count = min(panel.components, result.rank)
        rows = []
        notes = panel.notes_of(panel.letter)
        for at, layer in enumerate(result.layers):
            path = result.cumulative[at]
            half = int((path >= 0.5).argmax()) + 1 if path[-1] >= 0.5 else None
            done = sum(notes.get((layer, component)) is not None for component in range(count))
            first = 100 * float(path[0])
            rows.append([layer, first, half, 100 * float(path[count - 1]), f"{done} of {count}"])
        self._filling = True
        try:
            with self.layers.hold_sync():
                self.layers.rows = []
                self.layers.columns = [
                    {"label": "layer", "align": "right"},
                    {"label": "first %", "align": "right", "title": "Variance that the first component explains"},
                    {"label": "half by", "align": "right", "title": "Components that explain half of the variance"},
                    {"label": f"first {count} %", "align": "right", "title": "Variance that those listed explain"},
                    {"label": "noted", "align": "right", "title": "Listed components that are annotated"},
                ]
                self.layers.rows = rows
                layers = list(result.layers)
                self.layers.selected = layers.index(panel.layer) if panel.layer in layers else -1
                letter = f" of {panel.letter}" if len(panel.models) > 1 else ""
                self.layers.caption = f"Layers{letter}"
        finally:
            self._filling = False

    def _component_rows(self, result: FFNConceptResult) -> tuple[list[Any], list[Any], list[str]]:
        """Columns, rows and keys of the chosen layer's components."""
        panel = self.panel
        sides = ("+", "-") if panel.sides == "sides" else (panel.sides,)
        columns: list[dict[str, Any]] = [
            {"label": "no.", "align": "right"},
            {"label": "var. %", "align": "right", "title": "Share of the layer's variance"},
            {"label": "cosine", "align": "right", "title": "Projection of the nearest word"},
            *({"label": _WORDS[side], "wrap": True, "width": f"{60 // len(sides)}%"} for side in sides),
            *NOTES,
        ]
        rows, keys = [], []
        notes = panel.notes_of(panel.letter)
        shares = result.explained_variance[result.row(panel.layer)]
        for component in self.listed(result):
            cell = (panel.layer, component)
            nearest = result.scores(*cell)
            words = [words_of(result, cell, side) for side in sides]
            note = notes.get(cell)
            first = nearest[0][1] if nearest else None
            rows.append([component, 100 * float(shares[component]), first, *words, *note_cells(note)])
            keys.append(f"{panel.letter}/{panel.layer}/{component}")
        return columns, rows, keys

    def paint_search(self) -> None:
        """List the components that have the word that was typed."""
        panel, result = self.panel, self.result
        self._hits = []
        word = panel.search.strip()
        self.found.rows = []
        if not word:
            self.found.caption = ""
            return
        if word not in result.vocabulary:
            near = next((one for one in result.vocabulary if one.lower() == word.lower()), None)
            hint = f": did you mean {near!r}?" if near else ""
            self.found.caption = f"{word!r} is not among the {len(result.vocabulary):,} words{hint}"
            return
        self._hits = result.components_with(word)
        rows = []
        for layer, component, cosine in self._hits:
            share = 100 * float(result.explained_variance[result.row(layer), component])
            rows.append([layer, component, cosine, share, "yes" if component < panel.components else "no"])
        with self.found.hold_sync():
            self.found.selected = -1
            self.found.columns = [
                {"label": "layer", "align": "right"},
                {"label": "component", "align": "right"},
                {"label": "cosine", "align": "right", "title": "Negative: on the negative side"},
                {"label": "variance %", "align": "right"},
                {"label": "listed", "title": "Whether it is among the components listed above"},
            ]
            self.found.rows = rows
            letter = f" of {panel.letter}" if len(panel.models) > 1 else ""
            self.found.caption = f"{word!r} is among the {result.top} nearest of {len(rows)} components{letter}"
            self.found.empty = "No component has it among its nearest words."

    # what a user does -------------------------------------------------------------------------------------------------

    def _layer_picked(self, change: Any) -> None:
        if not self._filling and change.new >= 0:
            self.panel.layer = self.result.layers[change.new]

    def _line_tapped(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self.panel.layer = self.variance.lines.data["layer"][new[0]]

    def _row_picked(self, change: Any) -> None:
        if not self._filling and change.new >= 0:
            self.panel.component = self.listed(self.result)[change.new]

    def _found_picked(self, change: Any) -> None:
        if change.new >= 0:
            layer, component, _ = self._hits[change.new]
            with self.panel.hold():
                self.panel.layer, self.panel.component = layer, component

    def _edited(self, edit: Edit) -> None:
        """Write down what the user has typed into a cell."""
        letter, cell = self._cell_of(edit.key)
        value = (edit.value or None) if edit.column == "level" else edit.value
        self.panel.notes_of(letter).edit(cell, **{edit.column: value})
        self.panel.notes_changed()

    def _cell_of(self, key: str) -> tuple[str, tuple[int, int]]:
        """Model, layer and component of a row; ValueError if there are none such."""
        results = dict(zip("AB", self.panel.concepts, strict=False))
        parts = key.split("/")
        if len(parts) == 3 and parts[0] in results and parts[1].isdecimal() and parts[2].isdecimal():
            letter, layer, component = parts[0], int(parts[1]), int(parts[2])
            if layer in results[letter].layers and component < results[letter].rank:
                return letter, (layer, component)
        raise ValueError(f"there is no such component to write about: {key!r}")

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The variance, and the table of components."""
        panel, result = self.panel, self.result
        curves = [(f"layer {own}", path, own == panel.layer) for own, path in
                  zip(result.layers, result.cumulative, strict=True)]  # fmt: skip
        name = f", {panel.model_names[panel.concepts.index(result)]}"
        above = curves_scene(
            curves, title=f"Variance explained by the first components{name}", x_label="components",
            y_label="cumulative share", width=1180,
        )  # fmt: skip
        if panel.layer not in result.layers:
            return above
        _, rows, _ = self._component_rows(result)
        columns: list[tuple[str, float]] = [("no.", 44), ("var. %", 56), ("cosine", 60)]
        columns += [("words", 600 / (len(rows[0]) - 7))] * (len(rows[0]) - 7)
        columns += [("description", 180), ("scenarios", 90), ("level", 90), ("by", 60)]
        table = table_scene(columns, rows, title=f"Components of layer {panel.layer}", right=(0, 1, 2))
        return stack_scenes([above, table])
