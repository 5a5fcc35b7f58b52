"""What a token decomposition will take, before it runs."""

from __future__ import annotations

from interp_widgets.analysis._core.cost import Cost, block_parameters
from interp_widgets.analysis.token_decomposition.decomposition import chunk_rows, row_width
from interp_widgets.models import Model


def decomposition_cost(model: Model, n_tokens: int, *, lens: bool = True) -> Cost:
    """Operations and peak bytes of `decompose_tokens` at the last of so many tokens.

    Args:
        model: a `Model`.
        n_tokens: tokens fed.
        lens: whether each part is read through the vocabulary.

    Example:
        >>> round(decomposition_cost(model, 40).flops / 1e9, 1)
        2.4
    """
    n, layers, width = float(n_tokens), model.n_layers, model.d_model
    item, hidden, heads = max(model.dtype.itemsize, 4), float(model.d_mlp or 0), model.n_heads * model.d_head
    pairs = n * (n + 1) / 2 + n  # a source with every position behind it, and the biases
    attention = 2.0 * width * (heads + model.n_kv_heads * model.d_head)  # queries and keys are frozen
    mlp = 2.0 * width * hidden  # each of its two products; a gate is frozen
    whole = max(layers - 3, 0) * (attention + 2 * mlp) + (layers > 2) * (attention + mlp) + (layers > 1) * mlp
    once = 2.0 * width * heads + (model.n_heads + 1) * mlp + 2 * (attention + 2 * mlp)  # in the first and last blocks
    mixing = 2.0 * heads * n**3 / 3 * max(layers - 2, 0)
    flops = pairs * whole + n * once + mixing + 2.0 * n * block_parameters(model)
    flops += lens * 2.0 * layers * n * width * model.d_vocab
    kept = layers * (model.n_heads * n * n + n * hidden) + 2 * (layers + 1) * n * width
    rows = max(chunk_rows(model, n_tokens), 2 * n_tokens)
    return Cost(flops=float(flops), bytes=float(item * (kept + rows * row_width(model))))
