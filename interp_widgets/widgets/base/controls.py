"""Traits and small helpers that the controls of several panels share."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import ipywidgets as W
import traitlets as T

from interp_widgets.arguments import LONGEST_MESSAGE, message_of, short
from interp_widgets.atomic import at_home
from interp_widgets.models.chat import ChatText, is_chat

from .guard import ui_lock


class Worded(T.HasTraits):
    """Base of what has options: a value that an option cannot have is a TraitError or ValueError of one sentence.

    Options change under the drawing lock, so that a value set while another thread draws is not undone by that drawing.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._traits:
            super().__setattr__(name, value)
            return
        before = self._trait_values.get(name)
        try:
            with ui_lock:
                super().__setattr__(name, value.tolist() if hasattr(value, "tolist") else value)  # of numpy and torch
        except Exception as error:
            if self._trait_values.get(name) is not before:
                raise  # it has been accepted, and whoever responds to it has failed
            ours = isinstance(error, T.TraitError | ValueError) and not _is_of_traitlets(error)
            if ours and len(message_of(error)) < LONGEST_MESSAGE:
                raise  # else it writes out a long value, or is of comparing, counting or hashing one
            allowed = _allowed(self.traits()[name])
            raise T.TraitError(f"{name} of {type(self).__name__} must be {allowed}, got {short(value)}") from error


def _is_of_traitlets(error: BaseException) -> bool:
    """Whether the words of an error are those of traitlets."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("traitlets.")


def _allowed(trait: Any) -> str:
    """What values a trait takes, in words."""
    words, inner = str(trait.info()), getattr(trait, "_trait", None)
    if inner is not None:  # of the entries of a list
        return f"{words} in which each is {_allowed(inner)}"
    ends = (getattr(trait, name, None) for name in ("min", "max"))
    low, high = (f"{end:,.15g}" if isinstance(end, int | float) and math.isfinite(end) else "" for end in ends)
    if low and high:
        return f"{words} in {low}..{high}"
    return f"{words} of {low or high} or {'more' if low else 'less'}" if low or high else words


LARGEST_INT = 2**53
"""The largest integer that a browser, a table and a float hold exactly."""


class Whole(T.Int[Any, Any]):
    """A trait for an integer, such as an index or a count; True is none, nor is what no browser could show."""

    def validate(self, obj: Any, value: Any) -> int:
        if isinstance(value, bool):
            self.error(obj, value)
        number: int = super().validate(obj, value)
        if abs(number) > LARGEST_INT:
            raise T.TraitError(f"{self.name} of {type(obj).__name__} must be within ±2**53, got {short(value)}")
        return number


class Span(T.List[int]):
    """A trait for a span [start, end) of tokens, or none, which is empty."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(Whole(), **keywords)

    def validate(self, obj: Any, value: Any) -> list[int]:
        span: list[int] = super().validate(obj, value)
        if span and not _is_span(span):
            raise T.TraitError(f"{self.name} must be [start, end) with 0 <= start < end, or empty, got {short(span)}")
        return span


class Spans(T.List[list[int]]):
    """A trait for any number of spans [start, end) of tokens."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(T.List(Whole()), **keywords)

    def validate(self, obj: Any, value: Any) -> list[list[int]]:
        spans: list[list[int]] = super().validate(obj, value)
        if not all(map(_is_span, spans)):
            raise T.TraitError(f"{self.name} must be spans [start, end) with 0 <= start < end, got {short(spans)}")
        return spans


def _is_span(value: Sequence[int]) -> bool:
    return len(value) == 2 and 0 <= value[0] < value[1]


class Number(T.Float):
    """A trait for a number; True is none, and a NaN, which no bound keeps out, is refused."""

    def validate(self, obj: Any, value: Any) -> float:
        if isinstance(value, bool) or (isinstance(value, int) and abs(value) > LARGEST_INT):
            self.error(obj, value)
        number: float = super().validate(obj, value)
        if number != number:
            raise T.TraitError(f"{self.name} of {type(obj).__name__} must be a number, got nan")
        return number


def in_words(low: float | None, high: float | None) -> str:
    """What must be true of a number between two ends, either of which may be missing.

    >>> in_words(0, 5), in_words(1, None), in_words(None, 0.5)
    ('in 0..5', '1 or more', '0.5 or less')
    """
    if low is None or high is None:
        return f"{high:g} or less" if low is None else f"{low:g} or more"
    return f"in {low:g}..{high:g}"


class Bounded(W.DOMWidget):
    """A control for a number that refuses what a page sends from outside of its ends; ipywidgets takes the nearest."""

    min: Any
    max: Any
    refuse: Callable[[float], object] | None = None
    """Called with the number."""

    def set_state(self, sync_data: Any) -> None:
        value = sync_data.get("value") if isinstance(sync_data, dict) else None
        if isinstance(value, int | float) and not self.min <= value <= self.max:
            sync_data = {name: sent for name, sent in sync_data.items() if name != "value"}
            if self.refuse is not None:
                self.refuse(value)
            self.send_state("value")
        super().set_state(sync_data)


class WholeSlider(Bounded, W.IntSlider):
    """A slider for a whole number."""


class NumberSlider(Bounded, W.FloatSlider):
    """A slider for a number."""


class WholeBox(Bounded, W.BoundedIntText):
    """A box with a whole number."""


class NumberBox(Bounded, W.BoundedFloatText):
    """A box with a number."""


LONGEST_TEXT = 200_000
"""Most characters of a text on a panel; longer ones, pasted by accident, are refused before they are tokenized."""


def checked_text(text: str, what: str) -> str:
    """The text that a user has typed; ValueError if it is too long or is not valid Unicode."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{what} may have {LONGEST_TEXT:,} characters, got {len(text):,}: shorten it")
    try:
        text.encode("utf8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be valid Unicode, but its character {error.start} is {text[error.start]!a}, one half of a "
            "surrogate pair: remove it"
        ) from error
    return text


