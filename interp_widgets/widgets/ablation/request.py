"""What an ablation panel asks for: one frozen object per run, a kind of its own for every tab."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from interp_widgets.analysis.ablation import (
    AblationResult,
    CausalTraceResult,
    HeadAblationResult,
    Kind,
    ablate_heads,
    ablate_modules,
    ablation_cost,
    causal_trace,
    causal_trace_cost,
    default_window,
)
from interp_widgets.analysis.ablation.replacement import same_length
from interp_widgets.models import Model

from ..base.code import call
from ..base.prediction import Prediction

KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class ReplacementValue:
    """What takes the place of what is removed."""

    replacement: str = "zero"
    reference: tuple[str, ...] = ()
    """Texts to take the mean over; only for ``mean``."""
    corrupted: str = ""
    """The prompt that values are taken from; only for ``resample``."""

    def other(self, model: Model, prediction: Prediction) -> list[int]:
        """Ids of the corrupted prompt, going on as the looked-at one does."""
        return replace(prediction, prompt=self.corrupted).read(model)[0]

    def options(self, model: Model, prediction: Prediction) -> dict[str, Any]:
        """Keywords of the ablation functions."""
        if self.replacement == "mean":
            return {"replacement": "mean", "reference": list(self.reference)}
        if self.replacement == "resample":
            return {"replacement": "resample", "corrupted": self.other(model, prediction)}
        return {}

    def code(self, name: str, prediction: Prediction) -> tuple[list[str], list[str]]:
        """Lines that prepare the replacement, and the arguments that hand it on."""
        if self.replacement == "mean":
            return [f"texts = {list(self.reference)!r}"], ["replacement='mean'", "reference=texts"]
        if self.replacement != "resample":
            return [], []
        lines, given = [f"corrupted = {self.corrupted!r}"], "corrupted"
        if prediction.response:
            lines.append(f"other_ids, response_ids = {name}.split(corrupted, response)")
            lines.append(f"other_ids = [*other_ids, *response_ids[:{prediction.at}]]" if prediction.at else "")
            given = "other_ids"
        return [line for line in lines if line], ["replacement='resample'", f"corrupted={given}"]


ZERO = ReplacementValue()


@dataclass(frozen=True)
class Question:
    """What the maps of modules and heads have in common: the prediction, what is read off it, and the replacement."""

    prediction: Prediction
    metric: str = "logit"
    foil: str = ""
    """The token that the target is set against; only for ``logit_difference``."""
    replacement_value: ReplacementValue = ZERO

    def options(self, model: Model) -> dict[str, Any]:
        """Keywords of the ablation functions."""
        found: dict[str, Any] = {"metric": self.metric, **self.replacement_value.options(model, self.prediction)}
        return found | ({"foil": self.foil} if self.metric == "logit_difference" else {})

    def check(self, model: Model) -> Prompt:
        """Refuse at once what the analysis would refuse after a wait; returns the prompt."""
        given = check_target(self.prediction, model)
        if self.foil:
            single_token(model, self.foil, what="foil")
        if self.replacement_value.replacement == "resample":
            other = read_prompt(model, self.replacement_value.other(model, self.prediction), what="corrupted prompt")
            same_length(given, other, "the corrupted prompt")
        for text in self.replacement_value.reference:
            read_prompt(model, text, what="reference text")
        return given

    def length(self, model: Model) -> int:
        """Tokens that the model has read, with the BOS."""
        return len(self.prediction.read(model)[0])

    def lines(self, function: str, name: str, found: str, *more: str) -> list[str]:
        """Lines of a cell that call one of the ablation functions into the variable ``found``."""
        before, ids, target = self.prediction.code(name)
        ahead, filling = self.replacement_value.code(name, self.prediction)
        asked = [f"metric={self.metric!r}"] if self.metric != "logit" else []
        asked += [f"foil={self.foil!r}"] if self.metric == "logit_difference" else []
        return [*before, *ahead, f"{found} = {call(function, name, ids, target, *more, *asked, *filling)}"]


def check_target(prediction: Prediction, model: Model) -> Prompt:
    """The prompt that a prediction reads; ValueError for a target of several tokens or a prompt that does not fit."""
    if prediction.target:
        single_token(model, prediction.target)
    return read_prompt(model, prediction.read(model)[0])


@dataclass(frozen=True)
class ModulesRequest(Question):
    """Maps of attention, MLP, both, and attention as the MLP reads it."""

    method: ClassVar[str] = "modules"

    def answer(self, model: Model, **reports: Any) -> AblationResult:
        """Run it on one model."""
        ids, target = self.prediction.read(model)
        return ablate_modules(model, ids, target, **self.options(model), **reports)

    def cost(self, model: Model) -> Cost:
        """What it takes."""
        return ablation_cost(model, self.length(model))

    def code(self, name: str, suffix: str) -> list[str]:
        """Lines of a cell that repeat it for the model called ``name``."""
        return self.lines("ablate_modules", name, f"effects{suffix}")


@dataclass(frozen=True)
class HeadsRequest(Question):
    """The map of single heads."""

    method: ClassVar[str] = "heads"
    position: int | None = None
    """Where they are removed; None: everywhere."""

    def check(self, model: Model) -> Prompt:
        given = super().check(model)
        if self.position is not None:
            given.position(self.position)
        return given

    def answer(self, model: Model, **reports: Any) -> HeadAblationResult:
        """Run it on one model."""
        ids, target = self.prediction.read(model)
        return ablate_heads(model, ids, target, position=self.position, **self.options(model), **reports)

    def cost(self, model: Model) -> Cost:
        """What it takes."""
        where = None if self.position is None else [self.position]
        return ablation_cost(model, self.length(model), what="heads", positions=where)

    def code(self, name: str, suffix: str) -> list[str]:
        """Lines of a cell that repeat it for the model called ``name``."""
        where = [] if self.position is None else [f"position={self.position}"]
        return self.lines("ablate_heads", name, f"heads{suffix}", *where)


@dataclass(frozen=True)
class TraceRequest:
    """Causal tracing of one subject."""

    method: ClassVar[str] = "tracing"
    prediction: Prediction
    subject: tuple[int, int]
    """First and past-last token."""
    noise: float = 3.0
    samples: int = 10
    seed: int = 0
    window: int = 1
    words: str = field(default="", compare=False)
    """The subject as it was typed; empty where tokens were marked."""

    def check(self, model: Model) -> Prompt:
        """Refuse at once what the analysis would refuse after a wait."""
        return check_target(self.prediction, model)

    def answer(self, model: Model, **reports: Any) -> CausalTraceResult:
        """Run it on one model."""
        ids, target = self.prediction.read(model)
        return causal_trace(
            model, ids, self.subject, target, window=self.window, noise=self.noise, samples=self.samples,
            seed=self.seed, **reports,
        )  # fmt: skip

    def cost(self, model: Model) -> Cost:
        """What it takes."""
        given = read_prompt(model, self.prediction.read(model)[0])
        return causal_trace_cost(
            model, len(given.ids), window=self.window, samples=self.samples, first=given.offset + self.subject[0]
        )

    def code(self, name: str, suffix: str) -> list[str]:
        """Lines of a cell that repeat it for the model called ``name``."""
        lines, ids, target = self.prediction.code(name)
        by_text = self.words and not self.prediction.response
        subject = repr(self.words if by_text else self.subject)
        usual = {"noise": 3.0, "samples": 10, "seed": 0, "window": None}
        given = {key: getattr(self, key) for key in usual if getattr(self, key) != usual[key]}
        return [*lines, f"trace{suffix} = {call('causal_trace', name, ids, subject, target, **given)}"]


Request = ModulesRequest | HeadsRequest | TraceRequest


def usual_window(models: tuple[Any, ...]) -> int:
    """Layers that tracing puts back together unless told otherwise."""
    return min(default_window(model.n_layers) for model in models)
