"""Exercises of the lesson on concepts of MLPs."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole


def nearer(its, limit, components=20, layer=5):
    """How many of the first components of a layer have a word that is nearer than a limit."""
    return sum(its.nearest_cosine(layer, component) > limit for component in range(components))


EXERCISES = {
    1: Exercise(
        Whole(),
        lambda its: nearer(its, its.limit),
        (
            "nearest_cosine(5, component) is the cosine of one component's nearest word.",
            "Ask it of component 0 to 19 and compare each with limit.",
            "sum(... > limit for component in range(20)) counts.",
        ),
        (
            Wrong(
                lambda its: nearer(its, its.limit, its.concepts.rank),
                "Those are of all components of the layer. The first 20 are asked for.",
            ),
            Wrong(
                lambda its: nearer(its, its.nearest_to_random.mean()),
                "Those are nearer than the mean of random directions, which half of these are as well.",
            ),
            Wrong(lambda its: 20 - nearer(its, its.limit), "Those are farther than the limit."),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: its.effects.strongest(1)[0][1] / its.effects.mlp_effect,
        (
            "effects.strongest(1) holds the neuron and its effect.",
            "The whole is what the MLP adds to the logit, not the logit.",
            "Divide by effects.mlp_effect.",
        ),
        (
            Wrong(lambda its: its.effects.strongest(1)[0][1] / its.effects.logit, "That is of the whole logit."),
            Wrong(
                lambda its: its.effects.strongest(1)[0][1] / np.abs(its.effects.effect).sum(),
                "That is of the sum of sizes. Effects have signs, and the MLP's is their sum.",
            ),
            Wrong(
                lambda its: (
                    its.effects.effect[np.abs(its.effects.activation[its.effects.position]).argmax()]
                    / its.effects.mlp_effect
                ),
                "That neuron has the largest activation. The effect on the logit is asked for.",
            ),
        ),
    ),
    3: Exercise(
        Number(percent=True),
        lambda its: its.named - its.named_random,
        (
            "Beyond means: more than.",
            "named and named_random are two shares.",
            "Subtract the one from the other.",
        ),
        (
            Wrong(lambda its: its.named, "That is with what random directions get as well."),
            Wrong(lambda its: its.named / its.named_random, "That is how many times as many, not how many more."),
            Wrong(
                lambda its: (its.named - its.named_random) / its.named,
                "That is a part of the described ones. A share of all first components is asked for.",
            ),
        ),
    ),
}
