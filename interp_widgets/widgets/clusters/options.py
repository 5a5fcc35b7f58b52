"""What both cluster panels use: labels, scores, the layer, and their names."""

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
"""The fields of the scores' chance levels; the other scores are 0 by chance."""


class ClusterOptions(Panel):
    """The options that both panels share."""

    labels = field(
        LABELS, "task", label="Labels", redraws=True,
        help="Labels that the clusters are compared with and that colour the points",
    )  # fmt: skip
    score = field(
        SCORES, "f1_matched", label="Score", redraws=True, help="Measure of agreement between clusters and labels"
    )
    at_layer = field(
        Annotated[int, Bounds(0, lambda panel: panel.last_layer, slider=True)], 6, label="Layer", redraws=True,
        help="The residual stream entering this layer; the last one is the input of the final norm",
    )  # fmt: skip

    @property
    def last_layer(self) -> int:
        """The highest layer that can be chosen."""
        raise NotImplementedError


def group_names(instances: Sequence[InstructionInstance], labels: str) -> list[str]:
    """The label of each instance."""
    if labels == "distribution_mapping":
        return [f"{instance.distribution} {instance.mapping}" for instance in instances]
    return [str(getattr(instance, labels)) for instance in instances]


def label_columns(instances: Sequence[InstructionInstance]) -> dict[str, list[str]]:
    """All labels of the instances, by the name of the label."""
    return {name: [getattr(instance, name) for instance in instances] for name in ("task", "distribution", "mapping")}


def percent(value: Any) -> str:
    """A share as a percentage."""
    return f"{100 * float(value):.0f}%"
