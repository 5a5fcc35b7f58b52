"""A prompt as the model reads it and as users see it (without the BOS), and single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_range, check_span, index, indices, whole_number
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.run import Check
from interp_widgets.analysis._core.sink import first_is_sink
from interp_widgets.models import Model
from interp_widgets.models.chat import TEMPLATE, Chat, ChatText, Part, PromptInput, is_chat
from interp_widgets.models.tokens import encoded


class PromptError(ValueError):
    """A text that a model cannot take, such as one that is longer than its context."""

    what = ""
    """Which text it is: ``prompt``, ``response``, or another name in its sentence."""


def _unfit(what: str, sentence: str) -> PromptError:
    error = PromptError(sentence)
    error.what = what  # not an argument: an error from another process is made of its sentence alone
    return error


@record
class PromptResult(Result):
    """Base of results with one entry per prompt position; positions leave out the BOS, which the model still reads."""

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens of the prompt."""

    ids: Sequence[int] = with_axes("positions")
    """Their ids."""

    special: Sequence[bool] = with_axes("positions")
    """Whether each is a special token."""

    bos_id: int | None = field(default=None, kw_only=True)
    """Id of the beginning-of-sequence token fed before the prompt and left off the axis; None when there was none."""

    @property
    def n_positions(self) -> int:
        """Number of tokens on the axis."""
        return len(self.tokens)


@dataclass(frozen=True)
class Prompt:
    """The tokens of one sequence. Users' positions leave out a BOS; add `offset` for positions in `ids`."""

    model: Model
    ids: tuple[int, ...]
    """Token ids that the model reads, with the BOS if there is one."""
    offset: int
    """1 if the sequence begins with a BOS, else 0."""
    text: str = ""
    """The prompt as text; empty for ids."""
    chat: Chat | None = None
    """The messages that it was written from, if any."""
    response: str = ""
    """The response that it was tokenized with, if any; a token that both share is not the prompt's."""

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...] | None:
        """Characters [start, end) of each shown token; None where the prompt was given as ids."""
        if not self.text:
            return None
        ids, spans = encoded(self.model.tokenizer, self.text + self.response)
        start = self.offset if self.model.begins_with_bos(ids) else 0  # the text itself may begin with the BOS
        end = start + self.n_shown
        return tuple(spans[start:end]) if tuple(ids[start:end]) == self.shown_ids else None

    @cached_property
    def roles(self) -> tuple[str, ...] | None:
        """The role of each shown token of a chat: that of the message whose content it overlaps, or ``template``; None
        for text and ids."""
        if self.chat is None or self.spans is None:
            return None
        parts = [_first(self.chat.contents, span) for span in self.spans]
        return tuple(TEMPLATE if part is None else self.chat.messages[part.message]["role"] for part in parts)

    @cached_property
    def turns(self) -> tuple[int, ...] | None:
        """The message number of each shown token of a chat, including the template text around a message; one past the
        last for the opening of the answer. None for text and ids."""
        if self.chat is None or self.spans is None:
            return None
        contents = [_first(self.chat.contents, span) for span in self.spans]
        around = [_first(self.chat.turns, (start, start + 1)) for start, _ in self.spans]
        last = len(self.chat.messages)
        pairs = zip(contents, around, strict=True)
        return tuple(part.message if (part := content or turn) is not None else last for content, turn in pairs)

    @cached_property
    def first_is_sink(self) -> bool:
        """Whether the first token on the axis carries the model's attention sink; with a BOS, that one does."""
        return self.offset == 0 and first_is_sink(self.model, self.ids)

    @property
    def n_shown(self) -> int:
        """Tokens on the axis."""
        return len(self.ids) - self.offset

    @property
    def shown_ids(self) -> tuple[int, ...]:
        """(shown,) ids of the tokens on the axis."""
        return self.ids[self.offset :]

    @property
    def bos_id(self) -> int | None:
        """Id of the BOS that is fed; None without one."""
        return self.ids[0] if self.offset else None

    def tokens(self) -> tuple[str, ...]:
        """(shown,) readable tokens on the axis."""
        return tuple(self.model.token_strings(self.shown_ids))

    def special(self) -> tuple[bool, ...]:
        """(shown,) whether each token on the axis is special."""
        return tuple(self.model.is_special(self.shown_ids))

    def fields(self) -> dict[str, Any]:
        """The fields of a `PromptResult`."""
        return {"tokens": self.tokens(), "ids": self.shown_ids, "special": self.special(), "bos_id": self.bos_id}

    def embeddings(self) -> Tensor:
        """(1, fed, d_model) token embeddings."""
        return self.model.token_embeddings(self.ids)[None]

    def fed_ids(self) -> Tensor:
        """(1, fed) ids on the model's device."""
        return torch.tensor([self.ids], device=self.model.device)

    def position(self, position: Any) -> int:
        """A position on the axis, counted from 0; negative ones count from the end. ValueError outside of it."""
        return index(position, self.n_shown, "position", f"prompt of {self.n_shown} tokens")

    def positions(self, positions: Any) -> tuple[int, ...]:
        """Different positions on the axis, in the order given; all of them for None.

        ``"last"`` is the last one, other texts are words of the prompt, see `find`. ValueError outside of the prompt.
        """
        if isinstance(positions, str):
            return (self.n_shown - 1,) if positions == "last" else tuple(range(*self.find(positions, "positions")))
        return indices(positions, self.n_shown, "position", f"prompt of {self.n_shown} tokens")

    def find(self, subject: Any, what: str = "the subject") -> tuple[int, int]:
        """Token span [start, end) of a subject, given as a span or as text; for text, the tokens that overlap its last
        occurrence. ValueError for a span outside of the prompt, or text that does not occur in it."""
        if not isinstance(subject, str):
            owner = f"prompt of {self.n_shown} tokens"
            return check_span(subject, self.n_shown, f"{what}, where it is no text,", owner)
        if self.spans is None:
            raise ValueError(
                f"{what}, given as text, needs the prompt as text: "
                "give token positions instead, a subject as (start, end)"
            )
        start = self.text.rfind(subject) if subject else -1
        if start < 0:
            raise ValueError(
                f"{what} {subject!r} is not in the prompt {self.text!r}: copy it from there, with its case"
            )
        inside = [i for i, (a, b) in enumerate(self.spans) if a < start + len(subject) and b > start]
        return inside[0], inside[-1] + 1


