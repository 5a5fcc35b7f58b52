"""Writes a tiny LLaMA as llama.cpp does: GGUF names, query and key rows interleaved, tokenizer in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.models.tiny import byte_level_tokenizer

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def tiny_llama() -> Any:
    """A random LLaMA whose rows are whole blocks of every quantisation."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(byte_level_tokenizer()), hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: Any,
    kind: str = "F32",
    *,
    architecture: str = "llama",
    without: str = "",
    more: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    **extra: Any,
) -> Path:
    """Write a model; matrices are quantised as `kind`, the rest is float32.

    `more` are weights besides its own, `texts` and `extra` more entries of the header.
    """
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for name, value in extra.items():
        writer.add_uint16(name.replace("__", "."), value)
    for name, text in (texts or {}).items():
        writer.add_string(name, text)
    for name, array in (more or {}).items():
        writer.add_tensor(name, array)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    kind_of = getattr(gguf.GGMLQuantizationType, kind)
    for name, value in model.state_dict().items():
        array = value.float().numpy()
        if ".q_proj" in name or ".k_proj" in name:
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        array = np.ascontiguousarray(array)
        called = names.get_name(name, try_suffixes=(".weight",))
        if called == without:
            continue
        if array.ndim > 1 and kind != "F32":
            writer.add_tensor(called, gguf.quantize(array, kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(called, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any) -> None:
    core = json.loads(byte_level_tokenizer().backend_tokenizer.to_str())
    tokens = sorted(core["model"]["vocab"], key=core["model"]["vocab"].__getitem__)
    special = {one["content"] for one in core["added_tokens"]}
    tokens += [one for one in special if one not in core["model"]["vocab"]]
    merges = [" ".join(one) if isinstance(one, list) else one for one in core["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
