"""The saliency map: token strips, prompt × response map, densities, and a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.saliency import SaliencyResult, prompt_saliency, saliency_cost, spans_to_mask
from interp_widgets.analysis.saliency.spans import read_spans
from interp_widgets.figures.labels import fixed, number, visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model
from interp_widgets.models.chat import is_chat

from ..base import pair_view
from ..base.code import call, cell
from ..base.controls import Span, Spans, Whole, shown_if
from ..base.description import Description, decimals
from ..base.fields import Bounds, Incomplete, field
from ..base.request import Request, result_variables
from ..base.response import lengths
from ..views import Heatmap, Table, TokenStrip
from .attribution import METHOD_LABELS, TARGET_LABELS, DensityPanel, ResponsePanel
from .rows import LONG, ROWS_LABELS, RULE_LABELS, Rows, automatic_kind, with_gaps
from .verdict import VerdictLine

MOST_ROWS = 5
"""Prompt tokens listed at the side of a screen."""
TABLE_ROWS = 60
"""Most rows of the map in the table below it."""
LINES = 4
"""Lines of a strip before it scrolls, so that the map begins on the first screen."""
NOTED = 10_000
"""Most cells for which each has its own tooltip."""
VALUE_LABELS = {"score": "scores", "importance": "importance"}


class SaliencyMap(ResponsePanel, DensityPanel):
    """Which prompt tokens each response token depends on; a selection only recolours the strips."""

    title, pair_views = "Saliency", ("difference", "beside")
    analysis = staticmethod(prompt_saliency)
    values = field(
        VALUE_LABELS, "score", label="Show", redraws=True,
        help="Scores in levels, each column scaled by its own maximum, or the raw importance",
    )  # fmt: skip
    threshold = field(
        Annotated[float, Bounds(0.0, lambda panel: panel.levels, 0.5, slider=True, shown_as=".1f")], 0.0,
        label="Map threshold", redraws=True, help="b: scores at or below it count as 0 in the map",
    )  # fmt: skip
    rows = field(
        ROWS_LABELS, "automatic", label="Rows", argument="spans",
        help="One row per token, word, sentence or passage (about eight stretches of whole sentences), per role or "
        f"turn of a chat, or per span marked in the prompt; automatic: per token, in prompts of more than {LONG} "
        "tokens per sentence, and per passage where the sentences would take long",
    )  # fmt: skip
    span_rule = field(
        RULE_LABELS, "together", label="made by", argument="span_rule",
        help="Replace all tokens of a row in one run, or combine the importance of its single tokens, "
        "which is a different quantity; first order and integrated gradients are summed instead of replaced",
        shown_if=lambda panel: panel.rows not in ("automatic", "tokens"),
    )  # fmt: skip
    within = field(Span(), argument="within")
    """Prompt tokens [start, end) to restrict the rows to, such as one sentence; empty: all."""
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, argument=None)
    """The selected prompt token, -1 for none."""
    response_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, argument=None)
    """The selected response token, -1 for none."""
    brush = field(Span(), selects=True)
    """The brushed prompt tokens [start, end), or empty."""
    marks = field(Spans(), selects=True)
    """Spans [start, end) of prompt tokens marked as the instruction."""
    instruction = T.Tuple(Whole(), Whole(), default_value=None, allow_none=True)
    """Characters [start, end) of the prompt to mark as the instruction; None once they are marked."""

    def build(self) -> None:
        super().build()
        shared: dict[str, Any] = {"live_hover": True, "breaks": False, "legend": True, "max_lines": LINES}
        self.prompt_strips = pair_view.SideBySide(
            self, lambda: TokenStrip(density_label="density", empty="No prompt yet", **shared)
        )
        self.response_strips = pair_view.SideBySide(
            self, lambda: TokenStrip(density_label="probability", empty="No response yet.", **shared)
        )
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="prompt token", column_name="response token", x_label="response token",
                y_label="prompt token", row_bars_label="density", empty="No map yet.",
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
        self.scores, self.verdict = W.HTML(""), VerdictLine(self)
        self.inside = W.Button(
            description="Look inside", tooltip="Show the tokens of the selected row, or its sentences"
        )
        self.outside = W.Button(description="Back to all rows", tooltip="Show the rows of the whole prompt")
        for button in (self.inside, self.outside):
            shown_if(button, False)
        self.on_click(self.inside, self.zoom_into_span)
        self.on_click(self.outside, lambda: setattr(self, "within", []))
        on_screen = self.screen is not None  # where space is short
        often, seldom = ([], [marking]) if on_screen else ([marking], [])
        above = self.controls.row("rows", "span_rule", self.inside, self.outside, "values", *often)
        scoring = self.controls.row("min_importance", "levels", "threshold", "density_threshold", "p", *seldom, clear)
        self.add_next_to_run(above)
        self.inputs.children = [self.controls.fold(above, [scoring])]
        self.strips = W.VBox([self.prompt_strips.box, self.response_strips.box])
        for name in ("iw-beside", "iw-strips"):
            self.strips.add_class(name)
        shown_if(self.strips, not on_screen)  # a screen has its own above the panels
        self.arrange([self.strips, self.maps.box], beside=[self.verdict.box, self.scores, self.table], width=420)
        for strip in self.prompt_strips.views:
            self.bind(strip, "prompt_token", key="selected")
        texts_above = [] if self.screen is None else [self.screen.texts.prompt_strip]
        self.marked_strips = [*self.prompt_strips.views, *texts_above]
        """The strips on which the instruction is marked."""
        for strip in self.marked_strips:
            self.bind(strip, "marks", key="marks")
            self.watch(strip, "brush", lambda change: setattr(self, "brush", list(change.new)))
        for strip in self.response_strips.views:
            self.bind(strip, "response_token", key="selected")
        for strip in (*self.prompt_strips.views, *self.response_strips.views):
            self.watch(strip, "hovered", lambda _: self._shade())
        self.watch(marking, "value", self._marking)
        for heat in self.maps.views:
            self.watch(heat, "pinned", self._pinned)
            if on_screen:  # the texts above are shaded by the cell under the pointer
                heat.live_hover = True
                self.watch(heat, "hovered", lambda _: self.screen.shade())
        self.watch(self.table, "selected", self._picked)
        self.watch(self, "prompt", self._other_prompt)
        self.watch(self, "marks", self._other_marks)
        self.watch(self, "instruction", lambda _: self._mark_instruction())
        self._axes: tuple[Any, ...] = ()
        self._rows = Rows("tokens", (), (), ())
        self._in_rows: tuple[SaliencyResult, ...] = ()
        self._matrices: tuple[NDArray[np.float64], ...] = ()
        self._densities: tuple[NDArray[np.float64], ...] = ()
        self._noted: dict[str, tuple[SaliencyResult, float, list[str]]] = {}

    # the request ------------------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        for name in ("spans", "span_rule", "within"):
            arguments.pop(name, None)  # `request` adds them, since they depend on the prompt
        return arguments

    def request(self) -> Request:
        request = super().request()
        prompt = request.inputs[0].read_by(self.models[0])
        if self.rows in ("roles", "turns") and not is_chat(prompt):
            raise Incomplete("rows", "only a chat has roles and turns, and this prompt is a text: choose other rows")
        if self.rows == "marks" and not self.marks:
            raise Incomplete("rows", "mark spans of the prompt first: press Mark and drag over its words")
        arguments = dict(request.arguments)
        if self.within:
            arguments["within"] = tuple(self.within)
        read = read_prompt(self.models[0], prompt)
        kind = self.rows
        if kind == "automatic":
            kinds = {automatic_kind(model, read, self.within) for model in self.models}
            kind = "passages" if "passages" in kinds else kinds.pop()
        elif self.within and kind != "words":
            kind = "tokens"
        if kind != "tokens" and (self.rule == "together" or self.within):
            arguments["spans"] = with_gaps(self.marks, read.n_shown) if kind == "marks" else kind
        return replace(request, arguments=tuple(arguments.items()))

    def _kind(self, request: Request) -> str:
        """The kind of rows of a request's map, of which single tokens may be combined afterwards."""
        options = dict(request.arguments)
        if "spans" in options:
            return options["spans"] if isinstance(options["spans"], str) else "marks"
        return "tokens" if self.rows == "automatic" or "within" in options else self.rows

    @property
    def rule(self) -> str:
        """How the importance of a row of several tokens is computed."""
        return "together" if self.rows == "automatic" else self.span_rule

    def cost(self, request: Request, model: Model) -> Cost:
        options = dict(request.arguments)
        keywords: dict[str, Any] = {name: options[name] for name in ("steps", "draws") if name in options}
        spans, within = options.get("spans"), options.get("within")
        if spans is not None or within is not None:
            prompt = read_prompt(model, request.inputs[0].read_by(model))
            facts = prompt.tokens(), prompt.special(), prompt.roles, prompt.turns, prompt.spans
            keywords["spans"] = len(read_spans(spans, within, *facts))
        return saliency_cost(model, *lengths(request, model), options["method"], **keywords)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        first = self.results[0]
        return {
            "prompt_token": (len(first.prompt_ids), "the tokens of this prompt"),
            "response_token": (len(first.response_tokens), "the tokens of this response"),
        }

    def fit_thresholds(self) -> None:
        with self.batch_changes():
            super().fit_thresholds()
            self.threshold = min(self.threshold, self.levels)

    # numbers ----------------------------------------------------------------------------------------------------------

    def _numbers(self, view: str) -> NDArray[np.float64]:
        """(prompt, response) the values in a view's map."""
        return np.asarray(pair_view.of_view(view, self._matrices))

    def _density(self, view: str) -> NDArray[np.float64]:
        """(prompt,) the densities in a view."""
        return np.asarray(pair_view.of_view(view, self._densities))

    def _signed(self, view: str) -> bool:
        """Whether a view's values can be negative."""
        return view == "difference" or self.values == "importance"

    def _unit(self, view: str) -> str:
        """The name of a view's values."""
        target = TARGET_LABELS[self.results[0].target] if self.results else "importance"
        name = "score" if self.values == "score" else f"change of {target}"
        return name + (", B − A" if view == "difference" else "")

    @property
    def shape(self) -> dict[str, Any]:
        """Keywords for the densities."""
        return {
            "levels": self.levels, "threshold": self.density_threshold, "p": self.p,
            "min_importance": self.min_importance,
        }  # fmt: skip

    @property
    def map_shape(self) -> dict[str, Any]:
        """Keywords for the scores in the map."""
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
        scores = result.normalized(**self.map_shape)
        known = np.isfinite(result.importance) & ~result.under_floor(self.min_importance)
        return np.where(known, scores, np.nan)

    def _notes(self, view: str) -> list[str]:
        """Tooltips of a model's map besides the value; none if the map is too large."""
        if view == "difference" or self._matrices[0].size > NOTED:
            return []
        result, floor = self._in_rows[view == "B"], self.min_importance
        cached = self._noted.get(view)
        if cached is None or cached[0] is not result or cached[1] != floor:  # most redraws change neither
            self._noted[view] = cached = (result, floor, _cell_notes(result, floor, self._rows, self._foils(result)))
        return cached[2]

    def _foils(self, result: SaliencyResult) -> tuple[str, ...]:
        """The token that each response token is compared with; empty for a target without a foil."""
        if result.foil is None:
            return ()
        ids = [result.foil] if isinstance(result.foil, int) else list(result.foil)
        names = tuple(map(visible, self.models[0].single_token_strings(ids)))
        return names * len(result.response_ids) if len(names) == 1 else names

    def _against(self, result: SaliencyResult, column: int) -> str:
        """The foil of a response token in words; empty for a target without one."""
        foils = self._foils(result)
        own = foils and foils[column] == visible(result.response_tokens[column])
        return (" compared with itself" if own else f" rather than “{foils[column]}”") if foils else ""

    def _range(self, view: str) -> tuple[float, float]:
        """One colour scale for A and B, and one centred on 0 for their difference."""
        if self.values == "score" and view != "difference":
            return 0.0, float(self.levels)
        largest = pair_view.symmetric_limit(view, [self._matrices])
        return -largest, largest

    def _largest_density(self) -> float:
        return max((float(density.max()) for density in self._densities if density.size), default=0.0)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[SaliencyResult, ...], request: Request) -> None:
        first = results[0]
        self.fill_in(first, request)
        self._show_rows(results, request)
        self._show_texts(first, request.inputs[0].text)
        self._matrices = tuple(map(self._matrix, self._in_rows))
        self._densities = tuple(result.density(**self.shape) for result in self._in_rows)
        self.widen_map(len(first.response_tokens))
        beside = self.shown == "beside"
        (self.strips.remove_class if beside else self.strips.add_class)("iw-beside")  # A beside B needs two rows
        for view, heat in self.maps.drawn():
            low, high = self._range(view)
            with heat.hold_sync():
                heat.title = self._title(view, first)
                heat.value_label = self._unit(view)
                heat.row_name = heat.y_label = f"prompt {self._rows.name}"
                heat.set_matrix(
                    self._numbers(view), rows=self._rows.labels(), columns=list(first.response_tokens),
                    vmin=low, vmax=high, signed=self._signed(view), notes=self._notes(view),
                )  # fmt: skip
                bars = None if view == "difference" else self._density(view)
                heat.set_row_bars(bars, maximum=self._largest_density())
        for view, strip in self.response_strips.drawn():
            strip.set_density(results[pair_view.models_of(view)[-1]].probability, maximum=1.0)
        self._mark_instruction()
        self.verdict.ask(results)

    def _show_rows(self, results: tuple[SaliencyResult, ...], request: Request) -> None:
        """Set the rows of the map: those of the results, or single tokens combined into spans."""
        first, kind = results[0], self._kind(request)
        spans: Any = with_gaps(self.marks, len(first.prompt_ids)) if kind == "marks" else kind
        self._in_rows = results
        if first.spans is None and kind != "tokens":
            self._in_rows = tuple(result.by_spans(spans, how=self.rule) for result in results)  # type: ignore[arg-type]
        self._rows = Rows.of(self._in_rows[0], kind, self.models[0])
        pairs = zip(self.maps.views, self.prompt_strips.views, self.response_strips.views, strict=True)
        for heat, above, beside in pairs:  # in a saved page, rows that are tokens shade their strip
            heat.strips = (above, beside) if self._rows.single else None

    def _show_texts(self, result: SaliencyResult, prompt: str) -> None:
        """Show the tokens; if they have changed, clear selection and marks."""
        before, axes = self._axes, (prompt, tuple(result.prompt_ids), tuple(result.response_ids))
        if axes == before:
            return
        self._matrices = self._densities = ()  # values of the old texts, which a selection must not index
        # a selection made before the first result belongs to these texts
        prompt_token, response_token = (-1, -1) if before else (self.prompt_token, self.response_token)
        if axes[:2] != before[:2]:
            tokens = self._rows.tokens
            marks = [] if before else [span for span in self.marks if span[1] <= len(tokens)]
            self.prompt_token, self.brush = -1, []
            for strip in self.prompt_strips.views:
                strip.set_tokens(tokens, special=self._rows.special)
            self.marks = marks
            self.prompt_token = prompt_token if prompt_token < len(tokens) else -1
        self.response_token = -1
        for strip in self.response_strips.views:
            strip.set_tokens(result.response_tokens)
        self.response_token = response_token if response_token < len(result.response_tokens) else -1
        self._axes = axes

    def _mark_instruction(self) -> None:
        """Mark the instruction that came with the prompt, once its tokens are on the screen."""
        if self.instruction is None or not self.results or self._axes[:1] != (self.prompt,):
            return
        prompt = self.shown_request.inputs[0].read_by(self.models[0])
        spans, instruction, self.instruction = read_prompt(self.models[0], prompt).spans, self.instruction, None
        inside = np.flatnonzero([] if spans is None else spans_to_mask(spans, [instruction]))
        self.marks = [[int(inside[0]), int(inside[-1]) + 1]] if inside.size else []

    def _title(self, view: str, result: SaliencyResult) -> str:
        method = METHOD_LABELS.get(result.method, result.method)
        which, rest = pair_view.title_start(self, view), ", partial" if result.partial else ""
        method += f", baseline {result.baseline}" * (result.baseline != "zero")
        rule = self._in_rows[0].span_rule
        made = (
            f", {RULE_LABELS[rule].replace('its', 'their')}" if rule is not None and self._rows.kind != "tokens" else ""
        )
        foils = set(self._foils(result))
        against = f" to “{foils.pop()}”" if len(foils) == 1 else " to each runner-up" if foils else ""
        by = "" if self._rows.kind == "tokens" else f" of each prompt {self._rows.name}"
        return f"{which}Importance{by} ({method}, {TARGET_LABELS[result.target]}{against}{made}{rest})"

    def draw_selection(self) -> None:
        if not self._matrices:
            return
        self._score_marks()
        self._shade()
        column, line = self._selected()
        chosen = -1 if column is None or self.response_token < 0 else column
        for heat in self.maps.shown:
            heat.cross = [] if chosen < 0 and line is None else [-1 if line is None else line, chosen]
        span = None if line is None else self._rows.spans[line]
        shown_if(self.inside, span is not None and span[1] > span[0] + 1)
        shown_if(self.outside, bool(self.within))
        self._list(column)

    def _score_marks(self) -> None:
        """Show the marked instruction and its scores."""
        for heat in self.maps.shown:
            heat.row_marks = [[a, b] for a, b in (self._rows.rows(*span) for span in self.marks) if a < b]
        mask = self.mask()
        if self.results[0].spans is not None:
            lines = ["The instruction score needs a map of single tokens, which this is not", *self._floor_text()]
            self.scores.value = ". ".join(line[0].upper() + line[1:] for line in lines) + "."
            return
        if not mask.any():
            lines = ["No instruction marked: mark the words that say what to do to see its score", *self._floor_text()]
            self.scores.value = ". ".join(line[0].upper() + line[1:] for line in lines) + "."
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
        """The number of response tokens below the floor, if there are any."""
        counts = [int(result.under_floor(self.min_importance).sum()) for result in self._in_rows]
        if not any(counts):
            return []
        numbers = ", ".join(f"{letter}{n}" for letter, n in zip(pair_view.letters(counts), counts, strict=True))
        every = self._matrices[0].shape[1]
        out = "hatched" if self.values == "score" else "no density or score: no prompt token adds as much"
        return [f"under the floor of {self.min_importance:g} ({out}): {numbers} of {every} response tokens"]

    def _selected(self) -> tuple[int | None, int | None]:
        """Selected response token, or the only one, and the row of the selected prompt token, where they exist."""
        column, line, columns = self.response_token, self._rows.row(self.prompt_token), self._matrices[0].shape[1]
        column = 0 if columns == 1 else column
        return (column if 0 <= column < columns else None), (line if line >= 0 else None)

    def _shade(self) -> None:
        """Shade the prompt by the selected response token, and the response by the selected prompt tokens."""
        if not self._matrices:
            return
        columns = self._matrices[0].shape[1]
        column, line = self._selected()
        hovered = max(strip.hovered for strip in self.response_strips.shown)
        column = hovered if 0 <= hovered < columns else column
        span = self._span(line)
        for view, strip in self.prompt_strips.drawn():
            self._shade_prompt(view, strip, column)
        for view, strip in self.response_strips.drawn():
            self._shade_response(view, strip, span)

    def _letter(self, view: str) -> str:
        """Prefix of a strip's label: the model's letter for A beside B."""
        return f"{view}: " if self.shown == "beside" else ""

    def _shade_prompt(self, view: str, strip: TokenStrip, column: int | None) -> None:
        letter, unit = self._letter(view), self._unit(view)
        strip.value_label = "density" if column is None else unit
        if column is not None:
            low, high = self._range(view)
            strip.label = f"{letter}Prompt: {unit} for response token {column}{self._by()}"
            self._shade_rows(strip, self._numbers(view)[:, column], low, high, signed=self._signed(view))
            return
        limit, difference = self._largest_density() or 1.0, view == "difference"
        strip.label = f"{letter}Prompt, shaded by density" + (", B − A" if difference else "") + self._by()
        self._shade_rows(strip, self._density(view), -limit if difference else 0.0, limit, signed=difference)

    def _by(self) -> str:
        """Suffix of a strip's label if the rows are not single tokens."""
        if self._rows.single:
            return ""
        start, end = self._rows.spans[0][0], self._rows.spans[-1][1]
        inside = f", tokens {start} to {end - 1}" if self.within else ""
        return f", by {self._rows.name}{inside}"

    def _shade_rows(
        self, strip: TokenStrip, values: NDArray[np.float64], low: float, high: float, *, signed: bool
    ) -> None:
        """Shade each token by the value of its row, and name the row in its tooltip."""
        per_token = self._rows.per_token(values)
        strip.set_values(per_token, vmin=low, vmax=high, signed=signed)
        if self._rows.single:
            strip.labels = []
            return
        tooltips = [
            f"{self._rows.described(row)}: {number(value)} {strip.value_label}" if np.isfinite(value)
            else f"{self._rows.described(row)}: no {strip.value_label}"
            for row, value in enumerate(values)
        ]  # fmt: skip
        rows = (self._rows.row(token) for token in range(len(per_token)))
        strip.labels = ["not among the rows" if row < 0 else tooltips[row] for row in rows]

    def _shade_response(self, view: str, strip: TokenStrip, span: tuple[int, int] | None) -> None:
        letter, unit = self._letter(view), self._unit(view)
        strip.value_label = unit
        if span is None:
            strip.label = f"{letter}Response, with the probability of each token"
            strip.set_values(None)
            return
        low, high = self._range(view)
        single, name = span[1] == span[0] + 1, self._rows.name
        start, end = self._rows.spans[span[0]][0], self._rows.spans[span[1] - 1][1]
        what = self._rows.described(span[0]) if single else f"the prompt {name}s of tokens {start} to {end - 1}"
        strip.label = f"{letter}Response: {unit if single else f'mean {unit}'} of {what}"
        values = self._numbers(view)[span[0] : span[1]].mean(axis=0)
        strip.set_values(values, vmin=low, vmax=high, signed=self._signed(view))

    def _span(self, line: int | None) -> tuple[int, int] | None:
        """The rows that shade the response: those of the hovered, else the brushed, else the selected prompt tokens."""
        hovered = self._rows.row(max(strip.hovered for strip in self.prompt_strips.shown))
        if hovered >= 0 and not self.brush:
            return hovered, hovered + 1
        if len(self.brush) == 2 and self.brush[1] <= len(self._rows.tokens):
            first, last = self._rows.rows(*self.brush)
            return (first, last) if first < last else None
        return None if line is None else (line, line + 1)

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        if not self._matrices or self._axes[0] != self.prompt:
            return False
        if len(prompt.tokens) != len(self._rows.tokens) or len(response.tokens) != self._matrices[0].shape[1]:
            return False
        view = "B" if self.shown == "beside" else self.shown
        column, line = self._selected()
        for row, at in [heat.hovered for heat in self.maps.shown if heat.hovered]:
            column, line = at, row
        if 0 <= response.hovered < self._matrices[0].shape[1]:
            column = response.hovered
        if (row := self._rows.row(prompt.hovered)) >= 0:
            line = row
        self._shade_prompt(view, prompt, column)
        self._shade_response(view, response, None if line is None else (line, line + 1))
        return True

    def describe_selection(self) -> Description | None:
        if not self._matrices:
            return None
        first, (column, _) = self._in_rows[0], self._selected()
        letters = pair_view.letters(self.results)
        if column is None:
            return Description("Saliency", ("Click a response token to list what it depends on.",))
        numbers = [result.importance[:, column] for result in self._in_rows]
        order = np.argsort(-np.max(np.nan_to_num(numbers), axis=0), kind="stable")
        above = [int(i) for i in order if max(np.nan_to_num([each[i] for each in numbers])) >= self.min_importance]
        names = self._rows.row_names()
        rows = [(names[i], *(decimals(float(each[i])) for each in numbers)) for i in above[:MOST_ROWS]]
        floor = f"{self.min_importance:g} or more"
        if len(above) <= MOST_ROWS:
            sentence = f"No {'other ' if rows else ''}prompt {self._rows.name} has an importance of {floor}."
        else:
            sentence = f"{len(above) - MOST_ROWS} more have an importance of {floor}."
        heads = (f"prompt {self._rows.name}", *(letter.strip() or "importance" for letter in letters))
        what = f"Importance for “{visible(first.response_tokens[column])}”{self._against(first, column)}"
        return Description(what, (sentence,), heads, tuple(rows))

    def _list(self, column: int | None) -> None:
        """List the rows by magnitude, for one response token or over all."""
        first = self.results[0]
        letters = pair_view.letters(self._matrices)
        numbers = [
            m[:, column] if column is not None else d for m, d in zip(self._matrices, self._densities, strict=True)
        ]
        name = self._unit("A") if column is not None else "density"
        ordered = np.argsort(-np.max([np.nan_to_num(np.abs(n)) for n in numbers], axis=0), kind="stable")[:TABLE_ROWS]
        self._listed = list(map(int, ordered))
        names = self._rows.row_names()
        heads = [{"label": "position", "align": "right"}, {"label": f"prompt {self._rows.name}"}]
        heads += [{"label": f"{name} {letter}".strip(), "align": "right"} for letter in letters]
        if len(letters) > 1:
            heads.append({"label": f"{name}, B − A", "align": "right"})
        rows = []
        for i in self._listed:
            values = [float(n[i]) if np.isfinite(n[i]) else None for n in numbers]
            if len(values) == 2:
                first_value, second_value = (float(n[i]) for n in numbers)
                equal = np.isclose(first_value, second_value, rtol=1e-6, atol=0)  # up to rounding
                values.append(None if None in values else 0.0 if equal else second_value - first_value)
            start, end = self._rows.spans[i]
            position = start if end == start + 1 else f"{start}–{end - 1}"
            rows.append([position, names[i], *values])
        what = "all response tokens"
        if column is not None:
            starts = pair_view.all_starts(self.results)
            chances = ", ".join(
                f"{start.rstrip(': ')} {decimals(float(result.probability[column]))}".strip()
                for start, result in zip(starts, self.results, strict=True)
            )
            token = visible(first.response_tokens[column])
            what = f"response token {column} “{token}”{self._against(first, column)} (probability {chances})"
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = f"Prompt {self._rows.name}s by their {name} for {what}"

    # what a user does -------------------------------------------------------------------------------------------------

    def _marking(self, change: Any) -> None:
        for strip in self.marked_strips:
            strip.marking = change.new

    def _pinned(self, change: Any) -> None:
        if change.new:
            row, column = change.new
            with self.batch_changes():
                self.prompt_token = self._rows.token(row, self.prompt_token) if row >= 0 else row
                self.response_token = column

    def _picked(self, change: Any) -> None:
        if change.new >= 0:
            self.prompt_token = self._rows.token(self._listed[change.new], self.prompt_token)

    def zoom_into_span(self) -> None:
        """Restrict the map to the tokens of the selected row, or to its sentences if it is long."""
        row = self._rows.row(self.prompt_token)
        if row >= 0:
            self.within = list(self._rows.spans[row])

    def _other_prompt(self, _: Any) -> None:
        self.instruction, self.within = None, []

    def _other_marks(self, change: Any) -> None:
        if self.rows == "marks":
            self._needs_refresh(change)

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        results = result_variables(self.models)
        lines = request.lines(self.models)
        if (kind := self._kind(request)) != "tokens" and "spans" not in dict(request.arguments):
            size = read_prompt(self.models[0], request.inputs[0].read_by(self.models[0])).n_shown
            spans = [list(span) for span in with_gaps(self.marks, size)] if kind == "marks" else kind
            lines += [f"{name} = {call(f'{name}.by_spans', repr(spans), how=self.rule)}" for name in results]
        lines.append(call(f"{results[-1]}.normalized", **self.map_shape))
        if self.marks and kind == "tokens" and not self.within:
            inside = " or ".join(f"{start} <= i < {end}" for start, end in self.marks)
            lines.append(f"mask = [{inside} for i in range({len(self.mask())})]")
            lines += [call(f"{result}.instruction_score", "mask", **self.shape) for result in results]
        return cell([request.method], self.models, lines)

    def frame(self) -> Any:
        return pair_view.joined(
            {letter: self.table_of(result) for letter, result in pair_view.by_letter(self._in_rows).items()}
        )

    def table_of(self, result: SaliencyResult) -> Any:
        table, columns = result.to_frame(), result.importance.shape[1]
        table["score"] = result.normalized(**self.map_shape).ravel()
        table["density"] = np.repeat(result.density(**self.shape), columns)
        mask = self.mask()
        table["marked"] = np.repeat([bool(mask[a:b].any()) for a, b in self._rows.spans], columns)
        return table

    def scene(self) -> Scene:
        return stack_scenes([part.scene() for part in (self.prompt_strips, self.response_strips, self.maps)])


