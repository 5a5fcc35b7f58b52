"""Every quantity of the matrix by a plain loop over the transformers model itself: one whole pass per number, changed
by torch's own hooks on its modules. Nothing here is shared with the package."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.activations import ACT2FN

Split = Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""From what one fused map writes, (..., width), and the number of heads to queries, keys and values (..., heads, d)."""


@dataclass(frozen=True)
class Names:
    """What the parts of a block and of the model around the blocks are called in an architecture's own code."""

    attention: str | None = "self_attn.o_proj"
    """The last linear map of attention: it reads the heads one after the other. None where not every block has it; of
    two names with a stroke between them, a block has one."""
    mlp: str | None = "mlp"
    """What writes the MLP's output."""
    mlp_reads: str | tuple[str, ...] | None = "post_attention_layernorm"
    """What the stream enters on its way to the MLP; None where the MLP does not read the same block's attention."""
    mlp_enters: str | None = "mlp"
    """What the normed stream enters: the MLP itself, or its first linear map."""
    neurons: str | None = "mlp.down_proj"
    """The last linear map of the MLP; None for experts."""
    activation: str = "hidden_act"
    """Where the configuration says which activation function the MLP has; with a dot, the function's module."""
    qkv: str | tuple[str, str, str] | None = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """The linear maps to queries, keys and values, or the one to all; None where there are no such maps."""
    split: Split | None = None
    """Of what one map to all three writes."""
    norm: str | None = "input_layernorm"
    """The norm before attention; None where attention reads the stream itself."""
    mlp_norm: str | None = None
    """The norm between the MLP and the stream, where there is one."""
    final_norm: str | None = "model.norm"
    """The norm before the unembedding; None without one."""
    post_norm: bool = False
    """Whether the stream itself is normed after attention and after the MLP."""
    neuron_norm: str | None = None
    """The norm between the activation function and the last linear map of the MLP, where there is one."""
    attention_gate: str | None = None
    """The linear map of the stream to gates of what the heads write, where there is one."""
    gate_factor: float = 1.0
    """By which what enters the activation function is multiplied."""
    row_factor: str | None = None
    """Where the configuration says what the rows of ids are multiplied by, but not rows that the model is given."""
    attention_norm: str | None = None
    """The norm between attention and the stream, where there is one."""


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1))


