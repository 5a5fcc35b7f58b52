"""What an attribution will take, before it runs: floating-point operations and peak memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from interp_widgets.analysis.saliency.result import Method


@dataclass(frozen=True)
class Cost:
    """What a run takes."""

    flops: float
    """Floating-point operations."""
    bytes: float
    """Bytes at the peak, beyond the model, if no smaller chunk is asked for."""


def block_parameters(model: Any) -> float:
    """Weights in the matrices of all layers, embeddings left out."""
    heads = 2 * model.n_heads + 2 * model.n_kv_heads
    attention = model.n_layers * model.d_model * heads * model.d_head
    mlps = 2 * model.n_layers * model.d_model * model.d_mlp  # 3 for gated ones, which the count of parameters tells
    table = model.d_vocab * model.d_model
    rest = int(model.parameter_count) - attention
    tables = 2 if rest - 2 * table >= 0.9 * mlps else 1  # output and input embedding may be one
    return float(attention + max(rest - tables * table, mlps))


def flops_per_token(model: Any) -> float:
    """Operations of one token through all layers, without attention over positions and without the unembedding."""
    return 2.0 * block_parameters(model)


def row_bytes(model: Any, tokens: int, total: int) -> float:
    """Bytes that one more sequence in a batch takes at the widest point of a layer."""
    widths = 6 * model.d_model + 3 * model.d_mlp + 4 * (model.n_heads + 2 * model.n_kv_heads) * model.d_head
    numbers = tokens * widths + 3 * model.n_heads * tokens * total + 2 * total * model.d_model
    return 1.2 * float(numbers * model.dtype.itemsize)


def saliency_cost(model: Any, n_prompt: int, n_response: int, method: Method | str, *, steps: int = 32) -> Cost:
    """Operations and peak bytes of `prompt_saliency` for so many prompt and response tokens.

    Args:
        model: a `Model`.
        n_prompt, n_response: numbers of tokens.
        method: a `Method`.
        steps: of integrated gradients.

    Example:
        >>> saliency_cost(model, 60, 40, "exact").flops           # doctest: +SKIP
        2.1e+10
    """
    fed = n_prompt + max(n_response, 1) - 1
    unembedding = 2.0 * model.d_model * model.d_vocab
    mixing = 4.0 * model.n_layers * model.n_heads * model.d_head

    def through(tokens: float, length: float) -> float:
        return float(tokens * (flops_per_token(model) + mixing * length / 2))

    one = through(fed, fed) + n_response * unembedding
    match method:
        case "random":
            flops = one
        case "exact":
            flops = one + n_prompt * (through(fed - n_prompt / 2, fed) + n_response * unembedding)
        case _:
            # forward mode: every prompt token's change at the positions after it; reverse: every response token's
            # gradient at the positions before it; attention has twice the products of a plain pass
            rows = min(n_prompt * (fed - n_prompt / 2), n_response * (n_prompt + n_response / 2))
            gradient = 2 * one + n_response * unembedding + through(rows, 2 * fed)
            flops = gradient * (steps if method == "integrated_gradients" else 1)
    item = max(model.dtype.itemsize, 4)
    logits = item * min(2**23, n_response * model.d_vocab) * 3
    rows = max(1.0, min(n_prompt, 1e10 / flops_per_token(model) / max(fed, 1)))
    kept = fed * model.n_layers * (2 * model.d_model + 2 * model.d_mlp + 4 * model.n_heads * model.d_head) * item
    return Cost(flops=float(flops), bytes=float(logits + rows * row_bytes(model, fed, fed) + kept))
