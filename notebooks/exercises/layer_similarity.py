"""Exercises of the lesson on layer similarity."""

from __future__ import annotations

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole


def difference(its):
    """(tasks, layers) tuned minus base."""
    return its.tuned.cka - its.base.cka


EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: 192 * 9,
        (
            "Solve 1 / (1 + n / 192) = 0.1 for n.",
            "1 + n / d has to be 10.",
            "So n / d is 9.",
        ),
        (
            Wrong(lambda its: 192 * 10, "1 + n / d has to be 10, so n / d is one less."),
            Wrong(lambda its: 192 / 9, "n / d is 9, not d / n."),
            Wrong(lambda its: 192 * 0.1, "With so few texts the CKA is near 1: n stands in the denominator."),
        ),
    ),
    2: Exercise(
        Whole(),
        lambda its: (difference(its) > 0)[its.known, -1].sum(),
        (
            "cka has a row per task and a column per layer; known says which tasks it was tuned on.",
            "Compare tuned.cka with base.cka.",
            "Take the rows known and the last column, and count.",
        ),
        (
            Wrong(lambda its: (difference(its) > 0)[:, -1].sum(), "Tasks that it was never tuned on are among those."),
            Wrong(
                lambda its: (difference(its) < 0)[its.known, -1].sum(), "For those the base is more like the control."
            ),
            Wrong(lambda its: (difference(its) > 0)[its.known].all(axis=1).sum(), "For those it is so at every layer."),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: difference(its)[~its.known, -1].mean(),
        (
            "mossa_sections(base, tuned, unseen=True) fits the unseen tasks.",
            "Its difference has a number per layer.",
            "The last one is at -1.",
        ),
        (
            Wrong(
                lambda its: difference(its)[its.known, -1].mean(),
                "That is of the tasks that it was tuned on: set unseen=True.",
            ),
            Wrong(lambda its: -difference(its)[~its.known, -1].mean(), "Tuned minus base, not the other way round."),
            Wrong(
                lambda its: difference(its)[~its.known].mean(), "That is over all layers. The last one is asked for."
            ),
        ),
    ),
}
