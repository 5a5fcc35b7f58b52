"""Tiny random models of the architectures that users load: every boundary that a configuration declares lies within
a test prompt, and dropping any bias or scale shows in the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

VOCABULARY, CONTEXT, BOUNDARY = 61, 96, 56
"""Tokens; positions; sliding windows and original contexts, which the longer prompts go beyond and which the 48
tokens that loading compares do not reach."""

LAYERS, WIDTH, HEADS, KV_HEADS, MLP = 2, 32, 4, 2, 48
NO_STOP = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _llama_like(config: type, **changes: Any) -> Any:
    """A configuration with the names that LLaMA introduced; ``changes`` replace its values, None leaves one out."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        **NO_STOP,
    }
    values |= changes
    return config(**{name: value for name, value in values.items() if value is not LEFT_OUT})


LEFT_OUT = object()
"""A value that a configuration does not have."""

NO_GROUPS = {"num_key_value_heads": LEFT_OUT}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LINEAR_FIRST = ["linear_attention", "full_attention"]
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip
SECOND_MAMBA = {
    "mamba_d_state": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16,
    "mamba_expand": 2,
}  # fmt: skip
TWO_KINDS = ["full_attention", "sliding_attention"]


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def _longrope() -> dict[str, Any]:
    half = WIDTH // HEADS // 2
    short, long = [1.0 + 0.1 * i for i in range(half)], [2.0 + 1.5 * i for i in range(half)]
    factors = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": BOUNDARY}
    return {**_rope("longrope", **factors), "original_max_position_embeddings": BOUNDARY}


