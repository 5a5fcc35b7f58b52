"""An edit that takes bias out of a model: made, compared with the model as it is, switched on for all panels, saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any, ClassVar

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.bias import (
    ethos_edit,
    inlp_edit,
    leace_edit,
    lope_edit,
    random_edit,
    subtraction_edit,
    suppression_edit,
)
from interp_widgets.compute.worker import Job
from interp_widgets.data.bias import LabelledTexts, labelled_texts
from interp_widgets.figures.bias import IntervalDots, Series, score_dots
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.models import Model, ModelEdit

from ..base import pair_view
from ..base.controls import TextLine, checked_path, instruction, row
from ..base.fields import Bounds, Hint, Incomplete, Refused, field, variant
from ..base.request import FromResult, PerModel, Request, Steps
from ..base.saving import as_one, free_name
from ..base.shell import Shell
from ..base.workbench import model_name
from ..views import BokehFigure, Table
from .examples import Examples, ProbeOptions, cell_of, scores_cost, scores_request
from .neurons import NeuronMap
from .probes import ProbeSweep

METHODS = {
    "lope": "LoPE", "subtraction": "Subtraction", "inlp": "INLP", "suppression": "Bias neuron suppression",
    "ethos": "Ethos", "leace": "LEACE",
}  # fmt: skip
OF_PROBES = ("lope", "subtraction")
OF_STREAMS = ("inlp", "leace")
STREAMS = {"last": "before the final norm", "all": "leaving every block"}
STEPS = 8
"""Passes forward and backward per layer and sentence of the neurons' integrated gradients."""
TUNED = 6400
"""Texts, about, that Ethos tunes on."""


@dataclass(frozen=True)
class Streams(PerModel):
    """The streams of a model that an edit changes."""

    which: str

    def read_by(self, model: Model) -> Any:
        return -1 if self.which == "last" else list(range(1, model.n_layers + 1))

    def code(self, name: str) -> tuple[list[str], str]:
        return [], "-1" if self.which == "last" else f"list(range(1, {name}.n_layers + 1))"


@dataclass(frozen=True)
class Side(PerModel):
    """The biased or the benign ones of texts with labels."""

    texts: Examples
    biased: bool

    def read_by(self, model: Model) -> Any:
        data = self.texts.read()
        labelled = data if isinstance(data, LabelledTexts) else labelled_texts(data)
        return [text for text, own in zip(labelled.texts, labelled.biased, strict=True) if own == self.biased]

    def code(self, name: str) -> tuple[list[str], str]:
        lines, data = self.texts.code(name)
        labelled = data if isinstance(self.texts.own, LabelledTexts) else f"labelled_texts({data})"
        each = "text for text, own in zip(labelled.texts, labelled.biased)"
        return [*lines, f"labelled = {labelled}"], f"[{each} if {'' if self.biased else 'not '}own]"


@dataclass(frozen=True, eq=False)
class Debiased:
    """One model's answer: the edit, and the scores without it and with it, where the data can be scored."""

    edit: ModelEdit
    before: Any
    after: Any

    partial: ClassVar[bool] = False

    @property
    def provenance(self) -> Any:
        """What it takes to repeat it."""
        return dict(self.edit.settings)


@dataclass(frozen=True)
class EditSteps(Steps):
    """The calls that make an edit, and the one that scores the model without it and with it."""

    scores: Request | None = None

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        lines, edit = super().lines_on(model, result, suffix), self.arguments[-1][0] + suffix
        if self.scores is None:
            return [*lines, f"{result}{suffix} = {edit}"]
        *before, scored = self.scores.lines_on(model, result, suffix)
        return [*lines, *before, f"with {edit}.applied({model}):", f"    {scored}"]


