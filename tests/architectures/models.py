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
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0, "attention_multiplier": 0.2}
STOPS_LATE = {"bos_token_id": 0, "eos_token_id": VOCABULARY - 1, "pad_token_id": 0}
"""For configurations that ask for numbers."""


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
    "gpt2_scaled_by_layer": lambda: tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT,
        activation_function="gelu", scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False, **NO_STOP,
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
    "falcon_sequential": lambda: _llama_like(
        tf.FalconConfig, ffn_hidden_size=MLP, parallel_attn=False, bias=True, num_key_value_heads=LEFT_OUT,
        intermediate_size=LEFT_OUT,
    ),
    "falcon_new_decoder": lambda: _llama_like(
        tf.FalconConfig, ffn_hidden_size=MLP, new_decoder_architecture=True, num_kv_heads=KV_HEADS,
        num_key_value_heads=LEFT_OUT, intermediate_size=LEFT_OUT,
    ),
    "bloom_norm_in_stream": lambda: tf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS,
        apply_residual_connection_post_layernorm=True, **NO_STOP,
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
    "llama4": lambda: _llama_like(
        tf.Llama4TextConfig, head_dim=8, intermediate_size_mlp=MLP, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=2, no_rope_layers=[1, 0], attention_chunk_size=BOUNDARY, floor_scale=24,
        attn_scale=0.3, layer_types=["chunked_attention", "full_attention"],
    ),
    "apertus": lambda: _llama_like(
        tf.ApertusConfig,
        **_rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=BOUNDARY),
    ),
    "bitnet": lambda: _llama_like(tf.BitNetConfig),
    "nanochat": lambda: _llama_like(tf.NanoChatConfig, final_logit_softcapping=3.0),
    "ministral3": lambda: _llama_like(
        tf.Ministral3Config, head_dim=8,
        **_rope("yarn", factor=2.0, original_max_position_embeddings=BOUNDARY, mscale=1.0, mscale_all_dim=1.0,
                llama_4_scaling_beta=0.4),
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
    "qwen3_5_moe": lambda: _llama_like(
        tf.Qwen3_5MoeTextConfig, head_dim=8, layer_types=LINEAR_FIRST, shared_expert_intermediate_size=24, **LINEAR,
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
    "gemma4_experts": lambda: _llama_like(
        tf.Gemma4TextConfig, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
        sliding_window=BOUNDARY, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4, top_k_experts=2,
        moe_intermediate_size=24, final_logit_softcapping=3.0, layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma4_rows_of_its_own": lambda: _llama_like(
        tf.Gemma4TextConfig, head_dim=8, global_head_dim=8, sliding_window=BOUNDARY, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY, layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma3": lambda: _llama_like(
        tf.Gemma3TextConfig, head_dim=8, query_pre_attn_scalar=8, sliding_window=BOUNDARY,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma3_with_images": lambda: tf.Gemma3Config(
        text_config=_llama_like(
            tf.Gemma3TextConfig, head_dim=8, query_pre_attn_scalar=3, sliding_window=BOUNDARY,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
            },
        ).to_dict(),
        vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 16, "patch_size": 8},
        mm_tokens_per_image=1, image_token_index=60, boi_token_index=59, eoi_token_index=58,
    ),
    "vaultgemma": lambda: _llama_like(
        tf.VaultGemmaConfig, head_dim=8, query_pre_attn_scalar=5, sliding_window=BOUNDARY,
        layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=3.0, attn_logit_softcapping=5.0,
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
        tf.GraniteConfig, **GRANITE
    ),
    "granitemoe": lambda: _llama_like(
        tf.GraniteMoeConfig, num_local_experts=4, num_experts_per_tok=2, **GRANITE
    ),
    "granite_hybrid": lambda: _llama_like(
        tf.GraniteMoeHybridConfig, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24,
        layer_types=["mamba", "attention"], position_embedding_type="nope", **GRANITE, **SECOND_MAMBA,
    ),
    "granite_hybrid_dense": lambda: _llama_like(
        tf.GraniteMoeHybridConfig, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=24,
        layer_types=["attention", "attention"], position_embedding_type="rope", **GRANITE, **SECOND_MAMBA,
    ),
    "persimmon": lambda: _llama_like(tf.PersimmonConfig, **NO_GROUPS),
    "nemotron": lambda: _llama_like(tf.NemotronConfig),
    "glm": lambda: _llama_like(tf.GlmConfig, head_dim=8, attention_bias=True),
    "glm4": lambda: _llama_like(tf.Glm4Config, head_dim=8, attention_bias=True),
    "glm4_moe": lambda: _llama_like(
        tf.Glm4MoeConfig, head_dim=8, use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.7,
        first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=24,
    ),
    "minimax_m2": lambda: _llama_like(
        tf.MiniMaxM2Config, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
        **_rope("default", partial_rotary_factor=0.5),
    ),
    "afmoe": lambda: _llama_like(
        tf.AfmoeConfig, head_dim=8, num_dense_layers=1, num_shared_experts=1, route_scale=1.7, mup_enabled=True,
        sliding_window=BOUNDARY, layer_types=["sliding_attention", "full_attention"], **EXPERTS,
    ),
    "helium": lambda: _llama_like(tf.HeliumConfig, head_dim=8),
    "exaone4": lambda: _llama_like(
        tf.Exaone4Config, sliding_window=BOUNDARY, layer_types=["sliding_attention", "full_attention"]
    ),
    "smollm3": lambda: _llama_like(tf.SmolLM3Config, no_rope_layers=[1, 0]),
    "ernie4_5": lambda: _llama_like(tf.Ernie4_5Config, head_dim=8, use_bias=True),
    "ernie4_5_moe": lambda: _llama_like(
        tf.Ernie4_5_MoeConfig, use_bias=True, moe_num_experts=4, moe_k=2, moe_intermediate_size=24,
        moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=1,
    ),
    "hunyuan": lambda: _llama_like(tf.HunYuanDenseV1Config, head_dim=8),
    "seed_oss": lambda: _llama_like(tf.SeedOssConfig, head_dim=8, attention_bias=True),
    "deepseek_v2": lambda: _latent(tf.DeepseekV2Config),
    "deepseek_v3": lambda: _latent(tf.DeepseekV3Config, n_group=2, topk_group=1),
    "deepseek_v3_yarn": lambda: _latent(
        tf.DeepseekV3Config, n_group=2, topk_group=1, attention_bias=True, routed_scaling_factor=1.7,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=BOUNDARY, mscale=1.0, mscale_all_dim=0.7),
    ),
    "youtu": lambda: _llama_like(
        tf.YoutuConfig, num_key_value_heads=HEADS, q_lora_rank=12, kv_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8,
    ),
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
    "lfm2_moe": lambda: _llama_like(
        tf.Lfm2MoeConfig, layer_types=["conv", "full_attention"], num_dense_layers=1, **EXPERTS
    ),
    "modernbert_decoder": lambda: _llama_like(
        tf.ModernBertDecoderConfig, num_key_value_heads=LEFT_OUT, local_attention=2 * BOUNDARY, attention_bias=True,
        mlp_bias=True, norm_bias=True, layer_types=TWO_KINDS, cls_token_id=0, sep_token_id=0, **STOPS_LATE,
    ),
    "bert_decoder": lambda: _llama_like(tf.BertConfig, is_decoder=True, **NO_GROUPS),
    "falcon_h1": lambda: _llama_like(
        tf.FalconH1Config, mamba_d_ssm=64, mamba_d_conv=3, lm_head_multiplier=0.5, embedding_multiplier=3.0,
        mlp_multipliers=[0.7, 1.6], key_multiplier=0.6, attention_out_multiplier=0.8, attention_in_multiplier=1.3,
        ssm_multipliers=[0.7, 1.2, 0.8, 1.1, 0.9], ssm_in_multiplier=1.25, ssm_out_multiplier=0.6, **SECOND_MAMBA,
    ),
    "zamba2": lambda: _llama_like(
        tf.Zamba2Config, num_key_value_heads=HEADS, layers_block_type=["linear_attention", "hybrid"],
        hybrid_layer_ids=[1], mamba_d_state=4, mamba_d_conv=3, mamba_ngroups=1, n_mamba_heads=8, chunk_size=16,
        adapter_rank=4, num_mem_blocks=1, use_mamba_kernels=False,
    ),
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
    "falcon_mamba": lambda: tf.FalconMambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=4, expand=2, conv_kernel=3,
        time_step_rank=4, **NO_STOP,
    ),
    "rwkv": lambda: tf.RwkvConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, attention_hidden_size=WIDTH, intermediate_size=MLP,
        num_hidden_layers=LAYERS, context_length=CONTEXT, **NO_STOP,
    ),
    "mamba": lambda: tf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=4, expand=2, conv_kernel=3,
        **NO_STOP,
    ),
}  # fmt: skip
"""The configurations by name: what is behind an underscore is what sets it apart from the architecture's usual one."""


