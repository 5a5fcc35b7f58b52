"""One call per table of the paper: the verbs in the word pairs of heads, base against tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interp_widgets.analysis.head_words.head_comparison import compare_heads
from interp_widgets.arguments import checked

if TYPE_CHECKING:
    import pandas as pd


@checked
def verb_table(base: Any, tuned: Any, **options: Any) -> pd.DataFrame:
    """Table 3 of the paper in one call: the percentage of heads that gained word pairs with a verb, instruction verbs
    against general ones.

    Args:
        base: what `load_model` returns, or the `HeadWordResult` of such a model.
        tuned: the same for the other model, with the same words and options.
        options: of `compare_heads`, such as ``groups`` (4, as in the paper), and where models are given of
            `head_word_pairs`, such as ``words`` and ``vectors``.

    Returns:
        One row per layer group: mean and population standard deviation over the verbs of both kinds, their number,
        Welch's p-value (two-sided), the same after Holm's correction, and Cohen's d.

    Raises:
        ValueError: those of `compare_heads`.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.1, Table 3.

    Example:
        >>> verb_table(base, tuned)[["layers", "instruction_mean", "general_mean"]].round(1)
          layers  instruction_mean  general_mean
        0    0-1              62.5          44.4
        1      2              50.0          38.0
        2    3-4              50.0          50.7
        3      5              75.0          54.9
    """
    return compare_heads(base, tuned, **options).verb_table()
