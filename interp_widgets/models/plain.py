"""The equations of an ordinary HookedTransformer without hooks, in few passes.

TransformerLens computes every value that a hook could ask for. Where nobody asks, the same weights give the same
numbers in less time, and only with these equations the derivative is as fast as `plain_slopes` makes it. `applies` says
whether a model is of this kind; `forward` compares both on first use and never calls this module otherwise.

Weights are read from the model at every call, so that edits of weights take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .mixture_of_depths.graft import mixture_in_force, mixture_of, norm_kind
from .scope import acts

KeysValues = tuple[Tensor, Tensor]
"""Keys (rotated) and values of one layer, each (batch, n_kv_heads, positions, d_head)."""

Change = Callable[[str, Tensor], Tensor]
"""Sees a named part of a block on the way and gives it back, as it is or replaced."""

_NORMS = {"LayerNorm", "LayerNormPre", "RMSNorm", "RMSNormPre", "Identity"}


# ---- which models


def applies(tl_model: Any) -> bool:
    """Whether these equations are all that a model computes, with or without a mixture of depths; it has no hook."""
    cfg = tl_model.cfg
    if type(tl_model).__name__ != "HookedTransformer" or cfg.n_devices != 1 or cfg.attention_dir != "causal":
        return False
    unusual = (
        "use_attention_sinks", "clip_qkv", "use_logn_attn", "use_dynamic_ntk_rope", "use_qk_norm", "load_in_4bit",
        "num_experts", "use_normalization_before_and_after", "post_embedding_ln",
    )  # fmt: skip
    if any(getattr(cfg, name, None) for name in unusual) or cfg.positional_embedding_type not in ("standard", "rotary"):
        return False
    if any((getattr(cfg, f"{name}_soft_cap", None) or 0) > 0 for name in ("attn_scores", "output_logits")):
        return False
    if any(_is_changed(module) for module in tl_model.modules()):
        return False
    mixture = mixture_of(tl_model)
    if mixture is not None and any(type(norm) is not norm_kind(tl_model.ln_final) for norm in mixture.norms):
        return False
    return all(_known_block(block) for block in tl_model.blocks) and _known_norm(tl_model, "ln_final")


def _is_changed(module: Any) -> bool:
    """Whether someone hooked a module or replaced its forward function."""
    return bool(hooks_of(module)) or "forward" in vars(module)


def hooks_of(module: Any) -> list[Any]:
    """The hooks of a PyTorch module that act in this thread; HookPoints keep theirs there too."""
    tables = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    # copied first: another thread may put a hook of its own on at this moment
    return [hook for table in tables if table for hook in list(table.values()) if acts(hook)]


def _known_norm(parent: Any, name: str) -> bool:
    return type(getattr(parent, name, None)).__name__ in {*_NORMS, "NoneType"}


def _known_block(block: Any) -> bool:
    attention, mlp = block.attn, getattr(block, "mlp", None)
    return (
        type(block).__name__ == "TransformerBlock"
        and type(attention).__name__ in ("Attention", "GroupedQueryAttention")
        and type(mlp).__name__ in ("MLP", "GatedMLP", "NoneType")
        and (mlp is None or not str(block.cfg.act_fn).startswith("solu"))
        and attention.q_norm is None
        and attention._attention_dir_override is None
        and not any(
            isinstance(parameter, Tensor) and not parameter.is_floating_point() for parameter in block.parameters()
        )
        and _known_norm(block, "ln1")
        and _known_norm(block, "ln2")
    )


# ---- the parts of one layer


def normed(module: Any, x: Tensor) -> Tensor:
    """Output of a norm module for (..., d_model), in the type of ``x``."""
    kind = type(module).__name__
    if kind in ("Identity", "NoneType"):
        return x
    own = (getattr(module, name, None) for name in ("w", "b"))
    weight, bias = (None if part is None else part.to(x.dtype) for part in own)
    if kind.startswith("Layer"):
        return F.layer_norm(x, x.shape[-1:], weight, bias, module.eps)
    return F.rms_norm(x, x.shape[-1:], weight, module.eps)


def activation(mlp: Any, x: Tensor) -> Tensor:
    # TransformerLens spells this one out in six steps; PyTorch has it in one
    return F.gelu(x, approximate="tanh") if mlp.cfg.act_fn == "gelu_new" else mlp.act_fn(x)


def neurons(mlp: Any, x: Tensor) -> Tensor:
    """Activations (..., d_mlp) of the MLP's neurons for its normed input (..., d_model)."""
    if type(mlp).__name__ == "GatedMLP":
        return activation(mlp, x @ mlp.W_gate) * (x @ mlp.W_in) + mlp.b_in
    return activation(mlp, F.linear(x, mlp.W_in.T, mlp.b_in))


