"""`decompose_tokens`: the contribution of each token to one position's residual stream, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.checks import check_choice, check_finite
from interp_widgets.analysis._core.chunks import ChunkLog, run_chunks
from interp_widgets.analysis._core.cost import Cost, block_parameters
from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from interp_widgets.analysis._core.result import provenance
from interp_widgets.analysis._core.run import RunOptions, partial_is_due
from interp_widgets.analysis._core.tensors import as_array, to_numpy
from interp_widgets.analysis.token_decomposition.decomposition_result import TokenDecompositionResult
from interp_widgets.analysis.token_decomposition.part_lens import Lens, PartLens
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.capabilities import Capability
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.compare import TOLERANCE
from interp_widgets.models.devices import accumulation_dtype, device_kind
from interp_widgets.models.engine.linearised import ActivationSlope, LinearisedPass, linearise

Biases = Literal["separate", "spread"]
"""Where the model's biases go: a separate part, or onto the tokens' parts in proportion to their norms."""

_HALF = 0.05
"""Rounding errors of the stream stay below 0.01 at every layer; a missing part causes a larger error."""
_DELIVERIES = 4
"""Most partial results."""
_MEMORY_SHARE = 0.025
"""Memory of one chunk as a share of the tensor of all parts at all positions and layers."""
_FEWEST_ROWS = 256
"""Matrix products with fewer rows are inefficient."""
_MOST_ROWS = {"cpu": 768, "accelerator": 16384}


@checked
def decompose_tokens(
    model: Model,
    prompt: PromptInput,
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
    """The contribution of each token of the prompt to the residual stream of one position, at every layer.

    Also called a decomposition of the residual stream by input token.

    The model is linearised: attention patterns, norm scales and one activation slope per neuron, act(z)/z (its limit at
    z = 0), are held fixed, so that the parts add up exactly to the model's residual stream. In a gated MLP the gate is
    held fixed and the linear branch carries the parts. A token's part starts as its token and position embedding.

    The sums are in float32 or wider. A half-precision model rounds its stream at every layer, and the sum of the parts
    is compared with the rounded stream: errors of 1e-2 are usual there.

    For a mixture of depths, the lens decodes every part as the last route does.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        position: of the stream, counted from 0 without a BOS, or from the end.
        biases: ``"separate"``, or ``"spread"`` over the parts in proportion to their norms.
        slope: ``"secant"`` is the method; ``"step"`` (1 where z > 0) is a control, which does not add up.
        lens: the scale by which the final norm divides a single part. ``"own"``, as in the paper, is the part's own
            scale, as if it were the whole stream, so that its size does not matter. ``"frozen"`` is the scale of the
            whole stream: logits of parts add up, and the tokens that an answer comes from stand out more, but in a
            large vocabulary few single parts reach a high probability. None for no lens.
        target: a token (text of one token, or id) whose logit and probability are computed for every part.
        tolerance: largest relative error of the sum at any layer; default 1e-4 in float32, 1e-9 in float64, 0.05 in
            half precision; 1e-4 in a float64 model whose norms transformers computes in float32.
        prepend_bos: overrides the model's BOS policy for texts. The part of a BOS is in `bias` and on no axis.
        batch_size: source tokens per chunk; by default such that a chunk is far smaller than the parts of all
            positions.
        progress: called with (done, total) sources after every chunk.
        check: called before every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet; never with ``"spread"``,
            which needs all parts.

    Raises:
        ValueError: an unknown option, a bad prompt, position or target, a model that does not expose attention patterns
            or norm scales, or one whose parts do not add up.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Eqs 4.1 to 4.3, and appendix B.3.

    Example:
        >>> result = decompose_tokens(model, "The Eiffel Tower is located in the city of")
        >>> result.parts.shape, bool(result.error.max() < 1e-4)
        ((7, 9, 192), True)
    """
    check_model(model, "decompose_tokens")
    check_choice("biases", biases, Biases)
    check_choice("lens", lens, Lens, none=True)
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    last = tokens.offset + tokens.position(position)
    target_id = None if target is None else single_token(model, target)
    linearised = linearise(model, tokens.ids, last, slope=slope)
    check_stream(model, linearised)
    parts = _Parts(tokens, linearised, PartLens.of(model, linearised.residual), last, biases, lens, target_id)
    options = {
        "position": last - tokens.offset, "biases": biases, "slope": slope, "lens": lens, "bos": tokens.offset == 1,
    }  # fmt: skip
    origin, run, before = model.provenance(), RunOptions(progress), 0

    def after(done: int) -> None:
        nonlocal before
        run.report(done, last + 1)
        if on_partial is not None and biases == "separate" and partial_is_due(before, done, last + 1, _DELIVERIES):
            on_partial(parts.result(provenance(origin, **options), partial=True))
        before = done

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
    return parts.result(provenance(origin, **options, **log.facts()))


def chunk_rows(model: Model, n: int) -> int:
    """Number of (source, position) rows of n tokens that go through the layers together."""
    all_parts = (model.n_layers + 1) * n * n * model.d_model
    most = _MOST_ROWS[device_kind(model.device)]
    return max(_FEWEST_ROWS, min(most, int(_MEMORY_SHARE * all_parts / row_width(model))))


def row_width(model: Model) -> int:
    """Numbers that one row holds at the widest point of a layer."""
    return int(max(5 * model.d_model, 4 * model.d_model + (model.d_mlp or 0)))


def sources_at_once(model: Model, n: int, begin: int) -> int:
    """Number of sources from ``begin`` on in one chunk; a source has a row at its own and every later position."""
    rows, count = chunk_rows(model, n) - (n if begin == 0 else 0), 0
    while begin + count < n and (count == 0 or rows >= n - begin - count):
        rows -= n - begin - count
        count += 1
    return count


@dataclass
class _Parts:
    """The parts of one position's stream while they are computed, chunk of sources by chunk."""

    prompt: Prompt
    linearised: LinearisedPass
    lens: PartLens
    last: int
    biases: Biases
    kind: Lens | None
    target: int | None

    def __post_init__(self) -> None:
        layers, width = self.linearised.residual.shape
        start, sources = self.linearised.start, self.last + 1
        self.parts = start.new_full((layers, sources, width), math.nan)
        self.bias = start.new_full((layers, width), math.nan)
        self.top = start.new_full((layers, sources + 1), -1, dtype=torch.long)
        """Top token in the lens of every source and, last, of the biases and BOS."""
        self.probability = start.new_full((layers, sources + 1), math.nan, dtype=accumulation_dtype(start.device))
        self.target_probability = self.probability.clone()

    def propagate(self, start: int, stop: int) -> None:
        """Propagate the sources start..stop through all layers; the biases go with the first."""
        bias = start == 0
        rows = self.linearised.parts(start, stop, bias=bias)
        self.parts[:, start:stop] = rows[:, int(bias) :]
        if bias:
            self.bias[:] = rows[:, 0]
        if self.biases == "separate":
            self._read(start, stop)

    def _read(self, start: int, stop: int) -> None:
        """Apply the lens to the sources start..stop, and with the first to the biases and BOS."""
        self._apply_lens(slice(start, stop), self.parts[:, start:stop])
        if start == 0:
            self._apply_lens(slice(self.last + 1, None), self._bias_and_bos()[:, None])

    def _apply_lens(self, sources: slice, parts: Tensor) -> None:
        if self.kind is None:
            return
        self.top[:, sources], self.probability[:, sources], of_target = self.lens.top(parts, self.kind, self.target)
        if of_target is not None:
            self.target_probability[:, sources] = of_target

    def _bias_and_bos(self) -> Tensor:
        """(layers + 1, d_model) biases and BOS."""
        return self.bias + self.parts[:, 0] if self.prompt.offset else self.bias

    def finish(self) -> None:
        """With ``biases="spread"``, spread the biases and apply the lens to the resulting parts."""
        if self.biases == "separate":
            return
        norms = torch.linalg.vector_norm(self.parts, dim=-1, keepdim=True)
        self.parts += norms / norms.sum(1, keepdim=True) * self.bias[:, None]
        self.bias.zero_()
        self._read(0, self.last + 1)

    def error(self) -> Tensor:
        """(layers + 1,) relative error of the sum."""
        residual = self.linearised.residual
        missing = self.parts.sum(1) + self.bias - residual
        error: Tensor = missing.norm(dim=-1) / residual.norm(dim=-1)
        return error

    def result(self, facts: dict[str, Any], *, partial: bool = False) -> TokenDecompositionResult:
        prompt, offset, later = self.prompt, self.prompt.offset, len(self.prompt.ids) - 1 - self.last
        shown = slice(offset, self.last + 1)
        bias = self._bias_and_bos()
        fields: dict[str, Any] = {}
        if self.kind is not None:
            fields |= {"top_token": as_array(_padded(self.top[:, shown], later, -1))}
            fields |= {"probability": to_numpy(_padded(self.probability[:, shown], later, 0))}
            fields |= {"bias_top_token": as_array(self.top[:, -1])}
            fields |= {"bias_probability": to_numpy(self.probability[:, -1])}
            top_ids = np.unique(np.concatenate([fields["top_token"].ravel(), fields["bias_top_token"]]))
        else:
            top_ids = np.zeros(0, dtype=int)
        if self.target is not None:
            fields |= {"target": self.target, "target_token": prompt.model.token_strings([self.target])[0]}
            fields |= {"target_logit": to_numpy(_padded(self.lens.logit(self.parts[:, shown], self.target), later, 0))}
            share = self.lens.logit(bias[:, None], self.target)[:, 0] + self.lens.constant(self.target)
            fields |= {"target_bias": to_numpy(share)}
            if self.kind is not None:
                fields |= {"target_probability": to_numpy(_padded(self.target_probability[:, shown], later, 0))}
        ids = sorted(
            {*top_ids[top_ids >= 0].tolist(), *prompt.shown_ids, *([self.target] if self.target is not None else [])}
        )
        texts = prompt.model.single_token_strings(ids)
        return TokenDecompositionResult(
            parts=to_numpy(_padded(self.parts[:, shown], later, 0)),
            bias=to_numpy(bias),
            error=to_numpy(self.error()),
            **prompt.fields(),
            position=self.last - offset,
            residual=to_numpy(self.linearised.residual),
            bos=to_numpy(self.parts[:, 0]) if offset else None,
            biases=self.biases,
            lens=self.kind,
            names={str(token): text for token, text in zip(ids, texts, strict=True)},
            partial=partial,
            provenance=facts,
            **fields,
        )


