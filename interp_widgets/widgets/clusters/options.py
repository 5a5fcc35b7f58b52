"""What the panels of clusters have in common: labels, scores, the layer, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from interp_widgets.data.instruction_task import InstructionInstance

from ..base.fields import Bounds, field
from ..base.panel import Panel

LABELS = {"task": "task", "distribution": "distribution", "distribution_mapping": "distribution and mapping"}
SCORES = {
    "f1_matched": "matched F1",
    "f1_pair": "pair F1",
    "ari": "adjusted Rand index",
    "ami": "adjusted mutual information",
}
CHANCE = {"f1_matched": "f1_matched_chance", "f1_pair": "f1_pair_chance"}
"""Scores with a chance level of their own; that of the others is 0."""


class ClusterOptions(Panel):
    """The options that both panels have."""

    labels = field(
        LABELS, "task", label="Labels", redraws=True,
        help="What clusters are compared with, and what colours the points",
    )  # fmt: skip
    score = field(SCORES, "f1_matched", label="Score", redraws=True, help="How clusters and labels agree")
    at_layer = field(
        Annotated[int, Bounds(0, lambda panel: panel.last_layer, slider=True)], 6, label="Layer", redraws=True,
        help="The stream entering this layer; the last is what the final norm reads",
    )  # fmt: skip

    @property
    def last_layer(self) -> int:
        """The last layer that can be looked at."""
        raise NotImplementedError


def group_names(instances: Sequence[InstructionInstance], labels: str) -> list[str]:
    """The label of each instance."""
    if labels == "distribution_mapping":
        return [f"{one.distribution} {one.mapping}" for one in instances]
    return [str(getattr(one, labels)) for one in instances]


def label_columns(instances: Sequence[InstructionInstance]) -> dict[str, list[str]]:
    """All labels of the instances by their names."""
    return {name: [getattr(one, name) for one in instances] for name in ("task", "distribution", "mapping")}


def percent(value: Any) -> str:
    """A share in words."""
    return f"{100 * float(value):.0f} %"


def beginning(text: str) -> str:
    """A text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]
