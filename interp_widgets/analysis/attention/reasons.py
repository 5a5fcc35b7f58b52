"""`attention_reasons`: why a head attends from one token to another, as a sum over pairs of source tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import index, layer_index
from interp_widgets.analysis._core.chunks import run_chunks
from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import Prompt, read_prompt
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide
from interp_widgets.analysis.token_decomposition.decomposition import (
    check_error,
    check_model,
    check_stream,
    decomposition_cost,
    sources_at_once,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import query_key_hooks, read_values, score_form, score_soft_cap
from interp_widgets.models.engine.linearised import LinearisedPass, Rows, linearise

_ROUNDED = 1e-6
"""Relative error of a score where transformers computes rotations in float32 in a float64 model."""


@record
class AttentionReasons(Result):
    """One attention score of one head as a sum over pairs: a source of the query, and a source of the key.

    ``parts.sum() + position_bias`` is `score`, up to `error`. Sources are the tokens that the model reads, the BOS
    included; the last source is the model's biases.

    Example:
        >>> result = attention_reasons(model, "The Eiffel Tower is in the city of", 3, 0, -1, 2)
        >>> result.parts.shape, bool(abs(result.parts.sum() + result.position_bias - result.score) < 1e-3)
        ((10, 4), True)
    """

    tokens: Sequence[str] = with_axes("positions")
    """Readable tokens, all those that the model reads."""

    ids: Sequence[int] = with_axes("positions")
    """Their ids."""

    parts: Floats = with_axes("query sources", "key sources")
    """Contribution of each pair: the tokens up to the query and the biases, then those up to the key and the biases."""

    layer: int
    """The layer."""

    head: int
    """The head."""

    query: int
    """Position of the query, counted from 0 with the BOS."""

    key: int
    """Position of the key, counted from 0 with the BOS."""

    score: float
    """The head's attention score before the softmax, and before a soft cap (Gemma 2)."""

    attention: float
    """The attention after the softmax."""

    position_bias: float
    """What the model adds to the score for the positions alone (ALiBi); 0 for other models."""

    error: float
    """|sum of the parts - score| over the sum of their absolute values."""

    @property
    def query_sources(self) -> tuple[str, ...]:
        """Names of the rows of `parts`."""
        return (*self.tokens[: self.query + 1], "biases")

    @property
    def key_sources(self) -> tuple[str, ...]:
        """Names of the columns of `parts`."""
        return (*self.tokens[: self.key + 1], "biases")

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The pair with the largest contribution, and the score."""
        row, column = np.unravel_index(int(self.parts.argmax()), self.parts.shape)
        return {
            "query_source": self.query_sources[row],
            "key_source": self.key_sources[column],
            "part": float(self.parts[row, column]),
            "score": self.score,
            "attention": self.attention,
        }

    def to_frame(self) -> DataFrame:
        """One row per pair of sources: positions (the biases come last), tokens and contribution."""
        rows, columns = self.parts.shape
        names = {
            "query_token": np.array(self.query_sources, dtype=object)[:, None],
            "key_token": np.array(self.key_sources, dtype=object),
        }
        return table({"query_source": range(rows), "key_source": range(columns)}, {**names, "part": self.parts})


@checked
def attention_reasons(
    model: Model,
    prompt: PromptInput,
    layer: int,
    head: int,
    query: int,
    key: int,
    *,
    tolerance: float | None = None,
    prepend_bos: bool | None = None,
    check: Callable[[], None] | None = None,
) -> AttentionReasons:
    """Why an attention head attends: its attention score as a sum over pairs of source tokens.

    Also called a decomposition of the QK circuit on a prompt. The residual streams at the query and at the key are
    split into parts by source token as in `decompose_tokens` (attention patterns, norm scales and activation slopes
    held fixed, here those of queries and keys too). A score is a product of query and key, so it is the sum over all
    pairs of a part of the query and a part of the key, with the rotation by position between them.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added) or the messages of a chat (`chat_prompt`).
        layer, head: the head, counted from 0, or from the end.
        query, key: positions, counted from 0 **with** a BOS as in `attention_patterns`, or from the end; the key must
            not come after the query.
        tolerance: largest relative `error`; default 1e-4 in float32, 1e-9 in float64, 0.05 in half precision.
        prepend_bos: overrides the model's BOS policy for texts.
        check: called between chunks of sources; raises to cancel.

    Raises:
        ValueError: a bad prompt, layer, head or position, a model that does not show its scores, or one whose parts do
            not add up to the score.

    Source: A Mathematical Framework for Transformer Circuits (Elhage et al. 2021), *QK circuit*.

    Example:
        >>> result = attention_reasons(model, "The Eiffel Tower is in the city of", 3, 0, -1, 2)
        >>> result.to_frame().nlargest(1, "part").columns.tolist()
        ['query_source', 'key_source', 'query_token', 'key_token', 'part']
    """
    check_model(model, "attention_reasons")
    tokens = read_prompt(model, prompt, prepend_bos=prepend_bos)
    n = len(tokens.ids)
    layer = layer_index(model, layer)
    head = index(head, model.n_heads, "head", f"model with {model.n_heads} heads per layer")
    query, key = (
        index(position, n, name, f"prompt of {n} tokens") for position, name in ((query, "query"), (key, "key"))
    )
    if key > query:
        raise ValueError(f"key must not come after query, which no head sees, got key {key} and query {query}")
    site = _Site(model, layer, head)
    share = model.n_heads // model.n_kv_heads
    left = _parts(model, tokens, layer, query, check) @ wide(model.weight("W_Q", layer)[head])
    right = _parts(model, tokens, layer, key, check) @ wide(model.weight("W_K", layer, grouped=True)[head // share])
    left[0] += wide(model.weight("b_Q", layer)[head])
    right[0] += wide(model.weight("b_K", layer, grouped=True)[head // share])
    found = site.measure(tokens.ids[: query + 1], query, key)
    left, right = left * found.query_gain, right * found.key_gain
    with torch.no_grad():
        parts = (left @ found.form @ right.mT).cpu().double()
        score = float(found.query @ found.form @ found.key)
    error = float((parts.sum() - score).abs() / parts.abs().sum())
    check_error(model, f"the parts of {model.name} do not add up to its attention score", error, "secant", tolerance)
    found.check_score(model, score, tolerance)
    return AttentionReasons(
        tokens=tuple(model.token_strings(tokens.ids)),
        ids=tokens.ids,
        parts=to_numpy(parts.roll((-1, -1), (0, 1))),  # the biases last
        layer=layer,
        head=head,
        query=query,
        key=key,
        score=score + found.position_bias,
        attention=found.attention,
        position_bias=found.position_bias,
        error=error,
        provenance=provenance(model.provenance(), bos=tokens.offset == 1),
    )


def attention_reasons_cost(model: Model, n_tokens: int) -> Cost:
    """Forecast of `attention_reasons` for a query after this many tokens: those of the query and key are decomposed.

    Example:
        >>> attention_reasons_cost(model, 20).flops > attention_reasons_cost(model, 10).flops
        True
    """
    one = decomposition_cost(model, n_tokens, lens=False)
    return Cost(flops=2 * one.flops, bytes=one.bytes)


@torch.no_grad()
def _parts(model: Model, tokens: Prompt, layer: int, position: int, check: Any) -> Tensor:
    """(position + 2, d_model) parts of the normed stream that attention reads: the biases, then each token's."""
    whole = linearise(model, tokens.ids, position)
    check_stream(model, whole)
    norm, n = whole.layers[layer].norm1, position + 1
    parts = whole.start.new_zeros(n + 1, whole.start.shape[1])
    if layer == 0:
        parts[-1] = whole.start[-1]
    else:
        before = LinearisedPass(whole.layers[:layer], whole.start, whole.residual[: layer + 1])

        def propagate(start: int, stop: int) -> None:
            bias = start == 0
            parts[start + (not bias) : stop + 1] = before.parts(start, stop, bias=bias)[-1]

        run_chunks(n, lambda begin: sources_at_once(model, n, begin), propagate, what=f"token of {n}", check=check)
    return norm.forward(parts, Rows.together(n + 1, slice(position, position + 1), bias=True))