def _latent(config: type, **changes: Any) -> Any:
    """DeepSeek's: keys and values from a latent vector, experts from the second layer on."""
    return _llama_like(
        config,
        num_key_value_heads=HEADS,
        q_lora_rank=12,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=24,
        first_k_dense_replace=1,
        **changes,
    )


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT, **NO_STOP
    ),
    "gpt2_narrow_mlp": lambda: tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT, n_inner=MLP, **NO_STOP
    ),
    "openai_gpt": lambda: tf.OpenAIGPTConfig(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT
    ),
    "gpt_neo": lambda: tf.GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS, max_position_embeddings=CONTEXT,
        attention_types=[[["global", "local"], 1]], window_size=BOUNDARY, **NO_STOP,
    ),
    "gpt_neo_narrow_mlp": lambda: tf.GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS, max_position_embeddings=CONTEXT,
        attention_types=[[["global", "local"], 1]], window_size=BOUNDARY, intermediate_size=MLP, **NO_STOP,
    ),
    "gptj": lambda: tf.GPTJConfig(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT, rotary_dim=4,
        tie_word_embeddings=False, **NO_STOP,
    ),
    "codegen": lambda: tf.CodeGenConfig(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT, n_ctx=CONTEXT,
        rotary_dim=4, tie_word_embeddings=False, **NO_STOP,
    ),
    "gpt_neox": lambda: _llama_like(tf.GPTNeoXConfig, use_parallel_residual=True, **NO_GROUPS),
    "gpt_neox_sequential": lambda: _llama_like(tf.GPTNeoXConfig, use_parallel_residual=False, **NO_GROUPS),
    "gpt_bigcode": lambda: tf.GPTBigCodeConfig(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT, n_inner=MLP, **NO_STOP
    ),
    "opt": lambda: tf.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, ffn_dim=MLP,
        max_position_embeddings=CONTEXT, word_embed_proj_dim=WIDTH, **NO_STOP | {"pad_token_id": 1},
    ),
    "opt_post_norm": lambda: tf.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, ffn_dim=MLP,
        max_position_embeddings=CONTEXT, word_embed_proj_dim=16, do_layer_norm_before=False,
        **NO_STOP | {"pad_token_id": 1},
    ),
    "xglm": lambda: tf.XGLMConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, num_layers=LAYERS, attention_heads=HEADS, ffn_dim=MLP,
        max_position_embeddings=CONTEXT, **NO_STOP | {"pad_token_id": 1},
    ),
    "biogpt": lambda: _llama_like(tf.BioGptConfig, pad_token_id=1, **NO_GROUPS),
    "bloom": lambda: tf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, **NO_STOP
    ),
    "mpt": lambda: tf.MptConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, max_seq_len=CONTEXT, expansion_ratio=2
    ),
    "falcon": lambda: _llama_like(tf.FalconConfig, ffn_hidden_size=MLP, num_key_value_heads=LEFT_OUT,
                                  intermediate_size=LEFT_OUT),
    "falcon_alibi": lambda: _llama_like(
        tf.FalconConfig, ffn_hidden_size=MLP, alibi=True, parallel_attn=False, multi_query=False, bias=True,
        num_key_value_heads=LEFT_OUT, intermediate_size=LEFT_OUT,
    ),
    "falcon_new_decoder": lambda: _llama_like(
        tf.FalconConfig, ffn_hidden_size=MLP, new_decoder_architecture=True, num_kv_heads=KV_HEADS,
        num_key_value_heads=LEFT_OUT, intermediate_size=LEFT_OUT,
    ),
    "llama": lambda: _llama_like(tf.LlamaConfig),
    "llama_tied": lambda: _llama_like(tf.LlamaConfig, tie_word_embeddings=True),
    "llama_attention_bias": lambda: _llama_like(tf.LlamaConfig, attention_bias=True),
    "llama_mlp_bias": lambda: _llama_like(tf.LlamaConfig, mlp_bias=True),
    "llama_wide_heads": lambda: _llama_like(tf.LlamaConfig, head_dim=12),
    "llama_linear_rope": lambda: _llama_like(tf.LlamaConfig, **_rope("linear", factor=4.0)),
    "llama_dynamic_rope": lambda: _llama_like(tf.LlamaConfig, **_rope("dynamic", factor=4.0)),
    "llama_yarn": lambda: _llama_like(
        tf.LlamaConfig, **_rope("yarn", factor=4.0, original_max_position_embeddings=BOUNDARY)
    ),
    "llama3_rope": lambda: _llama_like(
        tf.LlamaConfig,
        **_rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=BOUNDARY),
    ),
    "mistral_window": lambda: _llama_like(tf.MistralConfig, sliding_window=BOUNDARY),
    "mixtral": lambda: _llama_like(tf.MixtralConfig, num_local_experts=4, num_experts_per_tok=2),
    "qwen2": lambda: _llama_like(tf.Qwen2Config),
    "qwen2_window": lambda: _llama_like(
        tf.Qwen2Config, use_sliding_window=True, sliding_window=BOUNDARY, max_window_layers=1
    ),
    "qwen2_moe": lambda: _llama_like(tf.Qwen2MoeConfig, shared_expert_intermediate_size=24, **EXPERTS),
    "qwen3": lambda: _llama_like(tf.Qwen3Config, head_dim=8),
    "qwen3_next": lambda: _llama_like(
        tf.Qwen3NextConfig, head_dim=8, layer_types=LINEAR_FIRST, shared_expert_intermediate_size=24, **LINEAR,
        **EXPERTS,
    ),
    "qwen3_5": lambda: _llama_like(tf.Qwen3_5TextConfig, head_dim=8, layer_types=LINEAR_FIRST, **LINEAR),
    "qwen3_window": lambda: _llama_like(
        tf.Qwen3Config, head_dim=8, use_sliding_window=True, sliding_window=BOUNDARY, max_window_layers=1
    ),
    "qwen3_moe": lambda: _llama_like(tf.Qwen3MoeConfig, head_dim=8, **EXPERTS),
    "gemma": lambda: _llama_like(tf.GemmaConfig, head_dim=8),
    "gemma2": lambda: _llama_like(
        tf.Gemma2Config, head_dim=8, query_pre_attn_scalar=8, sliding_window=BOUNDARY,
        final_logit_softcapping=3.0, attn_logit_softcapping=5.0,
    ),
    "gemma4": lambda: _llama_like(
        tf.Gemma4TextConfig, head_dim=8, global_head_dim=8, sliding_window=BOUNDARY, hidden_size_per_layer_input=0,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma4_rows_of_its_own": lambda: _llama_like(
        tf.Gemma4TextConfig, head_dim=8, global_head_dim=8, sliding_window=BOUNDARY, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY, layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma3": lambda: _llama_like(
        tf.Gemma3TextConfig, head_dim=8, query_pre_attn_scalar=8, sliding_window=BOUNDARY,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "arcee": lambda: _llama_like(tf.ArceeConfig, head_dim=8),
    "phi": lambda: _llama_like(tf.PhiConfig, num_key_value_heads=HEADS),
    "phi3": lambda: _llama_like(tf.Phi3Config, sliding_window=BOUNDARY),
    "phi3_longrope": lambda: _llama_like(tf.Phi3Config, **_longrope()),
    "phimoe": lambda: _llama_like(tf.PhimoeConfig, num_local_experts=4, num_experts_per_tok=2, attention_bias=True),
    "stablelm": lambda: _llama_like(tf.StableLmConfig, use_qkv_bias=True),
    "stablelm_parallel": lambda: _llama_like(tf.StableLmConfig, use_parallel_residual=True, qk_layernorm=True),
    "starcoder2": lambda: _llama_like(tf.Starcoder2Config, sliding_window=BOUNDARY),
    "olmo": lambda: _llama_like(tf.OlmoConfig, clip_qkv=1.0),
    "olmo2": lambda: _llama_like(tf.Olmo2Config),
    "olmo3": lambda: _llama_like(tf.Olmo3Config, sliding_window=BOUNDARY, layer_types=TWO_KINDS),
    "olmoe": lambda: _llama_like(tf.OlmoeConfig, num_experts=4, num_experts_per_tok=2),
    "cohere": lambda: _llama_like(tf.CohereConfig, logit_scale=0.25),
    "cohere2": lambda: _llama_like(
        tf.Cohere2Config, logit_scale=0.25, sliding_window=BOUNDARY, layer_types=["sliding_attention", "full_attention"]
    ),
    "granite": lambda: _llama_like(
        tf.GraniteConfig, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0,
        attention_multiplier=0.2,
    ),
    "granitemoe": lambda: _llama_like(
        tf.GraniteMoeConfig, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0,
        attention_multiplier=0.2, num_local_experts=4, num_experts_per_tok=2,
    ),
    "persimmon": lambda: _llama_like(tf.PersimmonConfig, **NO_GROUPS),
    "nemotron": lambda: _llama_like(tf.NemotronConfig),
    "glm": lambda: _llama_like(tf.GlmConfig, head_dim=8, attention_bias=True),
    "glm4": lambda: _llama_like(tf.Glm4Config, head_dim=8, attention_bias=True),
    "helium": lambda: _llama_like(tf.HeliumConfig, head_dim=8),
    "exaone4": lambda: _llama_like(
        tf.Exaone4Config, sliding_window=BOUNDARY, layer_types=["sliding_attention", "full_attention"]
    ),
    "smollm3": lambda: _llama_like(tf.SmolLM3Config, no_rope_layers=[1, 0]),
    "ernie4_5": lambda: _llama_like(tf.Ernie4_5Config, head_dim=8, use_bias=True),
    "hunyuan": lambda: _llama_like(tf.HunYuanDenseV1Config, head_dim=8),
    "seed_oss": lambda: _llama_like(tf.SeedOssConfig, head_dim=8, attention_bias=True),
    "deepseek_v2": lambda: _latent(tf.DeepseekV2Config),
    "deepseek_v3": lambda: _latent(tf.DeepseekV3Config, n_group=2, topk_group=1),
    "dbrx": lambda: tf.DbrxConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_seq_len=CONTEXT,
        attn_config={"kv_n_heads": KV_HEADS, "clip_qkv": 1.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": WIDTH}, **NO_STOP,
    ),
    "gpt_oss": lambda: _llama_like(
        tf.GptOssConfig, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=BOUNDARY,
        layer_types=["sliding_attention", "full_attention"],
        **_rope("yarn", factor=4.0, original_max_position_embeddings=BOUNDARY, truncate=False),
    ),
    "jetmoe": lambda: _llama_like(
        tf.JetMoeConfig, kv_channels=8, num_local_experts=4, num_experts_per_tok=2, num_attention_heads=LEFT_OUT
    ),
    "lfm2": lambda: _llama_like(tf.Lfm2Config, layer_types=["conv", "full_attention"], block_multiple_of=16),
    "jamba": lambda: _llama_like(
        tf.JambaConfig, num_experts=2, num_experts_per_tok=1, attn_layer_period=2, attn_layer_offset=1,
        mamba_d_state=4, use_mamba_kernels=False,
    ),
    "recurrent_gemma": lambda: _llama_like(
        tf.RecurrentGemmaConfig, num_key_value_heads=1, attention_window_size=BOUNDARY, logits_soft_cap=3.0,
        block_types=["recurrent", "attention"], max_position_embeddings=LEFT_OUT,
    ),
    "bamba": lambda: _llama_like(tf.BambaConfig, attn_layer_indices=[1], **SECOND_MAMBA),
    "nemotron_h": lambda: _llama_like(
        tf.NemotronHConfig, layers_block_type=["mamba", "attention"], head_dim=8, ssm_state_size=4, mamba_num_heads=8,
        mamba_head_dim=8, n_groups=1, chunk_size=16, use_mamba_kernels=False, num_hidden_layers=LEFT_OUT,
    ),
    "mamba2": lambda: tf.Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=4, num_heads=8, head_dim=8,
        n_groups=2, conv_kernel=3, chunk_size=16, **NO_STOP,
    ),
    "mamba": lambda: tf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=4, expand=2, conv_kernel=3,
        **NO_STOP,
    ),
}  # fmt: skip
"""The configurations by name: what is behind an underscore is what sets it apart from the architecture's usual one."""


