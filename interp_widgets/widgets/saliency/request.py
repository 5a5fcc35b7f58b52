"""What a saliency explorer asks for: one frozen object per run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.saliency import SaliencyResult, prompt_saliency
from interp_widgets.analysis.saliency.attribution import saliency_cost
from interp_widgets.models import Model


@dataclass(frozen=True)
class Writing:
    """How a response is written where none is given."""

    writer: int = -1
    """Index of the model that writes."""
    max_new_tokens: int = 40
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class SaliencyRequest:
    """One attribution: the texts, the method and the target."""

    prompt: str
    response: str
    """Empty: a model writes it first."""
    method: str = "exact"
    target: str = "probability"
    foil: str = ""
    """The token the response is set against; only for the target ``logit_difference``."""
    steps: int = 32
    """Steps of integrated gradients; only there."""
    seed: int = 0
    """Seed of the random baseline; only there."""
    writing: Writing | None = None
    """How the response is written; None where it is given."""

    def options(self) -> dict[str, Any]:
        """Keywords for :func:`prompt_saliency`, without those that do not matter to the method and target."""
        found: dict[str, Any] = {"method": self.method, "target": self.target}
        if self.target == "logit_difference":
            found["foil"] = self.foil
        if self.method == "integrated_gradients":
            found["steps"] = self.steps
        if self.method == "random":
            found["seed"] = self.seed
        return found

    def answered(self, response: str) -> SaliencyRequest:
        """The same request with the response given."""
        return replace(self, response=response, writing=None)


def write_response(request: SaliencyRequest, models: tuple[Any, ...], check: Callable[[], None]) -> str:
    """Text of the response: the given one, or what the chosen model writes after the prompt."""
    if request.writing is None:
        return request.response
    how = request.writing
    text: str = models[how.writer].generate(
        request.prompt, max_new_tokens=how.max_new_tokens, temperature=how.temperature, seed=how.seed, check=check
    )
    if not text:
        raise ValueError("the model ended its response at once: type a response, or change the prompt")
    return text


def attribute(request: SaliencyRequest, model: Model, response: str, **reports: Any) -> SaliencyResult:
    """Run the attribution that a request describes."""
    return prompt_saliency(model, request.prompt, response, **request.options(), **reports)


def request_cost(request: SaliencyRequest, model: Model) -> Cost:
    """Operations and bytes of a request, with the writing of the response where there is none yet."""
    n_prompt = len(model.tokens(request.prompt))
    if request.writing is None:
        return saliency_cost(model, n_prompt, len(model.split(request.prompt, request.response)[1]), request.method)
    n_response = request.writing.max_new_tokens
    return saliency_cost(model, n_prompt, n_response, request.method)


def written_text(model: Model, result: SaliencyResult) -> str:
    """Text of a result's response, cut from the decoded whole because some tokenizers drop a leading space."""
    before = model.decode(list(result.prompt_ids))
    whole = model.decode([*result.prompt_ids, *result.response_ids])
    return str(whole[len(before) :] if whole.startswith(before) else model.decode(list(result.response_ids)))
