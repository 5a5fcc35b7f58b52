"""Exercises of the lesson on the Mixture of Depths."""

from __future__ import annotations

from exercises import Exercise, Wrong
from exercises.answers import Number


def above(found):
    """(positions,) layers above each token's exit layer."""
    return found.n_layers - 1 - found.exit_layer


EXERCISES = {
    1: Exercise(
        Number(percent=True),
        lambda its: its.hit[:-1, ~its.hit[-1]].any(axis=0).mean(),
        (
            "Look only at the tokens which the last layer gets wrong.",
            "~hit[-1] is true at these. Index the columns of hit with it.",
            "Of the two earlier rows take any(axis=0), then the mean.",
        ),
        (
            Wrong(
                lambda its: its.hit.any(axis=0).mean() - its.hit[-1].mean(),
                "That is a share of all tokens. Divide by those the last layer gets wrong.",
            ),
            Wrong(
                lambda its: its.hit[:-1].any(axis=0).mean(),
                "That counts the tokens which the last layer gets right as well.",
            ),
            Wrong(
                lambda its: its.hit[:-1, ~its.hit[-1]].mean(),
                "That is the mean of the two layers. One of the two is enough.",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: (its.base_loss - its.before["equal"].mean()) / its.gain,
        (
            "A gain is a difference from base_loss.",
            "Two gains are needed: the one that is free, and the router's, which is gain.",
            "before['equal'] has the losses of equal weights on the untrained mixture.",
        ),
        (
            Wrong(
                lambda its: its.before["equal"].mean() / its.after["router"].mean(),
                "Those are losses. What is asked for is how far each of them falls.",
            ),
            Wrong(
                lambda its: its.before["equal"].mean() / its.base_loss,
                "Those are losses. What is asked for is how far they fall, one fall over the other.",
            ),
            Wrong(
                lambda its: (its.base_loss - its.after["equal"].mean()) / its.gain,
                "Those are equal weights on the tuned mixture, whose norms were tuned: not free.",
            ),
            Wrong(
                lambda its: (its.base_loss - its.before["router"].mean()) / its.gain,
                "That is the random router, which does harm. Take equal weights.",
            ),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: above(its.found)[above(its.found) > 0].mean(),
        (
            "found.exit_layer has a layer per token, and found.n_layers - 1 is the last layer.",
            "The layers above the exit layer are the difference of the two.",
            "Leave out the tokens whose difference is 0, then take the mean.",
        ),
        (
            Wrong(
                lambda its: above(its.found).mean(),
                "That is over all tokens. Leave out those that exit at the last layer.",
            ),
            Wrong(
                lambda its: above(its.found)[above(its.found) > 0].mean() + 1,
                "The exit layer itself is computed; count the layers above it.",
            ),
            Wrong(
                lambda its: its.found.exit_layer[above(its.found) > 0].mean() + 1,
                "That is how many layers are computed. Count the others.",
            ),
            Wrong(
                lambda its: above(its.found).mean() / its.found.n_layers,
                "That is a share of all layers, over all tokens. Count layers, of the tokens that exit early.",
            ),
        ),
    ),
}
