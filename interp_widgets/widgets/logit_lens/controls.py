"""The inputs of the logit lens explorer: texts and target, what colours the map, how much is written into it."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from ..base.controls import row

COLOR_LABELS = {
    "probability": "probability of the likeliest token",
    "entropy": "entropy",
    "kl": "KL divergence from the output",
    "target_probability": "probability of the target",
    "target_rank": "rank of the target",
}
UNITS = {
    "probability": "probability",
    "entropy": "entropy, nats",
    "kl": "KL, nats",
    "target_probability": "probability of target",
    "target_rank": "rank, 0 is best",
}
"""The same at the colour bar, where there is less room."""
MOST_TOP = 50


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    options = [(label, value) for value, label in COLOR_LABELS.items()]
    color = panel.bind(W.Dropdown(description="Colour", options=options), "color")
    threshold = panel.bind(
        W.FloatSlider(description="Labels from", min=0, max=1, step=0.05, readout_format=".2f",
                      tooltip="The likeliest token is written into its cell from this probability on"),
        "threshold",
    )  # fmt: skip
    top = panel.bind(
        W.BoundedIntText(description="Top k", min=1, max=MOST_TOP, tooltip="Tokens listed of the chosen cell"), "top"
    )
    top.add_class("iw-short")
    translators = panel.bind(
        W.Text(description="Translators", continuous_update=False, placeholder="tuned-lens .safetensors",
               tooltip="Path of one affine map per layer, for the tuned lens; empty: the logit lens"),
        "translators",
    )  # fmt: skip
    return [*panel.text_inputs(), row(color, threshold, top, translators)]
