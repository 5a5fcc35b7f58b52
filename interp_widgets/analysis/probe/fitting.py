"""Linear probes: how they are fitted, and the token counts that they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # scipy.sparse is loaded on first use
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def standardised(states: Rows, train: Any = slice(None)) -> Rows:
    """The states with mean 0 and deviation 1 on the training texts; what does not vary there stays 0."""
    mean, spread = _scale(states[train])
    return np.asarray((states - mean) / spread)


def fitted(features: Any, target: NDArray[np.int64], penalty: float) -> Any:
    """scikit-learn's logistic regression of features as they are."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1 / penalty, max_iter=2000).fit(features, target)


def linear_probe(states: Rows, target: NDArray[np.int64], penalty: float) -> tuple[Rows, Rows]:
    """(classes, width) weights and (classes,) bias, for states as they are, of a fit to the standardised ones; one
    row for two classes."""
    mean, spread = _scale(states)
    regression = fitted((states - mean) / spread, target, penalty)
    weights = regression.coef_ / spread
    return weights, regression.intercept_ - weights @ mean


def token_counts(read: Sequence[Sequence[int]]) -> Any:
    """(texts, different tokens) how often each token occurs in each text, as a sparse matrix."""
    tokens = sorted({token for ids in read for token in ids})
    column = {token: index for index, token in enumerate(tokens)}
    rows = np.repeat(np.arange(len(read)), [len(ids) for ids in read])
    columns = np.array([column[token] for ids in read for token in ids])
    return scipy.sparse.coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(read), len(tokens))).tocsr()


def _scale(states: Rows) -> tuple[Rows, Rows]:
    """The mean of each feature, and its deviation; infinity for what does not vary."""
    mean, deviation = states.mean(axis=0), states.std(axis=0)
    return mean, np.where(deviation > 1e-9 * (1 + np.abs(mean)), deviation, np.inf)
