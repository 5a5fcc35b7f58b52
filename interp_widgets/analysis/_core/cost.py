"""Cost of a computation before it runs: floating-point operations and peak memory."""

from __future__ import annotations

from dataclasses import dataclass

from interp_widgets.models import Model


@dataclass(frozen=True)
class Cost:
    """Estimated cost of a run."""

    flops: float
    """Floating-point operations."""
    bytes: float
    """Bytes at the peak, beyond the model, with the default chunk size."""


def block_parameters(model: Model) -> float:
    """Weights in the matrices of all layers, embeddings left out."""
    heads = 2 * model.n_heads + 2 * model.n_kv_heads
    attention = model.n_layers * model.d_model * heads * model.d_head
    mlps = 2 * model.n_layers * model.d_model * model.d_mlp  # 3 for gated ones, seen by the parameter count
    table = model.d_vocab * model.d_model
    rest = int(model.parameter_count) - attention
    tables = 2 if rest - 2 * table >= 0.9 * mlps else 1  # output and input embedding may be one
    return float(attention + max(rest - tables * table, mlps))


def flops_per_token(model: Model) -> float:
    """Operations of one token through all layers, without attention over positions and without the unembedding."""
    return 2.0 * block_parameters(model)


def pass_flops(model: Model, tokens: float, length: float) -> float:
    """Operations of ``tokens`` tokens through all layers, in sequences of a length: with attention over earlier
    positions, without the unembedding."""
    mixing = 4.0 * model.n_layers * model.n_heads * model.d_head
    return float(tokens * (flops_per_token(model) + mixing * length / 2))


def unembedding_flops(model: Model) -> float:
    """Operations of all logits of one position."""
    return 2.0 * model.d_model * model.d_vocab


def chunk_bytes(model: Model, most: float, length: int) -> float:
    """Bytes of a chunk of the usual size (1e10 operations), with at most ``most`` sequences of a length."""
    rows = max(1.0, min(most, 1e10 / flops_per_token(model) / max(length, 1)))
    return float(rows * row_bytes(model, length, length))


def row_bytes(model: Model, tokens: int, total: int) -> float:
    """Bytes per additional sequence in a batch at the widest point of a layer."""
    widths = 6 * model.d_model + 3 * model.d_mlp + 4 * (model.n_heads + 2 * model.n_kv_heads) * model.d_head
    numbers = tokens * widths + 3 * model.n_heads * tokens * total + 2 * total * model.d_model
    return 1.2 * float(numbers * model.dtype.itemsize)
