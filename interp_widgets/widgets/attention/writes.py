"""What a head writes: the tokens whose logits it raises and lowers most at the selected token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape
from typing import Annotated, Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.attention import HeadWrites, head_writes, head_writes_cost
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.description import Description, Step, decimals
from ..base.fields import Bounds, field, variant
from ..base.prediction import PredictionPanel, checked
from ..base.request import Request
from ..views import Table, TokenStrip
from .patterns import HeadPatterns

DESCRIBED = 3
"""Tokens of each end in the description."""


class HeadWritesWords(PredictionPanel):
    """The direct effect of the selected head on all logits after the selected token: the largest at both ends."""

    title, tab_name = "Words a head writes", "Writes"
    analysis = staticmethod(head_writes)
    pair_views = ("beside",)
    layer = variant(HeadPatterns.layer, selects=False)
    head = variant(HeadPatterns.head, selects=False)
    position = variant(HeadPatterns.position, selects=False)
    ends = field(
        Annotated[int, Bounds(1, 100)], 10, label="Tokens", width="short", argument="top", help="Tokens at each end"
    )

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.strip = TokenStrip(
            label="The prompt", instruction="click a token to see what the head writes there", max_lines=3
        )
        self.about = W.HTML("")
        self.tables = pair_view.SideBySide(self, lambda: Table(empty="Nothing is computed yet.", height=420))
        self.arrange([self.strip, self.about, self.tables.box])
        self.on_user(self.strip, "selected", self._token_chosen)

    def request(self) -> Request:
        prediction = self.prediction()
        read = checked(prediction, self.models[0])
        at = -1 if self.position < 0 else min(self.position + read.offset, len(read.ids) - 1)
        options = {"layer": self.layer, "head": self.head, "position": at, "top": self.ends}
        return Request.of(head_writes, options, prediction.ids)

    def cost(self, request: Request, model: Model) -> Cost:
        return head_writes_cost(model, len(request.inputs[0].read_by(model)))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {
            "position": (len(self.texts.axis), "the tokens that the model has read"),
            "prompt_token": (self.texts.n_prompt_tokens, "the tokens of this prompt"),
        }

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[HeadWrites, ...], request: Request) -> None:
        first = results[0]
        if self.strip.tokens != list(first.tokens):
            self.strip.set_tokens(first.tokens)
        self.strip.selected = first.position
        sides = (("raises", "What the head adds to the logit, above the mean of all tokens"),
                 ("lowers", "What the head adds to the logit, below the mean of all tokens"))  # fmt: skip
        columns = [
            column for label, help in sides
            for column in ({"label": label}, {"label": f"{label} by", "align": "right", "title": help})
        ]  # fmt: skip
        for view, table in self.tables.drawn():
            result = results[view == "B"]
            each = zip(result.raised_tokens, result.raised, result.lowered_tokens, result.lowered, strict=True)
            with table.hold_sync():
                table.selected, table.rows = -1, []
                table.columns = columns
                table.rows = [[visible(up), float(more), visible(down), -float(less)] for up, more, down, less in each]
                table.caption = (
                    f"{pair_view.title_start(self, view)}Logits that head {self.name_of(result)} changes most"
                )
        said = map(self._sentence, pair_view.all_starts(results), results)
        self.about.value = (
            f"{'<br>'.join(said)}<br>Direct effect only: what the head adds to the residual stream, through the final "
            "norm at the scale of the whole stream, above the mean of all tokens. What later layers make of it is not "
            "in here. The test is of sizes alone: it does not see whether the tokens belong together."
        )

    @staticmethod
    def name_of(result: HeadWrites) -> str:
        """A result's head in words."""
        return f"{result.layer}.{result.head}"

    def _sentence(self, start: str, result: HeadWrites) -> str:
        """What the head writes most, as HTML."""
        token = escape(visible(result.tokens[result.position]))
        up, down = (escape(visible(tokens[0])) for tokens in (result.raised_tokens, result.lowered_tokens))
        return (
            f"{start}At “{token}” ({result.position}) head {self.name_of(result)} raises “{up}” most, by "
            f"<b>{decimals(float(result.raised[0]))}</b> logits, and lowers “{down}” most, by "
            f"<b>{decimals(-float(result.lowered[0]))}</b>; over the vocabulary its standard deviation is "
            f"{decimals(result.spread)}. {escape(result.in_words())}."
        )

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        result = self.results[min(pair_view.shown_indices(self)[0], len(self.results) - 1)]
        ends = zip(
            (*result.raised_tokens[:DESCRIBED], *result.lowered_tokens[:DESCRIBED]),
            (*result.raised[:DESCRIBED], *result.lowered[:DESCRIBED]), strict=True,
        )  # fmt: skip
        return Description(
            f"Head {self.name_of(result)} writes",
            (f"At ‘{visible(result.tokens[result.position])}’, as a direct effect on the logits.",),
            ("token", "logits"),
            tuple((visible(token), decimals(float(value))) for token, value in ends),
            (Step("ablation", "Does it need this head?", {"tab": "heads", "kind": "head"}),),
        )

    def _token_chosen(self, change: Any) -> None:
        """Select a token; none, or the BOS, which is not selected alone, is the last one."""
        first = self.results[0]
        self.position = max(change.new - (len(first.tokens) - len(self.texts.axis)), -1) if change.new >= 0 else -1

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        return request.code(self.models, "result.to_frame()")

    def scene(self) -> Scene:
        return stack_scenes([self.strip.scene(), self.tables.scene()])
