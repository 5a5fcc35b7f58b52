"""The read tab: projections of a prompt's tokens on concepts, and one token's state as a sparse sum of directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.concepts import (
    ConceptReading,
    ConceptSet,
    SparseReading,
    decompose_prompt,
    neighbors,
    read_prompt_concepts,
)
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import call
from ..base.controls import row, shown_if
from ..base.description import decimals
from ..base.fields import Bounds, Incomplete, field, variant
from ..base.shell import column
from ..views import Heatmap, TokenStrip
from .directions import ConceptOptions, ConceptPanel, ConceptRequest, Directions, filled
from .table import ConceptTable

MOST_ROWS = 60
ROW_LABELS = {
    "strongest": "strongest at the token",
    "nearest": "nearest to the concept",
    "chosen": "selected on the map",
}
SOLVER_LABELS = {"omp": "orthogonal matching pursuit", "elastic_net": "elastic net"}
EMPTY = "the prompt is empty: type a text for the model to read"


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadConcepts(Directions):
    """One model's reading: projections of all tokens on the directions, and one decomposed state."""

    reading: ConceptReading
    sparse: SparseReading
    span: tuple[int, int]
    """The prompt's tokens [start, end); the others are the template's."""
    position: int
    """The token whose state is decomposed, from 0."""

    @cached_property
    def gaps(self) -> Floats:
        """(tokens, concepts) projection: 0 is the mean of all stimuli, 1 about where the concept's own are."""
        return np.asarray(self.reading.projection / self._gap)

    @property
    def weights(self) -> list[float]:
        """Weight of each direction in the sum, in units of its concept's gap."""
        gap, names = self._gap, self.sparse.names
        return [float(w / gap[self.concepts.index(n)]) for n, w in zip(names, self.sparse.weights, strict=True)]

    @property
    def _gap(self) -> Floats:
        return np.where(self.concepts.gap > 0, self.concepts.gap, np.nan)


def read_concepts(
    model: Model,
    concepts: ConceptSet,
    prompt: str,
    *,
    span: tuple[int, int],
    position: int,
    solver: str,
    n_concepts: int,
    other_weights: bool,
    check: Callable[[], None],
) -> ReadConcepts:
    """Project a prompt's tokens on directions, and decompose the state at one of them."""
    reading = read_prompt_concepts(model, concepts, prompt, other_weights=other_weights, check=check)
    most = min(n_concepts, len(concepts.names), concepts.d_model)
    sparse = decompose_prompt(
        model, concepts, prompt, position=position, solver=solver, n_concepts=most, other_weights=other_weights  # type: ignore[arg-type]
    )  # fmt: skip
    return ReadConcepts(
        concepts=concepts, reading=reading, sparse=sparse, span=span, position=position % len(reading.tokens)
    )


