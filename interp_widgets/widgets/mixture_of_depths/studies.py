"""Studies, each on its own tab: accuracy for every k and top-K, two ablations, and the losses of late layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as data
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.mixture_of_depths import LateLayerLosses, ModAblations
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.data.files import short
from interp_widgets.data.problems import Problem
from interp_widgets.figures.mixture_of_depths import AblationBars, LateLayerCurves, OverlapBars
from interp_widgets.figures.static import Curve, Scene, curves_scene, table_scene
from interp_widgets.models import Model
from interp_widgets.tuning.mixture_of_depths import ABLATIONS, ModGrid, late_layer_losses, mod_ablations, mod_grid

from ..base.controls import TextLine, Whole
from ..base.fields import Bounds, Incomplete, field, hint_at, variant
from ..base.request import Request
from ..base.workbench import model_name
from ..probe import ProbePanel, ValueView, probe
from ..views import BokehFigure, Heatmap
from .cost import TUNING, tuning_flops
from .mixtures import Examples, MixtureOptions, MixturePanel

NEEDS_LORA = 8
"""LoRA rank for the late-layers study if the Tune tab sets none."""
_ANSWER = 12
"""Tokens of a typical answer; most are short."""
_SECONDS_PER_LAYER = 1e-3
"""Per generated token and layer: small models are bound by Python overhead, not arithmetic."""
_BUILD_SECONDS = 2.0
TUNING_OPTIONS = ("k", "distill", "steps", "batch_size", "learning_rate", "lora", "lora_layers")
"""Arguments of the studies that are tuning options."""


class Problems(Examples):
    """Held-out problems, the first `count` of them."""

    empty = "there are no problems to solve: pass at least one"

    def read(self) -> list[Any]:
        problems = super().read()
        wrong = next((problem for problem in problems if not isinstance(problem, Problem)), None)
        if wrong is not None:
            raise ValueError(f"problems must come from read_problems or demo_problems, got {type(wrong).__name__}")
        return problems[: self.count]

    @property
    def line(self) -> str:
        return f"{super().line}[:{self.count}]" if self.own is None and self.file else super().line


@dataclass(frozen=True)
class StudyQuestion(Request):
    """A study on the base of one model."""

    slot: int = 0
    """Index of the model."""
    seconds: float = data(default=0.0, compare=False)
    """Estimated time until one has been timed."""


class StudyPanel(MixturePanel, ProbePanel):
    """Base of the studies: tunings with the options of the Tune tab, evaluated on held-out problems."""

    manual_run, reuses, preemptible = True, False, True
    slot = variant(MixtureOptions.slot, argument="")
    examples = variant(MixtureOptions.examples, argument="")
    data_file = variant(MixtureOptions.data_file, argument="")
    dataset = variant(MixtureOptions.dataset, argument="")
    top_k = variant(MixtureOptions.top_k, argument=None)
    chosen = variant(MixtureOptions.chosen, argument=None)
    distill = variant(MixtureOptions.distill, argument="")
    lora = variant(MixtureOptions.lora, argument="adapters")
    rank = variant(MixtureOptions.rank, argument="lora")
    lora_layers = variant(MixtureOptions.lora_layers, argument="")
    batch_size = variant(MixtureOptions.batch_size, argument="")
    learning_rate = variant(MixtureOptions.learning_rate, argument="")
    grid_steps = field(
        Annotated[int, Bounds(1, lambda panel: 10_000_000)], 40, label="Steps per tuning", group="grid",
        width="short", argument="steps", help="Steps of each tuning of a study",
    )  # fmt: skip
    n_problems = field(
        Annotated[int, Bounds(1, lambda panel: 100_000)], 20, label="Held-out problems", group="grid", width="short",
        help="How many of the held-out problems to solve",
    )  # fmt: skip
    problem_file = field(
        str, label="Problem file", placeholder="empty: the demo's tasks; else .json or .jsonl", group="grid",
        width="grow", personal=True, shown_if=lambda panel: panel.problems is None,
        help="A .json or .jsonl file of held-out problems",
    )  # fmt: skip
    problems = field(T.Any(None))
    """Held-out problems of the studies; None for `problem_file` or, without one, the demo's tasks."""

    @property
    def request_models(self) -> tuple[Any, ...]:
        return (self.models[self.slot],)

    def counts(self) -> tuple[int, int, int]:
        """Number of tunings, of models that solve the problems, and of routes."""
        raise NotImplementedError

    def study_seconds(self) -> float:
        """Seconds for the tunings, and for the models to solve the held-out problems."""
        (tunings, solvers, k), model = self.counts(), self.models[self.slot]
        flops = tuning_flops(self, self.grid_steps, k)
        tuning = speedometer.seconds(TUNING, str(model.device), flops, own_speed=True) + _BUILD_SECONDS
        return tunings * tuning + solvers * self.n_problems * _ANSWER * model.n_layers * _SECONDS_PER_LAYER

    def build(self) -> None:
        super().build()
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self.inputs.children = [*self.inputs.children, *self.controls.rows("grid"), self.words]

    def refresh(self, limit: float | None = None) -> None:
        """Refresh, and show the options used from the Tune tab."""
        if self.dataset is not None:
            learned = f"{len(self.dataset):,} of your examples"
        else:
            learned = self.data_file.strip() or f"{self.examples:,} of the demo's tasks"
        parts = [f"k = {self.k}"] if self.fields()["k"].recomputes else []
        parts += [f"trained on {learned}", f"batch {self.batch_size}", f"learning rate {self.learning_rate:g}"]
        parts += [f"λ {self.distill:g}"] if self.fields()["distill"].recomputes else []
        parts += [f"LoRA of rank {self.rank}"] if self.lora else []
        self.words.value = f"As on the Tune tab: {', '.join(parts)}. Accuracy is the share of held-out problems solved."
        super().refresh(limit)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        if self.problems is None and not self.problem_file.strip() and (self.dataset is not None or self.learned.file):
            raise Incomplete(
                "problem_file",
                "there are no held-out problems for this data set: choose a problem file, or pass problems=",
            )
        solved = Problems(
            "problems", self.problems, id(self.problems), self.problem_file.strip(), "held_out", self.n_problems,
            self.seed,
        )  # fmt: skip
        options = {name: value for name, value in super().arguments().items() if name in TUNING_OPTIONS}
        return {"dataset": self.learned, "problems": solved, **options}

    def request(self) -> StudyQuestion:
        self.check_numbers(self.slot)
        if self.problems is None:
            self.check_file("problem_file")
        if self.dataset is None:
            self.check_file("data_file")
        request = super().request()
        seconds = self.study_seconds()
        return StudyQuestion(request.analysis, request.arguments, slot=self.slot, seconds=seconds)

    def compute(self, request: Any, model: Model, **reports: Any) -> Any:
        return super().compute(request, self.base(request.slot), **reports)

    def cost(self, request: Any, model: Model) -> Cost:
        return Cost(request.seconds, 0.0)

    def forecast(self, request: Any) -> Forecast:
        return super().forecast(request) if self._timed else Forecast(request.seconds, 0)

    def question(self) -> dict[str, str]:
        slot = self.slot if self.shown_request is None else self.shown_request.slot
        return super().question() | {"Base model": model_name(self.models[slot])}

    def code(self, request: Any) -> str:
        """The study on the screen, or else that of the current inputs."""
        shown = self.shown_request or request
        return self.cell([*shown.lines_on(self.variable(shown.slot), "result", ""), "result.to_frame()"])