def mlp_output(mlp: Any, x: Tensor) -> Tensor:
    return F.linear(neurons(mlp, x), mlp.W_out.T, mlp.b_out)


class Attention:
    """Weights of one attention layer, the three input projections in one matrix; made anew for every pass."""

    def __init__(self, module: Any) -> None:
        self.module = module
        grouped = hasattr(module, "_W_K")
        key, value = (module._W_K, module._W_V) if grouped else (module.W_K, module.W_V)
        key_bias, value_bias = (module._b_K, module._b_V) if grouped else (module.b_K, module.b_V)
        self.heads, self.kv_heads, self.size = module.W_Q.shape[0], key.shape[0], module.W_Q.shape[2]
        weights = torch.cat([module.W_Q, key, value])
        self.w_in = weights.permute(1, 0, 2).reshape(weights.shape[1], -1)
        self.b_in = torch.cat([module.b_Q, key_bias, value_bias]).reshape(-1)
        self.w_out = module.W_O.reshape(-1, module.W_O.shape[-1])
        self.scale = 1.0 / float(module.attn_scale)
        self.window = module.cfg.window_size if module.attn_type == "local" else None

    def heads_first(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, n_heads, positions, d_head), keys and values (batch, n_kv_heads, ...) out of one matrix."""
        batch, length = x.shape[:2]
        parts = x.view(batch, length, -1, self.size).transpose(1, 2)
        return parts.split([self.heads, self.kv_heads, self.kv_heads], dim=1)

    def project(self, x: Tensor, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values of normed inputs (batch, n, d_model) at the positions ``rows``."""
        query, key, value = self.heads_first(F.linear(x, self.w_in.T, self.b_in))
        return self.rotate(query, rows), self.rotate(key, rows), value

    def heads_last(self, *parts: Tensor) -> Tensor:
        """The reverse of `heads_first`: (batch, positions, heads of all parts times d_head)."""
        joined = torch.cat(parts, dim=1).transpose(1, 2)
        return joined.reshape(joined.shape[0], joined.shape[1], -1)

    def rotate(self, x: Tensor, rows: slice | Tensor, *, back: bool = False) -> Tensor:
        """Put rotary position information on (..., positions, d_head) of the positions ``rows``; ``back`` undoes it."""
        cfg = self.module.cfg
        if cfg.positional_embedding_type != "rotary":
            return x
        if isinstance(rows, slice) and rows.stop > len(self.module.rotary_cos):
            self.module.apply_rotary(x.new_zeros(1, rows.stop, 1, self.size))  # makes its tables longer
        cos, sin = self.module.rotary_cos[rows], self.module.rotary_sin[rows]
        turned, rest = x[..., : cfg.rotary_dim], x[..., cfg.rotary_dim :]
        if cfg.rotary_adjacent_pairs:
            pairs = turned.unflatten(-1, (-1, 2))
            flipped = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
        else:
            first, second = turned.chunk(2, dim=-1)
            flipped = torch.cat([-second, first], dim=-1)
        turned = turned * cos + flipped * (-sin if back else sin)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned

    def hidden(self, queries: slice, keys: int, device: torch.device) -> Tensor:
        """(queries, keys) True where a query must not look."""
        row = torch.arange(queries.start, queries.stop, device=device)[:, None]
        column = torch.arange(keys, device=device)[None]
        masked = column > row
        return masked if self.window is None else masked | (column <= row - self.window)

    def pattern(self, queries: Tensor, keys: Tensor, rows: slice) -> Tensor:
        """(n_heads, queries, keys) attention pattern of the positions ``rows`` of one sequence, float32 at least."""
        groups = queries.unflatten(0, (self.kv_heads, -1)).flatten(1, 2)
        scores = (groups @ keys.mT).view(self.heads, queries.shape[1], -1).mul(self.scale)
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        return scores.masked_fill(self.hidden(rows, keys.shape[-2], keys.device), -torch.inf).softmax(-1)


def attend(layer: Attention, query: Tensor, key: Tensor, value: Tensor, fused: bool) -> Tensor:
    """(batch, queries, n_heads * d_head): what the last queries read from all keys and values."""
    batch, length, total = query.shape[0], query.shape[2], key.shape[2]
    if fused and layer.window is None and length == total:
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=layer.scale, enable_gqa=layer.heads != layer.kv_heads
        )
        return mixed.transpose(1, 2).reshape(batch, length, -1)
    masked = layer.hidden(slice(total - length, total), total, query.device)
    if fused:
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=~masked, scale=layer.scale, enable_gqa=layer.heads != layer.kv_heads
        )
        return mixed.transpose(1, 2).reshape(batch, length, -1)
    # heads that share keys are laid side by side, so that shared keys are not repeated
    grouped = query.unflatten(1, (layer.kv_heads, -1)).flatten(2, 3)
    scores = (grouped @ key.mT * layer.scale).unflatten(2, (-1, length)).masked_fill(masked, -torch.inf)
    wide = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else None
    pattern = scores.softmax(-1, dtype=wide).to(value.dtype).flatten(2, 3)
    mixed = (pattern @ value).unflatten(2, (-1, length)).flatten(1, 2)
    return mixed.transpose(1, 2).reshape(batch, length, -1)


