"""Exercises of the lesson on induction."""

from __future__ import annotations

import random

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Built, Number, Word


def stripe(its, shift):
    """Mean attention of the second copy to the place that stands so far behind the earlier copy of the same token."""
    return its.pattern[its.rows, its.rows - its.n + shift].mean()


def right_continued(tokens):
    """The token after the latest earlier occurrence of the last one."""
    *before, last = tokens
    places = [place for place, token in enumerate(before) if token == last]
    return tokens[places[-1] + 1] if places else None


def first_continued(tokens):
    *before, last = tokens
    return tokens[before.index(last) + 1] if last in before else None


def itself(tokens):
    return tokens[-1] if tokens[-1] in tokens[:-1] else None


def one_before(tokens):
    *before, last = tokens
    places = [place for place, token in enumerate(before) if token == last]
    return tokens[places[-1] - 1] if places else None


def tried():
    """Lists of numbers: with one earlier occurrence, several, none, and the last token twice in a row."""
    draw = random.Random(0)
    made = [[draw.randrange(12) for _ in range(draw.randrange(4, 30))] for _ in range(60)]
    return [*made, [1, 2, 3], [1, 7, 2, 7, 3, 7], [5, 5], [4]]


def agrees(continued, its, other=right_continued):
    """Whether a function gives the same as another on all of these."""
    return all(continued(list(tokens)) == other(tokens) for tokens in tried())


def second_time(its):
    """Mean loss over the second copy, all but its first token."""
    return float(its.losses(its.ids)[1 - its.n :].mean())


PREDICTIONS = {1: Prediction(Number(), second_time, "it has read each word once, and knows what comes.")}

EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: stripe(its, 1),
        (
            "Row i of the pattern belongs to the token i that looks.",
            "Token i of the second copy has its earlier copy at i - n, and what came after it at i - n + 1.",
            "pattern[rows, rows - n + 1] takes one number from each of these rows.",
        ),
        (
            Wrong(lambda its: stripe(its, 0), "That is the earlier copy of the same token: take the one after it."),
            Wrong(lambda its: stripe(its, 2), "That is two after the earlier copy."),
            Wrong(
                lambda its: its.pattern[its.rows, its.rows - 1].mean(),
                "That is the token just before.",
            ),
            Wrong(lambda its: its.pattern[its.rows].mean(), "That is over all columns. Take one per row."),
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
        Built(agrees, "A function of a list of tokens is asked for;"),
        lambda its: right_continued,
        (
            "Look for the last token among those before it.",
            "Of several places take the latest.",
            "The answer stands one place behind it; without a place it is None.",
        ),
        (
            Wrong(
                lambda its: first_continued,
                "That takes the first occurrence. The latest is asked for.",
                lambda continued, its: agrees(continued, its, first_continued),
            ),
            Wrong(
                lambda its: itself,
                "That gives the token itself. What came after it?",
                lambda continued, its: agrees(continued, its, itself),
            ),
            Wrong(
                lambda its: one_before,
                "That is what came before it.",
                lambda continued, its: agrees(continued, its, one_before),
            ),
        ),
    ),
}
