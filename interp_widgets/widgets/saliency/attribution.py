"""The options that the panels of the saliency explorer share: method, target, baseline, density."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any

from interp_widgets.analysis._core.prompts import single_token
from interp_widgets.analysis.saliency import FLOOR
from interp_widgets.analysis.saliency.case import RUNNER_UP, runner_ups
from interp_widgets.models import Model

from ..base.fields import Bounds, Seed, field, hint_at
from ..base.panel import Panel
from ..base.request import PerModel, Request, model_variables, result_variables
from ..base.response import WrittenResponse

METHOD_LABELS = {
    "exact": "exact",
    "first_order": "first order",
    "integrated_gradients": "integrated gradients",
    "random": "random",
}
BASELINE_LABELS = {
    "usual": "default",
    "zero": "zero",
    "mean": "mean embedding",
    "resample": "random tokens, averaged",
}
TARGET_LABELS = {
    "probability": "probability",
    "log_prob": "log-probability",
    "logit": "logit",
    "logit_difference": "logit difference",
}

OPENING = {"target": "logit_difference", "baseline": "mean", "values": "importance"}
"""Options of an opening view: what each prompt token adds to the response token's lead over the runner-up.

The probability of a real model's answer falls to nothing without any single token of a short prompt, so that it ranks
none; the logit difference does not. The mean embedding takes one run per token, as zero does, and changes less of the
query at the last one. Importance, unlike scores, has one scale for all columns: what is negligible is pale.
"""


@dataclass(frozen=True)
class RunnersUpOfA(PerModel):
    """The foils of two models: the first one's runner-up in the place of each response token, for both."""

    first: str
    """What the first model is called in copied code."""
    result: str
    """What its result is called there."""

    def code(self, name: str) -> tuple[list[str], str]:
        return [], repr(RUNNER_UP) if name == self.first else f"{self.result}.foil"


def resamples(panel: Any) -> bool:
    """Whether a panel replaces embeddings by those of random tokens."""
    return panel.baseline == "resample" and panel.method in ("exact", "integrated_gradients")


def own_baseline(panel: Any) -> tuple[str, int]:
    """The check's baseline and its number of random tokens: the panel's choice, by default zero."""
    baseline = "zero" if panel.baseline == "usual" else panel.baseline
    return baseline, panel.draws if baseline == "resample" else 1


class Attribution(Panel):
    """Base of the panels that attribute responses to their prompts."""

    method = field(
        METHOD_LABELS, "exact", label="Method", group="attribution",
        help="Exact: each embedding replaced in turn; first order: gradient × embedding; random: what chance would do",
    )  # fmt: skip
    target = field(
        TARGET_LABELS, "probability", label="Target", group="attribution",
        help="The quantity of each response token that is attributed to the prompt",
    )  # fmt: skip
    foil = field(
        str, label="Foil", placeholder="runner-up", width="short", group="attribution",
        help="The token to compare each response token with; empty: the likeliest other token in its place",
        shown_if=lambda panel: panel.target == "logit_difference",
    )  # fmt: skip
    steps = field(
        Annotated[int, Bounds(1, 1024)], 32, label="Steps", width="short", group="attribution",
        help="Steps of integrated gradients", shown_if=lambda panel: panel.method == "integrated_gradients",
    )  # fmt: skip
    baseline = field(
        BASELINE_LABELS, "usual", label="Replaced by", group="attribution",
        help="What a token's embedding is replaced by. The default is zero, as in the paper, but the mean for "
        "integrated gradients of models with RMSNorm",
        shown_if=lambda panel: panel.method in ("exact", "integrated_gradients"),
    )  # fmt: skip
    draws = field(
        Annotated[int, Bounds(1, 256)], 8, label="Drawn", width="short", group="attribution",
        help="Random tokens per position; the number of runs grows with it",
        shown_if=resamples,
    )  # fmt: skip
    random_seed = field(
        Seed, label="Random seed", width="short", group="attribution", argument="seed",
        help="Seed of the random importance, or of the random tokens",
        shown_if=lambda panel: panel.method == "random" or resamples(panel),
    )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if arguments.get("baseline") == "usual":
            del arguments["baseline"]  # each method has its own default
        if self.target == "logit_difference":
            arguments["foil"] = self.foil or RUNNER_UP
        return arguments


class ResponsePanel(WrittenResponse, Attribution):
    """Base of the panels that attribute one response."""

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if arguments.get("foil") == RUNNER_UP and len(self.models) > 1:
            arguments["foil"] = RunnersUpOfA(model_variables(self.models)[0], result_variables(self.models)[0])
        return arguments

    def answer(self, request: Request, model: Model, **reports: Any) -> Any:
        return super().answer(self._on(request, model), model, **reports)

    def request_for(self, request: Request, model: Model) -> Hashable:
        return self._on(request, model) if model is self.models[0] else request

    def depends_on(self, request: Request, model: Model) -> tuple[Any, ...]:
        others, first = super().depends_on(request, model), self.models[0]
        shared = any(isinstance(value, RunnersUpOfA) for value in request.values)
        return (*others, first) if shared and all(each is not first for each in (model, *others)) else others

    def _on(self, request: Request, model: Model) -> Request:
        """The request with the foils that the first model gives; it needs the response for another model."""
        first = self.models[0]

        def known(value: Any) -> Any:
            if not isinstance(value, RunnersUpOfA):
                return value
            if model is first:
                return RUNNER_UP
            prompt, response = (text.read_by(first) for text in request.inputs)
            return runner_ups(first, prompt, response)

        return request.filled(known)

    def request(self) -> Request:
        request = super().request()
        if self.target == "logit_difference" and self.foil:
            with hint_at("foil"):
                single_token(self.models[0], self.foil, what="foil")
        return request


class DensityPanel(Attribution):
    """Base of the panels with scores from 0 to L and their density."""

    levels = field(
        Annotated[int, Bounds(1, 100)], 10, label="Levels", width="short", redraws=True,
        help="L: scores are integers from 0 to this",
    )  # fmt: skip
    density_threshold = field(
        Annotated[float, Bounds(0.0, lambda panel: panel.levels, 0.5, slider=True, shown_as=".1f")], 7.0,
        label="Density threshold", redraws=True, argument="threshold",
        help="b: scores at or below it count as 0 in the density",
    )  # fmt: skip
    p = field(
        Annotated[float, Bounds(1.01, 64.0, 0.5)], 4.0, label="Density norm", width="short", redraws=True,
        help="Order p of the norm in the density",
    )  # fmt: skip
    min_importance = field(
        Annotated[float, Bounds(low=0.0)], FLOOR, label="Floor", width="short", redraws=True,
        help="Response tokens whose largest importance is below it, in the target's unit, are left out of the scores "
        "and counted; 0: none, as in the paper",
    )  # fmt: skip

    def build(self) -> None:
        super().build()
        self.watch(self, "levels", lambda _: self.fit_thresholds())

    def fit_thresholds(self) -> None:
        """Keep the thresholds at or below the highest level."""
        self.density_threshold = min(self.density_threshold, self.levels)
