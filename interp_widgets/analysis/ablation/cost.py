"""What an ablation map will take, before it runs: floating-point operations and peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from interp_widgets.analysis._core.cost import Cost, flops_per_token, row_bytes
from interp_widgets.models import Model
from interp_widgets.models.engine import in_blocks


def ablation_cost(
    model: Model,
    n_tokens: int,
    kinds: Sequence[str] = ("attn", "mlp", "both", "attn_to_mlp"),
    *,
    what: Literal["modules", "heads", "neurons"] = "modules",
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> Cost:
    """Operations and peak bytes of `ablate_modules`, `ablate_heads` or `ablate_neurons` for a prompt of n_tokens.

    Args:
        model: a `Model`.
        n_tokens: fed, with a BOS.
        kinds: of modules.
        what: which of the three.
        layers: all by default; for neurons the one layer, by default the first, the dearest.
        positions: all by default; for heads and neurons the one position, by default all at once and the last.

    Example:
        >>> round(ablation_cost(model, 32).flops / 1e9, 1)
        20.7
    """
    chosen = list(range(model.n_layers)) if layers is None else [layer % model.n_layers for layer in layers]
    match what:
        case "modules":
            places = range(n_tokens) if positions is None else positions
            cells = [(layer, place % n_tokens) for layer in chosen for place in places for _ in kinds]
        case "heads":
            place = 0 if positions is None else positions[0] % n_tokens
            cells = [(layer, place) for layer in chosen for _ in range(model.n_heads)]
        case "neurons":
            place = n_tokens - 1 if positions is None else positions[0] % n_tokens
            cells = [(0 if layers is None else chosen[0], place)] * model.d_mlp
        case _:
            raise ValueError(f"what must be one of 'modules', 'heads', 'neurons', got {what!r}")
    per_layer = flops_per_token(model) / model.n_layers
    mixing = 4.0 * model.n_heads * model.d_head
    short = in_blocks(model)
    unembedding = 2.0 * model.d_model * (2 if short else model.d_vocab)
    tokens = sum(_tokens(model, n_tokens, *cell, short) for cell in cells)
    whole = n_tokens * flops_per_token(model)
    flops = whole + tokens * (per_layer + mixing * n_tokens) + len(cells) * unembedding
    rows = max(1.0, 1024 / n_tokens)
    kept = n_tokens * model.n_layers * (5 * model.d_model + 3 * model.n_heads * model.d_head) * model.dtype.itemsize
    logits = 8.0 * min(2**22, len(cells) * model.d_vocab)
    return Cost(flops=float(flops), bytes=float(rows * row_bytes(model, n_tokens, n_tokens) + kept + logits))


def _tokens(model: Model, n_tokens: int, layer: int, place: int, short: bool) -> float:
    """Positions times layers that one cell computes."""
    if not short:
        return float(n_tokens * (model.n_layers if model.backend == "bridge" else model.n_layers - layer))
    behind: int = model.n_layers - 1 - layer
    # one row in its own layer; all later rows behind, of the last layer their keys and values
    return 1.0 + (n_tokens - place) * max(0.0, behind - 0.75)
