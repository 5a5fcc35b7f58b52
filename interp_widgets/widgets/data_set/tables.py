"""Tables and strips of the data set explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.analysis._core.statistics import bootstrap_mean
from interp_widgets.figures.labels import in_column, number
from interp_widgets.figures.strips import Strip
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.sweeps.comparison import SweepComparison, compare_sweeps
from interp_widgets.sweeps.result import SweepResult

from ..base import pair_view
from .analyses import ChosenAnalysis

RESAMPLES = 1999
"""Draws of the bootstrap and the permutation tests."""
LONGEST = 60
"""Characters of a prompt in the table."""
_RIGHT: dict[str, Any] = {"align": "right"}


def columns_of_result(result: SweepResult) -> tuple[str, ...]:
    """The names of all texts and numbers of a row."""
    return (*result.label_names, *result.number_names)


def readable(name: str) -> str:
    """A column as words."""
    return name.replace("_", " ")


def same_rows(results: Sequence[SweepResult]) -> list[SweepResult]:
    """The results, cut to the rows that all of them have finished."""
    n = min(len(result.rows) for result in results)
    return [result if len(result.rows) == n else _first_rows(result, n) for result in results]


def _first_rows(result: SweepResult, n: int) -> SweepResult:
    rows = ("rows", "labels", "values", "errors", "seconds")
    return replace(result, **{name: getattr(result, name)[:n] for name in rows})


def strips_of(result: SweepResult, measure: str, group: str, label: str, index: int, *, both: bool) -> list[Strip]:
    """A strip per group of one model, or one for all rows; none if no row has the number."""
    values = result.numbers(measure)
    grouped = group in columns_of_result(result)
    groups = np.array(result.groups(group) if grouped else ("",) * len(values), dtype=object)
    strips = []
    for name in sorted(set(groups) - {""}) if grouped else [""]:
        rows = np.flatnonzero(np.isfinite(values) & (groups == name))
        if not len(rows):
            continue
        own = values[rows]
        ends = bootstrap_mean(own[:, None], resamples=RESAMPLES)[:, 0] if len(own) > 1 else (own[0], own[0])
        cases = [f"row {result.rows[row]}" for row in rows]
        where, title = (name, label) if both or not grouped else ("", name)
        if both and grouped:
            title = pair_view.LETTERS[index]  # the names would not fit
        strips.append(
            Strip(
                where, title, own, cases, rows.tolist(), float(own.mean()), [float(end) for end in ends],
                PALETTE8[index],
            )
        )  # fmt: skip
    return strips


@dataclass(frozen=True)
class Statistics:
    """The statistics over all rows."""

    caption: str
    columns: list[dict[str, Any]]
    rows: list[list[Any]]
    comparison: SweepComparison | None = None


def statistics_of(results: Sequence[SweepResult], view: str, group: str) -> Statistics:
    """The table of all numbers, and the comparison of two models or two groups, if there is one."""
    one = results[view == "B" and len(results) > 1]
    numbers = set.intersection(*(set(result.number_measures) for result in results))  # none where every row failed
    if numbers and view == "difference" and len(results) > 1:
        return _compared(compare_sweeps(results[1], results[0], names=["B", "A"], resamples=RESAMPLES))
    if numbers and group and group in columns_of_result(one) and len(set(one.groups(group)) - {""}) == 2:
        return _compared(compare_sweeps(one, by=group, resamples=RESAMPLES))
    table: list[Any] = one.summary(resamples=RESAMPLES).to_dict("records")
    columns = [{"label": "number"}, {"label": "mean", **_RIGHT}, {"label": "95% interval"}]
    intervals = _intervals([(line["low"], line["high"]) for line in table])
    rows = [
        [readable(line["measure"]), _finite(line["mean"]), interval]
        for line, interval in zip(table, intervals, strict=True)
    ]
    return _counted("Means", [str(line["n"]) for line in table], columns, rows)


def _compared(found: SweepComparison) -> Statistics:
    first, second = found.names
    columns = [
        {"label": "number"}, {"label": first, **_RIGHT}, {"label": second, **_RIGHT},
        {"label": "difference", **_RIGHT}, {"label": "95% interval", "wrap": True},
        {"label": "p", **_RIGHT, "title": "Permutation test, two-sided, corrected by Holm's method over the numbers"},
        {"label": "d", **_RIGHT, "title": "Cohen's d"},
    ]  # fmt: skip
    intervals = _intervals(found.interval)
    rows = [
        [
            readable(name), *map(_finite, found.mean[i]), _finite(found.difference[i]), intervals[i],
            _finite(found.holm_p[i]), _finite(found.effect_size[i]),
        ]
        for i, name in enumerate(found.measured)
    ]  # fmt: skip
    counts = [str(n[0]) if found.paired else f"{n[0]} + {n[1]}" for n in found.n]
    return _counted("Means and their difference", counts, columns, rows, found)


def _counted(
    what: str, counts: Sequence[str], columns: list[dict[str, Any]], rows: list[list[Any]],
    comparison: SweepComparison | None = None,
) -> Statistics:  # fmt: skip
    """The table with the number of rows in its caption if it is the same for all numbers, else in a column."""
    p = "; p by permutation" if comparison else ""
    if len(set(counts)) == 1:
        return Statistics(f"{what} over {counts[0]} rows, 95% bootstrap intervals{p}", columns, rows, comparison)
    columns = [columns[0], {"label": "rows", **_RIGHT}, *columns[1:]]
    rows = [[row[0], n, *row[1:]] for row, n in zip(rows, counts, strict=True)]
    return Statistics(f"{what}, 95% bootstrap intervals{p}", columns, rows, comparison)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _intervals(ends: ArrayLike) -> list[str]:
    """Intervals (rows, 2) as text, with the same decimals down the column; empty where there is none."""
    pairs = np.asarray(ends, dtype=np.float64).reshape(-1, 2)
    texts = iter(in_column(pairs.ravel().tolist()))
    return [
        f"{low} to {high}" if known else ""
        for low, high, known in zip(texts, texts, np.isfinite(pairs.sum(axis=1)), strict=True)
    ]


def verdict(comparison: SweepComparison, measure: str) -> str:
    """The difference in the chosen number, in lines short enough for a narrow chart."""
    if measure not in comparison.measured:
        return ""
    i = comparison.measured.index(measure)
    first, second = comparison.names
    low, high = comparison.interval[i]
    p = comparison.holm_p[i]
    difference = f"{first} − {second}: {number(comparison.difference[i])}"
    if not np.isfinite(p):
        return f"{difference}\ntoo few rows, or none that differs, for a p-value"
    return f"{difference} [{number(low)}, {number(high)}]\np {number(p)} (two-sided, Holm)"


def case_table(
    results: Sequence[SweepResult], rows: Sequence[Mapping[str, Any]], chosen: ChosenAnalysis
) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Columns and rows of the table of cases; with two models, the second's numbers minus the first's."""
    first = results[0]
    heads: list[dict[str, Any]] = [{"label": "row", "align": "right"}, {"label": "prompt", "wrap": True}]
    heads += [{"label": "answer"}] if chosen.target else []
    shown = [name for name in first.measured if not (chosen.target and name == "target_token")]  # that is the answer
    for name in shown:
        heads.append({"label": readable(name), **({"align": "right"} if name in first.number_names else {})})
    failed = any(result.n_failed for result in results)
    heads += [{"label": "error", "wrap": True}] if failed else []
    columns = [_column(results, name) for name in shown]
    table = []
    for at, place in enumerate(first.rows.tolist()):
        prompt = str(rows[place].get(chosen.prompt, ""))
        text = prompt if len(prompt) <= LONGEST else prompt[: LONGEST - 1] + "…"
        answer = [str(rows[place].get(chosen.target, ""))] if chosen.target else []
        errors = dict.fromkeys(result.errors[at] for result in results if result.errors[at])
        wrong = [" · ".join(errors)] if failed else []
        table.append([place, text, *answer, *(column[at] for column in columns), *wrong])
    return heads, table


def _column(results: Sequence[SweepResult], name: str) -> list[Any]:
    """The cells of one number or text; with two models, the difference, or both texts if they differ."""
    if all(name in result.number_names for result in results):
        first, last = results[0].numbers(name), results[-1].numbers(name)
        return [_finite(value) for value in (first if len(results) == 1 else last - first)]
    texts = [
        result.groups(name) if name in columns_of_result(result) else ("",) * len(result.rows) for result in results
    ]
    return [" → ".join(dict.fromkeys(cells)) for cells in zip(*texts, strict=True)]
