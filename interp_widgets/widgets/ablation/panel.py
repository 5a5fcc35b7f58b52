"""The ablation panel: what a prediction loses without a part of the model, live, for one model or two."""

from __future__ import annotations

from typing import ClassVar

from ..base.stack import PredictionStack
from .heads import HeadAblation
from .modules import ModuleAblation
from .text import AblatedText
from .tracing import CausalTracing


class AblationPanel(PredictionStack):
    """Which parts of the model a prediction needs: ablation maps of attention, MLPs and heads, and causal tracing.

    *Modules*: four maps, layer × position, of attention, MLP, both, and attention as the MLP reads it. *Heads*:
    layer × head. A click on a cell of these lists the next token with and without that part, and ablations can be put
    into a list; *Compare cells with chance* takes the colour from cells that do no more than changes as long in random
    directions. *Tracing*: which clean states restore the answer under a corrupted subject. *Text*: what the model
    writes with and without the ablations of the list.

    ``AblationPanel(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt and selection with other widgets,
    ``(workbench)``. Every trait of its panels is a keyword too. `run()` computes the active tab and returns
    its :class:`AblationResult`, :class:`HeadAblationResult` or :class:`CausalTraceResult` (a pair for two
    models), which `result` keeps.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Fig. 4.3; Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2.

    Example:
        >>> panel = AblationPanel(model, prompt="The Eiffel Tower is in the city of", tab="modules")
        >>> panel.run().of("mlp").shape
        (6, 8)
        >>> panel.close()
    """

    title = "Ablation"
    panels: ClassVar = {"modules": ModuleAblation, "heads": HeadAblation, "tracing": CausalTracing, "text": AblatedText}