class SeededStudy(StudyPanel):
    """Base of the studies that tune every variant with several seeds."""

    seed = variant(MixtureOptions.seed, argument="first_seed")
    grid_seeds = field(
        Annotated[int, Bounds(1, 20)], 1, label="Seeds", group="grid", width="short", argument="n_seeds",
        help="Tunings per cell or variant, each with its own seed; two or more give confidence intervals",
    )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"seeds": tuple(range(self.seed, self.seed + self.grid_seeds))}


class GridView(ValueView):
    """A map of k and top-K; finished cells are drawn during the run."""

    def __init__(self, panel: ProbePanel) -> None:
        super().__init__(panel)
        self.heat = Heatmap(
            row_name="k", column_name="top-K", y_label="late layers", x_label="top-K: routes per token",
            value_label="solved", height=230, empty="No grid yet.", numbers_from=0.0,
        )  # fmt: skip
        self.parts = [self.heat]

    def paint(self, results: Sequence[ModGrid], shown: str) -> None:
        (grid,) = results
        known = np.isfinite(grid.accuracy)
        sums = np.where(known, grid.accuracy, 0.0).sum(-1)
        mean = np.where(known.any(-1), sums / np.maximum(known.sum(-1), 1), np.nan)
        half = grid.half_width
        texts, notes = [], []
        for i, k in enumerate(grid.ks):
            for j, top in enumerate(grid.top_ks):
                value = mean[i, j]
                unfinished = grid.partial and top <= k and not known[i, j].any()
                texts.append(f"{value:.0%}" if np.isfinite(value) else "…" if unfinished else "")
                if top > k:
                    notes.append("top-K above k")
                elif not np.isfinite(value):
                    notes.append("not yet computed" if grid.partial else "the loss was NaN")
                else:
                    seeds = int(known[i, j].sum())
                    notes.append(f"95% interval ± {half[i, j]:.1%}" if np.isfinite(half[i, j]) else f"{seeds} seed")
        lit = mean[np.isfinite(mean)]
        with self.heat.hold_sync():
            partial = ", partial" if grid.partial else ""
            self.heat.title = (
                f"Accuracy on {grid.n_problems} held-out problems{partial} (the base model: {grid.base_accuracy:.0%})"
            )
            low, high = (float(lit.min()), float(lit.max())) if lit.size else (0.0, 1.0)
            self.heat.set_matrix(
                mean, rows=[f"k = {k}" for k in grid.ks], columns=[str(top) for top in grid.top_ks],
                vmin=min(low, grid.base_accuracy), vmax=max(high, grid.base_accuracy + 0.1),
                texts=texts, notes=notes,
            )  # fmt: skip

    def scene(self) -> Scene:
        return self.heat.scene(width=720)


