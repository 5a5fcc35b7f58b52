"""The bias workbench: measure bias, find the neurons that write it, edit the model, and evaluate the edit."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.stack import Stack
from .data import DataScores
from .debias import Debiasing
from .edit_comparison import EditComparison
from .neurons import NeuronMap
from .probes import ProbeSweep


class BiasWorkbench(Stack):
    """Bias in a model, step by step; every step works with your own data too.

    *Data*: examples of a data set with the score of every sentence, and the model's preference by domain. *Probes*:
    how well probes separate biased from benign texts in every layer, against controls; the texts along two probes;
    how probes generalise to other layers. *Neurons*: the neurons that write along the probes, and their activity on
    biased and on benign texts. *Debias*: an edit that removes bias, the scores without and with it, and a switch that
    applies it for every panel. *Judge*: edits, made with the settings of *Debias* or saved, against random ones: how
    much less bias, at what cost, and what each model writes.

    ``BiasWorkbench(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, layer and neuron with other widgets,
    ``(workbench)``. `data_file` is the path of StereoSet's JSON, of CrowS-Pairs' CSV, or of a CSV with your own pairs;
    `data` takes the result of a reader, or `LabeledTexts` for the probes; without either the demo's planted groups
    are used. Every trait of its panels is a keyword too. `run()` computes the active tab and returns its result (a
    pair for two models), which `result` keeps.

    Source: Explainability in Large Language Models (Luo 2024), sections 4.3.1 and 5.2.

    Example:
        >>> panel = BiasWorkbench(model)
        >>> round(panel.result.overall.ss), panel.tab
        (100, 'data')
        >>> panel.close()
    """

    title = "Bias"
    panels: ClassVar = {
        "data": DataScores,
        "probes": ProbeSweep,
        "neurons": NeuronMap,
        "debias": Debiasing,
        "judge": EditComparison,
    }

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        # the demo's prompts stop where the model is about to answer: its last layer and token say most about the text
        usual: dict[str, Any] = {"layer": min(model.n_layers for model in self.models) - 1}
        if not {"data", "data_file"} & keywords:
            usual["pool"] = "last"
        return super().defaults(keywords) | {name: value for name, value in usual.items() if name not in keywords}
