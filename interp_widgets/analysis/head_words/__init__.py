"""Head words: the word pairs that attention heads relate, and what tuning changed in them."""

from __future__ import annotations

from .compare import HeadComparison, compare_heads
from .cost import head_words_cost
from .find import head_word_pairs
from .result import HeadWordResult, WordPair
from .tables import verb_table

__all__ = [
    "HeadComparison",
    "HeadWordResult",
    "WordPair",
    "compare_heads",
    "head_word_pairs",
    "head_words_cost",
    "verb_table",
]
