"""Exercises of the lesson on concepts."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole
from interp_widgets import neighbors


def near(its, k, found=None):
    """How many of the k concepts nearest to piano are instruments."""
    return its.instruments(name for name, _ in neighbors(found or its.tuned, "piano", k))


EXERCISES = {
    1: Exercise(
        Number(percent=True),
        lambda its: its.told(its.discriminant),
        (
            "told(...) takes directions and gives the share.",
            "Directions made by the discriminant have been computed just above.",
            "They are in discriminant.",
        ),
        (
            Wrong(lambda its: its.told(its.base), "Those are the mean differences of the base model."),
            Wrong(lambda its: its.told(its.tuned), "Those are the mean differences of the tuned model."),
            Wrong(lambda its: np.median(its.discriminant.auc), "That is the median AUC. What share has 0.9 or more?"),
        ),
    ),
    2: Exercise(
        Whole(),
        lambda its: near(its, 10),
        (
            "neighbors(tuned, 'piano', 10) lists names with their cosines.",
            "instruments(names) counts the instruments among names.",
            "Give it the names alone: (name for name, _ in ...).",
        ),
        (
            Wrong(
                lambda its: its.instruments(its.near_on_the_map("piano")),
                "That is what the map says. Ask the directions.",
            ),
            Wrong(lambda its: near(its, 5), "Those are among the nearest five."),
            Wrong(
                lambda its: sum(group == "instruments" for group in its.tuned.groups),
                "That is how many instruments there are in all.",
            ),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: (its.jobs[:, 0] - its.jobs[:, 1]).mean(),
        (
            "jobs has a row per occupation: its own direction first, the random one second.",
            "Take the control off, occupation by occupation.",
            "Then take the mean.",
        ),
        (
            Wrong(
                lambda its: its.jobs[:, 0].mean(), "That is against the model as it is. Take the random direction off."
            ),
            Wrong(lambda its: its.jobs[:, 1].mean(), "That is the random direction."),
            Wrong(lambda its: (its.jobs[:, 1] - its.jobs[:, 0]).mean(), "The other way round: own minus random."),
            Wrong(lambda its: (its.animals[:, 0] - its.animals[:, 1]).mean(), "Those are the animals."),
        ),
    ),
}