class PromptReading(ConceptPanel):
    """A prompt's tokens by their projection on concepts, and one token's state as a sparse sum of directions."""

    tab_name, pair_views = "Read", ("difference", "beside")
    analysis = staticmethod(read_concepts)
    prompt = variant(
        ConceptOptions.prompt, label="Prompt", width="grow", argument="", required=EMPTY,
        help="What the model reads, and continues under steering",
    )  # fmt: skip
    prompt_token = variant(ConceptOptions.prompt_token, argument="")
    in_template = field(
        bool, True, label="as a stimulus, in the template",
        help="Directions were made at the template's last token, where they read best",
    )  # fmt: skip
    read_rows = field(
        ROW_LABELS, "strongest", label="Rows", selects=True, argument=None, help="Which concepts to show in the map"
    )
    solver = field(SOLVER_LABELS, "omp", label="Sum by", help="Method of the sparse decomposition")
    n_concepts = field(
        Annotated[int, Bounds(1, 100)], 8, label="Concepts", width="short",
        help="Number of concepts in the sum, and of rows of the map",
    )  # fmt: skip

    def build(self) -> None:
        first = self.controls.row("in_template", "read_rows")
        fold = self.controls.fold(first, [self.controls.row("solver", "n_concepts")])
        self.inputs.children = [self.controls.row("prompt"), first, fold]
        self.strips = [TokenStrip(max_lines=6, value_label="gaps", legend=True) for _ in self.models]
        self.strip_boxes = [W.VBox([strip]) for strip in self.strips]
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                title="Concepts along the prompt", x_label="token", y_label="concept", row_name="concept",
                column_name="token", value_label="projection, in gaps",
                empty="No reading yet.",
            )
        )  # fmt: skip
        self.heat = self.maps.views[0]
        heat = W.VBox([self.maps.box])
        heat.layout.flex = "3 1 440px"
        self.sums = [ConceptTable(self, empty="No sum yet.", height=320) for _ in self.models]
        self.sum_boxes = [W.VBox([table.view]) for table in self.sums]
        sums = W.VBox(self.sum_boxes)
        sums.layout.flex = "1 1 248px"
        below = row(heat, sums)
        below.layout.align_items = "flex-start"
        texts = column("iw-after")
        texts.children = [*self.strip_boxes, self.words]
        self.plot.children = [texts, below]
        for strip in self.strips:
            self.on_user(strip, "selected", self._token_picked)
        for heat in self.maps.views:
            self.on_user(heat, "pinned", self._cell_picked)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Any:
        self.require()
        text, span, position = self._read()
        options = {"solver": self.solver, "n_concepts": self.n_concepts, "other_weights": bool(self.path)}
        return ConceptRequest.of(read_concepts, {"span": span, "position": position, **options}, self.source, text)

    def _read(self) -> tuple[str, tuple[int, int], int]:
        """The text that the model reads, the prompt's tokens in it, and the selected one (-1: the last)."""
        if not self.prompt.strip():
            raise Incomplete("prompt", EMPTY)
        if not self.in_template:
            count = read_prompt(self.models[0], self.prompt).n_shown
            return self.prompt, (0, count), self.prompt_token if self.prompt_token < count else -1
        text = filled(NEUTRAL_TEMPLATE, "", self.prompt)
        read = read_prompt(self.models[0], text)
        start = NEUTRAL_TEMPLATE.index("<stimulus>")
        inside = [i for i, (a, b) in enumerate(read.spans or ()) if b > start and a < start + len(self.prompt)]
        span = (inside[0], inside[-1] + 1) if inside else (0, 0)
        at = span[0] + self.prompt_token if self.prompt_token >= 0 else -1
        return text, span, at if at < read.n_shown else -1

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ReadConcepts, ...], request: Any) -> None:
        super().draw(results, request)
        shown = self.shown_results
        tokens, at = shown[0].reading.tokens, shown[0].position
        for number, boxes in enumerate(zip(self.strip_boxes, self.sum_boxes, strict=True)):
            for box in boxes:
                shown_if(box, number < len(shown))
        for table, letter, read in zip(self.sums, pair_view.names(self), shown, strict=False):
            heads: list[dict[str, Any]] = [
                {"label": f"{letter} concept".strip()},
                {"label": "weight", "align": "right", "title": "in units of the concept's gap"},
            ]  # fmt: skip
            rows = [[name, weight] for name, weight in zip(read.sparse.names, read.weights, strict=True)]
            caption = f"“{visible(tokens[at])}” ({at}) as a sum, longest part first; "
            caption += f"{read.sparse.error:.0%} of its norm is left over"
            table.show(list(read.sparse.names), heads, rows, caption)
        self.words.value = self._sentence()

    def draw_selection(self) -> None:
        """Shade the strips by the selected concept, and show the rows of the map."""
        super().draw_selection()
        shown, concept = self.shown_results, self.shown_concept
        if not shown:
            return
        gaps, column, at = [read.gaps for read in shown], self.index_of[concept], shown[0].position
        rows = self._rows(gaps[-1][at])
        columns = [self.index_of[name] for name in rows]
        numbers = [read.gaps[:, columns].T for read in self.results]
        # one scale for A and B, in the strips as in the map
        scaled = self._scaled
        largest = pair_view.symmetric_limit("A", [[read.gaps[scaled, [column, *columns]] for read in self.results]])
        for strip, start, read, values in zip(self.strips, pair_view.starts(self), shown, gaps, strict=False):
            strip.set_tokens(list(read.reading.tokens))
            strip.set_values(values[:, column], vmin=-largest, vmax=largest, signed=True)
            strip.label, strip.instruction = f"{start}“{concept}”", "click a token to decompose its state"
            strip.selected = at
        labels = [visible(token) for token in shown[0].reading.tokens]
        for view, heat in self.maps.drawn():
            apart = [[each[:, scaled] for each in numbers]]
            end = pair_view.symmetric_limit(view, apart) if view == "difference" else largest
            heat.title = f"{pair_view.title_start(self, view)}Concepts along the prompt"
            heat.empty = "Nothing to show: select concepts on the map, or choose other rows."
            heat.set_matrix(
                pair_view.of_view(view, numbers) if rows else None, rows=rows, columns=labels if rows else None,
                vmin=-end, vmax=end, signed=True,
            )  # fmt: skip
            if rows:
                heat.pinned = [rows.index(concept) if concept in rows else 0, at]
        for table in self.sums:
            table.mark()

    @property
    def _scaled(self) -> slice:
        """The tokens that set the scale of the colours: not a first one that carries the attention sink."""
        apart = any(read.reading.sink for read in self.results) and len(self.results[0].reading.tokens) > 1
        return slice(1 if apart else 0, None)

    def _rows(self, gaps: Floats) -> list[str]:
        """The concepts in the map, starting with the selected one; `gaps` (concepts,) are those of the token."""
        names = list(self.index_of)
        if self.read_rows == "chosen":
            return [name for name in self.chosen if name in self.index_of][:MOST_ROWS]
        if self.read_rows == "nearest":
            most = min(self.n_concepts, len(names) - 1)
            listed = [name for name, _ in neighbors(self.shown_results[-1].concepts, self.shown_concept, most)]
        else:
            listed = [names[i] for i in _strongest(gaps)[: self.n_concepts]]
        return [self.shown_concept, *(name for name in listed if name != self.shown_concept)][:MOST_ROWS]

    def _sentence(self) -> str:
        lines, shown, names = [], self.shown_results, list(self.index_of)
        tokens, at = shown[0].reading.tokens, shown[0].position
        for start, read in zip(pair_view.starts(self), shown, strict=True):
            gaps = read.gaps[at]
            named = ", ".join(f"<b>{escape(names[i])}</b> {gaps[i]:.2f}" for i in _strongest(gaps)[:4])
            lines.append(f"{start}Strongest at “{escape(visible(tokens[at]))}” ({at}): {named}.")
        if at != len(tokens) - 1 or not self.in_template:
            lines.append("Directions were made at the template's last token: elsewhere, compare tokens, not concepts.")
        if self._scaled.start:
            lines.append(
                "The first token carries the model's attention sink: it is unlike the others, and sets no colours."
            )
        lines.append(
            "A gap is the distance of a concept's own stimuli from all others along its direction; 0 is the mean."
        )
        return "<br>".join(lines)

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        read = self.results[0] if self.results else None
        if read is None or len(prompt.tokens) != read.span[1] - read.span[0]:
            return False
        view, column = "B" if self.shown in ("beside", "difference") else self.shown, self.index_of[self.shown_concept]
        gaps = [read.gaps[slice(*read.span), column] for read in self.results]
        first = self._scaled.start if read.span[0] == 0 else 0
        largest = pair_view.symmetric_limit("A", [[each[first:] for each in gaps]])
        letter = "" if len(gaps) == 1 else f" under {view}"
        prompt.label, prompt.value_label, prompt.labels = f"Prompt: “{self.shown_concept}”, in gaps{letter}", "gaps", []
        prompt.set_values(pair_view.of_view(view, gaps), vmin=-largest, vmax=largest, signed=True)
        self.screen.texts.label_response()
        return True

    def about_concept(self, index: int) -> tuple[str, ...]:
        at, tokens = self.results[0].position, self.results[0].reading.tokens
        gaps = ", ".join(
            f"{letter}{decimals(float(read.gaps[at, index]), 2)}"
            for letter, read in zip(pair_view.letters(self.results), self.results, strict=True)
        )
        return (f"At “{visible(tokens[at])}” ({at}) the state's projection on it is {gaps} gaps.",)

    # what a user does -------------------------------------------------------------------------------------------------

    def _token_picked(self, change: Any) -> None:
        if change.new >= 0:
            self._select_token(change.new)

    def _cell_picked(self, change: Any) -> None:
        if len(change.new) != 2:
            return
        line, column = change.new
        with self.batch_changes():
            if 0 <= line < len(self.heat.row_labels):
                self.concept = self.heat.row_labels[line]
            if column >= 0:
                self._select_token(column)

    def _select_token(self, token: int) -> None:
        """Decompose another token's state; a token of the template after the prompt counts as the last."""
        if self.results:
            first, end = self.results[0].span
            self.prompt_token = token - first if first <= token < end else -1

    # what is saved ----------------------------------------------------------------------------------------------------

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        text, _, position = self._read()
        other: dict[str, Any] = {"other_weights": True} if self.path and len(self.models) > 1 else {}
        options = {"position": position, "solver": self.solver, "n_concepts": self.n_concepts, **other}
        return ["decompose_prompt", "read_prompt_concepts"], [
            f"prompt = {text!r}",
            f"reading = {call('read_prompt_concepts', model, concepts, 'prompt', **other)}",
            f"parts = {call('decompose_prompt', model, concepts, 'prompt', **options)}",
            "reading.to_frame()",
        ]

    def table_of(self, result: Any) -> Any:
        return result.reading.to_frame().reset_index()

    def scene(self) -> Scene:
        strips = [strip.scene(width=760) for strip in self.strips[: len(self.shown_results)]]
        return stack_scenes([*strips, *([] if self.heat.is_empty else [self.maps.scene()])])

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"reading": result.reading, "sum": result.sparse}


def _strongest(gaps: Floats) -> list[int]:
    """Indices of concepts, the largest projection first."""
    return [int(i) for i in np.argsort(-np.nan_to_num(gaps, nan=-np.inf), kind="stable")]
