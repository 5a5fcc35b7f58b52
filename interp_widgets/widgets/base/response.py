"""The base of the panels on one prompt and its response, which a model writes if there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from interp_widgets.models import Model
from interp_widgets.models.chat import ChatText

from .code import call
from .fields import Text, field, variant
from .panel import Panel
from .request import PerModel, Request, model_variables
from .sampling import Sampling

WRITER_LABELS = {"A": "A", "B": "B"}


@dataclass(frozen=True)
class NamedText(PerModel):
    """A text that copied code assigns to a variable."""

    name: str
    text: str

    def read_by(self, model: Model) -> str:
        return self.text

    def code(self, name: str) -> tuple[list[str], str]:
        return [f"{self.name} = {self.text!r}"], self.name


@dataclass(frozen=True)
class Writing(PerModel):
    """A response that a model has yet to write."""

    writer: int
    """Index of the model that writes."""
    variable: str
    """What that model is called in copied code."""
    max_new_tokens: int
    temperature: float
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of `generate`."""
        options = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed}
        return {**options, "keep_end": True}

    def write(self, models: tuple[Any, ...], prompt: str, check: Callable[[], None]) -> str:
        """Let the model write; its end token where it ends at once."""
        text: str = models[self.writer].generate(prompt, **self.options, check=check)
        return text

    def code(self, name: str) -> tuple[list[str], str]:
        return [f"response = {call(f'{self.variable}.generate', 'prompt', **self.options)}"], "response"


class WrittenResponse(Sampling, Panel):
    """Base of the panels about one prompt and its response, which a model writes where there is none."""

    prompt = field(
        Annotated[str, Text(2)], label="Prompt", help="What the model reads", group="texts", width="grow",
        required="the prompt is empty: type what the model should continue",
    )  # fmt: skip
    response = field(
        Annotated[str, Text(2)], label="Response", placeholder="Empty: Generate writes one", group="texts",
        width="grow", help="The model's response; empty: a model writes one",
    )  # fmt: skip
    writer = field(
        WRITER_LABELS, "B", label="Written by", width="short", argument=None,
        help="Which of the two models writes the response", shown_if=lambda panel: len(panel.models) > 1,
    )  # fmt: skip
    write_anew = field(
        bool, True, label="after every change of the prompt", argument=None,
        help="Write a new response whenever the prompt changes",
    )  # fmt: skip
    max_new_tokens = variant(
        Sampling.max_new_tokens, default=40, argument=None,
        help="Maximum length of a written response, in tokens; less if the context window is full",
    )  # fmt: skip
    temperature = variant(Sampling.temperature, argument=None)
    seed = variant(Sampling.seed, argument=None)

    def build(self) -> None:
        self.watch(self, "prompt", self._clear_response)

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if name not in ("prompt", "response")}

    def request(self) -> Request:
        if self.analysis is None:
            raise NotImplementedError(f"{type(self).__name__} does not say what to compute")
        self.require()
        response = NamedText("response", self.response) if self.response else self._writing()
        return Request.of(self.analysis, self.arguments(), NamedText("prompt", self.prompt), response)

    def compute(self, request: Request, model: Model, *, check: Callable[[], None], **reports: Any) -> Any:
        prompt, response = request.inputs
        if not isinstance(response, Writing):
            return self.answer(request, model, check=check, **reports)
        text = response.write(self.models, prompt.text, check)
        answered = replace(request, inputs=(prompt, NamedText("response", text)))
        result = self.answer(answered, model, check=check, **reports)
        self.answers.remember(answered, model, result)
        return result

    def answer(self, request: Request, model: Model, **reports: Any) -> Any:
        """Compute a request whose response is written."""
        return super().compute(request, model, **reports)

    def remarks(self) -> dict[str, str]:
        return end_remark(self)

    def depends_on(self, request: Request, model: Model) -> tuple[Any, ...]:
        response = request.inputs[1]
        return (self.models[response.writer],) if isinstance(response, Writing) else ()

    def fill_in(self, result: Any, request: Request) -> None:
        """Put the response that a run wrote into its box."""
        prompt, response = request.inputs
        if isinstance(response, Writing) and prompt.text == self.prompt and not self.response:
            with self.settled():
                self.response = written_text(self.models[0], result)
            self.show_remarks()

    def _writing(self) -> Writing:
        index = 0 if len(self.models) == 1 or self.writer == "A" else 1
        room = min(model.n_ctx for model in self.models) - len(self.models[index].tokens(self.prompt))
        # a prompt that leaves no room at all makes the model raise a clear error
        most = min(self.max_new_tokens, room) if room > 0 else self.max_new_tokens
        return Writing(index, model_variables(self.models)[index], most, self.temperature, self.seed)

    def _clear_response(self, _: Any) -> None:
        if self.write_anew:
            self.response = ""


def end_remark(owner: Any) -> dict[str, str]:
    """What to say at the response if it is nothing but a model's end token."""
    model = owner.models[-1]
    if not owner.response or not model.is_end(owner.response):
        return {}
    said = f"after this prompt {model.name} ends its text at once"
    if model.chat_template is None or isinstance(owner.prompt, ChatText):
        return {"response": said}
    return {"response": f"{said}: Chat writes the prompt as a message, as this model expects it"}


def lengths(request: Request, model: Model) -> tuple[int, int]:
    """Numbers of prompt and response tokens; for a response not yet written, its maximum."""
    prompt, response = request.inputs
    if isinstance(response, Writing):
        return len(model.tokens(prompt.text)), response.max_new_tokens
    before, after = model.split(prompt.text, response.text)
    return len(before), len(after)


def written_text(model: Model, result: Any) -> str:
    """Text of a result's response, cut from the full decoded text because some tokenizers drop a leading space."""
    before = model.decode(list(result.prompt_ids))
    text = model.decode([*result.prompt_ids, *result.response_ids])
    return str(text[len(before) :] if text.startswith(before) else model.decode(list(result.response_ids)))
