"""Exercises of the lesson on ablation."""

from __future__ import annotations

import numpy as np
import torch

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Number, Place, Whole


def largest(its, way, kind):
    """Layer and position of the largest effect in one of the lesson's maps."""
    found = its.maps[way]
    row, column = np.unravel_index(np.argmax(found.of(kind)), found.of(kind).shape)
    return found.layers[row], found.positions[column]


def with_mean(its, tokens):
    """What Paris loses with the mean over some tokens of the texts, each text's chosen by a slice."""
    return its.effect(torch.cat([output[tokens] for output in its.outputs]).mean(0), its.mlp)


def neither(its, share):
    """Behind how many layers neither state brings back a probability."""
    return np.sum((its.at_country < share) & (its.at_last < share))


PREDICTIONS = {
    1: Prediction(
        Whole(),
        lambda its: np.sum(its.maps["resample"].effect > 1),
        "all others write nearly the same into both sentences, or what they write makes no difference.",
    )
}

EXERCISES = {
    1: Exercise(
        Place(("layer", "position")),
        lambda its: largest(its, "zero", "attn"),
        (
            "A large effect means that Paris is much less likely without this part.",
            "Look for the largest number of the map of attention: its row is the layer, its column the position.",
            "np.unravel_index turns the index that argmax gives into (row, column).",
        ),
        (
            Wrong(lambda its: largest(its, "zero", "attn")[::-1], "The layer comes first: rows are layers."),
            Wrong(
                lambda its: largest(its, "resample", "attn"),
                "That cell costs most with Italy's value. With zero another one costs more.",
            ),
            Wrong(lambda its: largest(its, "zero", "mlp"), "That is an MLP. The output of attention is asked for."),
        ),
    ),
    2: Exercise(
        Number(),
        lambda its: with_mean(its, slice(1, None)),
        (
            "Each of the outputs has a row per token: leave its first row out.",
            "one[1:] has all rows but the first; torch.cat puts the texts one below the other.",
            "The mean over the rows is .mean(0), and effect(value, mlp) puts it in the place.",
        ),
        (
            Wrong(lambda its: with_mean(its, slice(None)), "The first tokens are still in it."),
            Wrong(lambda its: with_mean(its, slice(1)), "That is the mean of the first tokens. Take all others."),
            Wrong(lambda its: -with_mean(its, slice(1, None)), "The sign: a gain of Paris is a negative loss."),
            Wrong(lambda its: its.effect(0, its.mlp), "That is zero. A mean is asked for."),
        ),
    ),
    3: Exercise(
        Whole(),
        lambda its: neither(its, its.trace.clean / 2),
        (
            "Half of the clean probability is trace.clean / 2.",
            "Count the layers at which both numbers are below it.",
            "The sum of (at_country < half) & (at_last < half) counts where both hold.",
        ),
        (
            Wrong(
                lambda its: neither(its, 0.5),
                "That is half of 1. The clean probability is lower: half of trace.clean is asked for.",
            ),
            Wrong(
                lambda its: np.sum(its.at_country < its.trace.clean / 2),
                "There the country's place does not. The last token brings it back at some of them.",
            ),
            Wrong(
                lambda its: np.sum(its.at_last < its.trace.clean / 2),
                "There the last token does not. The country's place brings it back at some of them.",
            ),
        ),
    ),
}
