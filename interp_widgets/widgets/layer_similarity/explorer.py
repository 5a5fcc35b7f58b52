"""Layer similarity: with control models by task, layer by layer, projections, dimensions and text properties."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.opening import are_demo
from ..base.stack import Stack
from .correlations import TextCorrelations
from .dimensions import LayerDimensions
from .layers import LayerMatrix
from .options import LARGE
from .projections import TextProjections
from .tasks import TaskSimilarity


class LayerSimilarityExplorer(Stack):
    """Where in a model tasks are encoded, and what tuning on many tasks changes, by the similarity of layers (CKA).

    *Tasks*: the similarity of a model to the control model of every task, which was tuned on that task alone, by layer;
    with two models also the sections of layers that tuning changes alike, if there are any. *Layers*: every layer
    against every layer, of two models or of one. *Projections*: the texts projected to the plane, by layer.
    *Dimensions*: how many explain 99% of the variance. *Texts*: whether CKA is higher for tasks that are harder to
    read or longer.

    ``LayerSimilarityExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share what is selected with other widgets,
    ``(workbench)``. `tasks` takes a list of `TaskTexts`, `control_models` a `ControlModels` or a dict of models by
    task; without them the demo's tasks are used, and control models are tuned from the first model when Run is
    pressed, so that models of your own open on *Layers*. Every trait of its panels is a keyword too. `run()` computes
    the active tab and returns its result (a pair for two models), which `result` keeps.

    Source: Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large Language Models.

    Example:
        >>> panel = LayerSimilarityExplorer(pair)
        >>> [result.cka.shape for result in panel.result], panel.tab
        ([(27, 6), (27, 6)], 'tasks')
        >>> panel.close()
    """

    title = "Layer similarity"
    panels: ClassVar = {
        "tasks": TaskSimilarity,
        "layers": LayerMatrix,
        "projections": TextProjections,
        "dimensions": LayerDimensions,
        "texts": TextCorrelations,
    }

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        usual = super().defaults(keywords)
        if len(self.models) > 1 and "view" not in keywords:
            usual["view"] = "beside"  # sections of layers are fitted to two models, so show both
        if not are_demo(self.models) and not {"tab", "tasks", "control_models"} & keywords:
            usual["tab"] = "layers"  # control models take longer than the layers of a model
        if max(model.parameter_count for model in self.models) >= LARGE:
            usual |= {} if {"spread", "tasks"} & keywords else {"spread": "one"}
        return usual
