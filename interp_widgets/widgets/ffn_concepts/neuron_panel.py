"""The options of the neurons panel, its request, and the neuron that it shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from interp_widgets.analysis._core.cost import Cost, flops_per_token
from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.ffn_concepts import NeuronEffectResult, NeuronTokenResult, neuron_effects, neuron_tokens
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import Number
from ..base.fields import Refused, field, variant
from ..base.prediction import PredictionPanel, checked, position_in
from ..base.request import FromResult, Request, Steps
from ..base.saved_result import SavedResult
from ..base.workbench import in_model
from .components import ComponentPanel
from .top_texts import TextOptions

LISTED = 100
"""Number of neurons, those with the largest effects, whose promoted tokens are computed with the run."""
PROMOTED = 10
"""Number of tokens listed per neuron and side."""


@dataclass(frozen=True)
class NeuronReading:
    """One model's result: the effects of a layer's neurons on a prompt, and the tokens of the strongest."""

    effects: NeuronEffectResult
    tokens: NeuronTokenResult

    partial: ClassVar[bool] = False

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What is needed to repeat it."""
        return self.effects.provenance

    def active(self, neuron: int) -> float:
        """A neuron's activation at the selected token."""
        return float(self.effects.activation[self.effects.position, neuron])


class NeuronPanel(TextOptions, PredictionPanel):
    """Base of the panel of a layer's neurons: what it asks for, and the neuron that it shows."""

    layer = variant(ComponentPanel.layer, redraws=False)
    position = field(int, -1)
    """Token at which the neurons are read, from 0 without a BOS or from the end."""
    neuron = field(in_model(), selects=True)
    """The picked neuron."""
    coefficient = field(Number(None, allow_none=True), selects=True)
    """The value that the neuron's activation at that token is set to; None to leave it unchanged."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.neuron_chosen = False
        """Whether a neuron has been chosen: until then the one with the largest effect is shown."""
        super().__init__(model, tuned, **options)

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        return "a model: a saved result has no neurons" if isinstance(models[0], SavedResult) else ""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        self.neuron_chosen = "neuron" in keywords
        return super().defaults(keywords)

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> Steps:
        prediction = self.prediction()
        layers = min(model.n_layers for model in self.models)
        if self.layer >= layers:
            raise Refused("layer", f"layer must be in 0..{layers - 1} for these models, got {self.layer}")
        position = position_in(checked(prediction, self.models[0]), self.position)
        place = {"layer": self.layer, "position": position}
        strongest = f"[neuron for neuron, _ in {{}}.strongest({LISTED})]"
        neurons = FromResult("effects", strongest, lambda effects: [neuron for neuron, _ in effects.strongest(LISTED)])
        calls = {
            "effects": Request.of(neuron_effects, place, prediction.ids, prediction.answer_at(position)),
            "tokens": Request.of(neuron_tokens, {"layer": self.layer, "neurons": neurons, "top": PROMOTED}),
        }
        return Steps.of(NeuronReading, calls)

    def cost(self, request: Steps, model: Model) -> Cost:
        tokens = len(dict(request.arguments)["effects"].inputs[0].read_by(model))
        reading = 2.0 * min(LISTED, model.d_mlp) * model.d_model * model.d_vocab
        memory = 4.0 * (3 * model.d_mlp * model.d_model + tokens * model.d_vocab)
        return Cost(tokens * flops_per_token(model) + reading, memory)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {"prompt_token": (self.texts.n_prompt_tokens, "the tokens of this prompt")}

    # the selection ----------------------------------------------------------------------------------------------------

    @property
    def shown_results(self) -> tuple[NeuronReading, ...]:
        """The results in view: one, or both in a difference."""
        return tuple(self.results[index] for index in pair_view.shown_indices(self))

    @property
    def effect(self) -> Any:
        """What each neuron adds to the target's logit; for a difference, how much more in B."""
        effect = pair_view.of_view(self.shown, [np.asarray(reading.effects.effect) for reading in self.results])
        if effect is None:
            raise ValueError("the two models have layers of different widths: choose A or B")
        return effect

    @property
    def chosen(self) -> int:
        """The neuron shown: the picked one, else the one with the largest effect."""
        sizes = np.abs(self.effect)
        return int(self.neuron) if self.neuron_chosen and self.neuron < len(sizes) else int(np.argmax(sizes))
