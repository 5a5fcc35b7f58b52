"""Compare two sweeps, or two groups of items of one sweep, on each measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # scipy.stats takes a second to import: scipy itself loads it on first use
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.statistics import bootstrap_mean, compare_groups, holm_adjusted
from interp_widgets.arguments import checked

from .result import SweepResult

if TYPE_CHECKING:
    import pandas as pd

_MIN_ITEMS = 3
"""Groups with fewer items get no p-value."""
_BATCH_VALUES = 2_000_000


@record
class SweepComparison(Result):
    """Differences between two sweeps over the same items, or between two groups of items of one sweep.

    Example:
        >>> rows = [{"text": "a" * n, "kind": "short" if n < 5 else "long"} for n in range(1, 9)]
        >>> result = sweep(lambda row: {"length": len(row["text"])}, rows)
        >>> compare_sweeps(result, by="kind", groups=["long", "short"]).difference.tolist()
        [4.0]
    """

    names: Sequence[str] = with_axes(2)
    """Names of the two sweeps or groups, first and second."""

    measured: Sequence[str] = with_axes("measures")
    """Names of the measures that are compared."""

    n: Ints = with_axes("measures", 2)
    """(measures, 2) items that have the measure; for two sweeps, those that have it in both."""

    mean: Floats = with_axes("measures", 2)
    """(measures, 2) mean of each measure."""

    difference: Floats = with_axes("measures")
    """(measures,) first minus second mean."""

    interval: Floats = with_axes("measures", 2)
    """(measures, 2) 95% bootstrap interval of the difference."""

    permutation_p: Floats = with_axes("measures")
    """(measures,) two-sided p-value of a permutation test, which permutes the signs of the differences (two sweeps) or
    the labels (two groups). NaN for fewer than three items, or if all values are equal."""

    holm_p: Floats = with_axes("measures")
    """(measures,) the same with Holm's correction over the measures."""

    effect_size: Floats = with_axes("measures")
    """(measures,) Cohen's d: the difference over the standard deviation; for two sweeps, over the standard deviation of
    the items' differences."""

    paired: bool
    """True for two sweeps over the same items, False for two groups."""

    def to_frame(self) -> pd.DataFrame:
        """One row per measure."""
        import pandas as pd

        return pd.DataFrame(
            {
                "measure": self.measured, "n_first": self.n[:, 0], "n_second": self.n[:, 1],
                "mean_first": self.mean[:, 0], "mean_second": self.mean[:, 1], "difference": self.difference,
                "low": self.interval[:, 0], "high": self.interval[:, 1], "permutation_p": self.permutation_p,
                "holm_p": self.holm_p, "effect_size": self.effect_size,
            }
        )  # fmt: skip


@checked
def compare_sweeps(
    first: SweepResult,
    second: SweepResult | None = None,
    *,
    by: str | None = None,
    groups: Sequence[str] | None = None,
    names: Sequence[str] = ("first", "second"),
    measures: Sequence[str] | None = None,
    seed: int = 0,
    resamples: int = 9999,
) -> SweepComparison:
    """Compare two sweeps over the same items pair by pair, or two groups of one sweep.

    Args:
        first: a sweep.
        second: another sweep over the same items, for example with another model.
        by: instead of ``second``, a column of the first sweep whose two values are the groups.
        groups: which two values of that column, if it has more.
        names: names of the two sweeps in the result.
        measures: which measures; by default all numbers that both have.
        seed: of the bootstrap and the permutations.
        resamples: number of bootstrap draws, and of permutations.

    Raises:
        ValueError: neither or both of ``second`` and ``by``, different items, other than two groups, an unknown
                measure, or no number that both have.

    Example:
        >>> from functools import partial
        >>> prompts = [f"The capital of {country} is" for country in ("France", "Italy", "Japan", "Peru")]
        >>> both = [sweep(partial(logit_lens, model), prompts) for model in (tuned, base)]
        >>> found = compare_sweeps(*both, names=["tuned", "base"], resamples=99)
        >>> found.paired, found.n[0].tolist()
        (True, [4, 4])
    """
    if (second is None) == (by is None):
        raise ValueError("give either a second sweep over the same items, or by= a column of the first sweep")
    if len(names) != 2:
        raise ValueError(f"names must be two names, got {len(names)}")
    left, right = (first, second) if second is not None else (first, first)
    shared = [name for name in left.number_measures if name in right.number_measures]
    if not shared:
        raise ValueError(
            f"the sweeps have no measure in common that is a number: the first has {_listed(left)}, the second "
            f"{_listed(right)}; sweep the same function, or give both a measure= of one name"
        )
    if unknown := [name for name in measures or () if name not in shared]:
        raise ValueError(f"measures must be of {', '.join(map(repr, shared))}, got {unknown[0]!r}")
    wanted = list(measures or shared)
    if second is not None:
        at = _common_items(first, second)
        pairs = [(first.numbers(name)[at[0]], second.numbers(name)[at[1]]) for name in wanted]
    else:
        values, names = np.array(first.groups(str(by)), dtype=object), _groups(first, str(by), groups)
        pairs = [tuple(first.numbers(name)[values == group] for group in names) for name in wanted]
    compare = _paired if second is not None else _unpaired
    rows = [compare(*pair, seed, resamples) for pair in pairs]
    n, mean, difference, interval, p, effect = (list(column) for column in zip(*rows, strict=True))
    return SweepComparison(
        names=tuple(names),
        measured=wanted,
        n=np.reshape(n, (-1, 2)).astype(np.int64),
        mean=np.reshape(mean, (-1, 2)).astype(float),
        difference=np.asarray(difference, dtype=float),
        interval=np.reshape(interval, (-1, 2)).astype(float),
        permutation_p=np.asarray(p, dtype=float),
        holm_p=holm_adjusted(p),
        effect_size=np.asarray(effect, dtype=float),
        paired=second is not None,
        provenance=provenance(seed=seed, resamples=resamples, by=by),
    )


