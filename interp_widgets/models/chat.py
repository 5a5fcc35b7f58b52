"""Chats: messages written as text by the tokenizer's template, and the message each character belongs to."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from torch import Tensor

from ..data.files import short
from .chat_process import RENDERER, TemplateFailure

Messages = Sequence[Mapping[str, str]]
"""A chat: messages ``{"role": ..., "content": ...}`` in their order."""
PromptInput = str | Sequence[int] | Messages
"""A prompt: a text, token ids, or the messages of a chat."""

TEMPLATE = "template"
"""The role of template text, which belongs to no message."""

_KEYS = {"role", "content"}
_PROBE = [{"role": "user", "content": "a"}]


def is_chat(prompt: object) -> TypeGuard[Messages]:
    """Whether a prompt is a non-empty list of messages or a `ChatText`."""
    if isinstance(prompt, ChatText):
        return True
    if isinstance(prompt, str | Tensor) or not isinstance(prompt, Sequence) or len(prompt) == 0:
        return False
    return isinstance(prompt[0], Mapping)


def check_messages(messages: object) -> None:
    """Raise a ValueError or TypeError unless these are messages with a role and a content each."""
    form = "a list of messages such as {'role': 'user', 'content': 'Hello'}"
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be {form}, got {type(messages).__name__}")
    if len(messages) == 0:
        raise ValueError(f"messages must be {form}, got an empty list")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages must be {form}, but message {number} is {type(message).__name__}")
        unknown = [key for key in message if key not in _KEYS]
        if unknown:
            raise ValueError(f"message {number} may have the keys 'role' and 'content' only, got {unknown[0]!r}")
        for key in ("role", "content"):
            if key not in message:
                raise ValueError(f"message {number} has no {key!r}: write {{'role': ..., 'content': ...}}")
            if not isinstance(message[key], str):
                raise TypeError(f"{key!r} of message {number} must be a str, got {type(message[key]).__name__}")


@dataclass(frozen=True)
class Part:
    """Characters [start, end) of a chat's text, and the number of the message that they belong to."""

    start: int
    end: int
    message: int


@dataclass(frozen=True)
class Chat:
    """Messages as a tokenizer's template writes them, up to where the model answers."""

    messages: tuple[dict[str, str], ...]
    text: str
    """The text that the model reads, including the template's special tokens."""
    tokenizer: Any

    @cached_property
    def _literals(self) -> tuple[list[str], list[int]]:
        """The template's text before, between and after the messages, and the messages' numbers in their order."""
        marks = [f"message{number}content9e3779b9" for number in range(len(self.messages))]
        marked = [message | {"content": mark} for message, mark in zip(self.messages, marks, strict=True)]
        fragments = re.split(f"({'|'.join(marks)})", rendered(self.tokenizer, marked, answers=True))
        return fragments[::2], [marks.index(mark) for mark in fragments[1::2]]

    @property
    def left_out(self) -> list[int]:
        """Numbers of the messages whose content the template omits."""
        _, numbers = self._literals
        return [n for n, message in enumerate(self.messages) if message["content"].strip() and n not in numbers]

    @cached_property
    def contents(self) -> tuple[Part, ...]:
        """The parts of the text that are message contents, in their order; the rest is template text.

        Raises ValueError where the template rewrites messages, so that contents cannot be located.
        """
        literals, numbers = self._literals
        for loose in (False, True):  # a template may shorten a content, such as reasoning before an answer
            pattern = re.escape(literals[0])
            for number, after in zip(numbers, literals[1:], strict=True):
                pattern += f"({_forms(self.messages[number]['content'], loose=loose)}){re.escape(after)}"
            match = re.fullmatch(pattern, self.text, re.DOTALL)
            if match:
                return tuple(Part(*match.span(i), number) for i, number in enumerate(numbers, 1))
        raise ValueError("the chat template rewrites these messages, so that their roles in the text are not known")

    @cached_property
    def turns(self) -> tuple[Part, ...]:
        """The text divided into turns: each message with the template text around it, and the opening of the answer,
        whose number is one past the last message."""
        contents = [part for part in self.contents if part.end > part.start]
        last = len(self.messages)
        starts = [part.end for part in contents]
        ends = [part.start for part in contents[1:]] + [len(self.text)]
        cuts = [self._end_of(part.message, low, high) for part, low, high in zip(contents, starts, ends, strict=True)]
        turns = [Part(a, b, part.message) for part, a, b in zip(contents, [0, *cuts[:-1]], cuts, strict=True)]
        rest = cuts[-1] if cuts else 0
        return (*turns, Part(rest, len(self.text), last)) if rest < len(self.text) else tuple(turns)

    def _end_of(self, message: int, low: int, high: int) -> int:
        """End of a message's turn in low..high: that of the chat up to this message, else the end of its content."""
        try:
            before = rendered(self.tokenizer, self.messages[: message + 1], answers=False)
        except ValueError:  # such as a system message alone
            return low
        return len(before) if low <= len(before) <= high and self.text.startswith(before) else low


