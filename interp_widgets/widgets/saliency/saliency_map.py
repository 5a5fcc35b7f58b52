"""The map: token strips above, prompt × response map, densities, and the numbers in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.saliency import SaliencyResult, prompt_saliency, saliency_cost, spans_to_mask
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import call, cell
from ..base.fields import Bounds, field
from ..base.request import Request, result_variables
from ..base.response import lengths
from ..base.saving import as_one
from ..views import Heatmap, Table, TokenStrip
from .attribution import METHOD_LABELS, TARGET_LABELS, DensityPanel, ResponsePanel

TABLE_ROWS = 60
"""Most prompt tokens in the table below the map."""
NOTED = 10_000
"""Most cells of which each says on hover what it is."""
VALUE_LABELS = {"score": "scores 0 to L", "importance": "importance"}


class SaliencyMap(ResponsePanel, DensityPanel):
    """Which prompt tokens each response token depends on; a selection only recolours the strips."""

    title, of_both = "Saliency", ("difference", "beside")
    analysis = staticmethod(prompt_saliency)
    values = field(
        VALUE_LABELS, "score", label="Show", redraws=True,
        help="Scores 0 to L, each column by its own maximum, or the importance itself",
    )  # fmt: skip
    threshold = field(
        Annotated[float, Bounds(0.0, lambda panel: panel.levels, 0.5, slider=True, shown_as=".1f")], 0.0,
        label="b, map", redraws=True, help="Scores at or under it count as 0 in the map",
    )  # fmt: skip
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, chooses=True, argument=None)
    """The selected prompt token, -1 for none."""
    response_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, chooses=True, argument=None)
    """The selected response token, -1 for none."""
    brush = field(T.List(T.Int()), selects=True)
    """The brushed prompt tokens [start, end), or empty."""
    marks = field(T.List(T.List(T.Int())), selects=True)
    """Spans [start, end) of prompt tokens marked as the instruction."""
    instruction = T.Tuple(T.Int(), T.Int(), default_value=None, allow_none=True)
    """Characters [start, end) of the prompt that are to be marked as the instruction; None once they are."""

    def build(self) -> None:
        super().build()
        self.prompt_strips = pair_view.SideBySide(
            self, lambda: TokenStrip(density_label="density", live_hover=True, empty="No prompt yet")
        )
        self.response_strips = pair_view.SideBySide(
            self, lambda: TokenStrip(
                live_hover=True, density_label="probability", empty="No response yet: press Run"
            )
        )  # fmt: skip
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="prompt token", column_name="response token", x_label="response token",
                y_label="prompt token", row_bars_label="density", empty="No map yet: press Run",
            )
        )  # fmt: skip
        views = self.prompt_strips.views, self.response_strips.views, self.maps.views
        self.prompt_strip, self.response_strip, self.heat = (each[0] for each in views)
        self.prompt_strip.label, self.response_strip.label = "Prompt", "Response"
        for prompt_strip, response_strip, heat in zip(*views, strict=True):
            heat.strips = (prompt_strip, response_strip)  # shade each other in a saved page too
        self.table = Table(empty="Click a response token: the prompt tokens it depends on are listed here.", height=240)
        marking = W.ToggleButton(description="Mark instruction", tooltip="Then drag over the prompt's words")
        clear = self.on_click(W.Button(description="Clear marks"), lambda: setattr(self, "marks", []))
        self.scores = W.HTML("")
        above = self.controls.row("values", "min_importance", marking, clear)
        scoring = self.controls.row("levels", "threshold", "density_threshold", "p")
        self.inputs.children = [above, self.controls.fold(above, [scoring])]
        self.strips = W.VBox([self.prompt_strips.box, self.response_strips.box])
        self.strips.add_class("iw-beside")
        self.plot.children = [self.scores, self.strips, self.maps.box, self.table]
        for strip in self.prompt_strips.views:
            self.bind(strip, "prompt_token", key="selected")
            self.bind(strip, "marks", key="marks")
            self.watch(strip, "brush", lambda change: setattr(self, "brush", list(change.new)))
        for strip in self.response_strips.views:
            self.bind(strip, "response_token", key="selected")
        for strip in (*self.prompt_strips.views, *self.response_strips.views):
            self.watch(strip, "hovered", lambda _: self._shade())
        self.watch(marking, "value", self._marking)
        for heat in self.maps.views:
            self.watch(heat, "pinned", self._pinned)
        self.watch(self.table, "selected", self._picked)
        self.watch(self, "prompt", lambda _: setattr(self, "instruction", None))
        self.watch(self, "instruction", lambda _: self._mark_instruction())
        self._axes: tuple[Any, ...] = ()
        self._matrices: tuple[NDArray[np.float64], ...] = ()
        self._densities: tuple[NDArray[np.float64], ...] = ()
        self._noted: dict[str, tuple[SaliencyResult, float, list[str]]] = {}

    # what the panel asks for ------------------------------------------------------------------------------------------

    def cost(self, request: Request, model: Model) -> Cost:
        options = dict(request.arguments)
        kept = {name: options[name] for name in ("steps", "draws") if name in options}
        return saliency_cost(model, *lengths(request, model), options["method"], **kept)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        first = self.results[0]
        return {
            "prompt_token": (len(first.prompt_tokens), "the tokens of this prompt"),
            "response_token": (len(first.response_tokens), "the tokens of this response"),
        }

    def fit_thresholds(self) -> None:
        with self.hold():
            super().fit_thresholds()
            self.threshold = min(self.threshold, self.levels)

    # numbers ----------------------------------------------------------------------------------------------------------

    def _numbers(self, view: str) -> NDArray[np.float64]:
        """(prompt, response) the numbers of the map of a view."""
        return np.asarray(pair_view.of_view(view, self._matrices))

    def _density(self, view: str) -> NDArray[np.float64]:
        """(prompt,) the densities beside it."""
        return np.asarray(pair_view.of_view(view, self._densities))

    def _signed(self, view: str) -> bool:
        """Whether the numbers of a view can be negative."""
        return view == "difference" or self.values == "importance"

    def _unit(self, view: str) -> str:
        """What the numbers of a view are."""
        target = TARGET_LABELS[self.results[0].target] if self.results else "importance"
        name = "score" if self.values == "score" else f"change of {target}"
        return name + (", B − A" if view == "difference" else "")

    @property
    def shape(self) -> dict[str, Any]:
        """Keywords of the densities."""
        return {
            "levels": self.levels, "threshold": self.density_threshold, "p": self.p,
            "min_importance": self.min_importance,
        }  # fmt: skip

    @property
    def map_shape(self) -> dict[str, Any]:
        """Keywords of the scores in the map."""
        return {"levels": self.levels, "threshold": self.threshold, "min_importance": self.min_importance}

    def mask(self) -> NDArray[np.bool_]:
        """(prompt,) which prompt tokens are marked as the instruction."""
        mask = np.zeros(len(self.prompt_strip.tokens), dtype=bool)
        for start, end in self.marks:
            mask[start:end] = True
        return mask

    def _matrix(self, result: SaliencyResult) -> NDArray[np.float64]:
        if self.values == "importance":
            return np.asarray(result.importance, dtype=np.float64)
        scores = result.normalised(**self.map_shape)
        known = np.isfinite(result.importance) & ~result.under_floor(self.min_importance)
        return np.where(known, scores, np.nan)

    def _notes(self, view: str) -> list[str]:
        """What each cell of one model's map says besides its number; nothing of a map too large to write all down."""
        if view == "difference" or self._matrices[0].size > NOTED:
            return []
        result, floor = self.results[view == "B"], self.min_importance
        kept = self._noted.get(view)
        if kept is None or kept[0] is not result or kept[1] != floor:  # most redraws change neither
            self._noted[view] = kept = (result, floor, _cell_notes(result, floor))
        return kept[2]

    def _range(self, view: str) -> tuple[float, float]:
        """One colour scale for A and B, and for their difference one about 0."""
        if self.values == "score" and view != "difference":
            return 0.0, float(self.levels)
        largest = pair_view.largest(view, [self._matrices])
        return -largest, largest

    def _largest_density(self) -> float:
        return max((float(density.max()) for density in self._densities if density.size), default=0.0)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[SaliencyResult, ...], request: Request) -> None:
        first = results[0]
        self.fill_in(first, request)
        self._show_texts(first, request.inputs[0].text)
        self._matrices = tuple(map(self._matrix, results))
        self._densities = tuple(result.density(**self.shape) for result in results)
        beside = self.shown == "beside"
        (self.strips.remove_class if beside else self.strips.add_class)("iw-beside")  # two of each are two rows
        for view, heat in self.maps.drawn():
            low, high = self._range(view)
            with heat.hold_sync():
                heat.title = self._title(view, first)
                heat.value_label = self._unit(view)
                heat.set_matrix(
                    self._numbers(view), rows=list(first.prompt_tokens), columns=list(first.response_tokens),
                    vmin=low, vmax=high, signed=self._signed(view), notes=self._notes(view),
                )  # fmt: skip
                bars = None if view == "difference" else self._density(view)
                heat.set_row_bars(bars, maximum=self._largest_density())
                heat.row_marks = [list(span) for span in self.marks]
        for view, strip in self.response_strips.drawn():
            strip.set_density(results[pair_view.models_of(view)[-1]].probability, maximum=1.0)
        self._mark_instruction()

    def _show_texts(self, result: SaliencyResult, prompt: str) -> None:
        """Show the tokens; of other tokens than before, nothing is selected or marked."""
        before, axes = self._axes, (prompt, tuple(result.prompt_ids), tuple(result.response_ids))
        if axes == before:
            return
        self._matrices = self._densities = ()  # of other texts: a selection must not look them up
        # what was selected when the panel opened is of these texts
        prompt_token, response_token = (-1, -1) if before else (self.prompt_token, self.response_token)
        if axes[:2] != before[:2]:
            marks = [] if before else [span for span in self.marks if span[1] <= len(result.prompt_tokens)]
            self.prompt_token, self.brush = -1, []
            for strip in self.prompt_strips.views:
                strip.set_tokens(result.prompt_tokens, special=result.prompt_special)
            self.marks = marks
            self.prompt_token = prompt_token if prompt_token < len(result.prompt_tokens) else -1
        self.response_token = -1
        for strip in self.response_strips.views:
            strip.set_tokens(result.response_tokens)
        self.response_token = response_token if response_token < len(result.response_tokens) else -1
        self._axes = axes

    def _mark_instruction(self) -> None:
        """Mark the instruction that came with the prompt, once its tokens are on the screen."""
        if self.instruction is None or not self.results or self._axes[:1] != (self.prompt,):
            return
        spans, instruction, self.instruction = self.results[0].prompt_spans, self.instruction, None
        inside = np.flatnonzero([] if spans is None else spans_to_mask(spans, [instruction]))
        self.marks = [[int(inside[0]), int(inside[-1]) + 1]] if inside.size else []

    def _title(self, view: str, result: SaliencyResult) -> str:
        method = METHOD_LABELS.get(result.method, result.method).split(":")[0]
        which, rest = pair_view.title_start(self, view), ", partial" if result.partial else ""
        method += f", baseline {result.baseline}" * (result.baseline != "zero")
        return f"{which}Importance of each prompt token for each response token ({method}, {result.target}{rest})"

    def draw_selection(self) -> None:
        if not self._matrices:
            return
        self._score_marks()
        self._shade()
        column, line = self._selected()
        absent = column is None and line is None
        for heat in self.maps.shown:
            heat.cross = [] if absent else [-1 if line is None else line, -1 if column is None else column]
        self._list(column)

    def _score_marks(self) -> None:
        """Show the marked instruction and its scores."""
        for heat in self.maps.shown:
            heat.row_marks = [list(span) for span in self.marks if span[1] <= heat.shape[0]]
        mask = self.mask()
        if not mask.any():
            told = ["No instruction marked: its score needs the words that say what to do", *self._floor_text()]
            self.scores.value = ". ".join(told) + "."
            return
        texts = []
        for name in ("instruction_score", "context_score"):
            scores = [getattr(result, name)(mask, **self.shape) for result in self.results]
            paper = [getattr(result, name)(mask, **{**self.shape, "min_importance": 0.0}) for result in self.results]
            label = name.replace("_", " ")
            values = [
                f"{letter}<b>{_score(score)}</b>" + f" (without the floor {_score(other)})" * (score != other)
                for letter, score, other in zip(pair_view.letters(scores), scores, paper, strict=True)
            ]
            values += [f"B − A <b>{_score(scores[1] - scores[0], '+')}</b>"] if len(scores) > 1 else []
            texts.append(f"{label} {', '.join(values)}")
        text = " · ".join([*texts, f"{int(mask.sum())} of {mask.size} prompt tokens marked", *self._floor_text()])
        self.scores.value = text[0].upper() + text[1:]

    def _floor_text(self) -> list[str]:
        """How many response tokens are under the floor, where any is."""
        counts = [int(result.under_floor(self.min_importance).sum()) for result in self.results]
        if not any(counts):
            return []
        numbers = ", ".join(f"{letter}{n}" for letter, n in zip(pair_view.letters(counts), counts, strict=True))
        every = self._matrices[0].shape[1]
        return [f"under the floor of {self.min_importance:g} (hatched): {numbers} of {every} response tokens"]

    def _selected(self) -> tuple[int | None, int | None]:
        """Selected response and prompt token, where they exist."""
        rows, columns = self._matrices[0].shape
        column, line = self.response_token, self.prompt_token
        return (column if 0 <= column < columns else None), (line if 0 <= line < rows else None)

    def _shade(self) -> None:
        """Prompt by the chosen response token's column, response by the chosen prompt tokens' rows."""
        if not self._matrices:
            return
        rows, columns = self._matrices[0].shape
        column, line = self._selected()
        hovered = max(strip.hovered for strip in self.response_strips.shown)
        column = hovered if 0 <= hovered < columns else column
        span = self._span(line, rows)
        for view, strip in self.prompt_strips.drawn():
            self._shade_prompt(view, strip, column)
        for view, strip in self.response_strips.drawn():
            self._shade_response(view, strip, span)

    def _letter(self, view: str) -> str:
        """What to begin the label of a strip with: of A beside B its letter."""
        return f"{view}: " if self.shown == "beside" else ""

    def _shade_prompt(self, view: str, strip: TokenStrip, column: int | None) -> None:
        letter, unit = self._letter(view), self._unit(view)
        strip.value_label = "density" if column is None else unit
        if column is not None:
            low, high = self._range(view)
            strip.label = f"{letter}Prompt, shaded by its {unit} for response token {column}"
            strip.set_values(self._numbers(view)[:, column], vmin=low, vmax=high, signed=self._signed(view))
            return
        limit, difference = self._largest_density() or 1.0, view == "difference"
        strip.label = f"{letter}Prompt, shaded by density" + (", B − A" if difference else "")
        strip.set_values(self._density(view), vmin=-limit if difference else 0.0, vmax=limit, signed=difference)

    def _shade_response(self, view: str, strip: TokenStrip, span: tuple[int, int] | None) -> None:
        letter, unit = self._letter(view), self._unit(view)
        strip.value_label = unit
        if span is None:
            strip.label = f"{letter}Response, with the probability of each token"
            strip.set_values(None)
            return
        low, high = self._range(view)
        what = f"prompt token {span[0]}" if span[1] == span[0] + 1 else f"prompt tokens {span[0]} to {span[1] - 1}"
        strip.label = f"{letter}Response, shaded by the mean {unit} of {what}"
        values = self._numbers(view)[span[0] : span[1]].mean(axis=0)
        strip.set_values(values, vmin=low, vmax=high, signed=self._signed(view))

    def _span(self, line: int | None, rows: int) -> tuple[int, int] | None:
        """The prompt tokens that shade the response: hovered, else brushed, else selected."""
        hovered = max(strip.hovered for strip in self.prompt_strips.shown)
        if 0 <= hovered < rows and not self.brush:
            return hovered, hovered + 1
        if len(self.brush) == 2 and self.brush[1] <= rows:
            return self.brush[0], self.brush[1]
        return None if line is None else (line, line + 1)

    def _list(self, column: int | None) -> None:
        """The prompt tokens by the size of their number, for one response token or over all."""
        first = self.results[0]
        letters = pair_view.letters(self._matrices)
        numbers = [
            m[:, column] if column is not None else d for m, d in zip(self._matrices, self._densities, strict=True)
        ]
        name = self._unit("A") if column is not None else "density"
        ordered = np.argsort(-np.max([np.nan_to_num(np.abs(n)) for n in numbers], axis=0), kind="stable")[:TABLE_ROWS]
        heads = [{"label": "position", "align": "right"}, {"label": "prompt token"}]
        heads += [{"label": f"{name} {letter}".strip(), "align": "right"} for letter in letters]
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
            chances = ", ".join(f"{result.probability[column]:.3f}" for result in self.results)
            what = f"response token {column} “{visible(first.response_tokens[column])}” (probability {chances})"
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = f"Prompt tokens by their {name} for {what}"

    # what a user does -------------------------------------------------------------------------------------------------

    def _marking(self, change: Any) -> None:
        for strip in self.prompt_strips.views:
            strip.marking = change.new

    def _pinned(self, change: Any) -> None:
        if change.new:
            with self.hold():
                self.prompt_token, self.response_token = change.new

    def _picked(self, change: Any) -> None:
        if change.new >= 0:
            self.prompt_token = int(self.table.rows[change.new][0])

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        results = result_variables(self.models)
        lines = [*request.lines(self.models), call(f"{results[-1]}.normalised", **self.map_shape)]
        if self.marks:
            inside = " or ".join(f"{start} <= i < {end}" for start, end in self.marks)
            lines.append(f"mask = [{inside} for i in range({len(self.mask())})]")
            lines += [call(f"{result}.instruction_score", "mask", **self.shape) for result in results]
        return cell([request.method], self.models, lines)

    def frame(self) -> Any:
        return pair_view.joined(map(self._table, self.results))

    def _table(self, result: SaliencyResult) -> Any:
        table, columns = result.to_frame(), result.importance.shape[1]
        table["score"] = result.normalised(**self.map_shape).ravel()
        table["density"] = np.repeat(result.density(**self.shape), columns)
        table["marked"] = np.repeat(self.mask(), columns)
        return table

    def stored(self) -> Result:
        return as_one(self.by_letter())

    def scene(self) -> Scene:
        return stack_scenes([part.scene() for part in (self.prompt_strips, self.response_strips, self.maps)])


def _score(score: float, sign: str = "") -> str:
    """A score in a sentence; that of a response which is under the floor altogether is none."""
    return format(score, f"{sign}.3f") if np.isfinite(score) else "none"


def _cell_notes(result: SaliencyResult, floor: float) -> list[str]:
    """The importance and probability of every cell in words, row by row, and why some have no score."""
    under = f"; no score: under the floor of {floor:g}"
    ends = [
        f", probability {chance:.3g}" + under * bool(faint)
        for chance, faint in zip(result.probability.tolist(), result.under_floor(floor), strict=True)
    ]
    notes = [
        ("importance within rounding" if tiny else f"importance {number:+.3g}") + end if number == number else ""
        for numbers, row in zip(result.importance.tolist(), result.below_rounding.tolist(), strict=True)
        for number, tiny, end in zip(numbers, row, ends, strict=True)
    ]
    if result.method == "exact":
        notes[-len(ends)] += "; this token is also the query that predicts this one, which goes with it"
    return notes
