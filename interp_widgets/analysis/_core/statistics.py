"""Comparison of two groups of scores: tests, intervals, effect size, correction over several groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import scipy  # scipy.stats takes a second to import: scipy itself loads it on first use
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.checks import check_choice, check_range
from interp_widgets.analysis._core.result import Record, record, with_axes

Alternative = Literal["greater", "less", "two-sided"]
"""The alternative hypothesis: how the first group's mean compares with the second's."""

BEYOND = 0.05
"""Largest p of an effect that is called beyond chance."""
_SIGNS = {"greater": ">", "less": "<", "two-sided": "≠"}
_CLAIMED = {"welch_p": "Welch", "permutation_p": "permutation", "paired_p": "paired", "holm_p": "Holm"}
"""P-values under the claim of a comparison, and what they are called."""

_BATCH_ELEMENTS = 2_000_000
_ROUNDING = 1e-10
"""Scores that differ by less than this, relative to their size, differ by rounding alone."""


@record
class GroupComparison(Record):
    """Two groups of scores, and tests of whether they differ.

    `alternative` states the claim that the one-sided p-values test: the first group's mean is greater (or less) than
    the second's. Pairs of numbers run first group, second group.
    Source of the choice of tests: Wu et al. 2024, Tables 1 and 2.
    """

    names: Sequence[str] = with_axes(2)
    """Names of the groups."""

    values: Sequence[NDArray[np.float64]] = with_axes(2)
    """Arrays of the scores."""

    mean: Sequence[float] = with_axes(2)
    """Means."""

    std: Sequence[float] = with_axes(2)
    """Population standard deviations (divided by n), as the paper's tables print them."""

    interval: Sequence[Sequence[float]] = with_axes(2, 2)
    """Bootstrap interval of each mean: low, high."""

    difference: float
    """First mean minus second mean."""

    difference_interval: Sequence[float] = with_axes(2)
    """Bootstrap interval of the difference: low, high."""

    welch_t: float
    """Welch's t, unequal variances."""

    welch_p: float
    """Its p-value under `alternative`; NaN when neither group varies."""

    spearman_rho: float
    """Spearman's correlation of the score with the label (first group 1, second 0)."""

    spearman_p: float
    """Its two-sided p-value; NaN when all scores are equal."""

    permutation_p: float
    """Share of random relabelings (or of all of them, when they are few) whose difference is at least as extreme."""

    cohens_d: float
    """Difference over the pooled sample standard deviation; NaN when neither group varies."""

    paired_p: float | None = None
    """Paired t-test's p-value under `alternative`, for two groups of the same cases; None otherwise."""

    holm_p: float | None = None
    """Welch's p-value corrected over a family of comparisons (Holm); None for a single comparison."""

    alternative: str = "greater"
    """The claim tested: an :data:`Alternative`."""

    confidence: float = 0.95
    """Level of the bootstrap intervals."""

    kind: str = ""
    """What is compared, in a result with several comparisons: ``followed`` or ``models``."""

    model: str = ""
    """The model whose responses are compared, in a result with several models."""

    group: str = "all"
    """The group of cases compared, ``all`` for every case."""

    @property
    def n(self) -> tuple[int, int]:
        """Sizes of the two groups."""
        return len(self.values[0]), len(self.values[1])

    @property
    def claim(self) -> str:
        """Side and direction of all p-values but Spearman's, such as ``one-sided, tuned > base``."""
        side = "two-sided" if self.alternative == "two-sided" else "one-sided"
        return f"{side}, {self.names[0]} {_SIGNS[self.alternative]} {self.names[1]}"

    @property
    def sides(self) -> dict[str, str]:
        """Side and direction of each available p-value, by its name."""
        known = [name for name in _CLAIMED if getattr(self, name) is not None]
        return {**dict.fromkeys(known, self.claim), "spearman_p": "two-sided"}

    def row(self) -> dict[str, str | float | int | None]:
        """The comparison as one flat table row, without the single scores."""
        first, second = self.n
        return {
            "kind": self.kind, "model": self.model, "group": self.group,
            "first": self.names[0], "second": self.names[1],
            "n_first": first, "n_second": second, "mean_first": self.mean[0], "std_first": self.std[0],
            "mean_second": self.mean[1], "std_second": self.std[1], "difference": self.difference,
            "low": self.difference_interval[0], "high": self.difference_interval[1], "welch_p": self.welch_p,
            "holm_p": self.holm_p, "spearman_rho": self.spearman_rho, "spearman_p": self.spearman_p,
            "permutation_p": self.permutation_p, "cohens_d": self.cohens_d, "paired_p": self.paired_p,
            "claim": self.claim,
        }  # fmt: skip

    def summary(self) -> str:
        """A readable line: both means, the difference with its interval, and the p-values with their sides."""
        parts = [
            f"{name} {mean:.4f} ± {std:.2f} (n {n})"
            for name, mean, std, n in zip(self.names, self.mean, self.std, self.n, strict=True)
        ]
        low, high = self.difference_interval
        claimed = {name: getattr(self, name) for name in _CLAIMED if getattr(self, name) is not None}
        p_values = ", ".join(f"{_CLAIMED[name]} p = {value:.2g}" for name, value in claimed.items())
        return (
            f"{parts[0]} against {parts[1]}: difference {self.difference:+.3f} [{low:+.3f}, {high:+.3f}], "
            f"d = {self.cohens_d:.2f}; {p_values} ({self.claim}); Spearman p = {self.spearman_p:.2g} (two-sided)"
        )


