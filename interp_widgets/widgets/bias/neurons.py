"""The neurons that write along the bias probes, and their activity on biased and on benign texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.cost import Cost, pass_flops
from interp_widgets.analysis.bias import (
    BiasActivity,
    BiasNeurons,
    BiasProbes,
    bias_neuron_activity,
    rank_bias_neurons,
)
from interp_widgets.data.bias import LabeledTexts
from interp_widgets.figures.bias import ByLayer, NeuronDots, activity_lines
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import shown_if
from ..base.description import Description, Step
from ..base.fields import Bounds, field
from ..base.guard import guarded
from ..base.request import FromResult, Request, Steps
from ..views import BokehFigure, Table
from ..views.table import RIGHT
from .examples import ProbeOptions, cell_of, lengths_of

ACTIVITY = {
    "share_active": ("bias_share", "Bias neurons that are active", "share above zero"),
    "mean": ("bias_mean", "Activation of bias neurons", "mean activation"),
}


@dataclass(frozen=True)
class NeuronResult:
    """One model's probes, the neurons that write along them, and their activity."""

    probes: BiasProbes
    neurons: BiasNeurons
    activity: BiasActivity

    partial: ClassVar[bool] = False

    @property
    def provenance(self) -> Any:
        """The provenance of the neurons."""
        return self.neurons.provenance


