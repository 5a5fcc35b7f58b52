"""What a search for head word pairs will take, before it runs."""

from __future__ import annotations

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.models import Model

_TILES = 64e6
"""Bytes of activations and cosines held at once."""


def head_words_cost(model: Model, words: int, *, width: int, top: int = 100, keep: int = 100) -> Cost:
    """Operations and peak bytes of `head_word_pairs` on so many words.

    Args:
        model: a `Model`.
        words: of the list.
        width: numbers per word vector.
        top: words per dimension and role.
        keep: pairs kept per head and per dimension.

    Example:
        >>> round(head_words_cost(model, 13_000, width=300).flops / 1e9, 1)
        15.5
    """
    rows, dims = (model.n_heads + model.n_kv_heads) * model.d_head, model.n_heads * model.d_head
    best = min(top, words)
    flops = 2.0 * model.n_layers * (rows * words * model.d_model + dims * best**2 * width)
    tables = 4.0 * words * (model.d_model + width)
    kept = 12.0 * model.n_layers * dims * keep
    return Cost(flops=flops, bytes=tables + kept + _TILES)