class EditOptions(ProbeOptions):
    """Base of the panels that make edits."""

    method = field(METHODS, "lope", label="Method", help="How the model is edited")
    k = variant(
        NeuronMap.k, label="Neurons", help="Bias neurons: for each probe, of the last layer, or in all",
        shown_if=lambda panel: panel.method in (*OF_PROBES, "suppression"),
    )  # fmt: skip
    threshold = variant(
        ProbeSweep.threshold, redraws=False, label="Probes from an AUC of",
        shown_if=lambda panel: panel.method == "lope",
    )  # fmt: skip
    strength = field(
        Annotated[float, Bounds(0.0, 100.0, 0.1)], 1.0, label="Strength α", width="short",
        help="Multiplies what is taken off", shown_if=lambda panel: panel.method in (*OF_PROBES, "ethos"),
    )  # fmt: skip
    streams = field(
        STREAMS, "all", label="Stream", help="Where in the residual stream directions are taken out",
        shown_if=lambda panel: panel.method in OF_STREAMS,
    )  # fmt: skip
    rounds = field(
        Annotated[int, Bounds(1, 1000)], 10, label="Rounds", width="short", help="Probes fitted one after the other",
        shown_if=lambda panel: panel.method == "inlp",
    )  # fmt: skip
    literal = field(
        bool, False, label="Θ as the sum that equation 5.1 prints", more=True,
        shown_if=lambda panel: panel.method == "lope",
    )  # fmt: skip

    @property
    def most(self) -> int:
        """Neurons of the smaller model."""
        return min(model.n_layers * model.d_mlp for model in self.models)

    def edit_calls(self, methods: Sequence[str]) -> dict[str, Request]:
        """The calls that make edits, by their methods, behind the one that trains their probes."""
        if self.k > self.most:
            raise Refused("k", f"k must be in 1..{self.most} for the neurons of these models, got {self.k}")
        probes = {"probes": self.probes_request()} if set(OF_PROBES) & set(methods) else {}
        return probes | {method: self._call(method) for method in methods}

    def _call(self, method: str) -> Request:
        """The call that makes one edit."""
        labelled, pool = self.examples("labels"), {"pool": self.pool}
        probes = FromResult("probes", "{}", lambda result: result)
        if method == "lope":
            options = {"k": self.k, "threshold": self.threshold, "alpha": self.strength, "literal": self.literal}
            return Request.of(lope_edit, options, probes)
        if method == "subtraction":
            return Request.of(subtraction_edit, {"k": self.k, "strength": self.strength}, probes)
        if method == "suppression":
            return Request.of(suppression_edit, {"k": self.k}, self.examples("pairs"))
        if method == "ethos":
            texts = labelled if isinstance(self.data, LabelledTexts) else self.examples("pairs")
            sides = Side(texts, True), Side(texts, False)
            return Request.of(ethos_edit, {"strength": self.strength, "seed": self.seed}, *sides)
        options = {"layer": Streams(self.streams), **pool}
        if method == "inlp":
            return Request.of(inlp_edit, {**options, "rounds": self.rounds}, labelled)
        return Request.of(leace_edit, options, labelled)

    def make_edits(self, calls: Iterable[tuple[str, Request]], model: Model, **reports: Any) -> dict[str, Any]:
        """What the calls bring on a model, by their names; the probes from the cache where another tab has asked."""
        results: dict[str, Any] = {}
        for name, step in calls:
            filled = step.filled(
                lambda value: value.read(results[value.step]) if isinstance(value, FromResult) else value
            )
            answer = partial(filled.answer, model, **reports)
            results[name] = self.answers.once(step, model, answer) if name == "probes" else answer()
        return results

    def edit_cost(self, calls: Mapping[str, Request], model: Model) -> Cost:
        """What making the edits takes."""
        asked = calls.get("probes") or self.probes_request()
        reading = self.probes_cost(asked, model)
        texts = len(asked.inputs[0].read().texts)
        pairs = texts if isinstance(self.data, LabelledTexts) else 2 * len(self.examples("pairs").read())
        passes = 0.0 if "probes" not in calls or self.answers.expected(asked, model) else 1.0
        passes += sum(name in ("lope", *OF_STREAMS) for name in calls)
        passes += ("suppression" in calls) * STEPS * 3 * model.n_layers * pairs / texts
        passes += ("ethos" in calls) * TUNED * 3 / texts
        return Cost(reading.flops * passes, reading.bytes)


