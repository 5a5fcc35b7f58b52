"""What an exercise asks for: a number, a place, a word, something built. Each kind reads an answer in every form that a
student may write it in, refuses other forms with a sentence, and says when two answers are the same.

One rule for numbers, on every page: **three significant digits are enough**, or as many as the exercise asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class OtherForm(Exception):
    """The answer is of another form than the one asked for; the text says which that is."""


class Kind(Protocol):
    """A kind of answers."""

    def read(self, answer: Any) -> Any:
        """The answer in one form.

        Raises:
            OtherForm: it is of another kind.
        """

    def same(self, answer: Any, right: Any) -> bool:
        """Whether an answer that was read says what the right one says."""

    def right_forms(self, right: Any) -> list[Any]:
        """Ways to write the right answer, all of which are accepted: three or more."""

    def wrong_forms(self, right: Any) -> list[Any]:
        """What is near the right answer and is not it: five or more, none of which is accepted."""


def _scalar(answer: Any) -> float:
    """A single finite number; not a text, a list, or true and false."""
    if isinstance(answer, bool | np.bool_ | str | bytes) or answer is None:
        raise OtherForm
    try:
        array = np.asarray(answer, dtype=float)  # a tensor too
    except (TypeError, ValueError):
        raise OtherForm from None
    if array.ndim or not np.isfinite(array):
        raise OtherForm
    return float(array)


def _whole(answer: Any) -> int:
    value = _scalar(answer)
    if not value.is_integer():
        raise OtherForm
    return int(value)


def _items(answer: Any) -> list[Any]:
    """What a list, a tuple or an array holds."""
    if isinstance(answer, str | bytes | dict) or not hasattr(answer, "__len__") or not hasattr(answer, "__iter__"):
        raise OtherForm
    return list(answer)


def _unit(value: float, digits: int) -> float:
    """The value of the last of so many significant digits."""
    return 10.0 ** ((math.floor(math.log10(abs(value))) if value else 0) - digits + 1)


def _equal(answer: float, right: float, digits: int) -> bool:
    return abs(answer - right) <= _unit(right, digits) * (0.5 + 1e-6)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class Number:
    """One number, as near as rounding to `digits` significant digits leaves it."""

    digits: int = 3
    percent: bool = False
    """Whether percent are right as well as a share: the exercise does not ask for one of the two."""

    def read(self, answer: Any) -> float:
        try:
            return _scalar(answer)
        except OtherForm:
            raise OtherForm(f"One number is asked for, such as 0.25; {shown(answer)} is none.") from None

    def same(self, answer: float, right: Any) -> bool:
        return any(_equal(answer, float(right) * scale, self.digits) for scale in ((1, 100) if self.percent else (1,)))

    def right_forms(self, right: Any) -> list[Any]:
        value = float(right)
        forms: list[Any] = [value, np.float32(value), np.array(_rounded(value, self.digits))]
        return [*forms, 100 * value, _rounded(100 * value, self.digits)] if self.percent else forms

    def wrong_forms(self, right: Any) -> list[Any]:
        value, unit = float(right), _unit(float(right), self.digits)
        return [value + 2 * unit, value - 2 * unit, math.nan, [value], str(value), True]


@dataclass(frozen=True)
class Whole:
    """A whole number: a count, an index, a layer."""

    def read(self, answer: Any) -> int:
        try:
            return _whole(answer)
        except OtherForm:
            raise OtherForm(f"A whole number is asked for, such as 3; {shown(answer)} is none.") from None

    def same(self, answer: int, right: Any) -> bool:
        return answer == int(right)

    def right_forms(self, right: Any) -> list[Any]:
        return [int(right), float(right), np.int64(right), np.array(right)]

    def wrong_forms(self, right: Any) -> list[Any]:
        return [int(right) + 1, int(right) - 1, int(right) + 0.5, [int(right)], str(right), right == right]


@dataclass(frozen=True)
class Place:
    """Whole numbers in an order, such as (layer, head)."""

    axes: tuple[str, ...] = ("layer", "head")

    def read(self, answer: Any) -> tuple[int, ...]:
        try:
            place = tuple(map(_whole, _items(answer)))
        except OtherForm:
            place = ()
        if len(place) != len(self.axes):
            raise OtherForm(f"({', '.join(self.axes)}) is asked for, whole numbers; {shown(answer)} is not that.")
        return place

    def same(self, answer: tuple[int, ...], right: Any) -> bool:
        return answer == tuple(int(one) for one in right)

    def right_forms(self, right: Any) -> list[Any]:
        place = [int(one) for one in right]
        return [place, tuple(place), np.array(place), tuple(map(float, place))]

    def wrong_forms(self, right: Any) -> list[Any]:
        first, *rest = (int(one) for one in right)
        return [(first + 1, *rest), (first, *rest[:-1], rest[-1] + 1), (first, *rest, 0), first, str((first, *rest))]


@dataclass(frozen=True)
class Word:
    """The text of a token, with or without the space before it, or one of a few words."""

    among: tuple[str, ...] = ()
    """The words to choose from, if there are few."""

    def read(self, answer: Any) -> str:
        if not isinstance(answer, str):
            raise OtherForm(f"A text in quotation marks is asked for; {shown(answer)} is none.")
        word = answer.strip()
        if self.among and word not in self.among:
            raise OtherForm(f"One of {', '.join(map(repr, self.among))} is asked for; {shown(answer)} is none of them.")
        return word

    def same(self, answer: str, right: Any) -> bool:
        return answer == str(right).strip()

    def right_forms(self, right: Any) -> list[Any]:
        word = str(right).strip()
        return [word, f" {word}", f"{word} "]

    def wrong_forms(self, right: Any) -> list[Any]:
        word = str(right).strip()
        return ["", f"{word}s", [word], 3, {"word": word}]


@dataclass(frozen=True)
class Numbers:
    """Several numbers in an order, each as near as rounding leaves it."""

    digits: int = 3

    def read(self, answer: Any) -> tuple[float, ...]:
        try:
            return tuple(map(_scalar, _items(answer)))
        except OtherForm:
            raise OtherForm(f"A list of numbers is asked for; {shown(answer)} is none.") from None

    def same(self, answer: Sequence[float], right: Any) -> bool:
        values = [float(one) for one in right]
        return len(answer) == len(values) and all(map(_equal, answer, values, [self.digits] * len(values)))

    def right_forms(self, right: Any) -> list[Any]:
        values = [float(one) for one in right]
        return [values, tuple(values), np.array(values), [_rounded(one, self.digits) for one in values]]

    def wrong_forms(self, right: Any) -> list[Any]:
        values = [float(one) for one in right]
        moved = values[0] + 2 * _unit(values[0], self.digits)
        return [values[:-1], [*values, 0.0], [moved, *values[1:]], values[0], str(values)]


@dataclass(frozen=True)
class Places:
    """A set of places, such as the heads that matter, in any order."""

    axes: tuple[str, ...] = ("layer", "head")

    def read(self, answer: Any) -> frozenset[tuple[int, ...]]:
        try:
            return frozenset(Place(self.axes).read(one) for one in _items(answer))
        except OtherForm:
            each = f"({', '.join(self.axes)})"
            raise OtherForm(
                f"A list of {each} is asked for, such as [(0, 1), (1, 0)]; {shown(answer)} is none."
            ) from None

    def same(self, answer: frozenset[tuple[int, ...]], right: Any) -> bool:
        return answer == self.read(right)

    def right_forms(self, right: Any) -> list[Any]:
        places = sorted(self.read(right))
        return [places, places[::-1], set(places), np.array(places)]

    def wrong_forms(self, right: Any) -> list[Any]:
        first, *rest = sorted(self.read(right))
        moved = (first[0] + 1, *first[1:])
        return [rest, [moved, *rest], [first, moved, *rest], str([first]), [first[0]], 3]


@dataclass(frozen=True)
class Built:
    """A function, or what else is judged by what it does."""

    passes: Callable[[Any, Any], bool]
    """Whether it does what it should, of what was built and the lesson's names; may raise what a wrong one raises."""
    asked: str

    def read(self, answer: Any) -> Any:
        if not callable(answer):
            raise OtherForm(f"{self.asked} {shown(answer)} is none.")
        return answer

    def same(self, answer: Any, right: Any) -> bool:
        return answer is right

    def right_forms(self, right: Any) -> list[Any]:
        return [right, lambda *given: right(*given), _Wrapped(right)]

    def wrong_forms(self, right: Any) -> list[Any]:
        return [3, "text", [right], lambda: None, lambda *given: None, lambda *given: 1 / 0]


@dataclass(frozen=True)
class _Wrapped:
    """A function as an object."""

    function: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)


def shown(answer: Any) -> str:
    """An answer in a sentence: short."""
    text = repr(answer)
    return text if len(text) <= 60 else f"{type(answer).__name__} of {text[:40]} …"