class ChatText(str):
    """The text of a chat together with its messages.

    A model reads it without adding a BOS, and knows the message of each token. It is not equal to any plain text and
    its repr shows the messages.
    """

    chat: Chat

    def __new__(cls, chat: Chat) -> ChatText:
        made = super().__new__(cls, chat.text)
        made.chat = chat
        return made

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages, each with its role and content."""
        return [dict(message) for message in self.chat.messages]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatText) and str(self) == str(other) and self.messages == other.messages

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((ChatText, str(self)))

    def __repr__(self) -> str:
        return repr(self.messages)


def _forms(content: str, *, loose: bool) -> str:
    """A regular expression for a content as a template may write it: unchanged, or without white space at its ends."""
    forms = dict.fromkeys([content, content.strip(), content.lstrip(), content.rstrip()])
    return "|".join(re.escape(form) for form in forms) + ("|.*?" if loose else "")


def write_chat(tokenizer: Any, messages: Messages, name: str) -> Chat:
    """The chat as the tokenizer's template writes it, with the opening of the model's answer.

    Raises a ValueError or TypeError for bad messages, messages that the template refuses or omits, or a tokenizer
    without a template; ``name`` is the model's.
    """
    check_messages(messages)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer of {name} has no chat template, which a list of messages needs: give the prompt as text, "
            'or load the model with load_model(..., chat_template=...), such as "{% for message in messages %}'
            "{{ message['role'] }}: {{ message['content'] }}\\n{% endfor %}assistant:\""
        )
    plain = tuple({"role": message["role"], "content": message["content"]} for message in messages)
    chat = Chat(plain, rendered(tokenizer, plain, answers=True), tokenizer)
    if chat.left_out:
        number = chat.left_out[0]
        raise ValueError(f"the chat template of {name} leaves message {number} out: {_why_left_out(chat, number)}")
    return chat


def _why_left_out(chat: Chat, number: int) -> str:
    """Why a template omits a message: its place, its role, or the template itself."""
    role = chat.messages[number]["role"]
    if _writes(chat.tokenizer, role):
        return f"it writes the role {role!r}, but not this message, which may be for its place among the others"
    if _writes(chat.tokenizer, _PROBE[0]["role"]):
        return f"it does not know the role {role!r}"
    _, written = chat._literals
    if written:
        return f"it writes message {written[0]}, but not this one, for its place or its role {role!r}"
    return f"it writes no message at all, only {short(ascii(chat.text))}"


def _writes(tokenizer: Any, role: str) -> bool:
    """Whether a template writes a message of this role on its own."""
    alone = ({"role": role, "content": "a"},)
    try:
        return not Chat(alone, rendered(tokenizer, alone, answers=True), tokenizer).left_out
    except ValueError:  # it takes no chat of this message alone
        return False


def with_template(tokenizer: Any, template: str, name: str) -> Any:
    """A copy of a tokenizer with this chat template; ValueError if the template is invalid."""
    if not isinstance(template, str):
        raise TypeError(f"chat_template must be a str in Jinja's language, got {type(template).__name__}")
    if tokenizer is None:
        raise ValueError(f"{name} was loaded without a tokenizer: a chat template needs one, give tokenizer= too")
    own = copy.copy(tokenizer)
    own.chat_template = template
    _check_syntax(own)
    return own


def _check_syntax(tokenizer: Any) -> None:
    try:
        _render(tokenizer, _PROBE, answers=True)
    except TemplateFailure as failure:
        if failure.kind == "syntax":
            raise ValueError(f"chat_template is not a Jinja template: {failure} (line {failure.line})") from failure
        # else it may require more than a single user message


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]], *, answers: bool, continues: bool = False) -> str:
    """The text of messages, with the opening of the answer if ``answers`` and without the end of the last message if
    ``continues``; ValueError if the template refuses or fails."""
    try:
        return _render(tokenizer, messages, answers=answers, continues=continues)
    except TemplateFailure as failure:
        reason = str(failure).rstrip(".")
        if failure.kind == "refused":
            raise ValueError(f"the chat template refuses these messages: {reason}") from failure
        where = "" if failure.line is None else f" (line {failure.line} of the template)"
        raise ValueError(f"the chat template cannot write these messages: {reason}{where}") from failure


def _render(tokenizer: Any, messages: Sequence[Mapping[str, str]], *, answers: bool, continues: bool = False) -> str:
    from transformers import PreTrainedTokenizerBase

    options = {"add_generation_prompt": answers, "continue_final_message": continues}
    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:  # it has no template
        return str(tokenizer.apply_chat_template([*messages], tokenize=False, **options))
    return RENDERER.render(
        tokenizer.get_chat_template(), messages, special_tokens=tokenizer.special_tokens_map, **options
    )