C = TypeVar("C", GroupComparison, GroupComparison | None)


def compare_groups(
    first: ArrayLike,
    second: ArrayLike,
    *,
    names: Sequence[str] = ("first", "second"),
    alternative: Alternative = "greater",
    resamples: int = 9999,
    confidence: float = 0.95,
    seed: int = 0,
    paired: tuple[ArrayLike, ArrayLike] | None = None,
) -> GroupComparison:
    """Compare the means of two groups of scores.

    `first` and `second` are (n,) scores, at least two each. Welch's t-test and the permutation test are taken under
    `alternative`; Spearman's correlation with the label is two-sided; intervals are percentile bootstrap intervals.
    `paired` gives the scores of matching cases for a paired t-test beside the unpaired one. The same `seed` gives the
    same numbers. Raises ValueError for short groups, NaN scores or options out of range.

    Source: Wu et al. 2024, section 4.2: Welch, one-sided, is Table 2; Spearman, two-sided, gives the p-values
    printed in Table 1.

    >>> comparison = compare_groups([3, 4, 5, 6], [1, 2, 3, 2], resamples=99)
    >>> comparison.difference, comparison.welch_p < 0.05
    (2.5, True)
    """
    groups = _checked(first, second, names)
    check_choice("alternative", alternative, Alternative)
    check_range("resamples", resamples)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be above 0 and below 1, got {confidence}")
    scores, label = np.concatenate(groups), np.repeat([1, 0], [len(groups[0]), len(groups[1])])
    spread = np.sqrt(sum(g.var(ddof=1) * (len(g) - 1) for g in groups) / (len(scores) - 2))
    difference = float(groups[0].mean() - groups[1].mean())
    spread = spread if spread > _ROUNDING * np.abs(scores).max() else 0.0
    welch = _welch(groups, alternative) if spread > 0 else None
    rho, rank_p = spearman(scores, label)
    # one random stream per number, so that computing one more changes no other
    streams = [np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(4)]
    boot: dict[str, Any] = {"confidence": confidence, "resamples": resamples}
    return GroupComparison(
        names=tuple(names),
        values=tuple(groups),
        mean=tuple(float(g.mean()) for g in groups),
        std=tuple(float(g.std()) for g in groups),
        interval=tuple(_interval((g,), _mean, rng=rng, **boot) for g, rng in zip(groups, streams[:2], strict=True)),
        difference=difference,
        difference_interval=_interval(groups, _mean_difference, rng=streams[2], **boot),
        welch_t=float(welch.statistic) if welch else float("nan"),
        welch_p=float(welch.pvalue) if welch else float("nan"),
        spearman_rho=rho,
        spearman_p=rank_p,
        permutation_p=_permutation_p(groups, alternative, resamples, streams[3]),
        cohens_d=float(difference / spread) if spread > 0 else float("nan"),
        paired_p=_paired_p(paired, alternative),
        alternative=alternative,
        confidence=confidence,
    )


