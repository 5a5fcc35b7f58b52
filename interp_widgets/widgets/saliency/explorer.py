"""The saliency explorer: prompt → response attribution, live, of one model or two."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.saliency import SaliencyResult
from interp_widgets.analysis.saliency.saliency_result import spans_to_mask
from interp_widgets.data.cases import default_prompt
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base.code import call, cell
from ..base.fields import Bounds, Seed, Text, field
from ..base.panel import Panel
from ..base.saving import as_one
from ..base.workbench import as_models
from .check import CheckTab
from .dataset import DatasetTab
from .labels import METHOD_LABELS, TARGET_LABELS, VALUE_LABELS, WRITER_LABELS
from .map import MapTab
from .request import (
    SaliencyRequest,
    Writing,
    attribute,
    request_cost,
    write_response,
    written_text,
)


class SaliencyExplorer(Panel):
    """Which prompt tokens each response token depends on: map, token strips, density, checks and data sets.

    ``SaliencyExplorer(model)``, ``SaliencyExplorer(base, tuned)``, ``SaliencyExplorer(pair)`` or, to share prompt and
    selection with other widgets, ``SaliencyExplorer(workbench)``. Every trait below is a keyword too. `run()` computes
    and returns the :class:`SaliencyResult` (a pair of them with two models), which `result` keeps.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4, Fig. 1.

    Example:
        >>> panel = SaliencyExplorer(model, prompt="The Eiffel Tower is in the city of", response=" Paris")
        >>> panel.run().importance.shape
        (8, 1)
        >>> panel.close()
    """

    title: ClassVar[str] = "Saliency"
    prompt = field(
        Annotated[str, Text(5)], label="Prompt", help="What the model is asked", width="grow",
        required="the prompt is empty: type what the model should continue",
    )  # fmt: skip
    response = field(
        Annotated[str, Text(5)], label="Response", placeholder="Empty: Generate writes one", width="grow",
        help="What it answered; empty: a model writes it",
    )  # fmt: skip
    writer = field(
        WRITER_LABELS, "B", label="Written by", width="short", argument=None, new_row=True,
        help="Which of two models writes the response", shown_if=lambda panel: len(panel.models) > 1,
    )  # fmt: skip
    write_anew = field(
        bool, True, label="after every change of the prompt", argument=None,
        help="Whether a changed prompt gets a new response",
    )  # fmt: skip
    max_new_tokens = field(
        Annotated[int, Bounds(1, 4096)], 40, label="Most tokens", width="short", argument=None,
        help="Most tokens of a written response; fewer where the model's context has no room for them",
    )  # fmt: skip
    temperature = field(
        Annotated[float, Bounds(0.0, 10.0, 0.1)], 0.0, label="Temperature", width="short", argument=None,
        help="0 writes the likeliest tokens, above 0 samples",
    )  # fmt: skip
    seed = field(
        Seed, label="Seed", width="short", argument=None, help="Seed of the sampling",
        shown_if=lambda panel: panel.temperature > 0,
    )  # fmt: skip
    method = field(METHOD_LABELS, "exact", label="Method", new_row=True, help="How importance is found")
    target = field(TARGET_LABELS, "probability", label="Target", help="Which number of a response token is attributed")
    foil = field(
        str, label="Foil", placeholder="one token", width="short", help="The token set against each response token",
        shown_if=lambda panel: panel.target == "logit_difference",
        required="the target logit_difference needs a foil: type the token to set the response against",
    )  # fmt: skip
    steps = field(
        Annotated[int, Bounds(1, 1024)], 32, label="Steps", width="short", help="Steps of integrated gradients",
        shown_if=lambda panel: panel.method == "integrated_gradients",
    )  # fmt: skip
    random_seed = field(
        Seed, label="Random seed", width="short", argument="seed", help="Seed of the random baseline",
        shown_if=lambda panel: panel.method == "random",
    )  # fmt: skip
    values = field(
        VALUE_LABELS, "score", label="Show", redraws=True, new_row=True,
        help="Scores 0 to L, each column by its own maximum, or the importance itself",
    )  # fmt: skip
    levels = field(
        Annotated[int, Bounds(1, 100)], 10, label="L, levels", width="short", redraws=True,
        help="Number of levels of a score",
    )  # fmt: skip
    threshold = field(
        Annotated[float, Bounds(0.0, lambda panel: panel.levels, 0.5, slider=True, shown_as=".1f")], 0.0,
        label="b, map", redraws=True, help="Scores at or under it count as 0 in the map",
    )  # fmt: skip
    density_threshold = field(
        Annotated[float, Bounds(0.0, lambda panel: panel.levels, 0.5, slider=True, shown_as=".1f")], 7.0,
        label="b, density", redraws=True, help="Scores at or under it count as 0 in the density",
    )  # fmt: skip
    p = field(
        Annotated[float, Bounds(1.01, 64.0, 0.5)], 4.0, label="p, density", width="short", redraws=True,
        help="Order of the norm under the density",
    )  # fmt: skip
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, chooses=True, argument=None)
    """The selected prompt token, -1 for none."""
    response_token = field(Annotated[int, Bounds(low=-1)], -1, chooses=True, argument=None)
    """The selected response token, -1 for none."""
    brush = T.List(T.Int())
    """The brushed prompt tokens [start, end), or empty."""
    marks = T.List(T.List(T.Int()))
    """Spans [start, end) of prompt tokens marked as the instruction."""
    cases = T.List()
    """The :class:`SaliencyCase` list of the data set tab; the demo's own where none is given."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self._spans: list[tuple[int, int]] = []
        if "view" not in options and len(as_models(model, tuned)) > 1:
            options["view"] = "B"  # the model that writes the response
        self._axes: tuple[Any, ...] = ()
        super().__init__(model, tuned, **options)

    def defaults(self, given: set[str]) -> dict[str, Any]:
        if "prompt" in given:
            return {}
        start = default_prompt()
        if start.instruction is not None and "marks" not in given:
            self._spans = [start.instruction]
        return {"prompt": start.prompt}

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        generate = self.on_click(
            W.Button(description="Generate", tooltip="Let the model write the response to this prompt"), self.write
        )
        self.inputs.children = self.controls.rows(before={"writer": [generate]})
        self.map = MapTab(self)
        self.check = CheckTab(self)
        self.data_set = DatasetTab(self)
        self.tabs = W.Tab([self.map.box, self.check.box, self.data_set.box], titles=["Map", "Check", "Data set"])
        self.plot.children = [self.tabs]
        self.watch(self, "prompt", self._clear_response)
        self.watch(self, "levels", self._fit_thresholds)
        self.watch(self, ["prompt_token", "response_token", "brush"], lambda _: self.map.paint_selection())
        self.watch(self, "marks", lambda _: self.map.paint_marks())

    def request(self) -> SaliencyRequest:
        self.require()
        writing = None if self.response else self._writing()
        return SaliencyRequest(
            self.prompt, self.response, self.method, self.target,
            foil=self.foil if self.target == "logit_difference" else "",
            steps=self.steps if self.method == "integrated_gradients" else 32,
            seed=self.random_seed if self.method == "random" else 0,
            writing=writing,
        )  # fmt: skip

    def compute(
        self,
        request: SaliencyRequest,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> SaliencyResult:
        response = write_response(request, self.models, check)
        result = attribute(request, model, response, progress=progress, check=check, on_partial=on_partial)
        if request.writing is not None:
            self.answers.remember(request.answered(response), model, result)
        return result

    def depends_on(self, request: SaliencyRequest, model: Model) -> tuple[Any, ...]:
        return () if request.writing is None else (self.models[request.writing.writer],)

    def cost(self, request: SaliencyRequest, model: Model) -> Any:
        return request_cost(request, model)

    def draw(self, results: tuple[SaliencyResult, ...], request: SaliencyRequest) -> None:
        first = results[0]
        if request.writing is not None and request.prompt == self.prompt and not self.response:
            with self.settled():
                self.response = written_text(self.models[0], first)
        axes = (request.prompt, tuple(first.prompt_ids), tuple(first.response_ids))
        if axes != self._axes:
            self.map.forget()
        # what was selected when the panel opened is of these texts; later, another text has other tokens
        prompt_token, response_token = (-1, -1) if self._axes else (self.prompt_token, self.response_token)
        if axes[:2] != self._axes[:2]:
            self._new_prompt(first)
            self.prompt_token = prompt_token if prompt_token < len(first.prompt_tokens) else -1
        if axes != self._axes:
            self.response_token = -1
            self.map.set_tokens(first)
            self.response_token = response_token if response_token < len(first.response_tokens) else -1
        self._axes = axes
        self.map.paint()
        self.check.forget(results)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        first = self.results[0]
        return {
            "prompt_token": (len(first.prompt_tokens), "the tokens of this prompt"),
            "response_token": (len(first.response_tokens), "the tokens of this response"),
        }

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: SaliencyRequest) -> str:
        names = ["model"] if len(self.models) == 1 else ["base", "tuned"]
        texts = (repr(request.prompt), repr(request.response))
        lines = [f"prompt, response = {texts[0]}, {texts[1]}"]
        if request.writing is not None:
            how = request.writing
            write = call(
                f"{names[how.writer]}.generate", "prompt", max_new_tokens=how.max_new_tokens,
                temperature=how.temperature, seed=how.seed,
            )  # fmt: skip
            lines = [f"prompt = {texts[0]}", f"response = {write}"]
        found = [f"result_{letter}" for letter in "ab"] if len(names) > 1 else ["result"]
        for name, variable in zip(names, found, strict=True):
            lines.append(f"{variable} = {call('prompt_saliency', name, 'prompt', 'response', **request.options())}")
        shape = {"levels": self.levels, "threshold": self.threshold}
        lines.append(call(f"{found[-1]}.normalised", **shape))
        if self.marks:
            inside = " or ".join(f"{start} <= i < {end}" for start, end in self.marks)
            lines.append(f"mask = [{inside} for i in range({len(self.mask())})]")
            shape["threshold"] = self.density_threshold
            lines += [call(f"{variable}.instruction_score", "mask", **shape, p=self.p) for variable in found]
        return cell(["prompt_saliency"], self.models, lines)

    def frame(self) -> Any:
        import pandas as pd

        frames = []
        for letter, result in zip("AB", self.results, strict=False):
            table = result.to_frame()
            table["score"] = result.normalised(levels=self.levels, threshold=self.threshold).ravel()
            density = result.density(levels=self.levels, threshold=self.density_threshold, p=self.p)
            table["density"] = np.repeat(density, result.importance.shape[1])
            table["marked"] = np.repeat(self.mask(), result.importance.shape[1])
            table.insert(0, "model", letter)
            frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def stored(self) -> Result:
        tab = self.tabs.selected_index or 0
        parts = (self.by_letter(), self.check.stored(), {"": self.data_set.result})[tab]
        return as_one(parts, self.tabs.titles[tab])

    def scene(self) -> Scene:
        parts = (self.map.prompt_strip, self.map.response_strip, self.map.heat)
        return stack_scenes([part.scene() for part in parts])

    # the rest ---------------------------------------------------------------------------------------------------------

    def mask(self) -> np.ndarray:
        """(prompt,) which prompt tokens are marked as the instruction."""
        mask = np.zeros(len(self.map.prompt_strip.tokens), dtype=bool)
        for start, end in self.marks:
            mask[start:end] = True
        return mask

    def write(self) -> None:
        """Let a model write a new response to the prompt, and attribute that."""
        if self.response:
            with self.settled():
                self.response = ""
        self.go()

    def open_case(self, prompt: str, response: str | None, instruction: tuple[int, int] | None) -> None:
        """Show another prompt with its response, and mark its instruction."""
        self._spans = [instruction] if instruction is not None else []
        with self.hold():
            self.prompt = prompt
            self.response = response or ""
        self.tabs.selected_index = 0

    def _writing(self) -> Writing:
        index = 0 if len(self.models) == 1 or self.writer == "A" else 1
        room = min(model.n_ctx for model in self.models) - len(self.models[index].tokens(self.prompt))
        # a prompt that leaves no room at all is left to the model, which says so
        most = min(self.max_new_tokens, room) if room > 0 else self.max_new_tokens
        return Writing(index, most, self.temperature, self.seed)

    def _clear_response(self, change: Any) -> None:
        if self.write_anew:
            self.response = ""

    def _fit_thresholds(self, change: Any) -> None:
        with self.hold():
            self.threshold = min(self.threshold, change.new)
            self.density_threshold = min(self.density_threshold, change.new)

    def _new_prompt(self, result: SaliencyResult) -> None:
        """Take the marks that came with a prompt; those of the prompt before mean nothing here."""
        given, self._spans = self._spans, []
        spans: list[list[int]] = []
        if given and result.prompt_spans is not None:
            inside = np.flatnonzero(spans_to_mask(result.prompt_spans, given))
            spans = [[int(inside[0]), int(inside[-1]) + 1]] if inside.size else []
        elif not self._axes and self.marks:
            spans = [span for span in self.marks if span[1] <= len(result.prompt_tokens)]
        self.prompt_token, self.brush = -1, []
        self.map.set_prompt(result)
        self.marks = spans