SINGLE = frozenset(
    ["xglm", "jetmoe", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "phimoe", "olmoe", "granitemoe",
     "deepseek_v2", "deepseek_v3", "gpt_oss", "jamba"]
)  # fmt: skip
"""Architectures that transformers itself does not run in float64: the mask of XGLM, the grouped products of experts."""


def dtype_of(name: str) -> torch.dtype:
    """The type in which an architecture is tested."""
    return torch.float32 if name in SINGLE else torch.float64


def random_model(name: str, *, seed: int = 0, dtype: torch.dtype | None = None) -> Any:
    """A random transformers model in evaluation mode; matrices, biases and norm scales are drawn anew."""
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = tf.AutoModelForCausalLM.from_config(ARCHITECTURES[name]())
        for label, parameter in model.named_parameters():
            if label.endswith(("bias", ".D")) or "sinks" in label:
                parameter.data.normal_(0, 0.3)
            elif parameter.ndim == 1:
                if "norm" in label or ".ln_" in label:
                    parameter.data.add_(0.2 * torch.randn_like(parameter))
            elif "A_log" not in label and "conv" not in label:
                parameter.data.normal_(0, 0.25)
    finally:
        torch.random.set_rng_state(state)
    return model.to(dtype_of(name) if dtype is None else dtype).eval()
