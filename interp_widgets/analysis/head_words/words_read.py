"""`words_read`: the words of a list whose tokens a model has read, so that its training has given them a meaning."""

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
    """The words of a list, in its order, that a model has read as they are looked up here: written after a space.

    A word stays if every token that it is written with occurs ``min_count`` times or more in the text that the model
    was trained on. A token that never occurs has an embedding that no text has shaped; such tokens lie together, far
    from all others, and come first in many heads. A word that only begins texts is one: there it follows no space.

    Args:
        model: what `load_model` returns, with a tokenizer.
        words: a word list, the most frequent first; default: the demo's.
        texts: what the model was trained on, or a sample of it; its tokens are counted. Not needed for ``demo-base``
            and ``demo-tuned``, whose counts ship with them.
        min_count: least occurrences of each token of a word.
        one_token: keep words of a single token, whose embedding is not the mean of several. Without ``texts`` that is
            the only criterion, which every model has; it says nothing of what the model has read.
        check: called between texts; raises to cancel.

    Raises:
        ValueError: an empty or doubled word, no words left, a model of which nobody knows what it has read.

    Source of the effect: Fishing for Magikarp (Land and Bartolo 2024), sections 2 and 3.

    Example:
        >>> words = words_read(model)
        >>> sorted(set(demo_word_vectors().words) - set(words))[:3]
        ['Friends', 'Here', 'I']
    """
    check_range("min_count", min_count, 1)
    listed = word_list(words)
    ids = word_ids(model, listed)
    kept = np.array([bool(own) and (len(own) == 1 or not one_token) for own in ids])
    if texts is not None or not one_token:
        counts = _counts(model, texts, check)
        kept &= [min(counts[own], default=0) >= min_count for own in ids]
    if not kept.any():
        raise ValueError(f"of the {len(listed)} words none is left for {model.name}: give other words or more texts")
    return tuple(word for word, keep in zip(listed, kept, strict=True) if keep)


def knows_what_it_read(model: object) -> bool:
    """Whether the counts of a model's tokens ship with it."""
    return demo_token_counts(getattr(model, "source", None)) is not None


def _counts(model: Model, texts: Sequence[str] | None, check: Callable[[], None] | None) -> Ints:
    """(d_vocab,) how often the model has read each token; ValueError where that is not known."""
    if texts is None:
        shipped = demo_token_counts(model.source)
        if shipped is None:
            raise ValueError(
                f"which words {model.name} has read is not known: give texts= with a sample of what it was trained on, "
                "or one_token=True for the words of one token"
            )
        return shipped
    counts = np.zeros(model.d_vocab, dtype=np.int64)
    for start in range(0, len(texts), 1000):
        if check is not None:
            check()
        ids = [token for text in model.token_lists(list(texts[start : start + 1000])) for token in text]
        counts += np.bincount(ids, minlength=len(counts)) if ids else 0
    return counts
