"""Judges the exercises of the lessons. The rules stand here and not in the lessons, where they would show the answers.

`check = judge("12_saliency", globals())` gives a lesson its judge, and `check(1, answer_1)` says whether the answer to
exercise 1 is right: with its own words for a wrong way that is easily taken, and otherwise with one hint after the
other. The rules of a lesson are in the module of its name here (`saliency.py`): what is right is computed from what the
lesson has computed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from solved import keep

from exercises.answers import Built, Kind, OtherForm, shown

HINTS = 3
"""Hints of an exercise: a direction, a method, almost there."""
WRONG = 3
"""Wrong ways that an exercise knows, at least."""
NBGRADER = "NBGRADER_EXECUTION"
"""Set where nbgrader runs a notebook: it gives an answer its points unless the cell that checks it raises."""


class Names:
    """The names of a lesson as attributes, as they are now."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise NameError(f"run the cells above first: {name} is not there yet")
        return self._names[name]


@dataclass(frozen=True)
class Wrong:
    """A wrong way that is easily taken."""

    answer: Callable[[Any], Any]
    """What it gives, of the lesson's names."""
    reply: str
    made: Callable[[Any, Any], bool] | None = None
    """Whether an answer was come by in this way, of the answer and the lesson's names; without it, whether it is the
    same answer."""


@dataclass(frozen=True)
class Exercise:
    """What is asked for, what is right, and what to say about an answer that is not."""

    kind: Kind
    right: Callable[[Any], Any]
    """The right answer, of the lesson's names."""
    hints: tuple[str, ...]
    wrong: tuple[Wrong, ...]

    def verdict(self, answer: Any, its: Any) -> Verdict:
        """Whether an answer is right, and the words for it if it is wrong in a way that is known."""
        try:
            read = self.kind.read(answer)
        except OtherForm as refusal:
            return Verdict(False, str(refusal))
        if self._is_right(read, its):
            return Verdict(True)
        return Verdict(False, next((wrong.reply for wrong in self.wrong if self._went(read, wrong, its)), None))

    def _is_right(self, read: Any, its: Any) -> bool:
        if not isinstance(self.kind, Built):
            return self.kind.same(read, self.right(its))
        try:
            return bool(self.kind.passes(read, its))
        except Exception:  # whatever the student's function raises: it does not do what it should
            return False

    def _went(self, read: Any, wrong: Wrong, its: Any) -> bool:
        if wrong.made is None:
            return self.kind.same(read, self.kind.read(wrong.answer(its)))
        try:
            return bool(wrong.made(read, its))
        except Exception:  # the same: it fails in another way
            return False


@dataclass(frozen=True)
class Verdict:
    right: bool
    reply: str | None = None
    """What is wrong about it, where that is known."""


@dataclass(frozen=True)
class Prediction:
    """What is asked for before one looks: any answer of its kind opens the picture."""

    kind: Kind
    right: Callable[[Any], Any]
    meaning: str
    """What the true value says."""


