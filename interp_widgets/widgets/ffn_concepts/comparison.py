"""How far tuning rotated the components, and how their scenarios and levels changed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ffn_concepts import ConceptComparison, FFNConceptResult
from interp_widgets.analysis.ffn_concepts.annotation_comparison import AnnotationComparison, compare_annotations
from interp_widgets.figures.ffn_concepts import LayerOverlap, NoteShares, PrincipalAngles
from interp_widgets.figures.labels import fixed
from interp_widgets.figures.static import Scene, curves_scene, stack_scenes

from ..base.code import call
from ..base.controls import shown_if
from ..base.fields import field
from ..base.guard import guarded
from ..base.jobs import Derived
from ..base.pair_view import LETTERS
from ..base.request import result_variables
from ..base.saving import as_one
from ..views import BokehFigure, Table
from ..views.table import RIGHT
from .components import MATCHED, ComponentPanel
from .notes import as_annotations

SHARES = {"level": "linguistic levels", "scenario": "task scenarios"}
FEW = 30
"""Fewest concepts per model for meaningful shares and tests."""
UNNOTED = (
    "Not annotated yet. On the Concepts tab choose A, then B, and press Annotate for all layers to compare "
    "the shares of scenarios and levels."
)
NOT_MOVED = "No word of the descriptions became more or less frequent."


class ConceptChange(ComponentPanel):
    """Charts of overlap and angles, matched components of the layer, and the tables of the annotations."""

    title, pair_views = "FFN concepts compared", ()
    shares = field(
        SHARES, "level", label="By layer", group="comparison", selects=True,
        help="Which shares to draw by layer",
    )  # fmt: skip

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        return "" if len(models) > 1 else "two models"

    def build(self) -> None:
        super().build()
        self.overlap, self.angles, self.note_shares = LayerOverlap(), PrincipalAngles(), NoteShares()
        charts = (self.overlap, self.angles, self.note_shares)
        figures = [BokehFigure(chart.figure, on_error=self.show_error) for chart in charts]
        self.angles.lines.selected.on_change("indices", guarded(self, self._line_tapped))
        self.summary, self.noted_summary = W.HTML(""), W.HTML("")
        self.matched = Table(empty="No comparison yet: the components of both models are needed.", height=360)
        self.scenarios, self.levels = (Table(empty=UNNOTED, height=300) for _ in range(2))
        self.moved = Table(empty=UNNOTED, height=300)
        self.on_user(self.matched, "selected", self._picked)
        above = W.VBox([W.VBox([figure]) for figure in figures[:2]])
        above.add_class("iw-maps")
        self.of_notes = W.VBox([self.levels, *self.controls.rows("comparison"), figures[2], self.moved])
        self.of_notes.add_class("iw-column")
        self._comparing_notes = Derived(
            self, self.redraw, title="Comparing the notes", channel="compare notes", quiet=True
        )
        self.plot.children = [self.summary, above, self.matched, self.noted_summary, self.scenarios, self.of_notes]

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[FFNConceptResult, ...], request: Any) -> None:
        self.compare()
        comparison = self.comparison
        self.overlap.update(comparison, self.layer)
        self.angles.update(comparison, self.layer)
        self.summary.value = "" if comparison is None else _in_words(comparison, self.layer)
        with self.matched.hold_sync():
            self.matched.rows = []
            self.matched.empty = self.not_compared
            self.matched.columns, self.matched.rows = MATCHED, self.matched_rows()
            self.matched.caption = self.matched_caption
        self._compare_notes()
        self._draw_notes()

    def draw_selection(self) -> None:
        super().draw_selection()
        self.matched.selected = self.component if self.component < len(self.matched.rows) else -1
        self.note_shares.update(self.annotated, trait=self.shares)

    # scenarios and levels ---------------------------------------------------------------------------------------------

    @property
    def _comparable(self) -> tuple[Any, ...] | None:
        """The notes of both models to compare; None if one has none, or the layers differ."""
        notes: list[Mapping[Any, Any]] = [self.notes_of(letter) for letter in LETTERS[: len(self.results)]]
        if len(notes) < 2 or not all(notes) or tuple(self.results[0].layers) != tuple(self.results[1].layers):
            return None
        return self.results, self.compared, *notes

    @property
    def annotated(self) -> AnnotationComparison | None:
        """The comparison of the notes on the screen; None while there is none."""
        key = self._comparable
        annotated: AnnotationComparison | None = None if key is None else self._comparing_notes.of(key)
        return annotated

    def _compare_notes(self) -> None:
        """Compare scenarios and levels, once both models have notes."""
        if (key := self._comparable) is None:
            return
        results, rank, *notes = key
        pair = [as_annotations(noted, result, rank) for noted, result in zip(notes, results, strict=True)]
        self._comparing_notes.ask(key, lambda job: compare_annotations(*pair))

    def _draw_notes(self) -> None:
        annotated = self.annotated
        shown_if(self.of_notes, annotated is not None)  # a single empty table says what to do
        self.noted_summary.value = "" if annotated is None else _notes_in_words(annotated)
        for table, what, name in (
            (self.scenarios, "scenario", "task scenario"),
            (self.levels, "level", "linguistic level"),
        ):
            with table.hold_sync():
                table.rows = []
                table.columns = _share_columns()
                table.rows = [] if annotated is None else _share_rows(getattr(annotated, f"{what}_table")())
                table.caption = "" if annotated is None else f"Concepts by {name}"
        with self.moved.hold_sync():
            self.moved.rows = []
            self.moved.columns = [
                {"label": "layers"}, {"label": "became"}, {"label": "word"},
                *({"label": label, **RIGHT} for label in ("A", "B", "change", "rank in A", "rank in B")),
            ]  # fmt: skip
            self.moved.empty = UNNOTED if annotated is None else NOT_MOVED
            self.moved.rows = [] if annotated is None else _moved_rows(annotated.moved_words())
            self.moved.caption = (
                "" if annotated is None else "Words of the descriptions whose frequency changed most, by layer group"
            )

    # what a user does -------------------------------------------------------------------------------------------------

    def _picked(self, change: Any) -> None:
        if change.new >= 0:
            self.component = change.new

    def _line_tapped(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self.layer = self.angles.lines.data["layer"][new[0]]

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> tuple[list[str], list[str]]:
        comparison = call("compare_concepts", *result_variables(self.models), rank=self.compared)
        return ["compare_concepts"], [f"comparison = {comparison}", "comparison.layer_table()"]

    def _complete(self) -> ConceptComparison:
        if self.comparison is None:
            raise ValueError("there is no comparison to save yet: wait until both models have been computed")
        return self.comparison

    def frame(self) -> Any:
        """One row per layer and matched pair."""
        return self._complete().to_frame()

    def stored(self) -> Result:
        return as_one({"components": self._complete(), "notes": self.annotated})

    def scene(self) -> Scene:
        """The angles, and the matched components."""
        comparison = self._complete()
        degrees = np.degrees(np.asarray(comparison.angles))
        curves = [
            (f"layer {layer}", path, layer == self.layer)
            for layer, path in zip(comparison.layers, degrees, strict=True)
        ]
        above = curves_scene(
            curves, title=PrincipalAngles.TITLE, x_label="angle, smallest first", y_label="degrees", width=1180
        )  # fmt: skip
        return stack_scenes([above, self.matched_scene()])


def _in_words(comparison: ConceptComparison, layer: int) -> str:
    """The overlap in the chosen layer, against chance."""
    if layer not in comparison.layers:
        return ""
    of = comparison.layer_table().iloc[list(comparison.layers).index(layer)]
    rank = np.asarray(comparison.angles).shape[1]
    return (
        f"Layer {layer}, first {rank} components: <b>{of.overlap:.0%}</b> of A's subspace lies in B's (chance: "
        f"{comparison.chance:.0%}); matched components have cosine <b>{of.match_cosine:.2f}</b> on average and "
        f"share {of.shared_words:.0%} of their words."
    )


def _notes_in_words(annotated: AnnotationComparison) -> str:
    text = escape(annotated.summary()).replace("base:", "<b>A</b>:").replace("tuned:", "<b>B</b>:") + "."
    fewest = min(int(notes[0].described.sum()) for notes in (annotated.base, annotated.tuned))
    if fewest < FEW:
        text += (
            f"<br><b>Too few concepts for a test:</b> only {fewest} of one model have a description. Read the p-values "
            "as examples."
        )
    return text


def _share_columns() -> list[dict[str, Any]]:
    return [
        {"label": "category"},
        {"label": "A %", **RIGHT, "title": "Share of the described concepts of A, ± standard error"},
        {"label": "B %", **RIGHT, "title": "The same for B"},
        {"label": "B − A", **RIGHT, "title": "Percentage points"},
        {"label": "95% interval", **RIGHT, "title": "Bootstrap interval of the difference"},
        {"label": "p", **RIGHT, "title": "Welch's t-test, two-sided"},
        {"label": "Holm p", **RIGHT, "title": "Corrected over the categories"},
        {"label": "perm. p", **RIGHT, "title": "Permutation test"},
    ]


def _share_rows(table: Any) -> list[list[Any]]:
    rows = []
    for line in table.to_dict("records"):
        shares = [
            f"{line[name]:.1f} ± {line[f'{name}_error']:.1f}" if np.isfinite(line[name]) else None
            for name in ("base", "tuned")
        ]
        ends = (fixed(line[name], 1, "+") for name in ("low", "high"))
        interval = " to ".join(ends) if np.isfinite(line["low"]) else None
        tests = [_number(line[name]) for name in ("welch_p", "holm_p", "permutation_p")]
        rows.append([line["category"], *shares, _number(line["difference"]), interval, *tests])
    return rows


def _moved_rows(table: Any) -> list[list[Any]]:
    return [
        [line["layers"], "more frequent" if line["direction"] == "more" else "less frequent", line["word"],
         *(_number(line[name]) for name in ("base", "tuned", "change", "base_rank", "tuned_rank"))]
        for line in table.to_dict("records")
    ]  # fmt: skip


def _number(value: Any) -> float | None:
    """A number of a table as a cell; None if it is missing."""
    try:
        number = float(value)
    except TypeError:  # pandas' missing integer
        return None
    return float(f"{number:.3g}") if np.isfinite(number) else None