SINGLE = frozenset(
    ["xglm", "jetmoe", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "phimoe", "olmoe", "granitemoe",
     "deepseek_v2", "deepseek_v3", "deepseek_v3_yarn", "gpt_oss", "jamba", "llama4", "qwen3_5_moe", "gemma4_experts",
     "granite_hybrid", "glm4_moe", "minimax_m2", "afmoe", "ernie4_5_moe", "lfm2_moe", "rwkv"]
)  # fmt: skip
"""Architectures that transformers itself does not run in float64: the mask of XGLM, the grouped products of experts."""


def dtype_of(name: str) -> torch.dtype:
    """The type in which an architecture is tested."""
    return torch.float32 if name in SINGLE else torch.float64


def random_model(name: str, *, seed: int = 0, dtype: torch.dtype | None = None) -> Any:
    """A random transformers model in evaluation mode; matrices, biases, scales and stored factors are drawn anew."""
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = tf.AutoModelForCausalLM.from_config(ARCHITECTURES[name]())
        for label, parameter in model.named_parameters():
            if label.endswith(("bias", ".D")) or "sinks" in label:
                parameter.data.normal_(0, 0.3)
            elif parameter.ndim == 1:
                if "A_log" not in label:  # scales of norms, learned factors and slopes
                    parameter.data.add_(0.2 * torch.randn_like(parameter))
            elif "A_log" not in label and "conv" not in label:
                parameter.data.normal_(0, 0.25)
        saved = model.state_dict().keys()
        for label, buffer in model.named_buffers():  # factors that are no parameters, as Gemma 4's of its layers
            if label in saved and buffer.is_floating_point():
                buffer.data.add_(0.2 * torch.randn_like(buffer))
    finally:
        torch.random.set_rng_state(state)
    return model.to(dtype_of(name) if dtype is None else dtype).eval()
