"""The inputs of the saliency explorer: texts, what is attributed, how it is shown."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from ..base.controls import row, shown_if

METHOD_LABELS = {
    "exact": "exact: embedding set to zero",
    "first_order": "first order: gradient × embedding",
    "integrated_gradients": "integrated gradients",
    "random": "random: baseline",
}
TARGET_LABELS = {
    "probability": "probability",
    "log_prob": "log-probability",
    "logit": "logit",
    "logit_difference": "logit difference to a foil",
}


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    prompt = panel.bind(W.Textarea(description="Prompt", continuous_update=False, rows=5), "prompt")
    response = panel.bind(
        W.Textarea(description="Response", continuous_update=False, rows=5, placeholder="Empty: Generate writes one"),
        "response",
    )
    for box in (prompt, response):
        box.add_class("iw-grow")
    return [row(prompt, response), _writing(panel), _attribution(panel), _showing(panel)]


def _writing(panel: Any) -> W.HBox:
    """How the response is written."""
    generate = panel.on_click(
        W.Button(description="Generate", tooltip="Let the model write the response to this prompt"), panel.write
    )
    anew = panel.bind(W.Checkbox(description="after every change of the prompt", indent=False), "write_anew")
    tokens = panel.bind(W.BoundedIntText(description="Most tokens", min=1, max=4096), "max_new_tokens")
    temperature = panel.bind(
        W.BoundedFloatText(description="Temperature", min=0, max=10, step=0.1, tooltip="0: the likeliest token"),
        "temperature",
    )
    seed = panel.bind(W.BoundedIntText(description="Seed", min=0, max=2**31 - 1), "seed")
    for box in (tokens, temperature, seed):
        box.add_class("iw-short")
    parts = [generate, anew, tokens, temperature, seed]
    if len(panel.models) > 1:
        parts.insert(1, panel.bind(W.Dropdown(options=[("by A", "A"), ("by B", "B")], tooltip="Who writes"), "writer"))
        parts[1].add_class("iw-short")
    shown_if(seed, panel.temperature > 0)
    panel.watch(panel, "temperature", lambda change: shown_if(seed, change.new > 0))
    return row(*parts)


def _attribution(panel: Any) -> W.HBox:
    """What is attributed, and how."""
    methods = [(label, name) for name, label in METHOD_LABELS.items()]
    targets = [(label, name) for name, label in TARGET_LABELS.items()]
    method = panel.bind(W.Dropdown(description="Method", options=methods), "method")
    target = panel.bind(W.Dropdown(description="Target", options=targets), "target")
    foil = panel.bind(W.Text(description="Foil", placeholder="one token", continuous_update=False), "foil")
    steps = panel.bind(W.BoundedIntText(description="Steps", min=1, max=1024), "steps")
    seed = panel.bind(W.BoundedIntText(description="Random seed", min=0, max=2**31 - 1), "random_seed")
    for box in (foil, steps, seed):
        box.add_class("iw-short")

    def fit(_: Any = None) -> None:
        shown_if(foil, panel.target == "logit_difference")
        shown_if(steps, panel.method == "integrated_gradients")
        shown_if(seed, panel.method == "random")

    panel.watch(panel, ["method", "target"], fit)
    fit()
    return row(method, target, foil, steps, seed)


def _showing(panel: Any) -> W.HBox:
    """How the held result is sliced; none of these runs the model."""
    values = panel.bind(
        W.Dropdown(description="Show", options=[("scores 0 to L", "score"), ("importance", "importance")]), "values"
    )
    levels = panel.bind(W.BoundedIntText(description="L, levels", min=1, max=100), "levels")
    threshold = panel.bind(
        W.FloatSlider(description="b, map", min=0, max=panel.levels, step=0.5, readout_format=".1f"), "threshold"
    )
    density = panel.bind(
        W.FloatSlider(description="b, density", min=0, max=panel.levels, step=0.5, readout_format=".1f"),
        "density_threshold",
    )
    order = panel.bind(W.BoundedFloatText(description="p, density", min=1.01, max=64, step=0.5), "p")

    def fit(change: Any) -> None:
        for slider in (threshold, density):
            slider.max = change.new

    panel.watch(panel, "levels", fit)
    for box in (levels, order):
        box.add_class("iw-short")
    return row(values, levels, threshold, density, order)
