"""What a token decomposition will take, before it runs."""

from __future__ import annotations

from typing import Any

from interp_widgets.analysis.cost import Cost, block_parameters
from interp_widgets.analysis.token_decomposition.decompose import chunk_rows, row_width


def decomposition_cost(model: Any, n_tokens: int, *, lens: bool = True) -> Cost:
    """Operations and peak bytes of `decompose_tokens` at the last of so many tokens.

    Args:
        model: a `Model`.
        n_tokens: tokens fed.
        lens: whether each part is read through the vocabulary.

    Example:
        >>> decomposition_cost(model, 40).flops                   # doctest: +SKIP
        1.3e+10
    """
    n, layers, item = n_tokens, model.n_layers, max(model.dtype.itemsize, 4)
    width, hidden = model.d_model, model.d_mlp or 0
    pairs = n * (n + 1) / 2 + n  # a source with every position behind it, and the biases
    reads = 2.0 * layers * (model.n_heads + model.n_kv_heads) * model.d_head * width  # queries and keys are frozen
    through = 2.0 * block_parameters(model) - reads
    mixing = 2.0 * layers * n * model.n_heads * model.d_head
    # the last block runs at one position only
    flops = pairs * (through + mixing) * (layers - 1) / layers + 2.0 * n * block_parameters(model)
    flops += lens * 2.0 * (layers + 1) * n * width * model.d_vocab
    kept = layers * (model.n_heads * n * n + n * hidden) + 2 * (layers + 1) * n * width
    return Cost(flops=float(flops), bytes=float(item * (kept + max(chunk_rows(model, n), 2 * n) * row_width(model))))
