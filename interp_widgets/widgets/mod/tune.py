"""The Tune tab: options, Tune, Stop, Resume, live curves, and checkpoints."""

from __future__ import annotations

import threading
import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.compute.memory import describe_seconds, speedometer
from interp_widgets.compute.worker import Cancelled, Job
from interp_widgets.figures.mod.lines import (
    STATISTICS,
    Distillation,
    RouteLosses,
    RouteStatistic,
    StepCurves,
    TuningLoss,
)
from interp_widgets.figures.static import Curve, Scene, curves_scene, stack_scenes
from interp_widgets.tuning.mixture_of_depths import ModReport, ModStep, tune_mod

from ..base.controls import checked_path, row
from ..base.saving import file_stem, free_name
from ..base.status import describe_error
from ..base.workbench import model_name
from ..views import BokehFigure
from .cost import TUNING, tuning_flops
from .data import learned
from .live import Live
from .request import Entry
from .shelf import curves_of, steps_of
from .source import data_line

if TYPE_CHECKING:
    from .viewer import MoDRoutingViewer


class _Stopped(Exception):
    """Raised between two steps when the user has pressed Stop: what was learned is kept."""


class TuneTab:
    """Options and buttons above, the report, and the charts."""

    def __init__(self, panel: MoDRoutingViewer) -> None:
        self.panel = panel
        self._halt: threading.Event | None = None
        self.going = False
        """Whether a tuning is under way or waits for its turn."""
        self.showing: Any = None
        """The curves that are drawn."""
        self.tune_button = panel.on_click(
            W.Button(description="Tune", button_style="primary", tooltip="Tune a new mixture from the start"), self.tune
        )
        self.stop_button = panel.on_click(
            W.Button(description="Stop", disabled=True, tooltip="Stop after this step and keep what was learned"),
            self.stop,
        )
        self.resume_button = panel.on_click(
            W.Button(description="Resume", tooltip="Go on with the mixture looked at, up to so many steps in all"),
            self.resume,
        )  # fmt: skip
        self.folder = W.Text(
            description="Checkpoint folder", value="", placeholder="beside the notebook, by a name of its own"
        )
        self.folder.add_class("iw-grow")
        self.save_button = panel.on_click(W.Button(description="Save checkpoint"), self.save)
        self.open_button = panel.on_click(W.Button(description="Open checkpoint"), self.open)
        self.forget_button = panel.on_click(
            W.Button(description="Forget", tooltip="Let go of the mixture looked at; its weights leave the memory"),
            self.forget,
        )
        self._unsaved: Entry | None = None
        self.words, self.hint = W.HTML(""), W.HTML("")
        self.hint.add_class("iw-hint")
        self.loss = TuningLoss()
        self.charts: dict[str, Any] = {"loss": self.loss, "routes": RouteLosses(), "distillation": Distillation()}
        self.charts |= {name: RouteStatistic(name) for name in STATISTICS}
        hosts = [BokehFigure(chart.figure, on_error=panel.show_error) for chart in self.charts.values()]
        charts = W.VBox(hosts)
        charts.add_class("iw-maps")
        self.box = W.VBox([
            *panel.controls.rows("tune", after={"slot": _given(panel)}),
            row(self.tune_button, self.stop_button, self.resume_button, self.hint),
            row(self.folder, self.save_button, self.open_button, self.forget_button),
            self.words, charts,
        ])  # fmt: skip
        self.box.add_class("iw-column")
        asked = [
            "tab", "slot", "k", "top_k", "steps", "batch_size", "examples", "data_file", "lora", "rank", "lora_layers",
            "dataset", "learning_rate", "distill", "seed",
        ]  # fmt: skip
        panel.watch(panel, asked, lambda _: self.fit())
        panel.watch(panel, asked[1:], lambda _: panel.forget_error())

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Show the mixture that is looked at; while one is tuned, its curves stay."""
        if self.going:
            return
        entry = self.panel.shelf.chosen(self.panel.slot)
        curves = curves_of(entry)
        self._draw(curves, 0 if entry.report is None else entry.report.steps)
        self.fit()
        self.words.value = _words(entry)
        self._unsaved = None
        self.save_button.disabled = entry.model is None
        self.forget_button.disabled = entry is self.panel.shelf.rows[self.panel.slot][0]
        self.resume_button.disabled = entry.model is None or not entry.model.state.training

    def fit(self) -> None:
        """Bring the forecast beside the buttons up to the inputs."""
        panel = self.panel
        if panel.tab != "tune":
            return
        try:
            panel.shelf.check_numbers(panel.slot)
        except ValueError as error:
            self.hint.value = escape(f"cannot run yet: {error}")
            return
        flops = tuning_flops(panel, panel.steps, panel.k)
        seconds = speedometer.seconds(TUNING, str(panel.models[panel.slot].device), flops)
        self.hint.value = f"{panel.steps:,} steps: about {describe_seconds(seconds)}; curves and Stop as it goes"

    def _draw(self, curves: Any, steps: int) -> None:
        self.showing = curves
        for chart in self.charts.values():
            chart.update(curves, steps)

    def _mark(self, going: bool) -> None:
        self.going = going
        self.stop_button.disabled = not going
        self.tune_button.disabled = going
        self.resume_button.disabled = going

    # tuning -----------------------------------------------------------------------------------------------------------

    def tune(self) -> None:
        """Tune a new mixture."""
        self._start(None)

    def resume(self) -> None:
        """Go on with the mixture that is looked at."""
        panel = self.panel
        entry = panel.shelf.chosen(panel.slot)
        if entry.model is None or not entry.model.state.training:
            raise ValueError("there is nothing to go on from: tune a mixture first, or open one that was saved")
        done = steps_of(entry)
        if done >= panel.steps:
            raise ValueError(f"all {panel.steps} steps are made: ask for more than {done} steps to go on")
        self._start(entry)

    def stop(self) -> None:
        """Stop behind the step that is being made; what was learned is kept."""
        if self._halt is not None and self.going:
            self._halt.set()
            self.panel.status.cancelling(channel="tune")

    def _start(self, before: Entry | None) -> None:
        panel, slot = self.panel, self.panel.slot
        panel.shelf.check_numbers(slot)
        options, dataset = tuning_options(panel), learned(panel)
        layers = int(panel.models[slot].n_layers)
        made = 0 if before is None else steps_of(before)
        flops = tuning_flops(panel, panel.steps - made, panel.k)
        line = data_line(panel) if before is None else before.data or data_line(panel)
        halt = self._halt = threading.Event()
        live = Live(None if before is None else curves_of(before), tuple(range(layers - panel.k, layers)))

        def work(job: Job) -> Any:
            kept: list[tuple[Any, ModReport]] = []

            def check() -> None:
                job.give_way()  # between two steps: a tuning has its own copy of the weights
                if halt.is_set():
                    raise _Stopped

            def on_step(step: ModStep) -> None:
                live.add(step)
                if live.due():
                    job.partial(live.curves())

            failure: Exception | None = None
            try:
                base, began = panel.shelf.base(slot), time.monotonic()
                found = tune_mod(
                    base, dataset, resume=True if before is None else before.model,
                    progress=job.progress, check=check, on_step=on_step, on_partial=kept.append, **options,
                )  # fmt: skip
                speedometer.learn(TUNING, str(base.device), flops, time.monotonic() - began - job.given_away)
                return found, None
            except _Stopped:
                pass
            except Cancelled:
                raise
            except Exception as error:  # the buttons have to hear of it too
                failure = error
            return (kept[-1] if kept else None), failure

        self._mark(True)
        self._draw(live.curves(), panel.steps)
        self.words.value = "The data set is read; the first step follows."
        panel.jobs.start(
            work, lambda ended: self._take(ended[0], ended[1], live, slot, line), title="Tuning", channel="tune",
            on_partial=lambda curves: self._live(curves, options["steps"]), gives_way=True,
        )  # fmt: skip

    def _live(self, curves: StepCurves, steps: int) -> None:
        if self.panel.tab == "tune":
            self._draw(curves, steps)
        self.showing = curves  # drawn with the next steps once somebody looks
        self.words.value = (
            f"Step {len(curves.task):,} of {steps:,}. Other cells may run meanwhile; Stop keeps what was learned."
        )

    def _take(self, found: Any, failure: Exception | None, live: Live, slot: int, line: str) -> None:
        """The end of a tuning: a mixture more, or what went wrong, or both."""
        self._mark(False)
        if found is None:
            self.paint()
            if failure is None:
                self.words.value = "Stopped before the first step: nothing was learned, and all is as it was."
                return
            curves = live.curves()
            if len(curves.task):
                self._draw(curves, len(curves.task))  # they tell more than the sentence
                self.words.value = (
                    f"<b role='alert'>The tuning failed after {len(curves.task):,} steps, and no mixture was kept; "
                    "its curves are below.</b> Why: see the end of the panel."
                )
            raise failure
        model, report = found
        trouble = "" if failure is None else describe_error(failure)
        self.panel.shelf.add(slot, Entry(tuned_name(model, report), model, report, data=line, trouble=trouble))
        self.panel.follow()
        if failure is not None:
            raise failure
        if report.stopped == "nan":
            raise ValueError(report.message)

    # checkpoints ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the mixture that is looked at into a folder."""
        panel = self.panel
        entry = panel.shelf.chosen(panel.slot)
        if entry.model is None:
            raise ValueError("an untrained mixture is not worth a file: tune it first")
        given = checked_path(self.folder.value, "the checkpoint folder")
        if given:
            target = Path(given).expanduser()
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise ValueError(f"{target} is there already and not empty: give another folder, nothing was written")
        else:
            target = free_name(Path.cwd() / file_stem(f"{model_name(panel.models[panel.slot])} {entry.name}"))
        written = entry.model.save(target)
        entry.kept = str(written)
        self.words.value = _words(entry)
        panel.status.idle(f"Saved {written}")

    def forget(self) -> None:
        """Let go of the mixture that is looked at; one that was not saved has to be asked for twice."""
        panel = self.panel
        entry = panel.shelf.chosen(panel.slot)
        if entry.model is not None and not entry.kept and self._unsaved is not entry:
            self._unsaved = entry
            self.words.value = f"<b>{escape(entry.name)}</b> is not saved. Press Forget once more to let go of it."
            return
        panel.shelf.forget(panel.slot)

    def open(self) -> None:
        """Read a mixture from a folder; one that was made on another base is refused."""
        given, panel, slot = checked_path(self.folder.value, "the checkpoint folder"), self.panel, self.panel.slot
        if not given:
            raise ValueError("the checkpoint folder is empty: type the folder to open")
        given = str(Path(given).expanduser().absolute())  # the copied code has to find it from elsewhere

        def done(model: Any) -> None:
            with panel.hold():
                panel.shelf.add(slot, Entry(Path(given).name, model, kept=given))
                panel.adopt(slot)
            panel.follow()

        panel.jobs.start(lambda job: panel.shelf.open(slot, given), done, title="Opening", channel="open")

    def scene(self) -> Scene:
        """The charts as they are drawn."""
        if self.showing is None or not len(self.showing.task):
            raise ValueError("there are no curves to draw yet: press Tune first")
        scenes = []
        for chart in self.charts.values():
            lines: list[Curve] = [(line.name, line.values, line.width > 1) for line in chart.drawn]
            if lines:
                named = {"title": chart.figure.title.text, "y_label": chart.figure.yaxis[0].axis_label}
                scenes.append(curves_scene(lines, x_label="step", **named))
        return stack_scenes(scenes, columns=2)