def _padded(values: Tensor, later: int, fill: float) -> Tensor:
    """A copy with entries for the tokens after the position, which contribute nothing."""
    more = values.new_full((values.shape[0], later, *values.shape[2:]), fill)
    return torch.cat([values, more], dim=1)


def check_model(model: Model, caller: str) -> None:
    """Raise ValueError where a model lacks what the linearisation needs: patterns, weights, norms and neurons."""
    has = model.capabilities
    needs: tuple[Capability, ...] = ("residual_stream", "attention_patterns", "head_weights", "input_norms")
    for needed in needs:
        has.require(needed, caller)
    if not has.attention_only:
        has.require("mlp_neurons", caller)
        has.require("neuron_inputs", caller)


def check_stream(model: Model, linearised: LinearisedPass) -> None:
    """Raise ValueError where the model's residual stream holds NaN or infinity."""
    check_finite(linearised.residual, lambda layer, _: f"the residual stream of {model.name} at layer {layer}")


def check_error(model: Model, claim: str, error: float, slope: str, tolerance: float | None) -> None:
    """Raise ValueError where a relative error exceeds the tolerance, by default that of the model's dtype."""
    limit = TOLERANCE.get(model.precision, _HALF) if tolerance is None else tolerance
    if error <= limit:
        return
    why = "" if slope == "secant" else f" (slope {slope!r} is a control that does not add up)"
    raise ValueError(
        f"{claim}: relative error {error:.1e}, allowed {limit:.0e}{why}: use a model of ordinary blocks "
        "without hooks that change what they write, a wider dtype, or a larger tolerance"
    )


