"""The attention explorer: where every head looks, and which heads do something known, of one model or two."""

from __future__ import annotations

from typing import ClassVar

from ..base.stack import PredictionStack
from .compared import HeadsCompared
from .in_texts import HeadInTexts
from .known_heads import KnownHeads
from .needed import HeadNeeded
from .patterns import HeadPatterns
from .reasons import HeadReasons
from .words import HeadWordsInTexts
from .writes import HeadWritesWords


class AttentionExplorer(PredictionStack):
    """Where the attention heads of a model look on a prompt, and which heads are of a known kind.

    *Patterns*: every head as a thumbnail, layer × head or sorted by a score, its direct attribution or the drop without
    it; a click shows the head's pattern, query ×
    key, with the BOS, and a click on a token shades the tokens by what it attends to, with arcs to the strongest. It
    opens on the head that stands out on the prompt, and says why. The first token, often an attention sink, can be left
    out, and attention can be weighted by the norm of the value moved. *Find*: scores of all heads as induction,
    previous-token, duplicate-token and first-token heads, with intervals and controls. *Compare*: every head as a dot
    by two of its scores, its direct attribution (heads that write the target no more than random tokens are grey) and
    the drop without it, with their rank correlation. *Why here?*: one
    attention score of the selected head as a sum over pairs of source tokens. *Writes*: the tokens whose logits
    the head raises and lowers most, as a direct effect. *Words*: the word pairs of the head's weights beside the
    attention that these words pay in the prompt and many texts, with an AUC. *Texts*: where in many texts the head
    attends most, and some of every tenth of strength; a click opens the text. *Needed?*: the effect of removing the
    head beside those of other heads, with p.

    ``AttentionExplorer(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt, layer and head with other widgets,
    ``(workbench)``. Every trait of its panels is a keyword too. `run()` computes the active tab and returns its
    :class:`AttentionPatterns`, :class:`HeadScores`, :class:`HeadMeasures`, :class:`AttentionReasons`,
    :class:`HeadWrites`, :class:`AttentionInTexts` or :class:`AblationNullResult` (a pair for two models), which
    `result` keeps; for *Words* the :class:`HeadWordResult` and the :class:`WeightsAgainstText`, as its ``pairs`` and
    ``found``.

    Source: A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), *attention heads*; In-context
    Learning and Induction Heads (Olsson et al. 2022); Attention is Not Only a Weight (Kobayashi et al. 2020).

    Example:
        >>> panel = AttentionExplorer(model, prompt="The Eiffel Tower is in the city of", layer=3, head=0)
        >>> panel.run().pattern(3, 0).shape
        (9, 9)
        >>> panel.close()
    """

    title = "Attention"
    panels: ClassVar = {
        "patterns": HeadPatterns,
        "find": KnownHeads,
        "compare": HeadsCompared,
        "why": HeadReasons,
        "writes": HeadWritesWords,
        "words": HeadWordsInTexts,
        "texts": HeadInTexts,
        "needed": HeadNeeded,
    }