def tuning_options(panel: MoDRoutingViewer) -> dict[str, Any]:
    """The options of `tune_mod` as the inputs name them."""
    lora: dict[str, Any] = {"lora": panel.rank, "lora_layers": panel.lora_layers} if panel.lora else {}
    return {
        "k": panel.k, "top_k": panel.top_k or None, "distill": panel.distill, "steps": panel.steps,
        "batch_size": panel.batch_size, "learning_rate": panel.learning_rate, "seed": panel.seed, **lora,
    }  # fmt: skip


def tuned_name(model: Any, report: ModReport) -> str:
    """What to call a mixture that was tuned here."""
    lora = model.state.lora
    parts = [f"k {model.k}"]
    if model.top_k < model.k:
        parts.append(f"top {model.top_k}")
    if lora is not None:
        parts.append(f"LoRA {lora.rank}")
    return ", ".join([*parts, f"{report.done:,} step{'' if report.done == 1 else 's'}"])


def _words(entry: Entry) -> str:
    """What is known of a mixture, in a line or two."""
    report = entry.report
    kept = f" Saved in {escape(entry.kept)}." if entry.kept else ""
    if report is None:
        if entry.model is None:
            return "This mixture is untrained: press Tune."
        added = f"{entry.model.added_parameters:,} parameters beside the base's own"
        return f"<b>{escape(entry.name)}</b>: {added}.{kept}"
    parts = [
        f"{name} {count:,}"
        for name, count in (
            ("router", report.parameters_router), ("norms", report.parameters_norms), ("LoRA", report.parameters_lora),
        )
        if count
    ]  # fmt: skip
    message = escape(report.message)
    if report.stopped == "nan":
        message = f"<b role='alert'>{message}</b>"
    if entry.trouble:
        message = f"<b role='alert'>{escape(entry.trouble)}</b>; {message}"
    return (
        f"<b>{escape(entry.name)}</b>: {message}. Trained parameters: "
        f"<b>{report.trained_parameters:,}</b>, {report.trained_share:.2%} of the base's {report.parameters_base:,} "
        f"({', '.join(parts)}).{kept}"
    )


def base_box(panel: MoDRoutingViewer) -> Any:
    """Which model is tuned: a choice where there are two."""
    if len(panel.models) == 1:
        return W.Label(f"Base model: {model_name(panel.models[0])}")
    names = [(f"{'AB'[slot]}: {model_name(model)}", slot) for slot, model in enumerate(panel.models)]
    return panel.bind(W.Dropdown(description="Base model", options=names), "slot")


def _given(panel: MoDRoutingViewer) -> list[Any]:
    """How many examples there are, where the panel was given some."""
    if panel.dataset is None:
        return []
    return [W.Label(f"Data set: {len(panel.dataset):,} examples as given")]
