"""Tuning a mixture: options, Tune, Stop, Resume, live curves, and checkpoints."""

from __future__ import annotations

import threading
import time
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W

from interp_widgets.arguments import message_of
from interp_widgets.atomic import named_path, other_files
from interp_widgets.compute.memory import describe_seconds, speedometer
from interp_widgets.compute.worker import Job
from interp_widgets.figures.mixture_of_depths.lines import (
    STATISTICS,
    Distillation,
    RouteLosses,
    RouteStatistic,
    StepCurves,
    TuningLoss,
)
from interp_widgets.figures.static import Curve, Scene, curves_scene, stack_scenes
from interp_widgets.models import ModModel
from interp_widgets.tuning.mixture_of_depths import ModReport, ModStep, tune_mod

from ..base.code import call
from ..base.controls import TextLine, checked_path, instruction, row, shown_if
from ..base.saving import file_stem, free_name
from ..base.status import describe_error
from ..base.workbench import model_name
from ..views import BokehFigure
from .cost import TUNING, tuning_flops
from .live import Live
from .mixtures import Mixture, MixturePanel


class _Stopped(Exception):
    """Raised between two steps when the user has pressed Stop; progress is kept."""


class MixtureTuning(MixturePanel):
    """Options and buttons above, the report, and the charts."""

    has_request: ClassVar[bool] = False

    def build(self) -> None:
        self._halt: threading.Event | None = None
        self.going = False
        """Whether a tuning is under way or queued."""
        self.curves: Any = None
        """The curves on the screen."""
        self._unsaved: Mixture | None = None
        self.tune_button = self._button("Tune", self.tune, "Tune a new mixture from the start", button_style="primary")
        self.stop_button = self._button("Stop", self.stop, "Stop after this step and keep what has been learned")
        self.stop_button.disabled = True
        self.resume_button = self._button(
            "Resume", self.resume, "Continue tuning the selected mixture up to the total number of steps"
        )
        self.folder = TextLine(
            description="Folder",
            value="",
            placeholder="beside the notebook",
            tooltip="Folder to save the checkpoint to or open it from",
        )
        self.folder.add_class("iw-grow")
        self.save_button = self._button("Save checkpoint", self.save_checkpoint)
        self.open_button = self._button("Open checkpoint", self.open_checkpoint)
        self.forget_button = self._button(
            "Forget", self.forget_mixture, "Remove the selected mixture from the list and free its memory"
        )
        self.words, self.hint = W.HTML(""), W.HTML("")
        self.hint.add_class("iw-hint")
        self.loss = TuningLoss()
        self.charts: dict[str, Any] = {"loss": self.loss, "routes": RouteLosses(), "distillation": Distillation()}
        self.charts |= {name: RouteStatistic(name) for name in STATISTICS}
        self.hosts = [BokehFigure(chart.figure, on_error=self.show_error) for chart in self.charts.values()]
        charts = W.VBox(self.hosts)
        charts.add_class("iw-maps")
        examples = [] if self.dataset is None else [W.Label(f"Data set: {len(self.dataset):,} examples")]
        self.inputs.children = [
            *self.controls.rows("tune", after={"slot": examples}),
            row(self.tune_button, self.stop_button, self.resume_button, self.hint),
            row(self.folder, self.save_button, self.open_button, self.forget_button),
        ]
        self.plot.children = [self.words, charts]
        self.watch(self, ["chosen", "slot"], lambda _: self.show_mixture())
        self.show_mixture()

    def _button(self, name: str, press: Any, tooltip: str = "", **options: Any) -> Any:
        return self.on_click(W.Button(description=name, **({"tooltip": tooltip} if tooltip else {}), **options), press)

    # drawing ----------------------------------------------------------------------------------------------------------

    def show_mixture(self) -> None:
        """Show the selected mixture; during a tuning, its curves stay."""
        if self.going:
            return
        mixture = self.chosen_mixture(self.slot)
        self.results = () if mixture.report is None else (mixture.report,)
        self._draw_curves(mixture.curves, 0 if mixture.report is None else mixture.report.steps)
        self.refresh()
        self.words.value = _words(mixture)
        self._unsaved = None
        self.save_button.disabled = mixture.learned is None
        self.forget_button.disabled = mixture is self.mixtures[self.slot][0]
        self.resume_button.disabled = mixture.learned is None or not mixture.learned.training

    def refresh(self, limit: float | None = None) -> None:
        """Update the forecast beside the buttons."""
        try:
            self.check_numbers(self.slot)
            if self.dataset is None:
                self.check_file("data_file")
        except ValueError as error:
            self.hint.value = escape(f"cannot run yet: {message_of(error)}")
            return
        flops = tuning_flops(self, self.steps, self.k)
        seconds = speedometer.seconds(TUNING, str(self.models[self.slot].device), flops, own_speed=True)
        self.hint.value = (
            f"{self.steps:,} steps: about {describe_seconds(seconds)}; with live curves, and Stop at any step"
        )

    def appear(self) -> None:
        super().appear()
        if self.going and self.curves is not None:
            self._draw_curves(self.curves, self._steps)

    def _draw_curves(self, curves: Any, steps: int) -> None:
        self.curves = curves
        for chart, host in zip(self.charts.values(), self.hosts, strict=True):
            chart.update(curves, steps)
            shown_if(host, curves is not None or chart is self.loss)  # one sentence says that there is no tuning yet

    def _mark_going(self, going: bool) -> None:
        self.going = going
        self.stop_button.disabled = not going
        self.tune_button.disabled = self.resume_button.disabled = going

    # tuning -----------------------------------------------------------------------------------------------------------

    def tuning_options(self) -> dict[str, Any]:
        """The options of `tune_mod` from the inputs."""
        lora: dict[str, Any] = {"lora": self.rank, "lora_layers": self.lora_layers} if self.lora else {}
        return {
            "k": self.k, "top_k": self.top_k or None, "distill": self.distill, "steps": self.steps,
            "batch_size": self.batch_size, "learning_rate": self.learning_rate, "seed": self.seed, **lora,
        }  # fmt: skip

    def tune(self) -> None:
        """Tune a new mixture."""
        self._start(None)

    def resume(self) -> None:
        """Continue tuning the selected mixture."""
        mixture = self.chosen_mixture(self.slot)
        if mixture.learned is None or not mixture.learned.training:
            raise ValueError("there is nothing to resume: tune a mixture first, or open a saved one")
        if mixture.steps >= self.steps:
            raise ValueError(f"all {self.steps} steps are done: set steps above {mixture.steps} to resume")
        self._start(mixture)

    def stop(self) -> None:
        """Stop after the current step; what was learned is kept."""
        if self._halt is not None and self.going:
            self._halt.set()
            self.status.cancelling(channel=self.jobs.on_line("tune"))

    def cancel(self) -> None:
        """Cancel all runs; a tuning keeps what it has learned so far."""
        self.stop()
        self.jobs.cancel(but=["tune"])

    def _start(self, before: Mixture | None) -> None:
        slot, k, steps = self.slot, self.k, self.steps
        self.check_numbers(slot)
        options, dataset = self.tuning_options(), self.learned.read()
        layers = int(self.models[slot].n_layers)
        flops = tuning_flops(self, steps - (0 if before is None else before.steps), k)
        line = (before.data if before is not None else "") or self.learned.line
        halt = self._halt = threading.Event()
        live = Live(None if before is None else before.curves, tuple(range(layers - k, layers)))

        def work(job: Job) -> Any:
            partial: list[tuple[Any, ModReport]] = []

            def check() -> None:
                job.give_way()  # between two steps: a tuning has its own copy of the weights
                if halt.is_set():
                    job.partial((live.curves(), True))
                    raise _Stopped

            def on_step(step: ModStep) -> None:
                live.add(step)
                if live.due():
                    job.partial((live.curves(), False))

            failure: Exception | None = None
            try:
                base, began = self.base(slot), time.monotonic()
                tuned = tune_mod(
                    base, dataset, resume=True if before is None else self.made(slot, before),
                    progress=job.progress, check=check, on_step=on_step, on_partial=partial.append, **options,
                )  # fmt: skip
                speedometer.learn(TUNING, str(base.device), flops, time.monotonic() - began - job.yielded_seconds)
                halt.clear()  # pressed after the last step
                return tuned, None
            except _Stopped:
                pass
            except Exception as error:  # passed on, so that the buttons are reset
                failure = error
            return (partial[-1] if partial else None), failure

        self._mark_going(True)
        self._steps = steps
        self._draw_curves(live.curves(), steps)
        self.words.value = "Reading the data set; the first step follows."
        self.jobs.start(
            work, lambda ended: self._take(ended[0], ended[1], live, slot, line), title="Tuning", channel="tune",
            on_partial=self._show_live, preemptible=True, stopped=halt.is_set,
        )  # fmt: skip

    def _show_live(self, partial: tuple[StepCurves, bool]) -> None:
        curves, stopped = partial
        if self.active:
            self._draw_curves(curves, self._steps)
        self.curves = curves  # drawn when the panel is shown
        if stopped:
            self.stop_button.disabled = True
            self.status.running("Building the mixture from what was learned", channel=self.jobs.on_line("tune"))
            self.words.value = f"Stopped after {len(curves.task):,} of {self._steps:,} steps."
            return
        self.words.value = (
            f"Step {len(curves.task):,} of {self._steps:,}. Other cells can run meanwhile; Stop keeps what was learned."
        )

    def _take(self, tuned: Any, failure: Exception | None, live: Live, slot: int, line: str) -> None:
        """Handle the end of a tuning: a new mixture, an error, or both."""
        self._mark_going(False)
        if tuned is None:
            self.show_mixture()
            if failure is None:
                self.words.value = "Stopped before the first step: nothing was learned or changed."
                return
            curves = live.curves()
            if len(curves.task):
                self._draw_curves(curves, len(curves.task))  # they say more than the sentence
                self.words.value = (
                    f"<b role='alert'>The tuning failed after {len(curves.task):,} steps, and no mixture was kept; "
                    "its curves are below.</b> The error is at the end of the panel."
                )
            raise failure
        model, report = tuned
        problem = "" if failure is None else describe_error(failure)
        self.add(slot, Mixture(tuned_name(model, report), model, report, data=line, failure=problem))
        if failure is not None:
            raise failure
        if report.stopped == "nan":
            raise ValueError(report.message)

    # checkpoints ------------------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Save the selected mixture to a folder."""
        mixture = self.chosen_mixture(self.slot)
        if mixture.learned is None:
            raise ValueError("an untrained mixture has nothing to save: tune it first")
        typed = checked_path(self.folder.value, "the checkpoint folder")
        if typed:
            target = named_path(typed, "the checkpoint folder")
            if target.exists() and (not target.is_dir() or other_files(target)):
                raise ValueError(
                    f"{target} already exists and is not empty: choose another folder, nothing was written"
                )
        else:
            target = free_name(Path.cwd() / file_stem(f"{model_name(self.models[self.slot])} {mixture.name}"))
        mixture.folder = str(self.made(self.slot, mixture).save(target))
        self.words.value = _words(mixture)
        self.status.idle(f"Saved {mixture.folder}")

    def forget_mixture(self) -> None:
        """Remove the selected mixture; an unsaved one needs a second press."""
        mixture = self.chosen_mixture(self.slot)
        if mixture.model is not None and not mixture.folder and self._unsaved is not mixture:
            self._unsaved = mixture
            self.words.value = (
                f"<b>{escape(mixture.name)}</b> is not saved.{instruction(' Press Forget once more to remove it.')}"
            )
            return
        self.forget(self.slot)

    def open_checkpoint(self) -> None:
        """Load a mixture from a folder; one made on a different base is refused."""
        typed, slot = checked_path(self.folder.value, "the checkpoint folder"), self.slot
        if not typed:
            raise ValueError("the checkpoint folder is empty: type the folder to open")
        target = named_path(typed, "the checkpoint folder")
        folder = str(target.absolute())  # so that copied code finds it from anywhere
        self.jobs.start(
            lambda job: self.read_folder(slot, folder),
            lambda model: self.add(slot, Mixture(Path(folder).name, model, folder=folder), adopt=True),
            title="Opening", channel="open",
        )  # fmt: skip

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Any) -> str:
        """The code that tuned the selected mixture; for an untrained one, the tuning with the current inputs."""
        mixture, name = self.chosen_mixture(self.slot), self.variable(self.slot)
        if mixture.report is not None:
            return self.cell([*self.tuning_lines(self.slot, mixture), "report.to_frame()"])
        options = {key: value for key, value in self.tuning_options().items() if value is not None}
        tuned = call("tune_mod", name, "dataset", **options)
        return self.cell([self.learned.line, f"{name}_mixture, report = {tuned}", "report.to_frame()"])

    def question(self) -> dict[str, str]:
        """The options with which the selected mixture was tuned."""
        mixture, fields = self.chosen_mixture(self.slot), self.fields()
        options = {**mixture.options, "steps": mixture.steps}
        return {fields[name].label: fields[name].text(value) for name, value in options.items()}

    def frame(self) -> Any:
        curves = self.chosen_mixture(self.slot).curves
        return self.stored().to_frame() if curves is None else curves.to_frame()

    def stored(self) -> ModReport:
        mixture = self.chosen_mixture(self.slot)
        if mixture.report is not None:
            return mixture.report
        if mixture.curves is not None:
            raise ValueError("a checkpoint holds the curves of its tuning but no report: save them as CSV or Parquet")
        raise ValueError("there is nothing to save on the Tune tab yet: press Tune first")

    def scene(self) -> Scene:
        """The charts as they are drawn."""
        if self.curves is None or not len(self.curves.task):
            raise ValueError("there are no curves to draw yet: press Tune first")
        scenes = []
        for chart in self.charts.values():
            lines: list[Curve] = [(line.name, line.values, line.width > 1) for line in chart.drawn]
            if lines:
                named = {"title": chart.figure.title.text, "y_label": chart.figure.yaxis[0].axis_label}
                scenes.append(curves_scene(lines, x_label="step", **named))
        return stack_scenes(scenes, columns=2)


