"""The read tab: which concepts a prompt's tokens point along, and one token's state as a sum of few directions."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.concepts import (
    ConceptReading,
    ConceptSet,
    SparseReading,
    decompose_prompt,
    neighbours,
    read_prompt_concepts,
)
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE
from interp_widgets.figures.labels import visible

from ..base.controls import row, shown_if
from ..views import Heatmap, TokenStrip
from .listing import ConceptTable
from .request import filled

if TYPE_CHECKING:
    from .browser import ConceptBrowser

MOST_ROWS = 60
Floats = NDArray[np.floating[Any]]


class Read:
    """What one model reads: projections of all tokens in units of each concept's gap, and one state taken apart."""

    def __init__(self, reading: ConceptReading, sparse: SparseReading, found: ConceptSet) -> None:
        self.reading, self.sparse = reading, sparse
        self.tokens, self.names = tuple(reading.tokens), tuple(reading.names)
        gap = np.where(found.gap > 0, found.gap, np.nan)
        self.gaps: Floats = reading.projection / gap
        """(tokens, concepts) projection: 0 is the mean of all stimuli, 1 about where the concept's own are."""
        self.weights = [
            weight / gap[found.index(name)] for name, weight in zip(sparse.names, sparse.weights, strict=True)
        ]


class ReadTab:
    """Strip, map of concepts and tokens, sparse sum."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.found: tuple[Read, ...] = ()
        self._of: tuple[int, ...] = ()
        self._asked: Any = None
        self._job: Any = None
        self._at = -1
        self._spans: tuple[int, int] = (0, 0)
        self._filling = False
        self.strips = [TokenStrip(max_lines=6, value_label="gaps") for _ in panel.models]
        self.strip_boxes = [W.VBox([strip]) for strip in self.strips]
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self.heat = Heatmap(
            title="Concepts along the prompt", x_label="token", y_label="concept", row_name="concept",
            column_name="token", value_label="projection, in gaps",
            empty="Nothing to show: select concepts on the map, or choose other rows.",
        )  # fmt: skip
        heat = W.VBox([self.heat])
        heat.layout.flex = "3 1 440px"
        self.sums = [ConceptTable(panel, empty="No sum yet.", height=320) for _ in panel.models]
        self.sum_boxes = [W.VBox([table.view]) for table in self.sums]
        sums = W.VBox(self.sum_boxes)
        sums.layout.flex = "1 1 248px"
        below = row(heat, sums)
        below.layout.align_items = "flex-start"
        self.box = W.VBox(
            [*panel.controls.rows("prompt"), *panel.controls.rows("read"), *self.strip_boxes, self.words, below]
        )
        self.box.add_class("iw-column")
        panel.watch(panel, ["prompt", "prompt_token", "in_template", "solver", "n_concepts", "view"], self._changed)
        panel.watch(panel, ["read_rows", "chosen"], lambda _: self._draw())
        for strip in self.strips:
            panel.watch(strip, "selected", self._token_picked)
        panel.watch(self.heat, "pinned", self._cell_picked)

    # asking -----------------------------------------------------------------------------------------------------------

    def _changed(self, _: Any) -> None:
        self.paint()

    def paint(self) -> None:
        """Read the prompt; the worker does it unless the screen shows it already."""
        panel = self.panel
        if not panel.sets or panel.tab != "read":
            return
        text, at = self._text()
        options = {"position": at, "solver": panel.solver, "n_concepts": panel.n_concepts}
        sets, indices = panel.sets, panel.at
        key = (text, tuple(options.items()), indices, tuple(map(id, sets)))
        if key == self._asked and not self._job.cancelled:
            return self._draw()
        self._asked, self._at = key, at
        other = panel.opened

        def work(job: Any) -> tuple[Read, ...]:
            read = []
            for i in indices:
                job.check()
                model, found = panel.models[i], sets[i]
                reading = read_prompt_concepts(model, found, text, other_weights=other, check=job.check)
                most = min(panel.n_concepts, len(found.names), found.d_model)
                sparse = decompose_prompt(model, found, text, **{**options, "n_concepts": most}, other_weights=other)
                read.append(Read(reading, sparse, found))
            return tuple(read)

        def done(found: tuple[Read, ...]) -> None:
            if key == self._asked:
                self.found, self._of = found, indices
                self._draw()

        self._job = panel.jobs.start(work, done, title="Reading", channel="read", quiet=True)

    @property
    def position(self) -> int:
        """The token that is taken apart, in what the model reads; -1 for the last."""
        return self._text()[1]

    def _text(self) -> tuple[str, int]:
        """What the model reads, and which of its tokens is looked at; ValueError for a prompt that does not do."""
        panel = self.panel
        if not panel.prompt.strip():
            raise ValueError("the prompt is empty: type what the model should read")
        if not panel.in_template:
            own = read_prompt(panel.models[0], panel.prompt)
            self._spans = (0, own.n_shown)
            return panel.prompt, panel.prompt_token if panel.prompt_token < own.n_shown else -1
        text = filled(NEUTRAL_TEMPLATE, "", panel.prompt)
        whole = read_prompt(panel.models[0], text)
        start = NEUTRAL_TEMPLATE.index("<stimulus>")
        inside = [i for i, (a, b) in enumerate(whole.spans or ()) if b > start and a < start + len(panel.prompt)]
        self._spans = (inside[0], inside[-1] + 1) if inside else (0, 0)
        at = self._spans[0] + panel.prompt_token if panel.prompt_token >= 0 else -1
        return text, at if at < whole.n_shown else -1

    def stored(self) -> dict[str, Any]:
        """The reading of all tokens and the sum that one state is taken apart into, by model."""
        parts: dict[str, Any] = {}
        for index, one in zip(self._of, self.found, strict=True):
            letter = self.panel.name_of(index)
            parts |= {f"{letter} reading".strip(): one.reading, f"{letter} sum".strip(): one.sparse}
        return parts

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint_concept(self) -> None:
        """Shade the strips by another concept."""
        self._draw()

    def _draw(self) -> None:
        panel = self.panel
        if not self.found or panel.tab != "read" or panel.concept not in self.found[0].names:
            return
        tokens, column = self.found[0].tokens, list(self.found[0].names).index(panel.concept)
        at = self._at % len(tokens)
        largest = max(float(np.nanmax(np.abs(one.gaps[:, column]))) for one in self.found)
        self._filling = True
        try:
            for strip, box in zip(self.strips, self.strip_boxes, strict=True):
                shown_if(box, self.strips.index(strip) < len(self.found))
            for strip, index, one in zip(self.strips, panel.at, self.found, strict=False):
                strip.set_tokens(list(one.tokens))
                strip.set_values(one.gaps[:, column], vmin=-largest, vmax=largest, signed=True)
                start = f"{panel.name_of(index)}: " if panel.name_of(index) else ""
                strip.label = f"{start}“{panel.concept}”: click a token to take its state apart"
                strip.selected = at
            self._draw_heat(tokens, at)
            self._draw_sums(tokens, at)
        finally:
            self._filling = False
        self.words.value = self._sentence(tokens, at)

    def _rows(self, at: int) -> list[str]:
        """The concepts that the map shows, the one looked at first."""
        panel, last = self.panel, self.found[-1]
        names = list(last.names)
        if panel.read_rows == "chosen":
            return [name for name in panel.chosen if name in names][:MOST_ROWS]
        if panel.read_rows == "nearest":
            most = min(panel.n_concepts, len(names) - 1)
            near = [name for name, _ in neighbours(panel.sets[panel.at[-1]], panel.concept, most)]
        else:
            order = np.argsort(-np.nan_to_num(last.gaps[at], nan=-np.inf), kind="stable")
            near = [names[i] for i in order[: panel.n_concepts]]
        return [panel.concept, *(name for name in near if name != panel.concept)][:MOST_ROWS]

    def _draw_heat(self, tokens: tuple[str, ...], at: int) -> None:
        panel = self.panel
        rows = self._rows(at)
        both = len(self.found) > 1
        places = [list(self.found[0].names).index(name) for name in rows]
        shown = self.found[-1].gaps[:, places].T
        if both:
            shown = shown - self.found[0].gaps[:, places].T
        self.heat.title = "Concepts along the prompt" + (", B − A" if both else "")
        labels = [visible(token) for token in tokens]
        self.heat.set_matrix(shown if rows else None, rows=rows, columns=labels if rows else None, signed=True)
        if rows:
            self.heat.pinned = [rows.index(panel.concept) if panel.concept in rows else 0, at]

    def _draw_sums(self, tokens: tuple[str, ...], at: int) -> None:
        panel = self.panel
        for box, number in zip(self.sum_boxes, range(len(self.sums)), strict=True):
            shown_if(box, number < len(self.found))
        for table, index, one in zip(self.sums, panel.at, self.found, strict=False):
            heads: list[dict[str, Any]] = [
                {"label": f"{panel.name_of(index)} concept".strip()},
                {"label": "weight", "align": "right", "title": "in units of the concept's gap"},
            ]  # fmt: skip
            rows = [[name, float(weight)] for name, weight in zip(one.sparse.names, one.weights, strict=True)]
            caption = f"“{visible(tokens[at])}” ({at}) as a sum; {one.sparse.error:.0%} of its length is left over"
            table.show(list(one.sparse.names), heads, rows, caption)

    def _sentence(self, tokens: tuple[str, ...], at: int) -> str:
        said = []
        for index, one in zip(self.panel.at, self.found, strict=True):
            order = np.argsort(-np.nan_to_num(one.gaps[at], nan=-np.inf), kind="stable")[:4]
            named = ", ".join(f"<b>{escape(one.names[i])}</b> {one.gaps[at, i]:.2f}" for i in order)
            start = f"{self.panel.name_of(index)}: " if self.panel.name_of(index) else ""
            said.append(f"{start}Strongest at “{escape(visible(tokens[at]))}” ({at}): {named}.")
        if at != len(tokens) - 1 or not self.panel.in_template:
            said.append("Directions were made at the template's last token: elsewhere, compare tokens, not concepts.")
        said.append("A gap is how far a concept's own stimuli lie from all others along its direction; 0 is the mean.")
        return "<br>".join(said)

    # what a user does -------------------------------------------------------------------------------------------------

    def _token_picked(self, change: Any) -> None:
        if not self._filling and change.new >= 0:
            self._look_at(change.new)

    def _cell_picked(self, change: Any) -> None:
        if self._filling or len(change.new) != 2:
            return
        line, column = change.new
        with self.panel.hold():
            if 0 <= line < len(self.heat.row_labels):
                self.panel.concept = self.heat.row_labels[line]
            if column >= 0:
                self._look_at(column)

    def _look_at(self, token: int) -> None:
        """Take another token's state apart; one of the template, behind the prompt, is its end."""
        first, end = self._spans
        self.panel.prompt_token = token - first if first <= token < end else -1
        self._draw()
