"""The equations of one block: attention, MLP and norms, with weights read through `Network.weight` on both backends.

TransformerLens and transformers compute every value that has a hook. Without hooks, the same weights give the same
numbers in less time. `Equations.of` decides which models these equations may describe; the engine compares them with
the model's own pass before it uses them.

Weights are read at every pass, so that edits of weights take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..network import Network
from ..placement import has_plain_weights
from ..read_out import norm_kind, read_out_in_force, read_out_of
from ..weights import own_weight
from .trees import TreeMasks

KeysValues = tuple[Tensor, Tensor]
"""Keys (rotated) and values of one layer, each (batch, n_kv_heads, positions, d_head)."""

SiteCallback = Callable[[str, int, Tensor], Tensor]
"""Called with (site, layer, value) during a pass; returns the value, or a replacement. Sites: "resid" (..., d_model)
entering the block; "q", "k", "v" (batch, heads, positions, d_head), as projected; "query", "key", "value", the same
after rotation and behind those of the past; "head" (..., n_heads * d_head), the heads' outputs z; "attn" (...,
d_model), the attention output; "attn_to_mlp", the same as read by the MLP; "neuron" (..., d_mlp); "mlp" (..., d_model),
the MLP output."""

_HOOKED_NORMS = {"LayerNorm", "LayerNormPre", "RMSNorm", "RMSNormPre", "Identity", "NoneType"}
_UNUSUAL = (
    "use_attention_sinks", "clip_qkv", "use_logn_attn", "use_dynamic_ntk_rope", "use_qk_norm", "load_in_4bit",
    "num_experts", "use_normalization_before_and_after", "post_embedding_ln",
)  # fmt: skip


@dataclass(frozen=True)
class SelectedRows(Sequence[KeysValues]):
    """Keys and values of a batch, gathered for one layer at a time."""

    layers: Sequence[KeysValues]
    rows: Tensor
    """(batch,) index of the cached sequence that each one continues."""

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: Any) -> Any:
        key, value = self.layers[layer]
        rows = self.rows.to(key.device)
        return key[rows], value[rows]


def unchanged(site: str, layer: int, value: Tensor) -> Tensor:
    """The `SiteCallback` that changes nothing."""
    return value


# ---- the parts of a block


@dataclass(frozen=True)
class Norm:
    """A norm over the last axis: LayerNorm, RMSNorm, or none."""

    kind: str
    """``"LayerNorm"``, ``"RMSNorm"`` or ``"none"``."""
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0

    @staticmethod
    def of(module: Any, weight: Tensor | None = None, bias: Tensor | None = None) -> Norm:
        """The norm computed by a module of TransformerLens or transformers, with the module's weights unless given."""
        original = getattr(module, "original_component", None)
        inner = module if original is None else original
        kind = _norm_kind(inner)
        if kind == "none":
            return Norm("none")
        if weight is None:
            weight, bias = (
                next((value for name in names if (value := getattr(inner, name, None)) is not None), None)
                for names in (("w", "weight"), ("b", "bias"))
            )
        return Norm(kind, weight, bias, _epsilon(inner))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the norm to (..., d_model), in the dtype of ``x``."""
        if self.kind == "none":
            return x
        weight, bias = (None if part is None else part.to(x.dtype) for part in (self.weight, self.bias))
        if self.kind == "LayerNorm":
            return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)


def _norm_kind(module: Any) -> str:
    if module is None or type(module).__name__ == "Identity":
        return "none"
    return "RMSNorm" if "RMS" in type(module).__name__ else "LayerNorm"


def _epsilon(module: Any) -> float:
    # PyTorch's default if the module has no epsilon; the comparison with the model would expose a wrong one
    return float(next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), 1e-5))


@dataclass(frozen=True)
class Mlp:
    """An MLP, gated or not; matrices with the input axis first."""

    w_in: Tensor
    b_in: Tensor | None
    w_out: Tensor
    b_out: Tensor | None
    activation: Callable[[Tensor], Tensor]
    w_gate: Tensor | None = None
    b_gate: Tensor | None = None
    bias_outside: bool = False
    """Whether b_in is added after the product of gate and linear branch, as HookedTransformer does."""

    def neurons(self, x: Tensor) -> Tensor:
        """(..., d_mlp) activations for the normed input (..., d_model)."""
        if self.w_gate is None:
            return self.activation(F.linear(x, self.w_in.T, self.b_in))
        gate = self.activation(F.linear(x, self.w_gate.T, self.b_gate))
        if self.bias_outside and self.b_in is not None:
            return torch.addcmul(self.b_in, gate, x @ self.w_in)
        return gate * F.linear(x, self.w_in.T, self.b_in)

    def __call__(self, x: Tensor) -> Tensor:
        return self.write(self.neurons(x))

    def write(self, neurons: Tensor) -> Tensor:
        """The MLP output (..., d_model) of the activations (..., d_mlp)."""
        return F.linear(neurons, self.w_out.T, self.b_out)


@dataclass(frozen=True)
class Rotation:
    """Rotary embeddings: tables (positions, rotary dimensions) of cosines and sines."""

    cos: Tensor
    sin: Tensor
    """Negative for the first number of each rotated pair."""
    adjacent_pairs: bool = False
    """Whether pairs are adjacent numbers, rather than one of the first half and one of the second."""

    @staticmethod
    def of(cos: Tensor, sin: Tensor, *, adjacent_pairs: bool = False) -> Rotation:
        """From a model's tables, whose sines are unsigned."""
        if adjacent_pairs:
            signed = torch.stack([-sin[..., ::2], sin[..., 1::2]], dim=-1).flatten(-2)
        else:
            half = sin.shape[-1] // 2
            signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return Rotation(cos, signed, adjacent_pairs)

    def __call__(self, x: Tensor, *, back: bool = False) -> Tensor:
        """Rotate (..., positions, d_head); ``back`` undoes it."""
        size = self.cos.shape[-1]
        rotary, rest = x[..., :size], x[..., size:]
        if self.adjacent_pairs:
            swapped = rotary.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            first, second = rotary.chunk(2, dim=-1)
            swapped = torch.cat([second, first], dim=-1)
        rotated = torch.addcmul(rotary * self.cos, swapped, self.sin, value=-1 if back else 1)
        return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated

    def at(self, rows: slice | Tensor) -> Rotation:
        """The rotation of some of its positions."""
        return Rotation(self.cos[rows], self.sin[rows], self.adjacent_pairs)


