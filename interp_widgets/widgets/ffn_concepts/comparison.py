"""The comparison tab: how far tuning turned the components, and what became of their scenarios and levels."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.ffn_concepts import ConceptComparison, FFNConceptResult, compare_concepts
from interp_widgets.analysis.ffn_concepts.annotation_comparison import AnnotationComparison, compare_annotations
from interp_widgets.figures.ffn_concepts import LayerOverlap, NoteShares, PrincipalAngles
from interp_widgets.figures.static import Scene, curves_scene, stack_scenes, table_scene

from ..base.controls import shown_if
from ..base.guard import guarded
from ..views import BokehFigure, Table
from .words import words_of

if TYPE_CHECKING:
    from .browser import FFNConceptBrowser

RIGHT = {"align": "right"}
FEW = 30
"""Concepts of a model below which shares and tests say little."""
UNNOTED = (
    "Not annotated yet: on the tab Concepts choose A, then B, and press Annotate for all layers; "
    "the shares of scenarios and levels are compared here."
)

NOT_MOVED = "No word of the descriptions became more or less frequent."


class ComparisonTab:
    """Charts of overlap and angles, matched components of the layer, and the tables of the annotations."""

    def __init__(self, panel: FFNConceptBrowser) -> None:
        self.panel = panel
        self.box = W.VBox()
        self.box.add_class("iw-column")
        self.result: ConceptComparison | None = None
        """What is on the screen."""
        self.annotated: AnnotationComparison | None = None
        self._asked: Any = None
        self._asked_notes: Any = None
        self._filling = False

    def _build(self) -> None:
        """Make charts and tables when the tab is first looked at: figures take a while to make."""
        panel = self.panel
        self.overlap, self.angles = LayerOverlap(), PrincipalAngles()
        self.shares = NoteShares()
        made = (self.overlap, self.angles, self.shares)
        figures = [BokehFigure(chart.figure, on_error=panel.show_error) for chart in made]
        self.angles.lines.selected.on_change("indices", guarded(panel, self._line_tapped))
        self.said, self.noted = W.HTML(""), W.HTML("")
        self.matched = Table(empty="No comparison yet: it needs both models' components.", height=360)
        self.scenarios, self.levels = (Table(empty=UNNOTED, height=300) for _ in range(2))
        self.moved = Table(empty=UNNOTED, height=300)
        panel.watch(self.matched, "selected", self._picked)
        charts = W.VBox([W.VBox([one]) for one in figures[:2]])
        charts.add_class("iw-maps")
        panel.watch(panel, "shares", lambda _: self.shares.update(self.annotated, trait=panel.shares))
        self.of_notes = W.VBox([self.levels, *panel.controls.rows("comparison"), figures[2], self.moved])
        self.of_notes.add_class("iw-column")
        shown_if(self.of_notes, False)  # one empty table says what to do
        self.box.children = [self.said, charts, self.matched, self.noted, self.scenarios, self.of_notes]

    @property
    def rank(self) -> int:
        """Components compared: those that are listed."""
        return min(self.panel.components, *(result.rank for result in self.panel.concepts))

    @property
    def waiting(self) -> str:
        """Why there are no matched components yet."""
        if len(self.panel.concepts) < 2:
            return "The second model is not there yet."
        if any(result.partial for result in self.panel.concepts):
            return "Both models have to be there in full before their components are matched."
        return "Matching the components of A with those of B…"

    # computing --------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Compare what is on the screen, if it is looked at, and draw it."""
        panel = self.panel
        if len(panel.concepts) < 2 or (panel.tab != "comparison" and panel.shown != "difference"):
            return
        a, b = panel.concepts
        key = (id(a), id(b), self.rank)
        if key != self._asked:
            self._asked, self.result, rank = key, None, self.rank

            def work(job: Any) -> ConceptComparison:
                return compare_concepts(a, b, rank=rank, progress=job.progress, check=job.check)

            def done(found: ConceptComparison) -> None:
                if key == self._asked:
                    self.result = found
                    panel.notes_changed()

            if not (a.partial or b.partial):
                panel.jobs.start(work, done, title="Comparing", channel="compare")
        if panel.tab == "comparison":
            self._draw()
            self._compare_notes()

    def _compare_notes(self) -> None:
        """Compare scenarios and levels, once both models have notes."""
        panel = self.panel
        results = panel.concepts
        notes = [panel.notes_of(letter) for letter in "AB"]
        if tuple(results[0].layers) != tuple(results[1].layers) or not all(map(len, notes)):
            self.annotated, self._asked_notes = None, None
            self._draw_notes()
            return
        pair = [one.annotations(result, self.rank) for one, result in zip(notes, results, strict=True)]
        key = tuple((one.descriptions, one.scenario_flags.tobytes(), one.level_index.tobytes(), one.done.tobytes())
                    for one in pair)  # fmt: skip
        if key == self._asked_notes:
            return
        self._asked_notes = key

        def work(job: Any) -> AnnotationComparison:
            return compare_annotations(pair[0], pair[1])

        def done(found: AnnotationComparison) -> None:
            if key == self._asked_notes:
                self.annotated = found
                self._draw_notes()

        panel.jobs.start(work, done, title="Comparing the notes", channel="compare notes", quiet=True)

    # drawing ----------------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        panel, found = self.panel, self.result
        if not self.box.children:
            self._build()
        self.overlap.update(found, panel.layer)
        self.angles.update(found, panel.layer)
        self.said.value = "" if found is None else _in_words(found, panel.layer)
        columns, rows, _ = self.matched_rows()
        self._filling = True
        try:
            with self.matched.hold_sync():
                self.matched.rows = []
                self.matched.empty = self.waiting
                self.matched.columns, self.matched.rows = columns, rows
                self.matched.selected = panel.component if panel.component < len(rows) else -1
                self.matched.caption = f"Components of A in layer {panel.layer} and their matches in B"
        finally:
            self._filling = False

    def matched_rows(self) -> tuple[list[dict[str, Any]], list[list[Any]], list[str]]:
        """Columns and rows of the layer's components of A, each beside the one of B that it is matched with."""
        panel, found = self.panel, self.result
        columns: list[dict[str, Any]] = [
            {"label": "A no.", **RIGHT},
            {"label": "B no.", **RIGHT, "title": "The component of B matched with it, one to one"},
            {"label": "cosine", **RIGHT, "title": "Of the two directions, without sign"},
            {"label": "turned °", **RIGHT},
            {"label": "shared words", **RIGHT, "title": "Words of both, of those of either"},
            {"label": "words of A", "wrap": True},
            {"label": "words of B", "wrap": True, "title": "Its sides are turned as those of A"},
        ]
        if found is None or panel.layer not in found.layers:
            return columns, [], []
        at = list(found.layers).index(panel.layer)
        a, b = panel.concepts
        flipped = _turned(a, b, panel.layer, np.asarray(found.match)[at])
        rows = []
        for component, other in enumerate(np.asarray(found.match)[at].tolist()):
            cosine = float(found.match_cosine[at, component])
            turned = float(np.degrees(np.arccos(min(cosine, 1.0))))
            words = [
                words_of(a, (panel.layer, component), "both"),
                words_of(b, (panel.layer, other), "both", turned=flipped[component]),
            ]
            rows.append([component, other, cosine, turned, float(found.shared_words[at, component]), *words])
        return columns, rows, [f"A/{panel.layer}/{component}" for component in range(len(rows))]

    def _draw_notes(self) -> None:
        found = self.annotated
        shown_if(self.of_notes, found is not None)
        self.shares.update(found, trait=self.panel.shares)
        self.noted.value = "" if found is None else _notes_in_words(found)
        for table, what, name in (
            (self.scenarios, "scenario", "task scenario"),
            (self.levels, "level", "linguistic level"),
        ):
            with table.hold_sync():
                table.rows = []
                table.columns = _share_columns()
                table.rows = [] if found is None else _share_rows(getattr(found, f"{what}_table")())
                table.caption = "" if found is None else f"Concepts by {name}"
        with self.moved.hold_sync():
            self.moved.rows = []
            self.moved.columns = [
                {"label": "layers"}, {"label": "became"}, {"label": "word"},
                *({"label": label, **RIGHT} for label in ("A", "B", "change", "rank in A", "rank in B")),
            ]  # fmt: skip
            self.moved.empty = UNNOTED if found is None else NOT_MOVED
            self.moved.rows = [] if found is None else _moved_rows(found.moved_words())
            self.moved.caption = "" if found is None else "Words of the descriptions that moved most, by layer group"

    # what a user does -------------------------------------------------------------------------------------------------

    def _picked(self, change: Any) -> None:
        if not self._filling and change.new >= 0:
            self.panel.component = change.new

    def _line_tapped(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self.panel.layer = self.angles.lines.data["layer"][new[0]]

    # what is saved ----------------------------------------------------------------------------------------------------

    def frame(self) -> Any:
        """One row per layer and matched pair."""
        if self.result is None:
            raise ValueError("there is no comparison to save yet: wait until both models are there")
        return self.result.to_frame()

    def scene(self) -> Scene:
        """The angles, and the matched components."""
        found, layer = self.result, self.panel.layer
        if found is None:
            raise ValueError("there is no comparison to save yet: wait until both models are there")
        degrees = np.degrees(np.asarray(found.angles))
        curves = [(f"layer {own}", path, own == layer) for own, path in zip(found.layers, degrees, strict=True)]
        above = curves_scene(
            curves, title=PrincipalAngles.TITLE, x_label="angle, smallest first", y_label="degrees", width=1180
        )  # fmt: skip
        names, rows, _ = self.matched_rows()
        widths = [48, 48, 56, 64, 88, 420, 420]
        columns = [(str(one["label"]), float(wide)) for one, wide in zip(names, widths, strict=True)]
        return stack_scenes([above, table_scene(columns, rows, title=self.matched.caption, right=range(5))])


def _turned(a: FFNConceptResult, b: FFNConceptResult, layer: int, match: NDArray[np.integer[Any]]) -> list[bool]:
    """Whether matched components point away from each other: a component's sign is free."""
    if a.directions is None or b.directions is None:
        return [False] * len(match)
    one, other = a.directions[a.row(layer)][: len(match)], b.directions[b.row(layer)][match]
    return [bool(cosine < 0) for cosine in np.einsum("rd,rd->r", one, other)]


def _in_words(found: ConceptComparison, layer: int) -> str:
    """What stayed in the chosen layer, beside chance."""
    if layer not in found.layers:
        return ""
    of = found.layer_table().iloc[list(found.layers).index(layer)]
    rank = np.asarray(found.angles).shape[1]
    return (
        f"Layer {layer}, first {rank} components: <b>{of.overlap:.0%}</b> of A's subspace lies in B's (of a random "
        f"one {found.chance:.0%}); matched components have cosine <b>{of.match_cosine:.2f}</b> on average and share "
        f"{of.shared_words:.0%} of their words."
    )


def _notes_in_words(found: AnnotationComparison) -> str:
    said = escape(found.summary()).replace("base:", "<b>A</b>:").replace("tuned:", "<b>B</b>:") + "."
    fewest = min(int(notes[0].told.sum()) for notes in (found.base, found.tuned))
    if fewest < FEW:
        said += (
            f"<br><b>Too few concepts for a test:</b> only {fewest} of one model have a description. Read the p-values "
            "as examples."
        )
    return said


def _share_columns() -> list[dict[str, Any]]:
    return [
        {"label": "category"},
        {"label": "A %", **RIGHT, "title": "Share of the described concepts of A, ± standard error"},
        {"label": "B %", **RIGHT, "title": "The same of B"},
        {"label": "B − A", **RIGHT, "title": "Percentage points"},
        {"label": "95 % interval", **RIGHT, "title": "Bootstrap interval of the difference"},
        {"label": "p", **RIGHT, "title": "Welch's t-test, two-sided"},
        {"label": "Holm p", **RIGHT, "title": "Corrected over the categories"},
        {"label": "perm. p", **RIGHT, "title": "Permutation test"},
    ]


def _share_rows(table: Any) -> list[list[Any]]:
    rows = []
    for one in table.to_dict("records"):
        shares = [
            f"{one[name]:.1f} ± {one[f'{name}_error']:.1f}" if np.isfinite(one[name]) else None
            for name in ("base", "tuned")
        ]
        interval = f"{one['low']:+.1f} to {one['high']:+.1f}".replace("-", "−") if np.isfinite(one["low"]) else None
        tests = [_number(one[name]) for name in ("welch_p", "holm_p", "permutation_p")]
        rows.append([one["category"], *shares, _number(one["difference"]), interval, *tests])
    return rows


def _moved_rows(table: Any) -> list[list[Any]]:
    return [
        [one["layers"], "more frequent" if one["direction"] == "more" else "less frequent", one["word"],
         *(_number(one[name]) for name in ("base", "tuned", "change", "base_rank", "tuned_rank"))]
        for one in table.to_dict("records")
    ]  # fmt: skip


def _number(value: Any) -> float | None:
    """A number of a table as a cell; None where there is none."""
    try:
        number = float(value)
    except TypeError:  # pandas' missing whole number
        return None
    return float(f"{number:.3g}") if np.isfinite(number) else None