@dataclass(frozen=True)
class _Measured:
    """One head's query and key on a prompt, and the bilinear form of the two that is its score."""

    query: Tensor
    """(d_head,) the query that enters the form: behind a norm of queries, if there is one."""
    key: Tensor
    """(d_head,) the key."""
    query_gain: Tensor
    """(d_head,) what a norm of queries multiplies by; ones without one."""
    key_gain: Tensor
    form: Tensor
    """(d_head, d_head)"""
    position_bias: float
    """What the score is for a key of zeros."""
    actual: float
    """The model's own score, behind a soft cap."""
    attention: float
    cap: float
    """Soft cap of the scores; 0 for none."""

    def check_score(self, model: Model, score: float, tolerance: float | None) -> None:
        """Raise ValueError where the form does not give the model's own score."""
        raw = score + self.position_bias
        capped = self.cap * float(np.tanh(raw / self.cap)) if self.cap > 0 else raw
        error = abs(capped - self.actual) / max(1.0, abs(self.actual))
        if tolerance is None and error <= _ROUNDED:
            return
        claim = f"query and key of {model.name} do not give its attention score"
        check_error(model, claim, error, "secant", tolerance)


@dataclass(frozen=True)
class _Site:
    """The hooks at which one head's query and key are read."""

    model: Model
    layer: int
    head: int

    def names(self, part: str) -> tuple[str, str]:
        """The hook of queries (``q``) or keys (``k``), and the one behind their norm (the same hook without one)."""
        names = query_key_hooks(self.model, self.layer, part)
        if names is None:
            raise ValueError(
                f"attention_reasons cannot hold the norm of queries and keys of {self.model.capabilities.architecture} "
                "fixed: load the model with backend='bridge', or choose one without such a norm"
            )
        return names

    def measure(self, ids: Sequence[int], query: int, key: int) -> _Measured:
        """Read the head on the tokens up to the query."""
        model, layer, head = self.model, self.layer, self.head
        group = head // (model.n_heads // model.n_kv_heads)
        ids = list(ids)
        while len(ids) in (model.n_heads, model.n_kv_heads) and len(ids) < model.n_ctx:
            ids.append(ids[-1])  # so that the axes of heads and positions differ in size
        (q, normed_q), (k, normed_k) = self.names("q"), self.names("k")
        seen: dict[str, Tensor] = {}
        scores, pattern = (f"blocks.{layer}.attn.hook_{name}" for name in ("attn_scores", "pattern"))
        names = {q, normed_q, k, normed_k, scores, pattern}
        read_values(model, ids, [(name, partial(seen.__setitem__, name)) for name in sorted(names)])
        if torch.equal(seen[scores], seen[pattern]):
            raise ValueError(
                "attention_reasons needs attention scores before the softmax, which "
                f"{model.last_capabilities.architecture} does not have: its attention shows the pattern only; "
                "attention_patterns works on it"
            )
        places = {
            q: _place(seen[q], len(ids), query, head, model.n_heads),
            normed_q: _place(seen[normed_q], len(ids), query, head, model.n_heads),
            k: _place(seen[k], len(ids), key, group, model.n_kv_heads),
            normed_k: _place(seen[normed_k], len(ids), key, group, model.n_kv_heads),
        }
        vectors = {name: wide(seen[name][place]) for name, place in places.items()}
        if not bool(seen[pattern][0, head, query, key] > 0):
            raise ValueError(
                f"head {layer}.{head} does not see position {key} from position {query}: choose a key inside its window"
            )
        form, bias = score_form(
            model, ids, (normed_q, places[normed_q]), (normed_k, places[normed_k]), (scores, (0, head, query, key))
        )
        return _Measured(
            query=vectors[normed_q],
            key=vectors[normed_k],
            query_gain=_gain(vectors[q], vectors[normed_q]),
            key_gain=_gain(vectors[k], vectors[normed_k]),
            form=wide(form),
            position_bias=bias,
            actual=float(seen[scores][0, head, query, key]),
            attention=float(seen[pattern][0, head, query, key]),
            cap=score_soft_cap(model, layer),
        )


def _gain(before: Tensor, after: Tensor) -> Tensor:
    """(d_head,) what a norm multiplied each entry by; ones where nothing changed, 0 for an entry of 0."""
    if torch.equal(before, after):
        return torch.ones_like(before)
    return torch.where(before == 0, 0.0, after / before)


def _place(value: Tensor, n: int, position: int, head: int, heads: int) -> tuple[int, int, int]:
    """The index of one head's vector at one position in a value (1, n, heads, d_head) or (1, heads, n, d_head)."""
    if value.shape[1:3] == (n, heads):
        return 0, position, head
    if value.shape[1:3] == (heads, n):
        return 0, head, position
    raise ValueError("attention_reasons needs queries and keys of single heads, which this model does not show")
