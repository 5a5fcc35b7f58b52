"""The map: what every layer would predict at every position, and where each prediction settles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as W

from interp_widgets.analysis.logit_lens import LogitLensResult

from ..base import pair_view
from ..base.controls import shown_if
from ..base.prediction import PredictionPanel
from ..views import Heatmap
from . import cells
from .sentences import describe_prediction

KEY = (
    "<b>▔</b> commit layer: from here down the likeliest token stays the same · "
    "<b>×</b> interference: the target was the likeliest token one row above and no longer is"
)
REPEATED = (
    "grey, without colour: the layer says the token just read, as early layers do, above all where one matrix reads "
    "tokens in and writes them out"
)
LEAST_COLUMN = 48
"""Pixels of a column in which a word can be read."""


@dataclass(frozen=True)
class Drawing:
    """How the results are drawn."""

    color: str
    threshold: float
    """Least probability of a word in the map."""
    n_prompt_tokens: int
    """Columns that are tokens of the prompt; the rest are the response's."""


class LensMap:
    """Draws the results of a panel; a selection only moves the cursor. `select(row, column)` is called for a click."""

    def __init__(self, panel: PredictionPanel, select: Callable[[int, int], None]) -> None:
        self.panel, self.select = panel, select
        self.description = W.HTML("")
        self.description.add_class("iw-after")
        self.maps = pair_view.SideBySide(panel, self._heatmap)
        self.heat = self.maps.views[0]
        self.key = W.HTML(KEY)
        self.key.add_class("iw-hint")
        shown_if(self.description, panel.screen is None)  # a screen shows this text beside the panel
        self.parts = [self.description, self.maps.box]
        for heat in self.maps.views:
            panel.on_user(heat, "pinned", self._pinned)
            panel.on_user(heat, "cross", self.maps.follow)
        self._noted: dict[str, tuple[tuple[LogitLensResult, ...], list[str]]] = {}
        self._painted: Any = None

    def _heatmap(self) -> Heatmap:
        return Heatmap(
            row_name="layer", column_name="after", y_label="stream entering layer", live_hover=True,
            mark_name="response", empty="No map yet.", joined=True, column_width=LEAST_COLUMN,
        )  # fmt: skip

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self, drawing: Drawing, row: int, column: int) -> None:
        """Update the map to the panel's results and the selected cell; a `row` out of range is the output."""
        panel = self.panel
        painted = (panel.results, panel.shown, drawing)
        if painted != self._painted:  # a new selection alone need not send the map again
            for view, heat in self.maps.drawn():
                self._paint(view, heat, drawing)
            self.key.value = " · ".join([KEY, REPEATED] if any(heat.muted for heat in self.maps.shown) else [KEY])
            shown_if(self.key, panel.shown != "difference")
        self._painted = painted
        self._paint_selection(row, column)

    def _paint(self, view: str, heat: Heatmap, drawing: Drawing) -> None:
        panel = self.panel
        shown = tuple(panel.results[index] for index in pair_view.models_of(view))
        last, difference = shown[-1], view == "difference"
        if difference and shown[0].n_layers != shown[1].n_layers:
            a, b = (result.n_layers for result in shown)
            heat.empty = (
                f"A difference needs models with the same number of layers, these have {a} and {b}: choose A beside B"
            )
            heat.set_matrix(None)
            return
        filled = cells.colours(panel.results, drawing.color, view)
        with heat.hold_sync():
            heat.title = self._title(view, last, drawing.color)
            heat.value_label, heat.scale, heat.reverse = filled.label, filled.scale, filled.reverse
            heat.x_label = "last token read"
            heat.set_matrix(
                filled.matrix, rows=[*map(str, range(last.n_layers)), "output"], columns=list(last.tokens),
                vmin=filled.vmin, vmax=filled.vmax, signed=filled.signed, texts=cells.labels(shown, drawing.threshold),
                notes=self._notes(view, shown),
            )  # fmt: skip
            heat.edges = [] if difference else cells.commits(last)
            heat.crossed = [] if difference else cells.losses(last)
            heat.muted = [] if difference else cells.repeats(last)
            heat.heads, heat.heads_name = cells.heads(shown), cells.BOTH_HEADS if difference else cells.HEADS
            response = drawing.n_prompt_tokens < last.n_positions
            heat.column_marks = [[drawing.n_prompt_tokens, last.n_positions]] if response else []
            if response:
                heat.x_label += " (marked: the response)"

    def _paint_selection(self, row: int, column: int) -> None:
        """Show the selected cell, and describe its position."""
        results = self.panel.results
        self.description.value = "<br>".join(
            f"<b>{start}</b>{escape(describe_prediction(result, column))}"
            for start, result in zip(pair_view.all_starts(results), results, strict=True)
        )
        for heat in self.maps.shown:
            if heat.shape[0]:  # the output comes last, in models of different depths too
                last = heat.shape[0] - 1
                heat.cross = heat.pinned = [row if 0 <= row <= last else last, column]

    def _notes(self, view: str, shown: tuple[LogitLensResult, ...]) -> list[str]:
        """Tooltips, cached for moves of a slider."""
        if view not in self._noted or self._noted[view][0] != shown:
            self._noted[view] = shown, cells.notes(shown)
        return self._noted[view][1]

    def _title(self, view: str, result: LogitLensResult, color: str) -> str:
        kind = "Tuned lens" if result.lens == "tuned" else "Logit lens"
        what = f"{kind}: each layer's next-token prediction, coloured by {cells.colour_name(color, view)}"
        what = pair_view.title_start(self.panel, view) + what
        what += ", partial" if any(each.partial for each in self.panel.results) else ""
        return what + (", labels where the likeliest tokens differ" if view == "difference" else "")

    # what a user does -------------------------------------------------------------------------------------------------

    def _pinned(self, change: Any) -> None:
        self.select(*(change.new or (-1, -1)))