def tuned_name(model: ModModel, report: ModReport) -> str:
    """The name of a mixture that was tuned here."""
    lora = model.state.lora
    parts = [f"k {model.k}"]
    if model.top_k < model.k:
        parts.append(f"top {model.top_k}")
    if lora is not None:
        parts.append(f"LoRA {lora.rank}")
    return ", ".join([*parts, f"{report.done:,} step{'' if report.done == 1 else 's'}"])


def _words(mixture: Mixture) -> str:
    """A description of a mixture in a line or two."""
    report = mixture.report
    saved = f" Saved in {escape(mixture.folder)}." if mixture.folder else ""
    if report is None:
        if mixture.learned is None:
            return f"This mixture is untrained{instruction(': press Tune')}."
        if mixture.about:
            return f"<b>{escape(mixture.name)}</b>. {escape(mixture.about)}"
        added = f"{mixture.trained.added_parameters:,} parameters in addition to the base's"
        return f"<b>{escape(mixture.name)}</b>: {added}.{saved}"
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
    if mixture.failure:
        message = f"<b role='alert'>{escape(mixture.failure)}</b>; {message}"
    return (
        f"<b>{escape(mixture.name)}</b>: {message}. Trained parameters: "
        f"<b>{report.trained_parameters:,}</b>, {report.trained_share:.2%} of the base's {report.parameters_base:,} "
        f"({', '.join(parts)}).{saved}"
    )
