"""Clusters of hidden states: how they come about in a training, and those of any model on instructions."""

from __future__ import annotations

from typing import ClassVar

from ..base.stack import Stack
from .instructions import InstructionClusters
from .training import TrainingClusters


class ClusterExplorer(Stack):
    """Whether a model keeps the states of one task together: KMeans clusters of its hidden states against labels.

    *Training*: a training on a synthetic instruction task, checkpoint by checkpoint and layer by layer: the states in
    the plane, how well clusters agree with tasks, distributions or mappings, the nearest training instances, and the
    accuracy. *Instructions*: the same for your models on natural instructions.

    ``ClusterExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share what is selected with other widgets,
    ``(workbench)``. Every trait of its panels is a keyword too: `run_folder` is one of `train_instruction_model`, by
    default the training that ships; `task_folder` one of JSON files that `read_instructions` takes, by default the
    demo's tasks. `run()` computes the tab that is looked at and returns its result, which `result` keeps.

    Source: Transformer-based Causal Language Models Perform Clustering.

    Example:
        >>> panel = ClusterExplorer(pair)
        >>> panel.result.f1_matched.shape, panel.tab  # checkpoints, sets, kinds of labels, layers
        ((16, 2, 3, 7), 'training')
        >>> panel.close()
    """

    title = "Clusters"
    panels: ClassVar = {"training": TrainingClusters, "instructions": InstructionClusters}
