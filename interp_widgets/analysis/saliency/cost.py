"""What an attribution will take, before it runs: floating-point operations and peak memory."""

from __future__ import annotations

from interp_widgets.analysis._core.cost import Cost, flops_per_token, row_bytes
from interp_widgets.analysis.saliency.saliency_result import Method
from interp_widgets.models import Model


def saliency_cost(model: Model, n_prompt: int, n_response: int, method: Method | str, *, steps: int = 32) -> Cost:
    """Operations and peak bytes of `prompt_saliency` for so many prompt and response tokens.

    Args:
        model: a `Model`.
        n_prompt, n_response: numbers of tokens.
        method: a `Method`.
        steps: of integrated gradients.

    Example:
        >>> round(saliency_cost(model, 60, 40, "exact").flops / 1e9, 1)
        25.5
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
