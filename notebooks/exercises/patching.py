"""Exercises of the lesson on patching."""

from __future__ import annotations

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole


def last_at_country(its):
    """The last layer at whose entrance the state of the country carries at least half of the answer."""
    return max(layer for layer in its.late if its.carried(layer, its.country) >= 0.5)


def head(its, layer, number):
    """What is left without a head."""
    return its.left_of[layer - its.late[0], number]


EXERCISES = {
    1: Exercise(
        Whole(),
        lambda its: 1 + last_at_country(its),
        (
            "Begin in the middle: if the answer is still at the country there, look behind it, otherwise before it.",
            "carried(layer, country) gives the share as a number.",
            "It is carried up to the entrance of layer 23, and a layer's entrance is before its attention.",
        ),
        (
            Wrong(last_at_country, "There it is still carried. Which is the first at which it is not?"),
            Wrong(lambda its: 2 + last_at_country(its), "There it has been gone for a layer already."),
            Wrong(
                lambda its: its.model.n_layers,
                "There the lens sees the answer first (lesson 02). Where does the state of the country lose it?",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: 1 - head(its, 29, 1),
        (
            "left_of has the share that is left: rows are layers from 20 on, columns heads.",
            "Layer 29 is row 9.",
            "What is lost is 1 minus what is left.",
        ),
        (
            Wrong(lambda its: head(its, 29, 1), "That is what is left: the question is what is lost."),
            Wrong(lambda its: its.brought[9, 1], "That is what the head brings back (denoising)."),
            Wrong(lambda its: 1 - head(its, 23, 4), "That is head 23.4."),
        ),
    ),
    3: Exercise(
        Whole(),
        lambda its: len(its.circuit.smallest(0.8)),
        (
            "circuit.faithfulness has a number for 0, 1, 2, ... parts.",
            "The first that reaches 0.8 counts.",
            "circuit.smallest(0.8) is that circuit: how many parts has it?",
        ),
        (
            Wrong(lambda its: len(its.circuit.parts), "That is the largest of them. A smaller one is enough."),
            Wrong(lambda its: len(its.circuit.smallest(0.5)), "That keeps half. Four fifths are asked for."),
            Wrong(
                lambda its: len(its.circuit.smallest(0.8)) - 1,
                "That one keeps a little less than four fifths. The table begins with the circuit of no parts.",
            ),
        ),
    ),
}
