"""The head word browser: which words each attention head relates, of one model or two."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from interp_widgets.analysis.head_words import HeadComparison
from interp_widgets.models import Model

from ..base.saved_result import opened_pair
from ..base.word_source import WordStack
from .comparison import VerbComparison
from .heads import HeadWords
from .word_pairs import SavedHeads, only_read


class HeadWordBrowser(WordStack):
    """The word pairs that each attention head relates, read from the weights: grid, pairs, dimensions, word search.

    The grid shows every head, coloured by a statistic; a click lists the head's word pairs, a click on a pair the
    dimensions behind it. A searched word is marked in every head that keeps a pair with it. With two models: A, B, the
    difference, the pairs that a head gained and lost, and a tab that compares layer groups and verbs.

    ``HeadWordBrowser(model)``, ``(base, tuned)``, ``(pair)`` or, to share layer and head with other widgets,
    ``(workbench)``. A saved :class:`HeadWordResult`, or its path, can take the place of a model; then nothing is
    computed. Every trait of its panels is a keyword too. `run()` computes and returns the
    :class:`HeadWordResult` (a pair for two models), which `result` keeps.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1, Figure 2, Table 3.

    Example:
        >>> panel = HeadWordBrowser(model, layer=2, head=0)
        >>> panel.run().find("Paris").nearest[-1][:5]
        (3, 4, 7, 'Paris', 'London')
        >>> panel.close()
    """

    title = "Head words"
    panels: ClassVar = {"heads": HeadWords, "comparison": VerbComparison}

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        model, tuned = opened_pair(model, tuned, SavedHeads)
        paths = {name: os.fspath(value) for name, value in options.items() if isinstance(value, os.PathLike)}
        super().__init__(model, tuned, **{**options, **paths})

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return only_read(self.models, keywords) | super().defaults(keywords)

    @property
    def comparison(self) -> HeadComparison | None:
        """The comparison of the two results on the screen; None while there is none."""
        comparison: HeadComparison | None = self.current.comparison
        return comparison
