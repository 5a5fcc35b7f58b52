"""Exercises of the lesson on the logit lens."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Number, Whole
from interp_widgets import logit_lens


def passed(ranks):
    """(layers,) how many tokens the answer passes in each layer, on average over the questions."""
    return -np.diff(ranks.mean(axis=0))


def first(its):
    """The first row in which the answer is the likeliest word."""
    result = logit_lens(its.model, its.prompt, target=its.target)
    return int(np.flatnonzero(result.target_rank[:, -1] == 0)[0])


PREDICTIONS = {1: Prediction(Whole(), first, "until then other words lead.")}

EXERCISES = {
    1: Exercise(
        Whole(),
        lambda its: passed(its.ranks).argmax(),
        (
            "ranks.mean(axis=0) is the average over the countries.",
            "np.diff subtracts each row from the next: entry l belongs to layer l.",
            "Where most tokens are passed the difference is the most negative: argmin().",
        ),
        (
            Wrong(
                lambda its: 1 + passed(its.ranks).argmax(),
                "That is the row behind it. Layer l leads from row l to row l + 1.",
            ),
            Wrong(
                lambda its: passed(np.log1p(its.ranks)).argmax(),
                "There it passes the largest share of the tokens before it. Count the tokens.",
            ),
            Wrong(lambda its: passed(its.ranks).argmin(), "There most tokens pass the answer."),
            Wrong(lambda its: its.ranks.mean(axis=0).argmin(), "There fewest are before it. Where does it pass most?"),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: np.mean(its.depth["indirect objects"] >= 3),
        (
            "depth['indirect objects'] has a row number per prompt.",
            "Which of them are 3 or more? Take the mean of that comparison.",
            "Row 3 counts.",
        ),
        (
            Wrong(lambda its: np.mean(its.depth["indirect objects"] > 3), "Row 3 itself counts."),
            Wrong(lambda its: np.mean(its.depth["facts"] >= 3), "Those are the facts."),
            Wrong(lambda its: np.mean(its.depth["indirect objects"] < 3), "That is the share settled before row 3."),
            Wrong(
                lambda its: np.sum(its.depth["indirect objects"] >= 3),
                "That is how many: divide by the number of prompts.",
            ),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: its.kl["logit lens"][3] / its.kl["tuned lens"][3],
        (
            "The dictionary kl has a number per row for each lens.",
            "Divide the one by the other, at row 3. What falls by a factor was that many times larger.",
            "The logit lens is above the fraction line, and the factor is above 1.",
        ),
        (
            Wrong(
                lambda its: its.kl["tuned lens"][3] / its.kl["logit lens"][3],
                "That is what is left of it. How many times larger was it?",
            ),
            Wrong(lambda its: its.kl["logit lens"][3] - its.kl["tuned lens"][3], "That is a difference, not a factor."),
            Wrong(
                lambda its: its.kl["logit lens"][2] / its.kl["tuned lens"][2],
                "That is row 2: rows are counted from 0, and row 0 is the embedding.",
            ),
            Wrong(
                lambda its: its.kl["logit lens"].mean() / its.kl["tuned lens"].mean(),
                "That is over all rows. One row is asked for.",
            ),
        ),
    ),
}
