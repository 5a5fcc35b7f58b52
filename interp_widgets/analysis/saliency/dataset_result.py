"""The result of scoring a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.result import Record, Result, record, with_axes
from interp_widgets.analysis._core.statistics import GroupComparison, spearman
from interp_widgets.analysis._core.tables import DataFrame, table

SEGMENTS = 4
"""Number of equal segments of a sentence in the position profile."""

_NUMBERS = ("score", "context_score", "paper_score", "n_prompt", "n_response", "n_under_floor", "n_instruction")
"""Columns of the table that are fields."""

UNKNOWN, UNFOLLOWED, FOLLOWED = -1, 0, 1
"""Values of a row's label."""


@record
class ResponseLength(Record):
    """Response lengths of two compared groups, and their correlation with the instruction scores.

    A longer response can raise a prompt token's density and so the score. Where the groups also differ in length, this
    confound may explain a difference of scores. Both correlations are Spearman's, over the responses of both groups;
    their p-values are two-sided. NaN where all lengths or scores are equal.
    """

    names: Sequence[str] = with_axes(2)
    """Names of the groups."""

    mean: Sequence[float] = with_axes(2)
    """Mean number of response tokens."""

    score_rho: float
    """Correlation of the length with the instruction score."""

    score_p: float
    """Its p-value."""

    label_rho: float
    """Correlation of the length with the group (first 1, second 0)."""

    label_p: float
    """Its p-value."""

    def summary(self) -> str:
        """The lengths and correlations in a readable line."""
        lengths = ", ".join(f"{name} {mean:.1f} tokens" for name, mean in zip(self.names, self.mean, strict=True))
        correlations = {
            "the score": (self.score_rho, self.score_p),
            f"being {self.names[0]}": (self.label_rho, self.label_p),
        }
        texts = [
            f"with {name} rho = {rho:+.2f}, p = {p:.2g}" for name, (rho, p) in correlations.items() if np.isfinite(rho)
        ]
        ending = f"; Spearman {', '.join(texts)} (two-sided)" if texts else ", all lengths or all scores equal"
        return f"response length: {lengths}{ending}"


