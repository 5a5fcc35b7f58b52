"""Exercises of the lesson on saliency."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Numbers, Whole
from interp_widgets import normalize_importance


def scaled(its, *, largest=True, logarithm=np.log2, two=2.0):
    """The instruction score of the base model's response, or what is nearly that."""
    density = its.steady / its.steady.max() if largest else its.steady
    return density[its.mask].sum() / logarithm(two + its.mask.sum())


EXERCISES = {
    1: Exercise(
        Whole(),
        lambda its: its.result.importance[:, 0].argmin(),
        (
            "A removal that raises a probability has a negative importance.",
            "Column 0 of result.importance belongs to the first response token: look for its smallest number.",
            "argmin() of a column gives the index of its smallest number.",
        ),
        (
            Wrong(
                lambda its: its.result.importance[:, 0].argmax(),
                "Without that token the probability falls most. It is to rise: importance below 0.",
            ),
            Wrong(
                lambda its: np.abs(its.result.importance[:, 0]).argmin(),
                "Without that token the probability hardly moves. The most negative number is asked for.",
            ),
            Wrong(
                lambda its: its.result.importance[:, 0].argmin() + 1,
                "One too many: the tokens of a result are counted from 0, without a beginning-of-sequence token.",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: np.mean(its.top_tokens("first_order") == its.top_tokens("exact")),
        (
            "Each method names one prompt token per case.",
            "top_tokens(method) is that list. Compare two of them, place by place.",
            "The mean of a comparison is the share of places at which it holds.",
        ),
        (
            Wrong(
                lambda its: np.mean(its.top_tokens("integrated_gradients") == its.top_tokens("exact")),
                "Those are integrated gradients and exact.",
            ),
            Wrong(
                lambda its: np.sum(its.top_tokens("first_order") == its.top_tokens("exact")),
                "That is how many. The share divides by the number of cases.",
            ),
            Wrong(
                lambda its: np.mean(its.top_tokens("first_order") != its.top_tokens("exact")),
                "That is how often they disagree.",
            ),
            Wrong(
                lambda its: np.mean(its.top_tokens("random") == its.top_tokens("exact")),
                "That is what random scores get beside exact.",
            ),
        ),
    ),
    3: Exercise(
        Numbers(),
        lambda its: normalize_importance(np.array(its.column), levels=5, threshold=2).ravel(),
        (
            "Three steps: divide, round, cut.",
            "Divide by the largest number, multiply by L, round up. Negative importance is 0.",
            "A level that is equal to b is cut as well: only what is above b stays.",
        ),
        (
            Wrong(lambda its: [5, 4, 2, 0], "The third score is 2, and 2 is not above b: cut it."),
            Wrong(lambda its: [5, 3, 0, 0], "Round up, not down: 5 · 0.75 = 3.75."),
            Wrong(lambda its: [5, 4, 0, 3], "A negative importance counts as 0; its size does not matter."),
            Wrong(lambda its: [3, 0, 0, 0], "Divide by the largest number of the column, not by their sum."),
        ),
    ),
    4: Exercise(
        Number(),
        scaled,
        (
            "The sum goes over the instruction's tokens alone; mask says which they are.",
            "Two divisions: of every density by the largest one, and of the sum by a logarithm.",
            "The logarithm is to the base of 2, of two more than there are instruction tokens.",
        ),
        (
            Wrong(lambda its: scaled(its, largest=False), "Divide by the largest density of the prompt as well."),
            Wrong(lambda its: scaled(its, logarithm=np.log), "The logarithm is to the base of 2."),
            Wrong(
                lambda its: scaled(its, two=0.0), "The logarithm is of two more than the number of instruction tokens."
            ),
            Wrong(
                lambda its: (its.steady / its.steady.max()).sum() / np.log2(2 + its.mask.sum()),
                "The sum goes over the tokens where mask is true, not over all.",
            ),
        ),
    ),
    5: Exercise(
        Whole(),
        lambda its: np.sum(its.score_of("tuned") > its.score_of("base")),
        (
            "score_of(name) has a number per case, the same cases in the same order for both models.",
            "Compare the two lists element by element, and count.",
            "np.sum of a comparison counts where it holds.",
        ),
        (
            Wrong(
                lambda its: np.sum(its.score_of("base") > its.score_of("tuned")),
                "Those are the cases in which base has more.",
            ),
            Wrong(
                lambda its: np.sum(its.score_of("tuned") > 0),
                "In those tuned has a score at all. Compare it with that of base on the same prompt.",
            ),
            Wrong(lambda its: len(its.score_of("tuned")), "That is the number of all cases."),
        ),
    ),
}
