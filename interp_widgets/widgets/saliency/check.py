"""The check tab: can the scores be trusted? Every method beside random orders, and against the exact one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.saliency import (
    FaithfulnessResult,
    SaliencyResult,
    faithfulness,
    prompt_saliency,
    rank_agreement,
)
from interp_widgets.figures.saliency import FaithfulnessCurves

from ..base.controls import row, shown_if
from ..views import BokehFigure, Table
from .labels import METHOD_LABELS

if TYPE_CHECKING:
    from .explorer import SaliencyExplorer

CURVES = ("deletion", "insertion", "comprehensiveness", "sufficiency")
COLUMNS = (
    ("method", "How the importance was found"),
    ("agreement with exact", "Spearman's rank correlation over the prompt tokens, mean over the response tokens"),
    ("comprehensiveness ↑", "Fall of the target without the top 1 to 50 % of the prompt tokens, mean"),
    ("sufficiency ↓", "Fall of the target with the top 1 to 50 % only, mean"),
    ("deletion ↓", "Area under the target while the top tokens go first"),
    ("insertion ↑", "Area under the target while the top tokens come first"),
    ("seconds", "Time of the saliency map alone"),
)


@dataclass(frozen=True)
class Checked:
    """One method's map, how faithful it is, and what it took."""

    result: SaliencyResult
    faithful: FaithfulnessResult
    seconds: float


class CheckTab:
    """Runs all methods on the explorer's prompt and response and judges their orders of the prompt tokens."""

    def __init__(self, panel: SaliencyExplorer) -> None:
        self.panel = panel
        self.button = panel.on_click(W.Button(description="Check the methods"), self.run)
        about = W.HTML(
            "A map is faithful if the response suffers when its top tokens are taken away (embedding set to zero), "
            "more than for tokens in a random order."
        )
        self.table = Table(
            columns=[{"label": label, "title": title, "align": "right" if i else "left"}
                     for i, (label, title) in enumerate(COLUMNS)],
            empty="No check yet: press Check the methods. It computes every method on this prompt and response.",
            height=260,
        )  # fmt: skip
        self.curves = [FaithfulnessCurves(kind=kind) for kind in CURVES]  # type: ignore[arg-type]
        self.charts = row(*(BokehFigure(chart.figure, on_error=panel.show_error) for chart in self.curves))
        for chart in self.charts.children:
            chart.add_class("iw-chart")
        self.box = W.VBox([row(self.button, about), self.table, self.charts])
        self.box.add_class("iw-column")
        self._of: Any = None
        self.found: list[Checked] = []
        shown_if(self.charts, False)  # until there is something to draw

    def run(self) -> None:
        """Check every method in the background, on the model that is looked at."""
        panel = self.panel
        if not panel.results:
            raise ValueError("there is nothing to check yet: press Run first")
        index = 0 if panel.shown == "A" else len(panel.results) - 1
        model, shown = panel.models[index], panel.results[index]
        if shown.partial:
            raise ValueError("the map on the screen is partial: let it run to its end first")
        options: dict[str, Any] = {"target": shown.target}
        if shown.foil is not None:
            options["foil"] = shown.foil
        prompt = ([] if shown.bos_id is None else [shown.bos_id]) + list(shown.prompt_ids)
        response = list(shown.response_ids)
        steps, seed = panel.steps, panel.random_seed

        def work(job: Any) -> list[Checked]:
            found = []
            for place, method in enumerate(METHOD_LABELS):
                began = time.perf_counter()
                result = prompt_saliency(
                    model, prompt, response, method=method, steps=steps, seed=seed, check=job.check,  # type: ignore[arg-type]
                    progress=_part(job.progress, 2 * place, 2 * len(METHOD_LABELS)), **options,
                )  # fmt: skip
                seconds = time.perf_counter() - began
                faithful = faithfulness(
                    model, result, seed=seed, check=job.check,
                    progress=_part(job.progress, 2 * place + 1, 2 * len(METHOD_LABELS)),
                )  # fmt: skip
                found.append(Checked(result, faithful, seconds))
            return found

        shown_results = panel.results
        panel.jobs.start(
            work, lambda found: self.show(found, index, shown_results), title="Checking the methods", channel="check"
        )

    def show(self, found: list[Checked], index: int, results: tuple[SaliencyResult, ...]) -> None:
        """Draw a check of the results on the screen."""
        if results is not self.panel.results:
            return  # another map came in between
        self._of, self.found = _texts(results), list(found)
        exact = next(checked.result for checked in found if checked.result.method == "exact")
        rows = [self._row(checked, exact) for checked in found]
        chance = found[0].faithful.random_summary()
        names = ("aopc_comprehensiveness", "aopc_sufficiency", "deletion_area", "insertion_area")
        rows.append(["random orders, mean", None, *(chance[name][0] for name in names), None])
        self.table.rows = rows
        letter = f" of model {'AB'[index]}" if len(results) > 1 else ""
        self.table.caption = f"Faithfulness{letter}, target {exact.target}"
        for chart in self.curves:
            chart.update([checked.faithful for checked in found])
        shown_if(self.charts, True)

    def stored(self) -> dict[str, Any]:
        """Each method's map and how faithful it is, by names."""
        parts: dict[str, Any] = {}
        for one in self.found:
            parts |= {one.result.method: one.result, f"{one.result.method} faithfulness": one.faithful}
        return parts

    def forget(self, results: tuple[SaliencyResult, ...]) -> None:
        """Drop a check of other texts or another target than those on the screen."""
        if self._of is not None and self._of != _texts(results):
            self._of, self.found = None, []
            self.table.rows = []
            self.table.caption = ""
            shown_if(self.charts, False)

    @staticmethod
    def _row(checked: Checked, exact: SaliencyResult) -> list[Any]:
        faithful = checked.faithful
        agreement = rank_agreement(checked.result, exact).mean
        numbers = (faithful.aopc_comprehensiveness, faithful.aopc_sufficiency)
        areas = (faithful.deletion_area, faithful.insertion_area)
        name = METHOD_LABELS[checked.result.method].split(":")[0]
        return [name, agreement if agreement == agreement else None, *numbers, *areas, checked.seconds]


def _texts(results: tuple[SaliencyResult, ...]) -> Any:
    """What a check belongs to: prompt, response and target."""
    first = results[0]
    return tuple(first.prompt_ids), tuple(first.response_ids), first.target, first.foil


def _part(progress: Any, place: int, parts: int) -> Any:
    """The progress of one part out of several."""

    def report(done: int, total: int) -> None:
        progress(place * total + done, parts * total)

    return report
