"""Directions from states that come in blocks: sums per concept, and the methods that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints

Method = Literal["mean_difference", "pca", "discriminant"]

SHRINKAGE = 0.01
"""Shrinkage of the covariance within concepts, for ``discriminant``."""
PARTNERS = 5
"""Number of states of other concepts that each state is paired with, for ``pca``."""
_ROUNDING = 1e-12
"""Relative to the mean state's length: a smaller difference of means is rounding error."""
_ROWS = 1024
"""Number of concepts whose directions are computed at once."""


class Moments:
    """Sums over the states of each concept. States come in blocks; a block has all states of its concepts.

    >>> moments = Moments(2, 1)
    >>> moments.add(np.array([[1.0], [3.0]]), np.array([0, 0]))
    >>> moments.add(np.array([[5.0]]), np.array([1]))
    >>> moments.mean
    array([3.])
    """

    def __init__(self, count: int, width: int, *, scatter: bool = False) -> None:
        self.sums: Floats = np.zeros((count, width))
        """(concepts, d_model) sum of the states of each concept."""
        self.sizes: Ints = np.zeros(count, dtype=np.int64)
        """(concepts,) number of states."""
        self.scatter: Floats | None = np.zeros((width, width)) if scatter else None
        """(d_model, d_model) scatter within concepts: sum of outer products of each state minus its concept's mean."""

    def add(self, states: Floats, owner: Ints) -> None:
        """Add states (n, d_model) of the concepts ``owner`` (n,)."""
        order = np.argsort(owner, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
            concept = owner[rows[0]]
            self.sums[concept] += states[rows].sum(axis=0, dtype=np.float64)
            self.sizes[concept] += len(rows)
        if self.scatter is not None:
            for start in range(0, len(states), 4096):  # in parts, to avoid a second copy of all states
                concepts = owner[start : start + 4096]
                residuals = states[start : start + 4096] - self.sums[concepts] / self.sizes[concepts, None]
                self.scatter += residuals.T @ residuals

    @property
    def mean(self) -> Floats:
        """(d_model,) the mean of all states."""
        return np.asarray(self.sums.sum(axis=0) / self.sizes.sum())

    def take_directions(
        self, make: Callable[[int, Floats], Floats], names: Sequence[str] | None = None
    ) -> tuple[Floats, Floats]:
        """(concepts, d_model) unit directions, and (concepts,) the gap of the means along them; overwrites the sums.

        ``make`` (first concept, differences) turns the differences (n, d_model) between a concept's mean and that of
        all other states into directions of any length. Raises ValueError, with the concept's name or number, where a
        mean does not differ from that of the others.
        """
        total, n, directions = self.sums.sum(axis=0), self.sizes.sum(), self.sums
        least = _ROUNDING * float(np.linalg.norm(total / n))
        gap = np.empty(len(directions))
        for start in range(0, len(directions), _ROWS):
            rows, size = directions[start : start + _ROWS], self.sizes[start : start + _ROWS, None]
            difference = rows / size - (total - rows) / (n - size)
            same = np.linalg.norm(difference, axis=1) <= least
            if same.any():
                flat = start + int(np.flatnonzero(same)[0])
                concept = flat if names is None else repr(names[flat])
                raise ValueError(
                    f"the mean state of concept {concept} equals that of the others, so that it has no direction at "
                    "this layer: use a later layer or other stimuli"
                )
            vectors = make(start, difference)
            length = np.linalg.norm(vectors, axis=1)
            rows[:] = vectors / length[:, None]
            gap[start : start + _ROWS] = (difference * rows).sum(axis=1)
        self.sums = np.zeros((0, directions.shape[1]))
        return directions, gap


def directions_of(states: Floats, owner: Ints, count: int, *, method: Method, seed: int = 0) -> Floats:
    """(count, d_model) unit directions from states (n, d_model) of the concepts ``owner`` (n,); each needs states.

    Raises ValueError where a concept's states do not differ from the others'.
    """
    moments = Moments(count, states.shape[1], scatter=method == "discriminant")
    moments.add(states, owner)
    return moments.take_directions(maker(moments, states, owner, method=method, seed=seed))[0]


def maker(
    moments: Moments, states: Floats, owner: Ints, *, method: Method, seed: int
) -> Callable[[int, Floats], Floats]:
    """The function ``make`` of `Moments.take_directions` for a method; only pca uses ``states`` and ``owner``."""
    match method:
        case "mean_difference":
            return lambda first, difference: difference
        case "pca":
            return _components(states, owner, len(moments.sizes), seed)
        case "discriminant":
            return _discriminants(moments)


def _components(states: Floats, owner: Ints, count: int, seed: int) -> Callable[[int, Floats], Floats]:
    components = _first_components(states, owner, count, seed)

    def make(first: int, difference: Floats) -> Floats:
        axes = np.stack([next(components) for _ in difference])
        axes[(axes * difference).sum(axis=1) < 0] *= -1
        return axes

    return make


def _first_components(states: Floats, owner: Ints, count: int, seed: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    for i in range(count):
        members, others = np.flatnonzero(owner == i), np.flatnonzero(owner != i)
        pairs = rng.choice(others, (len(members), PARTNERS))
        differences = (states[members][:, None] - states[pairs]).reshape(-1, states.shape[1]).astype(np.float64)
        yield np.linalg.svd(differences, full_matrices=False)[2][0]


def _discriminants(moments: Moments) -> Callable[[int, Floats], Floats]:
    from scipy.linalg import lu_factor, lu_solve

    if moments.scatter is None:
        raise ValueError("discriminant needs the scatter within concepts: gather the moments with scatter=True")
    within = moments.scatter / max(int(moments.sizes.sum()) - len(moments.sizes), 1)
    width = len(within)
    spread = np.trace(within) / width
    if spread == 0:  # all stimuli of a concept have one state
        return lambda first, difference: difference
    within *= 1 - SHRINKAGE
    within[np.diag_indices(width)] += SHRINKAGE * spread
    factors = lu_factor(within, overwrite_a=True)

    def make(first: int, difference: Floats) -> Floats:
        return np.asarray(lu_solve(factors, difference.T).T)

    return make
