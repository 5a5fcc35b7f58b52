"""Fitting of linear probes, and the token counts of their bag-of-words baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # scipy.sparse is loaded on first use
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def standardised(states: Rows, train: Any = slice(None)) -> Rows:
    """The states with mean 0 and standard deviation 1 on the training texts; constant features become 0."""
    mean, spread = _scale(states[train])
    return np.asarray((states - mean) / spread)


def fitted(features: Any, target: NDArray[np.int64], penalty: float) -> Any:
    """scikit-learn's logistic regression on the given features."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1 / penalty, max_iter=2000).fit(features, target)


def linear_probe(states: Rows, target: NDArray[np.int64], penalty: float) -> tuple[Rows, Rows]:
    """Weights (classes, width) and bias (classes,) for the unscaled states, fitted to standardised ones; one row for
    two classes."""
    mean, spread = _scale(states)
    regression = fitted((states - mean) / spread, target, penalty)
    weights = regression.coef_ / spread
    return weights, regression.intercept_ - weights @ mean


def token_counts(read: Sequence[Sequence[int]]) -> Any:
    """(texts, different tokens) sparse matrix of token counts."""
    tokens = sorted({token for ids in read for token in ids})
    column = {token: index for index, token in enumerate(tokens)}
    rows = np.repeat(np.arange(len(read)), [len(ids) for ids in read])
    columns = np.array([column[token] for ids in read for token in ids])
    return scipy.sparse.coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(read), len(tokens))).tocsr()


def _scale(states: Rows) -> tuple[Rows, Rows]:
    """Mean and standard deviation of each feature; infinity for constant features."""
    mean, deviation = states.mean(axis=0), states.std(axis=0)
    return mean, np.where(deviation > 1e-9 * (1 + np.abs(mean)), deviation, np.inf)
