"""A prompt as the model is fed it, and what of it a user sees; positions and single tokens checked in one place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp_widgets.models import Model


@dataclass(frozen=True)
class Prompt:
    """The tokens of one sequence. Positions that a user gives or sees leave out a BOS; `offset` leads to those fed."""

    model: Model
    ids: tuple[int, ...]
    """Fed, with the BOS if there is one."""
    offset: int
    """1 if the sequence begins with a BOS, which is on no axis, else 0."""
    spans: tuple[tuple[int, int], ...] | None
    """(shown, 2) characters of each shown token, where the prompt was given as text."""
    text: str = ""
    """The prompt as given; empty for ids."""

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
        found: tuple[str, ...] = self.model.token_strings(self.shown_ids)
        return found

    def special(self) -> tuple[bool, ...]:
        """(shown,) whether each token on the axis is special."""
        return tuple(self.model.is_special(self.shown_ids))

    def embeddings(self) -> Tensor:
        """(1, fed, d_model) token embeddings."""
        found: Tensor = self.model.token_embeddings(self.ids)[None]
        return found

    def fed_ids(self) -> Tensor:
        """(1, fed) ids on the model's device."""
        return torch.tensor([self.ids], device=self.model.device)

    def position(self, given: int, *, what: str = "position") -> int:
        """A position on the axis, counted from 0; negative ones count from the end. ValueError outside of it."""
        given = whole_number(given, what)
        if not -self.n_shown <= given < self.n_shown:
            raise ValueError(
                f"{what} must be in 0..{self.n_shown - 1} for this prompt of {self.n_shown} tokens "
                f"(or negative, from the end), got {given}"
            )
        return given % self.n_shown

    def find(self, text: str, *, what: str = "subject") -> tuple[int, int]:
        """The tokens [start, end) that share a character with the last occurrence of ``text`` in a prompt given as
        text. ValueError where it does not occur."""
        if self.spans is None:
            raise ValueError(f"a {what} as text needs the prompt as text: give token positions (start, end) instead")
        place = self.text.rfind(text) if text else -1
        if place < 0:
            raise ValueError(
                f"the {what} {text!r} is not in the prompt {self.text!r}: copy it from there, with its case"
            )
        inside = [i for i, (a, b) in enumerate(self.spans) if a < place + len(text) and b > place]
        return inside[0], inside[-1] + 1


def read_prompt(
    model: Model, prompt: str | Sequence[int], *, prepend_bos: bool | None = None, what: str = "prompt"
) -> Prompt:
    """Check a prompt, text or ids, and tokenise it; ids are taken as they are.

    Raises ValueError in one sentence for a prompt that is empty, holds special tokens only or does not fit.
    """
    ids, _ = model.split(prompt, None, prepend_bos=prepend_bos)
    if len(ids) == 0:
        raise ValueError(f"the {what} is empty: write at least one word")
    if all(model.is_special(ids)):
        raise ValueError(f"the {what} holds only special tokens, which have no words to look at: add some text")
    if len(ids) > model.n_ctx:
        raise ValueError(
            f"the {what} has {len(ids)} tokens and the model reads {model.n_ctx}: "
            f"shorten it by at least {len(ids) - model.n_ctx}"
        )
    offset = int(model.bos_token_id is not None and ids[0] == model.bos_token_id)
    text = prompt if isinstance(prompt, str) else ""
    return Prompt(model, tuple(ids), offset, token_spans(model, prompt, len(ids) - offset), text)


def token_spans(model: Model, prompt: str | Sequence[int], count: int) -> tuple[tuple[int, int], ...] | None:
    """Characters [start, end) of each of the ``count`` shown tokens; None where the prompt is no text."""
    if not isinstance(prompt, str):
        return None
    spans = tuple(model.token_spans(prompt))
    if len(spans) == count + 1:  # the text itself begins with the BOS
        spans = spans[1:]
    return spans if len(spans) == count else None


def single_token(model: Model, given: str | int, *, what: str = "target") -> int:
    """The id of one token, given as text or id; ValueError that names the pieces of a longer text."""
    if isinstance(given, str):
        ids = model.tokens(given, prepend_bos=False)
        if len(ids) == 1:
            return int(ids[0])
        if not ids:
            raise ValueError(f"the {what} is empty: give the text of one token, or an id")
        pieces = ", ".join(repr(piece) for piece in model.token_strings(ids))
        advice = "give a shorter text or an id"
        if not given.startswith(" ") and len(model.tokens(" " + given, prepend_bos=False)) == 1:
            advice = f"with a space in front, {' ' + given!r}, it is one"
        raise ValueError(f"the {what} must be one token, {given!r} is {len(ids)} ({pieces}): {advice}")
    token = whole_number(given, f"the {what}, where it is no text,")
    if not 0 <= token < model.d_vocab:
        raise ValueError(f"the {what} must be in 0..{model.d_vocab - 1} for this vocabulary, got {token}")
    return token


def whole_number(given: Any, what: str) -> int:
    """An index as an int, where 1.5 would else be cut off; TypeError for all but whole numbers."""
    try:
        found = operator.index(given)
    except TypeError as error:
        raise TypeError(f"{what} must be a whole number, got {given!r}") from error
    if isinstance(given, bool):
        raise TypeError(f"{what} must be a whole number, got {given!r}")
    return found
