"""The comparison tab: how much tuning changed the pairs in each layer group, and which verbs gained pairs."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.head_words import HeadComparison, HeadWordResult
from interp_widgets.data.verbs import GENERAL_VERBS, INSTRUCTION_VERBS
from interp_widgets.figures.head_words import ChangeBars, change_scene
from interp_widgets.figures.static import Scene

from ..views import BokehFigure, Table
from ..views.table import RIGHT
from .word_pairs import WordPairPanel

FEW = 10
"""Fewest verbs of a kind with a share in a group for a meaningful test of means."""


class VerbComparison(WordPairPanel):
    """Figure 2 and Table 3 of the paper for the two results on the screen."""

    title, pair_views = "Head words compared", ()

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        return "" if len(models) > 1 else "two models"

    def build(self) -> None:
        super().build()
        self.inputs.children = self.controls.rows("comparison")
        self.summary = W.HTML("")
        self.chart = ChangeBars()
        self.test = Table(empty="No comparison yet.", height=300)
        self.verbs = Table(instruction="a click finds its pairs in the heads", empty="No comparison yet.", height=300)
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        tables = W.VBox([self.test, self.verbs])
        tables.add_class("iw-column")
        both = W.VBox([chart, tables])
        both.add_class("iw-maps")
        self.plot.children = [self.summary, both]
        self._verbs: list[str] = []
        self.on_user(self.verbs, "selected", self._picked)

    def appear(self) -> None:
        super().appear()
        if self.results:
            self.compare()  # start again if it was cancelled

    def draw(self, results: tuple[HeadWordResult, ...], request: Any) -> None:
        self.compare()

    def draw_comparison(self, sentence: str) -> None:
        comparison = self.comparison
        self.chart.update(comparison, sentence=sentence)
        self.summary.value = escape(sentence) if comparison is None else "<br>".join(summary_lines(comparison))
        for table, (caption, columns, rows) in (
            (self.test, test_table(comparison)),
            (self.verbs, self._verb_rows(comparison)),
        ):
            with table.hold_sync():
                table.selected, table.rows = -1, []
                table.columns, table.caption, table.rows = columns, caption, rows
                table.empty = sentence or "No verb of the lists has pairs that changed in number."

    def _verb_rows(self, comparison: HeadComparison | None) -> tuple[str, list[dict[str, Any]], list[list[Any]]]:
        """One row per group and verb whose pairs changed in number in some head."""
        columns: list[dict[str, Any]] = [{"label": "layers"}, {"label": "verb"}, {"label": "kind"}]
        columns += [{"label": "gained", "title": "heads with more pairs with it", **RIGHT},
                    {"label": "lost", "title": "heads with fewer", **RIGHT},
                    {"label": "share", "title": "gained of those that changed", **RIGHT}]  # fmt: skip
        if comparison is None:
            return "", columns, []
        share = comparison.share
        rows: list[list[Any]] = []
        for group, number in np.argwhere(np.isfinite(share)).tolist():
            kind = "instruction" if comparison.instruction[number] else "general"
            counts = int(comparison.gained[group, number]), int(comparison.lost[group, number])
            name = comparison.verbs[number]
            rows.append([comparison.group_name(group), name, kind, *counts, round(float(share[group, number]), 3)])
        rows.sort(key=lambda row: (row[2] == "general", -(row[3] + row[4]), row[1]))
        self._verbs = [str(row[1]) for row in rows]
        return "Verbs", columns, rows

    def _picked(self, change: Any) -> None:
        if change.new >= 0 and self.stack is not None:
            self.stack.open_tab("heads", word=self._verbs[change.new])

    # what is saved ----------------------------------------------------------------------------------------------------

    def last_lines(self) -> list[str]:
        return ["comparison.verb_table()"]

    def frame(self) -> Any:
        comparison = self.stored()
        return comparison.change_table().merge(comparison.verb_table(), on="layers")

    def scene(self) -> Scene:
        return change_scene(self.stored())

    def stored(self) -> HeadComparison:
        if self.comparison is None:
            raise ValueError("there is no comparison to save yet: it needs the complete results of both models")
        return self.comparison


def test_table(comparison: HeadComparison | None) -> tuple[str, list[dict[str, Any]], list[list[Any]]]:
    """Caption, columns and rows of Table 3."""
    columns: list[dict[str, Any]] = [{"label": "layers"}]
    tip = "mean share of heads that gained, ± standard deviation"
    for kind, short in (("instruction", "instr."), ("general", "general")):
        columns += [{"label": f"{short} %", "title": f"{kind} verbs: {tip}", **RIGHT},
                    {"label": "n", "title": f"{kind} verbs with a share", **RIGHT}]  # fmt: skip
    columns += [{"label": "p", "title": "Welch's t-test, two-sided", **RIGHT},
                {"label": "Holm p", "title": "corrected over the layer groups", **RIGHT},
                {"label": "d", "title": "Cohen's d", **RIGHT}]  # fmt: skip
    if comparison is None:
        return "", columns, []
    rows = []
    for row in comparison.verb_table().to_dict("records"):
        cells = [row["layers"]]
        for kind in ("instruction", "general"):
            mean, count = row[f"{kind}_mean"], row[f"{kind}_verbs"]
            cells += [f"{mean:.0f} ± {row[f'{kind}_std']:.0f}" if count else None, count]
        rows.append([*cells, *(_short(row[name]) for name in ("welch_p", "holm_p", "cohens_d"))])
    return "Heads that gained pairs with a verb, of those whose number changed", columns, rows


def summary_lines(comparison: HeadComparison) -> list[str]:
    """What is compared, and how far its test can be trusted, as HTML."""
    kinds = np.asarray(comparison.instruction)
    instruction, general = int(kinds.sum()), int((~kinds).sum())
    lines = []
    if np.isfinite(comparison.head_change).any():
        change = float(np.nanmean(comparison.head_change))
        sentence = (
            f"A head of A and the same head of B have on average <b>{1 - change:.0%}</b> of their kept pairs in common"
        )
        if np.isfinite(comparison.other_head_change).any():
            other = float(np.nanmean(comparison.other_head_change))
            sentence += f"; a head of A and another of its layer in B, {1 - other:.0%}"
        lines.append(f"{sentence}.")
    share = np.isfinite(comparison.share)
    least = int(
        min(share[:, kinds].sum(axis=1).min(initial=instruction), share[:, ~kinds].sum(axis=1).min(initial=general))
    )
    listed = (
        f"{instruction} of {len(INSTRUCTION_VERBS)} instruction verbs and {general} of {len(GENERAL_VERBS)} general "
        "verbs are in the word list"
    )
    if least < FEW:
        lines.append(
            f"<b>Too few verbs for a test:</b> {listed}, and in some layer group only {least} of a kind have a share. "
            "Read the p-values below as examples; for real results, use a longer word list."
        )
    else:
        lines.append(f"{listed}.".capitalize())
    return lines


def _short(value: float) -> float | None:
    return None if not np.isfinite(value) else float(f"{value:.2g}")
