"""Exercises of the lesson on the workbench."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole, Word


def first(result):
    """(prompt tokens,) importance for the first response token."""
    return result.importance[:, 0]


def token(its):
    """The token that matters to B and not to A."""
    return its.found[1].prompt_tokens[int((first(its.found[1]) - first(its.found[0])).argmax())]


def share(part, text):
    """A token's share of a logit."""
    return part.share[part.tokens.index(text)]


def layers(its):
    """First layer with the answer, of tuned and base."""
    return its.tuned.numbers("first_best_layer"), its.base.numbers("first_best_layer")


EXERCISES = {
    1: Exercise(
        Word(),
        token,
        (
            "found[0] and found[1] are the results of A and B; .importance has a row per token of .prompt_tokens.",
            "Subtract A's importance from B's, for the first response token (column 0).",
            "argmax() of the difference is the index of the token.",
        ),
        (
            Wrong(lambda its: " Japan", "The country matters to both."),
            Wrong(
                lambda its: its.found[0].prompt_tokens[int((first(its.found[0]) - first(its.found[1])).argmax())],
                "The other way round: that one matters more to A.",
            ),
            Wrong(
                lambda its: its.found[1].prompt_tokens[-1],
                "The last token is important to both: zeroing it takes the question away.",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: share(its.parts[1], token(its)) / its.parts[1].logit,
        (
            "parts[1] is of B.",
            "parts[1].share has a number per token of parts[1].tokens.",
            "The whole is parts[1].logit.",
        ),
        (
            Wrong(lambda its: share(its.parts[0], token(its)) / its.parts[0].logit, "That is A."),
            Wrong(
                lambda its: share(its.parts[1], token(its)) / its.parts[1].share.sum(),
                "That is of the tokens' sum. The logit has a rest as well.",
            ),
            Wrong(lambda its: share(its.parts[1], token(its)), "That is how much, not what share of the logit."),
            Wrong(lambda its: share(its.parts[1], " Japan") / its.parts[1].logit, "That is the country's share."),
        ),
    ),
    3: Exercise(
        Whole(),
        lambda its: np.greater(*layers(its)).sum(),
        (
            "numbers('first_best_layer') has a number per prompt, the same prompts for both.",
            "Compare the two element by element.",
            "Later means larger. The sum of the comparison counts.",
        ),
        (
            Wrong(
                lambda its: np.greater_equal(*layers(its)).sum(),
                "Prompts in which both have it at the same layer are among those.",
            ),
            Wrong(lambda its: np.less(*layers(its)).sum(), "In those the tuned model is earlier."),
            Wrong(lambda its: np.not_equal(*layers(its)).sum(), "In those they differ, in either direction."),
        ),
    ),
}
