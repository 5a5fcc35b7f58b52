"""Exercises of the lesson on patching."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Place, Whole


def last(its):
    """(layers, heads) what each head brings back at the last token."""
    return its.heads.recovered["head"][:, :, -1]


def largest(values):
    """(layer, head) of the largest number."""
    return np.unravel_index(np.argmax(values), values.shape)


EXERCISES = {
    1: Exercise(
        Place(),
        lambda its: largest(last(its)),
        (
            "heads.recovered['head'] has the axes layer, head and position.",
            "The last position is -1: that leaves a table of layers and heads.",
            "np.unravel_index turns what argmax() gives into (layer, head).",
        ),
        (
            Wrong(lambda its: tuple(1 + np.array(largest(last(its)))), "Both are counted from 0."),
            Wrong(lambda its: largest(last(its))[::-1], "The layer comes first."),
            Wrong(lambda its: largest(-last(its)), "That head takes the answer further away."),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: 1 - its.lost.recovered["head"][0, 1, -1],
        (
            "lost has the maps of noising, in which 1 means that nothing is lost.",
            "lost.recovered['head'] has the axes layer, head and position.",
            "What is lost is 1 minus what is left.",
        ),
        (
            Wrong(
                lambda its: its.lost.recovered["head"][0, 1, -1],
                "That is what is left: the question is what is lost.",
            ),
            Wrong(lambda its: last(its)[0, 1], "That is what the head brings back (denoising)."),
            Wrong(lambda its: 1 - its.lost.recovered["attn"][0, -1], "That is the whole attention of layer 0."),
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
