"""`dispersion`: how far apart the directions of a concept set are, and whether two models differ in it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Floats, Ints, ratio
from interp_widgets.analysis._core.checks import check_choice, check_range
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis.concepts.concept_set import ConceptSet
from interp_widgets.arguments import checked

Pairs = Literal["all", "group"]


@record
class Dispersion(Result):
    """Mean cosine distance between concept directions; with a second set, that of both and the difference."""

    value: float
    """Mean of 1 − cosine over all pairs of concepts, 0..2."""

    interval: Floats = with_axes(2)
    """Percentile bootstrap interval of `value`, over concepts."""

    other: float | None = None
    """The second set's value."""

    difference: float | None = None
    """The second set's value minus the first's."""

    difference_interval: Floats | None = with_axes(2, default=None)
    """The difference's interval; the same concepts are drawn in both sets."""

    level: float = 0.95
    """Level of the intervals."""

    pairs: str = "all"
    """Which pairs count: "all" or those within a "group"."""


@checked
def dispersion(
    concepts: ConceptSet,
    other: ConceptSet | None = None,
    *,
    pairs: Pairs = "all",
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Dispersion:
    """Mean cosine distance of a set's directions, with a bootstrap interval; with ``other``, the difference of two.

    Directions that contrast each concept with all others sum to nearly zero, so that their mean distance over all pairs
    is close to 1 for every model. For these use ``pairs="group"``, the distance between concepts of one group.

    A concept drawn twice in a bootstrap sample forms no pair with itself, whose distance would be 0 by construction.

    Args:
        concepts: such as the base model's.
        other: the same concepts in the same order, such as the tuned model's.
        pairs: "all", or "group" for pairs of one group (concepts without a group are left out).
        resamples: bootstrap samples.
        level: of the intervals, above 0 and below 1.
        seed: of the samples.

    Raises:
        ValueError: sets with other concepts, no group with two concepts, fewer than 3 concepts, a level out of range.

    Example:
        >>> few = [c for c in demo_concepts() if c.name in ("Paris", "London", "red", "blue")]
        >>> first, second = (concept_directions(model, few, layer=3) for model in (base, tuned))
        >>> spread = dispersion(first, second, pairs="group")
        >>> round(spread.value, 1), round(spread.other, 1), spread.difference_interval.shape
        (0.7, 0.5, (2,))
    """
    count = len(concepts.names)
    if count < 3:
        raise ValueError(f"a bootstrap needs at least 3 concepts, got {count}")
    if other is not None and tuple(other.names) != tuple(concepts.names):
        raise ValueError("the two sets must hold the same concepts in the same order")
    if not 0 < level < 1:
        raise ValueError(f"level must be above 0 and below 1, got {level}")
    check_range("resamples", resamples)
    check_choice("pairs", pairs, Pairs)
    members = _members(concepts, pairs)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    tail = [(1 - level) / 2, (1 + level) / 2]
    value, samples = _distances(concepts, np.ones((1, count)), members)[0], _distances(concepts, draws, members)
    second = None if other is None else float(_distances(other, np.ones((1, count)), members)[0])
    apart = None if other is None else np.nanquantile(_distances(other, draws, members) - samples, tail)
    return Dispersion(
        value=float(value),
        interval=np.nanquantile(samples, tail),
        other=second,
        difference=None if second is None else second - float(value),
        difference_interval=apart,
        level=level,
        pairs=pairs,
        provenance=dict(concepts.provenance),
    )


def _members(concepts: ConceptSet, pairs: Pairs) -> list[Ints]:
    """The concepts of each group, or all as one group."""
    if pairs == "all":
        return [np.arange(len(concepts.names))]
    groups = np.array(concepts.groups)
    members: list[Ints] = [np.flatnonzero(groups == group) for group in dict.fromkeys(concepts.groups) if group]
    if not any(len(group_members) > 1 for group_members in members):
        raise ValueError('no group of this set has two concepts: give the concepts groups, or take pairs="all"')
    return members


def _distances(concepts: ConceptSet, times: NDArray[Any], members: list[Ints]) -> Floats:
    """(samples,) mean distance of pairs within a group; ``times`` (samples, concepts) counts each concept.

    NaN for a sample without such a pair.
    """
    directions = np.asarray(concepts.directions, dtype=np.float64)
    cosine_sum, n_pairs = np.zeros(len(times)), np.zeros(len(times))
    for group in members:
        count, rows = times[:, group].astype(np.float64), directions[group]
        cosine_sum += ((count @ rows) ** 2).sum(axis=1) - (count**2) @ (rows**2).sum(axis=1)
        n_pairs += count.sum(axis=1) ** 2 - (count**2).sum(axis=1)
    return np.asarray(1 - ratio(cosine_sum, n_pairs))
