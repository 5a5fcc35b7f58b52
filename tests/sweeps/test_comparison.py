"""Statistics over sweeps against the plain formulas, with a case that differs and one that does not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from interp_widgets import SweepResult, compare_sweeps, sweep
from interp_widgets.analysis._core.statistics import holm_adjusted

RNG = np.random.default_rng(0)
BEFORE = RNG.normal(size=40)
SHIFTED, UNCHANGED = BEFORE + RNG.normal(0.6, 1, size=40), BEFORE + RNG.normal(0, 1, size=40)


def measured(**columns: np.ndarray) -> SweepResult:
    n = len(next(iter(columns.values())))
    return sweep(lambda i: {name: float(values[i]) for name, values in columns.items()}, range(n))


def test_two_sweeps_are_compared_item_by_item() -> None:
    first, second = measured(moved=SHIFTED, still=UNCHANGED), measured(moved=BEFORE, still=BEFORE)
    found = compare_sweeps(first, second, names=["after", "before"])
    change = np.stack([SHIFTED - BEFORE, UNCHANGED - BEFORE])
    assert found.paired
    assert found.n.tolist() == [[40, 40]] * 2
    assert found.difference == pytest.approx(change.mean(axis=1))
    assert found.effect_size == pytest.approx(change.mean(axis=1) / change.std(axis=1, ddof=1))
    by_t = [scipy.stats.ttest_rel(after, BEFORE).pvalue for after in (SHIFTED, UNCHANGED)]
    assert found.permutation_p == pytest.approx(by_t, abs=0.02)
    assert found.holm_p[0] < 0.05 < found.holm_p[1]
    assert found.interval[0, 0] > 0 > found.interval[1, 0]
    assert found.to_frame().loc[0, "mean_first"] == pytest.approx(SHIFTED.mean())


def test_two_groups_of_one_sweep() -> None:
    rows = [{"kind": kind, "x": x} for kind, values in (("a", SHIFTED), ("b", BEFORE)) for x in values]
    result = sweep(lambda row: {"y": row["x"]}, rows)
    found = compare_sweeps(result, by="kind")
    assert not found.paired
    assert found.names == ("a", "b")
    assert found.difference[0] == pytest.approx(SHIFTED.mean() - BEFORE.mean())
    assert found.permutation_p[0] == pytest.approx(scipy.stats.ttest_ind(SHIFTED, BEFORE).pvalue, abs=0.02)


def test_items_without_a_number_are_left_out_of_both() -> None:
    gaps = BEFORE.copy()
    gaps[:5] = np.nan
    found = compare_sweeps(measured(x=SHIFTED), measured(x=gaps))
    assert found.n.tolist() == [[35, 35]]
    assert found.mean[0] == pytest.approx([SHIFTED[5:].mean(), BEFORE[5:].mean()])


def test_too_few_items_give_no_p_value() -> None:
    found = compare_sweeps(measured(x=SHIFTED[:2]), measured(x=BEFORE[:2]))
    assert np.isnan([found.permutation_p[0], found.holm_p[0]]).all()
    assert found.difference[0] == pytest.approx((SHIFTED - BEFORE)[:2].mean())


def test_what_does_not_differ_is_no_finding() -> None:
    found = compare_sweeps(measured(x=BEFORE), measured(x=BEFORE))
    assert found.difference[0] == 0
    assert np.isnan(found.permutation_p[0])


def test_holm_is_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.array([0.01, 0.04, 0.03, 0.5, 0.04])
    assert holm_adjusted(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])
    assert holm_adjusted([0.01, np.nan, 0.04]) == pytest.approx([0.02, np.nan, 0.04], nan_ok=True)


def test_the_summary_has_means_with_intervals() -> None:
    table = measured(x=SHIFTED).summary()
    assert table.loc[0, "mean"] == pytest.approx(SHIFTED.mean())
    assert table.loc[0, "std"] == pytest.approx(SHIFTED.std(ddof=1))
    half = 1.96 * SHIFTED.std(ddof=1) / np.sqrt(40)
    assert [table.loc[0, "low"], table.loc[0, "high"]] == pytest.approx(
        [SHIFTED.mean() - half, SHIFTED.mean() + half], abs=0.06
    )


def test_bad_input_gets_a_sentence() -> None:
    one = measured(x=BEFORE)
    labelled = sweep(lambda row: {"y": row["n"]}, [{"n": 1, "kind": kind} for kind in "abc"])
    for call, message in [
        (lambda: compare_sweeps(one), "give either a second sweep over the same items, or by="),
        (lambda: compare_sweeps(one, one, measures=["z"]), "measures must be of 'x', got 'z'"),
        (lambda: compare_sweeps(labelled, by="kind"), "groups must be two values of 'kind', got 'a', 'b', 'c'"),
        (lambda: compare_sweeps(labelled, by="kind", groups=["a", "a"]), "groups must be two values of 'kind'"),
        (
            lambda: compare_sweeps(one, measured(y=BEFORE)),
            "no measure in common that is a number: the first has 'x', the second 'y'; sweep the same function",
        ),
        (lambda: compare_sweeps(one, one, names=["a"]), "names must be two names, got 1"),
        (lambda: compare_sweeps(labelled, by="sort"), "texts must be one of 'kind', got 'sort'"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    texts = [sweep(lambda text: {"x": len(text)}, words) for words in (["a", "b"], ["a", "c"])]
    with pytest.raises(ValueError, match="row 1 has 'b' and 'c' as 'item'; sweep the same items in the same order"):
        compare_sweeps(*texts)
    numbers = [sweep(lambda n: {"x": n}, ids) for ids in ([12345671, 2], [12345672, 2])]
    with pytest.raises(ValueError, match="row 0 has '12345671' and '12345672' as 'item'"):
        compare_sweeps(*numbers)
