"""The base of the panels that look into one next-token prediction: prompt, response, target, examples and linking."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import ipywidgets as W

from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from interp_widgets.arguments import message_of
from interp_widgets.data.presets import PRESETS, Preset, preset
from interp_widgets.models import Model
from interp_widgets.models.chat import ChatText
from interp_widgets.models.top_k import likeliest

from ..views import TokenStrip
from .chat_box import ChatPrompt
from .controls import shown_if
from .fields import Bounds, Refused, Text, field, hint_at
from .panel import Panel
from .request import FromModel, PerModel, Request, model_variables
from .response import end_remark
from .workbench import in_model

OWN = "own text"
PREDICTION = ("prompt", "response", "response_token", "target")
"""Options that define the prediction."""
MAX_NEW_TOKENS = 20
"""Most tokens that *Generate* writes."""


@dataclass(frozen=True)
class Prediction:
    """One prediction: the context that the model has read, and the target token."""

    prompt: str
    response: str = ""
    at: int = 0
    """Index of the predicted token in the response; 0 also if there is no response."""
    target: str = ""
    """Text of one token; empty: the response's own token or, without a response, the model's top token."""

    def split(self, model: Model) -> tuple[list[int], list[int]]:
        """Ids of the prompt (with the BOS where the model has one) and of the response."""
        prompt, response = model.split(self.prompt, self.response)
        return list(prompt), list(response)

    def read(self, model: Model) -> tuple[list[int], str | int | None]:
        """Ids of the context, and the target: text, id, or None for the model's top token."""
        prompt, response = self.split(model)
        if self.response and self.at >= len(response):
            last = len(response) - 1
            raise Refused("response_token", f"response_token must be in 0..{last} for this response, got {self.at}")
        actual = response[self.at] if response else None
        return [*prompt, *response[: self.at]], self.target or actual

    def code(self, name: str) -> tuple[list[str], str, str]:
        """Lines of a cell that prepare the context for the model ``name``, and expressions for ids and target."""
        if not self.response:
            return [f"prompt = {self.prompt!r}"], "prompt", repr(self.target) if self.target else "None"
        lines = [
            f"prompt, response = {self.prompt!r}, {self.response!r}",
            f"prompt_ids, response_ids = {name}.split(prompt, response)",
            f"ids = [*prompt_ids, *response_ids[:{self.at}]]" if self.at else "ids = prompt_ids",
        ]
        return lines, "ids", repr(self.target) if self.target else f"response_ids[{self.at}]"

    @property
    def ids(self) -> PerModel:
        """The context, as an argument of an analysis."""
        return _Ids(self)

    @property
    def texts(self) -> PerModel:
        """Prompt and response as a whole, as an argument of an analysis."""
        return _Texts(self.prompt, self.response)

    @property
    def answer(self) -> PerModel:
        """The target, as an argument of an analysis."""
        return _Answer(self)

    def answer_at(self, position: int) -> PerModel | str | None:
        """The target at a position of the context; the response's own token is the target only at its end, -1."""
        return self.answer if position == -1 else self.target or None


@dataclass(frozen=True)
class _Ids(PerModel):
    prediction: Prediction

    def read_by(self, model: Model) -> list[int]:
        return self.prediction.read(model)[0]

    def code(self, name: str) -> tuple[list[str], str]:
        return self.prediction.code(name)[:2]


@dataclass(frozen=True)
class _Answer(PerModel):
    prediction: Prediction

    def read_by(self, model: Model) -> str | int | None:
        return self.prediction.read(model)[1]

    def code(self, name: str) -> tuple[list[str], str]:
        return [], self.prediction.code(name)[2]


@dataclass(frozen=True)
class _Texts(PerModel):
    prompt: str
    response: str

    def read_by(self, model: Model) -> list[int]:
        prompt, response = model.split(self.prompt, self.response)
        return [*prompt, *response]

    def code(self, name: str) -> tuple[list[str], str]:
        lines, ids, _ = Prediction(self.prompt, self.response).code(name)
        return (lines[:2], "[*prompt_ids, *response_ids]") if self.response else (lines, ids)


