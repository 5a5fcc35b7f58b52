"""Exercises of the lesson on clusters."""

from __future__ import annotations

from exercises import Exercise, Wrong
from exercises.answers import Number


def best(clusters):
    """The layer at which the clusters agree best with the single tasks."""
    return clusters.f1_matched[list(clusters.labels).index("distribution")].argmax()


def at(clusters, layer, label="distribution"):
    """The matched F1 of a label at a layer."""
    return clusters.f1_matched[list(clusters.labels).index(label), layer]


EXERCISES = {
    1: Exercise(
        Number(),
        lambda its: 1 / 3,
        (
            "One cluster can be paired with one task only.",
            "Precision and recall of that pair give its F1.",
            "The other task has no cluster. The score is the mean over the two tasks.",
        ),
        (
            Wrong(
                lambda its: 2 / 3,
                "That is the F1 of the task that gets the cluster: the score is the mean over tasks.",
            ),
            Wrong(lambda its: 1 / 2, "That is the precision, or the share of instances in the right cluster."),
            Wrong(lambda its: 1 / 4, "Half of the precision. F1 is the harmonic mean of precision and recall."),
        ),
    ),
    2: Exercise(
        Number(),
        lambda its: its.training.f1_matched[-1, 0, 0, -1] - its.training.f1_matched[0, 0, 0, -1],
        (
            "training.f1_matched has the axes checkpoints, sets, labels, layers.",
            "The training subset is set 0, the task label 0, the last layer -1.",
            "The last checkpoint is -1, the first 0: subtract.",
        ),
        (
            Wrong(lambda its: its.training.f1_matched[-1, 0, 0, -1], "That is where it ends. How far did it rise?"),
            Wrong(
                lambda its: its.training.f1_matched[-1, 0, 0, 0] - its.training.f1_matched[0, 0, 0, 0],
                "That is layer 0.",
            ),
            Wrong(
                lambda its: its.training.f1_matched[-1, 1, 0, -1] - its.training.f1_matched[0, 1, 0, -1],
                "That is set 1. The training subset is asked for.",
            ),
            Wrong(
                lambda its: its.training.f1_within_input[-1, 0, -1] - its.training.f1_within_input[0, 0, -1],
                "That is within inputs. Whole states are asked for.",
            ),
        ),
    ),
    3: Exercise(
        Number(),
        lambda its: at(its.found[1], best(its.found[1])) - at(its.found[0], best(its.found[1])),
        (
            "found[1] is of the tuned model, found[0] of the base model; the single tasks are the label distribution.",
            "f1_matched has a row per label and a column per layer: argmax() of the tuned model's row is the layer.",
            "Subtract the base model's number at that layer.",
        ),
        (
            Wrong(
                lambda its: at(its.found[1], best(its.found[1])) - at(its.found[0], best(its.found[0])),
                "Each at its own best layer. Both at the tuned model's is asked for.",
            ),
            Wrong(
                lambda its: at(its.found[1], best(its.found[1]), "task") - at(its.found[0], best(its.found[1]), "task"),
                "Those are the categories.",
            ),
            Wrong(lambda its: at(its.found[1], best(its.found[1])), "That is the tuned model's score."),
        ),
    ),
}
