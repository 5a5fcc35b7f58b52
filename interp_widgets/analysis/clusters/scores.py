"""`clustering_scores`: how well clusters agree with labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.result import Result, record
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.arguments import checked

SCORES = ("f1_matched", "f1_pair", "ari", "ami")


@record
class ClusteringScores(Result):
    """Agreement of clusters with labels by four measures; 1 if they are the same partition.

    Example:
        >>> scores = clustering_scores(["a", "a", "b", "b"], [7, 7, 3, 7])
        >>> print(f"{scores.f1_matched:.2f} {scores.f1_pair:.2f} {scores.ari:.2f} {scores.ami:.2f}")
        0.73 0.40 0.00 0.00
    """

    f1_matched: float
    """Mean over labels of the F1 score with the cluster that each is matched to, 0..1; an unmatched label scores 0."""

    f1_pair: float
    """F1 score over pairs of instances: whether they share a cluster against whether they share a label, 0..1."""

    ari: float
    """Adjusted Rand index: 0 by chance, 1 at most."""

    ami: float
    """Adjusted mutual information (arithmetic mean): 0 by chance, 1 at most."""

    def to_frame(self) -> DataFrame:
        """One row per score."""
        return table({"score": SCORES}, {"value": [getattr(self, name) for name in SCORES]})

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The four scores."""
        return {name: getattr(self, name) for name in SCORES}


@checked
def clustering_scores(labels_true: Sequence[str | int], labels_pred: Sequence[str | int]) -> ClusteringScores:
    """Compare a clustering with labels: matched F1, pair F1, adjusted Rand index, adjusted mutual information.

    The matched F1 matches labels and clusters one to one so that the sum of their F1 scores is largest (Hungarian
    method), and averages over labels. The paper does not define its F1; F1 over pairs does not fit its tables.

    Args:
        labels_true: the label of each instance.
        labels_pred: the cluster of each instance; names do not matter.

    Raises:
        ValueError: no instances, or lists of different lengths.

    Source: "Transformer-based Causal Language Models Perform Clustering", appendix B; ARI and AMI as in scikit-learn.

    Example:
        >>> same = clustering_scores(["x", "x", "y"], [1, 1, 0])
        >>> same.f1_matched, same.f1_pair, same.ari, same.ami
        (1.0, 1.0, 1.0, 1.0)
    """
    if len(labels_true) != len(labels_pred):
        raise ValueError(
            f"labels_true and labels_pred must have one entry per instance each, got {len(labels_true)} and "
            f"{len(labels_pred)}"
        )
    if len(labels_true) == 0:
        raise ValueError("labels_true must have at least one entry, got none")
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    true, predicted = label_indices(labels_true), label_indices(labels_pred)
    counts = contingency(true, predicted)
    return ClusteringScores(
        matched_f1(counts),
        pair_f1(counts),
        float(adjusted_rand_score(true, predicted)),
        float(adjusted_mutual_info_score(true, predicted)),
    )


def label_indices(labels: Sequence[str | int]) -> Ints:
    """Labels as integers from 0, in the order of their first occurrence."""
    numbers: dict[str | int, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels])


def contingency(true: Ints, predicted: Ints) -> NDArray[np.int64]:
    """(labels, clusters) number of instances with this label in this cluster."""
    counts = np.zeros((int(true.max()) + 1, int(predicted.max()) + 1), dtype=np.int64)
    np.add.at(counts, (true, predicted), 1)
    return counts


def matched_f1(counts: NDArray[np.int64]) -> float:
    """Mean F1 of labels with the clusters that they are matched to; see `clustering_scores`."""
    f1: Floats = 2 * counts / (counts.sum(1, keepdims=True) + counts.sum(0, keepdims=True))
    rows, columns = linear_sum_assignment(f1, maximize=True)
    return float(f1[rows, columns].sum() / len(f1))


def pair_f1(counts: NDArray[np.int64]) -> float:
    """F1 over pairs of instances; 1 if no label and no cluster has two instances."""

    def pairs(sizes: NDArray[np.int64]) -> int:
        return int((sizes * (sizes - 1) // 2).sum())

    both, either = pairs(counts), pairs(counts.sum(0)) + pairs(counts.sum(1))
    return 2 * both / either if either else 1.0