def _listed(result: SweepResult) -> str:
    return ", ".join(map(repr, result.number_measures)) or "none"


_Row = tuple[tuple[int, int], tuple[float, float], float, tuple[float, float], float, float]


def _common_items(first: SweepResult, second: SweepResult) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of the common items in the first and in the second sweep."""
    _, at_first, at_second = np.intersect1d(first.rows, second.rows, return_indices=True)
    columns = [{*each.label_names, *each.number_names} - {*each.measured} for each in (first, second)]
    for name in sorted(columns[0] & columns[1]):
        texts = first.groups(name), second.groups(name)  # numbers as texts too
        for i, j in zip(at_first, at_second, strict=True):
            if texts[0][i] != texts[1][j]:
                raise ValueError(
                    f"the sweeps are of different items: row {first.rows[i]} has {texts[0][i]!r} and {texts[1][j]!r} "
                    f"as {name!r}; sweep the same items in the same order"
                )
    if not len(at_first):
        raise ValueError("the sweeps have no item in common: sweep the same items")
    return at_first, at_second


def _groups(result: SweepResult, by: str, groups: Sequence[str] | None) -> tuple[str, str]:
    """The two groups that are compared; ValueError if they are not two values of the column."""
    values = sorted(set(result.groups(by)) - {""})
    wanted = list(values if groups is None else groups)
    if len(wanted) != 2 or wanted[0] == wanted[1] or any(group not in values for group in wanted):
        raise ValueError(
            f"groups must be two values of {by!r}, got {', '.join(map(repr, wanted)) or 'none'}: it has "
            f"{', '.join(map(repr, values)) or 'none'}"
        )
    return wanted[0], wanted[1]


def _paired(first: Floats, second: Floats, seed: int, resamples: int) -> _Row:
    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    change = first - second
    n = len(change)
    if n == 0:
        return (0, 0), (np.nan, np.nan), np.nan, (np.nan, np.nan), np.nan, np.nan
    low, high = bootstrap_mean(change[:, None], seed=seed, resamples=resamples)[:, 0] if n > 1 else (np.nan, np.nan)
    spread = change.std(ddof=1) if n > 1 else 0.0
    p = np.nan
    if n >= _MIN_ITEMS and change.any():
        p = scipy.stats.permutation_test(
            (change,), np.mean, permutation_type="samples", n_resamples=resamples, vectorized=True,
            batch=max(1, _BATCH_VALUES // n), rng=np.random.default_rng(seed),
        ).pvalue  # fmt: skip
    effect = change.mean() / spread if spread > 0 else np.nan
    return (n, n), (first.mean(), second.mean()), change.mean(), (low, high), float(p), effect


def _unpaired(first: Floats, second: Floats, seed: int, resamples: int) -> _Row:
    first, second = first[np.isfinite(first)], second[np.isfinite(second)]
    n = len(first), len(second)
    if min(n) < 2:
        means = tuple(group.mean() if len(group) else np.nan for group in (first, second))
        return n, means, means[0] - means[1], (np.nan, np.nan), np.nan, np.nan  # type: ignore[return-value]
    found = compare_groups(first, second, alternative="two-sided", seed=seed, resamples=resamples)
    varied = np.ptp(np.concatenate([first, second])) > 0 and min(n) >= _MIN_ITEMS
    low, high = found.difference_interval
    p = found.permutation_p if varied else np.nan
    return n, (found.mean[0], found.mean[1]), found.difference, (low, high), p, found.cohens_d
