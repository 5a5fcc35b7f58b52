"""Exercises of the lesson on a probe of one's own."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Place


def at(index, values):
    """(layer, head) of an index into the flattened table."""
    return np.unravel_index(index, values.shape)


EXERCISES = {
    1: Exercise(
        Place(),
        lambda its: at(its.entropy.values.argmin(), its.entropy.values),
        (
            "The most focused head has the smallest entropy.",
            "entropy.values has a row per layer and a column per head.",
            "np.unravel_index turns what argmin() gives into (row, column).",
        ),
        (
            Wrong(lambda its: at(its.entropy.values.argmax(), its.entropy.values), "That head attends most broadly."),
            Wrong(lambda its: at(its.entropy.values.argmin(), its.entropy.values)[::-1], "The layer comes first."),
            Wrong(
                lambda its: tuple(1 + np.array(at(its.entropy.values.argmin(), its.entropy.values))),
                "Both are counted from 0.",
            ),
        ),
    ),
    2: Exercise(
        Number(),
        lambda its: np.log(len(its.model.tokens(its.prompt))),
        (
            "The formula is in section 1.",
            "model.tokens(prompt) are the tokens that the model is fed. How many are they?",
            "Nats are of the natural logarithm, np.log.",
        ),
        (
            Wrong(
                lambda its: np.log2(len(its.model.tokens(its.prompt))),
                "Those are bits. Nats are of the natural logarithm.",
            ),
            Wrong(
                lambda its: np.log(len(its.model.tokens(its.prompt)) - 1),
                "The beginning-of-sequence token can be looked at too.",
            ),
            Wrong(
                lambda its: np.log(its.model.d_vocab),
                "That is over the vocabulary. A head chooses among the tokens of the prompt.",
            ),
            Wrong(
                lambda its: len(its.model.tokens(its.prompt)), "That is how many tokens there are. Take the logarithm."
            ),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: its.mixed.bag_of_words.mean() - its.apart.bag_of_words.mean(),
        (
            "Both results have an accuracy of the bag of words per seed and fold.",
            "mixed was made without groups, apart with them.",
            "Take the mean of bag_of_words of each, and subtract.",
        ),
        (
            Wrong(
                lambda its: its.mixed.accuracy - its.apart.accuracy,
                "That is of the hidden states. Ask the bag of words.",
            ),
            Wrong(
                lambda its: its.apart.bag_of_words.mean() - its.mixed.bag_of_words.mean(),
                "The other way round: what does leaving the groups out add?",
            ),
            Wrong(
                lambda its: its.mixed.bag_of_words.mean(),
                "That is what it reaches. How much is that more than with groups?",
            ),
        ),
    ),
}
