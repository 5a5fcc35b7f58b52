"""The panels that the workbench's screen offers, one per tab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import interp_widgets

from ..base.shell import Shell


@dataclass(frozen=True)
class Tool:
    """A tab of the screen."""

    title: str
    """The name of the tab."""
    question: str
    """What its panel answers, above it."""
    load: Callable[[], type[Shell]] = field(repr=False)
    """Its class; loaded when the tab is first opened."""
    step: str = ""
    """The button that opens it for what is selected; empty: there is none."""
    about: Literal["prediction", "model", "yours"] = "prediction"
    """What it is about, or that the user added it; the tabs of each kind stand together, apart from the others."""


def _public(name: str) -> Callable[[], type[Shell]]:
    def load() -> type[Shell]:
        kind: type[Shell] = getattr(interp_widgets, name)
        return kind

    return load


TOOLS: Mapping[str, Tool] = {
    "saliency": Tool(
        "Saliency", "What it depends on", _public("SaliencyExplorer"), "What does it depend on?"
    ),
    "logit_lens": Tool(
        "Logit lens", "What each layer would say", _public("LogitLensExplorer"), "What would each layer say?"
    ),
    "attention": Tool("Attention", "Where its heads look", _public("AttentionExplorer"), "Where do its heads look?"),
    "ablation": Tool(
        "Ablation", "Which parts it needs", _public("AblationPanel"), "Which parts does it need?"
    ),
    "patching": Tool(
        "Patching", "Which values carry the answer", _public("PatchingPanel"), "Which values carry it?"
    ),
    "decomposition": Tool(
        "Decomposition", "What it is made of", _public("TokenDecompositionExplorer"),
        "Which tokens is it made of?",
    ),
    "data_set": Tool("Data set", "The same on a data set", _public("DataSetExplorer"), about="model"),
    "concepts": Tool("Concepts", "Concepts in the states", _public("ConceptBrowser"), about="model"),
    "head_words": Tool("Head words", "Word pairs of its heads", _public("HeadWordBrowser"), about="model"),
    "ffn_concepts": Tool("FFN concepts", "What the MLPs write", _public("FFNConceptBrowser"), about="model"),
    "bias": Tool("Bias", "Bias in texts and neurons", _public("BiasWorkbench"), about="model"),
    "clusters": Tool("Clusters", "How its states cluster", _public("ClusterExplorer"), about="model"),
    "layer_similarity": Tool("Layers", "How similar its layers are", _public("LayerSimilarityExplorer"), about="model"),
    "mixture_of_depths": Tool(
        "Mixture of Depths", "Which layers it is read from", _public("MoDRoutingViewer"), about="model"
    ),
    "circuits": Tool(
        "Circuits", "Which method finds a circuit that is known", _public("CircuitBoard"), about="model"
    ),
}  # fmt: skip


def probe_tool(name: str, load: Callable[[], Any]) -> Tool:
    """The tab of a user's own panel."""
    title = name[:1].upper() + name[1:].replace("_", " ")
    return Tool(title, "Your probe", load, about="yours")
