"""The principal components of every layer: explained variance, their words, and notes about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ffn_concepts import FFNConceptResult
from interp_widgets.data.annotators import LEVELS, SCENARIOS, Annotation
from interp_widgets.figures.ffn_concepts import ComponentWords, CumulativeVariance
from interp_widgets.figures.static import Scene, curves_scene, stack_scenes, table_scene

from ..base import pair_view
from ..base.controls import row, shown_if
from ..base.description import Description
from ..base.fields import field
from ..base.guard import guarded, handling
from ..base.request import result_variables
from ..views import BokehFigure, Table
from ..views.table import RIGHT, Edit
from .annotated_components import AnnotatedComponents
from .components import MATCHED, STEP, words_of
from .note_controls import NoteControls
from .notes import Cell
from .top_texts import Source, TopTexts

NOTES: list[dict[str, Any]] = [
    {"label": "description", "edit": "text", "wrap": True, "width": "20%", "title": "What the words have in common"},
    {"label": "scenarios", "edit": "choices", "options": list(SCENARIOS), "wrap": True,
     "title": "User tasks that the concept serves"},
    {"label": "level", "edit": "choice", "options": list(LEVELS), "title": "Linguistic level"},
    {"label": "by", "title": "Who wrote the note"},
]  # fmt: skip
"""The editable columns, and the author."""
NAMED = 6
"""Words per side of a component in the text beside it."""
CHART_HEIGHT = 280
"""Height of the charts in pixels, the same as the list beside them."""
_WORDS = {"+": "positive side", "-": "negative side", "both": "words, − for the negative side"}


class PrincipalComponents(AnnotatedComponents):
    """Layer list, chart of the variance, component table with its notes, word search, words of the picked component."""

    title = "FFN concepts"
    search = field(
        str, label="Find a word", placeholder="as in the word list", selects=True,
        help="List the components that have this word",
    )  # fmt: skip

    def build(self) -> None:
        super().build()
        self.layers = Table(caption="Layers", empty="No layers yet.", height=232)
        self.variance, self.bars = CumulativeVariance(), ComponentWords()
        self.variance.lines.selected.on_change("indices", guarded(self, self._line_tapped))
        self.summary = W.HTML("")
        self.summary.add_class("iw-hint")
        self.table = Table(empty="No components yet.", height=256, on_error=self.show_error)
        self.table.on_edit(self._edited)
        self.annotating = NoteControls(self)
        self.hits = Table(empty="Type a word to list the components that have it.", height=140)
        for table, pick in ((self.layers, self._layer_picked), (self.table, self._row_picked), (self.hits, self._hit)):
            self.on_user(table, "selected", pick)
        self._hits: list[tuple[int, int, float]] = []
        self._layers_listed: list[int] = []
        self._searched: Any = None
        """The key of the list of hits: word, result and number of components."""
        self._listed: list[int] = []
        """The components in the table."""
        charts = []
        for chart in (self.variance, self.bars):
            chart.figure.height = CHART_HEIGHT
            host = BokehFigure(chart.figure, on_error=self.show_error)
            charts.append(W.VBox([host], layout={"flex": "2 1 380px"}))
        self.hits_box = W.VBox([self.hits])
        shown_if(self.hits_box, False)
        listed = W.VBox([self.layers, self.hits_box], layout={"flex": "1 1 280px"})
        for name in ("iw-compact", "iw-after"):
            listed.add_class(name)
        above, spare = (row(listed, *charts), []) if self.screen is None else (row(listed), [row(*charts)])
        self.top_texts = TopTexts(self, lambda component: f"component {component} of layer {self.layer}")
        shown_if(self.top_texts.box, self.asks_words)  # a saved result has no model to run
        self.top_texts.box.layout.flex, self.annotating.box.layout.flex = "3 1 480px", "2 1 400px"
        below = row(self.top_texts.box, self.annotating.box)
        for line in (above, below):
            line.layout.align_items = "flex-start"
        self.arrange([above, self.summary, self.table], below=[*spare, below])

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[FFNConceptResult, ...], request: Any) -> None:
        difference, at = self.shown == "difference", pair_view.shown_indices(self)
        names = pair_view.labels(self)
        self.variance.update(
            [results[index] for index in at], self.layer, names=[names[index] for index in at],
            listed=self.components, difference=difference, place=at[0],
        )  # fmt: skip
        if difference:
            self.compare()
        self._list_layers()
        self._list_components()

    def draw_selection(self) -> None:
        """Mark the picked component, draw its words, list the components with the searched word, count the notes."""
        super().draw_selection()
        if not self.results:
            return
        if self._listed and self._listed != self._to_list():
            self._list_components()  # a component that was looked up is added below the first ones
        searched = self.search.strip(), self.shown_result, self.components
        if searched != self._searched:
            self._searched = searched
            self._list_hits()
        picked = self.layer, self.component
        self.table.selected = _index(self.component, self._listed)
        self.hits.selected = _index(picked, [(layer, component) for layer, component, _ in self._hits])
        name = pair_view.labels(self)[pair_view.LETTERS.index(self.letter)] if len(self.models) > 1 else ""
        self.bars.update(self.shown_result, self.layer, self.component, name=name)
        self.annotating.paint()
        self.top_texts.paint(self._text_sources())

    def describe_selection(self) -> Description | None:
        if not self.results or self.layer not in self.shown_result.layers or self.component >= self.shown_result.rank:
            return None
        result, cell = self.shown_result, (self.layer, self.component)
        share = 100 * float(result.explained_variance[result.row(self.layer), self.component])
        note = self.notes_of(self.letter).get(cell)
        above, below = result.words(*cell, sign="+")[:NAMED], result.words(*cell, sign="-")[:NAMED]
        described = [f"Described as “{note.description}”."] if note is not None and note.description else []
        name = self.name_of(self.letter, cell)
        return Description(
            f"{name[:1].upper()}{name[1:]}",
            (
                f"It explains {share:.1f}% of the variance of the MLP's output weights.",
                f"Positive side: {', '.join(above)}.",
                f"Negative side: {', '.join(below)}.",
                *described,
            ),
            steps=(STEP,),
        )

    def _text_sources(self) -> list[Source]:
        """The picked component as a direction in the MLP's output."""
        result, index = self.shown_result, pair_view.LETTERS.index(self.letter)
        if not self.asks_words or self.layer not in result.layers or self.component >= result.rank:
            return []
        if result.directions is None or result.partial:
            return []
        first = np.asarray(result.directions[result.row(self.layer)])[: max(self.components, self.component + 1)]
        name = self.letter if len(self.models) > 1 else ""
        return [Source(name, index, result, self.layer, self.component, first)]

    def _of_letter(self) -> str:
        return f" of {self.letter}" if len(self.models) > 1 else ""

    def _to_list(self) -> list[int]:
        """Components in the table: the first ones, and a later one that was looked up."""
        rank = self.shown_result.rank
        first = list(range(min(self.components, rank)))
        later = len(first) <= self.component < rank and self.shown != "difference"
        return [*first, self.component] if later else first

    def _list_components(self) -> None:
        """Fill the table: components and their notes, or those of A with their matches in B."""
        result, matched = self.shown_result, self.shown == "difference"
        computed = self.layer in result.layers
        self.summary.value = self._in_words(result) if computed else "This layer has not been computed yet."
        with self.table.hold_sync():
            self.table.rows, self.table.row_keys = [], []
            if matched:
                self.table.empty = self.not_compared
                self.table.columns, rows = MATCHED, self.matched_rows()
                self.table.caption = self.matched_caption
            else:
                self.table.columns, rows = self._component_rows(result) if computed else ([], [])
                self.table.caption = f"Components of layer {self.layer}"
            self.table.instruction = "" if matched else "description, scenarios and level are editable"
            self.table.rows = rows
            self.table.row_keys = [f"{self.letter}/{self.layer}/{cells[0]}" for cells in rows]
            self._listed = self._to_list() if rows else []
            # sent with the rows, since the table does not scroll to an unchanged selection
            self.table.selected = _index(self.component, self._listed)

    def _in_words(self, result: FFNConceptResult) -> str:
        """A description of what is listed."""
        count = min(self.components, result.rank)
        share = 100 * float(result.cumulative[result.row(self.layer), count - 1])
        rest = f" Words that cannot be tokenized: {len(result.unknown)}." if result.unknown else ""
        part = " <b>Stopped early.</b>" if result.partial else ""
        return (
            f"Listed: the first <b>{count}</b> of {result.rank} components of layer {self.layer}, which explain "
            f"<b>{share:.0f}%</b> of its variance, each by its {result.top} nearest of {len(result.vocabulary):,} "
            f"words.{rest}{part}"
        )

    def _list_layers(self) -> None:
        """One row per layer: its explained variance, and how much is annotated; for a difference, A beside B."""
        comparing, at = self.shown == "difference", pair_view.shown_indices(self)
        shown = [self.results[index] for index in at]
        count = min(self.components, *(result.rank for result in shown))
        layers = [layer for layer in shown[0].layers if all(layer in result.layers for result in shown)]
        notes = self.notes_of(self.letter)
        rows: list[list[Any]] = []
        for layer in layers:
            paths = [result.cumulative[result.row(layer)] for result in shown]
            first = [100 * float(path[0]) for path in paths]
            half = [int((path >= 0.5).argmax()) + 1 if path[-1] >= 0.5 else None for path in paths]
            listed = [100 * float(path[count - 1]) for path in paths]
            noted = sum((layer, component) in notes for component in range(count))
            rows.append([layer, *first, *half, *listed, *([] if comparing else [f"{noted} of {count}"])])
        columns: list[dict[str, Any]] = [{"label": "layer", **RIGHT}]
        for label, title in (
            ("first %", "Variance explained by the first component"),
            ("half by", "Number of components that explain half of the variance"),
            (f"first {count} %", "Variance explained by the listed components"),
        ):
            columns += [{"label": f"{label} {name}".strip(), "title": title, **RIGHT} for name in (
                "AB" if comparing else ("",))]  # fmt: skip
        if not comparing:
            columns.append({"label": "noted", **RIGHT, "title": "Listed components that are annotated"})
        self._layers_listed = layers
        with self.layers.hold_sync():
            self.layers.rows = []
            self.layers.columns, self.layers.rows = columns, rows
            self.layers.selected = _index(self.layer, layers)
            self.layers.caption = "Layers of A and of B" if comparing else f"Layers{self._of_letter()}"

    def _component_rows(self, result: FFNConceptResult) -> tuple[list[dict[str, Any]], list[list[Any]]]:
        """Columns and rows of the chosen layer's components."""
        sides = ("+", "-") if self.sides == "sides" else (self.sides,)
        columns: list[dict[str, Any]] = [
            {"label": "no.", **RIGHT},
            {"label": "var. %", **RIGHT, "title": "Share of the layer's variance"},
            {"label": "cosine", **RIGHT, "title": "Projection of the nearest word"},
            *({"label": _WORDS[side], "wrap": True, "width": f"{60 // len(sides)}%"} for side in sides),
            *NOTES,
        ]
        notes, shares = self.notes_of(self.letter), result.explained_variance[result.row(self.layer)]
        rows = []
        for component in self._to_list():
            cell = (self.layer, component)
            nearest = result.scores(*cell)
            words = [words_of(result, cell, side) for side in sides]
            first = nearest[0][1] if nearest else None
            rows.append([component, 100 * float(shares[component]), first, *words, *_note_cells(notes.get(cell))])
        return columns, rows

    def _list_hits(self) -> None:
        """List the components that have the typed word."""
        word, result = self.search.strip(), self.shown_result
        shown_if(self.hits_box, bool(word))
        self._hits, self.hits.rows = [], []
        if not word:
            self.hits.caption = ""
            return
        if word not in result.vocabulary:
            near = next((known for known in result.vocabulary if known.lower() == word.lower()), None)
            hint = f": did you mean {near!r}?" if near else ""
            self.hits.caption = f"{word!r} is not among the {len(result.vocabulary):,} words{hint}"
            return
        self._hits = result.components_with(word)
        rows = []
        for layer, component, cosine in self._hits:
            share = 100 * float(result.explained_variance[result.row(layer), component])
            rows.append([layer, component, cosine, share, "yes" if component < self.components else "no"])
        with self.hits.hold_sync():
            self.hits.columns = [
                {"label": "layer", **RIGHT},
                {"label": "component", **RIGHT},
                {"label": "cosine", **RIGHT, "title": "Negative: on the negative side"},
                {"label": "variance %", **RIGHT},
                {"label": "listed", "title": "Whether it is listed above"},
            ]
            self.hits.rows = rows
            self.hits.caption = (
                f"{word!r} is among the {result.top} nearest words of {len(rows)} components{self._of_letter()}"
            )
            self.hits.empty = "No component has it among its nearest words."

    # what a user does -------------------------------------------------------------------------------------------------

    def _layer_picked(self, change: Any) -> None:
        if change.new >= 0:
            self.layer = self._layers_listed[change.new]

    def _line_tapped(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self.layer = self.variance.lines.data["layer"][new[0]]

    def _row_picked(self, change: Any) -> None:
        if change.new >= 0:
            self.component = self._listed[change.new]

    def _hit(self, change: Any) -> None:
        if change.new >= 0:
            layer, component, _ = self._hits[change.new]
            with self.batch_changes():
                self.layer, self.component = layer, component

    def _edited(self, edit: Edit) -> None:
        """Save the user's edit of a cell."""
        with handling():
            letter, cell = self._cell_of(edit.key)
            value = (edit.value or None) if edit.column == "level" else edit.value
            self.note(letter, cell, **{edit.column: value})

    def _cell_of(self, key: str) -> tuple[str, Cell]:
        """Model, layer and component of a row; ValueError if there is no such component."""
        results = dict(zip(pair_view.LETTERS, self.results, strict=False))
        parts = key.split("/")
        if len(parts) == 3 and parts[0] in results and parts[1].isdecimal() and parts[2].isdecimal():
            letter, layer, component = parts[0], int(parts[1]), int(parts[2])
            if layer in results[letter].layers and component < results[letter].rank:
                return letter, (layer, component)
        raise ValueError(f"there is no such component to annotate: {key!r}")

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> tuple[list[str], list[str]]:
        return [], [f"{result_variables(self.models)[-1]}.to_frame()"]

    def frame(self) -> Any:
        """All components with their notes."""
        tables = {}
        for letter, result in pair_view.by_letter(self.results).items():
            table, notes = result.to_frame(), self.notes_of(letter or "A")
            cells = zip(table.layer.tolist(), table.component.tolist(), strict=True)
            cell_notes = [notes.get(cell, Annotation()) for cell in cells]
            table["description"] = [note.description for note in cell_notes]
            table["scenarios"] = [", ".join(note.scenarios) for note in cell_notes]
            table["level"] = [note.level or "" for note in cell_notes]
            table["noted_by"] = [note.source for note in cell_notes]
            tables[letter] = table
        return pair_view.joined(tables)

    def scene(self) -> Scene:
        """The variance chart and the table of components."""
        result, difference = self.shown_result, self.shown == "difference"
        shares = pair_view.of_view(self.shown, [np.asarray(result.cumulative) for result in self.results])
        parts = []
        if shares is not None:  # models of different sizes have no difference
            name = "B − A" if difference else pair_view.labels(self)[pair_view.LETTERS.index(self.letter)]
            curves = [
                (f"layer {layer}", 100 * path if difference else path, layer == self.layer)
                for layer, path in zip(result.layers, shares, strict=True)
            ]
            parts.append(
                curves_scene(
                    curves,
                    title=f"Variance explained by the first components, {name}",
                    x_label="components",
                    y_label="percentage points" if difference else "cumulative share",
                    width=1180,
                )
            )
        if difference:
            parts.append(self.matched_scene())
        elif self.layer in result.layers:
            columns: list[tuple[str, float]] = [("no.", 44), ("var. %", 56), ("cosine", 60)]
            _, rows = self._component_rows(result)
            columns += [("words", 600 / (len(rows[0]) - 7))] * (len(rows[0]) - 7)
            columns += [("description", 180), ("scenarios", 90), ("level", 90), ("by", 60)]
            parts.append(table_scene(columns, rows, title=f"Components of layer {self.layer}", right=(0, 1, 2)))
        return stack_scenes(parts)


def _index(value: Any, values: Sequence[Any]) -> int:
    """The index of a value; -1 if it is missing."""
    return values.index(value) if value in values else -1


def _note_cells(note: Annotation | None) -> list[str | None]:
    """Description, scenarios, level and author, for the table."""
    if note is None:
        return [None, None, None, None]
    by = note.source or "–"
    if note.failure:
        by += f": no answer ({note.failure})"
    elif note.cannot_tell:
        by += ": cannot tell"
    return [note.description, ", ".join(note.scenarios), note.level or "", by]