@dataclass(frozen=True)
class Likeliest(FromModel):
    """A model's top token after a context."""

    ids: PerModel
    name: str = "likeliest"
    """The variable in copied code."""

    @classmethod
    def after(cls, ids: PerModel, models: Sequence[Model], name: str = "likeliest") -> Likeliest:
        """The top token of the model, or of the second of two, after a context."""
        return cls(len(models) - 1, model_variables(models)[-1], ids, name)

    def find(self, model: Model, check: Callable[[], None]) -> int:
        check()
        ids = self.ids.read_by(model)
        logits = model.forward(model.token_embeddings(ids)[None], positions=slice(-1, None))
        return likeliest(logits[0, -1])

    def code(self) -> tuple[list[str], str]:
        lines, ids = self.ids.code(self.variable)
        text = ids == "prompt" or ids.startswith(("'", '"'))
        ids = f"{self.variable}.tokens({ids})" if text else ids
        return [*lines, f"{self.name} = int({self.variable}.run({ids}).logits[0, -1].argmax())"], self.name


@dataclass(frozen=True)
class Continued(PerModel):
    """Another prompt with the same response so far as a prediction."""

    prompt: str
    prediction: Prediction

    def read_by(self, model: Model) -> list[int]:
        return replace(self.prediction, prompt=self.prompt).read(model)[0]

    def code(self, name: str) -> tuple[list[str], str]:
        if not self.prediction.response:
            return [], repr(self.prompt)
        at = f", *response_ids[:{self.prediction.at}]" if self.prediction.at else ""
        return [], f"[*{name}.split({self.prompt!r}, response)[0]{at}]"


@dataclass(frozen=True)
class WordSwap:
    """Words that stand in place of others."""

    pattern: str
    """A regular expression of the old words."""
    new: str

    @classmethod
    def of(cls, old: str, new: str, text: str) -> WordSwap:
        """The swap of ``old`` where it is not a part of a longer word of the text; wherever it stands if it only is."""
        begins, ends = r"(?<!\w)" * bool(re.match(r"\w", old)), r"(?!\w)" * bool(re.search(r"\w$", old))
        whole = begins + re.escape(old) + ends
        return cls(whole if re.search(whole, text) else re.escape(old), new)

    def swapped(self, text: str) -> str:
        return re.sub(self.pattern, lambda _: self.new, text)

    def code(self, text: str) -> str:
        """An expression of a cell that swaps the words in another one."""
        new = self.new.replace("\\", r"\\")
        return f"re.sub({self.pattern!r}, {new!r}, {text})"


@dataclass(frozen=True)
class Swapped(PerModel):
    """Another prompt with the response so far as a prediction, in which some words stand in place of others."""

    prompt: str
    words: WordSwap
    prediction: Prediction

    def read_by(self, model: Model) -> list[int]:
        _, response = self.prediction.split(model)
        so_far = "".join(model.token_strings(response[: self.prediction.at]))
        if not self.prediction.response.startswith(so_far):
            raise Refused("response_token", "the response so far ends within a character: predict another token of it")
        before, after = Prediction(self.prompt, self.words.swapped(so_far)).split(model)
        return [*before, *after]

    def code(self, name: str) -> tuple[list[str], str]:
        if not self.prediction.at:
            return [], repr(self.prompt)
        so_far = f'"".join({name}.token_strings(response_ids[:{self.prediction.at}]))'
        swapped = self.words.code(so_far)
        return [f"before, after = {name}.split({self.prompt!r}, {swapped})"], "[*before, *after]"


def checked(prediction: Prediction, model: Model, *, what: str = "target") -> Prompt:
    """The context of a prediction; `Incomplete` for a target of several tokens or a prompt that does not fit.

    `what` is the target's name on the panel.
    """
    if prediction.target:
        with hint_at("target"):
            single_token(model, prediction.target, what=what)
    with hint_at("response" if prediction.response else "prompt"):
        return read_prompt(model, prediction.read(model)[0])


