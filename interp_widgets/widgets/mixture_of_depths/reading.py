"""The base of the panels that run a mixture: a request includes the selected mixture of each model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from interp_widgets.compute.memory import Forecast
from interp_widgets.data.presets import PRESETS
from interp_widgets.models import Model, ModModel
from interp_widgets.models.hub_files import DEMO_NAMES

from ..base.code import call
from ..base.request import Request, model_variables, result_variables
from .mixtures import MixturePanel, Untrained

PROMPT = "Instruction: Please name the capital of the country.\nInput: France\nResponse:"
"""The prompt of the demo models, in the format of their tasks."""
_BUILD_SECONDS_PER_PARAMETER = 1e-8  # loading, hashing and converting the base again


def opening_text(models: Sequence[Any]) -> str:
    """The prompt that panels open on: of models without the demo's format, the start of a sentence."""
    bases = [model.state.base if isinstance(model, ModModel) else model.source for model in models]
    return PROMPT if all(base in DEMO_NAMES for base in bases) else PRESETS[0].prompt


@dataclass(frozen=True)
class MixtureQuestion(Request):
    """A call of an analysis on the selected mixture of each model."""

    mixtures: tuple[Hashable, ...] = ()
    """The key of each model's mixture."""


class MixtureReading(MixturePanel):
    """Base of the panels that run the selected mixtures instead of their models."""

    analysis: ClassVar[Callable[..., Any]]
    named: ClassVar[tuple[str, ...]] = ("Prompt", "View")
    """Labels of the settings that belong to the request; the tuning options do not."""

    def arguments(self) -> dict[str, Any]:
        names = inspect.signature(self.analysis).parameters  # the tuning options are part of the mixture's key
        return {name: value for name, value in super().arguments().items() if name in names}

    def request(self) -> MixtureQuestion:
        request = super().request()
        keys = tuple(self.key(slot) for slot in range(len(self.models)))
        return MixtureQuestion(request.analysis, request.arguments, mixtures=keys)

    def compute(self, request: MixtureQuestion, model: Model, **reports: Any) -> Any:
        slot = self.slot_of(model)
        return super().compute(request, self.model_of(slot, request.mixtures[slot]), **reports)

    def prepare(self, request: MixtureQuestion) -> None:
        for slot, (model, key) in enumerate(zip(self.models, request.mixtures, strict=True)):
            if isinstance(key, Untrained) or not self.answers.expected(request, model):
                self.model_of(slot, key)

    def request_for(self, request: MixtureQuestion, model: Model) -> MixtureQuestion:
        return replace(request, mixtures=(request.mixtures[self.slot_of(model)],))

    def depends_on(self, request: MixtureQuestion, model: Model) -> tuple[Any, ...]:
        slot = self.slot_of(model)
        mixture = self.by_key(slot, request.mixtures[slot])
        return () if mixture is None else (mixture,)

    def forecast_on(self, request: MixtureQuestion, model: Model) -> Forecast:
        slot = self.slot_of(model)
        forecast = super().forecast_on(request, model)
        key = request.mixtures[slot]
        if (self.named_by(slot, key) or self.mixtures[slot][0]).has_made(key):
            return forecast
        parameters = int(getattr(model, "parameter_count", 0))
        return forecast + Forecast(_BUILD_SECONDS_PER_PARAMETER * parameters, 4 * parameters)

    def slot_of(self, model: Model) -> int:
        """The index of a model: 0 or 1."""
        return next(slot for slot, other in enumerate(self.models) if other is model)

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        self.mixture_names = [self.chosen_mixture(slot).name for slot in range(len(self.models))]
        """The names of the mixtures on the screen."""
        super().draw(results, request)

    def question(self) -> dict[str, str]:
        settings, letters = super().question(), [""] if len(self.models) == 1 else [" A", " B"]
        mixtures = zip((f"Mixture{letter}" for letter in letters), self.mixture_names, strict=True)
        return {label: settings[label] for label in self.named if label in settings} | dict(mixtures)

    # copied code ------------------------------------------------------------------------------------------------------

    def reading_cell(self, request: MixtureQuestion, analysis: str, **options: Any) -> str:
        """A cell that makes the selected mixtures and calls an analysis on each with the prompt."""
        lines = [line for slot in range(len(self.models)) for line in self._lines_of(slot)]
        lines.append(f"prompt = {dict(request.arguments)['prompt']!r}")
        for name, result in zip(model_variables(self.models), result_variables(self.models), strict=True):
            lines.append(f"{result} = {call(analysis, f'{name}_mixture', 'prompt', **options)}")
        return self.cell([*lines, f"{result}.to_frame()"])

    def _lines_of(self, slot: int) -> list[str]:
        mixture, name = self.chosen_mixture(slot), self.variable(slot)
        if mixture.learned is None:
            options = {"top_k": self.top_k, "seed": self.seed}
            used = {key: value for key, value in options.items() if value}
            return [f"{name}_mixture = {call('untrained_mod', name, repr(self.k), **used)}"]
        if mixture.folder:
            return [f"{name}_mixture = load_model({mixture.folder!r})"]
        if mixture is self.mixtures[slot][0]:
            return [f"{name}_mixture = {name}"]
        return self.tuning_lines(slot, mixture)
