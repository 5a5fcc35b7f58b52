"""How alike layers are: task by task with control models, layer by layer, in the plane, and why."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.stack import Stack
from .correlations import TextCorrelations
from .dimensions import LayerDimensions
from .layers import LayerMatrix
from .projections import TextProjections
from .tasks import TaskSimilarity


class LayerSimilarityExplorer(Stack):
    """Where in a model tasks are encoded, and what tuning on many tasks changes, by the similarity of layers (CKA).

    *Tasks*: how alike a model is to the control model of every task, which was tuned on that task alone, by layer; with
    two models also the sections of layers that tuning changes alike, if there are any. *Layers*: every layer against
    every layer, of two models or of one. *Projections*: the texts in the plane, layer by layer. *Dimensions*: how many
    explain 99 % of the variance. *Texts*: whether tasks that are harder to read or longer are more alike.

    ``LayerSimilarityExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share what is selected with other widgets,
    ``(workbench)``. `tasks` takes a list of `TaskTexts`, `control_models` a `ControlModels` or a dict of models by
    task; without them the demo's tasks are shown, and control models are tuned from the first model when Run is
    pressed. Every trait of its panels is a keyword too. `run()` computes the tab that is looked at and returns its
    result (a pair of them with two models), which `result` keeps.

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
        # two models are compared: sections of layers show in both alone
        return super().defaults(keywords) | (
            {"view": "beside"} if len(self.models) > 1 and "view" not in keywords else {}
        )
