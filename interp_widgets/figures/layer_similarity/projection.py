"""The texts of several tasks in the plane at one layer, coloured by cluster."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from interp_widgets.analysis.layer_similarity import LayerProjections
from interp_widgets.figures.plane import Plane

AXES = {"pca": "principal component {}", "tsne": "t-SNE {}", "umap": "UMAP {}"}


class ProjectionChart(Plane):
    """A point per text; its cluster (its task, where there are no clusters) as colour and shape, its text on hover.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models,
    figure 4.
    """

    EMPTY: ClassVar[str] = "No picture yet: press Run."
    TIPS = ("task", "cluster")

    def __init__(self) -> None:
        super().__init__("layer_projection", "Texts in the plane")

    def update(self, places: LayerProjections | None, layer: int = -1, *, name: str = "") -> None:
        """Show one layer, of those placed; None shows a sentence instead."""
        if places is None:
            return self.say()
        row = int(np.flatnonzero(places.layers == layer)[0])
        xy = places.xy[row]
        if not np.isfinite(xy).all():
            return self.say(f"Layer {layer} does not vary over these texts: they all end in the same token.")
        named = [cluster or task for cluster, task in zip(places.cluster, places.task, strict=True)]
        self.figure.title.text = f"{f'{name}: ' if name else ''}texts in the plane, layer {layer}"
        more = {"task": places.task, "cluster": places.cluster}
        return self.place(xy, named, places.texts, more, axes=AXES[places.method])