class Debiasing(EditOptions):
    """What an edit changes in the model and in its scores; a switch puts it in force for every panel."""

    title, tab_name = "Debiasing", "Debias"
    random = field(
        bool, False, label="random directions instead", help="The control: an edit as large, in random directions"
    )
    on = field(bool, False, argument=None)
    """Whether the edit is in force, for every panel of the workbench."""

    def build(self) -> None:
        super().build()
        self.switch = self.bind(
            W.ToggleButton(
                description="Switch the edit on", tooltip="Every panel of this workbench then shows the edited model"
            ),
            "on",
        )
        self.path = TextLine(value="edit.safetensors", description="File name", continuous_update=False)
        self.hint = Hint(self.path)
        save = W.Button(description="Save the edit", tooltip="For load_model(..., edits=[...])")
        self.on_click(save, self.hint.of(self._save_edit))
        self.inputs.children = [*self.inputs.children, row(self.switch, self.path, save, self.hint)]
        self.summary, self.chart = W.HTML(""), IntervalDots("bias_edit")
        self.table = Table(empty="No edit yet.", height=240)
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        self.plot.children = [self.summary, chart, self.table]
        self._in_force: tuple[ModelEdit, ...] = ()
        self.watch(self, "on", lambda _: self._switch())

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> EditSteps:
        if self.workbench.edits and not self._in_force:
            name = self.workbench.edits[0].name
            raise Incomplete("method", f"the models are edited by {name} already: switch that edit off first")
        calls = self.edit_calls([self.method])
        if self.random:
            made = FromResult(self.method, "{}", lambda edit: edit)
            calls["random"] = Request.of(random_edit, {"seed": self.seed}, made)
        scored = None if isinstance(self.data, LabelledTexts) else scores_request(self.examples())
        return EditSteps(Debiased, tuple(calls.items()), scores=scored)

    def compute(
        self, request: EditSteps, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Debiased:  # fmt: skip
        """The edit, and what the model scores without it and, for as long as that takes, with it."""
        reports = {"progress": progress, "check": check}
        edit: ModelEdit = [*self.make_edits(request.arguments, model, **reports).values()][-1]
        scores = request.scores
        if scores is None:
            return Debiased(edit, None, None)
        before = self.answers.once(scores, model, partial(scores.answer, model, **reports))
        with model.lock, edit.applied(model):  # other threads wait: results of theirs would be of another model
            return Debiased(edit, before, scores.answer(model, **reports))

    def cost(self, request: EditSteps, model: Model) -> Cost:
        making = self.edit_cost(dict(request.arguments), model)
        if request.scores is None:
            return making
        scoring = scores_cost(request.scores.inputs[0], model)
        return Cost(making.flops + 2 * scoring.flops, max(making.bytes, scoring.bytes))

    # the switch -------------------------------------------------------------------------------------------------------

    def refresh(self, limit: float | None = None) -> None:
        self.on = False  # an edit is made for the models as they are
        super().refresh(limit)

    def models_edited(self) -> None:
        """What is shown is about the models as they are, whatever edit is in force; only the switch follows."""
        Shell.models_edited(self)
        if self.workbench.edits is not self._in_force:
            self._in_force = ()  # another panel has put its own in the place
            self.on = False
        self._say()

    def _switch(self) -> None:
        """Put the edits on the screen in force, or take them back, once the models do not compute."""
        if not self.on and not self._in_force:
            return
        edits = tuple(result.edit for result in self.results) if self.on else ()
        wanted = len(self.models) * self.on

        def work(job: Job) -> ValueError | None:
            if len(edits) < wanted:
                return ValueError("there is no edit yet: wait until it is made, or press Run")
            try:
                self.workbench.put_edits(edits)
            except ValueError as error:
                return error
            return None

        def done(error: ValueError | None) -> None:
            if error is not None:
                self.on = False
                raise error
            self._in_force = self.workbench.edits
            self.workbench.tell_panels()

        self.jobs.start(work, done, title="Switching the edit", channel="switch", quiet=True)

    def end(self) -> None:
        super().end()
        if self._in_force:
            self.workbench.end_edits()

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[Debiased, ...], request: Any) -> None:
        at = pair_view.models_of(self.shown) if len(results) > 1 else (0,)
        series: dict[int, Series] = {}
        dots = []
        for i in at:
            start = f"{'AB'[i]} " if len(at) > 1 else ""
            for number, (name, color, scored) in enumerate(
                (("as it is", QUIET, results[i].before), (results[i].edit.name, PALETTE8[i], results[i].after))
            ):
                if scored is not None:
                    series[2 * i + number] = Series(start + name, color)
                    dots += [dot for dot in score_dots(scored, 2 * i + number) if len(at) == 1 or dot.row == "overall"]
        self.chart.update(dots, series)
        if not dots:
            self.chart.say("Texts with labels cannot be scored: give pairs or StereoSet.")
        rows = [
            [*([self.models[i].name] if len(at) > 1 else []), *line] for i in at for line in _lines(results[i].edit)
        ]
        heads: list[dict[str, Any]] = [{"label": "model"}] if len(at) > 1 else []
        for label, title in COLUMNS.items():
            heads.append({"label": label, "title": title, **({"align": "right"} if title else {})})
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = "What the edit changes"
        self._say()

    def _say(self) -> None:
        """Say in words what the edit reaches, and whether it is in force."""
        self.switch.description = "Switch the edit off" if self.on else "Switch the edit on"
        if not self.results:
            return
        state = f"Not in force{instruction(': switch it on, and every panel shows the edited model')}."
        if self._in_force:
            state = "<b>In force</b>: every panel of this workbench, and other cells, compute with the edited model."
        in_sample = "" if self.data is None and not self.data_file else (
            "<br>The edit is made and scored on the same sentences: judge it on others."
        )  # fmt: skip
        lines = [
            ("AB"[i] + ": " if len(self.models) > 1 else "") + _in_words(self.results[i])
            for i in (pair_view.models_of(self.shown) if len(self.results) > 1 else (0,))
        ]
        self.summary.value = "<br>".join([*lines, state]) + in_sample

    # what is saved ----------------------------------------------------------------------------------------------------

    def _save_edit(self) -> None:
        """Write the edit of the model that is looked at."""
        i = pair_view.models_of(self.shown)[0] if len(self.results) > 1 else 0
        if not self.results:
            raise ValueError("there is no edit to save yet: press Run first")
        name = checked_path(self.path.value, "the file name")
        if not name:
            raise ValueError("type a file name")
        path = Path(os.path.expanduser(name if name.endswith(".safetensors") else f"{name}.safetensors"))
        if not path.absolute().parent.is_dir():
            raise ValueError(f"the folder {path.absolute().parent} does not exist: make it or choose another")
        saved = self.results[i].edit.save(free_name(path))
        self.hint.say(f"Saved {saved}, for {model_name(self.models[i])}")

    def code(self, request: EditSteps) -> str:
        return cell_of(request, self.models)

    def frame(self) -> Any:
        import pandas as pd

        tables = [
            pd.DataFrame(_lines(result.edit), columns=list(COLUMNS)).assign(edit=result.edit.name)
            for result in self.by_letter().values()
        ]
        return tables[0] if len(self.models) == 1 else pair_view.joined(tables)

    def scene(self) -> Scene:
        charts = [] if self.chart.message else [self.chart.scene()]
        return stack_scenes([*charts, self.table.scene()])

    def stored(self) -> Result:
        parts = {
            f"{letter} {name}".strip(): scored
            for letter, found in self.by_letter().items()
            for name, scored in (("as it is", found.before), ("edited", found.after))
        }
        return as_one(parts, self.tab_name)