def spearman(first: ArrayLike, second: ArrayLike) -> tuple[float, float]:
    """Spearman's correlation of two lists of numbers and its two-sided p-value; NaN where one of them is constant.

    >>> spearman([1, 2, 3, 4], [10, 20, 30, 40])[0], spearman([1, 1], [1, 2])
    (1.0, (nan, nan))
    """
    if np.ptp(np.asarray(first)) == 0 or np.ptp(np.asarray(second)) == 0:
        return float("nan"), float("nan")
    result = scipy.stats.spearmanr(first, second)
    return float(result.statistic), float(result.pvalue)


def compare_known(first: ArrayLike, second: ArrayLike, **options: Any) -> GroupComparison | None:
    """`compare_groups`; None where a group has fewer than two scores."""
    enough = min(len(np.asarray(first)), len(np.asarray(second))) >= 2
    return compare_groups(first, second, **options) if enough else None


def compare_many(
    pairs: Mapping[str, tuple[ArrayLike, ArrayLike]], *, names: Sequence[str] = ("first", "second"), **options: Any
) -> tuple[GroupComparison, ...]:
    """Compare two sets of scores within each of several groups, and correct the p-values over the groups.

    `pairs` maps a group's name to its two sets of scores; `options` go to :func:`compare_groups`. Welch's p-values are
    corrected by Holm's method over the groups. Returns one comparison per group, in order.
    """
    return holm([replace(compare_groups(*pair, names=names, **options), group=group) for group, pair in pairs.items()])


def holm(comparisons: Sequence[C]) -> tuple[C, ...]:
    """Comparisons with Welch's p-values corrected over all of them (Holm 1979).

    NaN, and None where nothing was compared, stay out of the family.

    >>> pairs = [([3, 4, 5], [1, 2, 3]), ([1, 2, 3], [1, 2, 4])]
    >>> corrected = holm([compare_groups(*pair, resamples=9) for pair in pairs])
    >>> corrected[0].holm_p == 2 * corrected[0].welch_p
    True
    """
    corrected: list[Any] = list(comparisons)
    adjusted = holm_adjusted([np.nan if comparison is None else comparison.welch_p for comparison in comparisons])
    for i in np.flatnonzero(np.isfinite(adjusted)):
        corrected[i] = replace(corrected[i], holm_p=float(adjusted[i]))
    return tuple(corrected)


def holm_adjusted(p_values: ArrayLike) -> NDArray[np.float64]:
    """P-values corrected for their number by Holm's method (1979); NaN ones stay out of the family.

    >>> holm_adjusted([0.01, 0.04, float("nan")]).tolist()
    [0.02, 0.04, nan]
    """
    # statsmodels' multipletests runs the garbage collector at every call, which takes a second in a large process
    p = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(p.shape, np.nan)
    tested = [i for i in np.argsort(p, kind="stable") if np.isfinite(p[i])]
    so_far = 0.0
    for step, i in enumerate(tested):
        so_far = max(so_far, min(1.0, (len(tested) - step) * p[i]))
        corrected[i] = so_far
    return corrected


