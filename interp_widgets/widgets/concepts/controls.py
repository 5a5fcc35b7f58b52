"""The inputs of the concept browser: layer, how directions are made and mapped, and the list's own box."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from ..base.controls import row, shown_if

METHOD_LABELS = {
    "mean_difference": "mean difference",
    "pca": "first component of paired differences",
    "discriminant": "linear discriminant",
}
MAP_LABELS = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}


def build_controls(panel: Any) -> list[Any]:
    """The rows of inputs, each control joined to its trait."""
    slider = panel.bind(
        W.IntSlider(
            description="Layer", min=0, max=panel.deepest, continuous_update=False,
            tooltip="The residual stream entering this layer; at the right end the one before the final norm",
        ),
        "stream",
    )  # fmt: skip
    method = panel.bind(choice("Directions", METHOD_LABELS), "method")
    places = panel.bind(choice("Map", MAP_LABELS), "map_method")
    more = W.ToggleButton(
        value=False, description="Add, open, save", tooltip="Concepts of your own, a folder, a saved set of directions"
    )
    panel.watch(more, "value", lambda change: shown_if(panel.library.box, change.new))
    shown_if(panel.library.box, False)
    controls = row(slider, method, places, more)

    def fit(_: Any = None) -> None:
        for control in (slider, method):
            control.disabled = bool(panel.path)  # an opened set says its own

    panel.watch(panel, "path", fit)
    fit()
    return [controls, panel.library.box]


def choice(name: str, labels: dict[Any, str], **options: Any) -> W.Dropdown:
    """A dropdown of values by their labels."""
    return W.Dropdown(description=name, options=[(label, value) for value, label in labels.items()], **options)