def _unchanged(part: str, value: Tensor) -> Tensor:
    return value


def finish(block: Any, layer: Attention, stream: Tensor, mixed: Tensor, change: Change = _unchanged) -> Tensor:
    """The stream (..., d_model) after a block, from the stream before it and what its heads read (`attend`).

    ``change`` sees, and may replace, these parts on the way: "head" (..., n_heads * d_head), "attn" (..., d_model),
    "attn_to_mlp" (what the MLP reads of it), "neuron" (..., d_mlp), "mlp" (..., d_model).
    """
    attended = change("attn", F.linear(change("head", mixed), layer.w_out.T, block.attn.b_O))
    mid = stream + attended
    mlp = getattr(block, "mlp", None)
    if mlp is None:
        return mid
    if block.cfg.parallel_attn_mlp:
        read = stream
    else:
        seen = change("attn_to_mlp", attended)
        read = mid if seen is attended else stream + seen
    inner = change("neuron", neurons(mlp, normed(block.ln2, read)))
    return mid + change("mlp", F.linear(inner, mlp.W_out.T, mlp.b_out))


# ---- a pass


def first_read(tl_model: Any) -> int:
    """The first block whose entering stream `read_streams` takes; n_layers for a model without a mixture."""
    mixture = mixture_in_force(tl_model)
    return len(tl_model.blocks) - (0 if mixture is None else mixture.k)


def read_streams(tl_model: Any, streams: Sequence[Tensor]) -> Tensor:
    """What the unembedding reads, (..., d_model): the final norm of the last stream, or a mixture of depths.

    ``streams``: what enters the blocks from `first_read` on, and last what leaves the last one; each (..., d_model).
    """

    final = partial(normed, getattr(tl_model, "ln_final", None))
    mixture = mixture_in_force(tl_model)
    if mixture is None:
        return final(streams[-1])
    return mixture.combine(streams, [*(partial(normed, norm) for norm in mixture.norms), final])


def start(tl_model: Any, embeddings: Tensor, first: int) -> Tensor:
    """The first residual stream: token embeddings plus what learned positions add, from position ``first`` on."""
    if tl_model.cfg.positional_embedding_type == "standard":
        return embeddings + tl_model.pos_embed.W_pos[first : first + embeddings.shape[1]]
    return embeddings


def encode(
    tl_model: Any,
    embeddings: Tensor,
    *,
    positions: Tensor | None = None,
    past: Sequence[KeysValues] | None = None,
    keep: bool = False,
    fused: bool = False,
) -> tuple[Tensor, list[KeysValues]]:
    """What the unembedding reads, (batch, positions, d_model), and with ``keep`` the keys and values of every layer.

    Args:
        embeddings: (batch, tokens, d_model) token embeddings.
        positions: (n,) indices into the tokens; the last layer computes only from the first of them on.
        past: keys and values of earlier positions, of batch 1 or of the same batch.
        fused: use the fused attention kernel, which has no forward-mode derivative.
    """
    first = past[0][0].shape[2] if past else 0
    batch = embeddings.shape[0]
    stream = start(tl_model, embeddings, first)
    made: list[KeysValues] = []
    last, reads, streams = len(tl_model.blocks) - 1, first_read(tl_model), list[Tensor]()
    for index, block in enumerate(tl_model.blocks):
        layer = Attention(block.attn)
        query, key, value = layer.project(normed(block.ln1, stream), slice(first, first + stream.shape[1]))
        if index >= reads:
            streams.append(stream if positions is None else stream[:, positions])
        if keep:
            made.append((key, value))
        if past:
            before = [part.expand(batch, -1, -1, -1) for part in past[index]]
            key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        if index == last and positions is not None and len(positions):
            skipped = int(positions.min())
            query, stream = query[:, :, skipped:], stream[:, skipped:]
            positions = positions - skipped
        stream = finish(block, layer, stream, attend(layer, query, key, value, fused))
    streams.append(stream if positions is None else stream[:, positions])
    return read_streams(tl_model, streams), made


def decode(tl_model: Any, hidden: Tensor, ids: slice | Tensor | None = None) -> Tensor:
    """Logits (..., d_vocab) from what `encode` gives, or those of some token ids, in the type of ``hidden``."""
    chosen = slice(None) if ids is None else ids
    weight, bias = tl_model.unembed.W_U[:, chosen].T, tl_model.unembed.b_U[chosen]
    return F.linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))