COLUMNS = {
    "part": "", "neurons": "Value vectors that are changed",
    "change": "Length of their change, of the length that they have",
    "directions": "Directions taken out of the stream", "added": "Length of what is added",
}  # fmt: skip


def _lines(edit: ModelEdit) -> list[list[Any]]:
    """What an edit changes: a row per MLP and stream."""
    rows: list[list[Any]] = []
    for layer, mlp in edit.layers.items():
        change = float((mlp.after - mlp.before).norm() / mlp.before.norm().clamp(min=1e-30))
        rows.append([f"MLP of layer {layer}", len(mlp.neurons), change, None, float(mlp.added.norm())])
    for at, stream in edit.streams.items():
        rows.append([f"stream entering layer {at}", None, None, stream.read.shape[1], float(stream.added.norm())])
    return rows


def _in_words(found: Debiased) -> str:
    neurons = sum(len(layer.neurons) for layer in found.edit.layers.values())
    parts = [f"{_number(neurons, 'neuron')} in {_number(len(found.edit.layers), 'layer')}"] if found.edit.layers else []
    streams = len(found.edit.streams)
    parts += [f"the residual stream at {_number(streams, 'place')}"] if streams else []
    text = f"{escape(found.edit.name)} changes <b>{' and '.join(parts) or 'nothing'}</b>."
    if found.before is None:
        return text
    names = ("ss", "lms", "icat") if hasattr(found.before, "scores") else ("preferred",)
    scores = [
        f"{name.upper() if len(names) > 1 else 'likelier sentence about the disadvantaged group, %'} "
        f"{getattr(found.before.overall, name):.1f} → <b>{getattr(found.after.overall, name):.1f}</b>"
        for name in names
    ]
    return f"{text} {', '.join(scores)}."


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
