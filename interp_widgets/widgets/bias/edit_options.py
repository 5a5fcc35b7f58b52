"""What an edit is made with: the options that all panels of edits share, and the calls that make edits of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.bias import (
    ethos_edit,
    inlp_edit,
    leace_edit,
    lope_edit,
    subtraction_edit,
    suppression_edit,
)
from interp_widgets.data.bias import LabelledTexts, labelled_texts
from interp_widgets.models import Model

from ..base.fields import Bounds, Refused, field, variant
from ..base.request import FromResult, PerModel, Request
from .examples import Examples, ProbeOptions
from .neurons import NeuronMap
from .probes import ProbeSweep

METHODS = {
    "lope": "LoPE", "subtraction": "Subtraction", "inlp": "INLP", "suppression": "Bias neuron suppression",
    "ethos": "Ethos", "leace": "LEACE",
}  # fmt: skip
OF_PROBES = ("lope", "subtraction")
OF_STREAMS = ("inlp", "leace")
STREAMS = {"last": "before the final norm", "all": "leaving every block"}
STEPS = 8
"""Passes forward and backward per layer and sentence of the neurons' integrated gradients."""
TUNED = 6400
"""Texts, about, that Ethos tunes on."""


@dataclass(frozen=True)
class Streams(PerModel):
    """The streams of a model that an edit changes."""

    which: str

    def read_by(self, model: Model) -> Any:
        return -1 if self.which == "last" else list(range(1, model.n_layers + 1))

    def code(self, name: str) -> tuple[list[str], str]:
        return [], "-1" if self.which == "last" else f"list(range(1, {name}.n_layers + 1))"


@dataclass(frozen=True)
class Side(PerModel):
    """The biased or the benign ones of texts with labels."""

    texts: Examples
    biased: bool

    def read_by(self, model: Model) -> Any:
        data = self.texts.read()
        labelled = data if isinstance(data, LabelledTexts) else labelled_texts(data)
        return [text for text, own in zip(labelled.texts, labelled.biased, strict=True) if own == self.biased]

    def code(self, name: str) -> tuple[list[str], str]:
        lines, data = self.texts.code(name)
        labelled = data if isinstance(self.texts.own, LabelledTexts) else f"labelled_texts({data})"
        each = "text for text, own in zip(labelled.texts, labelled.biased)"
        return [*lines, f"labelled = {labelled}"], f"[{each} if {'' if self.biased else 'not '}own]"


class EditOptions(ProbeOptions):
    """Base of the panels that make edits."""

    method = field(METHODS, "lope", label="Method", help="How the model is edited")
    k = variant(
        NeuronMap.k, label="Neurons", help="Bias neurons: for each probe, of the last layer, or in all",
        shown_if=lambda panel: panel.method in (*OF_PROBES, "suppression"),
    )  # fmt: skip
    threshold = variant(
        ProbeSweep.threshold, redraws=False, label="Probes from an AUC of",
        shown_if=lambda panel: panel.method == "lope",
    )  # fmt: skip
    strength = field(
        Annotated[float, Bounds(0.0, 100.0, 0.1)], 1.0, label="Strength α", width="short",
        help="Multiplies what is taken off", shown_if=lambda panel: panel.method in (*OF_PROBES, "ethos"),
    )  # fmt: skip
    streams = field(
        STREAMS, "all", label="Stream", help="Where in the residual stream directions are taken out",
        shown_if=lambda panel: panel.method in OF_STREAMS,
    )  # fmt: skip
    rounds = field(
        Annotated[int, Bounds(1, lambda panel: panel.most_rounds)], 10, label="Rounds", width="short",
        help="Probes fitted one after the other",
        shown_if=lambda panel: panel.method == "inlp",
    )  # fmt: skip
    literal = field(
        bool, False, label="Θ as the sum that equation 5.1 prints", more=True,
        shown_if=lambda panel: panel.method == "lope",
    )  # fmt: skip

    @property
    def most(self) -> int:
        """Neurons of the smaller model."""
        return min(model.n_layers * model.d_mlp for model in self.models)

    @property
    def most_rounds(self) -> int:
        """Probes that can be fitted one after the other to the smaller model: fewer than its width."""
        return min(model.d_model for model in self.models) - 1

    def edit_calls(self, methods: Sequence[str]) -> dict[str, Request]:
        """The calls that make edits, by their methods, behind the one that trains their probes."""
        if self.k > self.most:
            raise Refused("k", f"k must be in 1..{self.most} for the neurons of these models, got {self.k}")
        if "inlp" in methods and self.rounds > self.most_rounds:
            most = self.most_rounds
            raise Refused("rounds", f"rounds must be in 1..{most} for the width of these models, got {self.rounds}")
        probes = {"probes": self.probes_request()} if set(OF_PROBES) & set(methods) else {}
        return probes | {method: self._call(method) for method in methods}

    def _call(self, method: str) -> Request:
        """The call that makes one edit."""
        labelled, pool = self.examples("labels"), {"pool": self.pool}
        probes = FromResult("probes", "{}", lambda result: result)
        if method == "lope":
            options = {"k": self.k, "threshold": self.threshold, "alpha": self.strength, "literal": self.literal}
            return Request.of(lope_edit, options, probes)
        if method == "subtraction":
            return Request.of(subtraction_edit, {"k": self.k, "strength": self.strength}, probes)
        if method == "suppression":
            return Request.of(suppression_edit, {"k": self.k}, self.examples("pairs"))
        if method == "ethos":
            texts = labelled if isinstance(self.data, LabelledTexts) else self.examples("pairs")
            sides = Side(texts, True), Side(texts, False)
            return Request.of(ethos_edit, {"strength": self.strength, "seed": self.seed}, *sides)
        options = {"layer": Streams(self.streams), **pool}
        if method == "inlp":
            return Request.of(inlp_edit, {**options, "rounds": self.rounds}, labelled)
        return Request.of(leace_edit, options, labelled)

    def make_edits(self, calls: Iterable[tuple[str, Request]], model: Model, **reports: Any) -> dict[str, Any]:
        """What the calls bring on a model, by their names; the probes from the cache where another tab has asked."""
        results: dict[str, Any] = {}
        for name, step in calls:
            filled = step.filled(
                lambda value: value.read(results[value.step]) if isinstance(value, FromResult) else value
            )
            answer = partial(filled.answer, model, **reports)
            results[name] = self.answers.once(step, model, answer) if name == "probes" else answer()
        return results

    def edit_cost(self, calls: Mapping[str, Request], model: Model) -> Cost:
        """What making the edits takes."""
        asked = calls.get("probes") or self.probes_request()
        reading = self.probes_cost(asked, model)
        texts = len(asked.inputs[0].read().texts)
        pairs = texts if isinstance(self.data, LabelledTexts) else 2 * len(self.examples("pairs").read())
        passes = 0.0 if "probes" not in calls or self.answers.expected(asked, model) else 1.0
        passes += sum(name in ("lope", *OF_STREAMS) for name in calls)
        passes += ("suppression" in calls) * STEPS * 3 * model.n_layers * pairs / texts
        passes += ("ethos" in calls) * TUNED * 3 / texts
        return Cost(reading.flops * passes, reading.bytes)
