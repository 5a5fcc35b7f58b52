"""The inputs of the token decomposition explorer: which position, how it is taken apart, how it is shown."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as W

from interp_widgets.figures.labels import visible

from ..base.controls import row

COLOR_LABELS = {
    "probability": "probability of the part's top token",
    "norm_share": "share of the parts' norms",
    "target_probability": "probability of the target",
    "target_logit": "share of the target's logit",
}
BAR_LABELS = {"logit": "share of the final logit", "norm": "share of the norms at the last layer", "none": "none"}
BIASES_LABELS = {"separate": "a part of their own", "spread": "spread over the tokens"}
LENS_LABELS = {"own": "each part by its own scale", "frozen": "all by the stream's scale"}


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    foil = panel.bind(
        W.Text(description="Foil", continuous_update=False, placeholder="none",
               tooltip="A token whose logit is taken off the target's: what speaks for the one against the other"),
        "foil",
    )  # fmt: skip
    foil.add_class("iw-short")
    panel.place = PositionControl(panel)
    biases = panel.bind(_choice("Biases", BIASES_LABELS), "biases")
    lens = panel.bind(_choice("Lens", LENS_LABELS), "lens")
    color = panel.bind(_choice("Colour", COLOR_LABELS), "color")
    bars = panel.bind(_choice("Bars", BAR_LABELS), "bars")
    threshold = panel.bind(
        W.FloatSlider(description="Labels from", min=0, max=1, step=0.05, readout_format=".2f",
                      tooltip="A part's top token is written into its cell from this probability on"),
        "threshold",
    )  # fmt: skip
    return [*panel.text_inputs(foil), row(*panel.place.parts, biases, lens), row(color, threshold, bars)]


def _choice(name: str, labels: dict[str, str]) -> W.Dropdown:
    return W.Dropdown(description=name, options=[(label, value) for value, label in labels.items()])


class PositionControl:
    """The slider that says which token's residual stream is taken apart; its right end is the last one read."""

    def __init__(self, panel: Any) -> None:
        self.panel = panel
        self.tokens: tuple[str, ...] = ()
        self.slider = W.IntSlider(
            description="Position", min=0, max=1, readout=False, continuous_update=False,
            tooltip="Whose residual stream is taken apart; at the right end the one that predicts what comes next",
        )  # fmt: skip
        self.said = W.HTML("")
        self.said.add_class("iw-hint")
        self.parts = (self.slider, self.said)
        self._fitting = False
        panel.watch(self.slider, "value", self._slid)
        panel.watch(panel, "position", lambda _: self.fit())

    def fit(self) -> None:
        """Show the position among the tokens that the model has read."""
        count = len(self.tokens)
        at = self.panel.position
        inside = -count <= at < count
        self._fitting = True
        try:
            self.slider.disabled = count < 2
            self.slider.max = max(count - 1, 1)
            if inside:
                self.slider.value = at % count
        finally:
            self._fitting = False
        if not inside:
            self.said.value = ""
            return
        place = at % count
        end = " (last)" if place == count - 1 else f" of 0 to {count - 1}"
        self.said.value = f"{place}{end}: <b>{escape(visible(self.tokens[place]))}</b>"

    def _slid(self, change: Any) -> None:
        if not self._fitting:
            self.panel.position = -1 if change.new == len(self.tokens) - 1 else change.new
