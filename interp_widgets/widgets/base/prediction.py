"""The base of the panels that look into one next-token prediction: prompt, response, target, examples and linking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import ipywidgets as W

from interp_widgets.data.presets import PRESETS, Preset, preset
from interp_widgets.models import Model

from ..views import TokenStrip
from .controls import shown_if
from .fields import Bounds, Text, field
from .panel import Panel
from .workbench import in_model

OWN = "own text"
MAX_NEW_TOKENS = 20
"""Tokens that *Write* adds at most."""


@dataclass(frozen=True)
class Prediction:
    """One prediction: what the model has read, and the token whose probability is looked at."""

    prompt: str
    response: str = ""
    at: int = 0
    """Which token of the response is predicted; 0, the first, also where there is no response."""
    target: str = ""
    """Text of one token; empty: the response's own token, or without a response what the model finds likeliest."""

    def whole(self, model: Model) -> tuple[list[int], list[int]]:
        """Ids of the prompt (with the BOS where the model has one) and of the response."""
        prompt, response = model.split(self.prompt, self.response)
        return list(prompt), list(response)

    def read(self, model: Model) -> tuple[list[int], str | int | None]:
        """Ids that the model has read when it makes the prediction, and the target: text, id, or None for the top."""
        prompt, response = self.whole(model)
        if self.response and self.at >= len(response):
            raise ValueError(f"response_token must be in 0..{len(response) - 1} for this response, got {self.at}")
        own = response[self.at] if response else None
        return [*prompt, *response[: self.at]], self.target or own

    def code(self, name: str) -> tuple[list[str], str, str]:
        """Lines of a cell that prepare the sequence for the model called ``name``, and the words for ids and target."""
        if not self.response:
            return [f"prompt = {self.prompt!r}"], "prompt", repr(self.target) if self.target else "None"
        lines = [
            f"prompt, response = {self.prompt!r}, {self.response!r}",
            f"prompt_ids, response_ids = {name}.split(prompt, response)",
            f"ids = [*prompt_ids, *response_ids[:{self.at}]]" if self.at else "ids = prompt_ids",
        ]
        return lines, "ids", repr(self.target) if self.target else f"response_ids[{self.at}]"


