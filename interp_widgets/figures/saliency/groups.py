"""Scores of groups of responses side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from interp_widgets.analysis.saliency import GroupComparison, SaliencyDatasetResult
from interp_widgets.figures.labels import fixed
from interp_widgets.figures.strips import Strip, Strips
from interp_widgets.figures.theme import PALETTE8

_MOST_LINES = 6


class GroupStrips(Strips):
    """Scores of two groups side by side: a point per case, the quartiles as a box, the mean with its interval.

    Shows one kind of comparison of a data set: ``followed`` (followed against unfollowed responses, per model) or
    ``models`` (second model against first), with the p-values under the title. A tapped point selects its row of the
    source, whose column `row` is the row of the data set's result.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), Tables 1 and 2.
    """

    EMPTY: ClassVar[str] = "No comparison yet: score a data set with labels or with two models."
    PARTS = ("one response", "middle half", "mean and its 95% interval")
    TITLES: ClassVar[dict[str, str]] = {
        "followed": "Instruction score, followed or not",
        "models": "Instruction score of the two models",
    }

    def __init__(
        self, result: SaliencyDatasetResult | None = None, *, kind: Literal["followed", "models"] = "followed"
    ) -> None:
        super().__init__("group_strips", self.TITLES["followed"], "instruction score")
        self.update(result, kind=kind)

    def update(self, result: SaliencyDatasetResult | None, *, kind: Literal["followed", "models"] = "followed") -> None:
        """Show a data set's comparisons of that kind, or the reason why there are none."""
        if kind not in self.TITLES:
            raise ValueError(f"kind must be followed or models, got {kind!r}")
        self.figure.title.text = self.TITLES[kind]
        tests = [test for test in result.tests if test.kind == kind] if result is not None else []
        if result is None or not tests:
            notes = result.notes if result is not None else ()
            self.clear(next((note for note in notes if note.startswith("followed") == (kind == "followed")), ""))
            return
        strips = [
            Strip(
                _where(test), test.names[side], test.values[side], [result.names[i] for i in members], list(members),
                test.mean[side], test.interval[side], _color(result, test, side),
            )
            for test in tests
            for side, members in enumerate(result.rows_of(test))
        ]  # fmt: skip
        self.show(strips, subtitle=_verdicts(tests))


def _color(result: SaliencyDatasetResult, test: GroupComparison, side: int) -> str:
    """The colour of a model in every chart; groups of responses get colours that no model has."""
    if test.kind == "models":
        return PALETTE8[result.model_names.index(test.names[side])]
    return PALETTE8[2 + side]


def _verdicts(tests: Sequence[GroupComparison]) -> str:
    """The statistics of the comparisons: a few lines for one, a short line each for several."""
    if len(tests) == 1:
        test = tests[0]
        p_values = f"Welch p {test.welch_p:.2g} · permutation p {test.permutation_p:.2g} ({test.claim})"
        p_values += f"\nSpearman p {test.spearman_p:.2g} (two-sided)" if test.kind == "followed" else ""
        size = f"{test.cohens_d:.2f}".replace("-", "\u2212")
        return f"{_difference(test)} · d {size}\n{p_values}"
    lines = []
    for test in tests[:_MOST_LINES]:
        p_value = f"Welch p {test.welch_p:.2g}" if test.holm_p is None else f"Holm p {test.holm_p:.2g}"
        lines.append(f"{_where(test)}: {_difference(test)} · {p_value}")
    return "\n".join([*lines, f"p-values {tests[0].claim}"])


def _where(test: GroupComparison) -> str:
    return " · ".join(filter(None, (test.model, "all cases" if test.group == "all" else test.group)))


def _difference(test: GroupComparison) -> str:
    difference, low, high = (fixed(value, 3, "+") for value in (test.difference, *test.difference_interval))
    return f"difference {difference} [{low}, {high}]"
