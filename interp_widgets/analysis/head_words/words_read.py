"""`words_read`: the words whose tokens occur in a model's training text, so that their embeddings are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from interp_widgets.analysis._core.arrays import Ints
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.word_embeddings import Words, word_ids, word_list
from interp_widgets.arguments import checked
from interp_widgets.data.token_counts import demo_token_counts
from interp_widgets.models import Model


@checked
def words_read(
    model: Model,
    words: Words = None,
    *,
    texts: Sequence[str] | None = None,
    min_count: int = 1,
    one_token: bool = False,
    check: Callable[[], None] | None = None,
) -> tuple[str, ...]:
    """The words of a list, in its order, that occur in a model's training text, each with a leading space.

    A word is kept if each of its tokens occurs ``min_count`` times or more in the training text. Tokens that never
    occur have untrained embeddings, which lie close together and far from all others, and would be the top words of
    many heads. Words that occur only at the beginning of texts, without a leading space, are left out too.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: a word list, the most frequent first; default: the demo's.
        texts: the training text or a sample of it, in which tokens are counted. Not needed for ``demo-base`` and
            ``demo-tuned``, whose counts ship with them.
        min_count: minimum number of occurrences of each token of a word.
        one_token: keep only words of a single token, whose embedding is not a mean. Without ``texts`` this is the only
            criterion; it works for every model but does not tell which words occur in the training text.
        check: called between texts; raises to cancel.

    Raises:
        ValueError: an empty or repeated word, no words left, or a model whose token counts are not known.

    Source of the effect: Fishing for Magikarp (Land and Bartolo 2024), sections 2 and 3.

    Example:
        >>> words = words_read(model)
        >>> sorted(set(demo_word_vectors().words) - set(words))[:3]
        ['Friends', 'Here', 'I']
    """
    check_range("min_count", min_count, 1)
    listed = word_list(words)
    ids = word_ids(model, listed)
    kept = np.array([bool(tokens) and (len(tokens) == 1 or not one_token) for tokens in ids])
    if texts is not None or not one_token:
        counts = _counts(model, texts, check)
        kept &= [min(counts[tokens], default=0) >= min_count for tokens in ids]
    if not kept.any():
        raise ValueError(f"none of the {len(listed)} words is left for {model.name}: give other words or more texts")
    return tuple(word for word, keep in zip(listed, kept, strict=True) if keep)


def has_token_counts(model: object) -> bool:
    """Whether a model's token counts ship with the package."""
    return demo_token_counts(getattr(model, "source", None)) is not None


def _counts(model: Model, texts: Sequence[str] | None, check: Callable[[], None] | None) -> Ints:
    """(d_vocab,) count of each token in the training text; ValueError where it is not known."""
    if texts is None:
        shipped = demo_token_counts(model.source)
        if shipped is None:
            raise ValueError(
                f"the token counts of {model.name}'s training text are not known: give texts= with a sample of it, or "
                "one_token=True for the words of one token"
            )
        return shipped
    counts = np.zeros(model.d_vocab, dtype=np.int64)
    for start in range(0, len(texts), 1000):
        if check is not None:
            check()
        ids = [token for text in model.token_lists(list(texts[start : start + 1000])) for token in text]
        counts += np.bincount(ids, minlength=len(counts)) if ids else 0
    return counts