def read_prompt(model: Model, prompt: PromptInput, *, prepend_bos: bool | None = None, what: str = "prompt") -> Prompt:
    """Check a prompt (text, ids or messages) and tokenise it; ids are taken as they are.

    Raises ValueError in one sentence for a prompt that is empty, holds special tokens only or does not fit.
    """
    ids, _ = model.split(prompt, None, prepend_bos=prepend_bos)
    if len(ids) > model.n_ctx:
        raise _unfit(
            what,
            f"the {what} has {len(ids)} tokens and the model reads {model.n_ctx}: "
            f"shorten it by at least {len(ids) - model.n_ctx}",
        )
    return _prompt_of(model, prompt, ids, what)


def read_prompt_and_response(
    model: Model,
    prompt: PromptInput,
    response: str | Sequence[int] | None,
    *,
    max_new_tokens: int,
    prepend_bos: bool | None = None,
    check: Check = None,
) -> tuple[Prompt, tuple[int, ...]]:
    """Check a prompt and the response to it, tokenised together; without a response the model writes one.

    Raises ValueError in one sentence for an empty or too long prompt or response, or special tokens only.
    """
    ids, response_ids = model.split(prompt, response, prepend_bos=prepend_bos)
    if isinstance(prompt, str) and prompt.strip() and response and all(model.is_special(ids)):
        alone, _ = model.split(prompt, None, prepend_bos=prepend_bos)
        if not all(model.is_special(alone)):
            (shared,) = model.token_strings(response_ids[:1])
            raise _unfit(
                "prompt",
                f"the prompt {prompt!r} is only the beginning of the token {shared!r}, which it makes with the "
                "response: end the prompt with a whole word",
            )
    tokens = _prompt_of(model, prompt, ids, "prompt", response if isinstance(response, str) else "")
    if len(ids) >= model.n_ctx:
        raise _unfit(
            "prompt",
            f"the prompt has {len(ids)} tokens and the model reads {model.n_ctx} with the response: "
            f"shorten it by at least {len(ids) + 1 - model.n_ctx}",
        )
    if response is None:
        room = min(max_new_tokens, model.n_ctx - len(ids))
        response_ids = model.generate_ids(ids, max_new_tokens=room, check=check)
        if not response_ids:
            raise ValueError("the model ended its response at once: give a response, or change the prompt")
    elif len(response_ids) == 0:
        raise ValueError("the response is empty: write some text, or leave it out and the model writes one")
    over = len(ids) + len(response_ids) - model.n_ctx
    if over > 0:
        raise _unfit(
            "response",
            f"prompt ({len(ids)} tokens) and response ({len(response_ids)}) are {over} tokens longer than the model's "
            f"context of {model.n_ctx}: shorten either by {over}",
        )
    return tokens, tuple(response_ids)


def _prompt_of(model: Model, prompt: PromptInput, ids: Sequence[int], what: str, response: str = "") -> Prompt:
    if len(ids) == 0:
        raise _unfit(what, f"the {what} is empty: write at least one word")
    if all(model.is_special(ids)):
        raise _unfit(what, f"the {what} holds only special tokens, which have no words to look at: add some text")
    offset = int(model.begins_with_bos(ids))
    if isinstance(prompt, ChatText):
        return Prompt(model, tuple(ids), offset, str(prompt), prompt.chat, response)
    if is_chat(prompt):
        chat = model.chat(prompt)
        return Prompt(model, tuple(ids), offset, chat.text, chat, response)
    return Prompt(model, tuple(ids), offset, prompt if isinstance(prompt, str) else "", response=response)


def _first(parts: Sequence[Part], span: tuple[int, int]) -> Part | None:
    """The first part that overlaps a span of characters."""
    return next((part for part in parts if span[0] < part.end and span[1] > part.start), None)


def single_token(model: Model, token: str | int, *, what: str = "target") -> int:
    """The id of one token, given as text or id; ValueError, listing the tokens, for a longer text."""
    if isinstance(token, str):
        ids = model.tokens(token, prepend_bos=False)
        if len(ids) == 1:
            return int(ids[0])
        by_itself = model.tokens(token.removeprefix(" "), prepend_bos=False)
        if model.token_strings(by_itself) == (token,):  # the tokenizer begins every text with a space
            return int(by_itself[0])
        if not ids:
            raise ValueError(f"the {what} is empty: give the text of one token, or an id")
        pieces = ", ".join(repr(piece) for piece in model.token_strings(ids))
        advice = "give a shorter text or an id"
        if not token.startswith(" ") and len(model.tokens(" " + token, prepend_bos=False)) == 1:
            advice = f"with a space in front, {' ' + token!r}, it is one"
        if len(token) > 60:
            raise ValueError(f"the {what} must be one token, the text given is {len(ids)} tokens: {advice}")
        raise ValueError(f"the {what} must be one token, {token!r} is {len(ids)} ({pieces}): {advice}")
    number = whole_number(token, f"the {what}, where it is no text,")
    check_range(f"the {what}", number, 0, model.d_vocab - 1, "this vocabulary")
    return number
