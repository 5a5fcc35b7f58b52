"""Exercises of the lesson on circuits."""

from __future__ import annotations

from typing import Any

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Built, Number, Places, Whole
from interp_widgets import ablate_heads, circuit_ranking, circuit_scoreboard, grade_circuit


def finds_heads_of(method: Any, circuit: str) -> bool:
    """Whether a method puts the heads that matter first on a circuit with decoys that no lesson shows."""
    board = circuit_scoreboard([method], [circuit], seed=17)
    return bool(board.average_precision[0, 0, board.kinds.index("heads")] > 1 - 1e-9)


def spread(method: Any) -> float:
    """How far apart the largest and the smallest number are that a method gives the heads of *backup*, as a share."""
    values = circuit_ranking(method, "backup", kind="heads", seed=17).values
    return float(np.ptp(values) / np.abs(values).max())


def removed_with_zero(its: Any) -> tuple[int, int]:
    """The head of the sealed circuit whose removal by zero does most."""
    case = its.sealed.cases[0]
    return ablate_heads(its.sealed.model, case.prompt, case.answer).strongest(1)[0]


def by_heads(values: Any, model: Any) -> dict[str, Any]:
    """What a method gives, of a number per head in one row."""
    return {"heads": np.reshape(values, (model.n_layers, -1))}


def beside(its: Any) -> Any:
    """The method that is asked for: what a head takes beside each other head."""
    return lambda model, case: by_heads((lambda kept: (np.diag(kept) - kept).max(axis=1))(its.kept(model, case)), model)


def places(its: Any) -> list[tuple[int, int]]:
    """All heads of the sealed circuit."""
    return list(np.ndindex(its.sealed.model.n_layers, its.sealed.model.n_heads))


def grade(its: Any, parts: Any) -> Any:
    return grade_circuit(its.sealed, list(parts), draws=1)


def found(its: Any) -> list[tuple[int, int]]:
    """The heads of the sealed circuit that matter."""
    values = beside(its)(its.sealed.model, its.sealed.cases[0])["heads"]
    return [divmod(int(values.argmax()), its.sealed.model.n_heads)]


EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: np.mean(1 / np.arange(1, 9)),
        (
            "The head stands at place 1 to 8, each as often.",
            "What is the precision if it stands at place k?",
            "It is 1/k. Take the mean over the eight places.",
        ),
        (
            Wrong(lambda its: 1 / 8, "That is the precision of all eight together. The list is read from the top."),
            Wrong(lambda its: 1 / 4.5, "That is the precision at the mean place. Take the mean of the precisions."),
            Wrong(lambda its: 1 / 2, "Half is what chance has of an area under a ROC curve, not of a precision."),
        ),
    ),
    2: Exercise(
        Whole(),
        lambda its: sum(its.pairs[i, j] < 0.5 <= min(its.pairs[[i, j], [i, j]]) for i in range(8) for j in range(i)),
        (
            "A pair is to do together what neither of its heads does alone.",
            "pairs[i, j] is what is left without both, pairs[i, i] without head i.",
            "Three conditions: i < j, pairs[i, j] is below 0.5, and neither pairs[i, i] nor pairs[j, j] is.",
        ),
        (
            Wrong(
                lambda its: (its.pairs[np.tril_indices(8, -1)] < 0.5).sum(),
                "In most of those pairs one of the two heads takes the lead alone. Leave them out.",
            ),
            Wrong(lambda its: (its.pairs < 0.5).sum(), "That counts every pair twice, and single heads too."),
            Wrong(lambda its: 2, "Each pair stands in the matrix twice: i beside j is j beside i."),
        ),
    ),
    3: Exercise(
        Built(
            lambda method, its: all(finds_heads_of(method, circuit) for circuit in ("backup", "busy_idle")),
            "A function of (model, case) is asked for that returns {'heads': numbers} of shape (layers, heads);",
        ),
        beside,
        (
            "One head at a time shows nothing on *backup*. Take out two.",
            "What does a head take beside another one? Compare what is kept without the other and without both.",
            "For each head the largest of these differences counts.",
        ),
        (
            Wrong(
                lambda its: lambda model, case: by_heads(1 - its.kept(model, case).min(axis=1), model),
                "Beside a head that takes everything each head takes everything. What does it add to the other?",
                lambda method, its: spread(method) < 0.1,
            ),
            Wrong(
                lambda its: lambda model, case: {"heads": ablate_heads(model, case.prompt, case.answer).effect},
                "On busy_idle it puts a head first that carries nothing. Use values of the corrupted prompt.",
                lambda method, its: not finds_heads_of(method, "busy_idle"),
            ),
            Wrong(
                lambda its: lambda model, case: by_heads(1 - np.diag(its.kept(model, case)), model),
                "On backup it misses heads that replace each other. Take out two at a time.",
                lambda method, its: not finds_heads_of(method, "backup"),
            ),
        ),
    ),
    4: Exercise(
        Places(),
        found,
        (
            "Your method of exercise 3 takes sealed.model and a case.",
            "Which head has its largest number?",
            "A list of pairs is asked for, such as [(0, 1), (1, 0)]; one pair may be enough.",
        ),
        (
            Wrong(
                lambda its: [removed_with_zero(its)],
                "That head does most when it is zero, which it never is. Use its value of the corrupted prompt.",
            ),
            Wrong(
                places,
                "What matters is among them, and something else too. Naming everything always has recall 1.",
                lambda parts, its: grade(its, parts).recall == 1,
            ),
            Wrong(
                lambda its: [one for one in places(its) if one not in (*found(its), removed_with_zero(its))][:1],
                "Nothing of that matters. A head that looks at one word need not move anything that is read.",
                lambda parts, its: grade(its, parts).precision == 0,
            ),
        ),
    ),
}
