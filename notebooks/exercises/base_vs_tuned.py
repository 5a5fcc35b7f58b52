"""Exercises of the lesson on base against tuned."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number


def singular_values(its):
    """Cosines of the angles between the two subspaces."""
    return np.linalg.svd(its.P @ its.Q.T, compute_uv=False)


EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: 1 - len(its.A & its.B) / len(its.A | its.B),
        (
            "A & B are the pairs that are in both sets.",
            "The formula divides by the pairs that are in either set, each counted once.",
            "A | B is the union. Do not forget the 1 − in front.",
        ),
        (
            Wrong(
                lambda its: 1 - len(its.A & its.B) / len(its.A),
                "Divide by the pairs that are in either list, not by those of one.",
            ),
            Wrong(lambda its: len(its.A & its.B) / len(its.A | its.B), "That is M, what stayed. The change is 1 − M."),
            Wrong(
                lambda its: 1 - len(its.A & its.B) / (len(its.A) + len(its.B)),
                "Pairs that are in both are counted twice there.",
            ),
        ),
    ),
    2: Exercise(
        Number(),
        lambda its: np.mean(singular_values(its) ** 2),
        (
            "The singular values of P @ Q.T are the cosines of the angles between the two subspaces.",
            "overlap() above takes a mean of something that is done to each cosine.",
            "A share of a subspace is a mean of squared cosines.",
        ),
        (
            Wrong(lambda its: np.mean(singular_values(its)), "Those are the cosines. Square each of them."),
            Wrong(lambda its: np.sum(singular_values(its) ** 2), "That is their sum: divide by the five directions."),
            Wrong(lambda its: its.overlap(5, 5), "That is of the first twenty directions. Five are asked for."),
            Wrong(
                lambda its: np.mean((its.P * its.Q).sum(axis=1) ** 2),
                "That compares direction by direction. The spaces are to be compared.",
            ),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: 0.0350 * 3,
        (
            "Sort first: which place has translation?",
            "It is the third, so its factor is 2. But look at the value before it.",
            "No corrected value may be smaller than the one before it.",
        ),
        (
            Wrong(
                lambda its: 0.0411 * 2,
                "Right factor. But it came out smaller than the one before it, which it may not.",
            ),
            Wrong(lambda its: 0.0411 * 4, "That is Bonferroni's correction: every value times 4."),
            Wrong(lambda its: 0.0411 * 3, "That is the factor of the second smallest. Sort again."),
            Wrong(lambda its: 0.0411, "That is the value as it is printed."),
        ),
    ),
}
