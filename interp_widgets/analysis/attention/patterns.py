"""`attention_patterns`: how much every token attends to every other one, head by head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats, ratio
from interp_widgets.analysis._core.checks import check_finite, indices, layer_indices, row_of
from interp_widgets.analysis._core.chunks import BUDGET_SHARE
from interp_widgets.analysis._core.cost import Cost, pass_flops, row_bytes
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import as_array, wide, wide_type
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import has_hooks, read_values
from interp_widgets.models.memory import free_bytes
from interp_widgets.models.stopping import stopping

_LARGE = 10**8
"""Attentions from which on the first layers are handed on before the others are read,"""
_PARTS = 10
"""and their share of all layers, as a divisor."""
_ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-3}
"""Largest difference of a head's output from pattern times values, relative to the largest output; 0.05 in half
precision. In a float64 model transformers computes the softmax in float32."""


@record
class AttentionPatterns(Result):
    """The attention patterns of some heads on one prompt.

    The axis of positions holds every token that the model reads, the BOS and other special tokens included: an
    attention sink that is left out cannot be seen.

    Example:
        >>> result = attention_patterns(model, "The Eiffel Tower is in the city of")
        >>> result.tokens[:3], result.pattern(3, 0).shape
        (('<|bos|>', 'The', ' Eiffel'), (9, 9))
        >>> bool(np.allclose(result.pattern(3, 0).sum(-1), 1))
        True
    """

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens, all those that the model reads."""

    ids: Sequence[int] = with_axes("positions")
    """Their ids."""

    special: Sequence[bool] = with_axes("positions")
    """Whether each is a special token."""

    layers: Sequence[int] = with_axes("layers")
    """The layers that were asked for, counted from 0."""

    heads: Sequence[int] = with_axes("heads")
    """The heads of each layer that were asked for, counted from 0."""

    patterns: Floats = with_axes("layers", "heads", "positions", "positions")
    """Attention after the softmax, 0..1: the query's position, then the key's. A row adds up to 1, except where a head
    may also attend to nothing (GPT-OSS)."""

    value_norm: Floats | None = with_axes("layers", "heads", "positions", default=None)
    """Norm of what a head would move from each position if it attended to it alone: its value times W_O, before any
    norm that follows. None where the model does not show it."""

    bos: bool = False
    """Whether the first token is the model's BOS."""

    def pattern(
        self, layer: int, head: int, *, without_sink: bool = False, weighted: bool = False
    ) -> NDArray[np.float64]:
        """(queries, keys) the pattern of one head.

        Args:
            layer: one of `layers`, or negative from the last of them.
            head: one of `heads`, or negative from the last of them.
            without_sink: the first token's column is 0, and each row is divided by what it pays all other keys; rows
                that pay them nothing (such as that of the first token itself) are NaN.
            weighted: attention times the norm of the value moved, so that attention to a token from which the head
                moves nothing counts as little as it does. Rows do not add up to 1.

        Raises ValueError for a layer or head that was not computed, or ``weighted`` where `value_norm` is None.

        Source: Attention is Not Only a Weight: Analyzing Transformers with Vector Norms (Kobayashi et al. 2020),
        section 2; Efficient Streaming Language Models with Attention Sinks (Xiao et al. 2024), section 3.1.
        """
        row, column = row_of(layer, self.layers, "layer"), row_of(head, self.heads, "head")
        pattern: NDArray[np.float64] = self.patterns[row, column].astype(np.float64)
        if weighted:
            if self.value_norm is None:
                raise ValueError(
                    "weighted=True needs the values that the heads move, which this model does not show: leave it out"
                )
            pattern *= self.value_norm[row, column]
        if without_sink:
            pattern[:, 0] = 0
            pattern = ratio(pattern, np.broadcast_to(pattern.sum(-1, keepdims=True), pattern.shape))
        return pattern

    @property
    def first_token(self) -> NDArray[np.float64]:
        """(layers, heads) mean attention that the later tokens pay the first one; NaN for a prompt of one token."""
        return self._mean_at(lambda query: 0)

    def _mean_at(self, key_of: Callable[[int], int]) -> NDArray[np.float64]:
        """(layers, heads) mean attention to one key of each query but the first."""
        queries = range(1, len(self.tokens))
        if not queries:
            return np.full(self.patterns.shape[:2], np.nan)
        shares: NDArray[np.float64] = self.patterns[:, :, queries, [key_of(q) for q in queries]].mean(-1, dtype=float)
        return shares

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Mean attention over heads and all queries but the first: to the first token, the previous one and itself."""
        return {
            "first_token": float(self.first_token.mean()),
            "previous_token": float(self._mean_at(lambda query: query - 1).mean()),
            "own_token": float(self._mean_at(lambda query: query).mean()),
        }

    def to_frame(self) -> DataFrame:
        """One row per layer, head, query and key: the tokens, the attention, and times the value's norm if known."""
        positions = range(len(self.tokens))
        weighted = None if self.value_norm is None else self.patterns * self.value_norm[:, :, None]
        columns = {
            "query_token": np.array(self.tokens, dtype=object)[:, None],
            "key_token": np.array(self.tokens, dtype=object),
            "attention": self.patterns,
            "weighted": weighted,
        }
        return table({"layer": self.layers, "head": self.heads, "query": positions, "key": positions}, columns)