@dataclass(frozen=True)
class Block:
    """One block with its current weights."""

    index: int
    norm1: Norm
    norm2: Norm
    """Before the MLP."""
    w_in: tuple[Tensor, ...]
    """(d_model, heads * d_head) projections to queries, keys and values: three matrices, or one if they are adjacent in
    memory."""
    b_in: tuple[Tensor | None, ...]
    """Biases of ``w_in``."""
    w_out: Tensor
    """(n_heads * d_head, d_model)"""
    b_out: Tensor | None
    heads: int
    kv_heads: int
    size: int
    """d_head"""
    scale: float
    """Factor of the attention scores."""
    window: int | None
    """Number of positions that a query attends to, including its own; None for all."""
    mlp: Mlp | None
    parallel: bool
    """Whether attention and MLP read the same stream."""

    # ---- heads

    def project(
        self, x: Tensor, rotation: Rotation | None, at: SiteCallback = unchanged
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values (..., heads, n, d_head) of normed inputs (..., n, d_model)."""
        return self._heads([F.linear(x, w.T, b) for w, b in zip(self.w_in, self.b_in, strict=True)], rotation, at)

    def project_change(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """`project` without biases, for changes (..., n, d_model) of the inputs."""
        return self._heads([x @ w for w in self.w_in], rotation)

    def _heads(
        self, parts: Sequence[Tensor], rotation: Rotation | None, at: SiteCallback = unchanged
    ) -> tuple[Tensor, Tensor, Tensor]:
        flat = parts if len(parts) > 1 else parts[0].split(self._widths, dim=-1)
        query, key, value = (
            at(
                site,
                self.index,
                rearrange(part, "... positions (heads size) -> ... heads positions size", size=self.size),
            )
            for site, part in zip("qkv", flat, strict=True)
        )
        return (query, key, value) if rotation is None else (rotation(query), rotation(key), value)

    @property
    def _widths(self) -> list[int]:
        return [heads * self.size for heads in (self.heads, self.kv_heads, self.kv_heads)]

    @property
    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        """The projections to queries, keys and values, (d_model, heads * d_head) each."""
        query, key, value = self.w_in if len(self.w_in) > 1 else self.w_in[0].split(self._widths, dim=1)
        return query, key, value

    @staticmethod
    def merge_heads(x: Tensor) -> Tensor:
        """(..., positions, heads * d_head) from (..., heads, positions, d_head)."""
        return rearrange(x, "... heads positions size -> ... positions (heads size)")

    def masked(self, queries: slice, keys: int, device: torch.device) -> Tensor:
        """(queries, keys) True where a query must not attend."""
        row = torch.arange(queries.start, queries.stop, device=device)[:, None]
        column = torch.arange(keys, device=device)[None]
        masked = column > row
        return masked if self.window is None else masked | (column <= row - self.window)

    def grouped(self, query: Tensor) -> Tensor:
        """(..., n_kv_heads, heads per group * positions, d_head): heads that share keys are adjacent."""
        return rearrange(query, "... (kv share) positions size -> ... kv (share positions) size", kv=self.kv_heads)

    def pattern(self, query: Tensor, key: Tensor, rows: slice) -> Tensor:
        """(..., n_heads, queries, keys) attention pattern of the positions ``rows``, in float32 or wider."""
        scores = (self.grouped(query) @ key.mT).unflatten(-2, (-1, query.shape[-2])).flatten(-4, -3).mul(self.scale)
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        return scores.masked_fill(self.masked(rows, key.shape[-2], key.device), -torch.inf).softmax(-1)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, fused: bool, tree: TreeMasks | None = None
    ) -> Tensor:
        """z (batch, queries, n_heads * d_head): the last queries attend to all keys and values.

        ``fused`` uses the kernel without a forward-mode derivative; with a ``tree``, its masks apply.
        """
        if tree is not None:
            return self._fused(query, key, value, attn_mask=tree.seen(self.window))
        length, total = query.shape[2], key.shape[2]
        if fused and self.window is None and length == total:
            return self._fused(query, key, value, is_causal=True)
        if fused and self.window is None and length == 1:  # the last position attends to all
            return self._fused(query, key, value)
        masked = self.masked(slice(total - length, total), total, query.device)
        if fused:
            return self._fused(query, key, value, attn_mask=~masked)
        scores = (self.grouped(query) @ key.mT * self.scale).unflatten(2, (-1, length)).masked_fill(masked, -torch.inf)
        wide = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else None
        pattern = scores.softmax(-1, dtype=wide).to(value.dtype).flatten(2, 3)
        return self.merge_heads((pattern @ value).unflatten(2, (-1, length)).flatten(1, 2))

    def attend_one(self, query: Tensor, key: Tensor, value: Tensor, at: Tensor) -> Tensor:
        """z (batch, 1, n_heads * d_head) of one query (batch, n_heads, 1, d_head) at position ``at`` (batch,)."""
        column = torch.arange(key.shape[2], device=key.device)
        seen = column <= at[:, None]
        if self.window is not None:
            seen &= column > at[:, None] - self.window
        return self._fused(query, key, value, attn_mask=seen[:, None, None])

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, **mask: Any) -> Tensor:
        z = F.scaled_dot_product_attention(
            query, key, value, scale=self.scale, enable_gqa=self.heads != self.kv_heads, **mask
        )
        return self.merge_heads(z)

    def attend_shared(self, query: Tensor, key: Tensor, value: Tensor, before: KeysValues) -> Tensor:
        """`attend` for keys and values (batch, ...) after earlier ones (1, ...) that all sequences share.

        The shared ones are not copied per sequence; for few positions, the copies would dominate the time.
        """
        batch, _, length, _ = query.shape
        total = before[0].shape[2] + key.shape[2]
        grouped = self.grouped(query)
        together = rearrange(grouped, "batch kv rows size -> kv (batch rows) size")
        shared = rearrange(together @ before[0][0].mT, "kv (batch rows) keys -> batch kv rows keys", batch=batch)
        scores = torch.cat([shared, grouped @ key.mT], dim=-1).mul_(self.scale).unflatten(2, (-1, length))
        if length > 1 or self.window is not None:
            scores = scores.masked_fill(self.masked(slice(total - length, total), total, query.device), -torch.inf)
        wide = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else None
        pattern = scores.softmax(-1, dtype=wide).to(value.dtype).flatten(2, 3)
        old, new = pattern.split([before[0].shape[2], key.shape[2]], dim=-1)
        shared = rearrange(old, "batch kv rows keys -> kv (batch rows) keys") @ before[1][0]
        z = rearrange(shared, "kv (batch rows) size -> batch kv rows size", batch=batch) + new @ value
        return self.merge_heads(z.unflatten(2, (-1, length)).flatten(1, 2))

    # ---- the rest of the block

    def finish(self, stream: Tensor, z: Tensor, at: SiteCallback = unchanged) -> Tensor:
        """The stream (..., d_model) after the block, from the stream before it and the heads' outputs z."""
        layer = self.index
        attended = at("attn", layer, F.linear(at("head", layer, z), self.w_out.T, self.b_out))
        mid = stream + attended
        if self.mlp is None:
            return mid
        mlp_in = stream
        if not self.parallel:
            seen = at("attn_to_mlp", layer, attended)
            mlp_in = mid if seen is attended else stream + seen
        neurons = at("neuron", layer, self.mlp.neurons(self.norm2(mlp_in)))
        return mid + at("mlp", layer, self.mlp.write(neurons))


# ---- a model


@dataclass(frozen=True)
class Equations:
    """A model as the equations see it; created by `Equations.of`."""

    network: Network
    parallel: bool
    shared_norm: bool
    """Whether the MLP reads attention's norm: parallel blocks with a single norm."""

    @staticmethod
    def of(network: Network) -> Equations | None:
        """The equations that may describe a model; None if some part of it is of another kind."""
        describes = _hooked_fits if network.backend == "hooked" else _bridge_fits
        if not describes(network.tl_model):
            return None
        first = network.tl_model.blocks[0]
        parallel = bool(getattr(network.tl_model.cfg, "parallel_attn_mlp", False))
        has_norm = getattr(first, "ln2", None) is not None
        if not has_norm and not parallel and getattr(first, "mlp", None) is not None and network.backend == "bridge":
            return None
        return Equations(network, parallel, shared_norm=not has_norm and network.backend == "bridge")

    def blocks(self, layers: Sequence[int] | None = None) -> list[Block]:
        """The blocks of all or some layers, with their current weights."""
        return [self.block(layer) for layer in (range(self.network.n_layers) if layers is None else layers)]

    def block(self, layer: int) -> Block:
        """One block with its weights as they are now."""
        network, module = self.network, self.network.tl_model.blocks[layer]
        read = partial(network.weight, layer=layer, grouped=True)
        flat = [rearrange(read(f"W_{part}"), "heads model size -> model (heads size)") for part in "QKV"]
        biases = [
            None if bias is None else bias.flatten() for bias in (self._bias(f"b_{part}", layer) for part in "QKV")
        ]
        w_in, b_in = _joined_if_adjacent(flat, biases)
        norm1 = self._norm(module, "ln1", layer)
        return Block(
            index=layer,
            norm1=norm1,
            norm2=norm1 if self.shared_norm else self._norm(module, "ln2", layer),
            w_in=w_in,
            b_in=b_in,
            w_out=rearrange(read("W_O"), "heads size model -> (heads size) model"),
            b_out=self._bias("b_O", layer),
            heads=network.n_heads,
            kv_heads=network.n_kv_heads,
            size=network.d_head,
            scale=_scale(module.attn),
            window=_window(network, layer),
            mlp=None if getattr(module, "mlp", None) is None else self._mlp(module.mlp, layer),
            parallel=self.parallel,
        )

    def _bias(self, name: str, layer: int) -> Tensor | None:
        """A bias of a block, or None."""
        bias = own_weight(self.network.tl_model, name, layer)
        return None if bias is None else bias.detach()

    def _norm(self, module: Any, label: str, layer: int) -> Norm:
        norm = getattr(module, label, None)
        if norm is None or _norm_kind(getattr(norm, "original_component", norm)) == "none":
            return Norm("none")
        return self._weighted(norm, label, layer)

    def _weighted(self, norm: Any, label: str, layer: int | None = None) -> Norm:
        # the stored weights, since these equations exclude blocks whose first norm follows attention
        network = self.network
        weight = network._held_weight(f"{label}_w", layer)
        bias = network._held_weight(f"{label}_b", layer) if network.normalization == "LayerNorm" else None
        return Norm.of(norm, weight, bias)

    def _mlp(self, module: Any, layer: int) -> Mlp:
        network = self.network
        gated = network.gated
        read, bias = partial(network.weight, layer=layer), partial(self._bias, layer=layer)
        return Mlp(
            read("W_in"), bias("b_in"), read("W_out"), bias("b_out"), _activation(module),
            w_gate=read("W_gate") if gated else None,
            b_gate=bias("b_gate") if gated and network.backend == "bridge" else None,
            bias_outside=gated and network.backend == "hooked",
        )  # fmt: skip

    # ---- start and end of a pass

    def start(self, embeddings: Tensor, first: int | Tensor) -> Tensor:
        """The first residual stream: token embeddings plus learned position embeddings, if any.

        ``first``: position of the first token, or the positions (batch, tokens) of all.
        """
        if self.network.tl_model.cfg.positional_embedding_type == "standard":
            rows = first if isinstance(first, Tensor) else slice(first, first + embeddings.shape[1])
            return embeddings + self.network.weight("W_pos")[rows]
        return embeddings

    def rotation(self, stop: int, spare: int = 0) -> Rotation | None:
        """The rotation of positions 0..stop, plus up to ``spare`` more; None for learned positions."""
        tl_model = self.network.tl_model
        if tl_model.cfg.positional_embedding_type != "rotary":
            return None
        if self.network.backend == "hooked":
            attention = tl_model.blocks[0].attn
            if stop > len(attention.rotary_cos):
                like = self.network.weight("W_Q", 0)
                attention.apply_rotary(like.new_zeros(1, stop, 1, self.network.d_head))  # extends its tables
            pairs = bool(tl_model.cfg.rotary_adjacent_pairs)
            stop += spare
            return Rotation.of(attention.rotary_cos[:stop], attention.rotary_sin[:stop], adjacent_pairs=pairs)
        like = next(tl_model.parameters()).new_zeros(1)
        positions = torch.arange(max(stop, min(stop + spare, self.network.n_ctx)), device=like.device)[None]
        cos, sin = tl_model.rotary_emb.original_component(like, positions)
        return Rotation.of(cos[0], sin[0])

    @property
    def first_read(self) -> int:
        """The first block whose input stream `read` needs; n_layers for a model without a mixture of depths."""
        read_out = read_out_in_force(self.network.tl_model)
        return self.network.n_layers - (0 if read_out is None else read_out.k)

    def final_norm(self) -> Norm:
        """The norm before the unembedding."""
        module = getattr(self.network.tl_model, "ln_final", None)
        if module is None:
            return Norm("none")
        return self._weighted(module, "ln_final")

    def read_norms(self) -> list[Norm]:
        """The norms of a mixture of depths' routes, if any, then the final norm."""
        read_out = read_out_in_force(self.network.tl_model)
        return [*([] if read_out is None else map(Norm.of, read_out.norms)), self.final_norm()]

    def read(self, streams: Sequence[Tensor]) -> Tensor:
        """The unembedding's input (..., d_model): the final norm of the last stream, or a mixture of depths.

        ``streams``: the inputs of the blocks from `first_read` on, and the output of the last; each (..., d_model).
        """
        read_out = read_out_in_force(self.network.tl_model)
        norms = self.read_norms()
        return norms[-1](streams[-1]) if read_out is None else read_out.combine(streams, norms)


def _joined_if_adjacent(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Matrices (d_model, n) adjacent in memory as one view, with joined biases; any others unchanged."""
    if any(torch._C._functorch.is_functorch_wrapped_tensor(weight) for weight in weights):
        return tuple(weights), tuple(biases)  # torch.func hides a tensor's memory
    first, column = weights[0], weights[0].storage_offset()
    for weight in weights:
        same = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or weight.stride() != first.stride() or weight.storage_offset() != column:
            return tuple(weights), tuple(biases)
        column += weight.shape[1] * weight.stride(1)
    present = [bias for bias in biases if bias is not None]
    if present and len(present) < len(biases):
        return tuple(weights), tuple(biases)
    width = sum(weight.shape[1] for weight in weights)
    return (first.as_strided((first.shape[0], width), first.stride()),), (torch.cat(present) if present else None,)


# ---- differences between the backends


def _activation(module: Any) -> Callable[[Tensor], Tensor]:
    """An MLP's activation function; PyTorch's fused one for the tanh approximation of GELU."""
    inner = getattr(module, "original_component", module)
    if inner is module and module.cfg.act_fn == "gelu_new":
        return partial(F.gelu, approximate="tanh")
    names = ("act_fn", "act", "activation_fn")
    function: Any = next((value for name in names if callable(value := getattr(inner, name, None))), None)
    if type(function).__name__ in ("NewGELUActivation", "GELUTanh"):
        return partial(F.gelu, approximate="tanh")
    return function


def _scale(attention: Any) -> float:
    inner = getattr(attention, "original_component", None)
    return 1.0 / float(attention.attn_scale) if inner is None else float(inner.scaling)


def _window(network: Network, layer: int) -> int | None:
    attention = network.tl_model.blocks[layer].attn
    if network.backend == "hooked":
        return int(attention.cfg.window_size) if attention.attn_type == "local" else None
    inner = attention.original_component
    if hasattr(inner, "sliding_window"):
        return inner.sliding_window if inner.sliding_window is None else int(inner.sliding_window)
    config = network.tl_model.original_model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[layer] == "full_attention":
        return None
    return getattr(config, "sliding_window", None)


def _hooked_fits(tl_model: Any) -> bool:
    cfg = tl_model.cfg
    if type(tl_model).__name__ != "HookedTransformer" or cfg.n_devices != 1 or cfg.attention_dir != "causal":
        return False
    if any(getattr(cfg, name, None) for name in _UNUSUAL) or cfg.positional_embedding_type not in (
        "standard",
        "rotary",
    ):
        return False
    if any((getattr(cfg, f"{name}_soft_cap", None) or 0) > 0 for name in ("attn_scores", "output_logits")):
        return False
    read_out = read_out_of(tl_model)
    if read_out is not None and any(type(norm) is not norm_kind(tl_model.ln_final) for norm in read_out.norms):
        return False
    norms = [
        getattr(tl_model, "ln_final", None),
        *(getattr(b, n, None) for b in tl_model.blocks for n in ("ln1", "ln2")),
    ]
    kinds = {type(norm).__name__ for norm in norms}
    return kinds <= _HOOKED_NORMS and all(_known_block(block) for block in tl_model.blocks)


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
    )


def _bridge_fits(tl_model: Any) -> bool:
    if not has_plain_weights(tl_model):
        return False
    cfg, config = tl_model.cfg, tl_model.original_model.config.get_text_config()
    rotary = cfg.positional_embedding_type == "rotary"
    if not rotary and cfg.positional_embedding_type != "standard":
        return False
    if rotary and not hasattr(getattr(tl_model, "rotary_emb", None), "original_component"):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return False  # its tables depend on the length of the sequence, or on the layer
    return all(_known_bridge_block(block) for block in tl_model.blocks)


def _known_bridge_block(block: Any) -> bool:
    parts = {name for name, _ in block.named_children() if not name.startswith(("hook_", "_"))}
    if not {"ln1", "attn"} <= parts <= {"ln1", "ln2", "attn", "mlp"}:
        return False
    attention = block.attn.original_component
    known = hasattr(attention, "scaling") and not any(
        getattr(attention, name, None) is not None for name in ("q_norm", "k_norm", "sinks", "attn_logit_softcapping")
    )
    mlp = getattr(block, "mlp", None)
    return known and (mlp is None or (_activation(mlp) is not None and getattr(mlp, "W_in", None) is not None))