class VariantsView(ValueView):
    """A bar per variant."""

    def __init__(self, panel: ProbePanel) -> None:
        super().__init__(panel)
        self.bars = AblationBars()
        self.parts = [BokehFigure(self.bars.figure, on_error=panel.show_error)]

    def paint(self, results: Sequence[ModAblations], shown: str) -> None:
        self.bars.update(results[0])

    def scene(self) -> Scene:
        frame = self.panel.results[0].to_frame()
        heads = [(str(name).replace("_", " "), 150.0) for name in frame.columns]
        return table_scene(heads, frame.to_numpy().tolist(), title=self.bars.figure.title.text, right=(1, 2, 3, 4))


class LateLayersView(ValueView):
    """A curve per layer, and which layers solve a problem."""

    def __init__(self, panel: ProbePanel) -> None:
        super().__init__(panel)
        self.curves, self.overlap = LateLayerCurves(), OverlapBars()
        charts = W.VBox([BokehFigure(chart.figure, on_error=panel.show_error) for chart in (self.curves, self.overlap)])
        charts.add_class("iw-maps")
        self.parts = [charts]

    def paint(self, results: Sequence[LateLayerLosses], shown: str) -> None:
        self.curves.update(results[0])
        self.overlap.update(results[0])

    def scene(self) -> Scene:
        lines: list[Curve] = [(line.name, line.values, True) for line in self.curves.drawn]
        return curves_scene(lines, title=self.curves.figure.title.text, x_label="step", y_label="nats per token")


def ks_box(panel: Any) -> W.Text:
    """A box for the numbers of routes, separated by commas."""
    box = TextLine(
        description="k", value=_listed(panel.grid_ks), continuous_update=False, placeholder="1, 2, 3",
        tooltip="Numbers of routes k on the grid",
    )  # fmt: skip

    def typed(change: Any) -> None:
        with hint_at("grid_ks"):
            numbers = _numbers(change.new)
        panel.forget_error()
        panel.grid_ks = numbers

    panel.watch(box, "value", typed)
    panel.watch(panel, "grid_ks", lambda change: setattr(box, "value", _listed(change.new)))
    return box


class MixtureGrid(probe(mod_grid, base=SeededStudy, view=GridView, title="Grid of k and top-K")):  # type: ignore[misc]
    """Accuracy for every k and top-K, one tuning per cell."""

    k = variant(MixtureOptions.k, argument=None)
    grid_ks = field(T.List(Whole(min=1), default_value=[1, 2, 3]), label="k", group="grid", width="short",
                    argument="ks", control=ks_box)  # fmt: skip
    """Numbers of routes on the grid."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        fewest = min(int(getattr(model, "n_layers", 3)) for model in self.models)
        ks = {} if "grid_ks" in keywords else {"grid_ks": [k for k in (1, 2, 3) if k <= fewest]}
        return super().defaults(keywords) | ks

    def arguments(self) -> dict[str, Any]:
        if not self.grid_ks:
            raise Incomplete("grid_ks", "k is empty: type at least one number of layers, such as 1, 2, 3")
        layers = int(self.models[self.slot].n_layers)
        if max(self.grid_ks) > layers:
            raise Incomplete(
                "grid_ks",
                f"k must be whole numbers in 1..{layers} for this {layers}-layer model, got {_listed(self.grid_ks)}",
            )
        return super().arguments() | {"ks": tuple(self.grid_ks)}

    def counts(self) -> tuple[int, int, int]:
        runs = sum(self.grid_ks) * self.grid_seeds
        return runs, runs + 1, max(self.grid_ks)


class MixtureVariants(probe(mod_ablations, base=SeededStudy, view=VariantsView, title="Variants")):  # type: ignore[misc]
    """The full method, without its norms, and without distillation."""

    def arguments(self) -> dict[str, Any]:
        if not self.distill:
            raise ValueError("λ is 0, so there is no distillation term to leave out: set it above 0 on the Tune tab")
        return super().arguments()

    def counts(self) -> tuple[int, int, int]:
        runs = len(ABLATIONS) * self.grid_seeds
        return runs, runs + 1, self.k


class LateLayers(probe(late_layer_losses, base=StudyPanel, view=LateLayersView, title="Late layers")):  # type: ignore[misc]
    """Loss of each of the last k layers, with and without tuning that layer itself, LoRA on all."""

    distill = variant(MixtureOptions.distill, argument=None)
    lora_layers = variant(MixtureOptions.lora_layers, argument=None)

    def arguments(self) -> dict[str, Any]:
        return {"lora": NEEDS_LORA, "seed": self.seed} | super().arguments()

    def counts(self) -> tuple[int, int, int]:
        return self.k, self.k, self.k


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _numbers(text: str) -> list[int]:
    """The integers from 1 up in a text; ValueError for anything else in it."""
    parts = [part for part in text.replace(",", " ").split() if part]
    if any(not part.isdecimal() or not part.strip("0") for part in parts):
        raise ValueError(
            "k must be whole numbers of 1 or more, separated by commas, such as 1, 2, 3, got "
            f"{short(repr(text))}: write them so"
        )
    return [int(part) for part in parts]
