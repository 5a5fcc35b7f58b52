"""The check: can the scores be trusted? Every method against random orders, and against the exact one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, Results
from interp_widgets.analysis.saliency import (
    FaithfulnessResult,
    SaliencyResult,
    prompt_saliency,
    rank_agreement,
    saliency_cost,
)
from interp_widgets.analysis.saliency.faithfulness import faithfulness_of_maps, faithfulness_passes
from interp_widgets.analysis.saliency.methods import Baseline
from interp_widgets.figures.saliency import FaithfulnessCurves
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import call, cell
from ..base.controls import row, shown_if
from ..base.fields import variant
from ..base.request import Request, model_variables, written
from ..base.response import lengths
from ..views import BokehFigure, Table
from .attribution import METHOD_LABELS, TARGET_LABELS, Attribution, ResponsePanel, RunnersUpOfA

REPLACING = ("exact", "integrated_gradients")
"""The methods that replace embeddings."""
TAKEN_AWAY = {
    "zero": "embedding set to zero",
    "mean": "embedding set to the mean",
    "resample": "embedding set to those of random tokens",
}
CURVES = ("deletion", "insertion", "comprehensiveness", "sufficiency")
COLUMNS = {
    "method": "Attribution method",
    "agreement with exact": "Spearman's rank correlation over the prompt tokens, mean over the response tokens",
    "against random orders": "One-sided permutation test: the target with only the top tokens minus that without them",
    "comprehensiveness ↑": "Mean drop of the target without the top 1 to 50% of the prompt tokens",
    "sufficiency ↓": "Mean drop of the target with only the top 1 to 50%",
    "deletion ↓": "Area under the target's curve as tokens are deleted, top ones first",
    "insertion ↑": "Area under the target's curve as tokens are inserted, top ones first",
    "seconds": "Time of the saliency map alone",
}
MEASURES = ("aopc_comprehensiveness", "aopc_sufficiency", "deletion_area", "insertion_area")


def check_methods(
    model: Model,
    prompt: str,
    response: str,
    *,
    steps: int,
    seed: int,
    baseline: Baseline | None = None,
    draws: int = 8,
    progress: Callable[[int, int], None],
    check: Callable[[], None],
    **options: Any,
) -> Results:
    """The map and the faithfulness of every method, by name; `options` are the target and its foil.

    All orders are judged with one baseline, by default zero, which is used for the maps too where a method has one.
    """
    maps: dict[str, SaliencyResult] = {}
    seconds: dict[str, float] = {}
    for number, method in enumerate(METHOD_LABELS):
        began = time.perf_counter()
        maps[method] = prompt_saliency(
            model, prompt, response, method=method, steps=steps, seed=seed, check=check,  # type: ignore[arg-type]
            progress=_part(progress, number), **_own(method, baseline, draws), **options,
        )  # fmt: skip
        seconds[f"seconds of {method}"] = time.perf_counter() - began
    judged = faithfulness_of_maps(
        model, list(maps.values()), baseline=baseline or "zero", draws=draws, seed=seed, check=check,
        progress=_part(progress, len(METHOD_LABELS)),
    )  # fmt: skip
    parts: dict[str, Result] = {**maps}
    parts |= {faithful_name(method): measured for method, measured in zip(maps, judged, strict=True)}
    made = {name: value for name, value in maps["exact"].provenance.items() if name != "method"}
    return Results(tuple(parts), tuple(parts.values()), provenance={**made, **seconds})


def _own(method: str, baseline: str | None, draws: int) -> dict[str, Any]:
    """Keywords of a method's map for a chosen baseline."""
    return {} if baseline is None or method not in REPLACING else {"baseline": baseline, "draws": draws}


def faithful_name(method: str) -> str:
    """The name of a method's faithfulness among the results."""
    return f"{method} faithfulness"


