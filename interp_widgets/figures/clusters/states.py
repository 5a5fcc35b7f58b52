"""Hidden states of instances in the plane, coloured by task, distribution or mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from numpy.typing import ArrayLike

from interp_widgets.figures.plane import Plane


class StatePlane(Plane):
    """A point per instance at one layer; what it is grouped by as colour and shape.

    Source: Transformer-based Causal Language Models Perform Clustering, §3.2.
    """

    EMPTY: ClassVar[str] = "No states yet."
    TIPS = ("task", "distribution", "mapping")

    def __init__(self) -> None:
        super().__init__("cluster_states", "Hidden states in the plane", height=400)

    def update(
        self, xy: ArrayLike, groups: Sequence[str], texts: Sequence[str], labels: Mapping[str, Sequence[str]],
        *, title: str, explained: float | None = None, axes: str = "principal component {}",
    ) -> None:  # fmt: skip
        """Show these states; `explained` is the share of their variance that the plane holds."""
        self.figure.title.text = title
        share = "" if explained is None else f"the plane holds {explained:.0%} of their variance"
        self.place(xy, groups, texts, labels, axes=axes, subtitle=share)