class Judge:
    """Says whether the answers to a lesson's exercises are right."""

    def __init__(
        self,
        exercises: dict[int, Exercise],
        predictions: dict[int, Prediction],
        its: Names,
        solved: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._exercises = exercises
        self._predictions = predictions
        self._its = its
        self._solved = solved
        self._hinted = dict.fromkeys(exercises, 0)

    def __call__(self, number: int, answer: Any) -> None:
        """Say whether the answer to an exercise is right; None means that it waits for you."""
        exercise = _numbered(self._exercises, number, "exercises")
        verdict = None if answer is None else exercise.verdict(answer, self._its)
        if NBGRADER in os.environ:
            if verdict is None or not verdict.right:
                raise AssertionError(
                    "there is no answer" if verdict is None else verdict.reply or "it is another answer"
                )
        elif verdict is None:
            print("Your turn: replace None in the cell above, and run both.")
        elif verdict.right:
            print("Right.")
            self._solved(number)
        elif verdict.reply is not None:
            print(f"Not yet. {verdict.reply}")
        else:
            print("Not yet.", end=" ")
            self.hint(number)

    def hint(self, number: int) -> None:
        """Show the next hint of an exercise: a direction, a method, almost there."""
        hints = _numbered(self._exercises, number, "exercises").hints
        self._hinted[number] = shown_now = min(self._hinted[number] + 1, len(hints))
        print(f"Hint {shown_now} of {len(hints)}: {hints[shown_now - 1]}")

    def predict(self, number: int, guess: Any, show: Callable[[], Any]) -> Any:
        """What `show` gives, as soon as there is a guess; beside it, what the guess would have had to be."""
        prediction = _numbered(self._predictions, number, "predictions")
        if guess is None:
            print("Your guess first: replace None, and the picture opens.")
            return None
        try:
            prediction.kind.read(guess)
        except OtherForm as refusal:
            print(refusal)
            return None
        print(f"You said {shown(guess)}. It is {shown(prediction.right(self._its))}: {prediction.meaning}")
        return show()


def _numbered(parts: dict[int, Any], number: int, what: str) -> Any:
    """The exercise or prediction of a number."""
    if number not in parts:
        there = f"{what} {', '.join(map(str, parts))}" if parts else f"no {what}"
        raise ValueError(f"this lesson has {there}, not {number!r}")
    return parts[number]


def lessons() -> set[str]:
    """The lessons with exercises, by their names without the number."""
    return {path.stem for path in Path(__file__).parent.glob("[a-z]*.py")} - {"answers"}


def rules(lesson: str) -> Any:
    """The module with a lesson's exercises."""
    return importlib.import_module(f"exercises.{lesson.partition('_')[2]}")


def judge(lesson: str, names: dict[str, Any]) -> Judge:
    """The judge of a lesson's exercises, which keeps which of them are solved (`solved`).

    Args:
        lesson: name of its notebook.
        names: the notebook's, `globals()`.
    """
    module = rules(lesson)
    solved = partial(keep, lesson.partition("_")[2])
    return Judge(module.EXERCISES, getattr(module, "PREDICTIONS", {}), Names(names), solved)


def _computed(exercise: Exercise, its: Names) -> Exercise:
    """An exercise whose right and wrong answers are computed once, and not for every answer that is tried."""

    def once(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        value = compute(its)
        return lambda _: value

    wrong = tuple(replace(one, answer=once(one.answer)) for one in exercise.wrong)
    return replace(exercise, right=once(exercise.right), wrong=wrong)


def audit(lesson: str, number: int, names: dict[str, Any]) -> list[str]:
    """What is wrong with an exercise itself, a sentence each, when its lesson has come to it.

    Every way to write the right answer has to be accepted, everything near it refused, and each wrong way that is
    named has to give another answer than the right one and get its own reply.
    """
    its = Names(names)
    exercise = _computed(rules(lesson).EXERCISES[number], its)
    right, faults = exercise.right(its), []
    accepted, refused = exercise.kind.right_forms(right), exercise.kind.wrong_forms(right)
    faults += [f"refuses {shown(form)}" for form in accepted if not exercise.verdict(form, its).right]
    faults += [f"accepts {shown(form)}" for form in refused if exercise.verdict(form, its).right]
    for wrong in exercise.wrong:
        verdict = exercise.verdict(wrong.answer(its), its)
        if verdict.right:
            faults.append(f"accepts a wrong way: {wrong.reply}")
        elif verdict.reply != wrong.reply:
            faults.append(f"says {verdict.reply!r} to a wrong way whose reply is {wrong.reply!r}")
    choices = getattr(exercise.kind, "among", ())  # of a few words all others are wrong ways
    least = {"hints": HINTS, "wrong ways": len(choices) - 1 if choices else WRONG, "right forms": 3, "wrong forms": 5}
    counts = map(len, (exercise.hints, exercise.wrong, accepted, refused))
    faults += [
        f"has {count} {what}, of {wanted}"
        for (what, wanted), count in zip(least.items(), counts, strict=True)
        if count < wanted
    ]
    return faults
