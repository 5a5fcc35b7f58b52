"""The Grid tab: accuracy for every k and top-K, the two ablations, and what late layers lose; each on its button."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.compute.worker import Job
from interp_widgets.data.files import short
from interp_widgets.figures.mod import AblationBars, LateLayerCurves, OverlapBars
from interp_widgets.figures.static import Curve, Scene, curves_scene, stack_scenes, table_scene
from interp_widgets.tuning.mixture_of_depths import ABLATIONS, ModGrid, late_layer_losses, mod_ablations, mod_grid

from ..base.controls import row
from ..views import BokehFigure, Heatmap
from .cost import study_seconds
from .data import learned, learned_words, solved
from .source import study_lines

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer

_KIND = ("MoDRoutingViewer", "study")
NEEDS_LORA = 8
"""Rank of the adapters with which late layers are tuned where the Tune tab has none."""


@dataclass(frozen=True)
class Study:
    """One button of the tab."""

    name: str
    label: str
    about: Callable[[], str]
    call: Callable[..., Any]
    options: Callable[[], dict[str, Any]]
    """What `call` gets besides model, data and problems."""
    counts: Callable[[], tuple[int, int, int]]
    """Tunings, models that solve the problems, and routes."""


class GridTab:
    """Three studies, each with button, forecast and picture; what is done so far is drawn as it comes."""

    def __init__(self, panel: MoDRoutingViewer) -> None:
        self.panel = panel
        self.found: dict[str, Any] = {}
        """The results, whole or partial, by the study's name."""
        self.made: dict[str, list[str]] = {}
        """The lines of a cell that make them."""
        self.latest = ""
        self.heat = Heatmap(
            row_name="k", column_name="top-K", y_label="late layers", x_label="top-K: routes per token",
            value_label="solved", height=230, empty="No grid yet: press Tune the grid", numbers_from=0.0,
        )  # fmt: skip
        self.bars, self.curves, self.overlap = AblationBars(), LateLayerCurves(), OverlapBars()
        self.studies = (
            Study("grid", "Tune the grid", lambda: "Accuracy for every k and top-K (one tuning per cell)", mod_grid,
                  self._grid_options, self._grid_counts),
            Study("ablations", "Tune variants",
                  lambda: f"The whole method with k = {panel.k}, without its norms, and without distillation",
                  mod_ablations, self._ablation_options, self._ablation_counts),
            Study("late", "Tune each layer",
                  lambda: f"Loss of each of the last {panel.k} layers, itself tuned or not, LoRA on all",
                  late_layer_losses, self._late_options, lambda: (panel.k, panel.k, panel.k)),
        )  # fmt: skip
        self.buttons: dict[str, Any] = {}
        self.hints: dict[str, Any] = {}
        lines = {study.name: self._line(study) for study in self.studies}
        hosts = [
            BokehFigure(chart.figure, on_error=panel.show_error) for chart in (self.bars, self.curves, self.overlap)
        ]
        late = W.VBox(hosts[1:])
        late.add_class("iw-maps")
        first = W.VBox([W.VBox([lines["grid"], self.heat]), W.VBox([lines["ablations"], hosts[0]])])
        first.add_class("iw-maps")
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self.box = W.VBox([*panel.controls.rows("grid"), self.words, first, lines["late"], late])
        self.box.add_class("iw-column")
        watched = [
            "slot", "k", "batch_size", "dataset", "data_file", "examples", "n_problems", "grid_ks", "grid_steps",
            "grid_seeds", "lora", "rank", "distill", "problem_file", "tab", "top_k", "learning_rate", "lora_layers",
        ]  # fmt: skip
        panel.watch(panel, watched, lambda _: self.fit())
        panel.watch(panel, ["grid_ks", "grid_steps", "n_problems", "problem_file"], lambda _: panel.forget_error())

    # inputs -----------------------------------------------------------------------------------------------------------

    def _line(self, study: Study) -> Any:
        button = self.panel.on_click(
            W.Button(description=study.label, tooltip=study.about()), lambda: self.start(study.name)
        )
        hint = W.HTML("")
        hint.add_class("iw-hint")
        self.buttons[study.name], self.hints[study.name] = button, hint
        return row(button, hint)

    def fit(self) -> None:
        """Bring forecasts and words up to the inputs."""
        panel = self.panel
        if panel.tab != "grid":
            return
        parts = [f"learns {learned_words(panel)}", f"batch {panel.batch_size}"]
        parts += [f"learning rate {panel.learning_rate:g}", f"λ {panel.distill:g}"]
        if panel.lora:
            parts.append(f"LoRA of rank {panel.rank}")
        self.words.value = f"As on the Tune tab: {', '.join(parts)}. Accuracy is the share of held-out problems solved."
        for study in self.studies:
            try:
                self._check(study)
                told = self.forecast(study).describe()
            except (ValueError, OSError) as error:
                told = f"cannot run yet: {error}"
            self.hints[study.name].value = escape(f"{study.about()}; {told}")

    def _check(self, study: Study) -> None:
        """ValueError for numbers that the study cannot have."""
        panel = self.panel
        panel.shelf.check_numbers(panel.slot)
        study.options()

    def forecast(self, study: Study) -> Forecast:
        """Time that a study will probably take."""
        panel = self.panel
        plain = study_seconds(panel, *study.counts())
        device = str(panel.models[panel.slot].device)
        return Forecast(speedometer.seconds(_KIND, device, plain) if speedometer.knows(_KIND, device) else plain, 0)

    def tuning(self) -> dict[str, Any]:
        """Options of `tune_mod` that all studies use."""
        panel = self.panel
        return {"steps": panel.grid_steps, "batch_size": panel.batch_size, "learning_rate": panel.learning_rate}

    def _lora(self) -> dict[str, Any]:
        panel = self.panel
        return {"lora": panel.rank, "lora_layers": panel.lora_layers} if panel.lora else {}

    def _grid_options(self) -> dict[str, Any]:
        panel = self.panel
        if not panel.grid_ks:
            raise ValueError("k is empty: type at least one number of layers, such as 1, 2, 3")
        layers = int(panel.models[panel.slot].n_layers)
        if max(panel.grid_ks) > layers:
            raise ValueError(
                f"k must be whole numbers in 1..{layers} for this {layers}-layer model, got {_listed(panel.grid_ks)}"
            )
        seeds = tuple(range(panel.seed, panel.seed + panel.grid_seeds))
        return {"ks": tuple(panel.grid_ks), "seeds": seeds, "distill": panel.distill, **self.tuning(), **self._lora()}

    def _grid_counts(self) -> tuple[int, int, int]:
        cells = sum(self.panel.grid_ks) if self.panel.grid_ks else 0
        runs = cells * self.panel.grid_seeds
        return runs, runs + 1, max(self.panel.grid_ks or [1])

    def _ablation_counts(self) -> tuple[int, int, int]:
        runs = len(ABLATIONS) * self.panel.grid_seeds
        return runs, runs + 1, self.panel.k

    def _ablation_options(self) -> dict[str, Any]:
        panel = self.panel
        seeds = tuple(range(panel.seed, panel.seed + panel.grid_seeds))
        if not panel.distill:
            raise ValueError("λ is 0, so there is no distillation term to leave out: set it above 0 on the Tune tab")
        return {"k": panel.k, "seeds": seeds, "distill": panel.distill, **self.tuning(), **self._lora()}

    def _late_options(self) -> dict[str, Any]:
        panel = self.panel
        return {"k": panel.k, "lora": panel.rank if panel.lora else NEEDS_LORA, "seed": panel.seed, **self.tuning()}

    # running ----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Run one study in the background."""
        panel = self.panel
        study = next(one for one in self.studies if one.name == name)
        if panel.jobs.runs(name):
            raise ValueError(f"“{study.label}” is under way: cancel it first to start it again")
        self._check(study)
        slot, options, dataset, problems = panel.slot, study.options(), learned(panel), solved(panel)
        lines = study_lines(panel, study, "model" if len(panel.models) == 1 else ("base", "tuned")[slot])
        plain = study_seconds(panel, *study.counts())
        if name == "late":
            options["problems"] = problems

        def work(job: Job) -> Any:
            base, began = panel.shelf.base(slot), time.monotonic()
            given = (base, dataset) if name == "late" else (base, dataset, problems)

            def progress(done: int, total: int) -> None:
                job.progress(done, total)
                job.give_way()  # between two tunings

            found = study.call(*given, progress=progress, check=job.check, on_partial=job.partial, **options)
            speedometer.learn(_KIND, str(base.device), plain, time.monotonic() - began - job.given_away)
            return found

        panel.jobs.start(
            work, lambda found: self.take(name, found, lines), title=study.label.replace("Tune", "Tuning"),
            channel=name, on_partial=lambda found: self.take(name, found, lines), gives_way=True,
        )  # fmt: skip

    def take(self, name: str, found: Any, lines: list[str]) -> None:
        """Hold and draw a result, whole or partial, and the lines of a cell that make it."""
        self.found[name], self.made[name], self.latest = found, lines, name
        if name == "grid":
            self._draw_grid(found)
        elif name == "ablations":
            self.bars.update(found)
        else:
            self.curves.update(found)
            self.overlap.update(found)
        if not found.partial:
            self.fit()

    @property
    def last(self) -> Any:
        """The result that came last; None before the first."""
        return self.found.get(self.latest)

    def _draw_grid(self, found: ModGrid) -> None:
        known = np.isfinite(found.accuracy)
        sums = np.where(known, found.accuracy, 0.0).sum(-1)
        mean = np.where(known.any(-1), sums / np.maximum(known.sum(-1), 1), np.nan)
        half = found.half_width
        texts, notes = [], []
        for i, k in enumerate(found.ks):
            for j, top in enumerate(found.top_ks):
                value = mean[i, j]
                waits = found.partial and top <= k and not known[i, j].any()
                texts.append(f"{value:.0%}" if np.isfinite(value) else "…" if waits else "")
                if top > k:
                    notes.append("top-K above k")
                elif not np.isfinite(value):
                    notes.append("not yet computed" if found.partial else "the loss was no number")
                else:
                    seeds = int(known[i, j].sum())
                    notes.append(f"95 % interval ± {half[i, j]:.1%}" if np.isfinite(half[i, j]) else f"{seeds} seed")
        lit = mean[np.isfinite(mean)]
        with self.heat.hold_sync():
            partial = ", partial" if found.partial else ""
            self.heat.title = (
                f"Accuracy on {found.n_problems} held-out problems{partial} (the base model: {found.base_accuracy:.0%})"
            )
            low, high = (float(lit.min()), float(lit.max())) if lit.size else (0.0, 1.0)
            self.heat.set_matrix(
                mean, rows=[f"k = {k}" for k in found.ks], columns=[str(top) for top in found.top_ks],
                vmin=min(low, found.base_accuracy), vmax=max(high, found.base_accuracy + 0.1),
                texts=texts, notes=notes,
            )  # fmt: skip

    # what is taken away -----------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """Everything that is drawn."""
        scenes = []
        if "grid" in self.found:
            scenes.append(self.heat.scene(width=720))
        if "ablations" in self.found:
            table = self.found["ablations"].to_frame()
            heads = [(str(name).replace("_", " "), 150.0) for name in table.columns]
            rows = table.to_numpy().tolist()
            scenes.append(table_scene(heads, rows, title=self.bars.figure.title.text, right=(1, 2, 3, 4)))
        if "late" in self.found:
            lines: list[Curve] = [(line.name, line.values, True) for line in self.curves.drawn]
            title = self.curves.figure.title.text
            scenes.append(curves_scene(lines, title=title, x_label="step", y_label="nats per token"))
        if not scenes:
            raise ValueError("there is nothing to draw on the tab Grid yet: press one of its buttons first")
        return stack_scenes(scenes)


def ks_box(panel: MoDRoutingViewer) -> W.Text:
    """The numbers of routes, with commas between them."""
    box = W.Text(
        description="k", value=_listed(panel.grid_ks), continuous_update=False, placeholder="1, 2, 3",
        tooltip="Numbers of routes on the grid",
    )  # fmt: skip
    panel.watch(box, "value", lambda change: setattr(panel, "grid_ks", _numbers(change.new)))
    panel.watch(panel, "grid_ks", lambda change: setattr(box, "value", _listed(change.new)))
    return box


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _numbers(text: str) -> list[int]:
    """The whole numbers in a text; ValueError for anything else in it."""
    parts = [part for part in text.replace(",", " ").split() if part]
    if any(not part.isdecimal() for part in parts):
        raise ValueError(f"k must be whole numbers with commas between them, such as 1, 2, 3, got {short(repr(text))}")
    return [int(part) for part in parts]