@record
class SaliencyDatasetResult(Result):
    """Scores of many prompts for one model or two, the comparisons of their groups, and the position profile.

    Rows are cases, first all of the first model, then all of the second. Failed and dropped cases keep their row.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.2, Tables 1-2, Fig. 6.

    Example:
        >>> result = saliency_dataset(tuned, demo_cases(4), min_response=1, resamples=99)
        >>> result.score.shape, result.n_dropped, result.profile.shape
        ((4,), 0, (1, 4))
    """

    model_names: Sequence[str] = with_axes("models")
    """One or two names."""

    names: Sequence[str] = with_axes("rows")
    """Name of each case."""

    groups: Sequence[str] = with_axes("rows")
    """Group of each case, ``all`` where none was given."""

    model: Ints = with_axes("rows")
    """Index into `model_names`."""

    case: Ints = with_axes("rows")
    """Index into the cases given."""

    score: Floats = with_axes("rows")
    """Instruction score without response tokens under the floor; NaN for failed and dropped cases."""

    context_score: Floats = with_axes("rows")
    """Instruction score of the rest of the prompt; NaN for failed and dropped cases."""

    label: Ints = with_axes("rows")
    """1 followed, 0 unfollowed, -1 not known."""

    n_prompt: Ints = with_axes("rows")
    """Prompt tokens; 0 for failed cases."""

    n_response: Ints = with_axes("rows")
    """Response tokens; 0 for failed cases."""

    n_instruction: Ints = with_axes("rows")
    """Instruction tokens; 0 for failed cases."""

    dropped: Bools = with_axes("rows")
    """Whether a case was dropped: its response is too short for a stable density, or all of it is under the floor."""

    error: Sequence[str] = with_axes("rows")
    """Why a case failed, empty where it did not."""

    response: Sequence[str] = with_axes("rows")
    """The response's text, empty if not known."""

    tests: Sequence[GroupComparison] = with_axes("tests")
    """Comparisons of followed with unfollowed cases (per model) and of the two models, over all cases and per group."""

    notes: Sequence[str] = with_axes("notes")
    """Which comparisons could not be made, and why."""

    profile: Floats = with_axes("models", SEGMENTS)
    """Mean share of a sentence's density in each of its equal segments; NaN without sentences."""

    profile_interval: Floats = with_axes("models", 2, SEGMENTS)
    """95% bootstrap interval of the profile, drawn over cases: low, high."""

    profile_sentences: Ints = with_axes("models")
    """Number of sentences in the profile."""

    method: str
    """How the importance was computed."""

    levels: int
    """Number of levels of the normalised scores."""

    threshold: float
    """Scores up to this count as 0."""

    p: float
    """Order of the norm below the density's fraction bar."""

    min_response: int
    """Responses with fewer tokens were dropped."""

    min_importance: float = 0.0
    """Response tokens whose largest importance is under this, in units of the target, were left out of `score` and
    `context_score`."""

    n_under_floor: Ints | None = with_axes("rows", default=None)
    """Number of response tokens under `min_importance`; 0 for failed and short cases, None in files from before the
    floor was introduced."""

    paper_score: Floats | None = with_axes("rows", default=None)
    """Instruction score as in the paper, with the response tokens under the floor; NaN for failed and short cases, None
    in files from before the floor was introduced, where it equals `score`."""

    @property
    def n_dropped(self) -> int:
        """Number of dropped cases: too short a response, or all of it under the floor."""
        return int(self.dropped.sum())

    @property
    def all_under_floor(self) -> Bools:
        """(rows,) whether a case was dropped because its whole response is under the floor."""
        return np.asarray(self.dropped & (self.n_response >= self.min_response))

    @property
    def n_failed(self) -> int:
        """Number of cases that could not be scored; `error` says why."""
        return sum(map(bool, self.error))

    def test(self, kind: str, *, model: str | None = None, group: str = "all") -> GroupComparison:
        """The comparison of that kind (``followed`` or ``models``), of that model and group.

        Raises KeyError with the reason when it was not made.
        """
        tests = [t for t in self.tests if t.kind == kind and t.group == group and model in (None, t.model)]
        if not tests:
            made = ", ".join(sorted({f"{t.kind} ({t.group})" for t in self.tests})) or "none"
            raise KeyError(
                f"there is no {kind!r} comparison of group {group!r} (made: {made}); {'; '.join(self.notes)}"
            )
        return tests[0]

    def rows_of(self, test: GroupComparison) -> tuple[list[int], list[int]]:
        """Rows of this result behind the two groups of one of its comparisons, in the order of their values."""
        group_of = self.label if test.kind == "followed" else self.model
        inside = np.isfinite(self.score) & np.array([test.group in ("all", group) for group in self.groups], dtype=bool)
        if test.kind == "followed":
            inside &= np.array([self.model_names[i] == test.model for i in self.model], dtype=bool)
        return np.flatnonzero(inside & (group_of == 1)).tolist(), np.flatnonzero(inside & (group_of == 0)).tolist()

    def response_length(self, test: GroupComparison) -> ResponseLength:
        """Response lengths of the groups of a comparison, and their correlation with the scores."""
        first, second = self.rows_of(test)
        lengths, scores = (np.asarray(of)[first + second] for of in (self.n_response, self.score))
        score_rho, score_p = spearman(lengths, scores)
        label_rho, label_p = spearman(lengths, np.repeat([1, 0], [len(first), len(second)]))
        means = tuple(float(self.n_response[rows].mean()) for rows in (first, second))
        return ResponseLength(test.names, means, score_rho, score_p, label_rho, label_p)

    def summary(self) -> str:
        """A few readable lines: counts, then each comparison over all cases with its response lengths."""
        scored, silent = int(np.isfinite(self.score).sum()), int(self.all_under_floor.sum())
        least = f"{self.min_response} token{'s' * (self.min_response != 1)}"
        dropped = f"{self.n_dropped - silent} dropped (response under {least})"
        dropped += f", {silent} dropped (no response token of importance {self.min_importance:g})" if silent else ""
        lines = [f"{scored} scored, {dropped}, {self.n_failed} failed"]
        lines += [self._floor_line(i) for i in range(len(self.model_names)) if self.min_importance > 0]
        for test in self.tests:
            if test.group == "all":
                lines.append(f"{test.kind}{f' ({test.model})' if test.model else ''}: {test.summary()}")
                lines.append(self.response_length(test).summary())
        return "\n".join([*filter(None, lines), *self.notes])

    def _floor_line(self, model: int) -> str:
        """A line on the response tokens of a model under the floor, and the mean score with and without them."""
        rows = (self.model == model) & np.isfinite(self.score)
        if self.n_under_floor is None or self.paper_score is None or not rows.any():
            return ""
        under, tokens = self.n_under_floor[rows].sum(), self.n_response[rows].sum()
        score, paper = self.score[rows].mean(), self.paper_score[rows].mean()
        return (
            f"floor ({self.model_names[model]}): {under} of {tokens} response tokens have no importance of "
            f"{self.min_importance:g} and are left out; mean instruction score {score:.3f}, with them {paper:.3f}, as "
            "in the paper"
        )

    def to_frame(self) -> DataFrame:
        """One row per model and case: name, group, label, scores with and without the floor, sizes, response, error."""
        words = {FOLLOWED: "followed", UNFOLLOWED: "unfollowed", UNKNOWN: None}
        failed = [bool(text) for text in self.error]
        columns = {
            "case": self.case,
            "name": self.names,
            "group": self.groups,
            "label": [words[int(value)] for value in self.label],
            **{name: getattr(self, name) for name in _NUMBERS if getattr(self, name) is not None},
            "status": np.where(self.dropped, "dropped", np.where(failed, "failed", "scored")),
            "error": self.error,
            "response": self.response,
        }
        return table({"model": [self.model_names[i] for i in self.model]}, columns)
