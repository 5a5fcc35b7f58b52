"""Random transformers models of every shape of attention, for the tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf

from interp_widgets.models import Model, load_model

IDS_OF: dict[str, Any] = {"vocab_size": 128, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0}
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.3, **IDS_OF,
}  # fmt: skip
OTHER: dict[str, Any] = {"hidden_size": 32, "initializer_range": 0.3, **IDS_OF}
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}
GEMMA: dict[str, Any] = {
    **GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: tf.GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3, **IDS_OF),
    "llama": lambda: tf.LlamaConfig(**GROUPED),
    "gpt_neox": lambda: tf.GPTNeoXConfig(use_parallel_residual=True, rotary_pct=0.25, **SMALL),
    "mistral": lambda: tf.MistralConfig(sliding_window=4, head_dim=8, **GROUPED),
    "qwen3": lambda: tf.Qwen3Config(head_dim=8, **GROUPED),
    "gemma2": lambda: tf.Gemma2Config(attn_logit_softcapping=2.0, final_logit_softcapping=3.0, **GEMMA),
    "gemma3": lambda: tf.Gemma3TextConfig(**GEMMA),
    "bloom": lambda: tf.BloomConfig(n_layer=3, n_head=4, **OTHER),
    "falcon": lambda: tf.FalconConfig(num_hidden_layers=3, num_attention_heads=4, ffn_hidden_size=48, **OTHER),
    "mamba": lambda: tf.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **IDS_OF),
}  # fmt: skip
HOOKED = ("gpt2", "llama", "gpt_neox")
"""Those whose conversion to HookedTransformer is right."""
SHAPES = [
    *(pytest.param(name, "hooked", id=f"{name}-hooked", marks=pytest.mark.hooked) for name in HOOKED),
    *(pytest.param(name, "bridge", id=f"{name}-bridge") for name in CONFIGS if name != "mamba"),
]
IDS = [3, 17, 42, 8, 5, 99, 42, 61, 17]


def hf_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A new random transformers model, always of the same weights; norms and biases are random too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype)


@functools.cache
def model_of(name: str, backend: Any = "bridge", dtype: torch.dtype = torch.float32) -> Model:
    """The model as this package loads it (shared: leave it as it was)."""
    if name == "mamba":
        return load_model(tf.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval(), backend="bridge")
    return load_model(hf_model(name, dtype), backend=backend)
