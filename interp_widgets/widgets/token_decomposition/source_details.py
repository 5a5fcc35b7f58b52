"""Below the map: a table of sources, what a clicked part alone would predict, and charts over the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.token_decomposition import PartTokens, part_tokens
from interp_widgets.figures.labels import fixed, visible
from interp_widgets.figures.token_decomposition import PartTrajectories

from ..base import pair_view
from ..base.controls import row
from ..base.description import Description, decimals
from ..views import BokehFigure, Table
from .decomposition_panel import DecompositionPanel
from .rows import Array, Rows
from .source_map import logit_names, view_suffix

TABLE_ROWS = 200
"""Most sources in the table."""
CHART_HEIGHT = 304
"""Height of the charts in pixels, the same as the list beside them."""
TOP = 10
"""Number of tokens listed for a part."""
SINK = " The first token carries the model's attention sink: its share is not that of its word alone."


class SourceDetails:
    """Shows the selection of its explorer, or else the source with the largest share."""

    def __init__(self, panel: DecompositionPanel) -> None:
        self.panel = panel
        self.sources = Table(empty="No sources yet.", height=272)
        self.part = Table(empty="No part yet.", height=272)
        self.charts = tuple(PartTrajectories(kind=kind) for kind in ("norm_share", "target_logit"))
        self.figures = [BokehFigure(chart.figure, on_error=panel.show_error) for chart in self.charts]
        for chart in self.charts:
            chart.figure.height = CHART_HEIGHT
        boxes = [W.VBox([figure], layout={"flex": "3 1 416px"}) for figure in self.figures]
        self.parts = [row(W.VBox([self.part], layout={"flex": "1 1 240px"}), *boxes)]
        self.parts[0].layout.align_items = "flex-start"
        panel.on_user(self.sources, "selected", self._picked)
        self._listed: list[int] = []
        self._requested: Any = None
        self._shows: Any = None
        self._drawn: Any = None

    @property
    def listed_source(self) -> int:
        """The row that the second table shows: the selected one, else the source with the largest share."""
        panel = self.panel
        if 0 <= panel.source <= panel.shown_rows[-1].sources:
            return panel.source
        shares = [rows.logit_share()[:-1] for rows in panel.rows]
        sizes = [np.abs(np.asarray(pair_view.of_view(view, shares))) for view in pair_view.views_to_draw(panel)]
        return int(np.argmax(np.max(sizes, axis=0)))

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw the tables and the charts if their contents have changed."""
        panel = self.panel
        shows = (tuple(rows.result for rows in panel.rows), panel.shown, panel.source, panel.at_column)
        if shows == self._shows:
            return
        self._shows = shows
        self._list_sources()
        self._read_part()
        self._draw_charts()

    def describe_selection(self) -> Description:
        """The sources with the largest shares, for the side of a screen."""
        shares = [rows.logit_share() for rows in self.panel.rows]
        labels = self.panel.shown_rows[-1].labels
        rows = [(visible(labels[i]), *(decimals(float(share[i]), 2) for share in shares)) for i in self._listed[:5]]
        heads = ("part of", *(letter.strip() or "share" for letter in pair_view.letters(shares)))
        about = f"Shares of the {logit_names(self.panel.shown_rows)}"
        return Description(about, (f"All shares: {self._sums(shares)}.{self._sink()}",), heads, tuple(rows))

    def _sink(self) -> str:
        """A sentence where the first token's share is not that of its word."""
        return SINK if any(rows.result.logit.sink for rows in self.panel.shown_rows) else ""

    def _list_sources(self) -> None:
        """List the sources by the size of their shares, and what each part alone would predict at the chosen layer."""
        panel, shares = self.panel, [rows.logit_share() for rows in self.panel.rows]
        order = np.argsort(-np.max(np.abs(shares), axis=0), kind="stable")[:TABLE_ROWS]
        self._listed = [int(i) for i in order]
        lines = self._lines(shares)
        about = f"norm and lens {self._where()}{view_suffix(panel.shown)}"
        with self.sources.hold_sync():
            self.sources.rows = []
            self.sources.columns, self.sources.rows = self._heads(), [lines[i] for i in self._listed]
            self.sources.selected = self._listed.index(panel.source) if panel.source in self._listed else -1
            self.sources.caption = (
                f"Sources by their share of the {logit_names(panel.shown_rows)} ({self._sums(shares)}); {about}"
                + (f".{self._sink()}" if self._sink() else "")
            )

    def _heads(self) -> list[dict[str, str]]:
        where, comparing = self._where(), len(self.panel.rows) == 2
        heads = [{"label": "at", "align": "right", "title": "Position"}, {"label": "part of"}]
        for name in ("A", "B") if comparing else ("share",):
            heads.append({"label": name, "align": "right", "title": "Its contribution to the logit"})
        if comparing:
            heads.append({"label": "B − A", "align": "right", "title": "Difference of the shares"})
        views = pair_view.views_to_draw(self.panel)
        named = comparing and self.panel.shown != "difference"
        ends = [f" {view}" for view in views] if named else [""]
        norms = f"Share of the parts' norms {where}"
        heads += [{"label": f"norm{end}", "align": "right", "title": norms + view_suffix(view)}
                  for view, end in zip(views, ends, strict=True)]  # fmt: skip
        heads.append({"label": "alone", "title": f"The top token of the part alone, {where}"})
        return heads + [
            {"label": f"prob.{end}", "align": "right", "title": f"Probability of that token{view_suffix(view)}"}
            for view, end in zip(views, ends, strict=True)
        ]

    def _lines(self, shares: list[Array]) -> list[list[Any]]:
        """A table row for each row of the map."""
        panel, shown = self.panel, self.panel.shown_rows
        norms, chances = (
            [
                pair_view.of_view(view, [rows.matrix(what)[:, self._within(rows)] for rows in panel.rows])
                for view in pair_view.views_to_draw(panel)
            ]
            for what in ("norm_share", "probability")
        )
        tops = [rows.top()[:, self._within(rows)] for rows in shown]
        lines: list[list[Any]] = []
        for i, label in enumerate(shown[-1].labels):
            values = [float(share[i]) for share in shares]
            values += [values[1] - values[0]] if len(values) == 2 else []
            words = [visible(rows.text(int(top[i]))) or "–" for rows, top in zip(shown, tops, strict=True)]
            alone = words[0] if len(set(words)) == 1 else " → ".join(words)
            position = i if i < shown[-1].sources else None
            lines.append([position, visible(label), *values, *_finite(norms, i), alone, *_finite(chances, i)])
        return lines

    def _within(self, rows: Rows) -> int:
        """The chosen column, for a model that may have fewer layers."""
        return min(self.panel.at_column, rows.n_layers)

    def _where(self) -> str:
        """The chosen layer in words."""
        last, column = self.panel.shown_rows[-1].n_layers, self.panel.at_column
        return "at the output" if column == last else f"entering layer {column}"

    def _sums(self, shares: list[Any]) -> str:
        letters = pair_view.letters(shares)
        return "sum " + ", ".join(
            f"{letter}{fixed(share.sum(), 2)}" for letter, share in zip(letters, shares, strict=True)
        )

    def _draw_charts(self) -> None:
        """Draw the models in view over the layers; two with different targets have no common logit chart."""
        panel, sources = self.panel, self._followed()
        drawn = (tuple(rows.result for rows in panel.shown_rows), sources)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        shown = [rows.result.tokens for rows in panel.shown_rows]
        names = [pair_view.labels(panel)[panel.rows.index(rows)] for rows in panel.shown_rows]
        norms, logit = self.charts
        norms.update(shown, names=names, sources=sources)
        if len({tokens.target for tokens in shown}) > 1:
            logit.update([])
            logit.say("The two models have different targets; a typed target is used for both.")
        else:
            logit.update(shown, names=names, sources=sources)

    def _followed(self) -> tuple[int, ...]:
        """The sources with their own lines: those with the largest shares of logit or norm, and the selected one."""
        sizes = np.zeros(self.panel.shown_rows[-1].sources)
        for rows in self.panel.shown_rows:
            for numbers in (rows.logit_share()[:-1], rows.norm_share(-1)[:-1]):
                size = np.nan_to_num(np.abs(numbers))
                sizes = np.maximum(sizes, size / (size.max() or 1.0))
        largest = np.argsort(-sizes, kind="stable")[: PartTrajectories.LARGEST].tolist()
        chosen = {*largest, self.panel.source} if 0 <= self.panel.source < len(sizes) else set(largest)
        return tuple(sorted(chosen))

    # one part ---------------------------------------------------------------------------------------------------------

    def _read_part(self) -> None:
        """List what the part alone would predict; computed in the worker, since it needs the model's unembedding."""
        panel = self.panel
        if any(rows.result.partial for rows in panel.rows):
            return  # the worker is computing it
        source = self.listed_source
        calls = [
            (panel.models[panel.rows.index(rows)], rows.result.tokens, self._within(rows),
             None if source == rows.sources else source)
            for rows in panel.shown_rows
        ]  # fmt: skip
        key = (source, *((tokens, column) for _, tokens, column, _ in calls))
        if key == self._requested:
            return
        self._requested = key
        self.part.caption = self._part_name(source) + " …"

        def work(job: Any) -> list[PartTokens]:
            return [part_tokens(*call, top=TOP) for call in calls]

        def done(parts: list[PartTokens]) -> None:
            if key == self._requested:
                self._show_part(source, parts)

        panel.jobs.start(work, done, title="Reading the part", channel="part", quiet=True)

    def _part_name(self, source: int) -> str:
        rows = self.panel.shown_rows[-1]
        name = f"“{visible(rows.labels[source])}” ({source})" if source < rows.sources else rows.rest
        return f"Alone, {name} {self._where()} predicts"

    def _show_part(self, source: int, parts: list[PartTokens]) -> None:
        heads: list[dict[str, str]] = []
        for letter in pair_view.letters(parts):
            heads += [{"label": f"{letter}token".strip()}, {"label": f"{letter}probability", "align": "right"}]
        columns = [column for part in parts for column in (list(map(visible, part.tokens)), list(part.probability))]
        with self.part.hold_sync():
            self.part.rows = []
            self.part.columns = heads
            longest = max(map(len, columns))
            self.part.rows = [[c[k] if k < len(c) else None for c in columns] for k in range(longest)]
            self.part.caption = self._part_name(source) + ":"
            self.part.empty = "This part is zero here: the token has not contributed to the position yet"

    # what a user does -------------------------------------------------------------------------------------------------

    def _picked(self, change: Any) -> None:
        self.panel.source = self._listed[change.new] if change.new >= 0 else -1


def _finite(columns: Sequence[Any], line: int) -> list[float | None]:
    """The numbers of one line, None for missing ones."""
    return [float(column[line]) if np.isfinite(column[line]) else None for column in columns]
