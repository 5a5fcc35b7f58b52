"""The map: what every layer would predict at every position, and where each prediction settles."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.logit_lens import LogitLensResult

from ..base import pair_view
from ..base.controls import shown_if
from ..views import Heatmap
from .cells import COLOR_LABELS, HEADS, colours, commits, heads, labels, losses, notes, repeats
from .sentences import describe_prediction

if TYPE_CHECKING:
    from .explorer import LogitLensExplorer

KEY = (
    "<b>▔</b> commit layer: from here down the likeliest token stays the same · "
    "<b>×</b> interference: the target was the likeliest token one row above and no longer is"
)
REPEATED = (
    "without colour: the layer says the token just read, as early layers do, above all where the same weights read "
    "tokens in and write them out"
)
LEAST_COLUMN = 52
"""Pixels of a column in which a word can be read."""


class LensMap:
    """Draws the results that its explorer holds; a selection only moves the cursor."""

    def __init__(self, panel: LogitLensExplorer) -> None:
        self.panel = panel
        self.story = W.HTML("")
        self.story.add_class("iw-after")
        self.maps = pair_view.SideBySide(panel, self._heatmap)
        self.heat = self.maps.views[0]
        self.key = W.HTML(KEY)
        self.key.add_class("iw-hint")
        shown_if(self.story, panel.screen is None)  # a screen shows this text beside the panel
        self.parts = [self.story, self.maps.box]
        for heat in self.maps.views:
            panel.on_user(heat, "pinned", self._pinned)
            panel.on_user(heat, "cross", self.maps.follow)
        self._noted: dict[str, tuple[tuple[LogitLensResult, ...], list[str]]] = {}
        self._painted: Any = None

    def _heatmap(self) -> Heatmap:
        return Heatmap(
            row_name="layer", column_name="after", y_label="stream entering layer", live_hover=True,
            mark_name="response", empty="No map yet.", joined=True, heads_name=HEADS, column_width=LEAST_COLUMN,
        )  # fmt: skip

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Update the map to the explorer's results and selection."""
        panel = self.panel
        painted = (panel.results, panel.color, panel.shown, panel.threshold)
        if painted != self._painted:  # a new selection alone need not send the map again
            for view, heat in self.maps.drawn():
                self._paint(view, heat)
            self.key.value = " · ".join([KEY, REPEATED] if any(heat.muted for heat in self.maps.shown) else [KEY])
            shown_if(self.key, panel.shown != "difference")
        self._painted = painted
        self._paint_selection()

    def _paint(self, view: str, heat: Heatmap) -> None:
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
        filled = colours(panel.results, panel.color, view)
        with heat.hold_sync():
            heat.title = self._title(view, last)
            heat.value_label, heat.scale, heat.reverse = filled.label, filled.scale, filled.reverse
            heat.x_label = "last token read"
            heat.set_matrix(
                filled.matrix, rows=[*map(str, range(last.n_layers)), "output"], columns=list(last.tokens),
                vmin=filled.vmin, vmax=filled.vmax, signed=filled.signed, texts=labels(shown, panel.threshold),
                notes=self._notes(view, shown),
            )  # fmt: skip
            heat.edges = [] if difference else commits(last)
            heat.crossed = [] if difference else losses(last)
            heat.muted = [] if difference else repeats(last)
            heat.heads = heads(shown)
            response = panel.n_prompt_tokens < last.n_positions
            heat.column_marks = [[panel.n_prompt_tokens, last.n_positions]] if response else []
            if response:
                heat.x_label += " (marked: the response)"

    def _paint_selection(self) -> None:
        """Show the selected cell, and describe its position."""
        panel = self.panel
        row, column = panel.cell
        self.story.value = "<br>".join(
            f"<b>{start}</b>{escape(describe_prediction(result, column))}"
            for start, result in zip(pair_view.all_starts(panel.results), panel.results, strict=True)
        )
        for heat in self.maps.shown:
            if heat.shape[0]:  # the output comes last, in models of different depths too
                last = heat.shape[0] - 1
                heat.cross = heat.pinned = [row if 0 <= panel.reading <= last else last, column]

    def _notes(self, view: str, shown: tuple[LogitLensResult, ...]) -> list[str]:
        """Tooltips, cached for moves of a slider."""
        if view not in self._noted or self._noted[view][0] != shown:
            self._noted[view] = shown, notes(shown)
        return self._noted[view][1]

    def _title(self, view: str, result: LogitLensResult) -> str:
        panel = self.panel
        kind = "Tuned lens" if result.lens == "tuned" else "Logit lens"
        what = f"{kind}: each layer's next-token prediction, coloured by {COLOR_LABELS[panel.color]}"
        what = pair_view.title_start(panel, view) + what
        return what + (", labels where the likeliest tokens differ" if view == "difference" else "")

    # what a user does -------------------------------------------------------------------------------------------------

    def _pinned(self, change: Any) -> None:
        self.panel.select_cell(*(change.new or (-1, -1)))
