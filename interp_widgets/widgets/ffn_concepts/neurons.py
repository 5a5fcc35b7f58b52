"""The MLP neurons of a layer on a prompt: activations, effects on a logit, and the tokens that each promotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ffn_concepts import NeuronTokenResult, neuron_tokens
from interp_widgets.figures.ffn_concepts import NeuronScatter
from interp_widgets.figures.labels import fixed, visible
from interp_widgets.figures.static import Scene, stack_scenes, table_scene

from ..base import pair_view
from ..base.controls import row
from ..base.description import Description, decimals
from ..base.guard import guarded
from ..base.jobs import Derived
from ..base.request import Steps
from ..views import BokehFigure, Table, TokenStrip
from .components import STEP
from .neuron_edit import NeuronEdit
from .neuron_panel import PROMOTED, NeuronPanel, NeuronReading
from .top_texts import Source, TopTexts

DRAWN = 30
"""Number of neurons in a saved picture."""


class LayerNeurons(NeuronPanel):
    """Prompt strip, scatter plot of all neurons, table of those with the largest effects, tokens of the picked one."""

    title = "FFN neurons"

    def build(self) -> None:
        self.inputs.children = self.text_inputs()
        self.strip = TokenStrip(
            label="Prompt", instruction="click a token to read the neurons there", max_lines=4, legend=True
        )
        self.summary = W.HTML("")
        self.chart = NeuronScatter()
        self.chart.source.selected.on_change("indices", guarded(self, self._dot_tapped))
        self.table = Table(instruction="click a neuron for its tokens", empty="No neurons yet.", height=420)
        self.tokens = Table(empty="No neuron yet.", height=420)
        self.number = W.BoundedIntText(
            description="Neuron", min=0, max=max(1, min(model.d_mlp for model in self.models) - 1),
            tooltip="Any neuron of the layer, by its number",
        )  # fmt: skip
        self.number.add_class("iw-short")
        self._listed: list[int] = []
        self._reading = Derived(self, self._list_tokens, title="Reading the neuron", channel="neuron", quiet=True)
        self.watch(self.number, "value", self._number_typed)
        self.on_user(self.strip, "selected", self._token_picked)
        self.on_user(self.table, "selected", self._row_picked)
        self.watch(self, "neuron", lambda _: setattr(self, "neuron_chosen", True))
        self.watch(self, "prompt_token", lambda change: self._select_position(change.new))
        self.watch(self, ["prompt", "response", "response_token"], lambda _: self._select_position(-1))
        if self.position == -1 and self.prompt_token < self.texts.n_prompt_tokens:
            self._select_position(self.prompt_token)
        chart = W.VBox([BokehFigure(self.chart.figure, on_error=self.show_error)])
        chart.add_class("iw-chart")
        right = W.VBox([row(self.number), self.tokens], layout={"flex": "1 1 360px"})
        above = row(chart, right)
        above.layout.align_items = "flex-start"
        for part in (self.strip, self.summary):
            part.add_class("iw-after")
        self.top_texts = TopTexts(self, lambda neuron: f"neuron {neuron} of layer {self.layer}")
        self.edit = NeuronEdit(self)
        self.plot.children = [self.strip, self.summary, above, self.edit.box, self.top_texts.box, self.table]
        self.watch(self, ["neuron", "layer", "position"], lambda _: setattr(self, "coefficient", None))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[NeuronReading, ...], request: Any) -> None:
        first = results[0].effects
        if self.strip.tokens != list(first.tokens):
            self.strip.set_tokens(list(first.tokens))
        self.strip.selected = first.position
        shown = self.shown_results
        self.summary.value = "<br>".join(map(_sums, pair_view.all_starts(shown), shown))

    def draw_selection(self) -> None:
        """Draw what depends on the picked neuron."""
        if not self.results:
            return
        neuron, shown, comparing = self.chosen, self.shown_results, self.shown == "difference"
        letter = "" if comparing else pair_view.names(self)[0]
        self.chart.update([reading.effects for reading in shown], neuron=neuron, letter=letter)
        self.strip.value_label = f"activation of neuron {neuron}" + (", B − A" if comparing else "")
        active = pair_view.of_view(self.shown, [np.asarray(reading.effects.activation) for reading in self.results])
        self.strip.set_values(None if active is None else active[:, neuron], signed=True)
        self.number.value = neuron
        self._list_neurons(shown, neuron)
        self._list_tokens()
        self.edit.paint()
        names = pair_view.names(self)
        self.top_texts.paint([
            Source(name, index, self.results[index], reading.effects.layer, neuron)
            for name, index, reading in zip(names, pair_view.shown_indices(self), shown, strict=True)
        ])  # fmt: skip

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        neuron, first = self.chosen, self.results[0].effects
        inside = [reading for reading in self.results if neuron < len(reading.effects.effect)]
        if len(inside) < len(self.results):
            return None
        raised = [
            f"{start}It raises {named}."
            for start, reading in zip(pair_view.all_starts(self.results), self.results, strict=True)
            if (named := _raised(reading, neuron))
        ]
        where = f"“{visible(first.tokens[first.position])}” ({first.position})"
        return Description(
            f"Neuron {neuron} of layer {first.layer} at {where}",
            tuple(raised),
            ("", *(letter.strip() or "value" for letter in pair_view.letters(self.results))),
            (
                ("activation", *(decimals(reading.active(neuron)) for reading in self.results)),
                ("adds to the logit", *(decimals(float(reading.effects.effect[neuron])) for reading in self.results)),
            ),
            (STEP,),
        )

    def _list_neurons(self, shown: tuple[NeuronReading, ...], neuron: int) -> None:
        """List the neurons with the largest effects (for two models, the largest change), and the picked one."""
        comparing, effect = len(shown) == 2, self.effect
        known = set.intersection(*(set(reading.tokens.neurons) for reading in shown))
        strongest = [int(i) for i in np.argsort(-np.abs(effect), kind="stable") if int(i) in known]
        self._listed = strongest if neuron in strongest else [neuron, *strongest]
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns, self.table.rows = _heads(comparing), [_cells(shown, listed) for listed in self._listed]
            self.table.selected = self._listed.index(neuron)
            what = "change of their effects" if comparing else "effects"
            self.table.caption = (
                f"The {len(strongest)} neurons of layer {shown[0].effects.layer} with the largest {what}, "
                f"of {len(effect):,}"
            )

    def _list_tokens(self) -> None:
        """List the tokens of the neuron; the worker computes them if they were not computed with the run."""
        neuron, shown = self.chosen, self.shown_results
        if all(neuron in reading.tokens.neurons for reading in shown):
            self._show_tokens(neuron, [reading.tokens for reading in shown])
            return
        models, layer = [self.models[index] for index in pair_view.shown_indices(self)], shown[0].effects.layer
        key = neuron, shown
        if (read := self._reading.of(key)) is not None:
            self._show_tokens(neuron, read)
            return
        self.tokens.caption = f"Neuron {neuron} …"

        def work(job: Any) -> list[NeuronTokenResult]:
            return [
                neuron_tokens(model, layer=layer, neurons=[neuron], top=PROMOTED, check=job.check) for model in models
            ]

        self._reading.ask(key, work)

    def _show_tokens(self, neuron: int, tokens: Sequence[NeuronTokenResult]) -> None:
        heads: list[dict[str, Any]] = []
        columns: list[list[Any]] = []
        for start, of_model in zip(pair_view.letters(tokens), tokens, strict=True):
            for what, low in (("promotes", False), ("suppresses", True)):
                pairs = of_model.tokens(neuron, suppressed=low)
                heads += [{"label": f"{start}{what}"}, {"label": f"{start}score" + " " * low, "align": "right"}]
                columns += [[visible(token) for token, _ in pairs], [score for _, score in pairs]]
        norms = ", ".join(f"{float(of_model.norms[list(of_model.neurons).index(neuron)]):.2f}" for of_model in tokens)
        negative = max(reading.active(neuron) for reading in self.shown_results) < 0
        with self.tokens.hold_sync():
            self.tokens.rows = []
            self.tokens.columns, self.tokens.rows = heads, [list(cells) for cells in zip(*columns, strict=True)]
            self.tokens.caption = (
                f"Neuron {neuron}: effect of one unit of activation; its value vector has norm {norms}"
                + ("; its activation here is negative, so it raises the tokens it suppresses" if negative else "")
            )

    # what a user does -------------------------------------------------------------------------------------------------

    def pick_neuron(self, neuron: int) -> None:
        """Choose a neuron of the layer."""
        self.neuron_chosen = True
        if self.neuron == neuron:
            self.draw_selection()
        self.neuron = neuron

    def _dot_tapped(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self.pick_neuron(int(self.chart.source.data["neuron"][new[0]]))

    def _row_picked(self, change: Any) -> None:
        if change.new >= 0:
            self.pick_neuron(self._listed[change.new])

    def _number_typed(self, change: Any) -> None:
        if not self.results or change.new != min(self.chosen, self.number.max):  # else the program has set it
            self.pick_neuron(change.new)

    def _token_picked(self, change: Any) -> None:
        """Read the neurons at another token; deselecting returns to the last."""
        with self.batch_changes():
            self.prompt_token = change.new if change.new < self.texts.n_prompt_tokens else -1
            self._select_position(change.new)  # also a token of the response

    def _select_position(self, position: int) -> None:
        self.position = -1 if position == len(self.texts.axis) - 1 else position

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Steps) -> str:
        return request.code(self.models, "effects.to_frame()")

    def table_of(self, result: Any) -> Any:
        return result.effects.to_frame()

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"": result.effects}

    def scene(self) -> Scene:
        """The strip and the table."""
        heads = [head["label"] for head in _heads(len(self.shown_results) == 2)]
        numbers = [index for index, head in enumerate(heads) if "raises" not in head]
        widths = [90 if index in numbers else 360 for index in range(len(heads))]
        widths[0] = 60
        rows = [_cells(self.shown_results, neuron) for neuron in self._listed[:DRAWN]]
        table = table_scene(list(zip(heads, widths, strict=True)), rows, right=numbers,
                            title=self.table.caption)  # fmt: skip
        return stack_scenes([self.strip.scene(width=int(table.width), title="Prompt"), table])


def _heads(comparing: bool) -> list[dict[str, Any]]:
    """Columns of the table of neurons."""
    heads: list[dict[str, Any]] = [{"label": "neuron", "align": "right"}]
    what = {"activation": "The coefficient of the value vector", "effect": "Direct effect on the logit"}
    for name, title in what.items():
        for part in ("A", "B", "B − A") if comparing else ("",):
            heads.append({"label": f"{name} {part}".strip(), "align": "right", "title": title})
    if comparing:
        return [*heads, {"label": "A raises here", "wrap": True}, {"label": "B raises here", "wrap": True}]
    return [
        *heads,
        {"label": "length", "align": "right", "title": "Norm of its contribution to the residual stream"},
        {
            "label": "raises here",
            "wrap": True,
            "title": "The tokens it raises most: those it promotes or, if its activation is negative, suppresses",
        },
    ]


def _cells(shown: tuple[NeuronReading, ...], neuron: int) -> list[Any]:
    """A neuron's row of that table."""
    cells: list[Any] = [neuron]
    for values in (
        [reading.active(neuron) for reading in shown],
        [float(reading.effects.effect[neuron]) for reading in shown],
    ):
        cells += values if len(values) == 1 else [*values, values[1] - values[0]]
    if len(shown) == 1:
        cells.append(float(shown[0].effects.size[neuron]))
    return [*cells, *(_raised(reading, neuron) for reading in shown)]


def _raised(reading: NeuronReading, neuron: int) -> str | None:
    """The top tokens that a neuron raises at the selected token; None if they were not computed."""
    if neuron not in reading.tokens.neurons:
        return None
    tokens = reading.tokens.tokens(neuron, suppressed=reading.active(neuron) < 0)
    return "  ".join(visible(token) for token, _ in tokens[:6])


def _sums(start: str, reading: NeuronReading) -> str:
    """The direct effect of the MLP, as the sum of its neurons and bias."""
    effects = reading.effects
    whole, neurons, bias = (
        fixed(float(value), 2, "+") for value in (effects.mlp_effect, np.sum(effects.effect), effects.bias_effect)
    )
    return (
        f"{start}Logit of “{escape(visible(effects.target_token))}”: <b>{effects.logit:.2f}</b>. The MLP of layer "
        f"{effects.layer} adds <b>{whole}</b> to it directly: its {len(effects.neurons):,} neurons "
        f"{neurons}, its bias {bias}."
    )
