"""An edit that removes bias from a model: scored against the unedited model, switched on for all panels, saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from typing import Any

import ipywidgets as W
import torch

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.result import Result, record
from interp_widgets.analysis.bias import CrowsResult, StereoSetResult, random_edit
from interp_widgets.atomic import named_path
from interp_widgets.data.bias import LabeledTexts
from interp_widgets.figures.bias import IntervalDots, Series, score_dots
from interp_widgets.figures.chart import QUIET
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.models import Model, ModelEdit

from ..base import pair_view
from ..base.controls import TextLine, checked_path, instruction, row
from ..base.fields import Hint, field
from ..base.request import FromResult, Request, Steps
from ..base.saving import free_name
from ..base.shell import Shell
from ..base.workbench import model_name
from ..views import BokehFigure, Table
from .edit_options import EditOptions
from .edit_switch import EditSwitch
from .examples import cell_of, scores_cost, scores_request


@record
class Debiased(Result):
    """One model's edit, and the scores without and with it if the data can be scored."""

    name: str
    """The edit's name."""
    settings: Mapping[str, Any]
    """The options it was made with."""
    tensors: Mapping[str, Any]
    """Its tensors as arrays, by the names of `ModelEdit.tensors`."""
    before: StereoSetResult | CrowsResult | None
    after: StereoSetResult | CrowsResult | None

    @cached_property
    def edit(self) -> ModelEdit:
        """The edit, rebuilt from its tensors."""
        tensors = {name: torch.tensor(numbers) for name, numbers in self.tensors.items()}
        return ModelEdit.of_tensors(self.name, self.settings, tensors)


def debiased(edit: ModelEdit, before: Any = None, after: Any = None) -> Debiased:
    """An edit and its scores as the result that the panel shows."""
    tensors = {name: tensor.numpy() for name, tensor in edit.tensors().items()}
    settings = dict(edit.settings)
    return Debiased(edit.name, settings, tensors, before, after, provenance=settings)


@dataclass(frozen=True)
class EditSteps(Steps):
    """The calls that make an edit, and the one that scores the model without and with it."""

    scores: Request | None = None

    def lines_on(self, model: str, result: str, suffix: str) -> list[str]:
        lines, edit = super().lines_on(model, result, suffix), self.arguments[-1][0] + suffix
        if self.scores is None:
            return [*lines, f"{result}{suffix} = {edit}"]
        *before, scored = self.scores.lines_on(model, result, suffix)
        return [*lines, *before, f"with {edit}.applied({model}):", f"    {scored}"]


