"""Group comparisons against hand-made numbers, and the property that a real difference is told from none."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from interp_widgets.analysis._core.statistics import (
    bootstrap_mean,
    compare_groups,
    compare_many,
    holm,
    largest_p,
    largest_sign_flip_p,
)

FIRST, SECOND = [3.0, 4.5, 5.0, 6.0], [1.0, 2.0, 4.0]


def test_every_number_by_hand() -> None:
    found = compare_groups(FIRST, SECOND, names=("a", "b"), resamples=500)
    a, b = np.array(FIRST), np.array(SECOND)
    assert found.n == (4, 3)
    assert found.mean == (a.mean(), b.mean())
    assert found.std == (np.sqrt(((a - a.mean()) ** 2).mean()), b.std())
    assert found.difference == a.mean() - b.mean()
    error = a.var(ddof=1) / 4 + b.var(ddof=1) / 3
    t = (a.mean() - b.mean()) / np.sqrt(error)
    degrees = error**2 / ((a.var(ddof=1) / 4) ** 2 / 3 + (b.var(ddof=1) / 3) ** 2 / 2)
    assert found.welch_t == pytest.approx(t)
    assert found.welch_p == pytest.approx(stats.t.sf(t, degrees))
    assert found.cohens_d == pytest.approx((a.mean() - b.mean()) / np.sqrt((3 * a.var(ddof=1) + 2 * b.var(ddof=1)) / 5))
    ranks = stats.rankdata([*a, *b])
    assert found.spearman_rho == pytest.approx(np.corrcoef(ranks, [1, 1, 1, 1, 0, 0, 0])[0, 1])
    low, high = found.difference_interval
    assert low < found.difference < high
    assert found.holm_p is None
    assert found.paired_p is None


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_permutation_p_counts_all_relabelings_of_a_small_case(alternative: Any) -> None:
    pool = np.array(FIRST + SECOND)
    gaps = []
    for chosen in combinations(range(7), 4):
        inside = np.isin(np.arange(7), chosen)
        gaps.append(pool[inside].mean() - pool[~inside].mean())
    seen, all_gaps = np.mean(FIRST) - np.mean(SECOND), np.array(gaps)
    right, left = (all_gaps >= seen - 1e-12).mean(), (all_gaps <= seen + 1e-12).mean()
    wanted = {"greater": right, "less": left, "two-sided": min(1, 2 * min(right, left))}[alternative]
    found = compare_groups(FIRST, SECOND, alternative=alternative)
    assert found.permutation_p == pytest.approx(wanted)


def test_alternatives_turn_with_the_groups() -> None:
    greater = compare_groups(FIRST, SECOND, resamples=99)
    less = compare_groups(SECOND, FIRST, alternative="less", resamples=99)
    two = compare_groups(FIRST, SECOND, alternative="two-sided", resamples=99)
    assert greater.welch_p == pytest.approx(less.welch_p)
    assert two.welch_p == pytest.approx(2 * greater.welch_p)
    assert greater.spearman_p == pytest.approx(two.spearman_p)
    assert greater.cohens_d == pytest.approx(-less.cohens_d)


def test_a_planted_difference_is_found_and_none_is_not() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(size=150)
    planted = compare_groups(rng.normal(0.6, 1, size=100), base, resamples=999)
    control = compare_groups(rng.normal(0, 1, size=100), base, resamples=999)
    for p in ("welch_p", "spearman_p", "permutation_p"):
        assert getattr(planted, p) < 0.01
        assert getattr(control, p) > 0.05
    assert planted.difference_interval[0] > 0 > control.difference_interval[0]
    assert planted.cohens_d == pytest.approx(0.6, abs=0.3)


@pytest.mark.seconds
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    inside = [
        low < 1.0 < high
        for low, high in (
            compare_groups(rng.normal(1, 1, 40), rng.normal(0, 1, 40), resamples=400).difference_interval
            for _ in range(120)
        )
    ]
    assert 0.87 <= np.mean(inside) <= 0.99


def test_same_seed_same_numbers() -> None:
    one, same, other = (compare_groups(range(30), range(-3, 20), resamples=200, seed=s) for s in (5, 5, 6))
    assert one.equals(same)
    assert one.difference_interval != other.difference_interval
    assert one.welch_p == other.welch_p


def test_groups_without_spread_have_no_p_value() -> None:
    found = compare_groups([1, 1, 1], [1, 1])
    assert np.isnan([found.welch_p, found.spearman_p, found.cohens_d]).all()
    assert found.permutation_p == 1
    assert found.difference_interval == (0, 0)
    assert holm([found])[0].holm_p is None


def test_paired_test_uses_the_pairs() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(0, 5, size=40)
    tuned = base + 0.5 + rng.normal(0, 0.1, size=40)
    found = compare_groups(tuned, base, paired=(tuned, base), resamples=99)
    assert found.paired_p is not None
    assert found.paired_p < 1e-6 < found.welch_p
    shuffled = compare_groups(tuned, base, paired=(tuned, rng.permutation(base)), resamples=99)
    assert shuffled.paired_p is not None
    assert shuffled.paired_p > 0.01
    with pytest.raises(ValueError, match="must match one to one, got 40 and 39"):
        compare_groups(tuned, base, paired=(tuned, base[1:]), resamples=9)


def test_holm_steps_down() -> None:
    rng = np.random.default_rng(4)
    pairs = {f"group {i}": (rng.normal(0.25 * i, 1, 30), rng.normal(0, 1, 30)) for i in range(4)}
    found = compare_many(pairs, names=("tuned", "base"), resamples=99)
    raw = np.array([f.welch_p for f in found])
    order = np.argsort(raw)
    stepped = np.minimum(1, np.maximum.accumulate(raw[order] * (4 - np.arange(4))))
    assert [found[i].holm_p for i in order] == pytest.approx(stepped.tolist())
    assert [f.holm_p for f in found] == pytest.approx(multipletests(raw, method="holm")[1].tolist())
    assert [f.group for f in found] == list(pairs)
    assert all(f.holm_p is not None and f.holm_p >= f.welch_p for f in found)


@pytest.mark.parametrize(
    ("first", "options", "message"),
    [
        ([1.0], {}, r"2 or more scores, group 'first' has shape \(1,\)"),
        ([1.0, float("nan")], {}, "NaN or infinite"),
        ([1.0, 2.0], {"alternative": "bigger"}, "alternative must be 'greater', 'less' or 'two-sided'"),
        ([1.0, 2.0], {"resamples": 0}, "resamples must be 1 or more"),
        ([1.0, 2.0], {"confidence": 1.0}, "confidence must be above 0 and below 1"),
        ([1.0, 2.0], {"names": ("a", "b", "c")}, "names must be two names, got 3"),
    ],
)
def test_bad_input_is_refused(first: list[float], options: dict[str, Any], message: str) -> None:
    # run-time type checking sees a wrong alternative before the function does
    with pytest.raises((ValueError, TypeError), match=rf"{message}|alternative"):
        compare_groups(first, [1.0, 2.0, 3.0], **options)


def test_bootstrap_of_a_mean_is_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(6).normal(size=(400, 3)) * [1, 2, 5]
    low, high = bootstrap_mean(values, resamples=4000)
    error = values.std(axis=0) / np.sqrt(400)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert (low + high) / 2 == pytest.approx(values.mean(axis=0), abs=0.1 * error.max())


def test_clustered_bootstrap_is_wider_where_rows_repeat() -> None:
    rng = np.random.default_rng(5)
    values = np.repeat(rng.normal(size=(30, 2)), 10, axis=0)
    loose = np.diff(bootstrap_mean(values, resamples=500), axis=0)
    strict = np.diff(bootstrap_mean(values, clusters=np.repeat(np.arange(30), 10), resamples=500), axis=0)
    assert (strict > 2 * loose).all()
    low, high = bootstrap_mean(values, clusters=np.repeat(np.arange(30), 10), resamples=500)
    assert (low < values.mean(axis=0)).all()
    assert (values.mean(axis=0) < high).all()
    with pytest.raises(ValueError, match="n of 1 or more"):
        bootstrap_mean(np.zeros((0, 4)))


def test_summary_and_row_say_the_same() -> None:
    found = holm([compare_groups(FIRST, SECOND, names=("tuned", "base"), resamples=99)])[0]
    text, row = found.summary(), found.row()
    assert text.startswith("tuned 4.6250 ± 1.08 (n 4) against base 2.3333 ± 1.25 (n 3)")
    assert f"Holm p = {found.welch_p:.2g}" in text
    assert row["n_first"] == 4
    assert row["welch_p"] == found.welch_p


def test_sign_flips_of_the_largest_t_are_the_naive_ones_and_keep_their_level() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 5)) + np.array([2.0, 0.0, 0.5, 0.0, 0.0])
    flips = [np.array([1 - 2 * (number >> i & 1) for i in range(6)]) for number in range(64)]
    sizes = np.abs([stats.ttest_1samp(flip[:, None] * rows, 0).statistic for flip in flips])
    wanted = (sizes.max(1)[:, None] >= sizes[0] * (1 - 1e-9)).mean(0)
    np.testing.assert_allclose(largest_sign_flip_p(rows), wanted)
    assert wanted[0] < 0.05 < wanted[1]
    null = [(largest_sign_flip_p(rng.standard_normal((8, 40))) < 0.05).any() for _ in range(400)]
    assert np.mean(null) < 0.08, "some column of 40 is below the level in about 5% of the cases"
    assert largest_sign_flip_p(np.zeros((6, 2))).tolist() == [1.0, 1.0]
    np.testing.assert_allclose(largest_sign_flip_p(np.ones((6, 2))), 2 / 64)
    assert np.isnan(largest_sign_flip_p(rows[:1])).all()


def test_the_largest_of_all_columns_corrects_draws() -> None:
    """Against a loop; the level with heavy tails, unequal scales and columns that move together; what is left out."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.standard_normal(30))

    def rows(count: int) -> Any:
        return (rng.standard_t(3, (count, 30)) + 2 * rng.standard_normal((count, 1))) * scales

    one = rows(20)
    sizes = np.abs(one) / np.sqrt((one**2).mean(0))
    wanted = [(1 + sum(row.max() >= own for row in sizes[1:])) / 20 for own in sizes[0]]
    np.testing.assert_allclose(largest_p(one[0], one[1:]), wanted)
    found = [(largest_p(each[0], each[1:]) <= 0.05).any() for each in (rows(20) for _ in range(600))]
    assert 0.03 < np.mean(found) < 0.07
    strong = one.copy()
    strong[0, 4] = 20 * one[:, 4].max()
    assert largest_p(strong[0], strong[1:])[4] == 0.05
    strong[:, 3], strong[7, 5] = 1e-12, np.nan
    p = largest_p(strong[0], strong[1:])
    assert (p[3], np.isnan(p[5]), p[4]) == (1.0, True, 0.05)
