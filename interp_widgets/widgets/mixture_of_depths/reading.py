"""What the panels that ask a mixture have in common: which mixture of each model a question is about."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from interp_widgets.compute.memory import Forecast
from interp_widgets.models import Model

from ..base.code import call
from ..base.request import Request, model_variables, result_variables
from .mixtures import MixturePanel, Untrained

PROMPT = "Instruction: Please name the capital of the country.\nInput: France\nResponse:"
"""What is read until somebody types something else."""
_BUILD_SECONDS_PER_PARAMETER = 1e-8  # reading, hashing and converting the base once more


@dataclass(frozen=True)
class MixtureQuestion(Request):
    """A call of an analysis on the mixture of each model that is looked at."""

    mixtures: tuple[Hashable, ...] = ()
    """Which mixture of each model."""


class MixtureReading(MixturePanel):
    """Base of the panels that ask the mixtures looked at, each in the place of its model."""

    analysis: ClassVar[Callable[..., Any]]
    named: ClassVar[tuple[str, ...]] = ("Prompt", "View")
    """Labels of the settings that are part of the question; how an untrained mixture would be tuned is not."""

    def arguments(self) -> dict[str, Any]:
        names = inspect.signature(self.analysis).parameters  # how a mixture is tuned is asked by its key
        return {name: value for name, value in super().arguments().items() if name in names}

    def request(self) -> MixtureQuestion:
        asked = super().request()
        keys = tuple(self.key(slot) for slot in range(len(self.models)))
        return MixtureQuestion(asked.analysis, asked.arguments, mixtures=keys)

    def compute(self, request: MixtureQuestion, model: Model, **reports: Any) -> Any:
        slot = self.slot_of(model)
        return super().compute(request, self.model_of(slot, request.mixtures[slot]), **reports)

    def prepare(self, request: MixtureQuestion) -> None:
        for slot, (model, key) in enumerate(zip(self.models, request.mixtures, strict=True)):
            if isinstance(key, Untrained) or not self.answers.expected(request, model):
                self.model_of(slot, key)

    def asked_of(self, request: MixtureQuestion, model: Model) -> MixtureQuestion:
        return replace(request, mixtures=(request.mixtures[self.slot_of(model)],))

    def depends_on(self, request: MixtureQuestion, model: Model) -> tuple[Any, ...]:
        slot = self.slot_of(model)
        held = self.by_key(slot, request.mixtures[slot])
        return () if held is None else (held,)

    def forecast_on(self, request: MixtureQuestion, model: Model) -> Forecast:
        slot = self.slot_of(model)
        forecast = super().forecast_on(request, model)
        key = request.mixtures[slot]
        if (self.named_by(slot, key) or self.mixtures[slot][0]).has_made(key):
            return forecast
        parameters = int(getattr(model, "parameter_count", 0))
        return forecast + Forecast(_BUILD_SECONDS_PER_PARAMETER * parameters, 4 * parameters)

    def slot_of(self, model: Model) -> int:
        """Which of the models this is: 0 or 1."""
        return next(slot for slot, other in enumerate(self.models) if other is model)

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        self.mixture_names = [self.looked_at(slot).name for slot in range(len(self.models))]
        """What the mixtures on the screen are called."""
        super().draw(results, request)

    def question(self) -> dict[str, str]:
        asked, letters = super().question(), [""] if len(self.models) == 1 else [" A", " B"]
        mixtures = zip((f"Mixture{letter}" for letter in letters), self.mixture_names, strict=True)
        return {label: asked[label] for label in self.named if label in asked} | dict(mixtures)

    # copied code ------------------------------------------------------------------------------------------------------

    def reading_cell(self, request: MixtureQuestion, analysis: str, **options: Any) -> str:
        """A cell that makes the mixtures looked at and calls an analysis of each on the prompt."""
        lines = [line for slot in range(len(self.models)) for line in self._lines_of(slot)]
        lines.append(f"prompt = {dict(request.arguments)['prompt']!r}")
        for name, result in zip(model_variables(self.models), result_variables(self.models), strict=True):
            lines.append(f"{result} = {call(analysis, f'{name}_mixture', 'prompt', **options)}")
        return self.cell([*lines, f"{result}.to_frame()"])

    def _lines_of(self, slot: int) -> list[str]:
        mixture, name = self.looked_at(slot), self.variable(slot)
        if mixture.learned is None:
            options = {"top_k": self.top_k, "seed": self.seed}
            used = {key: value for key, value in options.items() if value}
            return [f"{name}_mixture = {call('untrained_mod', name, repr(self.k), **used)}"]
        if mixture.folder:
            return [f"{name}_mixture = load_model({mixture.folder!r})"]
        if mixture is self.mixtures[slot][0]:
            return [f"{name}_mixture = {name}"]
        return self.tuning_lines(slot, mixture)
