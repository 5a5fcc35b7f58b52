"""Attention patterns: every head as a thumbnail, and the pattern of the selected head."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.attention import (
    AttentionPatterns,
    HeadMeasures,
    HeadScores,
    attention_patterns,
    attention_patterns_cost,
    head_measures,
    head_scores,
)
from interp_widgets.analysis.attention.head_scores import longest
from interp_widgets.analysis.attention.standing_out import StandingOut, standing_out
from interp_widgets.figures.attention import (
    MOST_CELLS,
    block_names,
    block_starts,
    in_blocks,
    seen,
    strongest_arcs,
    thumbnails,
)
from interp_widgets.figures.labels import capitalised, visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.description import Description, decimals
from ..base.fields import Bounds, field
from ..base.jobs import Derived
from ..base.prediction import Prediction, PredictionPanel, checked
from ..base.request import Request
from ..base.workbench import in_model
from ..views import Heatmap, Thumbnails, TokenStrip
from .compared import MEASURES, UNITS
from .known_heads import HEAD_STEPS, SCORES

LENGTH, SEQUENCES = 40, 8
"""Random tokens and sequences of the scores that the heads are sorted by."""
LISTED = 3
"""Number of keys listed for the selected query."""
ATTENDS_TO = {
    "previous_token": "the previous token",
    "duplicate_token": "an earlier occurrence of the same token",
    "induction": "the token after an earlier occurrence of the same one",
}
"""What a head of a kind attends to."""


def _in_row(count: int) -> int:
    """Heads in a row of a wide grid."""
    return math.ceil(math.sqrt(1.5 * count))


def _values(found: HeadScores | HeadMeasures, name: str) -> NDArray[np.float64]:
    """(layers, heads) what the heads are sorted by."""
    values: NDArray[np.float64] = found.of(name) if isinstance(found, HeadMeasures) else getattr(found, name)
    return values


class HeadPatterns(PredictionPanel):
    """All heads as thumbnails, layer × head or sorted by a measure, and the selected head's pattern, query × key."""

    title, tab_name = "Attention patterns", "Patterns"
    analysis = staticmethod(attention_patterns)
    pair_views = ("difference", "beside")
    layer = field(in_model(), label="Layer", selects=True)
    """The selected layer."""
    head = field(in_model(), label="Head", selects=True)
    """The selected head of that layer."""
    sort = field(
        {"layer": "layer", **MEASURES}, "layer", label="Sorted by", redraws=True,
        help="By layer, or highest first: by a score on repeated random tokens, by what heads add to the logit of the "
        "target, or by the drop of its log-probability without them",
    )  # fmt: skip
    without_sink = field(
        bool, False, label="Without the sink", redraws=True,
        help="Leave out the first token and divide each row by what it pays all other keys",
    )  # fmt: skip
    weighted = field(
        bool, False, label="Weighted by value", redraws=True,
        help="Attention times the norm of the value moved: attention to a token that moves nothing counts nothing",
    )  # fmt: skip
    position = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, linked="prompt_token")
    """The selected query: a token of the context, from 0 without a BOS; -1 for the last."""
    attended = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True)
    """The selected key, counted from 0 with the BOS; -1 for none."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self._orders: dict[str, list[int]] = {}
        self._thumbnails: dict[tuple[int, bool, bool], tuple[AttentionPatterns, NDArray[np.float32]]] = {}
        self._opens = True
        self._opened_on: tuple[StandingOut, AttentionPatterns, str] | None = None
        super().__init__(model, tuned, **options)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self._scores = Derived(self, self._scores_there, title="Scoring heads", channel="scores")
        self.grids = pair_view.SideBySide(
            self, lambda: Thumbnails(instruction="click one to see it", max_height=376, empty="No patterns yet")
        )
        # on a screen, where width is short, the title names the axes, and the panel's question what is measured
        axes = {} if self.screen is not None else {"y_label": "query", "x_label": "key"}
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="query", column_name="key", max_height=320, empty="No pattern yet", **axes,
            )
        )  # fmt: skip
        self.strips = pair_view.SideBySide(
            self, lambda: TokenStrip(instruction="click a token to select the query", max_lines=3, legend=True)
        )
        self.about = W.HTML("")
        pictures = W.VBox([self.grids.box, self.maps.box])
        pictures.add_class("iw-heads")
        self.arrange([pictures], below=[self.strips.box, self.about])
        self.watch(self, "position", self._query_moved)
        self.watch(self, "target", self._target_moved)
        for grid in self.grids.views:
            self.on_user(grid, "selected", self._head_chosen)
        for heat in self.maps.views:
            self.on_user(heat, "pinned", self._cell_chosen)
            self.on_user(heat, "cross", self.maps.follow)
        for strip in self.strips.views:
            self.on_user(strip, "selected", self._token_chosen)

    def request(self) -> Request:
        prediction = self.prediction()
        checked(prediction, self.models[0])
        return Request.of(attention_patterns, {}, prediction.ids)

    def cost(self, request: Request, model: Model) -> Cost:
        return attention_patterns_cost(model, len(request.inputs[0].read_by(model)))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {
            "position": (len(self.texts.axis), "the tokens that the model has read"),
            "prompt_token": (self.texts.n_prompt_tokens, "the tokens of this prompt"),
            "attended": (len(self.results[0].tokens), "the tokens that the model has read with its BOS"),
        }

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[AttentionPatterns, ...], request: Request) -> None:
        self._ask_scores()
        arrays = [self._tiles(result) for result in results]
        self._thumbnails = {key: held for key, held in self._thumbnails.items() if any(held[0] is r for r in results)}
        for view, grid in self.grids.drawn():
            tiles = pair_view.of_view(view, arrays)
            if tiles is None:
                grid.empty = (
                    "Not all layers are computed yet"
                    if any(result.partial for result in results)
                    else "A difference needs models with as many layers and heads: choose A beside B"
                )
                grid.set_tiles(None)
                continue
            rows, columns, *_ = tiles.shape
            order, notes = self._ordered(view, rows * columns)
            self._orders[view] = order
            by_layer = self.sort == "layer" or not notes
            names = [f"{index // columns}.{index % columns}" for index in order]
            low, high = self._limits(view, arrays)
            with grid.hold_sync():
                grid.title = pair_view.title_start(self, view) + self._grid_title(bool(notes))
                grid.set_tiles(
                    tiles.reshape(-1, *tiles.shape[2:])[order], names=[f"head {name}" for name in names],
                    columns=columns if by_layer else max(columns, _in_row(len(order))),
                    vmin=low, vmax=high, signed=view == "difference",
                    notes=notes, captions=[] if by_layer else names,
                    row_labels=[str(layer) for layer in range(rows)] if by_layer else [],
                    column_labels=[str(head) for head in range(columns)] if by_layer else [],
                )  # fmt: skip

        self._open()

    def _open(self) -> None:
        """With the first result, select the head that stands out in it, among those that nobody has decided against:
        of a layer that was chosen, only its heads."""
        if not self._opens or self.results[0].partial:
            return
        self._opens, first = False, self.results[0]
        chosen = self.workbench.chosen & {"layer", "head"}
        sizes = {"layer": "n_layers", "head": "n_heads"}
        allowed = {
            name: [getattr(self, name)] if name in chosen else range(min(getattr(model, size) for model in self.models))
            for name, size in sizes.items()
        }
        found = None if len(chosen) == 2 else standing_out(first, layers=allowed["layer"], heads=allowed["head"])
        if found is not None:
            name = next(iter(chosen), "")
            among = {"layer": f"of the heads of layer {self.layer} ", "head": f"of the heads {self.head} "}
            self._opened_on = found, first, among.get(name, "of all heads ")
            self.workbench.open_on(layer=found.layer, head=found.head)

    @property
    def _reason(self) -> tuple[StandingOut, str] | None:
        """Why the panel opened on the selected head, and among which; None if it did not, or on another prompt."""
        if self._opened_on is None:
            return None
        found, result, among = self._opened_on
        return (found, among) if result is self.results[0] and self._at == (found.layer, found.head) else None

    def draw_selection(self) -> None:
        if not self.results:
            return
        for view, grid in self.grids.drawn():
            order, index = self._orders.get(view, []), self.layer * self.results[0].patterns.shape[1] + self.head
            grid.selected = order.index(index) if grid.count and index in order else -1
        if not self._computed:
            for _, heat in self.maps.drawn():
                heat.empty = f"{capitalised(self.head_name)} is not computed yet"
                heat.set_matrix(None)
            for _, strip in self.strips.drawn():
                self._show_tokens(strip)
                strip.set_values(None)
                strip.set_arcs([])
            self.about.value = ""
            return
        patterns = [self._pattern(result) for result in self.results]
        names, query = block_names(self.results[0].tokens), self.query
        starts = block_starts(len(self.results[0].tokens), MOST_CELLS)
        at = [int(np.searchsorted(starts, place, "right")) - 1 for place in (query, self.attended)]
        for view, heat in self.maps.drawn():
            shown = pair_view.of_view(view, [in_blocks(pattern, MOST_CELLS) for pattern in patterns])
            if shown is None:
                heat.empty = "A difference needs prompts of as many tokens: choose A beside B"
                heat.set_matrix(None)
                continue
            low, high = self._limits(view, [pattern[None, None] for pattern in patterns])
            with heat.hold_sync():
                heat.title = pair_view.title_start(self, view) + self._map_title(len(starts))
                unit = self._unit + (", B − A" if view == "difference" else "")
                heat.value_label = unit if self.screen is None or view == "difference" else ""
                heat.set_matrix(
                    shown, rows=names, columns=names, vmin=low, vmax=high, signed=view == "difference"
                )  # fmt: skip
                heat.cross = at
                heat.pinned = at if self.attended >= 0 else []
        for view, strip in self.strips.drawn():
            rows = [pattern[query] for pattern in patterns]
            row = pair_view.of_view(view, rows)
            with strip.hold_sync():
                self._show_tokens(strip)
                token = visible(self.results[0].tokens[query])
                what = f"What ‘{token}’ attends to in {self.head_name}; arcs to the strongest"
                strip.label = pair_view.title_start(self, view) + what
                strip.value_label = self._unit
                strip.selected = query
                self._shade(strip, row, view, rows)
                strip.set_arcs([] if row is None else strongest_arcs(row, query, strip.vmax))
        self.about.value = "<br>".join(self._sentences())

    def _show_tokens(self, strip: TokenStrip) -> None:
        first = self.results[0]
        if strip.tokens != list(first.tokens):
            strip.set_tokens(first.tokens, special=first.special)

    def _shade(
        self, strip: TokenStrip, values: NDArray[np.float64] | None, view: str, rows: Sequence[NDArray[np.float64]]
    ) -> None:
        """Shade tokens by one query's attention, up to the largest of all models."""
        signed, high = view == "difference", pair_view.symmetric_limit(view, [rows])
        strip.set_values(values, vmin=-high if signed else 0.0, vmax=high, signed=signed)

    def _limits(self, view: str, arrays: Sequence[NDArray[Any]]) -> tuple[float, float]:
        """The ends of the colours: 0 and 1 for attention, else the largest number of both models."""
        if view == "difference":
            largest = pair_view.symmetric_limit(view, [arrays])
            return -largest, largest
        return 0.0, pair_view.symmetric_limit(view, [arrays]) if self._weights else 1.0

    def _tiles(self, result: AttentionPatterns) -> NDArray[np.float32]:
        """The thumbnails of one result, kept while it is on the screen."""
        key = id(result), self.without_sink, self._weights
        if key not in self._thumbnails:
            tiles = thumbnails(result, without_sink=self.without_sink, weighted=self._weights)
            self._thumbnails[key] = result, tiles
        return self._thumbnails[key][1]

    def _pattern(self, result: AttentionPatterns) -> NDArray[np.float64]:
        """The selected head's pattern, NaN after each query."""
        options = {"without_sink": self.without_sink, "weighted": self._weights}
        layer, head = (min(at, size - 1) for at, size in zip(self._at, result.patterns.shape[:2], strict=True))
        pattern: NDArray[np.float64] = seen(result.pattern(layer, head, **options))
        return pattern

    @property
    def _computed(self) -> bool:
        """Whether all results have the selected head: parts have the first layers only."""
        return all(self.layer < len(result.layers) for result in self.results if result.partial)

    @property
    def _at(self) -> tuple[int, int]:
        return self.layer, self.head

    @property
    def _weights(self) -> bool:
        """Whether attention is weighted: not where a model does not show the values that its heads move."""
        return self.weighted and all(result.value_norm is not None for result in self.results)

    # words ------------------------------------------------------------------------------------------------------------

    @property
    def head_name(self) -> str:
        """The selected head in words."""
        return f"head {self.layer}.{self.head}"

    @property
    def _unit(self) -> str:
        if self._weights:
            return "share of value moved" if self.without_sink else "attention × value norm"
        return "attention"

    def _changes(self) -> str:
        """How the numbers differ from the plain attention, for titles."""
        weighted = ", weighted by the norm of the value moved" if self._weights else ""
        sink = ", without the first token (rows renormalised over the other keys)" if self.without_sink else ""
        return weighted + sink

    def _grid_title(self, scored: bool) -> str:
        if self.sort == "layer":
            order = "layer × head"
        elif scored:
            order = f"by {MEASURES[self.sort]}, highest first"
        else:
            order = f"layer × head ({self._scores.failure or 'the scores are being computed'})"
        some = ", the first layers so far" if any(result.partial for result in self.results) else ""
        return f"All heads, {order}{self._changes()}{some}"

    def _map_title(self, cells: int) -> str:
        n = len(self.results[0].tokens)
        side = -(-n // cells)
        blocks = "" if cells == n else f"; each cell is the largest of {side} × {side} tokens"
        because = ""
        if self._reason is not None:
            kind = self._reason[0].kind
            because = ": the least spread" if kind == "narrow" else f": attends most to {ATTENDS_TO[kind]}"
        return f"{capitalised(self.head_name)}, query × key{self._changes()}{blocks}{because}"

    def _why(self) -> list[str]:
        """Why the panel opened on the selected head, as a sentence; nothing if it did not."""
        if self._reason is None:
            return []
        found, among = self._reason
        if found.kind == "narrow":
            what = (
                f"spreads its attention among the fewest tokens, {found.score:.1f} a query; equal attention would "
                f"spread it among {found.chance:.1f}"
            )
        else:
            what = (
                f"attends most to {ATTENDS_TO[found.kind]}, with {found.score:.0%} of its attention; equal attention "
                f"would pay {found.chance:.0%}"
            )
        return [f"Opened on {self.head_name}: {among}it {what}."]

    def _sentences(self) -> list[str]:
        """What the selected head pays the first token, beside equal attention, as HTML."""
        lines = [escape(sentence) for sentence in self._why()]
        for start, result in zip(pair_view.all_starts(self.results), self.results, strict=True):
            n = len(result.tokens)
            if n < 2 or self.layer >= len(result.layers) or self.head >= len(result.heads):
                continue
            share = float(result.first_token[self.layer, self.head])
            equal = float(np.mean([1 / (query + 1) for query in range(1, n)]))
            lines.append(
                f"{start}{capitalised(self.head_name)} pays the first token, {escape(visible(result.tokens[0]))}, "
                f"<b>{share:.0%}</b> of its attention (mean over the later tokens); equal attention to all tokens "
                f"would pay it {equal:.0%}."
            )
        if self.weighted and not self._weights:
            lines.append("Not weighted: the model does not show the values that its heads move.")
        return lines

    def describe_selection(self) -> Description | None:
        if not self.results or not self._computed:
            return None
        rows = [self._pattern(self.results[index])[self.query] for index in pair_view.shown_indices(self)]
        order = np.argsort(-np.nan_to_num(rows[0], nan=-1.0), kind="stable")[:LISTED]
        tokens = self.results[0].tokens
        names = [letter.strip() or self._unit for letter in pair_view.letters(rows)]
        return Description(
            f"Attention of {self.head_name}",
            (f"What ‘{visible(tokens[self.query])}’ attends to most{self._changes()}.", *self._why()),
            ("key", *names),
            tuple(
                (visible(tokens[key]), *(decimals(float(row[key])) for row in rows if key < len(row)))
                for key in order
                if np.isfinite(rows[0][key])
            ),
            HEAD_STEPS,
        )

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        if not self.results or not self._computed:
            return False
        view = "B" if self.shown == "beside" else self.shown
        rows = [self._pattern(result)[self.query] for result in self.results]
        row = pair_view.of_view(view, rows)
        first, tokens = self.results[0], (*prompt.tokens, *response.tokens)
        read = first.tokens[int(first.bos) :]
        if row is None or tokens[: len(read)] != tuple(read):
            return False
        values = np.full(len(tokens), np.nan)
        values[: len(read)] = row[int(first.bos) :]
        cut, query = len(prompt.tokens), visible(first.tokens[self.query])
        suffix = ", B − A" if view == "difference" else f", {view}" if len(self.results) > 1 else ""
        for strip, what, part in ((prompt, "Prompt", values[:cut]), (response, "Response", values[cut:])):
            strip.label = f"{what}: attention of ‘{query}’ in {self.head_name}{suffix}"
            strip.value_label, strip.labels = self._unit + suffix, []
            self._shade(strip, part, view, rows)
        return True

    # the selection ----------------------------------------------------------------------------------------------------

    @property
    def query(self) -> int:
        """The selected query, counted from 0 with the BOS; the last token where none is selected."""
        result = self.results[0]
        last = len(result.tokens) - 1
        return last if self.position < 0 else min(self.position + int(result.bos), last)

    def _head_chosen(self, change: Any) -> None:
        if change.new < 0:
            self.draw_selection()  # one head is always selected
            return
        view = next(view for view, grid in self.grids.drawn() if grid is change.owner)
        layer, head = divmod(self._orders[view][change.new], self.results[0].patterns.shape[1])
        with self.batch_changes():
            self.layer, self.head = layer, head

    def _cell_chosen(self, change: Any) -> None:
        if not change.new:
            self.attended = -1
            return
        starts = block_starts(len(self.results[0].tokens), MOST_CELLS)
        query, key = (int(starts[at]) for at in change.new)
        with self.batch_changes():
            self._select(query)
            self.attended = key if key <= query else -1  # no head sees a later key
        self.draw_selection()

    def _query_moved(self, _: Any) -> None:
        """Forget a key that the new query does not see."""
        if self.results and self.attended > self.query:
            self.attended = -1

    def _token_chosen(self, change: Any) -> None:
        self._select(change.new)
        self.draw_selection()

    def _select(self, token: int) -> None:
        """Select a query; the BOS, which attends only to itself, selects the last token."""
        self.position = max(token - int(self.results[0].bos), -1) if token >= 0 else -1

    # the scores of the order ------------------------------------------------------------------------------------------

    def _ask_scores(self) -> None:
        """Compute what the heads are sorted by in the background, unless it is there."""
        if self.sort == "layer":
            return
        models, prediction = self.models, self.prediction()

        def of(model: Model, job: Any, index: int) -> HeadScores | HeadMeasures:
            request = self._score_request(prediction, model)

            def progress(done: int, total: int) -> None:
                job.progress(done + index * total, len(models) * total)

            scores: HeadScores | HeadMeasures = self.answers.cached_or_compute(
                request, model, lambda: request.answer(model, progress=progress, check=job.check)
            )
            return scores

        self._scores.ask(self._scores_key, lambda job: tuple(of(model, job, i) for i, model in enumerate(models)))

    def _score_request(self, prediction: Prediction, model: Model) -> Request:
        """A score needs no prompt, so that it is kept when the prompt changes."""
        if self.sort in SCORES:
            return Request.of(head_scores, {"length": longest(model, LENGTH), "sequences": SEQUENCES})
        return Request.of(head_measures, {"measures": (self.sort,)}, prediction.ids, prediction.answer)

    @property
    def _scores_key(self) -> Any:
        return self.results, "score" if self.sort in SCORES else (self.sort, self.target)

    def _scores_there(self) -> None:
        self.redraw()

    def _target_moved(self, _: Any) -> None:
        """The patterns are the same for another target, but not the order by what heads do for it."""
        if self.sort in UNITS and self.results:
            self.redraw()

    def _ordered(self, view: str, count: int) -> tuple[list[int], list[str]]:
        """The heads in order, and a note on each; by layer and no notes where there is no score."""
        scores = None if self.sort == "layer" else self._scores.of(self._scores_key)
        if scores is None:
            return list(range(count)), []
        values = pair_view.of_view(view, [_values(one, self.sort) for one in scores])
        if values is None or values.size != count:
            return list(range(count)), []
        flat = values.ravel()
        order = np.argsort(-(np.abs(flat) if view == "difference" else flat), kind="stable").tolist()
        unit, control = f" {UNITS[self.sort]}" if self.sort in UNITS else "", [""] * count
        if self.sort in SCORES:
            controls: Any = pair_view.of_view(view, [one.control(self.sort) for one in scores])
            control = [f", control {decimals(float(number))}" for number in np.ravel(controls)]
        return order, [f"{MEASURES[self.sort]} {decimals(float(flat[i]))}{unit}{control[i]}" for i in order]

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        options = [f"{name}=True" for name in ("without_sink", "weighted") if getattr(self, name)]
        shown = ", ".join([str(self.layer), str(self.head), *options])
        return request.code(self.models, f"result.pattern({shown})")

    def table_of(self, result: AttentionPatterns) -> Any:
        """The selected head's pattern: all heads of a long prompt are too much for a table."""
        at = slice(self.layer, self.layer + 1), slice(self.head, self.head + 1)
        norm = None if result.value_norm is None else result.value_norm[at]
        layers, heads = result.layers[at[0]], result.heads[at[1]]
        return replace(result, layers=layers, heads=heads, patterns=result.patterns[at], value_norm=norm).to_frame()

    def scene(self) -> Scene:
        return stack_scenes([self.grids.scene(), self.maps.scene(), self.strips.scene()])
