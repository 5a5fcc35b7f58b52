"""Exercises of the lesson on the logit lens."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole

EXERCISES = {
    1: Exercise(
        Whole(),
        lambda its: np.flatnonzero(its.names.target_rank[:, -1] == 0)[0],
        (
            "The likeliest token has rank 0.",
            "names.target_rank[:, -1] holds the rank of the target in every row, read after the last token.",
            "argmax() of a comparison gives the first place at which it holds.",
        ),
        (
            Wrong(
                lambda its: its.names.target_probability[:, -1].argmax(),
                "In that row it is likelier than in any other. It leads long before.",
            ),
            Wrong(lambda its: 1 + np.flatnonzero(its.names.target_rank[:, -1] == 0)[0], "Rows are counted from 0."),
            Wrong(
                lambda its: np.flatnonzero(its.names.target_rank[:, -1] < 10)[0],
                "There it is among the ten likeliest. The likeliest has rank 0.",
            ),
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
