"""Exercises of the lesson on where attention looks."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Built, Number, Place, Whole


def largest(values):
    """(layer, head) of the largest number."""
    return np.unravel_index(np.argmax(values), values.shape)


def busy(its, attention=0.9, nats=0.01):
    """Heads with so much attention on one token whose removal changes less."""
    return sum(row.max() >= attention and abs(its.removed[place]) < nats for place, row in its.rows.items())


def right_back(pattern, distance):
    """The mean attention to the token so far back."""
    return np.diagonal(pattern, -distance).mean()


def agrees(back, its, other=right_back):
    """Whether a function gives the same as another on patterns of the model."""
    tried = [its.patterns.pattern(layer, head) for layer in range(0, its.model.n_layers, 3) for head in (0, 1)]
    return all(
        abs(float(back(pattern, distance)) - float(other(pattern, distance))) < 1e-5
        for pattern in tried
        for distance in (1, 2, 3)
    )


def of_rest(its):
    """Share of the heads that rest on the first token."""
    return float(np.mean(its.resting.analysis(its.model, its.text).values > 0.3))


PREDICTIONS = {1: Prediction(Number(percent=True), of_rest, "resting is what most heads do most of the time.")}


def at_the_end(pattern, distance):
    return pattern[-1, -1 - distance]


def forwards(pattern, distance):
    return np.diagonal(pattern, distance).mean()


def over_all_rows(pattern, distance):
    return np.diagonal(pattern, -distance).sum() / len(pattern)


EXERCISES = {
    1: Exercise(
        Place(),
        lambda its: largest(its.known.previous_token),
        (
            "known.previous_token has the axes layer and head.",
            "Look for its largest number.",
            "np.unravel_index turns what argmax() gives into (layer, head).",
        ),
        (
            Wrong(
                lambda its: largest(its.known.duplicate_token),
                "That head looks at an earlier copy of the same token, not at the token before.",
            ),
            Wrong(lambda its: largest(its.known.previous_token)[::-1], "The layer comes first."),
            Wrong(lambda its: tuple(1 + np.array(largest(its.known.previous_token))), "Both are counted from 0."),
        ),
    ),
    2: Exercise(
        Built(agrees, "A function of a pattern and a distance is asked for;"),
        lambda its: right_back,
        (
            "Token i looks at column i - distance.",
            "These cells lie on a diagonal below the main one.",
            "np.diagonal(pattern, -distance) has them; take their mean.",
        ),
        (
            Wrong(
                lambda its: at_the_end,
                "That is the last token alone. Take the mean over all that have one so far back.",
                lambda back, its: agrees(back, its, at_the_end),
            ),
            Wrong(
                lambda its: forwards,
                "That is above the main diagonal: no token looks ahead. Rows look, columns are looked at.",
                lambda back, its: agrees(back, its, forwards),
            ),
            Wrong(
                lambda its: over_all_rows,
                "Divide by the tokens that have one so far back, not by all.",
                lambda back, its: agrees(back, its, over_all_rows),
            ),
        ),
    ),
    3: Exercise(
        Whole(),
        busy,
        (
            "Both must hold for one head: compare the two columns that are printed above line by line.",
            "rows has the attention of each head, removed what its removal does.",
            "Count the heads with max(row) >= 0.9 and abs(removed) < 0.01.",
        ),
        (
            Wrong(
                lambda its: busy(its, nats=np.inf),
                "As many look at one token, and without as many nothing changes. Count those of which both hold.",
            ),
            Wrong(
                lambda its: busy(its, nats=np.inf) - busy(its),
                "Those look at one token and are needed. The others are asked for.",
            ),
            Wrong(lambda its: len(its.rows), "Those are all heads: one of the two holds for each. Both must."),
        ),
    ),
}