class PredictionPanel(Panel):
    """Base of the panels on one prediction.

    It holds the prompt, a response of which one token is chosen, and the target. On a workbench these are shared: a
    response token chosen in another panel moves this one to the position that predicts it. Subclasses put
    `text_inputs()` into `self.inputs` and call `prediction()`.
    """

    prompt = field(
        Annotated[str, Text(3)], label="Prompt", help="What the model reads", group="prediction", width="grow",
        required="the prompt is empty: type what the model should continue",
    )  # fmt: skip
    response = field(
        Annotated[str, Text(3)], label="Response", group="prediction", width="grow",
        placeholder="Optional: one of its tokens can be looked at instead of the next token",
        help="What it answered, if a token of the answer is to be looked at; may be empty",
    )  # fmt: skip
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, chooses=True, argument=None)
    """The selected prompt token, -1 for none."""
    response_token = field(Annotated[int, Bounds(low=-1)], -1)
    """The response token whose prediction is looked at; -1 for the first."""
    layer = in_model()
    """The selected layer."""
    target = field(
        str, label="Target", group="prediction", new_row=True, placeholder="empty: the likeliest token",
        help="The token that is looked at; empty: the response's own, or the model's likeliest",
    )  # fmt: skip

    def defaults(self, given: set[str]) -> dict[str, Any]:
        if "prompt" in given:
            return {}
        found = {"prompt": PRESETS[0].prompt, "target": PRESETS[0].target, **self.preset_values(PRESETS[0])}
        return {name: value for name, value in found.items() if name not in given}

    def preset_values(self, chosen: Preset) -> dict[str, Any]:
        """Values of the panel's own traits that go with an example, such as a foil."""
        return {}

    def prediction(self) -> Prediction:
        """The prediction that the inputs name; ValueError if they name none."""
        self.require("prompt")
        return Prediction(self.prompt, self.response, max(self.response_token, 0) if self.response else 0, self.target)

    # the inputs -------------------------------------------------------------------------------------------------------

    def text_inputs(self) -> list[Any]:
        """Rows of inputs: prompt, response, example, target, and what a subclass puts into the group ``prediction``."""
        names = [OWN, *(one.name for one in PRESETS)]
        self._example = W.Dropdown(description="Example", options=names, value=self._example_name())
        self.watch(self._example, "value", self._example_chosen)
        write = self.on_click(
            W.Button(description="Write", tooltip="Let the model write a response to this prompt"), self.write
        )
        self.answer_strip = TokenStrip(label="Response: click the token whose prediction to look at", max_lines=3)
        self.bind(self.answer_strip, "response_token", key="selected")
        self._answer = W.VBox([self.answer_strip])
        shown_if(self._answer, False)
        self.watch(self, ["prompt", "target"], lambda _: self._name_example())
        self.watch(self, ["prompt", "response"], self._texts_changed)
        self.watch(self, "response_token", self._token_chosen)
        chosen = self.response_token
        self._fill_answer()
        if self.response_token != chosen:
            raise ValueError(self._no_token(chosen))
        beside = {"before": {"target": [self._example]}, "after": {"target": [write]}}
        return [*self.controls.rows("prediction", **beside), self._answer]

    def write(self) -> None:
        """Let the model (of two, the second) write a response, greedily."""
        self.require("prompt")
        prompt, model = self.prompt, self.models[-1]

        def work(job: Any) -> str:
            room = model.n_ctx - len(model.tokens(prompt))
            text: str = model.generate(prompt, max_new_tokens=max(1, min(MAX_NEW_TOKENS, room)), check=job.check)
            return text

        def done(text: str) -> None:
            if not text:
                raise ValueError("the model ended its response at once: type a response, or change the prompt")
            if self.prompt == prompt:
                with self.hold():
                    self.response, self.response_token, self.target = text, 0, ""

        self.start(work, done, title="Writing", channel="write")

    def _example_name(self) -> str:
        return next((one.name for one in PRESETS if one.prompt == self.prompt and one.target == self.target), OWN)

    def _name_example(self) -> None:
        name = self._example_name()
        if self._example.value != name:
            self._example.value = name

    def _example_chosen(self, change: Any) -> None:
        if change.new == OWN or change.new == self._example_name():
            return
        chosen = preset(change.new)
        values = {"target": chosen.target, **self.preset_values(chosen)}
        with self.hold():
            self.workbench.select(prompt=chosen.prompt, response="", response_token=-1, prompt_token=-1)
            for name, value in values.items():
                setattr(self, name, value)

    def _texts_changed(self, change: Any) -> None:
        """Another text has other tokens: a selection in the old one means nothing, nor does an example's answer."""
        if change.name == "prompt":
            self.prompt_token = -1
            if any(one.prompt == change.old and one.target == self.target for one in PRESETS):
                self.target = ""
        self.response_token = -1
        self._fill_answer()

    def _token_chosen(self, change: Any) -> None:
        """A chosen token of the response is the one to look at, whatever was typed before."""
        if change.new >= 0:
            self.target = ""

    def _no_token(self, chosen: int) -> str:
        count = len(self.answer_strip.tokens)
        if not count:
            return f"response_token {chosen} needs a response, and there is none: give one, or leave response_token out"
        return f"response_token must be in 0..{count - 1} for this response, got {chosen}"

    def _fill_answer(self) -> None:
        tokens: Sequence[str] = ()
        if self.response:
            model = self.models[0]
            tokens = model.token_strings(model.split(self.prompt, self.response)[1])
        selected = self.response_token
        self.answer_strip.set_tokens(list(tokens))
        if 0 <= selected < len(tokens):
            self.response_token = self.answer_strip.selected = selected
        shown_if(self._answer, bool(tokens))
