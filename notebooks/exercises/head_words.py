"""Exercises of the lesson on head words."""

from __future__ import annotations

from exercises import Exercise, Wrong
from exercises.answers import Number, Whole


def most_significant(its):
    """The row of the table with the smallest corrected p-value."""
    return its.test.sort_values("holm_p").iloc[0]


EXERCISES = {
    1: Exercise(
        Number(percent=True),
        lambda its: (its.same_sign & its.near & its.different).sum() / (its.same_sign & its.different).sum(),
        (
            "Two conditions say which combinations are asked about, a third which of them pass.",
            "same_sign, near and different are tables of true and false; & combines them.",
            "Count near among those that are same_sign and different, and divide by how many these are.",
        ),
        (
            Wrong(
                lambda its: (its.same_sign & its.near & its.different).mean(),
                "That is of all K × K combinations, those of other signs included.",
            ),
            Wrong(
                lambda its: (its.same_sign & its.near).sum() / its.same_sign.sum(),
                "Words beside themselves are among those.",
            ),
            Wrong(
                lambda its: (its.same_sign & its.near & its.different).sum(),
                "That is how many pass. What fraction of the combinations asked about is it?",
            ),
        ),
    ),
    2: Exercise(
        Number(percent=True),
        lambda its: (its.real_pairs - its.chance_pairs) / its.real_pairs,
        (
            "Chance gives chance_pairs. What is above that is in excess.",
            "How many pairs are in excess? And what part of the real ones is that?",
            "Divide by real_pairs.",
        ),
        (
            Wrong(lambda its: its.chance_pairs / its.real_pairs, "That is the part that chance gives as well."),
            Wrong(
                lambda its: (its.real_pairs - its.chance_pairs) / its.chance_pairs,
                "That is how many more than by chance, in units of chance. Of the real pairs is asked.",
            ),
            Wrong(lambda its: its.real_pairs - its.chance_pairs, "That is how many. What part of the real ones is it?"),
        ),
    ),
    3: Exercise(
        Whole(),
        lambda its: most_significant(its).instruction_verbs,
        (
            "Each row of the table is a group of layers; one of them has the smallest p-value.",
            "The column instruction_verbs counts the verbs that have a share in that group of layers.",
            "test.sort_values('holm_p') brings the row to the top.",
        ),
        (
            Wrong(
                lambda its: most_significant(its).general_verbs,
                "Those are the general verbs that they are compared with.",
            ),
            Wrong(lambda its: its.test.instruction_verbs.max(), "That row has the most verbs, and another p-value."),
            Wrong(lambda its: its.test.instruction_verbs.sum(), "That is over all layers. The p-value is of one row."),
        ),
    ),
}
