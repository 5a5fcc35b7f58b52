"""How far apart the concepts of a set lie, and whether two models differ in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.concepts.result import ConceptSet
from interp_widgets.analysis.result import Result, record

Floats = NDArray[np.floating[Any]]


@record
class Dispersion(Result):
    """Mean cosine distance between concept directions; with a second set, of both and their difference."""

    value: float
    """Mean of 1 − cosine over all pairs of concepts, 0..2."""

    interval: Floats
    """(2,) percentile bootstrap interval of `value`, concepts drawn with replacement."""

    other: float | None = None
    """The second set's value."""

    difference: float | None = None
    """The second set's value less the first's."""

    difference_interval: Floats | None = None
    """(2,) the difference's interval; the same concepts are drawn in both sets."""

    level: float = 0.95
    """Level of the intervals."""

    def __post_init__(self) -> None:
        self.array("interval", (2,))
        if self.difference_interval is not None:
            self.array("difference_interval", (2,))


def dispersion(
    concepts: ConceptSet,
    other: ConceptSet | None = None,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Dispersion:
    """Mean cosine distance of a set's directions, with a bootstrap interval; with ``other``, the difference of two.

    In a bootstrap sample a concept that is drawn twice makes no pair with itself, whose distance is 0 by construction.

    Args:
        concepts: such as the base model's.
        other: the same concepts in the same order, such as the tuned model's.
        resamples: bootstrap samples.
        level: of the intervals, above 0 and below 1.
        seed: of the samples.

    Raises:
        ValueError: sets with other concepts, fewer than 3 concepts, a level out of range.
    """
    count = len(concepts.names)
    if count < 3:
        raise ValueError(f"a bootstrap needs at least 3 concepts, got {count}")
    if other is not None and tuple(other.names) != tuple(concepts.names):
        raise ValueError("the two sets must hold the same concepts in the same order")
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level must be between 0 and 1 and resamples at least 1, got {level} and {resamples}")
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    tail = [(1 - level) / 2, (1 + level) / 2]
    value, samples = _distances(concepts, np.ones((1, count)))[0], _distances(concepts, draws)
    second = None if other is None else float(_distances(other, np.ones((1, count)))[0])
    apart = None if other is None else np.quantile(_distances(other, draws) - samples, tail)
    return Dispersion(
        value=float(value),
        interval=np.quantile(samples, tail),
        other=second,
        difference=None if second is None else second - float(value),
        difference_interval=apart,
        level=level,
        provenance=dict(concepts.provenance),
    )


def _distances(concepts: ConceptSet, times: NDArray[Any]) -> Floats:
    """(samples,) mean distance of pairs of different concepts, each counted ``times`` (samples, concepts)."""
    times = times.astype(np.float64)
    directions = np.asarray(concepts.directions, dtype=np.float64)
    alike = ((times @ directions) ** 2).sum(axis=1) - (times**2) @ (directions**2).sum(axis=1)
    pairs = times.sum(axis=1) ** 2 - (times**2).sum(axis=1)
    found: Floats = 1 - alike / pairs
    return found
