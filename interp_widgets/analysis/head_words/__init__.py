"""Head words: the word pairs that attention heads relate, and how tuning changed them."""

from interp_widgets.analysis._core.word_embeddings import word_table

from .chance import HeadWordChance, head_word_chance
from .head_comparison import HeadComparison, compare_heads, verb_table
from .head_word_result import HeadWordResult, WordPair
from .word_pairs import head_word_pairs, head_words_cost
from .words_read import has_token_counts, words_read
