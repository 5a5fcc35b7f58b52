"""Beside the map: the top tokens of one cell, and the target at one position over the layers."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as W

from interp_widgets.analysis.logit_lens import LogitLensResult
from interp_widgets.figures.labels import visible
from interp_widgets.figures.logit_lens import LensTrajectory, Trajectory

from ..base import pair_view
from ..base.controls import row
from ..base.prediction import PredictionPanel
from ..base.workbench import model_name
from ..views import BokehFigure, Heatmap, Table
from .sentences import cell_line, quoted, row_name

CHARTS: tuple[Trajectory, ...] = ("target_rank", "target_probability", "entropy")


class CellDetails:
    """Shows the cell of `maps` under the pointer or cursor, else the selected one; charts of the selected position.

    `follow(token)` is called for a token that is clicked in the list.
    """

    def __init__(
        self, panel: PredictionPanel, maps: pair_view.SideBySide[Heatmap], follow: Callable[[int], None]
    ) -> None:
        self.panel, self.maps, self.follow = panel, maps, follow
        self.cell, self.top = (0, 0), 0
        self.numbers = W.HTML("")
        self.numbers.add_class("iw-hint")
        self.table = Table(instruction="click one to follow it", empty="No reading yet.", height=224)
        self.charts = tuple(LensTrajectory(kind=kind) for kind in CHARTS)
        hosts = [BokehFigure(chart.figure, on_error=panel.show_error) for chart in self.charts]
        boxes = [W.VBox([host]) for host in hosts]
        for box in boxes:
            box.layout.flex = "1 1 352px"  # side by side if there is room
        self.listed = [self.table, self.numbers]
        self.parts = [row(*boxes)]
        self.parts[0].layout.align_items = "flex-start"
        for heat in maps.views:
            panel.watch(heat, ["hovered", "cross"], lambda _: self._list())
        panel.on_user(self.table, "selected", self._picked)
        self._listed: Any = None
        self._charted: Any = None

    @property
    def listed_cell(self) -> tuple[int, int]:
        """Row and column of the cell in the table."""
        maps = self.maps.shown
        for cell, shape in [(heat.hovered, heat.shape) for heat in maps] + [(heat.cross, heat.shape) for heat in maps]:
            if len(cell) == 2 and all(0 <= i < n for i, n in zip(cell, shape, strict=True)):
                return cell[0], cell[1]
        return self.cell

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self, cell: tuple[int, int], top: int) -> None:
        """Update table and charts to the panel's results and the selected cell, with so many tokens in the list."""
        self.cell, self.top = cell, top
        self._list()
        results, (_, column) = self.panel.results, cell
        if self._charted != (results, column):
            self._charted = (results, column)
            for chart in self.charts:
                chart.update(results, column, names=self._names()[: len(results)])

    def _names(self) -> list[str]:
        """Short legend names; the title line says which models A and B are."""
        models = self.panel.models
        return [model_name(models[0])] if len(models) == 1 else ["A", "B"]

    def _list(self) -> None:
        """List the top tokens of the cell, for two models side by side."""
        panel = self.panel
        if not panel.results:
            return
        row, column = self.listed_cell
        listed = (panel.results, row, column, self.top)
        if listed == self._listed:
            return
        self._listed = listed
        rows = [min(row, result.n_layers) for result in panel.results]
        lists = [
            result.top(at, column)[: self.top * bool(result.computed[column])]
            for result, at in zip(panel.results, rows, strict=True)
        ]
        heads: list[dict[str, str]] = [{"label": "rank", "align": "right"}]
        for letter in pair_view.letters(lists):
            heads += [{"label": f"{letter}next token"}, {"label": "probability", "align": "right"}]
        table: list[list[Any]] = []
        for rank in range(max(map(len, lists))):
            line: list[Any] = [rank]
            for tokens in lists:
                line += [visible(tokens[rank][0]), tokens[rank][1]] if rank < len(tokens) else [None, None]
            table.append(line)
        first, shown = panel.results[0], panel.results[pair_view.shown_indices(panel)[-1]]
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, table
            where = f"after {quoted(first.tokens[column])} ({column}) at {row_name(shown, row)}"
            self.table.caption = f"Likeliest tokens {where}"
        self.numbers.value = "<br>".join(
            f"{start}{escape(cell_line(result, at, column))}"
            for start, result, at in zip(pair_view.all_starts(panel.results), panel.results, rows, strict=True)
        )

    # what a user does -------------------------------------------------------------------------------------------------

    def _picked(self, change: Any) -> None:
        """Make a clicked token the target."""
        if change.new < 0:
            return
        panel, (row, column) = self.panel, self.listed_cell
        index = 1 if len(panel.results) == 2 and panel.shown != "A" else 0
        result: LogitLensResult = panel.results[index]
        token = int(result.top_ids[min(row, result.n_layers), column, change.new])
        self.follow(token)