def check_foil(prediction: Prediction, model: Model, foil: str) -> None:
    """Raise ValueError for a foil that is not one token, or is the target itself."""
    target = prediction.read(model)[1]
    if single_token(model, foil, what="foil") == (None if target is None else single_token(model, target)):
        raise ValueError(f"target and foil must differ, both are {foil!r}: type another foil")


def position_in(read: Prompt, position: int, option: str = "position") -> int:
    """A position of a prompt, with the last one always as -1; `Refused` if it is out of range."""
    try:
        return -1 if read.position(position) == read.n_shown - 1 else position
    except ValueError as error:
        raise Refused(option, message_of(error)) from error


class PredictionPanel(Panel):
    """Base of the panels on one prediction.

    It holds the prompt, a response of which one token is chosen, and the target. On a workbench these are shared: a
    response token chosen in another panel moves this one to the position that predicts it. Subclasses put
    `text_inputs()` into `self.inputs` and call `prediction()`.
    """

    prompt = field(
        Annotated[str, Text(3)], label="Prompt", help="What the model reads", group="prediction", width="grow",
        required="the prompt is empty: type what the model should continue",
    )  # fmt: skip
    response = field(
        Annotated[str, Text(3)], label="Response", group="prediction", width="grow",
        placeholder="Optional: study one of its tokens instead of the next token",
        help="The model's response, to study the prediction of one of its tokens; may be empty",
    )  # fmt: skip
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, validated_by_result=True, argument=None)
    """The selected prompt token, -1 for none."""
    response_token = field(Annotated[int, Bounds(low=-1)], -1)
    """The response token whose prediction is studied; -1 for the first."""
    layer = in_model()
    """The selected layer."""
    target = field(
        str, label="Target", group="prediction", new_row=True, placeholder="the likeliest",
        help="The token whose prediction is studied; empty: the response's own token, or the model's likeliest",
    )  # fmt: skip

    preset_fields: ClassVar[tuple[str, ...]] = ()
    """Options besides the target that an example sets and clears with its prompt, such as a foil."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return first_example(self, keywords)

    @classmethod
    def preset_values(cls, chosen: Preset) -> dict[str, Any]:
        """Values of the panel's own options that go with an example."""
        return {name: getattr(chosen, name) for name in cls.preset_fields}

    def prediction(self) -> Prediction:
        """The prediction that the inputs define; ValueError if they are incomplete."""
        self.require("prompt")
        return prediction_of(self)

    def arguments(self) -> dict[str, Any]:
        """The keywords of the analysis: the options whose controls are shown, except the prediction's."""
        return {name: value for name, value in super().arguments().items() if name not in PREDICTION}

    def request(self) -> Any:
        """The prediction, as ids and target, and the options, checked now rather than in the run."""
        if self.analysis is None:
            return super().request()
        prediction = self.prediction()
        self.require()
        checked(prediction, self.models[0])
        return Request.of(self.analysis, self.arguments(), prediction.ids, prediction.answer)

    def remarks(self) -> dict[str, str]:
        """Where a model would put a second BOS in front of the prompt, or the response is only an end token."""
        found = end_remark(self)
        for model in () if isinstance(self.prompt, ChatText) else self.models:
            if model.prepend_bos and self.prompt.startswith(model.tokenizer.bos_token):
                return {"prompt": model.own_bos_note, **found}
        return found

    def text_inputs(self) -> list[Any]:
        """Rows of inputs: prompt, response, example, target, and a subclass's options in the group ``prediction``.

        Empty in a stack that has them above its tabs.
        """
        if self._texts_above:
            return []
        self._texts = TextInputs(self)
        self._texts.start()
        return self._texts.rows

    @property
    def texts(self) -> TextInputs:
        """The inputs of the texts: the panel's own or those of the stack it is in."""
        texts: TextInputs = self.stack.texts if self._texts_above else self._texts
        return texts

    @property
    def _texts_above(self) -> bool:
        return self.stack is not None and self.stack.texts_above

    def appear(self) -> None:
        if not self._opened:
            self.texts_read()
        super().appear()

    def texts_read(self) -> None:
        """Called after the tokens of the context have changed, whether or not a run follows."""


