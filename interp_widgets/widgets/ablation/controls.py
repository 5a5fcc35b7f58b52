"""The inputs of the ablation panel: the prediction, what is read off it, what takes the place of what is removed."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from ..base.controls import row, shown_if

REPLACEMENT_LABELS = {
    "zero": "zero",
    "mean": "its mean over reference texts",
    "resample": "its value in a corrupted prompt",
}
METRIC_LABELS = {
    "logit": "logit of the target",
    "probability": "probability",
    "log_prob": "log-probability",
    "logit_difference": "logit difference to a foil",
    "kl": "KL divergence of all tokens",
}


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    foil = panel.bind(
        W.Text(description="Foil", continuous_update=False, placeholder="one token",
               tooltip="The token whose logit is taken off the target's"),
        "foil",
    )  # fmt: skip
    return [*panel.text_inputs(foil), *_asked(panel, foil), _shown(panel)]


def _asked(panel: Any, foil: Any) -> list[Any]:
    """What is read off the prediction, and what takes the place of what is removed."""
    replacement = panel.bind(_choice("Replaced by", REPLACEMENT_LABELS), "replacement")
    metric = panel.bind(_choice("Measured", METRIC_LABELS), "metric")
    corrupted = panel.bind(
        W.Text(description="Corrupted prompt", continuous_update=False, placeholder="as many tokens as the prompt"),
        "corrupted",
    )
    reference = _reference(panel)
    for box in (corrupted, reference):
        box.add_class("iw-grow")
    choices, texts = row(replacement, metric, corrupted), row(reference)

    def fit(_: Any = None) -> None:
        maps = panel.tab != "tracing"  # tracing knows one metric, and noise in the place of a replacement
        shown_if(choices, maps)
        shown_if(foil, maps and panel.metric == "logit_difference")
        shown_if(corrupted, panel.replacement == "resample")
        shown_if(texts, maps and panel.replacement == "mean")

    panel.watch(panel, ["tab", "metric", "replacement"], fit)
    fit()
    return [choices, texts]


def _reference(panel: Any) -> W.Textarea:
    """The reference texts, one per line."""
    box = W.Textarea(
        description="Reference texts, one per line", continuous_update=False, rows=3, value="\n".join(panel.reference)
    )

    def to_trait(change: Any) -> None:
        if change.new != "\n".join(panel.reference):
            panel.reference = [line for line in change.new.splitlines() if line.strip()]

    def to_control(_: Any) -> None:
        if [line for line in box.value.splitlines() if line.strip()] != panel.reference:
            box.value = "\n".join(panel.reference)

    panel.watch(box, "value", to_trait)
    panel.watch(panel, "reference", to_control)
    return box


def _shown(panel: Any) -> W.HBox:
    """How the held maps are drawn; none of these runs the model."""
    full = panel.bind(
        W.FloatSlider(description="Full colour at", min=0.05, max=1, step=0.05, readout_format=".0%",
                      tooltip="Share of the largest effect from which on the colour is the strongest"),
        "color_range",
    )  # fmt: skip
    numbers = panel.bind(
        W.FloatSlider(description="Numbers from", min=0, max=1, step=0.05, readout_format=".0%",
                      tooltip="Share of the largest effect from which on a cell shows its number"),
        "threshold",
    )  # fmt: skip
    return row(full, numbers)


def _choice(name: str, labels: dict[str, str]) -> W.Dropdown:
    return W.Dropdown(description=name, options=[(label, value) for value, label in labels.items()])
