"""Exercises of the lesson on ablation."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Place, Whole


def largest(values):
    """Row and column of the largest number."""
    return np.unravel_index(np.argmax(values), np.shape(values))


def states(its):
    """(layers, positions) what putting back each state brings."""
    return its.trace.effect[its.trace.kinds.index("state")]


EXERCISES = {
    1: Exercise(
        Place(("layer", "position")),
        lambda its: largest(its.swapped.of("attn")),
        (
            "A large effect means that the difference falls a lot without this part.",
            "Look for the largest number of the first table: its row is the layer, its column the position.",
            "np.unravel_index turns the index that argmax gives into (row, column).",
        ),
        (
            Wrong(lambda its: largest(its.swapped.of("attn"))[::-1], "The layer comes first: rows are layers."),
            Wrong(
                lambda its: largest(-its.swapped.of("attn")),
                "That is the most negative effect: there the part got in the way.",
            ),
            Wrong(
                lambda its: (largest(its.swapped.of("attn"))[0] + 1, largest(its.swapped.of("attn"))[1]),
                "Layers are counted from 0.",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: its.share_right(its.order[:2]),
        (
            "share_right takes a list of heads and resamples them together.",
            "order has all heads, strongest effect first.",
            "The two strongest are order[:2].",
        ),
        (
            Wrong(lambda its: its.share_right(its.order[:1]), "That is the strongest head alone. Resample two."),
            Wrong(
                lambda its: its.share_right(its.order[1:3]),
                "Those are the second and the third: the order begins at 0.",
            ),
            Wrong(
                lambda its: its.share_right(its.order[-2:]),
                "So many are right with the two weakest heads resampled, and wrong with the two strongest.",
            ),
        ),
    ),
    3: Exercise(
        Whole(),
        lambda its: np.sum(states(its) >= its.trace.clean / 2),
        (
            "The kind 'state' of trace.effect holds what each state brings back.",
            "Which of these numbers reach half of trace.clean?",
            "The sum of a comparison counts where it holds.",
        ),
        (
            Wrong(
                lambda its: np.sum(its.trace.effect >= its.trace.clean / 2),
                "Other kinds are among those, attention and MLPs. States alone are asked for.",
            ),
            Wrong(lambda its: np.sum(states(its) > 0), "Those bring back anything at all."),
            Wrong(
                lambda its: np.sum(states(its) < its.trace.clean / 2),
                "Those bring back less than half.",
            ),
        ),
    ),
}
