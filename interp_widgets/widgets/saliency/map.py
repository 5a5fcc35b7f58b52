"""The map tab: token strips above, prompt × response map, densities, and the numbers in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.saliency import SaliencyResult
from interp_widgets.figures.labels import visible

from ..base.controls import row
from ..views.heatmap import Heatmap
from ..views.table import Table
from ..views.token_strip import TokenStrip
from .labels import METHOD_LABELS, TARGET_LABELS

if TYPE_CHECKING:
    from .explorer import SaliencyExplorer

TABLE_ROWS = 60
"""Most prompt tokens in the table below the map."""


class MapTab:
    """Draws the results that its explorer holds; a selection only recolours the strips."""

    def __init__(self, panel: SaliencyExplorer) -> None:
        self.panel = panel
        self.prompt_strip = TokenStrip(label="Prompt", density_label="density", live_hover=True, empty="No prompt yet")
        self.response_strip = TokenStrip(
            label="Response", live_hover=True, density_label="probability", empty="No response yet: press Run"
        )
        self.heat = Heatmap(
            row_name="prompt token", column_name="response token", x_label="response token", y_label="prompt token",
            row_bars_label="density", empty="No map yet: press Run",
        )  # fmt: skip
        self.heat.strips = (self.prompt_strip, self.response_strip)  # shade each other in a saved page too
        self.table = Table(empty="Click a response token: the prompt tokens it depends on are listed here.", height=240)
        self.marking = W.ToggleButton(description="Mark instruction", tooltip="Then drag over the prompt's words")
        clear = panel.on_click(W.Button(description="Clear marks"), lambda: setattr(panel, "marks", []))
        self.scores = W.HTML("")
        tools = row(self.marking, clear, self.scores)
        self.box = W.VBox([tools, self.prompt_strip, self.response_strip, self.heat, self.table])
        self.box.add_class("iw-column")
        self._join()
        self._matrices: tuple[NDArray[np.float64], ...] = ()
        self._densities: tuple[NDArray[np.float64], ...] = ()

    def _join(self) -> None:
        panel = self.panel
        panel.bind(self.prompt_strip, "prompt_token", key="selected")
        panel.bind(self.response_strip, "response_token", key="selected")
        panel.bind(self.prompt_strip, "marks", key="marks")
        panel.watch(self.prompt_strip, "brush", self._brushed)
        panel.watch(self.marking, "value", lambda change: setattr(self.prompt_strip, "marking", change.new))
        for strip in (self.prompt_strip, self.response_strip):
            panel.watch(strip, "hovered", lambda _: self._shade())
        panel.watch(self.heat, "pinned", self._pinned)
        panel.watch(self.table, "selected", self._picked)

    # tokens -----------------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Let go of the numbers: they are of other texts, and a selection must not look them up."""
        self._matrices = self._densities = ()

    def set_prompt(self, result: SaliencyResult) -> None:
        """Show another prompt."""
        self.prompt_strip.set_tokens(result.prompt_tokens, special=result.prompt_special)

    def set_tokens(self, result: SaliencyResult) -> None:
        """Show another response."""
        self.response_strip.set_tokens(result.response_tokens)

    # numbers ----------------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> NDArray[np.float64]:
        """(prompt, response) the numbers of the map."""
        return self._of_view(self._matrices)

    @property
    def density(self) -> NDArray[np.float64]:
        """(prompt,) the densities beside it."""
        return self._of_view(self._densities)

    @property
    def signed(self) -> bool:
        """Whether the shown numbers can be negative."""
        return self.panel.shown == "difference" or self.panel.values == "importance"

    def _of_view(self, arrays: tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
        shown = self.panel.shown
        return arrays[1] - arrays[0] if shown == "difference" else arrays["AB".index(shown)]

    def _matrix(self, result: SaliencyResult) -> NDArray[np.float64]:
        if self.panel.values == "importance":
            return np.asarray(result.importance, dtype=np.float64)
        scores = result.normalised(levels=self.panel.levels, threshold=self.panel.threshold)
        return np.where(np.isfinite(result.importance), scores, np.nan)

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw the explorer's results anew."""
        panel = self.panel
        self._matrices = tuple(self._matrix(result) for result in panel.results)
        shape = {"levels": panel.levels, "threshold": panel.density_threshold, "p": panel.p}
        self._densities = tuple(result.density(**shape) for result in panel.results)
        first = panel.results[0]
        low, high = self._range()
        with self.heat.hold_sync():
            self.heat.title = self._title(first)
            self.heat.value_label = self.unit
            self.heat.set_matrix(
                self.shown, rows=list(first.prompt_tokens), columns=list(first.response_tokens),
                vmin=low, vmax=high, signed=self.signed,
            )  # fmt: skip
            bars = None if panel.shown == "difference" else self.density
            self.heat.set_row_bars(bars, maximum=self._largest_density())
            self.heat.row_marks = [list(span) for span in panel.marks]
        chances = [result.probability for result in panel.results]
        self.response_strip.set_density(chances[0 if panel.shown == "A" else -1], maximum=1.0)
        self.paint_marks()
        self.paint_selection()

    @property
    def unit(self) -> str:
        """What the shown numbers are."""
        if self.panel.values == "score":
            return "score" if self.panel.shown != "difference" else "score, B − A"
        target = TARGET_LABELS[self.panel.results[0].target] if self.panel.results else "importance"
        return f"change of {target}" + (", B − A" if self.panel.shown == "difference" else "")

    def _title(self, result: SaliencyResult) -> str:
        method = METHOD_LABELS.get(result.method, result.method).split(":")[0]
        which = {"A": "A", "B": "B", "difference": "B − A"}[self.panel.shown] + " · " if len(self._matrices) > 1 else ""
        rest = ", partial" if result.partial else ""
        return f"{which}Importance of each prompt token for each response token ({method}, {result.target}{rest})"

    def _range(self) -> tuple[float, float]:
        """One colour scale for A and B, and for their difference one about 0."""
        if self.panel.values == "score" and self.panel.shown != "difference":
            return 0.0, float(self.panel.levels)
        arrays = (self.shown,) if self.panel.shown == "difference" else self._matrices
        largest = max((float(np.nanmax(np.abs(a))) for a in arrays if np.isfinite(a).any()), default=0.0) or 1.0
        return -largest, largest

    def _largest_density(self) -> float:
        return max((float(d.max()) for d in self._densities if d.size), default=0.0)

    def paint_marks(self) -> None:
        """Show the marked instruction and its scores."""
        panel = self.panel
        if not panel.results:
            return
        self.heat.row_marks = [list(span) for span in panel.marks if span[1] <= self.heat.shape[0]]
        mask = panel.mask()
        if not mask.any():
            self.scores.value = "No instruction marked: its score needs the words that say what to do."
            return
        shape = {"levels": panel.levels, "threshold": panel.density_threshold, "p": panel.p}
        scores = [(r.instruction_score(mask, **shape), r.context_score(mask, **shape)) for r in panel.results]
        texts = []
        for index, name in enumerate(("Instruction score", "context score")):
            if len(scores) == 1:
                texts.append(f"{name} <b>{scores[0][index]:.3f}</b>")
            else:
                a, b = scores[0][index], scores[1][index]
                texts.append(f"{name} A <b>{a:.3f}</b>, B <b>{b:.3f}</b>, B − A <b>{b - a:+.3f}</b>")
        self.scores.value = " · ".join([*texts, f"{int(mask.sum())} of {mask.size} prompt tokens marked"])

    def paint_selection(self) -> None:
        """Shade the strips by the selection and list the numbers."""
        if not self._matrices:
            return
        self._shade()
        column, line = self._selected()
        absent = column is None and line is None
        self.heat.cross = [] if absent else [-1 if line is None else line, -1 if column is None else column]
        self._list(column)

    def _selected(self) -> tuple[int | None, int | None]:
        """Selected response and prompt token, where they exist."""
        rows, columns = self.shown.shape
        column, line = self.panel.response_token, self.panel.prompt_token
        return (column if 0 <= column < columns else None), (line if 0 <= line < rows else None)

    def _shade(self) -> None:
        """Prompt by the chosen response token's column, response by the chosen prompt tokens' rows."""
        if not self._matrices:
            return
        rows, columns = self.shown.shape
        column, line = self._selected()
        hovered = self.response_strip.hovered
        column = hovered if 0 <= hovered < columns else column
        low, high = self._range()
        if column is not None:
            self.prompt_strip.label = f"Prompt, shaded by its {self.unit} for response token {column}"
            self.prompt_strip.set_values(self.shown[:, column], vmin=low, vmax=high, signed=self.signed)
        else:
            limit = self._largest_density() or 1.0
            difference = self.panel.shown == "difference"
            self.prompt_strip.label = "Prompt, shaded by density" + (", B − A" if difference else "")
            floor = -limit if difference else 0.0
            self.prompt_strip.set_values(self.density, vmin=floor, vmax=limit, signed=difference)
        self.prompt_strip.value_label = self.unit if column is not None else "density"
        span = self._span(line, rows)
        if span is not None:
            what = f"prompt token {span[0]}" if span[1] == span[0] + 1 else f"prompt tokens {span[0]} to {span[1] - 1}"
            values = self.shown[span[0] : span[1]].mean(axis=0)
            self.response_strip.label = f"Response, shaded by the mean {self.unit} of {what}"
            self.response_strip.set_values(values, vmin=low, vmax=high, signed=self.signed)
        else:
            self.response_strip.label = "Response, with the probability of each token"
            self.response_strip.set_values(None)
        self.response_strip.value_label = self.unit

    def _span(self, line: int | None, rows: int) -> tuple[int, int] | None:
        """The prompt tokens that shade the response: hovered, else brushed, else selected."""
        hovered = self.prompt_strip.hovered
        if 0 <= hovered < rows and not self.panel.brush:
            return hovered, hovered + 1
        if len(self.panel.brush) == 2 and self.panel.brush[1] <= rows:
            return self.panel.brush[0], self.panel.brush[1]
        return None if line is None else (line, line + 1)

    def _list(self, column: int | None) -> None:
        """The prompt tokens by the size of their number, for one response token or over all."""
        first = self.panel.results[0]
        letters = "AB"[: len(self._matrices)]
        numbers = [
            m[:, column] if column is not None else d for m, d in zip(self._matrices, self._densities, strict=True)
        ]
        name = self.unit.split(",")[0] if column is not None else "density"
        ordered = np.argsort(-np.max([np.nan_to_num(np.abs(n)) for n in numbers], axis=0), kind="stable")[:TABLE_ROWS]
        heads = [{"label": "position", "align": "right"}, {"label": "prompt token"}]
        heads += [{"label": f"{name} {letter}" if len(letters) > 1 else name, "align": "right"} for letter in letters]
        if len(letters) > 1:
            heads.append({"label": f"{name}, B − A", "align": "right"})
        rows = []
        for i in map(int, ordered):
            values = [float(n[i]) if np.isfinite(n[i]) else None for n in numbers]
            if len(values) == 2:
                values.append(None if None in values else float(numbers[1][i] - numbers[0][i]))
            rows.append([i, visible(first.prompt_tokens[i]), *values])
        what = "all response tokens (density)"
        if column is not None:
            chances = ", ".join(f"{result.probability[column]:.3f}" for result in self.panel.results)
            what = f"response token {column} “{visible(first.response_tokens[column])}” (probability {chances})"
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = f"Prompt tokens by their {name} for {what}"

    # what a user does -------------------------------------------------------------------------------------------------

    def _brushed(self, change: Any) -> None:
        self.panel.brush = list(change.new)

    def _pinned(self, change: Any) -> None:
        if change.new:
            with self.panel.hold():
                self.panel.prompt_token, self.panel.response_token = change.new

    def _picked(self, change: Any) -> None:
        if change.new >= 0:
            self.panel.prompt_token = int(self.table.rows[change.new][0])
