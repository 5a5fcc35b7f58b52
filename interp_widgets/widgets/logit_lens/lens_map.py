"""The map: what every layer would predict at every position, and where each prediction settles."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.logit_lens import LogitLensResult

from ..base import pair_view
from ..base.controls import shown_if
from ..views import Heatmap
from .cells import COLOR_LABELS, colours, commits, labels, losses, notes
from .sentences import story

if TYPE_CHECKING:
    from .explorer import LogitLensExplorer

KEY = (
    "<b>▔</b> commit layer: from here down the likeliest token stays · "
    "<b>×</b> interference: the target was the likeliest one layer above and is no more"
)


class LensMap:
    """Draws the results that its explorer holds; a selection only moves the cursor."""

    def __init__(self, panel: LogitLensExplorer) -> None:
        self.panel = panel
        self.story = W.HTML("")
        self.heat = Heatmap(
            row_name="layer", column_name="after", y_label="stream entering layer", live_hover=True,
            mark_name="response", empty="No map yet: press Run",
        )  # fmt: skip
        self.key = W.HTML(KEY)
        self.key.add_class("iw-hint")
        self.parts = [self.story, self.heat, self.key]
        panel.watch(self.heat, "pinned", self._pinned)
        self._painting = False
        self._noted: tuple[tuple[LogitLensResult, ...], list[str]] = ((), [])
        self._painted: Any = None

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Bring the map up to the explorer's results and selection."""
        panel = self.panel
        painted = (panel.results, panel.color, panel.shown, panel.threshold)
        self._painting = True  # another map drops its selection, which is not the user's doing
        try:
            if painted != self._painted:  # a mere selection need not send the map again
                self._paint(panel.looked_at)
            self._painted = painted
            self._paint_selection()
        finally:
            self._painting = False

    def _paint(self, shown: tuple[LogitLensResult, ...]) -> None:
        panel, heat, last = self.panel, self.heat, shown[-1]
        if len(shown) == 2 and shown[0].n_layers != shown[1].n_layers:
            a, b = (result.n_layers for result in shown)
            heat.empty = f"A difference needs two models of as many layers, these have {a} and {b}: look at A or B"
            heat.set_matrix(None)
            return
        filled = colours(panel.results, panel.color, panel.shown)
        difference = panel.shown == "difference"
        with heat.hold_sync():
            heat.title = self._title(last)
            heat.value_label, heat.scale, heat.reverse = filled.label, filled.scale, filled.reverse
            heat.x_label = "last token read"
            heat.set_matrix(
                filled.matrix, rows=[*map(str, range(last.n_layers)), "output"], columns=list(last.tokens),
                vmin=filled.vmin, vmax=filled.vmax, signed=filled.signed, texts=labels(shown, panel.threshold),
                notes=self._notes(shown),
            )  # fmt: skip
            heat.edges = [] if difference else commits(last)
            heat.crossed = [] if difference else losses(last)
            response = panel.in_prompt < last.n_positions
            heat.column_marks = [[panel.in_prompt, last.n_positions]] if response else []
            if response:
                heat.x_label += " (marked: the response)"
        shown_if(self.key, not difference)

    def _paint_selection(self) -> None:
        """Show the chosen cell, and say what happened at its position."""
        panel = self.panel
        row, column = panel.cell
        self.story.value = "<br>".join(
            f"<b>{start}</b>{escape(story(result, column))}"
            for start, result in zip(pair_view.all_starts(panel.results), panel.results, strict=True)
        )
        if self.heat.shape[0]:
            self.heat.cross = self.heat.pinned = [row, column]

    def _notes(self, shown: tuple[LogitLensResult, ...]) -> list[str]:
        """Kept, because a slider's move needs them again."""
        if self._noted[0] != shown:
            self._noted = (shown, notes(shown))
        return self._noted[1]

    def _title(self, result: LogitLensResult) -> str:
        panel = self.panel
        kind = "Tuned lens" if result.lens == "tuned" else "Logit lens"
        what = f"{kind}: the next token as each layer would have it, coloured by {COLOR_LABELS[panel.color]}"
        what = pair_view.title_start(panel) + what
        return what + (", labels where the likeliest tokens differ" if panel.shown == "difference" else "")

    # what a user does -------------------------------------------------------------------------------------------------

    def _pinned(self, change: Any) -> None:
        if self._painting:
            return
        if change.new:
            self.panel.look_at(*change.new)
        else:
            self.panel.look_at(-1, -1)
