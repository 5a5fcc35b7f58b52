"""Setting a neuron's activation, and the next-token prediction that follows."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ablation import AblatedPrediction, Ablation, ablated_prediction
from interp_widgets.figures.labels import fixed, visible
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import row
from ..base.jobs import Derived
from ..base.next_tokens import columns, rows
from ..views import Table
from .neuron_panel import NeuronPanel, NeuronReading

TOP = 8
"""Number of top tokens listed, before and after."""


class NeuronEdit:
    """A slider for the picked neuron's activation at the selected token, with the next token before and after.

    The forward pass is run again, so that later layers see the new value too.
    """

    def __init__(self, panel: NeuronPanel) -> None:
        self.panel = panel
        self.slider = W.FloatSlider(
            description="Set its activation to", step=0.01, readout_format=".2f", continuous_update=True,
            tooltip="The activation of the picked neuron at the selected token",
        )  # fmt: skip
        self.slider.add_class("iw-grow")
        self.back = panel.on_click(
            W.Button(description="As it is", tooltip="Reset to the activation that the model computes"),
            lambda: setattr(panel, "coefficient", None),
        )
        self.table = Table(empty="Move the slider to list the next token before and after.", height=300)
        self.box = W.VBox([row(self.slider, self.back), self.table])
        self.box.add_class("iw-column")
        self._predicting = Derived(panel, self._draw, title="Next token", channel="edit", quiet=True)
        self._filling = False
        self._put = 0.0
        self.predictions: tuple[AblatedPrediction, ...] = ()
        """The predictions in the table, one per model in view."""
        panel.watch(self.slider, "value", self._moved)

    def _moved(self, change: Any) -> None:
        # the page rounds a value to a step of the slider, which is not a user's change
        if not self._filling and abs(change.new - self._put) > self.slider.step / 2:
            self.panel.coefficient = float(change.new)

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Update slider and table to the picked neuron."""
        panel, shown = self.panel, self.panel.shown_results
        original = [reading.active(panel.chosen) for reading in shown]
        largest = [float(np.abs(reading.effects.activation).max()) for reading in shown]
        reach = max(*largest, abs(panel.coefficient or 0.0), 0.1)
        self._filling = True
        try:
            with self.slider.hold_trait_notifications():
                step = 10.0 ** (np.floor(np.log10(reach)) - 2)
                end = float(np.ceil(reach / step) * step)
                self.slider.min, self.slider.max, self.slider.step = -end, end, step
                self._put = original[-1] if panel.coefficient is None else panel.coefficient
                self.slider.value = self._put
        finally:
            self._filling = False
        self.back.disabled = panel.coefficient is None
        if panel.coefficient is None:
            self._predicting.forget()
            self._draw()
            return
        models = [panel.models[i] for i in pair_view.shown_indices(panel)]
        neuron, value = panel.chosen, panel.coefficient

        def work(job: Any) -> tuple[AblatedPrediction, ...]:
            predictions = []
            for model, reading in zip(models, shown, strict=True):
                job.check()
                predictions.append(edited_prediction(model, reading, neuron, value))
            return tuple(predictions)

        self._predicting.ask(self._key(), work)

    def _key(self) -> Any:
        panel = self.panel
        return panel.chosen, panel.coefficient, tuple(map(id, panel.shown_results))

    def _draw(self) -> None:
        read = None if self.panel.coefficient is None else self._predicting.of(self._key())
        if read is None and self.panel.coefficient is not None and not self._predicting.failure:
            return  # the old numbers stay until there are new ones
        self.predictions = read or ()
        names = pair_view.names(self.panel) if len(self.predictions) > 1 else [""]
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns, self.table.rows = columns(names), rows(self.predictions)
            self.table.caption = self._caption()

    def _caption(self) -> str:
        panel = self.panel
        if not self.predictions:
            return ""
        first = panel.shown_results[0].effects
        put = fixed(panel.coefficient, 2)
        own = [fixed(reading.active(panel.chosen), 2) for reading in panel.shown_results]
        original = "as it is" if set(own) == {put} else f"instead of {', '.join(own)}"
        kl = ", ".join(f"{prediction.kl:.3f}" for prediction in self.predictions)
        return (
            f"Next token after “{visible(first.tokens[first.position])}” with neuron {panel.chosen} of layer "
            f"{first.layer} at {put} {original}: KL {kl} nats"
        )


def edited_prediction(model: Model, reading: NeuronReading, neuron: int, value: float) -> AblatedPrediction:
    """The next token after the selected one, before and after the neuron's activation there is set to a value."""
    effects = reading.effects
    ids = [*([] if effects.bos_id is None else [effects.bos_id]), *effects.ids[: effects.position + 1]]
    edit = Ablation("neuron", effects.layer, position=effects.position, index=neuron, value=value)
    return ablated_prediction(model, ids, [edit], top=min(TOP, model.d_vocab))
