"""Exercises of the lesson on attention."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Place, Whole, Word


def largest(values):
    """(layer, head) of the largest number."""
    return np.unravel_index(np.argmax(values), values.shape)


def busy(its, attention=0.9, nats=0.01):
    """Heads with so much attention on one token whose removal changes less."""
    return sum(row.max() >= attention and abs(its.removed[place]) < nats for place, row in its.rows.items())


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
        Word(("q", "k", "v")),
        lambda its: max("qkv", key=its.carried),
        (
            "Call carried with each of the three letters.",
            "A large number means that the answer is lost by way of this input.",
            "Head 1.1 looks for a token that has an eta before it: what of a token is looked at?",
        ),
        (
            Wrong(lambda its: "q", "Queries say what the last token looks for. Is anything lost by way of them?"),
            Wrong(lambda its: "v", "Values say what is copied, and that is *psi*. Is anything lost by way of them?"),
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
