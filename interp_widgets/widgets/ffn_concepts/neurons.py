"""The neurons tab: what the MLP neurons of the chosen layer do on a prompt, and the tokens each one writes for."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ffn_concepts import NeuronTokenResult, neuron_tokens
from interp_widgets.figures.ffn_concepts import NeuronScatter
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes, table_scene

from ..base.controls import row
from ..base.guard import guarded
from ..views import BokehFigure, Table, TokenStrip
from .request import DRAWN, PROMOTED, NeuronReading

if TYPE_CHECKING:
    from .browser import FFNConceptBrowser

CLICK = "; click one for its tokens"
"""What a table says on the screen, and a picture of it does not."""


class NeuronsTab:
    """Prompt strip, scatter of all neurons, table of those with the largest effects, tokens of the picked one."""

    def __init__(self, panel: FFNConceptBrowser) -> None:
        self.panel = panel
        self.results: tuple[NeuronReading, ...] = ()
        self._filling = False
        self._listed: list[int] = []
        self._asked: Any = None
        self.box = W.VBox()
        self.box.add_class("iw-column")

    def _build(self) -> None:
        """Make strip, chart and tables when the tab is first looked at: figures take a while to make."""
        panel = self.panel
        self.strip = TokenStrip(label="Prompt: click the token at which to look", max_lines=4)
        self.said = W.HTML("")
        self.chart = NeuronScatter()
        self.figure = BokehFigure(self.chart.figure, on_error=panel.show_error)
        self.chart.source.selected.on_change("indices", guarded(panel, self._dot_tapped))
        self.table = Table(empty="No neurons yet: press Run", height=420)
        self.tokens = Table(empty="No neuron yet: press Run", height=420)
        self.number = W.BoundedIntText(
            description="Neuron", min=0, max=max(1, min(model.d_mlp for model in panel.models) - 1),
            tooltip="Any neuron of the layer, by its number",
        )  # fmt: skip
        self.number.add_class("iw-short")
        panel.watch(self.number, "value", self._number_typed)
        panel.watch(self.strip, "selected", self._token_picked)
        panel.watch(self.table, "selected", self._row_picked)
        chart = W.VBox([self.figure])
        chart.add_class("iw-chart")
        right = W.VBox([row(self.number), self.tokens], layout={"flex": "1 1 360px"})
        above = row(chart, right)
        above.layout.align_items = "flex-start"
        self.box.children = [self.strip, self.said, above, self.table]

    # drawing ----------------------------------------------------------------------------------------------------------

    @property
    def looked_at(self) -> tuple[NeuronReading, ...]:
        """The results that the view shows: one, or both in a difference."""
        if self.panel.shown == "difference":
            return self.results
        return (self.results["AB".index(self.panel.shown)],)

    @property
    def told(self) -> int:
        """The neuron that is looked at: the chosen one, else the one with the largest effect."""
        panel, effects = self.panel, [np.asarray(one.effects.effect) for one in self.looked_at]
        if panel.neuron_told and panel.neuron < len(effects[0]):
            return int(panel.neuron)
        size = np.abs(effects[-1] - effects[0]) if len(effects) == 2 else np.abs(effects[0])
        return int(np.argmax(size))

    @property
    def last(self) -> int:
        """Place of the last token that was read; -2 while nothing was."""
        return len(self.results[0].effects.tokens) - 1 if self.results else -2

    def paint(self, results: tuple[NeuronReading, ...]) -> None:
        """Draw other results, or the same in another view."""
        self.results = results
        if not self.box.children:
            self._build()
        first = results[0].effects
        self._filling = True
        try:
            if self.strip.tokens != list(first.tokens):
                self.strip.set_tokens(list(first.tokens))
            self.strip.selected = first.position
        finally:
            self._filling = False
        self.said.value = "<br>".join(
            _sums(letter, one) for letter, one in zip(self._letters(), self.looked_at, strict=True)
        )
        self.paint_selection()

    def paint_selection(self) -> None:
        """Draw what depends on the picked neuron."""
        if not self.results:
            return
        neuron, shown = self.told, self.looked_at
        letter = self.panel.shown if len(self.results) == 2 and len(shown) == 1 else ""
        self.chart.update([one.effects for one in shown], neuron=neuron, letter=letter)
        active = [np.asarray(one.effects.activation)[:, neuron] for one in shown]
        two = len(active) == 2
        self.strip.value_label = f"activation of neuron {neuron}" + (", B − A" if two else "")
        values = active[1] - active[0] if two else active[0]
        self.strip.set_values(values, signed=True)
        self._filling = True
        try:
            self.number.value = neuron
            self._list_neurons(shown, neuron)
        finally:
            self._filling = False
        self._list_tokens(neuron)

    def _list_neurons(self, shown: tuple[NeuronReading, ...], neuron: int) -> None:
        """The neurons of the largest effects (of two models: of the largest change), and the picked one."""
        two = len(shown) == 2
        sizes = [np.asarray(one.effects.effect) for one in shown]
        known = set.intersection(*(set(one.tokens.neurons) for one in shown)) if two else set(shown[0].tokens.neurons)
        order = np.argsort(-np.abs(sizes[1] - sizes[0] if two else sizes[0]), kind="stable")
        listed = [int(i) for i in order if int(i) in known]
        self._listed = listed if neuron in listed else [neuron, *listed]
        lines = [self._line(shown, one) for one in self._listed]
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns, self.table.rows = _heads(two), lines
            self.table.selected = self._listed.index(neuron)
            what = "change of their effects" if two else "effects"
            self.table.caption = (
                f"The {len(listed)} neurons of layer {shown[0].effects.layer} with the largest {what}, "
                f"of {len(sizes[0]):,}{CLICK}"
            )

    def _line(self, shown: tuple[NeuronReading, ...], neuron: int) -> list[Any]:
        numbers: list[Any] = []
        for values in (
            [float(one.effects.activation[one.effects.position, neuron]) for one in shown],
            [float(one.effects.effect[neuron]) for one in shown],
        ):
            numbers += values + ([values[1] - values[0]] if len(values) == 2 else [])
        if len(shown) == 1:
            numbers.append(float(shown[0].effects.size[neuron]))
        texts = [_raised(one, neuron) for one in shown]
        return [neuron, *numbers, *texts]

    def _list_tokens(self, neuron: int) -> None:
        """The tokens of one neuron; the worker reads them if it is not among those that were read with the prompt."""
        panel, shown = self.panel, self.looked_at
        if all(neuron in one.tokens.neurons for one in shown):
            self._asked = None
            self._show_tokens(neuron, [one.tokens for one in shown])
            return
        models = [panel.models[self.results.index(one)] for one in shown]
        layer = shown[0].effects.layer
        key = (neuron, layer, panel.shown, tuple(map(id, shown)))
        if key == self._asked:
            return
        self._asked = key
        self.tokens.caption = f"Neuron {neuron} …"

        def work(job: Any) -> list[NeuronTokenResult]:
            return [
                neuron_tokens(model, layer=layer, neurons=[neuron], top=PROMOTED, check=job.check) for model in models
            ]

        def done(found: list[NeuronTokenResult]) -> None:
            if key == self._asked:
                self._show_tokens(neuron, found)

        panel.jobs.start(work, done, title="Reading the neuron", channel="neuron", quiet=True)

    def _show_tokens(self, neuron: int, found: list[NeuronTokenResult]) -> None:
        heads: list[dict[str, Any]] = []
        columns: list[list[Any]] = []
        for letter, one in zip(self._letters(), found, strict=True):
            start = f"{letter} " if letter else ""
            for what, low in (("promotes", False), ("suppresses", True)):
                pairs = one.tokens(neuron, suppressed=low)
                heads += [{"label": f"{start}{what}"}, {"label": f"{start}score" + " " * low, "align": "right"}]
                columns += [[visible(token) for token, _ in pairs], [score for _, score in pairs]]
        norms = ", ".join(f"{float(one.norms[list(one.neurons).index(neuron)]):.2f}" for one in found)
        with self.tokens.hold_sync():
            self.tokens.rows = []
            self.tokens.columns, self.tokens.rows = heads, [list(cells) for cells in zip(*columns, strict=True)]
            self.tokens.caption = (
                f"Neuron {neuron}: what one unit of its activation does; its value vector has length {norms}"
                f"{self._turned(neuron)}"
            )

    def _turned(self, neuron: int) -> str:
        """A reminder that a negative activation turns promoting into suppressing."""
        active = [float(one.effects.activation[one.effects.position, neuron]) for one in self.looked_at]
        return "; its activation here is negative, so that it raises what it suppresses" if max(active) < 0 else ""

    def _letters(self) -> list[str]:
        return ["A", "B"] if len(self.looked_at) == 2 else [""]

    # what a user does -------------------------------------------------------------------------------------------------

    def _dot_tapped(self, _attr: str, _old: Any, new: list[int]) -> None:
        if new:
            self.panel.pick_neuron(int(self.chart.source.data["neuron"][new[0]]))

    def _row_picked(self, change: Any) -> None:
        if not self._filling and change.new >= 0:
            self.panel.pick_neuron(self._listed[change.new])

    def _number_typed(self, change: Any) -> None:
        if not self._filling:
            self.panel.pick_neuron(change.new)

    def _token_picked(self, change: Any) -> None:
        if not self._filling:
            self.panel.pick_token(change.new)

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The strip and the table."""
        two = len(self.looked_at) == 2
        heads = [head["label"] for head in _heads(two)]
        widths = [60, *[90] * (len(heads) - 1)]
        for place, head in enumerate(heads):
            if "raises" in head:
                widths[place] = 360
        rows = [self._line(self.looked_at, neuron) for neuron in self._listed[:DRAWN]]
        numbers = [place for place, head in enumerate(heads) if "raises" not in head]
        table = table_scene(list(zip(heads, widths, strict=True)), rows, right=numbers,
                            title=self.table.caption.removesuffix(CLICK))  # fmt: skip
        return stack_scenes([self.strip.scene(width=int(table.width), title="Prompt"), table])