def first_example(owner: Any, keywords: set[str]) -> dict[str, Any]:
    """The values of the first example for a panel or stack, besides those that are given; none where a prompt is."""
    if "prompt" in keywords:
        return {}
    values = {"prompt": PRESETS[0].prompt, "target": PRESETS[0].target, **owner.preset_values(PRESETS[0])}
    return {name: value for name, value in values.items() if name not in keywords}


def prediction_of(owner: Any) -> Prediction:
    """The prediction that the traits of a panel or a stack define."""
    at = max(owner.response_token, 0) if owner.response else 0
    return Prediction(owner.prompt, owner.response, at, owner.target)


class TextInputs:
    """The inputs of a prediction, for one panel or a stack, and their dependencies.

    Its owner keeps it before `start` fills in an example's options, which panels that ask for the texts respond to.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.axis: tuple[str, ...] = ()
        """Readable tokens of the context, without a BOS."""
        self.special: tuple[bool, ...] = ()
        """Which of them are special tokens."""
        self.n_prompt_tokens = 0
        """How many of them are tokens of the prompt; the rest are the response's."""
        self.response_tokens: tuple[str, ...] = ()
        """Readable tokens of the response."""
        self.boxes = None if owner.screen is not None else TextBoxes(self, owner)
        """The boxes; None on a screen, which has its own."""
        self.rows = owner.controls.rows("prediction") if self.boxes is None else self.boxes.rows
        """The inputs, to be laid out."""
        position = owner.fields().get("position")
        self._keeps_position = position is not None and position.linked == "prompt_token"

    def start(self) -> None:
        """Read the texts, fill in what goes with an example, and follow changes."""
        owner = self._owner
        owner.watch(owner, ["prompt", "response"], self._texts_changed)
        owner.watch(owner, "response_token", self._token_chosen)
        chosen = owner.response_token
        self._read_response()
        alone = owner.screen is None and getattr(owner, "stack", None) is None
        if owner.response_token != chosen and alone and "response_token" in owner.keywords:
            raise ValueError(self._no_token(chosen))  # a selection of the workbench may be of an earlier response
        self._from_preset("")
        self._read()
        owner.watch(owner, "prompt", lambda change: self._from_preset(change.old))
        owner.watch(owner, ["prompt", "response", "response_token"], self._read_anew)

    # writing ----------------------------------------------------------------------------------------------------------

    def generate_response(self) -> None:
        """Let the model (of two, the second) write a response, greedily."""
        owner = self._owner
        owner.require("prompt")
        prompt, model = owner.prompt, owner.models[-1]

        def work(job: Any) -> str:
            room = model.n_ctx - len(model.tokens(prompt))
            length = max(1, min(MAX_NEW_TOKENS, room))
            text: str = model.generate(prompt, max_new_tokens=length, keep_end=True, check=job.check)
            return text

        def done(text: str) -> None:
            if owner.prompt == prompt:
                with owner.batch_changes():
                    owner.response, owner.response_token, owner.target = text, 0, ""

        owner.jobs.start(work, done, title="Writing", channel="write")

    # examples and the response ----------------------------------------------------------------------------------------

    def _from_preset(self, before: str) -> None:
        """Fill in the options of an example's prompt, and clear those of the previous one."""
        owner, names = self._owner, self._owner.preset_fields
        old, new = (next((p for p in PRESETS if p.prompt == text), None) for text in (before, owner.prompt))
        with owner.batch_changes():
            for name in names:
                value = getattr(owner, name)
                if not value or (old is not None and value == getattr(old, name)):
                    setattr(owner, name, "" if new is None else getattr(new, name))

    def _texts_changed(self, change: Any) -> None:
        """Clear the selection and an example's answer, which belong to the old text."""
        owner = self._owner
        if change.name == "prompt":
            owner.prompt_token = -1
            if any(p.prompt == change.old and p.target == owner.target for p in PRESETS):
                owner.target = ""
        owner.response_token = -1
        self._read_response()

    def _token_chosen(self, change: Any) -> None:
        """A token chosen in the response replaces a typed target."""
        if change.new >= 0:
            self._owner.target = ""

    def _no_token(self, chosen: int) -> str:
        count = len(self.response_tokens)
        if not count:
            return f"response_token {chosen} needs a response, and there is none: pass one, or omit response_token"
        return f"response_token must be in 0..{count - 1} for this response, got {chosen}"

    def _read_response(self) -> None:
        """Update the response's tokens; the chosen index stays if it still exists."""
        owner, selected = self._owner, self._owner.response_token
        self.response_tokens = ()
        if owner.response:
            model = owner.models[0]
            self.response_tokens = tuple(model.token_strings(model.split(owner.prompt, owner.response)[1]))
        if self.boxes is not None:
            self.boxes.show(self.response_tokens)
        owner.response_token = selected if 0 <= selected < len(self.response_tokens) else -1

    # what the model has read ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        owner, model = self._owner, self._owner.models[0]
        self.axis, self.special, self.n_prompt_tokens = (), (), 0
        try:
            prediction = prediction_of(owner)
            read = read_prompt(model, prediction.read(model)[0])
            self.axis, self.special = read.tokens(), read.special()
            self.n_prompt_tokens = min(read.n_shown, len(prediction.split(model)[0]) - read.offset)
        except ValueError:
            pass  # the run that follows reports what is wrong with the texts

    def _read_anew(self, _: Any) -> None:
        """Update the context after a change of the texts or of the predicted token."""
        before, owner = self.axis, self._owner
        self._read()
        if self._keeps_position and before and self.axis != before:
            at = owner.position
            if at >= len(self.axis) or self.axis[: at + 1] != before[: at + 1]:
                owner.position = -1
        owner.texts_read()


