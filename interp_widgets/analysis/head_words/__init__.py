"""Head words: the word pairs that attention heads relate, and what tuning changed in them."""

from __future__ import annotations

from .cost import head_words_cost
from .head_comparison import HeadComparison, compare_heads
from .head_word_result import HeadWordResult, WordPair
from .tables import verb_table
from .word_pairs import head_word_pairs

__all__ = [
    "HeadComparison",
    "HeadWordResult",
    "WordPair",
    "compare_heads",
    "head_word_pairs",
    "head_words_cost",
    "verb_table",
]
