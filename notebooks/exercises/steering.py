"""Exercises of the lesson on steering and erasing."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Built, Number, Whole
from interp_widgets import steer

MOST = 0.4
"""Nats by which a push may raise the loss of the other text."""


def last_layer(its):
    """The last layer at which the push at the country turns the answer."""
    return max(layer for layer, lead in zip(its.layers, its.leads[0], strict=True) if lead > 0)


PREDICTIONS = {1: Prediction(Whole(), last_layer, "behind it nobody reads the country at its place.")}


def as_much(its, row=2):
    """How many random pushes do at least as much as the one along France."""
    return int((its.sweep.random_probability[row] >= its.sweep.word_probability[row]).sum())


def along_japan(its, layer, gaps):
    """A function that gives a push along Japan."""
    strength = float(gaps * its.found.gap[its.found.index("Tokyo")])
    return lambda: steer(its.model, its.found.direction("Tokyo"), layer=layer, strength=strength)


def says(its, push):
    """The likeliest next word for Germany's capital inside a context."""
    with push():
        logits = its.model.run(its.model.tokens("The capital of Germany is")).logits[0, -1]
    return its.model.token_strings([int(logits.argmax())])[0].strip()


def cost(its, push):
    """How much more the other text surprises the model inside a context."""
    with push():
        return its.surprise(its.model, its.other) - its.plain


def works(push, its):
    return says(its, push) == "Tokyo" and cost(its, push) <= MOST


def more_from_its_own(its):
    own = np.eye(len(its.lost), dtype=bool)
    return its.lost[own].mean() - its.lost[~own].mean()


EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: its.sweep.p[2],
        (
            "Row 2 of both tables is the strength of one gap.",
            "Count the random pushes that do at least as much as the one along France, and count that one too.",
            "Divide by 20: 19 random pushes and the one itself.",
        ),
        (
            Wrong(
                lambda its: as_much(its) / 19,
                "No permutation gives a p of 0: the push itself is one of the pushes that were tried.",
            ),
            Wrong(lambda its: 1 / 19, "There are 20 pushes, with the one along France."),
            Wrong(lambda its: 1 - its.sweep.p[2], "That is the share of pushes that do less."),
            Wrong(lambda its: its.sweep.word_probability[2], "That is the probability of the word."),
        ),
    ),
    2: Exercise(
        Built(works, "A function without arguments that gives a context is asked for;"),
        lambda its: along_japan(its, 22, 0.8),
        (
            "Which layers still act on the country, and what does a push in an early layer cost?",
            "Every layer behind the push has to make do with it: push as late as it still works.",
            "Try layers 22 and 23 with a little less than found.gap[found.index('Tokyo')].",
        ),
        (
            Wrong(
                lambda its: along_japan(its, 16, 1),
                "It says Tokyo, and the other text costs more than 0.4 nats. Push later, or less.",
                lambda push, its: says(its, push) == "Tokyo",
            ),
            Wrong(
                lambda its: along_japan(its, 26, 1),
                "The capital is as before. Has the country been read when you push?",
                lambda push, its: says(its, push) == "Berlin",
            ),
            Wrong(
                lambda its: along_japan(its, 16, 3),
                "The model says neither Tokyo nor Berlin any more: that is too strong.",
                lambda push, its: says(its, push) not in ("Tokyo", "Berlin"),
            ),
        ),
    ),
    3: Exercise(
        Number(),
        more_from_its_own,
        (
            "A country's own capital is on the diagonal of lost.",
            "np.eye(8, dtype=bool) picks the diagonal, and ~ of it the rest.",
            "Subtract the mean of the rest from the mean of the diagonal.",
        ),
        (
            Wrong(lambda its: np.diag(its.lost).mean(), "That is what its own capital loses. Take off the others'."),
            Wrong(
                lambda its: np.diag(its.lost).mean() - its.lost.mean(),
                "The mean of the whole table has the diagonal in it.",
            ),
            Wrong(
                lambda its: its.lost[0, 0] - its.lost[0, 1:].mean(),
                "That is France alone. All eight are asked for.",
            ),
            Wrong(lambda its: -more_from_its_own(its), "lost counts what is lost as positive."),
        ),
    ),
}
