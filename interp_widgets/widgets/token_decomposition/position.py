"""The slider of the position whose residual stream is decomposed."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as W

from interp_widgets.figures.labels import visible


class PositionControl:
    """The slider of the decomposed position; its right end is the last token of the context."""

    def __init__(self, panel: Any) -> None:
        self.panel = panel
        self.slider = W.IntSlider(
            description="Position", min=0, max=1, readout=False, continuous_update=False,
            tooltip="The token whose residual stream is decomposed; the rightmost one predicts the next token",
        )  # fmt: skip
        self.label = W.HTML("")
        self.label.add_class("iw-hint")
        self.parts = (self.slider, self.label)
        self._fitting = False
        panel.watch(self.slider, "value", self._slid)
        panel.watch(panel, "position", lambda _: self.fit())

    def fit(self) -> None:
        """Show the position among the tokens of the context."""
        tokens, at = self.panel.texts.axis, self.panel.position
        count = len(tokens)
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
            self.label.value = ""
            return
        index = at % count
        end = " (last)" if index == count - 1 else f" of 0 to {count - 1}"
        self.label.value = f"{index}{end}: <b>{escape(visible(tokens[index]))}</b>"

    def _slid(self, change: Any) -> None:
        if not self._fitting:
            self.panel.position = -1 if change.new == len(self.panel.texts.axis) - 1 else change.new
