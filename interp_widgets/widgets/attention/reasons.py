"""Why a head attends from one token to another: its attention score as a sum over pairs of source tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.attention import (
    AttentionPatterns,
    AttentionReasons,
    attention_patterns,
    attention_reasons,
    attention_reasons_cost,
)
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.description import Description, decimals
from ..base.fields import Refused, variant
from ..base.prediction import PredictionPanel, checked
from ..base.request import FromResult, Request, Steps
from ..views import Heatmap, TokenStrip
from .patterns import HeadPatterns

LISTED = 3
"""Pairs of sources listed for the selection."""


def reasons_of(patterns: AttentionPatterns, reasons: AttentionReasons) -> AttentionReasons:
    """The reasons; the patterns are there to choose the key."""
    return reasons


class HeadReasons(PredictionPanel):
    """One attention score of the selected head: what each pair of a query's and a key's source adds to it."""

    title, tab_name = "Attention reasons", "Why here?"
    analysis = staticmethod(attention_reasons)
    pair_views = ("difference", "beside")
    layer = variant(HeadPatterns.layer, selects=False)
    head = variant(HeadPatterns.head, selects=False)
    position = variant(HeadPatterns.position, selects=False)
    attended = variant(HeadPatterns.attended, selects=False)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.query_strips, self.key_strips = (
            pair_view.SideBySide(
                self, lambda: TokenStrip(instruction="click a token to select it", max_lines=3)
            )
            for _ in range(2)
        )  # fmt: skip
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="source of the query", column_name="source of the key", y_label="source of the query",
                x_label="source of the key", max_height=400, empty="No reasons yet",
            )
        )  # fmt: skip
        self.about = W.HTML("")
        self.arrange([self.query_strips.box, self.key_strips.box, self.about, self.maps.box])
        for strips, chosen in ((self.query_strips, self._query_chosen), (self.key_strips, self._key_chosen)):
            for strip in strips.views:
                self.on_user(strip, "selected", chosen)
        self.watch(self, "position", self._query_moved)
        for heat in self.maps.views:
            self.on_user(heat, "cross", self.maps.follow)

    def request(self) -> Steps:
        prediction = self.prediction()
        read = checked(prediction, self.models[0])
        query = len(read.ids) - 1 if self.position < 0 else min(self.position + read.offset, len(read.ids) - 1)
        if self.attended > query:
            raise Refused(
                "attended",
                f"attended, the key, must not come after the query, which is at {query}, got {self.attended}",
            )
        key: Any = self.attended
        if self.attended < 0:
            key = FromResult(
                "patterns", f"int({{}}.patterns[0, 0, {query}].argmax())",
                lambda result: int(result.patterns[0, 0, query].argmax()),
            )  # fmt: skip
        at = {"layer": self.layer, "head": self.head, "query": query, "key": key}
        calls = {
            "patterns": Request.of(
                attention_patterns, {"layers": [self.layer], "heads": [self.head]}, prediction.ids
            ),
            "reasons": Request.of(attention_reasons, at, prediction.ids),
        }  # fmt: skip
        return Steps.of(reasons_of, calls)

    def cost(self, request: Steps, model: Model) -> Cost:
        reasons: Request = dict(request.arguments)["reasons"]
        return attention_reasons_cost(model, len(reasons.inputs[0].read_by(model)))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {
            "position": (len(self.texts.axis), "the tokens that the model has read"),
            "prompt_token": (self.texts.n_prompt_tokens, "the tokens of this prompt"),
            "attended": (len(self.results[0].tokens), "the tokens that the model has read with its BOS"),
        }

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[AttentionReasons, ...], request: Steps) -> None:
        arrays = [np.asarray(result.parts, dtype=np.float64) for result in results]
        for view, heat in self.maps.drawn():
            parts = pair_view.of_view(view, arrays)
            if parts is None:
                heat.empty = (
                    "A difference needs the same query and key in both models: click a key, or choose A beside B"
                )
                heat.set_matrix(None)
                continue
            result, largest = results[view == "B"], pair_view.symmetric_limit(view, [arrays])
            with heat.hold_sync():
                heat.title = f"{pair_view.title_start(self, view)}{self._title(result)}"
                heat.value_label = "part of the score" + (", B − A" if view == "difference" else "")
                heat.numbers_from = 0.2 * largest
                heat.set_matrix(
                    parts, rows=result.query_sources, columns=result.key_sources, vmin=-largest, vmax=largest,
                    signed=True,
                )  # fmt: skip
        self._draw_strips(results)
        self.about.value = "<br>".join(map(self._sentence, pair_view.all_starts(results), results))

    def _draw_strips(self, results: tuple[AttentionReasons, ...]) -> None:
        """Show query and key, and what their sources add in all pairs."""
        for strips, name, axis in ((self.query_strips, "Query", 1), (self.key_strips, "Key", 0)):
            sums = []
            for result in results:
                added = result.parts.sum(axis)[:-1]
                sums.append(np.append(added, np.full(len(result.tokens) - len(added), np.nan)))
            largest = pair_view.symmetric_limit(self.shown if self.shown == "difference" else "A", [sums])
            for view, strip in strips.drawn():
                result = results[view == "B"]
                selected = result.query if axis else result.key
                with strip.hold_sync():
                    if strip.tokens != list(result.tokens):
                        strip.set_tokens(result.tokens)
                    start = pair_view.title_start(self, view)
                    token = visible(result.tokens[selected])
                    strip.label = f"{start}{name} ‘{token}’, and what each of its sources adds"
                    strip.value_label, strip.selected = "part of the score", selected
                    strip.set_values(pair_view.of_view(view, sums), vmin=-largest, vmax=largest, signed=True)

    def _title(self, result: AttentionReasons) -> str:
        query, key = (visible(result.tokens[at]) for at in (result.query, result.key))
        return f"Head {result.layer}.{result.head}, from ‘{query}’ to ‘{key}’: parts of the score"

    def _sentence(self, start: str, result: AttentionReasons) -> str:
        """The score, what adds up to it, and the attention beside equal attention."""
        bias = f" and {decimals(result.position_bias, 2)} for the positions" if result.position_bias else ""
        equal = 1 / (result.query + 1)
        return (
            f"{start}The score before the softmax is <b>{decimals(result.score, 2)}</b>, the sum of "
            f"{result.parts.size} parts{bias}; the attention is "
            f"<b>{result.attention:.0%}</b>, where equal attention would be {equal:.0%}."
        )

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        result = self.results[min(pair_view.shown_indices(self)[0], len(self.results) - 1)]
        order = np.argsort(-np.abs(result.parts), axis=None, kind="stable")[:LISTED]
        cells = [np.unravel_index(int(flat), result.parts.shape) for flat in order]
        return Description(
            self._title(result),
            (f"Score {decimals(result.score, 2)}, attention {result.attention:.0%}.",),
            ("sources", "part"),
            tuple(
                (
                    f"{visible(result.query_sources[row])} × {visible(result.key_sources[column])}",
                    decimals(float(result.parts[row, column])),
                )
                for row, column in cells
            ),
        )

    # the selection ----------------------------------------------------------------------------------------------------

    def _query_chosen(self, change: Any) -> None:
        if change.new < 0:
            self.redraw()
            return
        self.position = max(change.new - self._bos, -1)

    @property
    def _bos(self) -> int:
        """How many tokens the model reads before those of the texts: 1 with a BOS."""
        return len(self.results[0].tokens) - len(self.texts.axis)

    def _query_moved(self, _: Any) -> None:
        """Forget a key that the new query does not see."""
        if self.results and 0 <= self.position < self.attended - self._bos:
            self.attended = -1

    def _key_chosen(self, change: Any) -> None:
        result = self.results[0]
        if change.new > result.query:
            self.redraw()
            raise ValueError(
                f"‘{visible(result.tokens[change.new])}’ comes after the query, which does not see it: choose a key "
                "up to the query"
            )
        self.attended = change.new

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Steps) -> str:
        return request.code(self.models, "reasons.to_frame()")

    def scene(self) -> Scene:
        return stack_scenes([self.query_strips.scene(), self.key_strips.scene(), self.maps.scene()])