def _heads(two: bool) -> list[dict[str, Any]]:
    heads: list[dict[str, Any]] = [{"label": "neuron", "align": "right"}]
    what = {"activation": "What multiplies the value vector", "effect": "What it adds to the logit directly"}
    for name, title in what.items():
        for part in ("A", "B", "B − A") if two else ("",):
            heads.append({"label": f"{name} {part}".strip(), "align": "right", "title": title})
    if two:
        return [*heads, {"label": "A raises here", "wrap": True}, {"label": "B raises here", "wrap": True}]
    return [
        *heads,
        {"label": "length", "align": "right", "title": "Length of what it adds to the residual stream"},
        {
            "label": "raises here",
            "wrap": True,
            "title": "The tokens it raises most: those it promotes, or, where its activation is negative, suppresses",
        },
    ]


def _raised(one: NeuronReading, neuron: int) -> str | None:
    """The first tokens that a neuron raises at the token looked at; None where they were not read."""
    if neuron not in one.tokens.neurons:
        return None
    negative = float(one.effects.activation[one.effects.position, neuron]) < 0
    return "  ".join(visible(token) for token, _ in one.tokens.tokens(neuron, suppressed=negative)[:6])


def _sums(letter: str, one: NeuronReading) -> str:
    """What the whole MLP does, as the sum of its neurons."""
    found = one.effects
    start = f"{letter}: " if letter else ""
    return (
        f"{start}Logit of “{escape(visible(found.target_token))}”: <b>{found.logit:.2f}</b>. The MLP of layer "
        f"{found.layer} adds <b>{found.mlp_effect:+.2f}</b> to it directly: its {len(found.neurons):,} neurons "
        f"{float(np.sum(found.effect)):+.2f}, its bias {found.bias_effect:+.2f}."
    )
