"""Where in many texts the selected head attends most, and a sample of all strengths."""

from __future__ import annotations

from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.attention import (
    AttendedToken,
    AttentionInTexts,
    attention_in_texts,
    attention_in_texts_cost,
)
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import cell
from ..base.description import Description, decimals
from ..base.fields import Bounds, field, variant
from ..base.panel import Panel
from ..base.request import Request
from ..views import Table
from .known_heads import KnownHeads
from .patterns import HeadPatterns
from .sample_texts import SampleTexts, TextListOptions, excerpt

STRONGEST = 5
"""Texts with the strongest attention in the list."""
DESCRIBED = 3


class HeadInTexts(TextListOptions, Panel):
    """The strongest attention of the selected head over many texts, and some of every tenth, in their texts."""

    title, tab_name = "Attention in texts", "Texts"
    analysis = staticmethod(attention_in_texts)
    pair_views = ("beside",)
    layer = variant(HeadPatterns.layer, selects=False)
    head = HeadPatterns.head
    per_decile = field(
        Annotated[int, Bounds(1, 50)], 2, label="Of each tenth", width="short", redraws=True, argument=None,
        help="Tokens drawn at random from every tenth of all tokens by the strength of their attention",
    )  # fmt: skip
    seed = variant(KnownHeads.seed, redraws=True, argument=None, help="Of the draws")

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return self.usual_count | super().defaults(keywords)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        super().build()
        self.about, self.opened = W.HTML(""), W.HTML("")
        for text in (self.about, self.opened):
            text.add_class("iw-small")
        self.tables = pair_view.SideBySide(
            self, lambda: Table(
                empty="No texts yet", height=560, instruction="a click opens one in the panels on this workbench",
            )
        )  # fmt: skip
        if self.screen is not None:  # where room is short
            for table in self.tables.views:
                table.add_class("iw-tall")
        self.arrange([self.about, self.tables.box, self.opened])
        self._listed: dict[str, list[AttendedToken]] = {}
        for table in self.tables.views:
            self.on_user(table, "selected", self._picked)

    def request(self) -> Request:
        self.require()
        return Request.of(attention_in_texts, {"layer": self.layer}, self.texts_asked_for())

    def cost(self, request: Request, model: Model) -> Cost:
        texts: SampleTexts = request.inputs[0]
        return attention_in_texts_cost(model, texts.lengths, dict(request.arguments)["layer"])

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw_selection(self) -> None:
        """List the events of the selected head."""
        if not self.results:
            return
        for view, table in self.tables.drawn():
            result = self.results[pair_view.LETTERS.index(view)]
            head = min(self.head, len(result.heads) - 1)
            top = result.top(head, STRONGEST)
            listed = [*top, *result.sample(head, self.per_decile, seed=self.seed)]
            self._listed[view] = listed
            with table.hold_sync():
                table.selected, table.rows = -1, []
                table.columns = [
                    {"label": "strength", "title": "Tenth of all tokens by this attention, 10 the strongest"},
                    {"label": "attention", "align": "right"},
                    {"label": "text", "wrap": True, "title": "Around the query, in «», and the key, in ‹›"},
                    {"label": "query", "title": "The token that attends"},
                    {"label": "key", "title": "The token that it attends to most"},
                ]
                table.rows = [self._row(result, event, at < len(top)) for at, event in enumerate(listed)]
                table.caption = (
                    f"{pair_view.title_start(self, view)}Where head {result.layer}.{head} attends most: the strongest "
                    f"of {len(top)} texts, then {self.per_decile} of every tenth"
                )
        said = map(self._sentence, pair_view.all_starts(self.results), self.results)
        self.about.value = (
            f"{'<br>'.join(said)}<br>The first token that the model reads and special tokens do not count."
        )

    def _row(self, result: AttentionInTexts, event: AttendedToken, strongest: bool) -> list[Any]:
        tokens = result.text_tokens(event.text)
        strength = "strongest" if strongest else f"tenth {event.decile}"
        query, key = visible(tokens[event.query]), visible(tokens[event.key])
        return [strength, event.attention, excerpt(tokens, event.query, event.key), query, key]

    def _sentence(self, start: str, result: AttentionInTexts) -> str:
        """How strong the attention is over all tokens, as HTML."""
        values = result.attention[:, min(self.head, len(result.heads) - 1)]
        values = values[np.isfinite(values)]
        if not len(values):
            return f"{start}No token of these texts has one before it to attend to."
        tenth, median = np.quantile(values, [0.9, 0.5])
        return (
            f"{start}Of {len(values):,} tokens in {result.n_texts:,} texts, one in ten pays its key at least "
            f"<b>{tenth:.0%}</b> of its attention, one in two at least {median:.0%}."
        )

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        result = self.results[min(pair_view.shown_indices(self)[0], len(self.results) - 1)]
        head = min(self.head, len(result.heads) - 1)
        rows = []
        for event in result.top(head, DESCRIBED):
            tokens = result.text_tokens(event.text)
            pair = f"{visible(tokens[event.query])} → {visible(tokens[event.key])}"
            rows.append((pair, decimals(event.attention)))
        return Description(
            f"Head {result.layer}.{head} in {result.n_texts:,} texts", ("Its strongest attention.",),
            ("query → key", "attention"), tuple(rows),
        )  # fmt: skip

    # what a user does -------------------------------------------------------------------------------------------------

    def _picked(self, change: Any) -> None:
        """Make the text of a row the prompt of all panels on the workbench, its query the selected token."""
        view = pair_view.views_to_draw(self)[self.tables.views.index(change.owner)]
        if change.new < 0 or view not in self._listed:
            return
        event = self._listed[view][change.new]
        texts: SampleTexts = self.shown_request.inputs[0]
        self.workbench.select(
            prompt=texts.texts[event.text], response="", response_token=-1, prompt_token=event.query
        )  # fmt: skip
        self.opened.value = f"Text {event.text} is now the prompt of all panels on this workbench."

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        texts: SampleTexts = request.inputs[0]
        last = f"result{'_b' if len(self.models) > 1 else ''}.top({self.head})"
        return cell([*request.functions, *texts.functions], self.models, [*request.lines(self.models), last])

    def scene(self) -> Scene:
        return self.tables.scene()
