"""The saliency explorer: prompt → response attribution, live, of one model or two."""

from __future__ import annotations

from typing import Any, ClassVar

import ipywidgets as W

from interp_widgets.renamed import renamed

from ..base.chat_box import ChatPrompt
from ..base.opening import opening_of
from ..base.stack import Stack
from .attribution import OPENING
from .check import SaliencyCheck
from .dataset import DatasetSaliency
from .saliency_map import SaliencyMap


@renamed(write="generate_response")
class SaliencyExplorer(Stack):
    """Which prompt tokens each response token depends on: map, token strips, density, checks and data sets.

    *Map*: prompt × response, with token strips that shade each other. *Check*: whether the scores of each method can be
    trusted. *Data set*: instruction scores of many cases, compared; a click on one opens it in the map.

    ``SaliencyExplorer(model)``, ``SaliencyExplorer(base, tuned)``, ``SaliencyExplorer(pair)`` or, to share prompt and
    selection with other widgets, ``SaliencyExplorer(workbench)``. Every trait of its panels is a keyword too. `run()`
    computes the active tab and returns, for the map, the :class:`SaliencyResult` (a pair for two
    models), which `result` keeps.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4, Fig. 1.

    Example:
        >>> panel = SaliencyExplorer(model, prompt="The Eiffel Tower is in the city of", response=" Paris")
        >>> panel.run().importance.shape
        (8, 1)
        >>> panel.close()
    """

    title = "Saliency"
    panels: ClassVar = {"map": SaliencyMap, "check": SaliencyCheck, "data_set": DatasetSaliency}

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        usual: dict[str, Any] = {} if len(self.models) == 1 else {"view": "B"}  # the model that writes the response
        if "prompt" not in keywords:
            start = opening_of(self.models)
            usual["prompt"] = start.prompt
            if "marks" not in keywords:
                usual["instruction"] = start.instruction
        usual |= {} if "target" in keywords else OPENING
        return {name: value for name, value in usual.items() if name not in keywords}

    def build(self) -> None:
        foil = () if self.screen is not None else ("foil",)  # there is room for two options there
        method = self.controls.row("method", "target", *foil, "steps")
        texts, folded = [], [self.controls.row("baseline", "draws", "random_seed", *(() if foil else ("foil",)))]
        if self.screen is None:  # else the texts are written above all panels
            button = W.Button(description="Generate", tooltip="Let the model write the response to this prompt")
            self.chat = ChatPrompt(self, self.controls["prompt"])
            texts = self.controls.rows("texts", after={"prompt": [self.chat.messages.box]})
            method.children = (self.on_click(button, self.generate_response), self.chat.button, *method.children)
            folded.append(self.controls.row("generated_by", "regenerate", "max_new_tokens", "temperature", "seed"))
        fold = self.controls.fold(method, folded)
        self.inputs.children = [*texts, method, fold]
        self.watch(self, "prompt", self._other_prompt)

    def _other_prompt(self, _: Any) -> None:
        """Clear what belongs to the previous prompt, even before the map has been opened."""
        self.instruction = None
        if self.regenerate:
            self.response = ""
        if "map" not in self._opened:  # else the map clears them once it has the new tokens
            self.prompt_token = self.response_token = -1
            self.set_trait("marks", [])

    def generate_response(self) -> None:
        """Generate a new response to the prompt, and attribute it."""
        self.open_tab("map", response="")
        self.go()