class SaliencyCheck(ResponsePanel):
    """Whether saliency maps are faithful: all methods on one prompt and response, and their orders of its tokens."""

    title, tab_name = "Saliency check", "Check"
    analysis = staticmethod(check_methods)
    manual_run = True
    pair_views = ("beside",)
    method = variant(Attribution.method, argument=None)
    steps = variant(Attribution.steps, shown_if=None)
    random_seed = variant(Attribution.random_seed, shown_if=None)
    baseline = variant(Attribution.baseline, shown_if=None)
    draws = variant(Attribution.draws, shown_if=lambda panel: panel.baseline == "resample")

    def build(self) -> None:
        super().build()
        self.about = W.HTML(_about("zero"))
        self.table = Table(
            columns=[{"label": label, "title": title, "align": "right" if i else "left"}
                     for i, (label, title) in enumerate(COLUMNS.items())],
            empty="No check yet: press Run. It computes every method on this prompt and response.",
            height=260,
        )  # fmt: skip
        self.curves = [[FaithfulnessCurves(kind=kind) for kind in CURVES] for _ in self.models]  # type: ignore[arg-type]
        self.charts = [self._charts(index) for index in range(len(self.models))]
        self.plot.children = [self.about, *self.charts, self.table]

    def _charts(self, index: int) -> W.VBox:
        charts = row(*(BokehFigure(curves.figure, on_error=self.show_error) for curves in self.curves[index]))
        for chart in charts.children:
            chart.add_class("iw-chart")
        name = [W.HTML(f"Model {pair_view.LETTERS[index]}")] if len(self.models) > 1 else []
        box = W.VBox([*name, charts])
        box.add_class("iw-column")
        shown_if(box, False)  # until there is something to draw
        return box

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if isinstance(arguments.get("foil"), RunnersUpOfA):  # each of the first model's maps has the same foils
            first = model_variables(self.models)[0]
            arguments["foil"] = RunnersUpOfA(first, f"results_{first}['exact']")
        return arguments

    def cost(self, request: Request, model: Model) -> Cost:
        n_prompt, n_response = lengths(request, model)
        options = dict(request.arguments)
        draws = options["draws"] if options.get("baseline") == "resample" else 1
        maps = [
            saliency_cost(
                model, n_prompt, n_response, method, steps=options["steps"], draws=draws if method in REPLACING else 1
            )
            for method in METHOD_LABELS
        ]
        passes = faithfulness_passes(n_prompt, maps=len(METHOD_LABELS)) / (n_prompt / 2)
        orders = passes * saliency_cost(model, n_prompt, n_response, "exact", draws=draws).flops
        return Cost(sum(cost.flops for cost in maps) + orders, max(cost.bytes for cost in maps))

    def mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Clear a check of other texts or of another target."""
        super().mark(stale=stale, forecast=forecast)
        if stale:
            self.forget_results()
            self.table.rows, self.table.caption = [], ""
            for box in self.charts:
                shown_if(box, False)

    def draw(self, results: tuple[Results, ...], request: Request) -> None:
        self.fill_in(results[0]["exact"], request)
        self.about.value = _about(results[0][faithful_name("exact")].baseline)
        models = pair_view.shown_indices(self)
        names = pair_view.names(self) if len(models) > 1 else ("",)
        rows = [_rows(results[index], name) for index, name in zip(models, names, strict=True)]
        self.table.rows = [line for lines in rows for line in lines]
        of = f" of {' and '.join(pair_view.names(self))}" if len(self.models) > 1 else ""
        self.table.caption = f"Faithfulness{of}, target {TARGET_LABELS[results[0]['exact'].target]}"
        for index, (result, curves) in enumerate(zip(results, self.curves, strict=True)):
            for chart in curves:
                chart.update([result[faithful_name(method)] for method in METHOD_LABELS])
            shown_if(self.charts[index], index in models)

    def code(self, request: Request) -> str:
        options = dict(request.arguments)
        seed = {"seed": options["seed"]} if options["seed"] else {}
        own = {name: options.pop(name) for name in ("baseline", "draws") if name in options}
        lines = {line: None for text in request.inputs for line in text.code("")[0]}
        lines[f"methods = {list(METHOD_LABELS)}"] = None
        if own:
            lines[f"own = {dict.fromkeys(REPLACING, own)}"] = None
        for name in model_variables(self.models):
            end = "" if len(self.models) == 1 else f"_{name}"
            arguments = [f"{option}={written(value, name)[1]}" for option, value in options.items()]
            arguments += ["**own.get(method, {})"] if own else []
            saliency = call("prompt_saliency", name, "prompt", "response", "method=method", *arguments)
            measured = call("faithfulness", name, "result", **own, **seed)
            lines[f"results{end} = {{method: {saliency} for method in methods}}"] = None
            lines[f"faithful{end} = {{method: {measured} for method, result in results{end}.items()}}"] = None
        lines[f"{{method: measured.aopc_comprehensiveness for method, measured in faithful{end}.items()}}"] = None
        return cell(["faithfulness", "prompt_saliency"], self.models, list(lines))

    def table_of(self, result: Any) -> Any:
        import pandas as pd

        return pd.DataFrame(_rows(result), columns=list(COLUMNS))

    def scene(self) -> Scene:
        models = pair_view.shown_indices(self)
        starts = pair_view.starts(self) if len(self.models) > 1 else ("",)
        return stack_scenes(
            [curves.scene(name=start) for index, start in zip(models, starts, strict=True)
             for curves in self.curves[index]],
            columns=2, title=self.table.caption,
        )  # fmt: skip


def _about(baseline: str) -> str:
    return (
        f"A map is faithful if deleting its top tokens ({TAKEN_AWAY[baseline]}) hurts the response "
        "more than deleting tokens in a random order."
    )


def _rows(results: Results, model: str = "") -> list[list[Any]]:
    """The table of one model's methods, and of the random orders."""
    start = f"{model}: " if model else ""
    rows = []
    for method, label in METHOD_LABELS.items():
        result: SaliencyResult = results[method]
        faithful: FaithfulnessResult = results[faithful_name(method)]
        agreement = rank_agreement(result, results["exact"]).mean
        numbers = [getattr(faithful, name) for name in MEASURES]
        seconds = results.provenance[f"seconds of {method}"]
        rows.append([
            start + label.split(":")[0], agreement if agreement == agreement else None, _against_random(faithful),
            *numbers, seconds,
        ])  # fmt: skip
    chance = results[faithful_name("exact")].random_summary()
    return [*rows, [f"{start}random orders, mean", None, None, *(chance[name][0] for name in MEASURES), None]]


def _against_random(faithful: FaithfulnessResult) -> str:
    """The verdict of a table cell: in words, with its p-value."""
    words = {True: "better", False: "worse", None: "cannot tell"}[faithful.beats_random]
    return f"{words}: p = {faithful.p_value():.2g}"


def _part(progress: Callable[[int, int], None], number: int) -> Callable[[int, int], None]:
    """The progress of one part of the whole: a map and a check of each method."""
    return lambda done, total: progress(number * total + done, (len(METHOD_LABELS) + 1) * total)
