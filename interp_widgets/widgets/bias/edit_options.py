"""The options of debiasing edits, and the calls that make the edits."""

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
from interp_widgets.data.bias import LabeledTexts, labeled_texts
from interp_widgets.models import Model

from ..base.fields import Bounds, Incomplete, Refused, field, variant
from ..base.request import FromResult, PerModel, Request
from .examples import Examples, ProbeOptions
from .neurons import NeuronMap
from .probes import ProbeSweep

METHODS = {
    "lope": "LoPE", "subtraction": "Subtraction", "inlp": "INLP", "suppression": "Bias neuron suppression",
    "ethos": "Ethos", "leace": "LEACE",
}  # fmt: skip
PROBE_METHODS = ("lope", "subtraction")
STREAM_METHODS = ("inlp", "leace")
STREAMS = {"last": "before the final norm", "all": "leaving every block"}
STEPS = 8
"""Forward and backward passes per layer and sentence for the neurons' integrated gradients."""
TUNED = 6400
"""Approximate number of texts that Ethos tunes on."""


@dataclass(frozen=True)
class Streams(PerModel):
    """The layers at which an edit changes the residual stream."""

    which: str

    def read_by(self, model: Model) -> Any:
        return -1 if self.which == "last" else list(range(1, model.n_layers + 1))

    def code(self, name: str) -> tuple[list[str], str]:
        return [], "-1" if self.which == "last" else f"list(range(1, {name}.n_layers + 1))"


@dataclass(frozen=True)
class Side(PerModel):
    """The biased or the benign ones among labelled texts."""

    texts: Examples
    biased: bool

    def read_by(self, model: Model) -> Any:
        data = self.texts.read()
        labelled = data if isinstance(data, LabeledTexts) else labeled_texts(data)
        return [text for text, own in zip(labelled.texts, labelled.biased, strict=True) if own == self.biased]

    def code(self, name: str) -> tuple[list[str], str]:
        lines, data = self.texts.code(name)
        labelled = data if isinstance(self.texts.own, LabeledTexts) else f"labeled_texts({data})"
        each = "text for text, own in zip(labelled.texts, labelled.biased)"
        return [*lines, f"labelled = {labelled}"], f"[{each} if {'' if self.biased else 'not '}own]"


class EditOptions(ProbeOptions):
    """Base of the panels that make edits."""

    method = field(METHODS, "lope", label="Method", help="How the model is edited")
    k = variant(
        NeuronMap.k, label="Neurons",
        help="Bias neurons: per probe (LoPE), in the last layer (Subtraction), in all layers (suppression)",
        shown_if=lambda panel: panel.method in (*PROBE_METHODS, "suppression"),
    )  # fmt: skip
    threshold = variant(
        ProbeSweep.threshold, redraws=False, label="Probes with an AUC above",
        shown_if=lambda panel: panel.method == "lope",
    )  # fmt: skip
    strength = field(
        Annotated[float, Bounds(0.0, 100.0, 0.1)], 1.0, label="Strength α", width="short",
        help="Scales what is subtracted", shown_if=lambda panel: panel.method in (*PROBE_METHODS, "ethos"),
    )  # fmt: skip
    streams = field(
        STREAMS, "all", label="Stream", help="Where in the residual stream directions are erased",
        shown_if=lambda panel: panel.method in STREAM_METHODS,
    )  # fmt: skip
    rounds = field(
        Annotated[int, Bounds(1, lambda panel: panel.most_rounds)], 10, label="Rounds", width="short",
        help="Number of probes fitted one after another",
        shown_if=lambda panel: panel.method == "inlp",
    )  # fmt: skip
    literal = field(
        bool, False, label="Θ as the sum in equation 5.1", more=True,
        shown_if=lambda panel: panel.method == "lope",
    )  # fmt: skip

    @property
    def most_rounds(self) -> int:
        """Most probes that can be fitted one after another: one less than the width of the smaller model."""
        return min(model.d_model for model in self.models) - 1

    def check_unedited(self, name: str) -> None:
        """Raise a hint at this field if an edit is applied to the models."""
        if self.workbench.edits:
            edit = self.workbench.edits[0].name
            raise Incomplete(name, f"the edit {edit} is applied to the models: switch it off on the Debias tab")

    def edit_calls(self, methods: Sequence[str]) -> dict[str, Request]:
        """The calls that make the edits, by method, after the one that trains their probes."""
        self.check_neurons(self.k)
        if "inlp" in methods and self.rounds > self.most_rounds:
            most = self.most_rounds
            raise Refused("rounds", f"rounds must be in 1..{most} for the width of these models, got {self.rounds}")
        probes = {"probes": self.probes_request()} if set(PROBE_METHODS) & set(methods) else {}
        return probes | {method: self._call(method) for method in methods}

    def _call(self, method: str) -> Request:
        """The call that makes one method's edit."""
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
            texts = labelled if isinstance(self.data, LabeledTexts) else self.examples("pairs")
            sides = Side(texts, True), Side(texts, False)
            return Request.of(ethos_edit, {"strength": self.strength, "seed": self.seed}, *sides)
        options = {"layer": Streams(self.streams), **pool}
        if method == "inlp":
            return Request.of(inlp_edit, {**options, "rounds": self.rounds}, labelled)
        return Request.of(leace_edit, options, labelled)

    def make_edits(self, calls: Iterable[tuple[str, Request]], model: Model, **reports: Any) -> dict[str, Any]:
        """The results of the calls on a model, by name; probes that another tab has trained come from the cache."""
        results: dict[str, Any] = {}
        for name, step in calls:
            answer = partial(step.with_results(results).answer, model, **reports)
            results[name] = self.answers.cached_or_compute(step, model, answer) if name == "probes" else answer()
        return results

    def edit_cost(self, calls: Mapping[str, Request], model: Model) -> Cost:
        """The cost of making the edits."""
        probes = calls.get("probes") or self.probes_request()
        reading = self.probes_cost(probes, model)
        texts = len(probes.inputs[0].read().texts)
        pairs = texts if isinstance(self.data, LabeledTexts) else 2 * len(self.examples("pairs").read())
        passes = 0.0 if "probes" not in calls or self.answers.expected(probes, model) else 1.0
        passes += sum(name in ("lope", *STREAM_METHODS) for name in calls)
        passes += ("suppression" in calls) * STEPS * 3 * model.n_layers * pairs / texts
        passes += ("ethos" in calls) * TUNED * 3 / texts
        return Cost(reading.flops * passes, reading.bytes)
