"""`decompose_tokens`: what each token of a prompt brought to one position's residual stream, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import get_args

import torch

from interp_widgets.analysis.chunks import ChunkLog, run_chunks
from interp_widgets.analysis.prompts import read_prompt, single_token
from interp_widgets.analysis.result import provenance
from interp_widgets.analysis.token_decomposition.adding_up import check_error, check_finite
from interp_widgets.analysis.token_decomposition.lens import Lens, PartLens
from interp_widgets.analysis.token_decomposition.parts import Biases, Parts
from interp_widgets.analysis.token_decomposition.result import TokenDecompositionResult
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind
from interp_widgets.models.engine.linearised import ActivationSlope, linearise

_DELIVERIES = 4
"""Partial results at most."""
_MEMORY_SHARE = 0.025
"""Of the tensor of all parts at all positions and layers: what one chunk may take."""
_FEWEST_ROWS = 256
"""Below this, matrix products lose speed."""
_MOST_ROWS = {"cpu": 768, "accelerator": 16384}


@checked
def decompose_tokens(
    model: Model,
    prompt: str | Sequence[int],
    *,
    position: int = -1,
    biases: Biases = "separate",
    slope: ActivationSlope = "secant",
    lens: Lens | None = "own",
    target: str | int | None = None,
    tolerance: float | None = None,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[TokenDecompositionResult], None] | None = None,
) -> TokenDecompositionResult:
    """What each token of the prompt brought to the residual stream of one position, at every layer.

    Attention is linear given its patterns; norms keep their scales and MLPs one slope per neuron, act(z)/z (its limit
    at z = 0), so that the parts add up to the model's own residual stream exactly. For a gated MLP the gate keeps its
    value and the linear branch carries the parts. A token's part starts as its embedding with its position's.

    The sums are in float32 or wider. A model in half precision rounds its own stream at every layer, and it is this
    rounded stream that the parts are held against: errors of 1e-2 are usual there.

    Of a mixture of depths the lens reads every part as the last route reads.

    Args:
        model: what `load_model` returns.
        prompt: text, or token ids (then nothing is added).
        position: of the stream, counted from 0 without a BOS, or from the end.
        biases: ``"separate"``, or ``"spread"`` over the parts in proportion to their norms.
        slope: ``"secant"`` is the method; ``"step"`` (1 where z > 0) does not add up, as a control.
        lens: by what the final norm divides a part that is read alone. ``"own"``, the paper's reading, by the part's
            own scale, as if it were the whole stream: what it says, however small it is. ``"frozen"``, by that of the
            whole stream: a small part says little, and logits of parts add up; the tokens that an answer comes from
            stand out more, but in a large vocabulary few parts alone reach a high probability. None for no lens.
        target: a token (text of one token, or id) whose logit and probability are followed in every part.
        tolerance: largest relative error of the sum at any layer; default 1e-4 in float32, 1e-9 in float64, 0.05 in
            half precision.
        prepend_bos: overrides the model's BOS policy for texts. A BOS is fed, is on no axis, and its part is in `bias`.
        batch_size: source tokens per chunk; by default what keeps a chunk well below the parts of all positions.
        progress: called with (done, total) sources after every chunk.
        check: called before every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet; never with ``"spread"``,
            which needs all parts.

    Raises:
        ValueError: an unknown option, a bad prompt, position or target, a model whose layers show no patterns or
            scales, or one whose parts do not add up.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Eqs 4.1 to 4.3, and appendix B.3.

    Example:
        >>> result = decompose_tokens(model, "The Eiffel Tower is located in the city of")
        >>> result.parts.shape, bool(result.error.max() < 1e-4)
        ((7, 9, 192), True)
    """
    _check_options(biases, lens)
    given = read_prompt(model, prompt, prepend_bos=prepend_bos)
    last = given.offset + given.position(position)
    aim = None if target is None else single_token(model, target)
    frozen = linearise(model, given.ids, last, slope=slope)
    check_finite(model, frozen)
    reading = PartLens.of(model, frozen.residual)
    parts = Parts(given, frozen, reading, last, biases, lens, aim)
    told = {"position": last - given.offset, "biases": biases, "slope": slope, "lens": lens, "bos": given.offset == 1}

    every, delivered = math.ceil((last + 1) / (_DELIVERIES + 1)), 0

    def after(done: int) -> None:
        nonlocal delivered
        if progress is not None:
            progress(done, last + 1)
        if on_partial is not None and biases == "separate" and done < last + 1 and done // every > delivered:
            delivered = done // every
            on_partial(parts.result(provenance(model.provenance(), **told), partial=True))

    log = ChunkLog()
    with torch.no_grad():
        run_chunks(
            last + 1, lambda begin: batch_size or sources_at_once(model, last + 1, begin), parts.propagate,
            what=f"token of {last + 1}", log=log, check=check, after=after,
        )  # fmt: skip
        parts.finish()
    error = parts.error()
    worst = int(error.argmax())
    check_error(
        model, f"the parts of {model.name} do not add up at layer {worst}", float(error[worst]), slope, tolerance
    )
    return parts.result(provenance(model.provenance(), **told, largest_chunk=log.largest, chunk_halvings=log.halvings))


def _check_options(biases: str, lens: str | None) -> None:
    for name, value, allowed in (
        ("biases", biases, get_args(Biases)),
        ("lens", lens, (*get_args(Lens), None)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(repr(option) for option in allowed)}, got {value!r}")


def chunk_rows(model: Model, n: int) -> int:
    """(source, position) rows that go through the layers together, of n tokens."""
    whole = (model.n_layers + 1) * n * n * model.d_model
    most = _MOST_ROWS[device_kind(model.device)]
    return max(_FEWEST_ROWS, min(most, int(_MEMORY_SHARE * whole / row_width(model))))


def row_width(model: Model) -> int:
    """Numbers that one row holds at the widest point of a layer."""
    return int(max(5 * model.d_model, 4 * model.d_model + (model.d_mlp or 0)))


def sources_at_once(model: Model, n: int, begin: int) -> int:
    """Sources from ``begin`` on whose rows, each at its own position and those behind it, make one chunk."""
    rows, count = chunk_rows(model, n) - (n if begin == 0 else 0), 0
    while begin + count < n and (count == 0 or rows >= n - begin - count):
        rows -= n - begin - count
        count += 1
    return count