def _score(score: float, sign: str = "") -> str:
    """A score as text; "none" if the whole response is below the floor."""
    return fixed(score, 3, sign) if np.isfinite(score) else "none"


def _cell_notes(result: SaliencyResult, floor: float, in_rows: Rows, foils: Sequence[str]) -> list[str]:
    """Tooltips of all cells, row by row: importance, probability, and why some have no score."""
    under = f"; no score: under the floor of {floor:g}"
    own = [visible(token) == foil for token, foil in zip(result.response_tokens, foils, strict=False)]
    against = [
        ", compared with itself, which is always 0" if same else f", compared with “{foil}”"
        for foil, same in zip(foils, own, strict=True)
    ] or [""] * len(result.response_ids)
    ends = [
        f", probability {chance:.3g}{versus}" + under * bool(faint)
        for chance, versus, faint in zip(result.probability.tolist(), against, result.under_floor(floor), strict=True)
    ]
    notes = [
        ("importance within rounding" if tiny else f"importance {number:+.3g}") + end if number == number else ""
        for numbers, row in zip(result.importance.tolist(), result.below_rounding.tolist(), strict=True)
        for number, tiny, end in zip(numbers, row, ends, strict=True)
    ]
    if result.method == "exact" and in_rows.spans[-1][1] == len(in_rows.tokens):
        what = "this token is" if in_rows.kind == "tokens" else "its last token is"
        notes[-len(ends)] += f"; {what} also the query position that predicts this one, so its query is replaced too"
    if result.sink:
        first = "this token carries" if in_rows.kind == "tokens" else "its first token carries"
        marked = f"; {first} the model's attention sink"
        notes[: len(ends)] = [note + marked if note else note for note in notes[: len(ends)]]
    if not in_rows.single:
        names = [f"{in_rows.described(row)}; " for row in range(len(in_rows.spans))]
        notes = [names[i // len(ends)] + note if note else note for i, note in enumerate(notes)]
    return notes