def sign_flip_p(rows: ArrayLike, *, resamples: int = 9999, seed: int = 0) -> NDArray[np.float64]:
    """(columns,) two-sided p-values of the mean of each column of `rows` (n, columns) being 0.

    The signs of whole rows are flipped: every way where there are at most `resamples`, else that many random ones and
    the observed one. NaN with fewer than two rows.

    >>> sign_flip_p([[1.0, 1.0], [2.0, -1.0], [3.0, 0.0]]).tolist()
    [0.25, 1.0]
    """
    values = np.asarray(rows, dtype=np.float64)
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    signs = _signs(len(values), resamples, seed)
    observed = np.abs(values.sum(0))
    reached = np.zeros(values.shape[1])
    step = max(1, _BATCH_ELEMENTS // max(1, values.shape[1]))
    for start in range(0, len(signs), step):
        flipped = np.abs(signs[start : start + step] @ values)
        reached += (flipped >= observed - _ROUNDING * np.abs(values).sum(0)).sum(0)
    return reached / len(signs)


def largest_sign_flip_p(rows: ArrayLike, *, resamples: int = 1024, seed: int = 0) -> NDArray[np.float64]:
    """(columns,) two-sided p-values of the mean of each column of `rows` (n, columns) being 0, corrected over all.

    As `sign_flip_p`, but each column's t is compared with the largest of all columns in each flip, so that with one
    true null or many the chance of any p below a level is at most that level, however the columns depend on each
    other (Westfall & Young 1993). NaN with fewer than two rows.

    >>> largest_sign_flip_p([[1.0, 1.0], [1.1, -1.0], [0.9, 0.0]]).tolist()
    [0.25, 1.0]
    """
    values = np.asarray(rows, dtype=np.float64)
    count, columns = values.shape
    if count < 2:
        return np.full(columns, np.nan)
    signs, squares = _signs(count, resamples, seed), np.square(values).sum(0)

    def t_of(flips: NDArray[np.float64]) -> NDArray[np.float64]:
        """(flips, columns) |t| of every column."""
        means = np.abs(flips @ values) / count
        means[means <= _ROUNDING * np.abs(values).max(0)] = 0.0
        variance = np.maximum(squares - count * means**2, _ROUNDING * squares) / (count - 1)
        return np.asarray(np.divide(means, np.sqrt(variance / count), out=np.zeros_like(means), where=means > 0))

    step = max(1, _BATCH_ELEMENTS // max(1, columns))
    batches = [signs[start : start + step] for start in range(0, len(signs), step)]
    largest = np.sort(np.concatenate([t_of(batch).max(1, initial=0.0) for batch in batches]))
    observed = t_of(signs[:1])[0] * (1 - 1e-9)
    return np.asarray((len(signs) - np.searchsorted(largest, observed)) / len(signs))


def largest_p(observed: ArrayLike, draws: ArrayLike) -> NDArray[np.float64]:
    """(columns,) two-sided p-values of observed values (columns,) among random `draws` (draws, columns), corrected.

    Each size is taken relative to the root mean square of its column, and compared with the largest of all columns in
    each draw, so that the chance of any p below a level is at most that level where the observed values are but one
    more draw, however the columns depend on each other (Westfall & Young 1993). A column next to the others of no size
    has p 1; NaN where a value is not finite.

    >>> largest_p([9.0, 1.0], [[1.0, 1.0], [-1.0, 2.0], [2.0, 1.0]]).tolist()
    [0.25, 1.0]
    """
    rows = np.concatenate([np.asarray(observed, dtype=np.float64)[None], np.asarray(draws, dtype=np.float64)])
    p, tested = np.full(rows.shape[1], np.nan), np.isfinite(rows).all(0)
    rows = np.abs(rows[:, tested])
    spread = np.sqrt(np.square(rows).mean(0))
    least = 1e-6 * spread.max(initial=0.0)
    sizes = np.divide(rows, spread, out=np.zeros_like(rows), where=spread > least)
    largest = np.sort(sizes[1:].max(1, initial=0.0))
    p[tested] = (len(rows) - np.searchsorted(largest, sizes[0] * (1 - 1e-9))) / len(rows)
    return p


def _signs(count: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """(flips, count) all ways to flip signs, or random ones if there are more than `resamples`; none flipped first."""
    if 2**count <= resamples:
        return np.asarray(1.0 - 2.0 * (np.arange(2**count)[:, None] >> np.arange(count) & 1))
    drawn = np.random.default_rng(seed).choice([-1.0, 1.0], size=(resamples, count))
    return np.concatenate([np.ones((1, count)), drawn])


def resampled_means(
    rows: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    resamples: int = 9999,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(resamples, columns) the mean row of bootstrap draws.

    `rows` is (n, columns). `clusters` (n,) names what each row belongs to; whole clusters are then drawn, since rows of
    one cluster (sentences of one prompt, say) are not independent. Raises ValueError when there is no row.
    """
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise ValueError(f"rows must have shape (n, columns) with n of 1 or more, got {values.shape}")
    _, member = np.unique(np.arange(len(values)) if clusters is None else np.asarray(clusters), return_inverse=True)
    count = int(member.max()) + 1
    size = np.bincount(member, minlength=count)
    total = np.stack([np.bincount(member, weights=column, minlength=count) for column in values.T], axis=1)
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, _BATCH_ELEMENTS // (count * values.shape[1]))
    for start in range(0, resamples, step):
        drawn = rng.integers(count, size=(min(step, resamples - start), count))
        means[start : start + step] = total[drawn].sum(axis=1) / size[drawn].sum(axis=1, keepdims=True)
    return means


def bootstrap_mean(
    rows: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    resamples: int = 9999,
    seed: int = 0,
) -> NDArray[np.float64]:
    """The 95% bootstrap interval of the mean row: (2, columns), low and high; arguments as in `resampled_means`."""
    means = resampled_means(rows, clusters=clusters, resamples=resamples, seed=seed)
    tail = (1 - 0.95) / 2
    return np.quantile(means, [tail, 1 - tail], axis=0)


def _checked(first: ArrayLike, second: ArrayLike, names: Sequence[str]) -> tuple[NDArray[np.float64], ...]:
    if len(names) != 2:
        raise ValueError(f"names must be two names, got {len(names)}")
    groups = tuple(np.asarray(values, dtype=np.float64) for values in (first, second))
    for name, values in zip(names, groups, strict=True):
        if values.ndim != 1 or len(values) < 2:
            raise ValueError(f"each group needs a list of 2 or more scores, group {name!r} has shape {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError(f"group {name!r} has scores that are NaN or infinite: leave those cases out")
    return groups


def _welch(groups: Sequence[NDArray[np.float64]], alternative: Alternative) -> Any:
    # from the moments, since ttest_ind warns about every group with equal scores
    moments = [value for g in groups for value in (g.mean(), g.std(ddof=1), len(g))]
    return scipy.stats.ttest_ind_from_stats(*moments, equal_var=False, alternative=alternative)


def _mean(sample: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    return np.asarray(np.mean(sample, axis=axis))


def _mean_difference(first: NDArray[np.float64], second: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    return np.asarray(np.mean(first, axis=axis) - np.mean(second, axis=axis))


def _interval(
    data: tuple[NDArray[np.float64], ...],
    statistic: Any,
    *,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    interval = scipy.stats.bootstrap(
        data,
        statistic,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",  # unlike BCa, defined for groups without spread too
        vectorized=True,
        batch=max(1, _BATCH_ELEMENTS // sum(map(len, data))),
        rng=rng,
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _permutation_p(
    groups: tuple[NDArray[np.float64], ...], alternative: Alternative, resamples: int, rng: np.random.Generator
) -> float:
    test = scipy.stats.permutation_test(
        groups,
        _mean_difference,
        n_resamples=resamples,
        alternative=alternative,
        vectorized=True,
        batch=max(1, _BATCH_ELEMENTS // sum(map(len, groups))),
        rng=rng,
    )
    return float(test.pvalue)


def _paired_p(paired: tuple[ArrayLike, ArrayLike] | None, alternative: Alternative) -> float | None:
    if paired is None:
        return None
    first, second = _checked(*paired, names=("first of the pairs", "second of the pairs"))
    if len(first) != len(second):
        raise ValueError(f"paired scores must match one to one, got {len(first)} and {len(second)}")
    if np.ptp(first - second) <= _ROUNDING * np.abs(np.concatenate([first, second])).max():
        return float("nan")
    return float(scipy.stats.ttest_rel(first, second, alternative=alternative).pvalue)
