"""Prompt and response above all panels of the screen: text boxes, and their tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.response import ResponseProbabilities, response_cost, response_probabilities
from interp_widgets.data.presets import PRESETS
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model
from interp_widgets.models.chat import ChatText

from ..base import pair_view
from ..base.chat_box import ChatPrompt
from ..base.controls import row, shown_if
from ..base.description import Description, decimals
from ..base.fields import Bounds, field, variant
from ..base.opening import Opening, opening_of
from ..base.request import Request
from ..base.response import WrittenResponse, lengths
from ..views import TokenStrip

OWN = "own text"
LINES = 4
"""Lines of a strip before it scrolls."""


class Texts(WrittenResponse):
    """How likely each response token is, for the prompt and response of all panels on the screen."""

    title = "Prompt and response"
    analysis = staticmethod(response_probabilities)
    response = variant(WrittenResponse.response, placeholder="Empty: a model writes one")
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, argument=None)
    """The selected prompt token, -1 for none."""
    response_token = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, argument=None)
    """The selected response token, -1 for none."""
    above = ()
    """Its own controls are the shared ones."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return {} if "prompt" in keywords else {"prompt": self._opening.prompt}

    @cached_property
    def _opening(self) -> Opening:
        return opening_of(self.models)

    def build(self) -> None:
        super().build()
        self._axes: tuple[Any, ...] = ()
        examples = {"opening": self._opening.prompt, **{one.name: one.prompt for one in PRESETS}}
        self.example = W.Dropdown(description="Example", options=[OWN, *examples])
        self.generate_button = W.Button(description="Regenerate", tooltip="Let the model write the response again")
        self.on_click(self.generate_button, self.generate_response)
        written = self.controls.row("generated_by", "regenerate", "max_new_tokens", "temperature", "seed")
        self.text = W.VBox([self.controls.row("prompt")])  # a row by itself is shown whenever its control is
        chat = ChatPrompt(self, self.text)
        self.chat, self.chat_button = chat.messages, chat.button
        beside = row(self.chat_button, self.example, self.generate_button)
        beside.add_class("iw-end")
        self.add_class("iw-texts")
        sides = W.VBox([self.text, self.chat.box]), self.controls.row("response")
        for side in sides:
            side.add_class("iw-grow")
        self.inputs.children = [beside, row(*sides), self.controls.fold(beside, [written])]
        shared: dict[str, Any] = {"breaks": False, "max_lines": LINES, "live_hover": True, "legend": True}
        self.prompt_strip = TokenStrip(label="Prompt", empty="No prompt yet", **shared)
        self.response_strip = TokenStrip(
            label="Response", density_label="probability", empty="No response yet", **shared
        )
        shown_if(self.actions, False)
        self.strips = W.HBox([self.prompt_strip, self.response_strip])
        self.strips.add_class("iw-beside")
        self.plot.children = [self.strips]
        self.bind(self.prompt_strip, "prompt_token", key="selected")
        self.bind(self.response_strip, "response_token", key="selected")
        for strip in (self.prompt_strip, self.response_strip):
            self.watch(strip, "hovered", lambda _: self.screen.shade())
        self.watch(self, "prompt", self._other_prompt)
        self.watch(self.example, "value", lambda change: self._choose(examples.get(change.new, "")))
        self.watch(self, "prompt", lambda _: self._name_example(examples))
        self._name_example(examples)

    # what it asks -----------------------------------------------------------------------------------------------------

    def cost(self, request: Request, model: Model) -> Cost:
        return response_cost(model, *lengths(request, model))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        first = self.results[0]
        return {
            "prompt_token": (len(first.prompt_tokens), "the tokens of this prompt"),
            "response_token": (len(first.response_tokens), "the tokens of this response"),
        }

    def refresh(self, limit: float | None = None) -> None:
        """Start what a first picture may take: these texts have no Run, and every panel is read against them."""
        super().refresh(self.opening_limit if limit is None and self.live_seconds else limit)

    def generate_response(self) -> None:
        """Let the model generate a response that replaces the present one."""
        with self.batch_changes():
            self.response_token, self.response = -1, ""
        self.go()

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ResponseProbabilities, ...], request: Request) -> None:
        first = results[0]
        self.fill_in(first, request)
        axes = (tuple(first.prompt_ids), tuple(first.response_ids))
        if axes != self._axes:
            self._show_tokens(first, axes)
        shown = results[pair_view.models_of(self._one_view)[-1]] if len(results) > 1 else first
        self.response_strip.set_density(shown.probability, maximum=1.0)
        if self.response_token < 0:
            example = self._opening if self.prompt == self._opening.prompt else Opening(self.prompt)
            self.response_token = example.answer_in(
                first.response_tokens
            )  # without an answer, what the prompt leads to

    @property
    def _one_view(self) -> str:
        """The model whose probabilities are drawn: B in a view of both."""
        return self.view if self.view in ("A", "B") else "B"

    def _show_tokens(self, result: ResponseProbabilities, axes: tuple[Any, ...]) -> None:
        before, self._axes = self._axes, axes
        prompt_token, response_token = self.prompt_token, self.response_token
        if axes[:1] != before[:1]:
            captions = self._roles(len(result.prompt_tokens))
            self.prompt_strip.set_tokens(result.prompt_tokens, special=result.prompt_special, captions=captions)
            self.prompt_token = prompt_token if prompt_token < len(result.prompt_tokens) else -1
        self.response_strip.set_tokens(result.response_tokens)
        self.response_token = response_token if response_token < len(result.response_tokens) else -1

    def _roles(self, count: int) -> list[str]:
        """The role's name at each token of a chat where another role begins; empty for a text."""
        if not isinstance(self.prompt, ChatText):
            return []
        roles = read_prompt(self.models[0], self.prompt).roles or ()
        if len(roles) != count:
            return []
        return [role if at == 0 or roles[at - 1] != role else "" for at, role in enumerate(roles)]

    def label_strips(self) -> None:
        """Set the strips' labels while no panel shades them."""
        self.prompt_strip.label, self.prompt_strip.labels = "Prompt", []
        self.prompt_strip.set_values(None)
        self.label_response()

    def label_response(self) -> None:
        """Set the label of the response's strip while no panel shades it."""
        whose = f" under {self._one_view}" if len(self.models) > 1 else ""
        self.response_strip.label = f"Response · bar: probability{whose}"
        self.response_strip.set_values(None)

    def describe_selection(self) -> Description | None:
        if not self.results or not 0 <= self.response_token < len(self.results[0].response_tokens):
            return None
        at, named = self.response_token, list(zip(pair_view.letters(self.results), self.results, strict=True))
        chances = ", ".join(f"{letter}{decimals(result.probability[at])}" for letter, result in named)
        lines = [f"Response token {at}, probability {chances}."]
        for start, result in zip(pair_view.all_starts(self.results), self.results, strict=True):
            if result.rank[at] > 0:
                best, chance = visible(result.top_tokens[at][0]), decimals(result.top_probability[at, 0])
                lines.append(f"{start}“{best}” is likelier ({chance}); this token has rank {result.rank[at]:,}.")
        return Description(visible(self.results[0].response_tokens[at]), sentences=tuple(lines))

    # what a user does -------------------------------------------------------------------------------------------------

    def _other_prompt(self, _: Any) -> None:
        self.prompt_token = self.response_token = -1

    def _choose(self, prompt: str) -> None:
        if prompt and prompt != self.prompt:
            self.workbench.select(prompt=prompt, response="", prompt_token=-1, response_token=-1)

    def _name_example(self, examples: Mapping[str, str]) -> None:
        self.example.value = next((name for name, prompt in examples.items() if prompt == self.prompt), OWN)

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        return stack_scenes([self.prompt_strip.scene(), self.response_strip.scene()])
