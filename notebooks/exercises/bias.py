"""Exercises of the lesson on bias."""

from __future__ import annotations

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole


def way(its, name="LEACE", domain="gender"):
    """Share of the way from an SS of 100 to 50."""
    return (100 - its.rows[name].domain(domain).ss) / 50


EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: 92.79 * (100 - 68.55) / 50,
        (
            "The formula is in the list above.",
            "The smaller of SS and 100 − SS counts.",
            "Multiply by LMS and divide by 50.",
        ),
        (
            Wrong(lambda its: 92.79 * 68.55 / 50, "SS is above 50: take 100 − SS."),
            Wrong(lambda its: 0.9279 * (100 - 68.55) / 50, "LMS is in percent, and so is ICAT."),
            Wrong(lambda its: 92.79 * (100 - 68.55) / 100, "Divide by 50, so that no preference gives 1."),
        ),
    ),
    2: Exercise(
        Whole(),
        lambda its: (its.neurons.cosine > its.neurons.chance[:, None]).sum(),
        (
            "neurons.cosine has a row per probe, neurons.chance a number per probe.",
            "Compare each row with its own number.",
            "chance[:, None] makes a column of the numbers.",
        ),
        (
            Wrong(lambda its: its.neurons.cosine.size, "Those are all of them."),
            Wrong(
                lambda its: (its.neurons.cosine <= its.neurons.chance[:, None]).sum(),
                "Those are not above chance.",
            ),
            Wrong(lambda its: len(its.neurons.chance), "That is how many probes there are."),
        ),
    ),
    3: Exercise(
        Number(percent=True),
        way,
        (
            "rows['LEACE'].domain('gender').ss is where it ended.",
            "It began at 100: how far did it come?",
            "The way from 100 to 50 is 50 points long.",
        ),
        (
            Wrong(lambda its: way(its) / 2, "The way from 100 to 50 is 50 points long, not 100."),
            Wrong(lambda its: 1 - way(its), "That is the part which is left."),
            Wrong(lambda its: way(its, "Subtraction"), "That is Subtraction."),
        ),
    ),
}