class TextLine(W.Text):
    """A box of one line. What a browser sends is not sent back: no message could hold half a surrogate pair."""

    value = T.Unicode("").tag(sync=True, echo_update=False)


class TextLines(W.Textarea):
    """A box of several lines. What a browser sends is not sent back."""

    value = T.Unicode("").tag(sync=True, echo_update=False)


LONGEST_PATH = 4096
"""Bytes, as on Linux."""
LONGEST_NAME = 255
"""Bytes of one part of a path."""


def checked_path(text: str, what: str) -> str:
    """A path that a user has typed, stripped of spaces; ValueError if no file can have that name."""
    path = checked_text(text, what).strip()
    if "\0" in path:
        raise ValueError(f"{what} is not a valid file name: it must not contain a NUL character")
    parts = [len(part.encode("utf8")) for part in path.split("/")]
    if len(path.encode("utf8")) > LONGEST_PATH or max(parts) > LONGEST_NAME:
        raise ValueError(f"{what} is not a valid file name: shorten it")
    at_home(path, what)
    return path


def chat_text(models: Sequence[Any], messages: Any) -> ChatText:
    """The messages as the template of the models writes them: the last one's that has a template, as tuned ones do.

    Raises ValueError in one sentence where none has one, or it refuses the messages.
    """
    if isinstance(messages, ChatText):
        return messages
    if not models:
        raise ValueError("the panel is closed and has no chat template: open a new one")
    writer = next((model for model in reversed(models) if model.chat_template is not None), models[-1])
    return ChatText(writer.chat(messages))


class Typed(T.Unicode[str, str]):
    """A trait for a text that a user types or pastes; see `checked_text`. The messages of a chat become their text."""

    def validate(self, obj: Any, value: Any) -> str:
        try:
            text: str = super().validate(obj, chat_text(obj.models, value) if is_chat(value) else value)
            return checked_text(text, str(self.name))
        except (ValueError, TypeError) as error:
            raise T.TraitError(str(error)) from error


class TypedList(T.List[str]):
    """A trait for texts that a user types; the limits of a text hold for all of them together.

    With a `count`, there are that many or none.
    """

    def __init__(self, default_value: Any = (), *, count: int | None = None, **keywords: Any) -> None:
        super().__init__(T.Unicode(), default_value=list(default_value), **keywords)
        self.count = count

    def validate(self, obj: Any, value: Any) -> list[str]:
        texts: list[str] = super().validate(obj, value)
        if self.count is not None and len(texts) not in (0, self.count):
            raise T.TraitError(f"{self.name} must be {self.count} texts or none, got {short(texts)}")
        try:
            checked_text("\n".join(texts), str(self.name))
        except ValueError as error:
            raise T.TraitError(str(error)) from error
        return texts


class ListOf(T.Tuple):
    """A trait for objects of one class, or one of them, kept as a tuple."""

    def __init__(self, kind: type, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.kind = kind

    def validate(self, obj: Any, value: Any) -> Any:
        items = (value,) if isinstance(value, (self.kind, str)) or not isinstance(value, Iterable) else tuple(value)
        wrong = [item for item in items if not isinstance(item, self.kind)]
        if wrong:
            raise T.TraitError(
                f"{self.name} must be a list of {self.kind.__name__} objects, got {short(wrong[0])} in it"
            )
        return items


def row(*children: Any) -> W.HBox:
    """Controls in a row that wraps."""
    box = W.HBox(list(children))
    box.add_class("iw-row")
    return box


def instruction(text: str) -> str:
    """An instruction to the user, shown on the screen but not in a saved page, where nothing would respond."""
    return f"<span class='iw-instruction'>{escape(text)}</span>"


def shown_if(widget: Any, condition: bool) -> None:
    """Show or hide a control."""
    (widget.remove_class if condition else widget.add_class)("iw-hidden")
