"""An edit that takes bias out of a model: made, compared with the model as it is, switched on for all panels, saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W
import torch

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, record
from interp_widgets.analysis.bias import CrowsResult, StereoSetResult, random_edit
from interp_widgets.data.bias import LabelledTexts
from interp_widgets.figures.bias import IntervalDots, Series, score_dots
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.models import Model, ModelEdit

from ..base import pair_view
from ..base.controls import TextLine, checked_path, instruction, row
from ..base.fields import Hint, Incomplete, field
from ..base.request import FromResult, Request, Steps
from ..base.saving import as_one, free_name
from ..base.shell import Shell
from ..base.workbench import model_name
from ..views import BokehFigure, Table
from .edit_options import EditOptions
from .edit_switch import EditSwitch
from .examples import cell_of, scores_cost, scores_request


@record
class Debiased(Result):
    """One model's answer: the edit, and the scores without it and with it, where the data can be scored."""

    name: str
    """What the edit is called."""
    settings: Mapping[str, Any]
    """What it was made with."""
    tensors: Mapping[str, Any]
    """Its numbers, by the names of `ModelEdit.tensors`."""
    before: StereoSetResult | CrowsResult | None
    after: StereoSetResult | CrowsResult | None

    @cached_property
    def edit(self) -> ModelEdit:
        """The edit."""
        tensors = {name: torch.tensor(numbers) for name, numbers in self.tensors.items()}
        return ModelEdit.of_tensors(self.name, self.settings, tensors)


def debiased(edit: ModelEdit, before: Any = None, after: Any = None) -> Debiased:
    """What an edit brings."""
    tensors = {name: tensor.numpy() for name, tensor in edit.tensors().items()}
    settings = dict(edit.settings)
    return Debiased(edit.name, settings, tensors, before, after, provenance=settings)


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
        self.switch = EditSwitch(self)
        self.path = TextLine(value="edit.safetensors", description="File name", continuous_update=False)
        self.hint = Hint(self.path)
        save = W.Button(description="Save the edit", tooltip="For load_model(..., edits=[...])")
        self.on_click(save, self.hint.of(self._save_edit))
        self.inputs.children = [*self.inputs.children, row(self.switch.button, self.path, save, self.hint)]
        self.summary, self.chart = W.HTML(""), IntervalDots("bias_edit")
        self.table = Table(empty="No edit yet.", height=240)
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        self.plot.children = [self.summary, chart, self.table]

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> EditSteps:
        if self.workbench.edits and not self.switch.in_force:
            name = self.workbench.edits[0].name
            raise Incomplete("method", f"the models are edited by {name} already: switch that edit off first")
        calls = self.edit_calls([self.method])
        if self.random:
            made = FromResult(self.method, "{}", lambda edit: edit)
            calls["random"] = Request.of(random_edit, {"seed": self.seed}, made)
        scored = None if isinstance(self.data, LabelledTexts) else scores_request(self.examples())
        return EditSteps(debiased, tuple(calls.items()), scores=scored)

    def compute(
        self, request: EditSteps, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Debiased:  # fmt: skip
        """The edit, and what the model scores without it and, for as long as that takes, with it."""
        reports = {"progress": progress, "check": check}
        edit: ModelEdit = [*self.make_edits(request.arguments, model, **reports).values()][-1]
        scores = request.scores
        if scores is None:
            return debiased(edit)
        before = self.answers.once(scores, model, partial(scores.answer, model, **reports))
        with model.lock, edit.applied(model):  # other threads wait: results of theirs would be of another model
            return debiased(edit, before, scores.answer(model, **reports))

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
        self.switch.follow()
        self._say()

    def end(self) -> None:
        super().end()
        self.switch.end()

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
        if not self.results:
            return
        state = f"Not in force{instruction(': switch it on, and every panel shows the edited model')}."
        if self.switch.in_force:
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
        if os.path.isdir(os.path.expanduser(name)):
            raise ValueError(f"{name} is a folder: type the name of a file in it")
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
    if found.before is None or found.after is None:
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
