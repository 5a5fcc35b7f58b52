"""Clusters of hidden states: how they form in a training run, and those of any model on instructions."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.opening import are_demo
from ..base.stack import Stack
from .instructions import InstructionClusters
from .over_training import TrainingClusters


class ClusterExplorer(Stack):
    """Whether a model clusters its hidden states by task: KMeans clusters compared with labels.

    *Training*: a training run on a synthetic instruction task, by checkpoint and layer: the states projected to the
    plane, the agreement of clusters with tasks, distributions or mappings, the nearest training instances, and the
    accuracy. *Instructions*: the states and clusters of your models on natural instructions. Models of your own open on
    these: a training run is about the model that was trained in it.

    ``ClusterExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share what is selected with other widgets,
    ``(workbench)``. Every trait of its panels is a keyword too: `run_folder` is a folder written by
    `train_instruction_model`, by default the run that ships; `task_folder` a folder of JSON files for
    `read_instructions`, by default the demo's tasks. `run()` computes the active tab and returns its result, which
    `result` keeps.

    Source: Transformer-based Causal Language Models Perform Clustering.

    Example:
        >>> panel = ClusterExplorer(pair)
        >>> panel.result.f1_matched.shape, panel.tab  # checkpoints, sets, kinds of labels, layers
        ((16, 2, 3, 7), 'training')
        >>> panel.close()
    """

    title = "Clusters"
    panels: ClassVar = {"training": TrainingClusters, "instructions": InstructionClusters}

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        about_a_run = {"tab", "run_folder", "checkpoint"} & keywords
        return {} if about_a_run or are_demo(self.models) else {"tab": "instructions"}
