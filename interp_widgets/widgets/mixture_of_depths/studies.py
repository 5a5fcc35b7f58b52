"""Studies: accuracy for every k and top-K, the two ablations, and what late layers lose; each on its button."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.compute.worker import Job
from interp_widgets.data.files import short
from interp_widgets.data.problems import Problem, demo_problems, read_problems
from interp_widgets.figures.mixture_of_depths import AblationBars, LateLayerCurves, OverlapBars
from interp_widgets.figures.static import Curve, Scene, curves_scene, stack_scenes, table_scene
from interp_widgets.tuning.mixture_of_depths import ABLATIONS, ModGrid, late_layer_losses, mod_ablations, mod_grid

from ..base.code import call
from ..base.controls import row
from ..base.fields import Bounds, field
from ..base.panel import QUICK_SECONDS
from ..views import BokehFigure, Heatmap
from .cost import study_seconds
from .mixtures import MixturePanel

_KIND = ("MoDRoutingViewer", "study")
NEEDS_LORA = 8
"""Rank of the adapters with which late layers are tuned where the Tune tab has none."""


@dataclass(frozen=True)
class Study:
    """One button of the tab."""

    label: str
    about: Callable[[], str]
    call: Callable[..., Any]
    options: Callable[[], dict[str, Any]]
    """What `call` gets besides model, data and problems."""
    counts: Callable[[], tuple[int, int, int]]
    """Tunings, models that solve the problems, and routes."""


def ks_box(panel: MixtureStudies) -> W.Text:
    """The numbers of routes, with commas between them."""
    box = W.Text(
        description="k", value=_listed(panel.grid_ks), continuous_update=False, placeholder="1, 2, 3",
        tooltip="Numbers of routes on the grid",
    )  # fmt: skip
    panel.watch(box, "value", lambda change: setattr(panel, "grid_ks", _numbers(change.new)))
    panel.watch(panel, "grid_ks", lambda change: setattr(box, "value", _listed(change.new)))
    return box


class MixtureStudies(MixturePanel):
    """Three studies, each with button, forecast and picture; what is done so far is drawn as it comes."""

    asks: ClassVar[bool] = False
    grid_ks = field(T.List(T.Int(min=1), default_value=[1, 2, 3]), label="k", group="grid", width="short",
                    control=ks_box)  # fmt: skip
    """Numbers of routes on the grid."""
    grid_steps = field(
        Annotated[int, Bounds(1, lambda panel: 10_000_000)], 40, label="steps per tuning", group="grid",
        width="short", help="Steps of each tuning on the Grid tab",
    )  # fmt: skip
    grid_seeds = field(
        Annotated[int, Bounds(1, 20)], 1, label="seeds", group="grid", width="short",
        help="Tunings per cell, each with a seed of its own; more than one give intervals",
    )  # fmt: skip
    n_problems = field(
        Annotated[int, Bounds(1, lambda panel: 100_000)], 20, label="held-out problems", group="grid", width="short",
        help="How many of the held-out problems are tried",
    )  # fmt: skip
    problem_file = field(
        str, label="Problem file", placeholder="empty: the demo's tasks; else .json or .jsonl", group="grid",
        width="grow", shown_if=lambda panel: panel.problems is None, help="A .json or .jsonl file of held-out problems",
    )  # fmt: skip
    problems = field(T.Any(None))
    """Held-out problems of the grid; None for `problem_file`, or without that the demo's tasks."""

    def defaults(self, given: set[str]) -> dict[str, Any]:
        fewest = min(int(getattr(model, "n_layers", 3)) for model in self.models)
        ks = {} if "grid_ks" in given else {"grid_ks": [k for k in (1, 2, 3) if k <= fewest]}
        return super().defaults(given) | ks

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.studied: dict[str, Any] = {}
        """The results, whole or partial, by the study's name."""
        self.lines: dict[str, list[str]] = {}
        """The lines of a cell that make them."""
        self.questions: dict[str, dict[str, str]] = {}
        """The settings that they were made with, by their labels."""
        self.latest = ""
        self.heat = Heatmap(
            row_name="k", column_name="top-K", y_label="late layers", x_label="top-K: routes per token",
            value_label="solved", height=230, empty="No grid yet: press Tune the grid", numbers_from=0.0,
        )  # fmt: skip
        self.bars, self.curves, self.overlap = AblationBars(), LateLayerCurves(), OverlapBars()
        self.studies = {
            "grid": Study("Tune the grid", lambda: "Accuracy for every k and top-K (one tuning per cell)", mod_grid,
                          self._grid_options, self._grid_counts),
            "ablations": Study("Tune variants",
                  lambda: f"The whole method with k = {self.k}, without its norms, and without distillation",
                  mod_ablations, self._ablation_options, self._ablation_counts),
            "late": Study("Tune each layer",
                  lambda: f"Loss of each of the last {self.k} layers, itself tuned or not, LoRA on all",
                  late_layer_losses, self._late_options, lambda: (self.k, self.k, self.k)),
        }  # fmt: skip
        self.buttons = {
            name: self.on_click(W.Button(description=study.label, tooltip=study.about()), partial(self.start, name))
            for name, study in self.studies.items()
        }
        self.forecasts = {name: W.HTML("") for name in self.studies}
        self.words = W.HTML("")
        for line in (*self.forecasts.values(), self.words):
            line.add_class("iw-hint")
        rows = {name: row(self.buttons[name], self.forecasts[name]) for name in self.studies}
        bars, curves, overlap = (
            BokehFigure(chart.figure, on_error=self.show_error) for chart in (self.bars, self.curves, self.overlap)
        )
        first, late = W.VBox([W.VBox([rows["grid"], self.heat]), W.VBox([rows["ablations"], bars])]), W.VBox()
        late.children = [curves, overlap]
        for box in (first, late):
            box.add_class("iw-maps")
        self.inputs.children = [*self.controls.rows("grid"), self.words]
        self.plot.children = [first, rows["late"], late]

    def refresh(self, limit: float = QUICK_SECONDS) -> None:
        """Bring forecasts and words up to the inputs."""
        if self.dataset is not None:
            learned = f"{len(self.dataset):,} examples as given"
        else:
            learned = self.data_file.strip() or f"{self.examples:,} of the demo's tasks"
        parts = [f"learns {learned}", f"batch {self.batch_size}"]
        parts += [f"learning rate {self.learning_rate:g}", f"λ {self.distill:g}"]
        if self.lora:
            parts.append(f"LoRA of rank {self.rank}")
        self.words.value = f"As on the Tune tab: {', '.join(parts)}. Accuracy is the share of held-out problems solved."
        for name, study in self.studies.items():
            try:
                self.check_numbers(self.slot)
                study.options()
                text = self.study_forecast(study).describe()
            except (ValueError, OSError) as error:
                text = f"cannot run yet: {error}"
            self.forecasts[name].value = escape(f"{study.about()}; {text}")

    def study_forecast(self, study: Study) -> Forecast:
        """Time that a study will probably take."""
        seconds = study_seconds(self, *study.counts())
        device = str(self.models[self.slot].device)
        return Forecast(speedometer.seconds(_KIND, device, seconds) if speedometer.knows(_KIND, device) else seconds, 0)

    # what the studies ask for -----------------------------------------------------------------------------------------

    def _tuning(self) -> dict[str, Any]:
        """Options of `tune_mod` that all studies use."""
        return {"steps": self.grid_steps, "batch_size": self.batch_size, "learning_rate": self.learning_rate}

    def _repeated(self) -> dict[str, Any]:
        """Options of the studies that tune every variant with several seeds."""
        seeds = tuple(range(self.seed, self.seed + self.grid_seeds))
        lora = {"lora": self.rank, "lora_layers": self.lora_layers} if self.lora else {}
        return {"seeds": seeds, "distill": self.distill, **self._tuning(), **lora}

    def _grid_options(self) -> dict[str, Any]:
        if not self.grid_ks:
            raise ValueError("k is empty: type at least one number of layers, such as 1, 2, 3")
        layers = int(self.models[self.slot].n_layers)
        if max(self.grid_ks) > layers:
            raise ValueError(
                f"k must be whole numbers in 1..{layers} for this {layers}-layer model, got {_listed(self.grid_ks)}"
            )
        return {"ks": tuple(self.grid_ks), **self._repeated()}

    def _grid_counts(self) -> tuple[int, int, int]:
        runs = sum(self.grid_ks) * self.grid_seeds
        return runs, runs + 1, max(self.grid_ks or [1])

    def _ablation_options(self) -> dict[str, Any]:
        if not self.distill:
            raise ValueError("λ is 0, so there is no distillation term to leave out: set it above 0 on the Tune tab")
        return {"k": self.k, **self._repeated()}

    def _ablation_counts(self) -> tuple[int, int, int]:
        runs = len(ABLATIONS) * self.grid_seeds
        return runs, runs + 1, self.k

    def _late_options(self) -> dict[str, Any]:
        return {"k": self.k, "lora": self.rank if self.lora else NEEDS_LORA, "seed": self.seed, **self._tuning()}

    def solved(self) -> list[Problem]:
        """Held-out problems; ValueError where there are none."""
        if self.problems is not None:
            problems = list(self.problems)
        elif self.problem_file.strip():
            problems = list(read_problems(self.problem_file.strip()))
        elif self.dataset is not None or self.data_file.strip():
            raise ValueError("there are no held-out problems for this data set: give a file of problems, or problems=")
        else:
            problems = list(demo_problems("held_out", self.n_problems, self.seed))
        if not problems:
            raise ValueError("there are no problems to solve: give at least one")
        wrong = next((one for one in problems if not isinstance(one, Problem)), None)
        if wrong is not None:
            raise ValueError(f"problems must come from read_problems or demo_problems, got {type(wrong).__name__}")
        return problems[: self.n_problems]

    # running ----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Run one study in the background."""
        study = self.studies[name]
        if self.jobs.runs(name):
            raise ValueError(f"“{study.label}” is under way: cancel it first to start it again")
        self.check_numbers(self.slot)
        slot, options, dataset, problems = self.slot, study.options(), self.learned(), self.solved()
        lines, expected = self._study_lines(name), study_seconds(self, *study.counts())
        question = self._settings(lambda one: one.label != "steps")
        inputs = [dataset] if name == "late" else [dataset, problems]
        if name == "late":
            options["problems"] = problems

        def work(job: Job) -> Any:
            base, began = self.base(slot), time.monotonic()

            def progress(done: int, total: int) -> None:
                job.progress(done, total)
                job.give_way()  # between two tunings

            result = study.call(base, *inputs, progress=progress, check=job.check, on_partial=job.partial, **options)
            speedometer.learn(_KIND, str(base.device), expected, time.monotonic() - began - job.given_away)
            return result

        def take(result: Any) -> None:
            self.studied[name], self.lines[name], self.questions[name] = result, lines, question
            self.latest, self.results = name, (result,)
            self._draw_study(name, result)

        self.jobs.start(
            work, take, title=study.label.replace("Tune", "Tuning"), channel=name, on_partial=take, gives_way=True
        )

    @property
    def last(self) -> Any:
        """The result that came last; None before the first."""
        return self.studied.get(self.latest)

    def _draw_study(self, name: str, result: Any) -> None:
        """Draw a result, whole or partial."""
        if name == "grid":
            self._draw_grid(result)
        elif name == "ablations":
            self.bars.update(result)
        else:
            self.curves.update(result)
            self.overlap.update(result)
        if not result.partial:
            self.refresh()

    def _draw_grid(self, grid: ModGrid) -> None:
        known = np.isfinite(grid.accuracy)
        sums = np.where(known, grid.accuracy, 0.0).sum(-1)
        mean = np.where(known.any(-1), sums / np.maximum(known.sum(-1), 1), np.nan)
        half = grid.half_width
        texts, notes = [], []
        for i, k in enumerate(grid.ks):
            for j, top in enumerate(grid.top_ks):
                value = mean[i, j]
                waits = grid.partial and top <= k and not known[i, j].any()
                texts.append(f"{value:.0%}" if np.isfinite(value) else "…" if waits else "")
                if top > k:
                    notes.append("top-K above k")
                elif not np.isfinite(value):
                    notes.append("not yet computed" if grid.partial else "the loss was no number")
                else:
                    seeds = int(known[i, j].sum())
                    notes.append(f"95 % interval ± {half[i, j]:.1%}" if np.isfinite(half[i, j]) else f"{seeds} seed")
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

    # what is saved ----------------------------------------------------------------------------------------------------

    def _study_lines(self, name: str) -> list[str]:
        """Lines that make a study with the inputs as they are."""
        if self.problems is not None:
            held = "problems = problems  # the ones that the viewer was opened with"
        elif self.problem_file.strip():
            held = f"problems = read_problems({self.problem_file.strip()!r})[:{self.n_problems}]"
        else:
            held = f"problems = {call('demo_problems', repr('held_out'), repr(self.n_problems), repr(self.seed))}"
        study, problems = self.studies[name], "problems=problems" if name == "late" else "problems"
        asked = call(study.call.__name__, self.variable(self.slot), "dataset", problems, **study.options())
        return [self.data_line(), held, f"result = {asked}", "result.to_frame()"]

    def code(self, request: Any) -> str:
        """The study whose result came last; before that the first one, with the inputs as they are."""
        return self.cell(self.lines[self.latest] if self.latest else self._study_lines("grid"))

    def question(self) -> dict[str, str]:
        """The settings of the study whose result came last."""
        return self.questions.get(self.latest, {})

    def frame(self) -> Any:
        return self.stored().to_frame()

    def stored(self) -> Any:
        if self.last is None:
            raise ValueError("there is nothing to save on the tab Grid yet: press one of its buttons first")
        return self.last

    def scene(self) -> Scene:
        """Everything that is drawn."""
        scenes = []
        if "grid" in self.studied:
            scenes.append(self.heat.scene(width=720))
        if "ablations" in self.studied:
            table = self.studied["ablations"].to_frame()
            heads = [(str(name).replace("_", " "), 150.0) for name in table.columns]
            rows = table.to_numpy().tolist()
            scenes.append(table_scene(heads, rows, title=self.bars.figure.title.text, right=(1, 2, 3, 4)))
        if "late" in self.studied:
            lines: list[Curve] = [(line.name, line.values, True) for line in self.curves.drawn]
            title = self.curves.figure.title.text
            scenes.append(curves_scene(lines, title=title, x_label="step", y_label="nats per token"))
        if not scenes:
            raise ValueError("there is nothing to draw on the tab Grid yet: press one of its buttons first")
        return stack_scenes(scenes)


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _numbers(text: str) -> list[int]:
    """The whole numbers in a text; ValueError for anything else in it."""
    parts = [part for part in text.replace(",", " ").split() if part]
    if any(not part.isdecimal() for part in parts):
        raise ValueError(f"k must be whole numbers with commas between them, such as 1, 2, 3, got {short(repr(text))}")
    return [int(part) for part in parts]