class Debiasing(EditOptions):
    """What an edit changes in the model and its scores; a switch applies it for every panel."""

    title, tab_name = "Debiasing", "Debias"
    random = field(
        bool, False, label="random directions instead", help="Control: an edit of the same size in random directions"
    )
    on = field(bool, False, argument=None)
    """Whether the edit is applied to the models, for every panel of the workbench."""

    def build(self) -> None:
        super().build()
        self.switch = EditSwitch(self)
        self.path = TextLine(value="edit.safetensors", description="File name", continuous_update=False)
        self.hint = Hint(self.path)
        save = W.Button(description="Save the edit", tooltip="Writes a file for load_model(..., edits=[...])")
        self.on_click(save, self.hint.of(self._save_edit))
        self.inputs.children = [*self.inputs.children, row(self.switch.button, self.path, save, self.hint)]
        self.summary, self.chart = W.HTML(""), IntervalDots("bias_edit")
        self.table = Table(empty="No edit yet.", height=240)
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        self.plot.children = [self.summary, chart, self.table]

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> EditSteps:
        if not self.switch.applied:
            self.check_unedited("method")
        calls = self.edit_calls([self.method])
        if self.random:
            edit = FromResult(self.method, "{}", lambda edit: edit)
            calls["random"] = Request.of(random_edit, {"seed": self.seed}, edit)
        scores = None if isinstance(self.data, LabeledTexts) else scores_request(self.examples())
        return EditSteps(debiased, tuple(calls.items()), scores=scores)

    def compute(
        self, request: EditSteps, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Debiased:  # fmt: skip
        """Make the edit, and score the model without and with it; it is applied only while scoring."""
        reports = {"progress": progress, "check": check}
        edit: ModelEdit = [*self.make_edits(request.arguments, model, **reports).values()][-1]
        scores = request.scores
        if scores is None:
            return debiased(edit)
        before = self.answers.cached_or_compute(scores, model, partial(scores.answer, model, **reports))
        with model.lock, edit.applied(model):  # other threads wait, so that none computes with the edited model
            return debiased(edit, before, scores.answer(model, **reports))

    def cost(self, request: EditSteps, model: Model) -> Cost:
        edit_cost = self.edit_cost(dict(request.arguments), model)
        if request.scores is None:
            return edit_cost
        scores = scores_cost(request.scores.inputs[0], model)
        return Cost(edit_cost.flops + 2 * scores.flops, max(edit_cost.bytes, scores.bytes))

    # the switch -------------------------------------------------------------------------------------------------------

    def refresh(self, limit: float | None = None) -> None:
        self.on = False  # an edit is made for the unedited models
        super().refresh(limit)

    def models_edited(self) -> None:
        """Update the switch alone: the results are about the unedited models, whatever edit is applied."""
        Shell.models_edited(self)
        self.switch.follow()
        self._update_summary()

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
            self.chart.say("Labelled texts cannot be scored: use pairs or StereoSet.")
        rows = [[*(["AB"[i]] if len(at) > 1 else []), *line] for i in at for line in _lines(results[i].edit)]
        heads: list[dict[str, Any]] = [{"label": "model"}] if len(at) > 1 else []
        for label, title in COLUMNS.items():
            heads.append({"label": label, "title": title, **({"align": "right"} if title else {})})
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = "What the edit changes"
        self._update_summary()

    def _update_summary(self) -> None:
        """Describe the edit and its effect, and say whether it is applied."""
        if not self.results:
            return
        state = f"Not applied{instruction(': switch it on to see the edited model in every panel')}."
        if self.switch.applied:
            state = "<b>Applied</b>: every panel of this workbench, and other cells, use the edited model."
        in_sample = "" if self.data is None and not self.data_file else (
            "<br>The edit is scored on the sentences that it was made from: judge it on others."
        )  # fmt: skip
        lines = [
            ("AB"[i] + ": " if len(self.models) > 1 else "") + _summary(self.results[i])
            for i in (pair_view.models_of(self.shown) if len(self.results) > 1 else (0,))
        ]
        self.summary.value = "<br>".join([*lines, state]) + in_sample

    # what is saved ----------------------------------------------------------------------------------------------------

    def _save_edit(self) -> None:
        """Save the edit of the model in view."""
        i = pair_view.models_of(self.shown)[0] if len(self.results) > 1 else 0
        if not self.results:
            raise ValueError("there is no edit to save yet: press Run first")
        name = checked_path(self.path.value, "the file name")
        if not name:
            raise ValueError("type a file name")
        if named_path(name, "the file name").is_dir():
            raise ValueError(f"{name} is a folder: type the name of a file in it")
        path = named_path(name if name.endswith(".safetensors") else f"{name}.safetensors", "the file name")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"the folder {path.absolute().parent} does not exist: make it or choose another")
        saved = self.results[i].edit.save(free_name(path))
        self.hint.say(f"Saved {saved}, for {model_name(self.models[i])}")

    def code(self, request: EditSteps) -> str:
        return cell_of(request, self.models)

    def table_of(self, result: Any) -> Any:
        import pandas as pd

        return pd.DataFrame(_lines(result.edit), columns=list(COLUMNS)).assign(edit=result.edit.name)

    def scene(self) -> Scene:
        charts = [] if self.chart.message else [self.chart.scene()]
        return stack_scenes([*charts, self.table.scene()])

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"as it is": result.before, "edited": result.after}


COLUMNS = {
    "part": "", "neurons": "Number of value vectors that change",
    "change": "Norm of their change relative to their norm",
    "directions": "Number of directions erased from the residual stream", "added": "Norm of the vector that is added",
}  # fmt: skip


def _lines(edit: ModelEdit) -> list[list[Any]]:
    """A row per MLP and per place in the residual stream that an edit changes."""
    rows: list[list[Any]] = []
    for layer, mlp in edit.layers.items():
        change = float((mlp.after - mlp.before).norm() / mlp.before.norm().clamp(min=1e-30))
        rows.append([f"MLP of layer {layer}", len(mlp.neurons), change, None, float(mlp.added.norm())])
    for at, stream in edit.streams.items():
        rows.append([f"stream entering layer {at}", None, None, stream.read.shape[1], float(stream.added.norm())])
    return rows


def _summary(result: Debiased) -> str:
    layers, streams = result.edit.layers, len(result.edit.streams)
    neurons = sum(len(layer.neurons) for layer in layers.values())
    parts = [f"{_counted(neurons, 'neuron')} in {_counted(len(layers), 'layer')}"] if layers else []
    parts += [f"the residual stream at {_counted(streams, 'place')}"] if streams else []
    text = f"{escape(result.edit.name)} changes <b>{' and '.join(parts) or 'nothing'}</b>."
    if result.before is None or result.after is None:
        return text
    names = ("ss", "lms", "icat") if hasattr(result.before, "scores") else ("preferred",)
    scores = [
        f"{name.upper() if len(names) > 1 else 'likelier sentence about the disadvantaged group, %'} "
        f"{getattr(result.before.overall, name):.1f} → <b>{getattr(result.after.overall, name):.1f}</b>"
        for name in names
    ]
    return f"{text} {', '.join(scores)}."


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