@checked
@torch.no_grad()
def attention_patterns(
    model: Model,
    prompt: PromptInput,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[AttentionPatterns], None] | None = None,
) -> AttentionPatterns:
    """The attention patterns (attention weights, attention maps) of the heads of a model on one prompt.

    They are the weights after the softmax, as the model's own pass computes them: with its mask, sliding windows, soft
    cap, norms of queries and keys, and position biases. One layer at a time is in memory besides the result.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        layers: which layers, counted from 0, or from the end; default: all.
        heads: which heads of each layer; default: all.
        prepend_bos: overrides the model's BOS policy for texts.
        progress: called with (done, total) layers.
        check: called between layers; raises to cancel.
        on_partial: receives the first tenth of the layers, a result of these alone, where the patterns of a long prompt
            take more than a second or so; never while you have hooks on the model.

    Raises:
        ValueError: a bad prompt, layer or head, or a model that does not show its patterns.
        MemoryError: patterns that do not fit in the free memory.

    Source: A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), *attention heads*; the weighted view
    is from Kobayashi et al. 2020.

    Example:
        >>> result = attention_patterns(model, "The Eiffel Tower is in the city of", layers=[3])
        >>> last = result.pattern(3, 0, without_sink=True)[-1]
        >>> last.shape, round(float(last.sum()), 6)
        ((9,), 1.0)
    """
    model.capabilities.require("attention_patterns", "attention_patterns")
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    rows = layer_indices(model, layers)
    columns = indices(heads, model.n_heads, "head", f"model with {model.n_heads} heads per layer")
    origin, run, n = model.provenance(), RunOptions(progress, check), len(tokens.ids)
    dtype = wide_type(model.dtype)
    _check_memory(len(rows) * len(columns), n, dtype.itemsize)
    patterns = torch.empty(len(rows), len(columns), n, n, dtype=dtype)
    readers = [_LayerReader(model, layer, columns) for layer in rows]

    def finish(number: int) -> Callable[[Tensor], None]:
        def store(pattern: Tensor) -> None:
            patterns[number].copy_(_of_heads(pattern[0], columns))

        return store

    def read(numbers: Sequence[int]) -> None:
        with stopping(check):
            hooks = [hook for number in numbers for hook in readers[number].hooks(finish(number))]
            read_values(model, list(tokens.ids), hooks)

    def result(numbers: Sequence[int], values: Tensor, *, partial: bool = False) -> AttentionPatterns:
        layers = tuple(rows[number] for number in numbers)
        check_finite(values, lambda i, j, *_: f"the attention pattern of head {layers[i]}.{columns[j]} of {model.name}")
        norms = [norm for norm in (readers[number].norm for number in numbers) if norm is not None]
        return AttentionPatterns(
            tokens=tuple(model.token_strings(tokens.ids)),
            ids=tokens.ids,
            special=tuple(model.is_special(tokens.ids)),
            layers=layers,
            heads=columns,
            patterns=as_array(values),
            value_norm=as_array(torch.stack(norms)) if len(norms) == len(layers) else None,
            bos=tokens.offset == 1,
            partial=partial,
            provenance=provenance(origin, bos=tokens.offset == 1),
        )

    order = sorted(range(len(rows)), key=rows.__getitem__)
    early: list[int] = []
    if on_partial is not None and patterns.numel() > _LARGE and not has_hooks(model.tl_model):
        early = order[: len(rows) // _PARTS]
    if on_partial is not None and early:
        read(early)  # ends after these layers, so that it costs as little of a pass
        on_partial(result(early, patterns[early], partial=True))
    read(order[len(early) :])
    for number in range(len(rows)):
        run.report(number + 1, len(rows))
    return result(range(len(rows)), patterns)


def attention_patterns_cost(
    model: Model, n_tokens: int, *, n_layers: int | None = None, n_heads: int | None = None
) -> Cost:
    """Forecast of `attention_patterns` on this many tokens with the BOS, for this many layers and heads (default: all).

    Example:
        >>> one, all_layers = attention_patterns_cost(model, 100, n_layers=1), attention_patterns_cost(model, 100)
        >>> one.bytes < all_layers.bytes
        True
    """
    layers, heads = n_layers or model.n_layers, n_heads or model.n_heads
    item = max(4, model.dtype.itemsize)
    kept = layers * heads * n_tokens * (n_tokens + 1) * item
    values = 2 * layers * heads * n_tokens * n_tokens * model.d_head  # compared with the model's own outputs
    return Cost(
        flops=float(pass_flops(model, n_tokens, n_tokens) + values),
        bytes=float(kept + row_bytes(model, n_tokens, n_tokens)),
    )


def _check_memory(count: int, n: int, itemsize: int) -> None:
    """MemoryError unless the patterns of ``count`` heads on n tokens fit in the free memory of the CPU."""
    size, free = count * n * n * itemsize, free_bytes(torch.device("cpu"))
    if size > BUDGET_SHARE * free:
        raise MemoryError(
            f"the patterns of {count} heads on {n} tokens take {size / 1e9:.1f} GB, of {free / 1e9:.1f} GB free: name "
            "fewer layers or heads, or shorten the prompt"
        )


def _of_heads(values: Tensor, heads: Sequence[int]) -> Tensor:
    """The rows of some heads of (heads, ...); no copy where they are all."""
    return values if list(heads) == list(range(len(values))) else values[list(heads)]


class _LayerReader:
    """Reads the patterns of one layer, and the norms of what its heads move, at hooks."""

    def __init__(self, model: Model, layer: int, heads: Sequence[int]) -> None:
        self.model, self.layer, self.heads = model, layer, list(heads)
        self.norm: Tensor | None = None
        """(heads, n) norm of every position's value times W_O; None where pattern times values is not what the heads
        put out."""
        self.value: Tensor | None = None
        self.mixed: Tensor | None = None

    def hooks(self, store: Callable[[Tensor], None]) -> list[tuple[str, Callable[[Tensor], None]]]:
        """The readers of this layer; ``store`` gets the pattern (1, all heads, n, n)."""
        has, prefix = self.model.last_capabilities, f"blocks.{self.layer}.attn.hook_"

        def keep_pattern(pattern: Tensor) -> None:
            store(pattern)
            if self.value is not None:
                self.mixed = wide(_of_heads(pattern[0], self.heads)) @ self.value

        whole = has.heads and has.head_weights and has.head_width == self.model.d_head
        if not whole or f"{prefix}v" not in self.model.hook_names:
            return [(f"{prefix}pattern", keep_pattern)]
        return [(f"{prefix}v", self._keep_value), (f"{prefix}pattern", keep_pattern), (f"{prefix}z", self._compare)]

    def _keep_value(self, value: Tensor) -> None:
        """Keep the values (heads, n, d_head) of the chosen heads, if they are laid out as usual."""
        if value.ndim != 4 or value.shape[2] not in (self.model.n_heads, self.model.n_kv_heads):
            return
        share = self.model.n_heads // value.shape[2]
        self.value = wide(value[0, :, [head // share for head in self.heads]]).transpose(0, 1)

    def _compare(self, z: Tensor) -> None:
        """Norms of the values, if pattern times values gives the heads' outputs."""
        if self.value is None or self.mixed is None or z.ndim != 4 or z.shape[2] != self.model.n_heads:
            return
        output = wide(z[0, :, self.heads]).transpose(0, 1)
        limit = _ROUNDING.get(self.model.precision, 0.05) * float(output.abs().max())
        if float((self.mixed - output).abs().max()) <= limit:
            w_out = wide(self.model.last_weight("W_O", self.layer)[self.heads])
            moved = self.value @ (w_out @ w_out.mT) * self.value  # the square of |value times W_O|
            self.norm = moved.sum(-1).clamp(min=0).sqrt()
        self.value = self.mixed = None