def decomposition_cost(model: Model, n_tokens: int, *, lens: bool = True) -> Cost:
    """Operations and peak bytes of `decompose_tokens` at the last of so many tokens.

    Args:
        model: a `Model`.
        n_tokens: tokens that the model is fed.
        lens: whether the lens is applied to each part.

    Example:
        >>> round(decomposition_cost(model, 40).flops / 1e9, 1)
        2.4
    """
    n, layers, width = float(n_tokens), model.n_layers, model.d_model
    item, hidden, heads = max(model.dtype.itemsize, 4), float(model.d_mlp or 0), model.n_heads * model.d_head
    pairs = n * (n + 1) / 2 + n  # every source with its own and later positions, and the biases
    attention = 2.0 * width * (heads + model.n_kv_heads * model.d_head)  # queries and keys are held fixed
    mlp = 2.0 * width * hidden  # each of its two products; a gate is held fixed
    per_pair = max(layers - 3, 0) * (attention + 2 * mlp) + (layers > 2) * (attention + mlp) + (layers > 1) * mlp
    once = 2.0 * width * heads + (model.n_heads + 1) * mlp + 2 * (attention + 2 * mlp)  # in the first and last blocks
    mixing = 2.0 * heads * n**3 / 3 * max(layers - 2, 0)
    flops = pairs * per_pair + n * once + mixing + 2.0 * n * block_parameters(model)
    flops += lens * 2.0 * layers * n * width * model.d_vocab
    stored = layers * (model.n_heads * n * n + n * hidden) + 2 * (layers + 1) * n * width
    rows = max(chunk_rows(model, n_tokens), 2 * n_tokens)
    return Cost(flops=float(flops), bytes=float(item * (stored + rows * row_width(model))))