class TextBoxes:
    """The boxes of the texts of a panel or a stack, the examples, *Generate*, and the tokens of the response."""

    def __init__(self, texts: TextInputs, owner: Any) -> None:
        self._owner = owner
        names = [OWN, *(preset.name for preset in PRESETS)]
        self.example = W.Dropdown(description="Example", options=names, value=self._example_name())
        owner.watch(self.example, "value", self._example_chosen)
        generate = W.Button(description="Generate", tooltip="Let the model write a response to this prompt")
        owner.on_click(generate, texts.generate_response)
        self.strip = TokenStrip(label="Response", instruction="click a token to study its prediction", max_lines=3)
        owner.bind(self.strip, "response_token", key="selected")
        self._answer = W.VBox([self.strip])
        shown_if(self._answer, False)
        owner.watch(owner, ["prompt", "target"], lambda _: self._name_example())
        self.chat = ChatPrompt(owner, owner.controls["prompt"])
        after = {"prompt": [self.chat.messages.box], "target": [generate, self.chat.button]}
        rows = owner.controls.rows("prediction", before={"target": [self.example]}, after=after)
        self.rows = [*rows, self._answer]

    def show(self, tokens: Sequence[str]) -> None:
        """Show the tokens of the response."""
        self.strip.set_tokens(list(tokens))
        shown_if(self._answer, bool(tokens))

    def _example_name(self) -> str:
        owner = self._owner
        return next((p.name for p in PRESETS if p.prompt == owner.prompt and p.target == owner.target), OWN)

    def _name_example(self) -> None:
        name = self._example_name()
        if self.example.value != name:
            self.example.value = name

    def _example_chosen(self, change: Any) -> None:
        if change.new == OWN or change.new == self._example_name():
            return
        owner, chosen = self._owner, preset(change.new)
        with owner.batch_changes():
            owner.workbench.select(prompt=chosen.prompt, response="", response_token=-1, prompt_token=-1)
            for name, value in {"target": chosen.target, **owner.preset_values(chosen)}.items():
                setattr(owner, name, value)
