"""The FFN concept browser: what MLPs write, as words; their neurons on a prompt; and how tuning rotated them."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from interp_widgets.models import Model

from ..base.saved_result import opened_pair
from ..base.word_source import WordStack, vocabulary_of
from .comparison import ConceptChange
from .components import ComponentPanel, SavedConcepts
from .concepts import PrincipalComponents
from .neurons import LayerNeurons


class FFNConceptBrowser(WordStack):
    """What a model's MLPs write: the main directions of their output weights as words, single neurons, and two models.

    *Concepts*: per layer the variance that its first components explain, and a table of components with the words
    along them; description, task scenarios and linguistic level are written into the table by the user, by rules, or
    by a language model at an endpoint, and every change of these notes can be undone. *Neurons*: activation and effect
    on a token's logit of a layer's neurons on a prompt, and the tokens that each one promotes. *Comparison* (two
    models): how far tuning rotated the components, and how scenarios and levels changed.

    ``FFNConceptBrowser(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, layer and neuron with other
    widgets, ``(workbench)``. A saved :class:`FFNConceptResult`, or its path, can take the place of a model; then
    nothing is computed, and there are no neurons. Every trait of its panels is a keyword too. `run()` computes
    the active tab and returns its :class:`FFNConceptResult` or reading of the neurons (a pair for
    two models), which `result` keeps.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendices D and E;
    Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.

    Example:
        >>> panel = FFNConceptBrowser(model, rank=20, layer=5)
        >>> panel.run().words(5, 6)[:4]
        ('sad', 'lonely', 'tired', 'lost')
        >>> panel.close()
    """

    title = "FFN concepts"
    one_status: ClassVar[bool] = True  # annotation continues while another tab is active
    panels: ClassVar = {"concepts": PrincipalComponents, "neurons": LayerNeurons, "comparison": ConceptChange}

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        model, tuned = opened_pair(model, tuned, SavedConcepts)
        paths = {name: os.fspath(value) for name, value in options.items() if isinstance(value, os.PathLike)}
        super().__init__(model, tuned, **{**options, **paths})

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        # the last layer is the easiest to read as words
        last = {} if "layer" in keywords else {"layer": min(model.n_layers for model in self.models) - 1}
        return super().defaults(keywords) | last | vocabulary_of(self.models, keywords)

    @property
    def asks_words(self) -> bool:
        """Not for neurons, nor for saved results, which contain theirs."""
        return super().asks_words and self.tab != "neurons"

    def build(self) -> None:
        super().build()
        self.inputs.children = [*self.controls.rows("layer"), *self.inputs.children]

    @property
    def annotations(self) -> Any:
        """The notes about the components: a :class:`ConceptAnnotations`, or a pair of them with two models."""
        panels = [panel for panel in (self.current, *self._opened.values()) if isinstance(panel, ComponentPanel)]
        panel = next((panel for panel in panels if panel.results), self["concepts"])
        notes = tuple(panel.annotations_of(letter) for letter, _ in zip("AB", self.models, strict=False))
        return notes[0] if len(notes) == 1 else notes
