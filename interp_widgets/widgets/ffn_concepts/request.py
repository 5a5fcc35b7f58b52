"""What an FFN concept browser asks for: components of all layers, or the neurons of one layer on a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from interp_widgets.analysis._core.cost import Cost, flops_per_token
from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.ffn_concepts import (
    FFNConceptResult,
    NeuronEffectResult,
    NeuronTokenResult,
    ffn_concepts,
    neuron_effects,
    neuron_tokens,
)
from interp_widgets.models import Model

from ..base.code import call
from ..base.prediction import Prediction
from ..base.word_source import WordSource

LISTED = 100
"""Neurons whose promoted tokens are read at once: those of the largest effects."""
PROMOTED = 10
"""Tokens listed of a neuron, on either side."""
DRAWN = 30
"""Neurons in a saved picture."""


@dataclass(frozen=True)
class ConceptsRequest:
    """The components of every layer and their words."""

    method: ClassVar[str] = "concepts"
    source: WordSource
    rank: int = 300
    top: int = 15
    directions: bool = False
    """Whether the result holds the components themselves, which only a comparison needs."""

    def answer(self, model: Model, **reports: Any) -> FFNConceptResult:
        """Run it on one model."""
        words = self.words()
        return ffn_concepts(
            model, words=words, rank=self.rank, top=self.top, keep_directions=self.directions, **reports
        )  # fmt: skip

    def words(self) -> Any:
        """The word list; None for the demo's."""
        return None if self.source.kind == "demo" else self.source.read()[0]

    def cost(self, model: Model) -> Cost:
        """Operations and bytes: covariances, their eigenvectors, and projections of all words."""
        width, rank = model.d_model, min(self.rank, model.d_model)
        layer = 2.0 * model.d_mlp * width**2 + 10.0 * width**3 + 2.0 * rank * width * self.source.count
        held = 8.0 * width**2 * 3 + 8.0 * self.source.count * width + 4.0 * model.n_layers * rank * width
        return Cost(model.n_layers * layer, held)

    def code(self, name: str, suffix: str) -> list[str]:
        """Lines of a cell that repeat it for the model called ``name``."""
        given = self.source.code()[2]
        words = [f"words={given['words']}"] if "words" in given else []
        if self.source.kind == "vectors" and not words:
            words = ["words=vectors"]
        options = {
            key: getattr(self, key) for key, usual in (("rank", 300), ("top", 15)) if getattr(self, key) != usual
        }
        return [f"concepts{suffix} = {call('ffn_concepts', name, *words, **options)}"]


@dataclass(frozen=True)
class NeuronReading:
    """One model's answer: what the neurons of a layer do on a prompt, and the tokens of those that do most."""

    effects: NeuronEffectResult
    tokens: NeuronTokenResult

    partial: ClassVar[bool] = False

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What it takes to repeat it."""
        return self.effects.provenance

    def effect(self, neuron: int) -> float:
        """What a neuron adds to the target's logit."""
        return float(self.effects.effect[neuron])


@dataclass(frozen=True)
class NeuronsRequest:
    """The neurons of one layer on a prompt."""

    method: ClassVar[str] = "neurons"
    prediction: Prediction
    layer: int
    position: int = -1
    """In what the model has read, from 0 without a BOS or from the end."""

    def read(self, model: Model) -> tuple[list[int], str | int | None]:
        """Ids that the model has read, and the target; the response's own token is predicted at their end only."""
        ids, target = self.prediction.read(model)
        given = read_prompt(model, ids)
        at_end = given.position(self.position) == given.n_shown - 1
        return ids, target if at_end else self.prediction.target or None

    def checked(self, model: Model) -> NeuronsRequest:
        """The request itself, if the model can be asked that: a wrong token or place is told before a run."""
        self.read(model)
        if self.prediction.target:
            single_token(model, self.prediction.target)
        return self

    def answer(self, model: Model, *, progress: Any, check: Any, on_partial: Any) -> NeuronReading:
        """Run it on one model."""
        ids, target = self.read(model)
        effects = neuron_effects(model, ids, target, layer=self.layer, position=self.position, check=check)
        order = np.argsort(-np.abs(np.asarray(effects.effect)), kind="stable")[:LISTED]
        tokens = neuron_tokens(
            model, layer=self.layer, neurons=[int(i) for i in order], top=PROMOTED, progress=progress, check=check
        )  # fmt: skip
        return NeuronReading(effects, tokens)

    def cost(self, model: Model) -> Cost:
        """Operations and bytes."""
        tokens = len(self.prediction.read(model)[0])
        reading = 2.0 * min(LISTED, model.d_mlp) * model.d_model * model.d_vocab
        held = 4.0 * (3 * model.d_mlp * model.d_model + tokens * model.d_vocab)
        return Cost(tokens * flops_per_token(model) + reading, held)

    def code(self, name: str, suffix: str) -> list[str]:
        """Lines of a cell that repeat it for the model called ``name``."""
        lines, ids, target = self.prediction.code(name)
        where: dict[str, Any] = {"layer": self.layer}
        if self.position != -1:
            target = repr(self.prediction.target) if self.prediction.target else "None"
            where["position"] = self.position
        strongest = f"[neuron for neuron, _ in effects{suffix}.strongest({LISTED})]"
        return [
            *lines,
            f"effects{suffix} = {call('neuron_effects', name, ids, target, **where)}",
            f"tokens{suffix} = {call('neuron_tokens', name, f'layer={self.layer}', f'neurons={strongest}')}",
        ]
