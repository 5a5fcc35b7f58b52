"""The token decomposition explorer: each token's contribution to a prediction, by layer, for one model or two."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.token_decomposition import decompose_logit, decompose_tokens, decomposition_cost
from interp_widgets.data.presets import Preset
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import shown_if
from ..base.description import Description, plain
from ..base.fields import hint_at
from ..base.prediction import check_foil, checked, position_in
from ..base.request import FromResult, Request, Steps
from ..views import TokenStrip
from .decomposition_panel import DecompositionPanel
from .position import PositionControl
from .rows import Decomposed, Rows, decomposed
from .source_details import SourceDetails
from .source_map import SourceMap

DRAWS = 199
"""Random other tokens that shares are compared with on demand."""


class TokenDecompositionExplorer(DecompositionPanel):
    """The residual stream of one position as a sum of parts, one per token of the context.

    With attention patterns, norm scales and activation slopes fixed, every layer is linear, so that the parts (and the
    biases') add up to the model's own residual stream. The map shows for every source token and layer what its part
    alone would predict; bars and shading show how much of the target's logit each token contributed, and on demand
    only that of tokens that contribute more to it than to random other tokens.

    ``TokenDecompositionExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt and selection with other
    widgets, ``(workbench)``. Every trait is a keyword too. `run()` computes and returns the :class:`Decomposed`
    (a pair for two models), which `result` keeps.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Eqs 4.1 to 4.3, Fig. 4.4, and appendix B.2, Figs B.3 and B.4.

    Example:
        >>> panel = TokenDecompositionExplorer(model, prompt="The Eiffel Tower is in the city of")
        >>> panel.run().tokens.parts.shape
        (7, 8, 192)
        >>> panel.close()
    """

    title: ClassVar[str] = "Token decomposition"

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self._sources: tuple[int, ...] | None = None
        super().__init__(model, tuned, **options)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def describe_selection(self) -> Description | None:
        if not self.rows:
            return None
        found = self.about.describe_selection()
        return replace(found, sentences=(*found.sentences, *map(plain, self.map.compared_lines())))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {
            "prompt_token": (self.texts.n_prompt_tokens, "the tokens of this prompt"),
            "source": (len(self._sources or ()) + 1, "the tokens of the context and the biases, which come last"),
            "column": (max(model.n_layers for model in self.models) + 1, "the layers and the final norm"),
        }

    @classmethod
    def preset_values(cls, chosen: Preset) -> dict[str, Any]:
        return {"foil": ""}  # an example's foil does not apply here

    def build(self) -> None:
        self.position_control = PositionControl(self)
        self.inputs.children = [
            *self.text_inputs(),
            *self.controls.rows(before={"color": self.position_control.parts}),
        ]
        self.map = SourceMap(self)
        self.about = SourceDetails(self)
        self.chance_button = self.on_click(
            W.Button(
                description="Compare shares with chance",
                tooltip=f"Compare every token's share with its shares of the logits of {DRAWS} random other tokens",
                layout=W.Layout(align_self="flex-start"),
            ),
            self._compare_with_chance,
        )
        self.picture_buttons = (self.chance_button,)
        shown_if(self.chance_button, False)
        beside = [self.about.sources, self.map.sums, self.chance_button]
        self.arrange(self.map.parts, self.about.parts, beside=beside, width=540)
        self.watch(self, ["prompt", "response", "response_token"], self._forget_position)

    def _compare_with_chance(self) -> None:
        self.share_draws = DRAWS
        self.go()

    def request(self) -> Steps:
        prediction = self.prediction()
        position = position_in(checked(prediction, self.models[0]), self.position)
        if self.foil:
            with hint_at("foil"):
                check_foil(prediction, self.models[0], self.foil)
        of_logit = {"position": position, "foil": self.foil or None}
        of_logit |= {"draws": self.share_draws} if self.share_draws else {}
        target = FromResult("shares", "{}.target", lambda shares: shares.target)
        of_parts = {"target": target, "position": position, "biases": self.biases, "lens": self.lens}
        calls = {
            "shares": Request.of(decompose_logit, of_logit, prediction.ids, prediction.answer_at(position)),
            "parts": Request.of(decompose_tokens, of_parts, prediction.ids),
        }
        return Steps.of(decomposed, calls)

    def cost(self, request: Steps, model: Model) -> Cost:
        parts: Request = dict(request.arguments)["parts"]
        read = read_prompt(model, parts.inputs[0].read_by(model))
        return decomposition_cost(model, read.offset + read.position(dict(parts.arguments)["position"]) + 1)

    def draw(self, results: tuple[Decomposed, ...], request: Steps) -> None:
        previous = {id(rows.result): rows for rows in self.rows}
        self.rows = tuple(previous.get(id(result)) or Rows(result) for result in results)
        self.widen_map(self.rows[0].n_layers + 1)
        self.map.paint()
        shown_if(self.chance_button, not self.share_draws)
        self._carry_selection(results[0])

    def draw_selection(self) -> None:
        if self.rows:
            self.map.paint_selection()
            self.about.paint()

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Steps) -> str:
        return request.code(self.models, "parts.to_frame()")

    def frame(self) -> Any:
        return pair_view.joined({letter: rows.frame() for letter, rows in pair_view.by_letter(self.rows).items()})

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"tokens": result.tokens, "logit": result.logit}

    def scene(self) -> Scene:
        return stack_scenes([self.map.strips.scene(), self.map.maps.scene()])

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        return bool(self.rows) and self.map.shade_texts(prompt, response)

    # selection --------------------------------------------------------------------------------------------------------

    def _carry_selection(self, result: Decomposed) -> None:
        """Keep the selected row if it is still the same token."""
        before, ids = self._sources, tuple(result.tokens.ids[: result.sources])
        self._sources = ids
        source = self.source
        if before is None:
            self.source = source if source <= len(ids) else -1
        elif source == len(before):
            self.source = len(ids)
        elif ids[: source + 1] != before[: source + 1]:
            self.source = -1

    # position ---------------------------------------------------------------------------------------------------------

    def _forget_position(self, _: Any) -> None:
        """Return to the last position when the texts or the predicted token change."""
        self.position = -1

    def texts_read(self) -> None:
        self.position_control.fit()
