"""The workbench of bias: find it, see where it is written, edit it, and judge what that cost."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.stack import Stack
from .data import DataScores
from .debias import Debiasing
from .judge import Judging
from .neurons import NeuronMap
from .probes import ProbeSweep


class BiasWorkbench(Stack):
    """Bias in a model, step by step, each of which can be entered with your own data.

    *Data*: examples of a data set with the score of every sentence, and what the model prefers by domain. *Probes*: how
    well every layer's states tell biased texts from benign ones, beside controls; where the texts stand along two
    probes; which probes hold on which layers. *Neurons*: the neurons that write along the probes, and how active they
    are on biased texts and on benign ones. *Debias*: an edit that takes bias out, the scores without it and with it,
    and a switch that has every panel show the edited model. *Judge*: edits, made with the settings of *Debias* or
    saved, beside random ones: less bias, at what price, and what each model writes.

    ``BiasWorkbench(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, layer and neuron with other widgets,
    ``(workbench)``. `data_file` is the path of StereoSet's JSON, of CrowS-Pairs' CSV, or of a CSV with your own pairs;
    `data` takes what a reader gives, or `LabelledTexts` for the probes; without either the demo's planted groups are
    shown. Every trait of its panels is a keyword too. `run()` computes the tab that is looked at and returns its
    result (a pair of them with two models), which `result` keeps.

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
        "judge": Judging,
    }

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        # what a model has made of a text is read best where it is about to answer, where the demo's prompts stop
        usual: dict[str, Any] = {"layer": min(model.n_layers for model in self.models) - 1}
        if not {"data", "data_file"} & keywords:
            usual["pool"] = "last"
        return super().defaults(keywords) | {name: value for name, value in usual.items() if name not in keywords}