class NeuronMap(ProbeOptions):
    """Dots by probe and layer, a table of the same neurons, and their activity by layer; a click selects a neuron."""

    title, tab_name, pair_views = "Bias neurons", "Neurons", ("beside",)
    k = field(
        Annotated[int, Bounds(1, lambda panel: panel.n_neurons)], 10, label="Neurons per probe", width="short",
        help="Number of neurons, from all layers, listed for each probe",
    )  # fmt: skip
    picked = field(T.Tuple(), selects=True)
    """(layer, neuron) of the selected neuron; empty for none."""

    def build(self) -> None:
        super().build()
        self.charts = [NeuronDots() for _ in self.models]
        for chart in self.charts:
            chart.source.selected.on_change("indices", guarded(self, partial(self._dot_clicked, chart)))
        self.activity = {what: ByLayer(*about) for what, about in ACTIVITY.items()}
        every = (*self.charts, *self.activity.values())
        self.boxes = [W.VBox([BokehFigure(chart.figure, on_error=self.show_error)]) for chart in every]
        self.table = Table(empty="No neurons yet.", height=280, instruction="a click selects one")
        self.watch(self.table, "selected", self._row_picked)
        dots = W.VBox([*self.boxes[: len(self.charts)], W.VBox([self.table])])
        lines = W.VBox(self.boxes[len(self.charts) :])
        for box in (dots, lines):
            box.add_class("iw-maps")
        self.note = W.HTML("")
        self.plot.children = [dots, self.note, lines]

    # the question -----------------------------------------------------------------------------------------------------

    def request(self) -> Steps:
        self.check_neurons(self.k)
        probes = self.probes_request()
        trained = FromResult("probes", "{}", lambda result: result)
        ranked = FromResult("neurons", "{}", lambda result: result)
        calls = {
            "probes": probes,
            "neurons": Request.of(rank_bias_neurons, {"k": self.k}, trained),
            "activity": Request.of(bias_neuron_activity, {}, ranked, *probes.inputs),
        }
        return Steps.of(NeuronResult, calls)

    def compute(
        self, request: Steps, model: Model, *, progress: Callable[[int, int], None], check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> NeuronResult:  # fmt: skip
        """Run the steps, each from the cache if this or another tab has computed it."""
        results: dict[str, Any] = {}
        steps = tuple(step for _, step in request.arguments)
        for name, step in request.arguments:
            answer = partial(step.with_results(results).answer, model, progress=progress, check=check)
            results[name] = self.answers.cached_or_compute(step if name == "probes" else (name, steps), model, answer)
        return NeuronResult(**results)

    def cost(self, request: Steps, model: Model) -> Cost:
        steps = dict(request.arguments)
        own = self.probes_cost(steps["probes"], model)
        texts: LabeledTexts = steps["probes"].inputs[0].read()
        lengths, times = lengths_of(model, texts.texts)
        passes = pass_flops(model, times * sum(lengths), max(lengths)) * model.n_layers
        known = self.answers.expected(steps["probes"], model)
        return Cost((0.0 if known else own.flops) + passes, own.bytes)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[NeuronResult, ...], request: Any) -> None:
        at, names = pair_view.shown_indices(self), pair_view.names(self)
        for what, chart in self.activity.items():
            lines = [
                line
                for name, i in zip(names, at, strict=True)
                for line in activity_lines(results[i].activity, what, model=i, name=name if len(at) > 1 else "")  # type: ignore[arg-type]
            ]
            chart.update(lines, ends=(0.0,))
        counts = (f"{start}{_counts(results[i].activity)}" for start, i in zip(pair_view.starts(self), at, strict=True))
        self.note.value = "<br>".join(counts)
        rows = [[*([name] if len(at) > 1 else []), *row] for name, i in zip(names, at, strict=True)
                for row in _rows(results[i].neurons)]  # fmt: skip
        heads: list[dict[str, Any]] = [
            *([{"label": "model"}] if len(at) > 1 else []),
            {"label": "layer", **RIGHT}, {"label": "neuron", **RIGHT}, {"label": "probes of layers"},
            {"label": "cosine", **RIGHT, "title": "Its largest cosine with these probes"},
            {"label": "above chance", "title": "Whether it exceeds the largest cosine of a random direction"},
        ]  # fmt: skip
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, rows
            self.table.caption = "Bias neurons, by " + ("model and cosine" if len(at) > 1 else "cosine")

    def draw_selection(self) -> None:
        at = pair_view.shown_indices(self)
        for i, (chart, box) in enumerate(zip(self.charts, self.boxes, strict=False)):
            shown_if(box, i in at)
            if i in at and self.results:
                name, scale = "AB"[i] if len(self.models) > 1 else "", [result.neurons for result in self.results]
                chart.update(self.results[i].neurons, self.picked, name=name, scale=scale)
        own = [row for row in range(len(self.table.rows)) if self._neuron(row) == tuple(self.picked)]
        self.table.selected = own[0] if own and self.table.selected not in own else self.table.selected

    def describe_selection(self) -> Description | None:
        if not self.results or not self.picked:
            return None
        layer, neuron = self.picked
        step = Step("ffn_concepts", "What does it promote?", {"tab": "neurons", "layer": layer, "neuron": neuron})
        return Description(f"Bias neuron {neuron} of layer {layer}", steps=(step,))

    # what a user does -------------------------------------------------------------------------------------------------

    def _dot_clicked(self, chart: NeuronDots, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            rows = chart.source.data
            self._select(int(rows["layer"][new[0]]), int(rows["neuron"][new[0]]))

    def _row_picked(self, change: Any) -> None:
        if change.new >= 0:
            self._select(*self._neuron(change.new))

    def _neuron(self, row: int) -> tuple[int, int]:
        """Layer and neuron of a row of the table, which begins with the model if there are two."""
        start = int(self.table.columns[0]["label"] == "model")
        layer, neuron = self.table.rows[row][start : start + 2]
        return int(layer), int(neuron)

    def _select(self, layer: int, neuron: int) -> None:
        """Select a neuron here and in all panels of the workbench, such as the FFN concept browser."""
        if self.picked != (layer, neuron):
            self.picked = (layer, neuron)
            self.workbench.select(layer=layer, neuron=neuron)

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Steps) -> str:
        return cell_of(request, self.models, "neurons.to_frame()")

    def table_of(self, result: Any) -> Any:
        return result.neurons.to_frame()

    def scene(self) -> Scene:
        dots = [self.charts[i].scene() for i in pair_view.shown_indices(self)]
        return stack_scenes([*dots, *(chart.scene() for chart in self.activity.values() if not chart.message)],
                            columns=2, title=self.title)  # fmt: skip

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {name: getattr(result, name) for name in ("probes", "neurons", "activity")}


def _rows(neurons: BiasNeurons) -> list[list[Any]]:
    """One row per neuron, the one with the largest cosine first."""
    cosines_of: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for probe, (layers, numbers, cosines) in enumerate(zip(neurons.layer, neurons.neuron, neurons.cosine, strict=True)):
        for layer, number, cosine in zip(layers, numbers, cosines, strict=True):
            cosines_of.setdefault((int(layer), int(number)), []).append((probe, float(cosine)))
    rows = [
        [layer, number, ", ".join(str(probe) for probe, _ in pairs), (best := max(cosine for _, cosine in pairs)),
         best > float(neurons.chance.max())]
        for (layer, number), pairs in cosines_of.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row[3])


def _counts(activity: BiasActivity) -> str:
    counts = ", ".join(f"{layer}: {count}" for layer, count in enumerate(activity.neurons) if count)
    return f"Bias neurons by layer: {counts}. A layer without any has no activity."
