"""Exercises of the lesson on token decomposition."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Prediction, Wrong
from exercises.answers import Number, Word
from interp_widgets import decompose_logit


def of_the_country(split):
    """The share of the fourth token, which is the country."""
    return split.share[3]


def most(its):
    """The token with the largest share of the answer's logit."""
    split = decompose_logit(its.model, its.prompt, its.target)
    return split.tokens[int(split.share.argmax())].strip()


PREDICTIONS = {1: Prediction(Word(), most, "what it pays was decided elsewhere, as section 3 shows.")}

EXERCISES = {
    1: Exercise(
        Number(percent=True),
        lambda its: of_the_country(its.against) / its.against.logit,
        (
            "against.share has a number per token, in the order of against.tokens.",
            "Divide that of France by the whole lead.",
            "The whole is against.logit; France is token 3.",
        ),
        (
            Wrong(
                lambda its: of_the_country(its.shares) / its.shares.logit,
                "That is of the logit of Paris alone. The lead over Rome is asked for.",
            ),
            Wrong(lambda its: of_the_country(its.against), "That is how much. What share of the lead is it?"),
            Wrong(lambda its: its.against.share[0] / its.against.logit, "That is *The*."),
            Wrong(
                lambda its: its.result.norm_share[-1, 3],
                "That is its share of the norms. A large part need not write this logit.",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: its.split.share[1] / its.split.share.sum(),
        (
            "split is of the difference of the two logits.",
            "split.share has a number per token: which is *nurse*?",
            "Divide it by the sum over the four tokens, which leaves out the rest.",
        ),
        (
            Wrong(
                lambda its: its.split.share[1] / its.split.logit, "That is of the whole difference, the rest included."
            ),
            Wrong(
                lambda its: (lambda of: of.share[1] / of.share.sum())(
                    decompose_logit(its.model, its.bias.prompt, its.bias.target)
                ),
                "That is of the logit of *she* alone. The difference is asked for.",
            ),
            Wrong(lambda its: its.split.share[2] / its.split.share.sum(), "That is the token after *nurse*."),
            Wrong(lambda its: its.split.share[1], "That is how much, not what part of the sum."),
        ),
    ),
    3: Exercise(
        Number(percent=True),
        lambda its: np.mean([its.from_the_answer(one) for one in its.receivers]),
        (
            "from_the_answer(one) says it of one prompt.",
            "Ask all of receivers.",
            "The mean of true and false is the share that is true.",
        ),
        (
            Wrong(
                lambda its: np.mean([not its.from_the_answer(one) for one in its.receivers]),
                "That is the share in which it belongs to another token.",
            ),
            Wrong(
                lambda its: sum(its.from_the_answer(one) for one in its.receivers),
                "That is how many. The fraction divides by the number of prompts.",
            ),
            Wrong(lambda its: np.mean(its.inside), "Those are the facts above."),
        ),
    ),
}
