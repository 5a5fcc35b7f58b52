"""Exercises of the lesson on token decomposition."""

from __future__ import annotations

import numpy as np

from exercises import Exercise, Wrong
from exercises.answers import Number
from interp_widgets import decompose_logit

EXERCISES = {
    1: Exercise(
        Number(percent=True),
        lambda its: its.shares.share[1:3].sum() / its.shares.logit,
        (
            "shares.share has a number per token, in the order of shares.tokens.",
            "Add the two tokens' numbers and divide by the whole logit.",
            "The whole is shares.logit: the tokens' shares and the rest.",
        ),
        (
            Wrong(
                lambda its: its.shares.share[1:3].sum() / its.shares.share.sum(),
                "That is of the tokens' sum. The logit has a rest as well.",
            ),
            Wrong(lambda its: its.shares.share[1] / its.shares.logit, "That is *Eiffel* alone."),
            Wrong(
                lambda its: its.shares.share[:2].sum() / its.shares.logit,
                "Those are the first two tokens, *The* and *Eiffel*.",
            ),
            Wrong(
                lambda its: its.result.norm_share[-1, 1:3].sum(),
                "That is their share of the norms. A large part need not write this logit.",
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