def _in_turn(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """All queries, then all keys, then all values."""
    q, k, v = x.chunk(3, -1)
    return _heads(q, heads), _heads(k, heads), _heads(v, heads)


def _in_turn_shared(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """All queries, then the keys and the values of half as many heads."""
    q, k, v = x.split([x.shape[-1] // 2, x.shape[-1] // 4, x.shape[-1] // 4], -1)
    return _heads(q, heads), _heads(k, heads // 2), _heads(v, heads // 2)


def _in_turn_one(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """All queries, then one key and one value for all heads."""
    size = x.shape[-1] // (heads + 2)
    q, k, v = x.split([heads * size, size, size], -1)
    return _heads(q, heads), _heads(k, 1), _heads(v, 1)


def _by_head(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of one head, then of the next."""
    q, k, v = _heads(x, heads).chunk(3, -1)
    return q, k, v


def _by_head_value_first(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, v, k = _heads(x, heads).chunk(3, -1)
    return q, k, v


def _by_group(x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two queries, their key and their value, then the next group."""
    groups = x.unflatten(-1, (heads // 2, 4, -1))
    return groups[..., :2, :].flatten(-3, -2), groups[..., 2, :], groups[..., 3, :]


_LLAMA = Names()
_PARALLEL = replace(_LLAMA, mlp_reads=None)
_EXPERTS = replace(_LLAMA, neurons=None)
_GPT2 = Names(
    attention="attn.c_proj", mlp_reads="ln_2", neurons="mlp.c_proj", activation="activation_function",
    qkv="attn.c_attn", split=_in_turn, norm="ln_1", final_norm="transformer.ln_f",
)  # fmt: skip
_GPTJ = replace(
    _GPT2, attention="attn.out_proj", mlp_reads=None, neurons="mlp.fc_out",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"), split=None,
)  # fmt: skip
_NEO = replace(
    _GPT2, attention="attn.attention.out_proj", split=None,
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
)  # fmt: skip
_NEOX = Names(
    attention="attention.dense", neurons="mlp.dense_4h_to_h", qkv="attention.query_key_value", split=_by_head,
    final_norm="gpt_neox.final_layer_norm",
)  # fmt: skip
_OPT = Names(
    attention="self_attn.out_proj", mlp="fc2", mlp_reads="final_layer_norm", mlp_enters="fc1", neurons="fc2",
    activation="activation_function", norm="self_attn_layer_norm", final_norm="model.decoder.final_layer_norm",
)  # fmt: skip
_BLOOM = Names(
    attention="self_attention.dense", mlp="mlp.dense_4h_to_h", neurons="mlp.dense_4h_to_h", activation="gelu_new",
    qkv="self_attention.query_key_value", split=_by_head, final_norm="transformer.ln_f",
)  # fmt: skip
_FALCON = replace(_BLOOM, activation="activation", mlp_reads=None, split=_in_turn_one)
_GEMMA2 = replace(
    _LLAMA, mlp_reads="pre_feedforward_layernorm", activation="hidden_activation",
    mlp_norm="post_feedforward_layernorm", attention_norm="post_attention_layernorm",
)  # fmt: skip
_OLMO2 = replace(
    _LLAMA, mlp_reads="mlp", norm=None, mlp_norm="post_feedforward_layernorm", attention_norm="post_attention_layernorm"
)
_PHI3 = replace(_LLAMA, qkv="self_attn.qkv_proj", split=_in_turn_shared)
_LATENT = replace(_EXPERTS, qkv=None)
_MAMBA = Names(None, None, None, None, None, "", None, None, "norm", None, "backbone.norm_f")

NAMES: dict[str, Names] = {
    "gpt2": _GPT2,
    "gpt2_narrow_mlp": _GPT2,
    "openai_gpt": replace(_GPT2, activation="gelu_new", final_norm=None, norm=None, post_norm=True),
    "gpt2_scaled_by_layer": _GPT2,
    "gpt_neo": _NEO,
    "gpt_neo_narrow_mlp": _NEO,
    "gptj": _GPTJ,
    "codegen": replace(_GPTJ, qkv="attn.qkv_proj", split=_by_head_value_first),
    "gpt_neox": replace(_NEOX, mlp_reads=None),
    "gpt_neox_sequential": _NEOX,
    "gpt_bigcode": replace(_GPT2, split=_in_turn_one),
    "opt": _OPT,
    "opt_post_norm": replace(_OPT, final_norm=None, norm=None, post_norm=True),
    "xglm": replace(_OPT, final_norm="model.layer_norm"),
    "biogpt": replace(_OPT, activation="hidden_act", final_norm="biogpt.layer_norm"),
    "bloom": _BLOOM,
    "bloom_norm_in_stream": _BLOOM,
    "mpt": Names(
        attention="attn.out_proj", mlp="ffn.down_proj", mlp_reads="norm_2", mlp_enters="ffn",
        neurons="ffn.down_proj", activation="gelu", qkv="attn.Wqkv", split=_in_turn, norm="norm_1",
        final_norm="transformer.norm_f",
    ),
    "falcon": _FALCON,
    "falcon_alibi": replace(_FALCON, mlp_reads="post_attention_layernorm", split=_by_head),
    "falcon_sequential": replace(_FALCON, mlp_reads="post_attention_layernorm"),
    "falcon_new_decoder": replace(_FALCON, split=_by_group, norm="ln_attn"),
    "llama4": replace(_EXPERTS, mlp="feed_forward", mlp_enters="feed_forward"),
    "apertus": replace(
        _LLAMA, mlp_reads="feedforward_layernorm", norm="attention_layernorm", activation="mlp.act_fn"
    ),
    "bitnet": replace(_LLAMA, neuron_norm="mlp.ffn_sub_norm"),
    "nanochat": replace(_LLAMA, neurons="mlp.fc2"),
    "mixtral": _EXPERTS,
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "qwen3_next": replace(_EXPERTS, attention=None, qkv=None),
    "qwen3_5_moe": replace(_EXPERTS, attention=None, qkv=None),
    "qwen3_5": replace(_LLAMA, attention=None, qkv=None),
    "olmoe": _EXPERTS,
    "gpt_oss": _EXPERTS,
    "phimoe": _EXPERTS,
    "granitemoe": replace(_EXPERTS, mlp="block_sparse_moe"),
    "granite_hybrid": replace(_LLAMA, attention=None, qkv=None, mlp=None, mlp_reads=None, neurons=None),
    "granite_hybrid_dense": replace(
        _LLAMA, mlp="shared_mlp", mlp_enters="shared_mlp", neurons="shared_mlp.output_linear"
    ),
    "glm4_moe": _EXPERTS,
    "minimax_m2": _EXPERTS,
    "afmoe": replace(
        _EXPERTS, mlp_reads="pre_mlp_layernorm", mlp_norm="post_mlp_layernorm", attention_gate="self_attn.gate_proj",
        attention_norm="post_attention_layernorm",
    ),
    "ernie4_5_moe": _EXPERTS,
    "gemma": _LLAMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA2,
    "gemma4": _GEMMA2,
    "gemma4_experts": replace(
        _GEMMA2, neurons=None, mlp="post_feedforward_layernorm",
        mlp_reads=("pre_feedforward_layernorm", "pre_feedforward_layernorm_2", "router"),
    ),
    "gemma4_rows_of_its_own": _GEMMA2,
    "gemma3_with_images": replace(_GEMMA2, final_norm="model.language_model.norm"),
    "vaultgemma": replace(_GEMMA2, mlp_norm=None, attention_norm=None),
    "phi": replace(
        _PARALLEL, attention="self_attn.dense", neurons="mlp.fc2", final_norm="model.final_layernorm"
    ),
    "phi3": _PHI3,
    "phi3_longrope": _PHI3,
    "stablelm_parallel": _PARALLEL,
    "starcoder2": replace(_LLAMA, neurons="mlp.c_proj"),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "exaone4": _OLMO2,
    "cohere": _PARALLEL,
    "cohere2": _PARALLEL,
    "persimmon": replace(
        _LLAMA, attention="self_attn.dense", neurons="mlp.dense_4h_to_h", qkv="self_attn.query_key_value",
        split=_by_head, final_norm="model.final_layernorm",
    ),
    "glm4": replace(_LLAMA, mlp_norm="post_mlp_layernorm", attention_norm="post_self_attn_layernorm"),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v3_yarn": _LATENT,
    "youtu": replace(_LLAMA, qkv=None),
    "dbrx": Names(
        attention="norm_attn_norm.attn.out_proj", mlp="ffn", mlp_reads="norm_attn_norm.norm_2", mlp_enters="ffn",
        neurons=None, qkv="norm_attn_norm.attn.Wqkv", split=_in_turn_shared, norm="norm_attn_norm.norm_1",
        final_norm="transformer.norm_f",
    ),
    "jetmoe": replace(_EXPERTS, attention="self_attention", qkv=None),
    "lfm2": replace(
        _LLAMA, attention=None, qkv=None, mlp="feed_forward", mlp_reads="ffn_norm", mlp_enters="feed_forward",
        neurons="feed_forward.w2", activation="silu", norm="operator_norm", final_norm="model.embedding_norm",
    ),
    "lfm2_moe": replace(
        _LLAMA, attention=None, qkv=None, mlp="feed_forward", mlp_reads="ffn_norm", mlp_enters="feed_forward",
        neurons=None, norm="operator_norm", final_norm="model.embedding_norm",
    ),
    "modernbert_decoder": replace(
        _LLAMA, attention="attn.Wo", mlp_reads="mlp_norm", neurons="mlp.Wo", activation="hidden_activation",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"), norm="attn_norm", final_norm="model.final_norm",
    ),
    "bert_decoder": Names(
        attention="attention.output.dense", mlp="output.dense", mlp_reads="intermediate",
        mlp_enters="intermediate.dense", neurons="output.dense",
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"), norm=None,
        final_norm="cls.predictions.transform.LayerNorm", post_norm=True,
    ),
    "falcon_h1": replace(
        _LLAMA, mlp="feed_forward", mlp_reads="pre_ff_layernorm", mlp_enters="feed_forward",
        neurons="feed_forward.down_proj", gate_factor=0.7, final_norm="model.final_layernorm",
        row_factor="embedding_multiplier",
    ),
    "zamba2": replace(_MAMBA, norm="input_layernorm", final_norm="model.final_layernorm"),
    "jamba": replace(
        _LLAMA, attention=None, qkv=None, mlp="feed_forward", mlp_reads="pre_ff_layernorm",
        mlp_enters="feed_forward", neurons=None, final_norm="model.final_layernorm",
    ),
    "recurrent_gemma": replace(
        _LLAMA, attention=None, qkv=None, mlp="mlp_block", mlp_reads="channel_pre_norm", mlp_enters="mlp_block",
        neurons="mlp_block.down_proj", activation="hidden_activation", norm="temporal_pre_norm",
        final_norm="model.final_norm",
    ),
    "bamba": replace(
        _LLAMA, attention=None, qkv=None, mlp="feed_forward", mlp_reads="pre_ff_layernorm",
        mlp_enters="feed_forward", neurons="feed_forward.down_proj", final_norm="model.final_layernorm",
    ),
    "nemotron_h": replace(_MAMBA, final_norm="model.norm_f"),
    "mamba2": _MAMBA,
    "falcon_mamba": _MAMBA,
    "rwkv": replace(_MAMBA, norm="ln1", final_norm="rwkv.ln_out"),
    "mamba": _MAMBA,
}  # fmt: skip
"""By the names of `models.ARCHITECTURES`; what is not here is called as in LLaMA."""


def names_of(architecture: str) -> Names:
    """What the parts of an architecture are called."""
    return NAMES.get(architecture, _LLAMA)


Hook = tuple[torch.nn.Module, Callable[[Tensor], Tensor], bool]
"""A module, what to make of the value there, and whether that is the value which enters the module."""


class Naive:
    """A transformers model, looked into and changed by whole passes."""

    def __init__(self, hf_model: Any, names: Names) -> None:
        self.hf = hf_model
        self.names = names
        self.config = hf_model.config.get_text_config()
        self.layers = next(
            module
            for _, module in hf_model.named_modules()
            if isinstance(module, torch.nn.ModuleList) and len(module) == self.config.num_hidden_layers
        )
        self.n_heads = self.config.num_attention_heads if names.attention else 0
        self._eager: Any = None

    def has(self, part: str) -> bool:
        """Whether the architecture has what a field of `Names` names."""
        if part == "unembedding":  # from the stream itself, not from a projection of it
            return bool(self.hf.get_output_embeddings().in_features == self.config.hidden_size)
        if part == "pre_norm":
            return not self.names.post_norm
        return getattr(self.names, part) is not None

    @property
    def parallel(self) -> bool:
        """Whether the MLP runs beside the attention, which it never reads: no effect between them is 0, not unknown."""
        return self.names.attention is not None and self.names.mlp_reads is None

    def part(self, layer: int, name: str) -> torch.nn.Module:
        block = self.layers[layer]
        first, _, second = name.partition("|")
        return block.get_submodule(second if second and not hasattr(block, first.split(".")[0]) else first)

    def embeddings(self, ids: Sequence[int]) -> Tensor:
        """(1, tokens, width) rows of the embedding."""
        with torch.no_grad():
            rows: Tensor = self.hf.get_input_embeddings()(torch.tensor([list(ids)]))
        return rows

    # ---- passes

    def logits(self, inputs: Sequence[int] | Tensor, hooks: Iterable[Hook] = ()) -> Tensor:
        """(tokens, vocabulary) of one sequence of ids, or of embeddings (1, tokens, width)."""
        with torch.no_grad():
            return self._pass(inputs, hooks)

    def slope(
        self, ids: Sequence[int], number: Callable[[Tensor], Tensor], hooks: Callable[[Tensor], Iterable[Hook]]
    ) -> Tensor:
        """The derivative of a number of the logits by a factor that hooks depend on, where it is 0."""
        factor = torch.zeros((), dtype=self.hf.dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(number(self._pass(ids, hooks(factor))), factor)
        return slope

    def _pass(self, inputs: Sequence[int] | Tensor, hooks: Iterable[Hook] = ()) -> Tensor:
        if isinstance(inputs, Tensor):
            fed = {"inputs_embeds": inputs * getattr(self.config, self.names.row_factor or "", 1.0)}
        else:
            fed = {"input_ids": torch.tensor([list(inputs)])}
        with _attached(hooks):
            logits: Tensor = self.hf(**fed, use_cache=False).logits[0]
        return logits

    def values(
        self,
        inputs: Sequence[int] | Tensor,
        wanted: Iterable[tuple[torch.nn.Module, bool]],
        hooks: Sequence[Hook] = (),
        *,
        differentiable: bool = False,
    ) -> list[Tensor]:
        """The values (tokens, width) that enter modules, or leave them; ``hooks`` act before they are read."""
        store: dict[int, Tensor] = {}

        def keep(number: int) -> Callable[[Tensor], Tensor]:
            def copy(value: Tensor) -> Tensor:
                store[number] = value.clone()  # a block may go on in place
                return value

            return copy

        reading = [(module, keep(number), enters) for number, (module, enters) in enumerate(wanted)]
        (self._pass if differentiable else self.logits)(inputs, [*hooks, *reading])
        return [store[number].flatten(0, -2) for number in range(len(store))]

    def streams(self, inputs: Sequence[int] | Tensor) -> Tensor:
        """(layers + 1, tokens, width) the residual stream that enters every block, and that leaves the last."""
        return torch.stack(self.values(inputs, [*[(layer, True) for layer in self.layers], (self.layers[-1], False)]))

    def generate(self, ids: Sequence[int], count: int, hooks: Sequence[Hook] = ()) -> list[int]:
        """Greedy, every token by a pass over the whole sequence."""
        new: list[int] = []
        for _ in range(count):
            new.append(int(self.logits([*ids, *new], hooks)[-1].argmax()))
        return new

    # ---- attribution

    def _targets(self, inputs: Tensor, n_prompt: int, response: Sequence[int], hooks: Sequence[Hook] = ()) -> Tensor:
        rows = self._pass(inputs, hooks)[n_prompt - 1 : -1].softmax(-1)
        return rows[torch.arange(len(response)), torch.tensor(list(response))]

    def exact(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        positions: Sequence[int],
        hooks: Sequence[Hook] = (),
    ) -> Tensor:
        """(positions, response) fall of every probability when the row of one prompt token is zero."""
        with torch.no_grad():
            rows = self.embeddings([*prompt, *response])
            clean, falls = self._targets(rows, len(prompt), response, hooks), []
            for position in positions:
                without = rows.clone()
                without[0, position] = 0
                falls.append(clean - self._targets(without, len(prompt), response, hooks))
        return torch.stack(falls)

    def first_order(
        self, prompt: Sequence[int], response: Sequence[int], numbers: Sequence[int] | None = None
    ) -> tuple[Tensor, float]:
        """(prompt, response) gradient of every probability, or of some, times the row; and the largest sum of sizes
        that a number is made of. Where rows are normed first, the products cancel, and rounding is what remains."""
        columns, size = [], 0.0
        for number in range(len(response)) if numbers is None else numbers:
            rows = self.embeddings([*prompt, *response]).requires_grad_(True)
            value = self._targets(rows, len(prompt), response)[number]
            (gradient,) = torch.autograd.grad(value, rows)
            products = (gradient * rows)[0, : len(prompt)].detach()
            columns.append(products.sum(-1))
            size = max(size, float(products.abs().sum(-1).max()))
        return torch.stack(columns, 1), size

    # ---- readings and changes

    def lens(self, ids: Sequence[int]) -> Tensor:
        """(layers + 1, tokens, vocabulary) logits where all blocks from one on hand on what they get."""
        return torch.stack([self.logits(ids, self._skipping(layer)) for layer in range(len(self.layers) + 1)])

    def _skipping(self, first: int) -> list[Hook]:
        hooks: list[Hook] = []
        for layer in list(self.layers)[first:]:
            store: list[Tensor] = []
            hooks.append((layer, _keeping(store), True))
            hooks.append((layer, _from(store), False))
        return hooks

    def without(self, kind: str, layer: int, positions: slice | Sequence[int] = slice(None)) -> list[Hook]:
        """What takes ``attn``, ``mlp``, ``both`` or ``attn_to_mlp`` of a layer out at some positions."""
        names = self.names
        if kind == "both":
            return self.without("attn", layer, positions) + self.without("mlp", layer, positions)
        if kind != "attn_to_mlp":
            name = names.attention if kind == "attn" else names.mlp
            assert name is not None
            return [(self.part(layer, name), _put(positions, 0.0), False)]
        if names.mlp_reads is None:
            return []
        store: list[Tensor] = []
        reading = [names.mlp_reads] if isinstance(names.mlp_reads, str) else names.mlp_reads
        return [
            (self.layers[layer], _keeping(store), True),
            *((self.part(layer, name), _rows_from(store, positions), True) for name in reading),
        ]

    def without_head(self, layer: int, head: int, positions: slice | Sequence[int] = slice(None)) -> list[Hook]:
        assert self.names.attention is not None

        def change(value: Tensor) -> Tensor:
            parts = _heads(value.clone(), self.n_heads)
            parts[..., positions, head, :] = 0
            return parts.flatten(-2)

        return [(self.part(layer, self.names.attention), change, True)]

    def head_outputs(self, inputs: Sequence[int]) -> Tensor:
        """(layers, tokens, heads, d) what the last linear map of attention reads, by heads."""
        assert self.names.attention is not None
        reading = [(self.part(i, self.names.attention), True) for i in range(len(self.layers))]
        return torch.stack([_heads(value, self.n_heads) for value in self.values(inputs, reading)])

    def setting_heads(self, layer: int, new: dict[int, Tensor]) -> list[Hook]:
        """The outputs (tokens, d) of some heads."""
        assert self.names.attention is not None

        def change(value: Tensor) -> Tensor:
            parts = _heads(value.clone(), self.n_heads)
            for head, rows in new.items():
                parts[..., head, :] = rows
            return parts.flatten(-2)

        return [(self.part(layer, self.names.attention), change, True)]

    def setting_mlp(self, layer: int, new: Tensor) -> list[Hook]:
        """What the MLP writes (tokens, width)."""
        return self.restoring("mlp", layer, slice(None), new)

    def keeping_gates(self, ids: Sequence[int], layer: int) -> list[Hook]:
        """What keeps the gates of attention as they are for these tokens."""
        if self.names.attention_gate is None:
            return []
        module = self.part(layer, self.names.attention_gate)
        (gates,) = self.values(ids, [(module, False)])
        return [(module, _put(slice(None), gates), False)]

    def mlp_reading(self, ids: Sequence[int], layer: int, added: Tensor) -> list[Hook]:
        """A vector for each token (tokens, width) added to the stream that the MLP of a layer alone reads."""
        names = self.names
        if (
            names.mlp_reads is None
        ):  # beside the attention: what would enter it if the whole block read the other stream
            assert names.mlp_enters is not None
            module = self.part(layer, names.mlp_enters)
            moved = self.adding(layer, added)
            (entering,) = self.values(ids, [(module, True)], moved, differentiable=added.requires_grad)
            return [(module, _put(slice(None), entering), True)]
        reading = [names.mlp_reads] if isinstance(names.mlp_reads, str) else names.mlp_reads
        return [(self.part(layer, name), lambda value: value + added.reshape(value.shape), True) for name in reading]

    def patterns(self, ids: Sequence[int]) -> list[Tensor]:
        """For each layer the attention patterns (heads, tokens, tokens)."""
        if self._eager is None:
            # made anew: transformers' Falcon computes other patterns where another attention was chosen first
            eager = type(self.hf)._from_config(copy.deepcopy(self.hf.config), attn_implementation="eager")
            self._eager = eager.to(self.hf.dtype).eval()
            self._eager.load_state_dict(self.hf.state_dict())
        with torch.no_grad():
            found = self._eager(torch.tensor([list(ids)]), output_attentions=True, use_cache=False).attentions
        return [pattern[0] for pattern in found]

    def without_neuron(self, layer: int, neuron: int, positions: slice | Sequence[int]) -> list[Hook]:
        assert self.names.neurons is not None

        def change(value: Tensor) -> Tensor:
            value = value.clone()
            value[..., positions, neuron] = 0
            return value

        return [(self.part(layer, self.names.neurons), change, True)]

    def rewriting(self, layer: int, neurons: Sequence[int], vector: Tensor) -> list[Hook]:
        """Neurons that write twice what they did, and a vector added to what their output matrix writes."""
        assert self.names.neurons is not None

        def change(value: Tensor) -> Tensor:
            value = value.clone()
            value[..., neurons] *= 2
            return value

        output = self.part(layer, self.names.neurons)
        return [(output, change, True), (output, lambda value: value + vector, False)]

    def changing(self, layer: int, change: Callable[[Tensor], Tensor]) -> list[Hook]:
        """A change of the stream that enters a block, or that leaves the last one."""
        last = layer == len(self.layers)
        return [(self.layers[layer - 1 if last else layer], change, not last)]

    def adding(self, layer: int, vector: Tensor) -> list[Hook]:
        """A vector added to the stream that enters a block, or that leaves the last one."""
        return self.changing(layer, lambda value: value + vector)

    def restoring(self, kind: str, layer: int, position: int | slice, value: Tensor) -> list[Hook]:
        """A value (width,) put at one position, or values at several: the stream behind a block, or what its attention
        or MLP writes."""
        positions = position if isinstance(position, slice) else [position]
        if kind == "state":
            return [(self.layers[layer], _put(positions, value), False)]
        name = self.names.attention if kind == "attn" else self.names.mlp
        assert name is not None
        return [(self.part(layer, name), _put(positions, value), False)]

    def writes(self, inputs: Sequence[int] | Tensor, kind: str) -> Tensor:
        """(layers, tokens, width) what blocks hand on (``state``), or what their attention or MLP writes."""
        if kind == "state":
            return self.streams(inputs)[1:]
        name = self.names.attention if kind == "attn" else self.names.mlp
        assert name is not None
        return torch.stack(self.values(inputs, [(self.part(i, name), False) for i in range(len(self.layers))]))

    # ---- weights, read off what modules do

    def qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (rows, heads, d) of rows (rows, width) that enter attention behind its norm."""
        names = self.names
        assert names.qkv is not None
        with torch.no_grad():
            if isinstance(names.qkv, str):
                assert names.split is not None
                return names.split(self.part(layer, names.qkv)(x[None])[0], self.n_heads)
            q, k, v = (self.part(layer, name)(x[None])[0] for name in names.qkv)
        size = q.shape[-1] // self.n_heads
        return tuple(part.unflatten(-1, (-1, size)) for part in (q, k, v))  # type: ignore[return-value]

    def head_numbers(self, layer: int, site: str) -> tuple[torch.nn.Module, Tensor]:
        """The module that writes queries, keys or values (``q``, ``k`` or ``v``), and (heads, d) which numbers of what
        it writes are those of each head."""
        names, which = self.names, "qkv".index(site)
        assert names.qkv is not None
        module: Any = self.part(layer, names.qkv if isinstance(names.qkv, str) else names.qkv[which])
        with torch.no_grad():
            width = module(torch.zeros(1, 1, self.config.hidden_size, dtype=self.hf.dtype)).shape[-1]
            numbers = torch.arange(width, dtype=torch.double)
            if isinstance(names.qkv, str):
                assert names.split is not None
                return module, names.split(numbers[None], self.n_heads)[which][0].long()
        return module, numbers.long().unflatten(0, (-1, self.size(layer)))

    def size(self, layer: int) -> int:
        """The width of a head."""
        query, _, _ = self.qkv(layer, torch.zeros(1, self.config.hidden_size, dtype=self.hf.dtype))
        return int(query.shape[-1])

    def patching_head(self, layer: int, site: str, head: int, position: int | slice, new: Tensor) -> list[Hook]:
        """The query, key or value of one head at one position, or at several."""
        module, numbers = self.head_numbers(layer, site)

        def change(value: Tensor) -> Tensor:
            value = value.clone()
            value[..., position, numbers[head]] = new
            return value

        return [(module, change, False)]

    def neurons(self, layer: int, x: Tensor, linear: Tensor | None = None) -> Tensor:
        """What enters the last linear map, from what enters the activation function, and for gated ones the linear
        branch."""
        names, wide = self.names, x.dtype
        x = x * names.gate_factor
        with torch.no_grad():
            if "." in names.activation:
                y = self.part(layer, names.activation)(x.to(self.hf.dtype)).to(wide)
            else:
                y = ACT2FN[getattr(self.config, names.activation, names.activation)](x)
            y = y if linear is None else y * linear
            return y if names.neuron_norm is None else self.part(layer, names.neuron_norm)(y.to(self.hf.dtype)).to(wide)

    def norm(self, layer: int | None) -> torch.nn.Module | None:
        """The norm before a layer's attention, or with None the final one; None where there is none."""
        if layer is None:
            return None if self.names.final_norm is None else self.hf.get_submodule(self.names.final_norm)
        return None if self.names.norm is None else self.part(layer, self.names.norm)

    def scale(self, norm: torch.nn.Module | None) -> Tensor:
        """(width,) what a norm multiplies by; ones without one."""
        width = self.config.hidden_size
        if norm is None or isinstance(norm, torch.nn.Identity):
            return torch.ones(width, dtype=self.hf.dtype)
        signs = torch.ones(width, dtype=self.hf.dtype)
        signs[::2] = -1
        with torch.no_grad():  # far above any epsilon; biases cancel
            return (norm(1e4 * signs[None, None])[0, 0] - norm(-1e4 * signs[None, None])[0, 0]) / 2 * signs

    def linear(self, module: torch.nn.Module, width: int) -> Tensor:
        """(width, out) the matrix of a linear map, without its bias."""
        with torch.no_grad():
            rows = torch.eye(width, dtype=self.hf.dtype)[None]
            return (module(rows) - module(torch.zeros_like(rows)))[0]


@contextmanager
def _attached(hooks: Iterable[Hook]) -> Iterator[None]:
    with ExitStack() as stack:
        for module, change, enters in hooks:
            handle = (
                module.register_forward_pre_hook(_entering(change), with_kwargs=True)
                if enters
                else module.register_forward_hook(_leaving(change))
            )
            stack.callback(handle.remove)
        yield


def _entering(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, name: change(kwargs[name])}

    return hook


def _leaving(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


def _put(positions: slice | Sequence[int], new: Tensor | float) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., positions, :] = new
        return value

    return change


def _keeping(store: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def keep(value: Tensor) -> Tensor:
        store[:] = [value]
        return value

    return keep


def _from(store: list[Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda value: store[0]


def _rows_from(store: list[Tensor], positions: slice | Sequence[int]) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., positions, :] = store[0][..., positions, :].reshape(value[..., positions, :].shape)
        return value

    return change


def noise(seed: int, samples: int, tokens: int, width: int) -> Tensor:
    """(samples, tokens, width) the noise that a seed stands for: NumPy's default generator."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((samples, tokens, width)))
